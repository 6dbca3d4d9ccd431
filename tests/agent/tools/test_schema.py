"""Schema: hints and docstrings as the JSON schema a model reads."""

import enum
import json
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, ClassVar, Literal, Optional, Self, Union

import pytest
from pydantic import BaseModel, Field, SecretStr

from sayso.agent import Tool, ToolParameter, ToolParameterError, ToolValidationError, tool


class Address(BaseModel):
    """A nested argument."""

    street: str


def properties_of(function):
    """A function's parameters as a model reads them."""
    return tool(function).schema()["parameters"]["properties"]


def test_whole_schema_has_the_documented_shape():
    """Name, description and an object of parameters, with docs from the docstring."""

    @tool
    def get_weather(location: str, units: Literal["celsius", "fahrenheit"] = "celsius") -> str:
        """Get the weather.

        Args:
            location: City name
                or coordinates.
        """
        return location + units

    assert get_weather.schema() == {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City name or coordinates."},
                "units": {
                    "type": "string",
                    "enum": ["celsius", "fahrenheit"],
                    "default": "celsius",
                },
            },
            "required": ["location"],
        },
    }


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (Optional[list[str]], {"type": "array", "items": {"type": "string"}}),  # noqa: UP045  # both spellings
        (Union[str, int], {"type": "string"}),  # noqa: UP007  # both spellings
        (str | int | None, {"type": "string"}),
        (Literal["one"], {"type": "string", "enum": ["one"]}),
        (Literal["a", "b"] | None, {"type": "string", "enum": ["a", "b"]}),
        (
            Annotated[int, Field(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
        ),
    ],
)
def test_hints_become_plain_json_schema(hint, expected):
    """Vendors get the simple subset they all understand."""

    def do(x):
        """Do."""

    do.__annotations__["x"] = hint
    assert properties_of(do)["x"] == expected


def test_optional_without_default_is_not_required():
    """`X | None` may be left out."""

    @tool
    def search(query: str, filter: str | None) -> str:
        """Search."""
        return f"{query} {filter}"

    assert search.schema()["parameters"]["required"] == ["query"]
    assert search.execute({"query": "q"}) == "q None"


def test_parameter_names_of_pydantic_are_free():
    """`json`, `schema` and `model_config` are ordinary names for a tool."""

    @tool
    def odd(json: str, schema: str, model_config: str, copy: int = 1) -> str:
        """Do."""
        return json + schema + model_config + str(copy)

    assert odd.execute({"json": "a", "schema": "b", "model_config": "c"}) == "abc1"


def test_nested_models_stand_where_they_are_used():
    """Not every vendor follows a `$ref`."""

    @tool
    def move(to: Address) -> str:
        """Move."""
        return to.street

    assert move.schema()["parameters"]["properties"]["to"]["properties"] == {
        "street": {"type": "string"}
    }
    assert "$ref" not in json.dumps(move.schema())
    assert move.execute({"to": {"street": "Elm"}}) == "Elm"


def test_param_metadata_wins():
    """Descriptions and enums given to the decorator come first."""

    @tool(param_metadata={"unit": {"description": "Which", "enum": ["c", "f"]}})
    def convert(unit: str = "c") -> str:
        """Convert."""
        return unit

    expected = {"type": "string", "enum": ["c", "f"], "description": "Which", "default": "c"}
    assert convert.schema()["parameters"]["properties"]["unit"] == expected


def test_manual_parameter_with_element_type():
    """`element_type` says what a bare list holds."""
    schema = ToolParameter("tags", list, "Tags", element_type=str).to_schema()
    assert schema == {"type": "array", "items": {"type": "string"}, "description": "Tags"}


def test_return_hint_need_not_resolve():
    """A return type only type checkers see does not matter to the model."""

    def do(x: int) -> "Nowhere":  # noqa: F821  # the point of the test
        """Do."""

    assert properties_of(do) == {"x": {"type": "integer"}}


