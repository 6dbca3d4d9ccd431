"""Schema: hints and docstrings as the JSON schema a model reads."""

from typing import Annotated, Literal, Optional, Union

import pytest
from pydantic import BaseModel, Field

from agent import ToolParameter, tool


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
                "units": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
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
    def search(query: str, filter: str | None) -> str:  # noqa: A002  # the documented example
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


def test_nested_models_keep_their_definitions():
    """A `$ref` never dangles."""

    @tool
    def move(to: Address) -> str:
        """Move."""
        return to.street

    assert "Address" in move.schema()["parameters"]["$defs"]
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
