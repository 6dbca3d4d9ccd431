"""Results: what a whole run found, as JSON in `published/`, with versions, machine and date."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.peers_under_faults.judge import VERDICTS, Verdict

PUBLISHED = Path(__file__).parent / "published" / "results.json"
_APPS = Path(__file__).parent / "apps"
#: The files that an author writes, by system. What the peers share is in the last one.
APP_FILES = {
    "LangGraph": ("langgraph_app.py", "chat.py"),
    "pydantic-ai + DBOS": ("pydantic_ai_app.py", "chat.py"),
    "OpenAI Agents": ("openai_agents_app.py", "chat.py"),
    "Agno": ("agno_app.py", "chat.py"),
    "Sayso": ("sayso_tools.py", "sayso.yaml"),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The verdicts of one system under one fault, and how often each note was made."""

    verdicts: dict[Verdict, int]
    notes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Published:
    """A whole run. `results` has the figures by fault and by system; `lines` the lines of each app."""

    date: str
    machine: str
    python: str
    count: int
    seed: int
    seconds: int
    versions: dict[str, dict[str, str]]
    lines: dict[str, int]
    results: dict[str, dict[str, Figures]]

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the run of a file's text."""
        value: dict[str, Any] = json.loads(text)
        results = {
            fault: {name: Figures(**figures) for name, figures in systems.items()}
            for fault, systems in value.pop("results").items()
        }
        return cls(**value, results=results)


def figures(verdicts: Sequence[Verdict], notes: Sequence[str]) -> Figures:
    """Return the figures of some runs, the best verdict first."""
    counts = Counter(verdicts)
    ordered = {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
    return Figures(ordered, dict(Counter(notes)))


def machine() -> str:
    """Return the machine in words."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def lines() -> dict[str, int]:
    """Return how many lines of code each app has: no blank line, no comment, no docstring."""
    return {name: _code_lines(_APPS / files[0]) for name, files in APP_FILES.items()} | {
        "Sayso": sum(_code_lines(_APPS / file) for file in APP_FILES["Sayso"])
    }


def _code_lines(file: Path) -> int:
    count = 0
    in_docstring = False
    for line in file.read_text().splitlines():
        text = line.strip()
        quotes = text.count('"""')
        if in_docstring or quotes:
            in_docstring = in_docstring != (quotes == 1)
            continue
        count += bool(text) and not text.startswith("#")
    return count


def read(file: Path = PUBLISHED) -> Published:
    """Return the published run."""
    return Published.from_json(file.read_text(encoding="utf-8"))


def write(run: Published, file: Path = PUBLISHED) -> None:
    """Publish a run."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(run.to_json(), encoding="utf-8")


def merged(
    old: Published, results: Mapping[str, Mapping[str, Figures]]
) -> dict[str, dict[str, Figures]]:
    """Return the results of an old run with some of its cells replaced."""
    whole = {fault: dict(systems) for fault, systems in old.results.items()}
    for fault, systems in results.items():
        whole.setdefault(fault, {}).update(systems)
    return whole
