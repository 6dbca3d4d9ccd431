"""SchemaArguments: what a model sends that fills in everything, and what small models quote."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from sayso.agent import Tool, ToolParameterError

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/definitions/N"}},
    "required": ["v"],
}
PLACE = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
}
SHOP = {"type": "object", "properties": {"shop": {"type": "integer"}, "note": {"type": "string"}}, "required": ["shop"],
        "additionalProperties": False}  # fmt: skip


def of(schema: Any, **beside: Any) -> Tool:
    """A tool with one parameter `x` of that schema."""
    return Tool(
        "t", "T", {"type": "object", "properties": {"x": schema}, **beside}, lambda **given: given
    )


@pytest.mark.parametrize(
    ("schema", "sent", "read"),
    [
        ({"$ref": "#/definitions/N"}, {"v": 1, "next": None}, {"v": 1}),
        (
            {"$ref": "#/definitions/N"},
            {"v": "1", "next": {"v": "2", "next": None}},
            {"v": 1, "next": {"v": 2}},
        ),
        ({"anyOf": [PLACE, {"type": "null"}]}, {"street": None, "number": "3"}, {"number": 3}),
        ({"anyOf": [PLACE, {"type": "null"}]}, None, None),
        ({"oneOf": [SHOP, {"type": "integer"}]}, {"shop": "3", "note": None}, {"shop": 3}),
        ({"oneOf": [SHOP, {"type": "integer"}]}, "3", 3),
        (
            {"allOf": [PLACE, {"required": ["street"]}]},
            {"street": "s", "number": None},
            {"street": "s"},
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "1"}, {"a": 1}),
        ({"prefixItems": [{"type": "integer"}, PLACE]}, ["1", {"number": None}], [1, {}]),
    ],
)
def test_nulls_and_text_are_read_wherever_they_stand(schema, sent, read):
    """Behind references, in alternatives, in what must hold together, in places and under any key."""
    tool = of(schema, definitions={"N": NODE})
    assert tool.validate({"x": sent}) == {"x": read}


@pytest.mark.parametrize(
    ("schema", "sent", "read"),
    [
        ({"type": "integer"}, 3.0, "3"),
        ({"type": ["integer", "null"]}, 3.0, "3"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3.0, "3"),
        ({"type": "array", "items": {"type": "integer"}}, [1.0, 2], "[1, 2]"),
        ({"type": "number"}, 3.0, "3.0"),
        ({"type": ["integer", "number"]}, 3.0, "3.0"),
        ({}, 3.0, "3.0"),
    ],
)
def test_whole_float_is_an_integer_where_the_schema_says_so(schema, sent, read):
    """JSON Schema takes 3.0 for an integer. Servers in Go and Rust refuse it."""
    assert repr(of(schema).validate({"x": sent})["x"]) == read


def test_an_alternative_that_fits_is_left_alone():
    """A null it takes says something, and text where text belongs is no number."""
    tool = of(
        {
            "anyOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}},
                {"type": "object"},
            ]
        },
        required=["y"],
    )
    with pytest.raises(ToolParameterError, match="Missing required parameter: 'y'"):
        tool.validate({"x": {"a": None}})
    both = of({"anyOf": [{"type": "integer"}, {"type": "string"}]})
    assert both.validate({"x": "3"}) == {"x": "3"}


@pytest.mark.slow
def test_alternatives_that_double_at_each_level_end():
    """With a refusal."""
    step = {"type": "object", "properties": {"x": {"$ref": "#/$defs/N"}, "y": {"type": "integer"}}}
    tool = of(
        {"$ref": "#/$defs/N"}, **{"$defs": {"N": {"anyOf": [step, {**step, "required": ["y"]}]}}}
    )
    value: dict[str, Any] = {"y": "no"}
    for _ in range(60):
        value = {"x": value}
    with pytest.raises(ToolParameterError):
        tool.validate({"x": value})


@pytest.mark.parametrize("hint", [str, list[str], dict[str, str], str | None])
def test_half_a_character_is_refused(hint):
    """Nothing that writes UTF-8 could hold it: no log, no page, no other program."""

    def do(x):
        """Do."""
        return "done"

    do.__annotations__["x"] = hint
    typed = Tool.from_function(do)
    foreign = Tool("do", "Do", typed.schema()["parameters"], do)
    good, bad = (
        {list[str]: [text], dict[str, str]: {text: text}}.get(hint, text)
        for text in ("größe 😀", "a\ud800b")
    )
    for tool in (typed, foreign):
        assert tool.validate({"x": good}) == {"x": good}
        with pytest.raises(ToolParameterError, match="half a character") as refused:
            tool.validate({"x": bad})
        str(refused.value).encode()


class Folder(BaseModel):
    """Contains itself, so that pydantic writes its schema as a reference."""

    name: str
    size: int = 0
    parent: Folder | None = None


def test_schema_that_is_a_reference_has_the_parameters_of_its_definition():
    """Models are shown them, values are repaired, and other names are refused."""
    tool = Tool("t", "T", Folder.model_json_schema(), lambda **given: given)
    assert list(tool.schema()["parameters"]["properties"]) == ["name", "size", "parent"]
    sent = {"name": "a", "size": "3", "parent": {"name": "b"}}
    assert tool.validate(sent) == {"name": "a", "size": 3, "parent": {"name": "b"}}
    with pytest.raises(ToolParameterError, match=r"Unexpected parameter\(s\): 'nam'"):
        tool.validate({"name": "a", "nam": "a"})


@pytest.mark.parametrize(
    "rule",
    [
        {"if": {"required": ["kind"]}, "then": {"properties": {"size": {}}}},
        {"if": {"required": ["no"]}, "else": {"properties": {"size": {}}}},
        {"dependentSchemas": {"kind": {"properties": {"size": {}}}}},
    ],
    ids=["then", "else", "dependentSchemas"],
)
def test_parameter_that_only_a_condition_names_is_accepted(rule):
    """A condition may also require it: then each call would be refused, with it and without it."""
    schema = {"type": "object", "properties": {"kind": {}}, **rule}
    tool = Tool("t", "T", schema, lambda **given: given)
    assert tool.validate({"kind": "box", "size": 3}) == {"kind": "box", "size": 3}


DRAFTS = ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema",
          "https://json-schema.org/draft/2020-12/schema"]  # fmt: skip


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "rule",
    [
        {"allOf": [{"properties": {"size": {}}}]},
        {"allOf": [{"$ref": "#/definitions/Sized"}]},
        {"anyOf": [{"properties": {"size": {}}, "required": ["size"]}, {"required": ["kind"]}]},
    ],
    ids=["allOf", "reference", "anyOf"],
)
def test_name_that_no_part_gives_is_refused_in_each_draft(draft, rule):
    """Servers name older drafts, which do not know `unevaluatedProperties`."""
    schema = {"type": "object", "properties": {"kind": {}}, "definitions": {"Sized": {"properties": {"size": {}}}},
              "$schema": draft, **rule}  # fmt: skip
    tool = Tool("t", "T", schema, lambda **given: given)
    assert tool.validate({"kind": "box", "size": 3}) == {"kind": "box", "size": 3}
    with pytest.raises(ToolParameterError, match=r"Unexpected parameter\(s\): 'zz'"):
        tool.validate({"kind": "box", "size": 3, "zz": 1})


@pytest.mark.parametrize(
    "rule",
    [
        {"unevaluatedProperties": True},
        {"unevaluatedProperties": {"type": "string"}},
        {"allOf": [{"patternProperties": {"^x": {"type": "string"}}}]},
        {"allOf": [{"additionalProperties": {"type": "string"}}]},
        {"allOf": [{"unevaluatedProperties": {"type": "string"}}]},
    ],
    ids=["any", "any text", "pattern of a part", "any of a part", "any other of a part"],
)
def test_name_that_the_schema_or_a_part_allows_is_accepted(rule):
    """Without listing it: the schema has decided which names it accepts."""
    schema = {"type": "object", "properties": {"kind": {}}, **rule}
    tool = Tool("t", "T", schema, lambda **given: given)
    assert tool.validate({"kind": "box", "x1": "a"}) == {"kind": "box", "x1": "a"}


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", "("])
def test_pattern_that_python_does_not_know_is_no_error_of_the_program(pattern):
    """Deep in the schema it is read only to word a refusal. The draft of the schema stays the newest."""
    names = {"type": "object", "patternProperties": {pattern: {}}}
    schema = {"type": "object", "properties": {"kind": {"const": 1}, "names": names},
              "allOf": [{"properties": {"size": {}}}]}  # fmt: skip
    tool = Tool("t", "T", schema, lambda **given: given)
    assert tool.validate({"kind": 1, "size": 3}) == {"kind": 1, "size": 3}
    for wrong in ({"kind": 1, "7": 1}, {"kind": 2}):
        with pytest.raises(ToolParameterError):
            tool.validate(wrong)
