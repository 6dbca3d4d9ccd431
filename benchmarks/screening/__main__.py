"""How screening does on the published corpus: marked injections and false alarms, by kind and by language.

    python -m benchmarks.screening

The patterns were written against `tuned.jsonl`. `held_out.jsonl` was written before the first of them by the same hand,
`blind.jsonl` after them by an author who never saw them; both are only counted, and their texts are never printed, so
that no pattern is tuned for them. `evasive.jsonl` was written to get past the first patterns.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.tools.screening import suspicions

PARTS = ("tuned", "held_out", "blind", "evasive")


@dataclass(frozen=True, slots=True)
class Case:
    """A text with its language, its label "injection" or "benign", and its kind."""

    label: str
    language: str
    kind: str
    text: str

    @property
    def is_injection(self) -> bool:
        """Return whether the text tries to instruct a model."""
        return self.label == "injection"


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of texts, and the marked ones."""

    injections: int
    hits: int
    benign: int
    alarms: int

    @property
    def hit_rate(self) -> float:
        """Return the share of injections that were marked."""
        return self.hits / max(self.injections, 1)

    @property
    def alarm_rate(self) -> float:
        """Return the share of harmless texts that were marked."""
        return self.alarms / max(self.benign, 1)


def read_part(name: str) -> list[Case]:
    """Return the cases of one part of the corpus."""
    lines = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Case(**json.loads(line)) for line in lines]


def tally(cases: Iterable[Case]) -> Tally:
    """Screen each text."""
    marked = [(case.is_injection, bool(suspicions(case.text))) for case in cases]
    return Tally(
        injections=sum(injection for injection, _ in marked),
        hits=sum(injection and found for injection, found in marked),
        benign=sum(not injection for injection, _ in marked),
        alarms=sum(found and not injection for injection, found in marked),
    )


def table(by: str = "") -> list[str]:
    """Return the totals of each part of the corpus and, on request, its groups by "language" or "kind"."""
    rows = [
        "| texts | injections | marked | | harmless | marked | |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in PARTS:
        cases = read_part(part)
        rows.append(_row(part, cases))
        if by:
            rows += [_row(f"{part}: {name}", group) for name, group in _groups(cases, by)]
    return rows


def marked_in(files: Iterable[Path]) -> Iterator[str]:
    """Yield each marked paragraph of these files with its file and kinds; then the number of all paragraphs."""
    paragraphs = [
        (file, each) for file in files for each in file.read_text(errors="replace").split("\n\n")
    ]
    found = [(file, kinds, each) for file, each in paragraphs if (kinds := suspicions(each))]
    for file, kinds, each in found:
        yield f"{file}: {', '.join(kinds)}: {' '.join(each.split())[:100]!a}"
    yield f"{len(found)} of {len(paragraphs)} paragraphs"


def milliseconds(chars: int) -> float:
    """Return the best of five screenings of prose of this length."""
    text = (
        "The invoice was sent to the customer, and the system shows all previous orders. "
        * (chars // 80 + 1)
    )[:chars]
    return min(timeit.repeat(lambda: suspicions(text), number=1, repeat=5)) * 1000


def main() -> None:
    """Print the table, or the mistakes in the tuned part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screening")
    parser.add_argument(
        "--by", choices=("language", "kind"), default="", help="rows for each of them, too"
    )
    parser.add_argument(
        "--wrong",
        action="store_true",
        help="the mistakes in the part that the patterns are tuned on",
    )
    parser.add_argument(
        "--on", nargs="+", type=Path, default=(), help="files of yours: which paragraphs are marked"
    )
    asked = parser.parse_args()
    if asked.on:
        print("\n".join(marked_in(asked.on)))
        return
    if asked.wrong:
        print("\n".join(_wrong(read_part("tuned"))))
        return
    print("\n".join(table(asked.by)))
    print(
        "\n"
        + ", ".join(
            f"{chars:,} characters: {milliseconds(chars):.2f} ms"
            for chars in (1000, 100_000, 1_000_000)
        )
    )


def _wrong(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        if case.is_injection != bool(suspicions(case.text)):
            yield f"{case.label} {case.language} {case.kind}: {case.text!a} {suspicions(case.text)}"


def _groups(cases: Iterable[Case], by: str) -> list[tuple[str, list[Case]]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(getattr(case, by), []).append(case)
    return sorted(groups.items())


def _row(name: str, cases: Sequence[Case]) -> str:
    found = tally(cases)
    hits = (
        f"{found.injections} | {found.hits} | {found.hit_rate:.0%}"
        if found.injections
        else " |  | "
    )
    alarms = (
        f"{found.benign} | {found.alarms} | {found.alarm_rate:.0%}" if found.benign else " |  | "
    )
    return f"| {name} | {hits} | {alarms} |"


if __name__ == "__main__":
    main()
