"""docs/reference/observability.md: the log events, attributes, metrics and errors of the code, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sayso.agent import otel_conventions as conventions
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "observability.md").read_text()
LOGS, SPANS = PAGE.split("## Spans and metrics")
PACKAGES = ("agent", "channels", "config", "infra", "ops", "pending", "workers")
METHODS = {"debug", "info", "warning", "error", "exception", "log"}
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
#: Events whose names are put together, and a piece of the code that does it.
COMPOSED = {
    "tool.left_running": '"%s.left_running"',
    "tool.ended_late": '"%s.ended_late"',
    "own.left_running": '"%s.left_running"',
    "own.ended_late": '"%s.ended_late"',
    "media.swept": ".swept",
    "media.not_swept": ".not_swept",
    "texts.swept": ".swept",
    "texts.not_swept": ".not_swept",
}


def sources() -> Iterator[tuple[Path, str]]:
    """Return the modules of the packages."""
    return (
        (path, path.read_text())
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    )


def logged(text: str) -> Iterator[str]:
    """Return the names of the events that a module logs, as far as they stand in the call."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("log" | "_log"), attr=method)) if (
                method in METHODS
            ):
                parts = [part for each in node.args[:2] for part in ast.walk(each)]
                strings = [
                    part.value
                    for part in parts
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                yield from (found[0] for each in strings if (found := EVENT.match(each)))


def in_first_column(tables: str, pattern: str) -> set[str]:
    """Return what stands in backticks in the first column of tables."""
    rows = re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE)
    return {name for row in rows for name in re.findall(f"`({pattern})`", row)}


def test_every_event_in_the_code_is_on_the_page() -> None:
    """Under the name that an operator would look for."""
    events = {event for _, text in sources() for event in logged(text)}
    assert len(events) > 100
    assert sorted(event for event in events if f"`{event}`" not in LOGS) == []


def test_every_event_on_the_page_is_in_the_code() -> None:
    """As text, or put together where COMPOSED says so."""
    shown = in_first_column(LOGS, ".*?")
    code = "".join(text for _, text in sources())
    assert sorted(event for event in shown if COMPOSED.get(event, f'"{event}') not in code) == []


def test_attributes_and_metrics_are_on_the_page() -> None:
    """All names of the conventions that we set."""
    names = [
        value
        for name, value in vars(conventions).items()
        if name.isupper() and isinstance(value, str)
    ]
    assert sorted(name for name in names if "." in name and f"`{name}`" not in SPANS) == []


def test_errors_on_the_page_exist() -> None:
    """Each is a class of the packages."""
    table = PAGE.split("## Error classes")[1].split("## Exit codes")[0]
    classes = in_first_column(table, r"\w+")
    code = "".join(text for _, text in sources())
    assert sorted(name for name in classes if f"class {name}(" not in code) == []
