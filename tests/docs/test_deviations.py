"""docs/deviations.md: every row has a check, and still tells what Sayso does otherwise than its seeds."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from pydantic import BaseModel

from agent import Artifact, Message, Role, Tool, ToolExecutionError, ToolValidationError, UsageStats
from agent import tool as make_tool
from agent.cache.entries import written
from agent.config import AgentConfig, model_for
from channels.types import Media
from pending import PendingConfirmation, RegexConfirmParser

PAGE = Path(__file__).parents[2] / "docs" / "deviations.md"
ROWS = re.findall(r"^\| `([a-z-]+)` \| (00[0-4]) \| .+ \| .+ \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@make_tool
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


def error_of(call: Callable[[], object]) -> Exception:
    """Return the error that a call raises."""
    with pytest.raises((ToolValidationError, ToolExecutionError)) as caught:
        call()
    return caught.value


def undescribed(a: int) -> list[int]:  # noqa: D103  # having no docstring is what is tested
    return [a]


def with_date(day: date) -> str:
    """Tell the year."""
    return str(day.year)


class House:
    """A provider with a model of its own."""

    default_model = "house-model"


def names_no_parameter() -> object:
    """Make a tool whose metadata names a parameter that it lacks."""
    return make_tool(param_metadata={"units": {"enum": ["celsius"]}})(undescribed)


CHECKS: dict[str, Callable[[], bool]] = {
    "cache-json": lambda: "message" in json.loads(written((Message(Role.ASSISTANT, "hi"), UsageStats()))),
    "tool-frozen": lambda: dataclasses.is_dataclass(Tool) and not issubclass(Tool, BaseModel),
    "namespace-copy": lambda: divide.update_namespace("math").name == "math-divide" and divide.name == "divide",
    "reason-on-request": lambda: "toolcall_reason" not in divide.schema()["parameters"]["properties"],
    "description-carried": lambda: (
        divide.parameters[0].description == "Parameter 'a'"
        and "description" not in divide.schema()["parameters"]["properties"]["a"]
    ),
    "issue-names": lambda: error_of(lambda: divide.validate({"a": 1})).issue == "Missing required parameter: 'b'",
    "error-type": lambda: (
        str(error_of(lambda: divide.execute({"a": 1, "b": 0})))
        == "Error executing tool 'divide': ZeroDivisionError: division by zero"
    ),
    "any-type": lambda: make_tool(with_date).execute({"day": "2026-01-02"}) == "2026",
    "no-docstring": lambda: (
        bool(make_tool(undescribed).description)
        and isinstance(error_of(lambda: Tool("x", "", [], undescribed)), ToolValidationError)
    ),
    "any-result": lambda: make_tool(undescribed).execute({"a": 1}) == "[1]",
    "unknown-metadata": lambda: isinstance(error_of(names_no_parameter), ToolValidationError),
    "parser-version": lambda: RegexConfirmParser().version != "regex-v1:pt-en-es",
    "default-prompt": lambda: (
        not PendingConfirmation("a", "p").own_prompt and PendingConfirmation("a", "p", "Sure?").own_prompt == "Sure?"
    ),
    "own-default-model": lambda: (
        model_for(House(), AgentConfig().model) == "" and model_for(House(), "gpt-5-mini") == "gpt-5-mini"
    ),
    "artifact-carried": lambda: (
        {"role", "retention"} <= {each.name for each in dataclasses.fields(Artifact)}
        and {"role", "retention"}.isdisjoint(each.name for each in dataclasses.fields(Media))
    ),
}


def test_every_deviation_has_a_check():
    """And every check its row: a row that is misspelled is none."""
    assert [key for key, _ in ROWS] == list(CHECKS)


@pytest.mark.parametrize("key", CHECKS)
def test_a_deviation_is_still_true(key):
    """It fails when Sayso no longer differs: then the row goes."""
    assert CHECKS[key]()