GOOGLE = """Search.

Args:
    query: Search terms.
    limit: Max results.
"""
NUMPY = """Search.

Parameters
----------
query : str
    Search terms.
limit : int
    Max results.
"""
SPHINX = """Search.

:param query: Search terms.
:param limit: Max results.
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX])
def test_docstrings_of_three_styles_describe_the_parameters(docstring):
    """And none of it is left in the description."""

    def search(query: str, limit: int = 10) -> str:
        return query

    search.__doc__ = docstring
    made = tool(search)
    assert made.description == "Search."
    shown = made.schema()["parameters"]["properties"]
    assert [shown[name]["description"] for name in ("query", "limit")] == [
        "Search terms.",
        "Max results.",
    ]


class Unit(enum.Enum):
    """A unit."""

    KM = "km"
    MILE = "mi"


@dataclass
class Trip:
    """A trip."""

    start: date
    length: Annotated[float, Field(gt=0)]
    unit: Unit = Unit.KM


def test_dataclasses_enums_and_dates_reach_the_function_as_themselves():
    """Beyond the seeds' types: what a model sends as JSON arrives as Python."""

    @tool
    def plan(trip: Trip, stops: list[Trip] | None = None) -> str:
        """Plan."""
        return f"{trip.start:%A} {trip.length} {trip.unit.name} {len(stops or [])}"

    args = {
        "trip": {"start": "2026-11-22", "length": "3", "unit": "mi"},
        "stops": [{"start": "2026-11-23", "length": 1}],
    }
    assert plan.execute(args) == "Sunday 3.0 MILE 1"
    assert plan.validate_json(args)["trip"] == {"start": "2026-11-22", "length": 3.0, "unit": "mi"}
    with pytest.raises(ToolParameterError, match=r"'trip\.length' is -1"):
        plan.validate({"trip": {"start": "2026-11-22", "length": -1}})


def test_a_default_that_json_cannot_hold_is_the_programs_own():
    """It is left out of the schema, and still the default."""
    missing = object()

    def find(name: str = missing) -> str:
        """Find."""
        return "all" if name is missing else name

    made = tool(find)
    assert made.schema()["parameters"]["properties"]["name"] == {"type": "string"}
    assert made.execute({}) == "all"
    assert made.validate_json({}) == {}


def hinted(hint, **options):
    """A tool with one parameter `x` of that type, which it hands back."""
    return Tool("t", "T", [ToolParameter("x", hint, **options)], lambda x: x)


class Login(BaseModel):
    """What holds a secret."""

    password: SecretStr


@pytest.mark.parametrize("hint", [SecretStr, Login, list[SecretStr], SecretStr | None])
def test_a_secret_that_a_model_sends_is_refused(hint):
    """It would be shown, agreed to, stored and run as asterisks. Secrets are injected (seed: Injected Parameters)."""
    with pytest.raises(ToolValidationError, match="inject it, or take a str"):
        hinted(hint)


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Field(pattern="(")],
        Annotated[str, Field(pattern="(?=a)")],
        Annotated[int, Field(alias="other")],
        Annotated[float, Field(ge=float("nan"))],
        ClassVar[int],
        Self,
        list["Nowhere"],  # noqa: F821  # the point
        Callable[[int], int],
        type,
        5,
    ],
)
def test_hints_no_model_can_fill_are_refused_when_the_tool_is_made(hint):
    """Each with a sentence, and none in front of a user."""
    with pytest.raises(ToolValidationError, match=r"'t' has a parameter no model can fill: ."):
        hinted(hint)


@pytest.mark.parametrize("hint", ["1 +", "int.nothing", "Nowhere"])
def test_hints_that_cannot_be_resolved_name_the_function(hint):
    """Text that is no expression, too."""

    def do(x):
        """Do."""

    do.__annotations__["x"] = hint
    with pytest.raises(ToolValidationError, match="cannot resolve the type hints of 'do'"):
        tool(do)


def test_what_has_no_signature_is_refused_with_the_cure():
    """Built-ins that Python cannot look into."""
    with pytest.raises(ToolValidationError, match="give Tool\\(name"):
        Tool.from_function(max)


@pytest.mark.parametrize("default", [math.inf, math.nan, "three", 99, object()])
def test_a_default_its_hint_refuses_stays_the_programs_own(default):
    """It is in no schema, nothing is written down, and what is written down is accepted again."""

    def do(x: Annotated[int, Field(le=9)] = default, y: int = 1):
        """Do."""
        return x is default

    made = tool(do)
    assert "default" not in made.schema()["parameters"]["properties"]["x"]
    assert made.validate_json({}) == {"y": 1}
    assert made.execute(made.validate_json({})) == "true"
    assert made.validate_json({"x": 3}) == {"x": 3, "y": 1}
    json.dumps(made.schema(), allow_nan=False)


