"""Arguments: for any signature and any arguments, validation answers, and agrees with the schema."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from sayso.agent import Tool, ToolParameterError


class Size(enum.Enum):
    """Words."""

    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    """Numbers."""

    LOW = 1
    HIGH = 2


class Item(BaseModel):
    """A model."""

    name: str
    count: Annotated[int, Field(ge=0)] = 1


@dataclasses.dataclass
class Box:
    """A dataclass in which models are."""

    items: list[Item]
    size: Size = Size.SMALL


SCALARS = [
    str,
    int,
    float,
    bool,
    date,
    datetime,
    UUID,
    Size,
    Level,
    Decimal,
    Literal["a", "b"],
    Literal[1, 2],
    Literal[True],
]
CONSTRAINED = [
    Annotated[int, Field(ge=1, le=5)],
    Annotated[float, Field(gt=0)],
    Annotated[str, Field(min_length=1, max_length=4)],
    Annotated[list[int], Field(max_length=2)],
]
NESTED = [
    Item,
    Box,
    list[Item],
    dict[str, Item],
    dict[str, list[int]],
    list[str | int],
    tuple[int, str],
    set[int],
]


def hints() -> st.SearchStrategy[Any]:
    """Type hints as tools have them."""
    simple = st.sampled_from([*SCALARS, *CONSTRAINED, *NESTED, list, dict])
    scalars = st.sampled_from(SCALARS)
    lists = scalars.map(lambda hint: list[hint])
    maps = scalars.map(lambda hint: dict[str, hint])
    optional = st.one_of(simple, lists, maps).map(lambda hint: Optional[hint])  # noqa: UP045  # built at run time
    return st.one_of(
        simple, lists, maps, optional, st.sampled_from([int | bool, int | list[int], float | None])
    )


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6),
        st.sampled_from(["42", "yes", "1.0", "a", "s", "2026-01-02", "2026-01-02T03:04:05", "x", "null", ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["name", "count", "items", "size", "z"]), inner)
    ),
    max_leaves=6,
)  # fmt: skip
ITEMS = st.builds(Item, name=st.text(max_size=3), count=st.integers(0, 9))
BOXES = st.builds(Box, items=st.lists(ITEMS, max_size=2), size=st.sampled_from(Size))


st.register_type_strategy(Item, ITEMS)
st.register_type_strategy(Box, BOXES)


def near(hint: Any) -> st.SearchStrategy[Any]:
    """JSON for a parameter of that type: mostly what fits, also quoted as small models do, and sometimes anything."""
    fitting = st.from_type(hint).map(lambda value: TypeAdapter(Any).dump_python(value, mode="json"))
    quoted = fitting.map(
        lambda value: str(value).lower() if isinstance(value, int | float) else value
    )
    return st.one_of(fitting, quoted, JSON)


@st.composite
def arguments(draw: st.DrawFn, tool: Tool) -> dict[str, Any]:
    """Some of a tool's arguments, or all."""
    params = [each for each in tool.parameters if draw(st.integers(0, 3))]
    return {each.name: draw(near(each.param_type)) for each in params}


NAMES = ["a", "b", "json", "schema", "model_config", "self_", "_x", "copy"]


@st.composite
def signatures(draw: st.DrawFn) -> Tool:
    """A tool with up to four parameters, some with defaults, some with awkward names."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    params = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=draw(hints()),
            default=None
            if name.startswith("_")
            else draw(st.sampled_from([inspect.Parameter.empty, None])),
        )
        for name in names
    ]

    def function(**given: Any) -> str:
        """Do."""
        return json.dumps(sorted(given))

    function.__signature__ = inspect.Signature(params)
    function.__annotations__ = {param.name: param.annotation for param in params}
    return Tool.from_function(function)


def refusal(tool: Tool, args: Any) -> str:
    """Why the tool refuses these arguments, "" when it takes them. Nothing else is ever raised."""
    try:
        tool.validate(args)
    except ToolParameterError as exc:
        return str(exc)
    return ""


def fits(tool: Tool, args: Any, *, formats: tuple[str, ...] = ("date", "uuid")) -> bool:
    """Whether the arguments are JSON, and what the tool's schema says. No tool takes what its schema does not name."""
    try:
        json.dumps(args, allow_nan=False)
    except ValueError:
        return False
    schema = {**tool.schema()["parameters"], "additionalProperties": False}
    checker = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker(formats)
    )
    return bool(checker.is_valid(args))


def holds_datetime(tool: Tool) -> bool:
    """jsonschema alone cannot check this format."""
    return "date-time" in json.dumps(tool.schema())


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tool=signatures(), data=st.data())
def test_validation_answers_whatever_is_sent(tool, data):
    """Arguments, or a ToolParameterError with words; and the error is one line a model can read."""
    args = data.draw(st.one_of(JSON, st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)))
    words = refusal(tool, args)
    assert not words or (
        "Tool Validation Error: 'function'" in words and "Expected parameters: " in words
    )


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tool=signatures(), data=st.data())
def test_what_fits_the_schema_is_accepted(tool, data):
    """A model that keeps to what it was told is never refused."""
    args = data.draw(arguments(tool))
    if not holds_datetime(tool) and fits(tool, args):
        tool.validate(args)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(tool=signatures(), data=st.data())
def test_what_is_accepted_is_written_down_as_the_schema_says(tool, data):
    """What a policy reads and a proposal stores fits the schema, and means the same when it is read again.

    Null where a parameter may be left out is the same as leaving it out.
    """
    try:
        stored = tool.validate_json(data.draw(arguments(tool)))
    except ToolParameterError:
        return
    assert fits(tool, {name: value for name, value in stored.items() if value is not None})
    again = json.loads(json.dumps(stored, allow_nan=False))
    assert tool.validate(again) == tool.validate(stored)  # by value: a set has no order to keep


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(tool=signatures(), data=st.data())
def test_a_schema_from_elsewhere_answers_the_same_way(tool, data):
    """The same schema given as JSON accepts whatever fits it; of the rest it makes what fits, or refuses in the same
    kind of words. A `format` alone says nothing there, as the standard has it.
    """
    args = data.draw(arguments(tool))
    schema = json.loads(json.dumps(tool.schema()["parameters"]))
    foreign = Tool("foreign", "Foreign", schema, lambda **given: "")
    if fits(tool, args, formats=()):
        assert foreign.validate(args) == args
        return
    if words := refusal(foreign, args):
        assert "Tool Validation Error: 'foreign'" in words
        return
    assert fits(tool, foreign.validate_json(args), formats=())
