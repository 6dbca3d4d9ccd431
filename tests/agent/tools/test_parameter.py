"""Parameters: what is said of one beside its type never changes the type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from enum import Enum
from typing import Annotated, Any, Optional

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    WrapValidator,
)
from pydantic.json_schema import SkipJsonSchema

from sayso.agent import Tool, ToolParameter, ToolParameterError, ToolValidationError, tool

AB = {"type": "string", "enum": ["a", "b"]}


def with_enum(hint: Any, enum: list[Any], *default: Any) -> Tool:
    """A tool of one parameter `x`, whose enum is told beside it."""

    def use(x):
        return x

    use.__annotations__ = {"x": hint}
    use.__defaults__ = default
    return tool(param_metadata={"x": {"enum": enum}}, description="Use")(use)


@pytest.mark.parametrize(
    ("hint", "schema", "given"),
    [
        (str, AB, "a"),
        (Optional[str], AB, None),  # noqa: UP045  # both spellings
        (list[str], {"type": "array", "items": AB}, ["a", "b"]),
        (list, {"type": "array", "items": AB}, ["a"]),
        (list[str] | None, {"type": "array", "items": AB}, ["b"]),
        (
            Annotated[str, Field(description="One.", max_length=3)],
            {**AB, "description": "One."},
            "b",
        ),
        (
            Annotated[list[str], Field(description="Some.")],
            {"type": "array", "items": AB, "description": "Some."},
            ["a"],
        ),
        (
            Annotated[list[str], Field(min_length=2, max_length=3)],
            {"type": "array", "items": AB, "minItems": 2, "maxItems": 3},
            ["a", "b"],
        ),
        (Iterable[str], {"type": "array", "items": AB}, ["a"]),
        (Sequence[str], {"type": "array", "items": AB}, ["a"]),
    ],
)
def test_an_enum_narrows_the_type(hint, schema, given):
    """A list stays a list of its length, of chosen items; what may be None may still be; words stay."""
    made = with_enum(hint, ["a", "b"])
    assert made.schema()["parameters"]["properties"]["x"] == schema
    assert made.validate({"x": given}) == {"x": given}
    with pytest.raises(ToolParameterError):
        made.validate({"x": ["c"] if isinstance(given, list) else "c"})


class Unit(Enum):
    """Units."""

    KM = "km"
    MILE = "mi"


def upper_after_strip(value: str, check: Any) -> str:
    """Strip a value, check it, and return it in capital letters."""
    return check(value.strip()).upper()


@pytest.mark.parametrize(
    ("hint", "given", "received"),
    [
        (Annotated[str, AfterValidator(str.upper)], "a", "A"),
        (Annotated[str, BeforeValidator(str.strip)], " a", "a"),
        (Annotated[str, WrapValidator(upper_after_strip)], " a", "A"),
        (Annotated[str, PlainValidator(str.upper)], "a", "A"),
        (Annotated[str, StringConstraints(to_upper=True, max_length=3)], "a", "A"),
        (list[Annotated[str, AfterValidator(str.upper)]], ["a"], ["A"]),
        (list[Annotated[str, AfterValidator(str.upper)]] | None, ["a"], ["A"]),
    ],
)
def test_an_enum_keeps_the_validators_of_its_type(hint, given, received):
    """They may change the value that the function gets; other values are still refused."""
    made = with_enum(hint, ["a", "b"])
    schema = made.schema()["parameters"]["properties"]["x"]
    assert str(AB["enum"]) in str(schema)
    assert made.run_raw({"x": given}) == received
    with pytest.raises(ToolParameterError):
        made.validate({"x": ["c"] if isinstance(given, list) else "c"})


def test_a_validator_that_leaves_no_choice_is_refused():
    """Every call would be refused: the changed value is none of the enum."""
    with pytest.raises(ToolValidationError, match=r"changes \['abc'\] .* an AfterValidator"):
        ToolParameter("x", Annotated[int, BeforeValidator(len)], enum=["abc"])


def test_a_choice_that_is_recorded_as_none_of_its_enum_is_refused():
    """After the yes, the record would be read and refused."""
    made = with_enum(Annotated[str, AfterValidator(str.upper)], ["a"])
    with pytest.raises(ToolParameterError, match="cannot be recorded"):
        made.validate_record({"x": "a"})


class Person(BaseModel):
    """A type that contains itself."""

    parent: Person | None = None


def test_the_schema_of_a_type_that_contains_itself_has_its_definitions():
    """Otherwise its reference would lead nowhere."""
    schema = ToolParameter("x", Person).to_schema()
    assert schema["$ref"].removeprefix("#/$defs/") in schema["$defs"]


def test_null_is_not_the_default_where_both_mean_something():
    """`None` is what the model said: no limit."""
    made = with_enum(int | None, [10, 100], 100)
    assert made.execute({"x": None}) == "done"
    assert made.execute({}) == "100"
    assert made.execute({"x": "10"}) == "10"


@pytest.mark.parametrize(
    "bad",
    [
        lambda: ToolParameter("x", int, enum=["1", "2"]),
        lambda: ToolParameter("x", type="integer", enum=["1"]),
        lambda: ToolParameter("x", bool, enum=[1]),
        lambda: ToolParameter("x", list[int], enum=["1"]),
        lambda: ToolParameter("x", date, enum=["2026-01-01"]),
        lambda: ToolParameter("x", Annotated[int, Field(le=3)], enum=[4]),
        lambda: ToolParameter("x", str, enum="abc"),
        lambda: ToolParameter("x", str, element_type=int),
        lambda: ToolParameter("x", list[str], element_type=int),
        lambda: ToolParameter("x", tuple[str, ...], enum=["a"]),
        lambda: ToolParameter("x", Iterable[int], enum=["1"]),
        lambda: ToolParameter("x", list[str], enum=[["a"]]),
        lambda: ToolParameter("x", date, type="string"),
        lambda: ToolParameter("x", list[str], type="object"),
        lambda: replace(ToolParameter("x", str), param_type=int),
        lambda: replace(ToolParameter("x", int), param_type=str),
        lambda: with_enum(Unit, ["km"]),
        lambda: with_enum(Unit, [Unit.KM]),
        lambda: with_enum(list[Unit], [Unit.KM]),
        lambda: with_enum(int, ["1"]),
    ],
)
def test_what_would_change_the_type_is_refused(bad):
    """The function would be handed text for a number, or a list for a text."""
    with pytest.raises(ToolValidationError, match=r"parameter 'x' .*(give|make)"):
        bad()


def test_the_error_names_the_choice_that_an_enum_member_needs():
    """A member is a value of the type, so "give values of its type" would be no cure."""
    with pytest.raises(ToolValidationError, match=r"or give Literal\[Unit\.KM\] as the type"):
        ToolParameter("x", Unit, enum=[Unit.KM])


def test_a_parameter_gets_another_type_by_replace():
    """Without `type=""` the old type would contradict the new hint."""
    changed = replace(ToolParameter("x", str), param_type=int, type="")
    assert (changed.param_type, changed.type) == (int, "integer")


def test_replace_with_another_type_names_the_element_type_that_it_passed_on():
    """Nobody gave it: it followed the old type."""
    names = ToolParameter("x", list[str])
    with pytest.raises(ToolValidationError, match="with replace, give element_type=None too"):
        replace(names, param_type=list[int])
    assert replace(names, param_type=list[int], element_type=None).element_type is int
    assert replace(names, param_type=list, element_type=None).element_type is None


def test_a_parameter_that_no_schema_shows_is_refused():
    """Also if its default is one that JSON cannot hold."""
    with pytest.raises(ToolValidationError, match=r"of \['x'\], \[\] are left"):
        Tool("t", "T.", [ToolParameter("x", SkipJsonSchema[Any], default=object())], lambda x: x)


def test_later_changes_of_a_list_do_not_change_an_enum():
    """Many threads share a tool, so its values are fixed."""
    enum = ["a"]
    parameter = ToolParameter("x", enum=enum)
    enum.append("b")
    assert parameter.enum == ("a",)


def test_parameters_are_found_by_their_names():
    """In their order they are a tuple, as two seeds read them a mapping."""
    made = Tool(
        "t",
        "t",
        [ToolParameter("city"), ToolParameter("days", int, required=False)],
        lambda city, days=1: city,
    )
    assert [(name, each.param_type) for name, each in made.parameters.items()] == [
        ("city", str),
        ("days", int),
    ]
    assert made.parameters["days"] is made.parameters[1] is made.parameters.get("days")
    assert (
        [each.name for each in made.parameters] == list(made.parameters.keys()) == ["city", "days"]
    )
    assert ("city" in made.parameters, "town" in made.parameters, made.parameters.get("town")) == (
        True,
        False,
        None,
    )
    assert list(made.parameters.values()) == list(made.parameters[:])
    with pytest.raises(KeyError):
        made.parameters["type"]
