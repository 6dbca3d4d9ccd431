"""Vendors: each API gets what it accepts. The rules are those of the vendors' documents."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field

from sayso.agent import (
    Tool,
    ToolMetadata,
    ToolParameter,
    ToolParameterError,
    ToolValidationError,
    tool,
)
from sayso.agent.tools.vendor_schemas import ApiFormat

FORMATS = get_args(ApiFormat)
#: Google: Generative Language API, Schema.
GEMINI_KEYS = {
    "type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required",
    "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering",
    "default", "items", "minimum", "maximum",
}  # fmt: skip


class Color(enum.Enum):
    """An enumeration."""

    RED = 1
    BLUE = 2


class Node(BaseModel):
    """A model that contains itself."""

    name: str
    children: list[Node] = []


@dataclasses.dataclass
class Place:
    """A dataclass, with what may be missing."""

    street: str
    number: int | None = None


def everything(
    text: str,
    place: Place,
    when: date,
    count: Annotated[int, Field(gt=0, le=9, description="How many")] = 1,
    color: Color = Color.RED,
    tree: Node | None = None,
    pair: tuple[int, str] = (1, "a"),
    bare: list | None = None,
    at: datetime | None = None,
    mode: Literal["a", "b"] | None = None,
    either: int | list[str] = 0,
) -> str:
    """Take everything."""
    return ""


EVERYTHING = Tool.from_function(everything)


def parts(schema: Any):
    """Every schema inside one, itself included. What stands in `properties` are names."""
    yield schema
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from parts(schema[key])
    for key in ("anyOf", "prefixItems"):
        for each in schema.get(key, ()):
            yield from parts(each)
    for key in ("properties", "$defs"):
        for each in schema.get(key, {}).values():
            yield from parts(each)


def test_gemini_gets_its_own_subset():
    """No references, no unknown keywords, text in enums, a type everywhere, and lists that say of what."""
    declaration = EVERYTHING.get_schema("gemini")
    assert set(declaration) == {"name", "description", "parameters"}
    for part in parts(declaration["parameters"]):
        assert set(part) <= GEMINI_KEYS
        assert isinstance(part.get("type", "x"), str)
        assert "type" in part or "anyOf" in part
        assert part.get("type") != "array" or part["items"]
        assert part.get("type") != "null"
        assert all(isinstance(choice, str) for choice in part.get("enum", ()))
        assert part.get("format", "date-time") == "date-time"
    assert "as date" in declaration["parameters"]["properties"]["when"]["description"]
    assert "more than 0" in declaration["parameters"]["properties"]["count"]["description"]
    assert (
        declaration["parameters"]["properties"]["place"]["properties"]["number"]["nullable"] is True
    )


def test_gemini_gets_no_parameters_where_there_are_none():
    """It refuses an object without properties."""
    assert "parameters" not in Tool("now", "The time", [], lambda: "").get_schema("gemini")


@pytest.mark.parametrize("api_format", ["anthropic", "gemini"])
@pytest.mark.parametrize("name", ["filter[id]", "größe", "x" * 65, "$top"])
def test_a_parameter_the_vendor_refuses_is_refused_here(name, api_format):
    """One such name is a 400 for all tools of the request."""
    made = Tool(
        "t", "T", {"type": "object", "properties": {name: {"type": "string"}}}, lambda **given: ""
    )
    with pytest.raises(ToolValidationError, match="takes no parameters named"):
        made.get_schema(api_format)
    assert name in made.get_schema("openai-chat")["function"]["parameters"]["properties"]


@pytest.mark.parametrize("api_format", FORMATS)
def test_the_whole_is_a_plain_object(api_format):
    """Vendors refuse a choice at the top, which is still what arguments are checked against."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    made = Tool(
        "t",
        "T",
        {**schema, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        lambda **given: "",
    )
    assert "anyOf" not in made.get_schema(api_format).get("function", {}).get(
        "parameters", made.get_schema(api_format)
    )
    with pytest.raises(ToolParameterError):
        made.validate({})


