"""Hints: Decimals are text with a format, at any depth, and their bounds are told."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from sayso.agent import Tool, ToolParameter, ToolParameterError

Share = Annotated[Decimal, Field(gt=0, le=100)]


class Price(BaseModel):
    """What holds one."""

    amount: Share


def hinted(hint: Any) -> Tool:
    """A tool with one parameter `x` of that type."""
    return Tool("t", "T", [ToolParameter("x", hint, "Given")], lambda x: x)


@pytest.mark.parametrize("hint", [Share, Price])
def test_a_decimal_is_text_with_a_format_and_its_bounds(hint):
    """Also inside a model."""
    schema = hinted(hint).schema()["parameters"]["properties"]["x"]
    schema = schema.get("properties", {"amount": schema})["amount"]
    assert (schema["type"], schema["format"]) == ("string", "decimal")
    assert (schema["exclusiveMinimum"], schema["maximum"]) == (0, 100)


def test_a_decimal_is_exact_as_text_and_read_from_a_number():
    """Within its bounds, and written down as text that reads the same."""
    tool = hinted(Share)
    assert tool.validate({"x": "5.50"}) == {"x": Decimal("5.50")}
    assert tool.validate({"x": 5.5}) == {"x": Decimal("5.5")}
    assert tool.validate_json({"x": "5.50"}) == {"x": "5.50"}
    for wrong in ("0", 101, "many"):
        with pytest.raises(ToolParameterError):
            tool.validate({"x": wrong})


def test_bounds_of_text_are_told_in_words_where_a_vendor_knows_keywords():
    """For Gemini bounds are of numbers only."""
    told = hinted(Share).get_schema("gemini")["parameters"]["properties"]["x"]
    assert set(told) == {"type", "description", "pattern"}
    assert "more than 0" in told["description"]


def test_scalars_with_bounds_are_not_just_any_text():
    """Only bare ones are what any string may stand for."""
    schema = hinted(Annotated[int, Field(gt=0)] | str).schema()["parameters"]["properties"]["x"]
    assert schema["anyOf"] == [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]
