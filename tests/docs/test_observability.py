"""docs/how-to/observe-runs-in-code.md: what it shows is run. docs/reference/observability.md: every event and step has its line."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_args

import pytest

from sayso.agent.observability.observer import EVENTS
from sayso.agent.trace import StepType, TraceStep
from tests.agent.observability.test_observers import SEED
from tests.docs.pages import ROOT, part

PAGE = part("observe-runs-in-code.md")
EVENTS_PAGE = (ROOT / "docs" / "reference" / "observability.md").read_text()
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


@pytest.mark.parametrize("at", range(PAGE.count("```python")))
def test_the_examples_of_the_page_print_what_it_says(
    at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by itself, to the letter."""
    code, printed = SHOWN[at]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/how-to/observe-runs-in-code.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_has_a_line(event: str) -> None:
    """With its parameters."""
    assert f"| `on_{event}` | `{SEED[event]}` |" in EVENTS_PAGE


def test_every_type_and_field_of_a_step_is_named() -> None:
    """On the page with the events."""
    names = (*get_args(StepType), *(part.name for part in fields(TraceStep)))
    assert [name for name in names if f"`{name}`" not in EVENTS_PAGE] == []