class Mixed(enum.Enum):
    """Of three types."""

    ONE = 1
    WORD = "word"
    NONE = None


def gemini_hint(hint: Any) -> dict[str, Any]:
    """What Gemini reads of one parameter of that type."""
    made = Tool("t", "T", [ToolParameter("x", hint, "Given")], lambda x: x)
    return made.get_schema("gemini")["parameters"]["properties"]["x"]


@pytest.mark.parametrize(
    "hint", [Literal["a", "", 1, True], Literal[2, 3], Color, Mixed, Literal[True, False]]
)
def test_what_gemini_chooses_is_understood(hint):
    """Its choices are text, and not empty; each is an argument."""
    made = Tool("t", "T", [ToolParameter("x", hint)], lambda x: x)
    choices = made.get_schema("gemini")["parameters"]["properties"]["x"]["enum"]
    assert choices
    assert all(isinstance(choice, str) and choice for choice in choices)
    for choice in choices:
        made.validate({"x": choice})
        Tool("foreign", "F", made.schema()["parameters"], lambda x: x).validate({"x": choice})


@pytest.mark.parametrize(
    "hint", [int | list[int], Any, Annotated[int | list[str] | None, Field(examples=[1])]]
)
def test_nothing_stands_beside_a_choice_for_gemini(hint):
    """Vertex AI refuses it; what was said of the whole is said of its parts."""
    told = gemini_hint(hint)
    assert list(told) == ["anyOf"]
    assert told["anyOf"][0]["description"] == "Given"


def test_gemini_is_told_what_it_has_no_keyword_for():
    """And requires only what is there."""
    assert gemini_hint(Annotated[float, Field(gt=1, multiple_of=2)]) == {
        "type": "number",
        "description": "Given (more than 1, a multiple of 2)",
    }
    odd = {
        "type": "object",
        "properties": {"x": {"type": "object", "required": ["gone"], "properties": {}}},
    }
    assert (
        "required"
        not in Tool("t", "T", odd, lambda x: x).get_schema("gemini")["parameters"]["properties"][
            "x"
        ]
    )


def test_a_schema_deeper_than_python_goes_is_refused():
    """And no crash, wherever it is met."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ToolValidationError, match="nested too deep"):
        Tool("t", "T", {"type": "object", "properties": {"x": deep}}, lambda x: x)


def test_null_for_what_was_left_out_is_understood():
    """Some models send something for every property."""
    args = {
        "text": "t",
        "place": {"street": "s", "number": None},
        "when": "2026-01-02",
        "count": None,
        "color": None,
    }
    assert EVERYTHING.validate(args)["count"] == 1
    assert EVERYTHING.validate({**args, "color": 2})["color"] is Color.BLUE
    tree = {"name": "root", "children": [{"name": "leaf", "children": None}]}
    assert EVERYTHING.validate({**args, "tree": tree})["tree"].children[0].children == []


@pytest.mark.parametrize("api_format", FORMATS)
def test_each_vendor_has_its_own_envelope(api_format):
    """Name and description where they belong, JSON all through, and the caller's own copy."""
    made = EVERYTHING.get_schema(api_format)
    inner = made.get("function", made)
    assert (inner["name"], inner["description"]) == ("everything", "Take everything.")
    assert ("input_schema" in made) == (api_format == "anthropic")
    assert ("function" in made) == (api_format == "openai-chat")
    assert made.get("type") == ("function" if api_format.startswith("openai") else None)
    json.dumps(made)
    inner["description"] = "changed"
    assert (
        EVERYTHING.get_schema(api_format).get("function", EVERYTHING.get_schema(api_format))[
            "description"
        ]
        != "changed"
    )


def test_responses_api_is_told_that_it_is_not_strict():
    """There it is the default."""
    assert EVERYTHING.get_schema("openai-response")["strict"] is False


