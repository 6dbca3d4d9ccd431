"""What selectools' page about tools shows, done here the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from agent import (
    Agent,
    Ambiguous,
    Artifact,
    NotFound,
    Tool,
    ToolParameter,
    ToolRegistry,
    ToolResult,
    ToolValidationError,
    emit_artifact,
    tool,
)


def test_a_tool_by_hand():
    """Name, description, parameters, function: the schema of the page, and the default, which helps a model."""

    def get_weather(location: str, units: str = "celsius") -> str:
        return f"Weather in {location}: 72°{units[0].upper()}"

    weather = Tool(
        name="get_weather",
        description="Get current weather for a location",
        parameters=[
            ToolParameter(name="location", param_type=str, description="City name or coordinates", required=True),
            ToolParameter("units", str, "Temperature units", required=False, enum=["celsius", "fahrenheit"]),
        ],
        function=get_weather,
    )
    assert weather.schema() == {
        "name": "get_weather",
        "description": "Get current weather for a location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City name or coordinates"},
                "units": {
                    "type": "string",
                    "description": "Temperature units",
                    "enum": ["celsius", "fahrenheit"],
                    "default": "celsius",
                },
            },
            "required": ["location"],
        },
    }
    assert weather.execute({"location": "Paris", "units": "celsius"}) == "Weather in Paris: 72°C"


def test_what_is_left_out_by_a_tool_made_by_hand_is_its_functions_default():
    """The parameters say nothing of it: the function's own counts."""
    weather = Tool("w", "w", [ToolParameter("units", str, required=False)], lambda units="celsius": units)
    assert weather.execute({}) == "celsius"
    assert weather.execute({"units": "kelvin"}) == "kelvin"


def test_a_custom_name():
    """The tool has it, the function keeps its own."""

    @tool(name="web_search", description="Search the web")
    def search_google(query: str) -> str:
        return f"Results: {query}"

    assert search_google.name == "web_search"
    assert search_google("x") == "Results: x"


def test_unit_testing_a_tool():
    """As the page tests one."""

    @tool(description="Add numbers")
    def add(a: int, b: int) -> str:
        return str(a + b)

    assert add.execute({"a": 2, "b": 3}) == "5"
    with pytest.raises(ToolValidationError):
        add.execute({"a": 2})


@dataclass(frozen=True)
class RateLimited(ToolResult):
    """A kind of one's own."""

    kind: ClassVar[str] = "rate_limited"
    retry_after: int = 0


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RateLimited(30), '{"kind": "rate_limited", "retry_after": 30}'),
        (NotFound(entity="customer", query="acme"), '{"kind": "not_found", "entity": "customer", "query": "acme"}'),
        (
            Ambiguous(entity="customer", query="a", matches=["ada", "al"]),
            '{"kind": "ambiguous", "entity": "customer", "query": "a", "matches": ["ada", "al"]}',
        ),
    ],
)
def test_a_typed_result_of_ones_own(result, text):
    """`kind` is a ClassVar, and comes first all the same."""
    assert Tool("t", "t", [], lambda: result).execute({}) == text


def test_an_artifact_has_all_its_fields():
    """A URL's digest and size are the tool's word."""
    made = emit_artifact(
        "https://x.test/q2.png",
        mime_type="image/png",
        filename="q2.png",
        sha256="ab",
        size=3,
        role="preview",
        retention="30d",
    )
    assert made == Artifact("https://x.test/q2.png", "image/png", "q2.png", "ab", 3, "preview", "30d")


def test_registries_together():
    """Two registries' tools in one agent."""
    sums, web = ToolRegistry(), ToolRegistry()

    @sums.tool(description="Add")
    def add(a: int, b: int) -> str:
        return str(a + b)

    @web.tool(description="Search")
    def search(query: str) -> str:
        return query

    assert Agent(tools=sums.all() + web.all()).tools == [add, search]
    assert web.get("search") is search


def test_a_parameter_declared_twice():
    """Found when the tool is made."""
    with pytest.raises(ToolValidationError, match="declared twice"):
        Tool("t", "t", [ToolParameter("x"), ToolParameter("x")], lambda x: x)
