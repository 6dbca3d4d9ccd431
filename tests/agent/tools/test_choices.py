"""Choices of a parameter: the schema offers exactly what a call accepts, and the function gets the choice itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from sayso.agent import (
    Agent,
    ChannelAgent,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolParameterError,
    tool,
)
from sayso.agent.tools.parameter import ToolParameter


class Kind(Enum):
    """Kinds of pets."""

    CAT = "cat"
    DOG = "dog"


class Day(Enum):
    """Days that JSON writes as text."""

    FIRST = date(2026, 1, 2)


class Pair(Enum):
    """Tuples, which JSON writes as lists."""

    ONE = (1, 2)


class Price(Enum):
    """A Decimal."""

    HALF = Decimal("0.50")


class Size(StrEnum):
    """Choices that are text themselves."""

    SMALL = "s"


class Count(Enum):
    """A number."""

    ONE = 1


class Pet(BaseModel):
    """A model with a choice inside."""

    kind: Literal[Kind.CAT]


@dataclass
class Cage:
    """A dataclass with a choice inside."""

    kind: Literal[Kind.DOG, "none"]


def of_type(hint: Any) -> Tool:
    """Return a tool whose parameter has this type. It returns the argument."""

    def give(a: Any) -> Any:
        """Give."""
        return a

    give.__annotations__["a"] = hint
    return tool(give)


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (Literal[Kind.CAT, Kind.DOG], ["cat", "dog"], [Kind.CAT, Kind.DOG]),
    (Literal["none", Kind.CAT], ["none", "cat"], ["none", Kind.CAT]),
    (Literal[Count.ONE, True], [1, True], [Count.ONE, True]),
    (Literal[Size.SMALL], ["s"], [Size.SMALL]),
    (Literal[b"x"], ["x"], [b"x"]),
    (Day, ["2026-01-02"], [Day.FIRST]),
    (Literal[Day.FIRST], ["2026-01-02"], [Day.FIRST]),
    (Pair, [[1, 2]], [Pair.ONE]),
    (Price, ["0.50"], [Price.HALF]),
    (Kind, ["cat", "dog"], [Kind.CAT, Kind.DOG]),
]


@pytest.mark.parametrize(("hint", "offered", "received"), CASES)
def test_schema_offers_what_a_call_accepts(hint: Any, offered: list[Any], received: list[Any]):
    """Each offered value becomes the choice; the choice itself is accepted, too."""
    made = of_type(hint)
    schema = made.schema()["parameters"]["properties"]["a"]
    assert schema["enum"] == offered
    for value, choice in zip(offered, received, strict=True):
        assert made.run_raw({"a": value}) == made.run_raw({"a": choice}) == choice
        assert type(made.run_raw({"a": value})) is type(choice)
    with pytest.raises(ToolParameterError):
        made.run_raw({"a": "bird"})


@pytest.mark.parametrize(
    ("hint", "given", "received"),
    [
        (Literal[Kind.CAT] | None, "cat", Kind.CAT),
        (int | Literal[Kind.CAT], "cat", Kind.CAT),
        (list[Literal[Kind.CAT]], ["cat"], [Kind.CAT]),
        (dict[str, Literal[Kind.CAT]], {"a": "cat"}, {"a": Kind.CAT}),
        (Pet, {"kind": "cat"}, Pet(kind=Kind.CAT)),
        (list[Cage], [{"kind": "dog"}, {"kind": "none"}], [Cage(Kind.DOG), Cage("none")]),
    ],
)
def test_choices_are_read_at_any_depth(hint: Any, given: Any, received: Any):
    """In unions, lists, models and dataclasses."""
    assert of_type(hint).run_raw({"a": given}) == received


@pytest.mark.parametrize("name", ["type", "default", "expected", "metadata", "fields", "choices"])
def test_parameter_may_have_the_name_of_a_part_of_a_schema(name: str):
    """Its choices are read as those of any other parameter."""
    parameter = ToolParameter(name=name, param_type=Literal[Kind.CAT])
    made = Tool("feed", "Feed.", [parameter], lambda **given: given[name])
    assert made.run_raw({name: "cat"}) is Kind.CAT


def test_choice_is_the_same_after_a_yes():
    """It is stored as JSON, and read as the choice again."""

    @tool(requires_approval=True)
    def feed(kind: Literal[Kind.CAT]) -> str:
        """Feed."""
        return f"fed {kind!r}"

    bot = ChannelAgent(Agent([feed], ScriptedProvider([ToolCall("feed", {"kind": "cat"})])))
    bot.ask_channel("ana", "feed it")
    assert "Kind.CAT" in bot.ask_channel("ana", "yes").content
