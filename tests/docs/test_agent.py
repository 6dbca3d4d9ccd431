"""docs/how-to/use-an-agent-in-code.md: what it shows is run; every method has a line. docs/reference/python.md: every
setting and field has one.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any, get_args

import pytest

from sayso.agent import Agent, AgentConfig, AgentResult
from sayso.agent.config import DEFAULT_SYSTEM_PROMPT
from sayso.agent.result import StopReason
from tests.docs.pages import ROOT, part

PAGE = part("use-an-agent-in-code.md", end="Ask for typed answers")
REFERENCE = (ROOT / "docs" / "reference" / "python.md").read_text()
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def default(setting: Field[Any]) -> str:
    """As the page writes it."""
    if setting.default is MISSING:
        made: Any = setting.default_factory
        return "{}" if made is dict else f"{made.__name__}()"
    if setting.default == DEFAULT_SYSTEM_PROMPT:
        return "DEFAULT_SYSTEM_PROMPT"
    return f'"{setting.default}"' if isinstance(setting.default, str) else repr(setting.default)


def test_the_examples_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, to the letter."""
    names: dict[str, Any] = {}
    assert len(SHOWN) == PAGE.count("```python\n") > 1
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/use-an-agent-in-code.md", "exec", dont_inherit=True), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_every_setting_has_a_line_with_its_default() -> None:
    """In their order, and no other."""
    documented = re.findall(
        r"^\| `(\w+=.*?)` \|", REFERENCE.partition("### Settings of an agent")[2], re.MULTILINE
    )
    assert documented == [f"{setting.name}={default(setting)}" for setting in fields(AgentConfig)]


def test_every_field_of_a_result_is_named() -> None:
    """And what can be asked of it."""
    names = [field.name for field in fields(AgentResult)] + [
        "message",
        "role",
        "tool_name",
        "tool_args",
    ]
    assert [
        name
        for name in names
        if f"`{name}`" not in REFERENCE.partition("### Fields of a result")[2]
    ] == []


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_every_stop_reason_has_a_line(reason: str) -> None:
    """With what the caller reads then."""
    assert re.search(rf"^\| `{reason}` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def test_every_method_has_a_line() -> None:
    """On the page."""
    public = [name for name, _ in inspect.getmembers(Agent) if not name.startswith("_")]
    assert [
        name
        for name in [*public, *vars(Agent())]
        if not name.startswith("_") and f"`{name}" not in PAGE
    ] == []


def test_signatures_of_doors_are_those_of_the_page() -> None:
    """With their defaults."""
    for door in (Agent.arun, Agent.astream, Agent.batch):
        parameters = list(inspect.signature(door).parameters.values())[1:]
        plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        shown = [
            each.name if each.default is each.empty else f"{each.name}={each.default!r}"
            for each in plain
        ]
        assert f"`{door.__name__}({', '.join(shown)})`" in PAGE