def test_only_what_refers_to_itself_stays_a_reference():
    """And what it refers to is there."""
    schema = EVERYTHING.get_schema("anthropic")["input_schema"]
    assert set(schema["$defs"]) == {"Node"}
    references = {part["$ref"] for part in parts(schema) if "$ref" in part}
    assert references == {"#/$defs/Node"}
    assert schema["properties"]["color"]["enum"] == [1, 2]
    assert schema["properties"]["when"] == {"type": "string", "format": "date"}


def test_lists_always_say_of_what():
    """OpenAI refuses those that do not."""
    for part in parts(EVERYTHING.get_schema("openai-chat")["function"]["parameters"]):
        assert part.get("type") != "array" or "items" in part


@pytest.mark.parametrize(
    ("name", "api_format"), [("a.b", "openai-chat"), ("a.b", "anthropic"), ("1x", "gemini")]
)
def test_a_name_the_vendor_refuses_is_refused_here(name, api_format):
    """In front of a user it would be a 400 of every call."""
    with pytest.raises(ToolValidationError, match=f"takes no tool named '{name}'"):
        Tool(name, "x", [], lambda: "").get_schema(api_format)


def test_an_unknown_format_names_the_known_ones():
    """The value and the cure."""
    with pytest.raises(ToolValidationError, match=r"'cohere'; known: openai-chat"):
        EVERYTHING.get_schema("cohere")


def test_a_reason_is_asked_for_first_and_never_reaches_the_function():
    """`think_augment`: in the schema, not in the call, the preview or what is stored."""

    @tool(metadata=ToolMetadata(think_augment=True))
    def look(at: str) -> str:
        """Look."""
        return at

    for shown in (look.schema()["parameters"], look.get_schema("anthropic")["input_schema"]):
        assert list(shown["properties"]) == ["toolcall_reason", "at"]
        assert shown["required"] == ["at"]
    assert look.execute({"at": "x", "toolcall_reason": "I must"}) == "x"
    assert look.validate_json({"at": "x", "toolcall_reason": "I must"}) == {"at": "x"}
    assert (
        "toolcall_reason"
        not in look.get_schema(_think_augment=False)["function"]["parameters"]["properties"]
    )


def test_a_parameter_called_like_the_reason_is_the_tools_own():
    """Nothing is taken from it."""

    @tool(metadata=ToolMetadata(think_augment=True))
    def keep(toolcall_reason: str) -> str:
        """Keep."""
        return toolcall_reason

    assert keep.execute({"toolcall_reason": "mine"}) == "mine"
    assert Tool("t", "t", [ToolParameter("x")], lambda x: x).get_schema(_think_augment=True)


def test_what_openai_takes_of_a_description_ends_with_a_mark():
    """A longer one is a 400: "string too long. Expected maximum length 1024"."""
    long = Tool("t", "x" * 2000, [ToolParameter("x", str, "y" * 2000)], lambda x: x)
    for api_format in ("openai-chat", "openai-response"):
        made = long.get_schema(api_format)
        made = made.get("function", made)
        assert len(made["description"]) == 1024
        assert made["description"].endswith("x [...]")
        assert len(made["parameters"]["properties"]["x"]["description"]) == 2000
    assert len(long.get_schema("anthropic")["description"]) == 2000
    assert (
        Tool("t", "x" * 1024, [], lambda: "").get_schema()["function"]["description"] == "x" * 1024
    )


def test_defaults_are_told_as_json():
    """A model that reads `True` sends it."""

    def do(a: bool = True, b: str = "ö", c: float = 1.0) -> str:
        """Do."""
        return ""

    told = [
        each["description"]
        for each in Tool.from_function(do).get_schema("gemini")["parameters"]["properties"].values()
    ]
    assert told == ["(by default true)", '(by default "ö")', "(by default 1.0)"]