def test_field_as_a_default_says_what_annotated_says():
    """The other spelling of pydantic's users; `...` is required."""

    @tool
    def do(
        x: int = Field(..., ge=1),
        y: int = Field(3, description="Why"),
        z: list = Field(default_factory=list),  # noqa: B008  # this is how it is written
    ):
        """Do."""
        return [x, y, z]

    shown = do.schema()["parameters"]
    assert shown["properties"]["x"] == {"type": "integer", "minimum": 1}
    assert shown["properties"]["y"] == {"type": "integer", "description": "Why", "default": 3}
    assert shown["required"] == ["x"]
    assert do.execute({"x": "1"}) == "[1, 3, []]"


def test_a_tool_gets_the_value_of_a_field_and_never_the_field():
    """Also if that value is None, and for parameters that are declared without the function."""

    def do(x: int | None = Field(None, description="Why"), y: int = Field(3)):
        """Do."""
        return [x, y]

    assert tool(do).execute({}) == "[null, 3]"
    declared = [ToolParameter("x", int, required=False), ToolParameter("y", int, required=False)]
    assert Tool("do", "Do.", declared, do).execute({}) == "[null, 3]"


def test_what_may_be_none_inside_annotated_is_not_required():
    """As without it."""
    made = hinted(int)
    assert made.schema()["parameters"]["required"] == ["x"]

    @tool
    def do(x: Annotated[int | None, Field(ge=1)]):
        """Do."""
        return x is None

    assert do.schema()["parameters"] == {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 1}},
        "required": [],
    }
    assert do.execute({}) == "true"


class Cat(BaseModel):
    """One of two."""

    kind: Literal["cat"]


class Dog(BaseModel):
    """The other."""

    kind: Literal["dog"]


def test_a_discriminator_does_not_point_to_where_nothing_is_any_more():
    """Definitions are in their places."""
    made = hinted(Annotated[Cat | Dog, Field(discriminator="kind")])
    assert "#/$defs" not in json.dumps(made.schema())
    assert isinstance(made.validate({"x": {"kind": "dog"}})["x"], Dog)


@pytest.mark.parametrize(
    ("hint", "sent", "got"),
    [
        (Literal[True, False], "yes", True),
        (list[Literal[1, 2]], ["1", 2], [1, 2]),
        (dict[str, Literal[1, 2] | None], {"a": "2"}, {"a": 2}),
        (Annotated[Literal[1, 2], "which"], "2", 2),
        (Iterable[int], ["1"], [1]),
    ],
)
def test_quoted_choices_are_read_at_any_depth(hint, sent, got):
    """And an Iterable is checked before the function has it."""
    assert hinted(hint).validate({"x": sent}) == {"x": got}


@pytest.mark.parametrize("hint", [Iterable[int], Annotated[Iterable[int], "which"]])
def test_an_iterable_is_checked_whole(hint):
    """Not item by item, in the middle of the function."""
    with pytest.raises(ToolParameterError, match=r"'x\.1' is 'two'"):
        hinted(hint).validate({"x": ["1", "two"]})


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (list[Iterable[int]], [["1"], ["two"]]),
        (dict[str, Annotated[Iterable[int], "which"] | None], {"a": ["two"]}),
    ],
)
def test_an_iterable_inside_another_hint_is_checked_whole(hint, sent):
    """A person who is asked for a yes must read its items, too."""
    with pytest.raises(ToolParameterError, match="'two'"):
        hinted(hint).validate({"x": sent})


@pytest.mark.parametrize("hint", [Iterable, typing.Iterable])
def test_a_bare_iterable_is_a_list(hint):
    """Of any items."""
    assert hinted(hint).validate({"x": [1, "a"]}) == {"x": [1, "a"]}


def test_what_a_hint_would_leave_out_is_written_down():
    """A policy reads it, and a user agrees to it."""
    assert hinted(Annotated[int, Field(exclude=True)]).validate_json({"x": "1"}) == {"x": 1}


def test_stand_ins_for_kept_names_do_not_meet():
    """Other parameters may have the names of stand-ins."""

    @tool
    def odd(json: str, p0_: str) -> str:
        """Do."""
        return json + p0_

    assert odd.execute({"json": "a", "p0_": "b"}) == "ab"
