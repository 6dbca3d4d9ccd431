"""Shapes: each vendor gets a schema that it supports, with the same meaning."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Annotated, Any, Optional

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from sayso.agent import Tool, ToolParameterError

DRAFT_7, DRAFT_4 = (
    {"$schema": f"http://json-schema.org/draft-0{number}/schema#"} for number in (7, 4)
)
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
NULL = {"type": "null"}
A_AND_B = {"a": TEXT, "b": WHOLE}
#: Google: Generative Language API, Type, and the keywords of a Schema that only values of this type have.
GEMINI_TYPES = {
    "string": {"enum", "format", "minLength", "maxLength", "pattern"},
    "number": {"format", "minimum", "maximum"},
    "integer": {"format", "minimum", "maximum"},
    "boolean": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required"},
}


def of(schema: Any, **beside: Any) -> Tool:
    """A tool with one parameter `x` of that schema."""
    return Tool(
        "t", "T", {"type": "object", "properties": {"x": schema}, **beside}, lambda **given: given
    )


def shown(tool: Tool, api_format: Any) -> dict[str, Any]:
    """The properties that a vendor reads."""
    made = tool.get_schema(api_format)
    made = made.get("function", made)
    return (made.get("parameters") or made.get("input_schema") or {}).get("properties", {})


def to_gemini(schema: Any, **beside: Any) -> Any:
    """What Gemini reads of a parameter of that schema."""
    return shown(of(schema, **beside), "gemini").get("x")


def check_gemini(schema: dict[str, Any]) -> None:
    """Every part is one that Gemini knows, alone where it has to be."""
    if "anyOf" in schema:
        assert set(schema) == {"anyOf"}
    else:
        assert set(schema) <= {"type", "description", "nullable", *GEMINI_TYPES[schema["type"]]}
    assert schema.get("type") != "array" or schema["items"]
    assert "enum" not in schema or (
        schema["type"] == "string" and all(isinstance(each, str) for each in schema["enum"])
    )
    assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
    for part in (
        *schema.get("anyOf", ()),
        *schema.get("properties", {}).values(),
        schema.get("items", TEXT),
    ):
        if part is not TEXT:
            check_gemini(part)


@dataclasses.dataclass
class Stay:
    """All of it may be missing."""

    departure: date | None = None
    nights: Annotated[int, Field(gt=0)] | None = None
    tags: set[str] | None = None
    extra: dict[str, str] | None = None


class Link(BaseModel):
    """A model that contains itself, perhaps."""

    v: int
    next: Optional[Link] = Field(None, description="The one after")  # noqa: UP045  # both spellings


def test_what_may_be_null_inside_a_model_is_said_in_geminis_words():
    """And not in those of JSON Schema, which are a 400 for all tools of the request."""

    def book(stay: Stay) -> str:
        """Book."""
        return ""

    made = shown(Tool.from_function(book), "gemini")["stay"]
    check_gemini(made)
    assert made["properties"] == {
        "departure": {
            "type": "string",
            "nullable": True,
            "description": "(as date) (by default null)",
        },
        "nights": {
            "type": "integer",
            "nullable": True,
            "description": "(more than 0) (by default null)",
        },
        "tags": {
            "type": "array",
            "items": TEXT,
            "nullable": True,
            "description": "(by default null)",
        },
        "extra": {"type": "object", "nullable": True, "description": "(by default null)"},
    }


def test_what_contains_itself_is_cut_for_gemini_and_still_says_what_it_is():
    """Its type, its description, and that it may be null."""

    def follow(first: Link) -> str:
        """Follow."""
        return ""

    inner = shown(Tool.from_function(follow), "gemini")["first"]["properties"]["next"]
    assert inner == {
        "type": "object",
        "nullable": True,
        "description": "The one after (by default null)",
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"anyOf": [{"type": "string", "format": "uri"}, NULL]},
            {"type": "string", "description": "(as uri)"},
        ),
        ({"anyOf": [{"anyOf": [WHOLE, NULL]}, NULL]}, WHOLE),
        ({"oneOf": [NULL, {"type": ["integer", "null"]}]}, WHOLE),
        ({"type": ["array", "null"]}, {"type": "array", "items": TEXT}),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"]}),
    ],
)
def test_null_beside_one_other_is_a_flag_for_gemini(schema, expected):
    """Null may be written in several ways."""
    assert to_gemini(schema) == {**expected, "nullable": True}


@pytest.mark.parametrize(
    ("schema", "beside", "expected"),
    [
        (
            {"type": "array", "items": [TEXT, WHOLE]},
            DRAFT_7,
            {"type": "array", "items": {"anyOf": [TEXT, WHOLE]}},
        ),
        ({"type": "array", "items": [TEXT]}, {}, {"type": "array", "items": TEXT}),
        (
            {"type": "array", "items": [TEXT], "additionalItems": WHOLE},
            DRAFT_7,
            {"type": "array", "items": {"anyOf": [TEXT, WHOLE]}},
        ),
        (
            {"type": "array", "prefixItems": [TEXT, TEXT], "items": False},
            {},
            {"type": "array", "items": TEXT, "maxItems": 2},
        ),
        ({"type": "array", "items": True}, {}, {"type": "array", "items": {}}),
        (
            {**WHOLE, "minimum": 1, "exclusiveMinimum": True},
            DRAFT_4,
            {**WHOLE, "exclusiveMinimum": 1},
        ),
        ({**WHOLE, "maximum": 9, "exclusiveMaximum": False}, {}, {**WHOLE, "maximum": 9}),
        (
            {"type": "object", "properties": {"a": True}},
            {},
            {"type": "object", "properties": {"a": {}}},
        ),
    ],
)
def test_older_drafts_reach_vendors_in_present_words(schema, beside, expected):
    """A schema that is none is a 400 for all tools of the request."""
    tool = of(schema, **beside)
    for api_format in ("openai-chat", "openai-response", "anthropic"):
        assert shown(tool, api_format)["x"] == expected


def test_arguments_are_still_checked_by_the_schema_as_it_was_written():
    """By the draft it names, else by the newest that takes how it is written."""
    pair = {"type": "array", "items": [TEXT, WHOLE], "additionalItems": False}
    more = {**WHOLE, "minimum": 1, "exclusiveMinimum": True}
    for tool, fits, fails in (
        (of(pair, **DRAFT_7), ["a", 1], ["a", "b"]),
        (of(pair), ["a", 1], ["a", 1, 2]),
        (of(more, **DRAFT_4), 2, 1),
        (of(more), 2, 1),
    ):
        assert tool.validate({"x": fits}) == {"x": fits}
        with pytest.raises(ToolParameterError, match="Tool Validation Error"):
            tool.validate({"x": fails})


def test_a_reference_may_lead_to_any_place_of_the_schema():
    """Generators of TypeScript refer to where something stood first, also when it contains itself."""
    tool = of(
        {
            "type": "object",
            "properties": {"text": TEXT, "same": {"$ref": "#/properties/x/properties/text"}},
        }
    )
    assert shown(tool, "gemini")["x"]["properties"]["same"] == TEXT
    tree = of(
        {
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$ref": "#/properties/x"}}},
        }
    )
    schema = tree.get_schema("anthropic")["input_schema"]
    assert schema["properties"]["x"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/x"}
    assert schema["$defs"]["x"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/x"}


def test_places_of_one_name_stay_apart():
    """Each `items` is another one."""
    lists = {name: {"type": "array", "items": {"type": kind, "not": {"$ref": f"#/properties/{name}/items"}}}
             for name, kind in (("a", "string"), ("b", "integer"))}  # fmt: skip
    schema = Tool(
        "t", "T", {"type": "object", "properties": lists}, lambda **given: given
    ).schema()["parameters"]
    assert sorted(each["type"] for each in schema["$defs"].values()) == ["integer", "string"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": ["array", "string"], "items": WHOLE},
            {"anyOf": [{"items": WHOLE, "type": "array"}, TEXT]},
        ),
        (
            {
                "type": "object",
                "properties": A_AND_B,
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            {"type": "object", "properties": A_AND_B},
        ),
        (
            {"allOf": [{"type": "object", "properties": A_AND_B}, {"required": ["a"]}]},
            {"type": "object", "properties": A_AND_B, "required": ["a"]},
        ),
        (
            {"allOf": [{**WHOLE, "minimum": 1}, {"type": "number", "maximum": 3}]},
            {**WHOLE, "minimum": 1, "maximum": 3},
        ),
        ({"properties": A_AND_B}, {"type": "object", "properties": A_AND_B}),
        ({"items": WHOLE}, {"type": "array", "items": WHOLE}),
        (
            {"type": "object", "properties": {**A_AND_B, "c": False}, "required": ["c", "a"]},
            {"type": "object", "properties": A_AND_B, "required": ["a"]},
        ),
        (
            {
                "type": "object",
                "properties": {"a": TEXT},
                "oneOf": [{"properties": {"b": WHOLE}}, {"type": "null"}],
            },
            {"type": "object", "properties": {"a": TEXT}},
        ),
        ({"anyOf": [False, WHOLE]}, WHOLE),
    ],
)
def test_gemini_is_told_what_an_odd_shape_says(schema, expected):
    """And not that anything goes."""
    assert to_gemini(schema) == expected


def test_what_must_hold_together_at_the_top_is_one():
    """No vendor takes `allOf` there; its arguments are known, closed, and checked."""
    tool = Tool(
        "t", "T", {"type": "object", "allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": WHOLE}}]},
        lambda **given: given,
    )  # fmt: skip
    assert shown(tool, "openai-chat") == A_AND_B
    assert [each.name for each in tool.parameters] == ["a", "b"]
    assert tool.validate({"a": "x", "b": "2"}) == {"a": "x", "b": 2}
    with pytest.raises(ToolParameterError, match="Expected parameters: 'a', 'b'"):
        tool.validate({"a": "x", "c": 1})


def test_definitions_that_must_hold_together_with_themselves_end():
    """Each stands in its place once."""
    node = {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"own": TEXT}}]}
    base = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    }
    made = to_gemini({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node, "Base": base}})
    check_gemini(made)
    assert set(made["properties"]) == {"own", "kids"}


def test_choices_that_double_at_each_level_end():
    """What others write must not cost a worker its time."""
    schema: dict[str, Any] = TEXT
    for _ in range(35):
        schema = {
            "type": "object",
            "properties": {"y": schema},
            "oneOf": [{"properties": {"z": TEXT}}] * 2,
        }
    check_gemini(to_gemini(schema))


SMALL = st.integers(0, 3)
LEAVES = st.one_of(
    st.sampled_from(
        [
            TEXT,
            WHOLE,
            NULL,
            {},
            True,
            False,
            {"type": "boolean"},
            {"type": "array"},
            {"type": "object"},
        ]
    ),
    st.sampled_from(
        [{"enum": ["a", 1, None]}, {"const": 2}, {"enum": [None]}, {"$ref": "#/$defs/N"}]
    ),
    st.just({"$ref": "#/nowhere", "anyOf": [True, WHOLE]}),
    st.sampled_from([{"type": "string", "format": each} for each in ("date", "date-time", "uri")]),
    st.builds(
        lambda low, is_more: {**WHOLE, "minimum": low, "exclusiveMinimum": is_more},
        SMALL,
        st.booleans(),
    ),
    st.builds(
        lambda least: {"type": ["string", "null"], "minLength": least, "pattern": "a"}, SMALL
    ),
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What holds other schemas, alone and beside each other."""
    some = st.lists(inner, min_size=1, max_size=3)
    holders = {
        "items": st.one_of(inner, some), "prefixItems": some, "anyOf": some, "oneOf": some, "allOf": some,
        "additionalItems": inner, "additionalProperties": inner, "not": inner, "contains": inner,
        "properties": st.dictionaries(st.sampled_from("ab"), inner), "patternProperties": st.just({"^x": WHOLE}),
        "required": st.lists(st.sampled_from("abc"), unique=True), "uniqueItems": st.booleans(),
        "type": st.sampled_from(["object", "array", ["array", "object"], ["object", "null"], ["integer", "string"]]),
        "description": st.just("told"), "default": st.none(), "minItems": SMALL, "maxItems": SMALL,
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional=holders)


SCHEMAS = st.recursive(LEAVES, around, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(schema=SCHEMAS, other=SCHEMAS)
def test_whatever_the_schema_each_vendor_gets_one_it_knows(schema, other):
    """Gemini its own keywords at every depth; the others JSON Schema of the present draft."""
    tool = of(
        schema,
        **{
            "$defs": {
                "N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}, "o": other}}
            }
        },
    )
    declared = tool.get_schema("gemini").get("parameters")
    if declared:
        check_gemini(declared)
    for made in (
        tool.get_schema()["function"]["parameters"],
        tool.get_schema("anthropic")["input_schema"],
    ):
        jsonschema.Draft202012Validator.check_schema(made)
        assert '{"type": "array"}' not in json.dumps(made)
