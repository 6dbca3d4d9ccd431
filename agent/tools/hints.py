"""Hints: the JSON Schema of type hints, as pydantic has it but for Decimals, which are text."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

#: What a Decimal is written as; one that is read is written so again.
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?$"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class HintsSchema(GenerateJsonSchema):
    """Made anew for each schema, by pydantic.

    As number or text, which pydantic says, a Decimal would be two things to a model, with bounds on one of them only.
    As a number it would come through a float. A number that is sent is still read.
    """

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Text with a format, and with its bounds, which only say something to who reads them."""
        number: dict[str, Any] = super().decimal_schema(schema)["anyOf"][0]
        bounds = {key: number[key] for key in _BOUNDS if key in number}
        return {"type": "string", "format": "decimal", "pattern": _DECIMAL, **bounds}
