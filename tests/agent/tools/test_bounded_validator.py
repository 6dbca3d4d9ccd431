"""Bounded validation: no schema that others wrote, and no argument, keeps a worker busy."""

from __future__ import annotations

from typing import Any

import pytest

from sayso.agent import Tool, ToolParameterError
from sayso.agent.tools.json_validation import linear_search
from sayso.agent.toolsets.base import safe_schema


def tool_of(schema: dict[str, Any]) -> Tool:
    """A tool whose arguments others described."""
    return Tool(
        "t", "Does nothing", safe_schema({"type": "object", **schema}), lambda **given: given
    )


EVIL, VICTIM = "^(a+)+$", "a" * 50 + "!"


def test_pattern_that_backtracks_for_ever_is_matched_in_linear_time():
    """Python's own engine would need longer than the universe is old, and hold every thread."""
    tool = tool_of({"properties": {"x": {"type": "string", "pattern": EVIL}}})
    assert tool.validate({"x": "aaa"}) == {"x": "aaa"}
    with pytest.raises(ToolParameterError, match="pattern"):
        tool.validate({"x": VICTIM})


@pytest.mark.parametrize("draft", ["draft-04", "draft-07", None])
def test_schema_that_names_its_draft_is_bounded_too(draft: str | None):
    """And so is an alternative, which a repair checks by the current draft."""
    named = {"$schema": f"http://json-schema.org/{draft}/schema#"} if draft else {}
    evil = {"type": "string", "pattern": EVIL}
    for schema in (evil, {"anyOf": [evil, {"type": "integer"}]}):
        tool = tool_of({"properties": {"x": schema}, **named})
        with pytest.raises(ToolParameterError, match="x"):
            tool.validate({"x": VICTIM})


def test_pattern_that_has_to_look_back_is_left_to_the_server():
    """Nothing matches it in linear time."""
    assert linear_search(r"(a)\1") is None
    tool = tool_of({"properties": {"x": {"type": "string", "pattern": r"^(a+)+\1$"}}})
    assert tool.validate({"x": VICTIM}) == {"x": VICTIM}


def test_own_pattern_that_has_to_look_ahead_still_counts():
    """The author of a tool is trusted with Python's regular expressions."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?!no)"}}}
    tool = Tool("t", "Does nothing", schema, lambda **given: given)
    with pytest.raises(ToolParameterError):
        tool.validate({"x": "no way"})


def test_names_by_pattern_are_left_to_the_server():
    """And so are names that the rest does not know."""
    tool = tool_of({"patternProperties": {EVIL: {"type": "string"}}, "additionalProperties": False})
    assert tool.validate({VICTIM: "x"}) == {VICTIM: "x"}


def doubling(levels: int, leaf: dict[str, Any]) -> dict[str, Any]:
    """Definitions of which each refers to the next one twice."""
    made: dict[str, Any] = {
        f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(levels)
    }
    return {**made, f"a{levels}": leaf}


def test_references_that_double_are_given_up():
    """2^30 looks at one argument."""
    tool = tool_of(
        {"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": doubling(30, {"type": "string"})}
    )
    with pytest.raises(ToolParameterError, match="TooMuchWork"):
        tool.validate({"x": "y"})


@pytest.mark.slow
def test_recursive_alternatives_are_given_up():
    """Here it is the argument that doubles the work with each of its levels."""
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
    either = {"anyOf": [{**node, "required": ["z"]}, {**node, "required": ["w"]}]}
    nested: dict[str, Any] = {}
    for _ in range(30):
        nested = {"n": nested}
    with pytest.raises(ToolParameterError, match="TooMuchWork"):
        tool_of({"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": either}}).validate(
            {"x": nested}
        )


@pytest.mark.parametrize(
    ("items", "fits"),
    [
        ([1, 2], True),
        ([1, 1.0], False),
        ([True, 1], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([[1], [1]], False),
    ],
)
def test_unique_items_mean_what_json_schema_says(items: list[Any], fits: bool):
    """1 is 1.0, and not true; the order of names does not matter."""
    tool = tool_of({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    if fits:
        assert tool.validate({"x": items}) == {"x": items}
    else:
        with pytest.raises(ToolParameterError):
            tool.validate({"x": items})


def test_many_unique_items_take_no_square_of_time():
    """Thirty thousand objects: compared each with each they would take hours."""
    tool = tool_of({"properties": {"x": {"type": "array", "uniqueItems": True}}})
    assert len(tool.validate({"x": [{"a": at} for at in range(30_000)]})["x"]) == 30_000
