"""Tool providers: the seed's protocol, errors as outcomes, the mock provider, and foreign names and schemas."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from dataclasses import replace
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    Role,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolError,
    ToolExecutionError,
    ToolMetadata,
    ToolNotFoundError,
    ToolOutcome,
    ToolParameter,
    ToolParameterError,
    ToolRegistry,
)
from sayso.agent.tools.json_validation import StepBudget, bounded_validator, with_budget
from sayso.agent.toolsets import base as schemas
from sayso.agent.toolsets.base import (
    MAX_PATTERNS,
    MockToolProvider,
    PythonToolProvider,
    SourceError,
    ToolProviderProtocol,
    UnclearOutcome,
    UnusableSchema,
    legal_names,
    runnable_tools,
    safe_schema,
)
from tests.agent.toolsets import pets


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def outcome(provider: ToolProviderProtocol, name: str, **parameters: Any) -> ToolOutcome:
    """Return the outcome of one call."""
    return asyncio.run(provider.execute_tool(name, parameters))


def test_mock_provider_returns_its_answers_and_records_the_calls():
    """The seed's example runs unchanged."""
    mock = MockToolProvider(
        [Tool(name="test_tool", description="A test tool", parameters={})],
        {"test_tool": {"message": "success"}, "broken": ValueError("no use")},
    )
    assert isinstance(mock, ToolProviderProtocol)
    assert outcome(mock, "test_tool") == ToolOutcome(success=True, result={"message": "success"})
    assert outcome(mock, "broken", a=1) == ToolOutcome(success=False, error="no use")
    assert outcome(mock, "other") == ToolOutcome(success=False, error="Tool other not mocked")
    assert mock.call_history == [("test_tool", {}), ("broken", {"a": 1}), ("other", {})]


class Silent(MockToolProvider):
    """A provider that records calls and gives no answer."""

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        await super().execute_tool(tool_name, parameters)
        return UnclearOutcome(success=False, error="no answer came")


@pytest.mark.parametrize(("read_only", "asked", "unclear"), [(False, 1, ["pay"]), (True, 2, [])])
def test_call_without_an_answer_is_repeated_only_if_it_is_harmless(read_only, asked, unclear):
    """The outcome is unknown: it is reported to the user, and a second call of the model is refused."""
    pay = Tool(
        "pay",
        "Pay.",
        {"euros": ToolParameter(type="integer")},
        metadata=ToolMetadata(think_augment=True),
    )
    silent = Silent([replace(pay, read_only=read_only)], {})
    again = ToolCall("pay", {"euros": "5", "toolcall_reason": "once more, in another spelling"})
    provider = ScriptedProvider([[ToolCall("pay", {"euros": 5})], [again], "sorry"])
    result = Agent(runnable_tools(silent, silent.tools), provider).run("pay, please")
    told = [message.content for message in result.messages if message.role is Role.TOOL]
    assert (len(silent.call_history), [call.tool_name for call in result.unknown_outcomes]) == (
        asked,
        unclear,
    )
    assert "no answer came" in told[0]
    assert all(("Do not repeat it" in words) is not read_only for words in told)


class WeatherToolProvider:
    """The seed's example: two methods and no base class."""

    async def list_tools(self) -> list[Tool]:
        city = ToolParameter(type="string", description="City name", required=True)
        days = ToolParameter(type="integer", required=False, default=5)
        return [
            Tool(
                name="get_weather_forecast",
                description="Forecast",
                parameters={"city": city, "days": days},
            )
        ]

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        if tool_name != "get_weather_forecast":
            return ToolOutcome(success=False, error=f"Unknown tool: {tool_name}")
        return ToolOutcome(
            success=True,
            result=[f"{parameters['city']} {day}" for day in range(parameters.get("days", 5))],
        )


class Forecast(WeatherToolProvider):
    """The seed's example without a default for the days in the definition."""

    async def list_tools(self) -> list[Tool]:
        (listed,) = await super().list_tools()
        return [
            replace(listed, parameters=[replace(each, default=None) for each in listed.parameters])
        ]


@pytest.mark.parametrize(
    ("args", "days"),
    [({"city": "Oslo"}, 5), ({"city": "Oslo", "days": None}, 5), ({"city": "Oslo", "days": 2}, 2)],
)
def test_missing_argument_is_not_sent_to_a_provider(args, days):
    """The provider may have a default, and its schema allows no null."""
    forecast = Forecast()
    (called,) = runnable_tools(forecast, asyncio.run(forecast.list_tools()))
    assert len(asyncio.run(called.ainvoke(args))) == days


def test_provider_of_the_seed_implements_the_protocol():
    """Its tools work unchanged."""
    weather = WeatherToolProvider()
    assert isinstance(weather, ToolProviderProtocol)
    assert not isinstance(object(), ToolProviderProtocol)
    (forecast,) = runnable_tools(weather, asyncio.run(weather.list_tools()))
    assert asyncio.run(forecast.ainvoke({"city": "Oslo", "days": 1})) == ["Oslo 0"]
    assert outcome(weather, "other").error == "Unknown tool: other"


def test_errors_of_the_seed_have_one_base_class():
    """The four errors and those of sources derive from ToolError."""
    assert all(
        issubclass(each, ToolError)
        for each in (ToolNotFoundError, ToolExecutionError, ToolParameterError, SourceError)
    )


def test_outcome_has_success_and_result_or_error():
    """The seed constructs outcomes this way; missing fields are None."""
    assert ToolOutcome(success=True, result={"temperature": 22.5}).error is None
    failed = ToolOutcome(success=False, error="City 'InvalidCity' not found")
    assert (failed.success, failed.result, failed.error) == (
        False,
        None,
        "City 'InvalidCity' not found",
    )


def test_each_error_of_the_seed_is_raised():
    """They are for an unknown tool, invalid arguments and a failing tool."""
    registry = ToolRegistry([Tool.from_function(add), Tool("broken", "Break", [], lambda: 1 / 0)])
    for name, args, error in (
        ("ad", {}, ToolNotFoundError),
        ("add", {"a": "many"}, ToolParameterError),
        ("broken", {}, ToolExecutionError),
    ):
        with pytest.raises(error) as caught:
            registry.get(name).execute(args)
        assert isinstance(caught.value, ToolError)


def test_definitions_of_the_seed_may_have_a_dict_of_parameters():
    """They become the tool's schema."""
    weather = Tool(
        name="get_weather",
        description="Get current weather information for a city",
        parameters={
            "city": ToolParameter(type="string", description="Name of the city", required=True),
            "units": ToolParameter(
                type="string", required=False, default="celsius", enum=["celsius", "kelvin"]
            ),
        },
    )
    (tool,) = runnable_tools(MockToolProvider([weather], {"get_weather": "sunny"}), [weather])
    assert asyncio.run(tool.ainvoke({"city": "Paris"})) == "sunny"
    assert tool.schema()["parameters"]["required"] == ["city"]


def test_python_provider_runs_functions_and_registries():
    """Typed functions become tools; a registry is read at each call."""
    registry = ToolRegistry()
    python = PythonToolProvider(registry)
    registry.register(Tool.from_function(add))
    for provider in (PythonToolProvider([add]), python):
        assert [tool.name for tool in asyncio.run(provider.list_tools())] == ["add"]
        assert outcome(provider, "add", a="2") == ToolOutcome(success=True, result=3)


def test_python_provider_returns_errors_as_outcomes():
    """An unknown name, invalid arguments and a failure have the seed's texts, and nothing is raised."""

    def fail() -> None:
        """Raise an error."""
        raise OSError("disk full")

    provider = PythonToolProvider([add, fail])
    assert outcome(provider, "ad").error == "Tool 'ad' not found. Available tools: ['add', 'fail']"
    assert "'a'" in outcome(provider, "add", a="many").error
    assert outcome(provider, "fail").error == "Error executing tool 'fail': OSError: disk full"


def test_provided_tool_raises_the_error_of_its_outcome():
    """The model reads the provider's text."""
    definition = Tool(name="t", description="d")
    (tool,) = runnable_tools(
        MockToolProvider([definition], {"t": ValueError("the flux is out")}), [definition]
    )
    with pytest.raises(ToolExecutionError, match=r"^the flux is out$"):
        asyncio.run(tool.ainvoke({}))


def test_namespace_prefixes_the_name_and_the_call_uses_the_original():
    """Two servers may both have a tool `read`."""
    definition = Tool(name="read", description="d")
    mock = MockToolProvider([definition], {"read": "r"})
    (tool,) = runnable_tools(mock, [definition], "files")
    assert (tool.name, asyncio.run(tool.ainvoke({}))) == ("files-read", "r")
    assert mock.call_history == [("read", {})]


def test_valid_names_never_collide():
    """A valid name stays, and the others get a digest, in any order."""
    names = ["a.b", "a_b", "a b", "x" * 70, "x" * 71, "ü", "", "c.d"]
    legal = legal_names(names)
    assert len(set(legal.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in legal.values())
    assert (legal["a_b"], legal["c.d"]) == ("a_b", "c_d")
    assert legal_names(names[::-1]) == legal
    assert len(set(legal_names(names, "n" * 32).values())) == len(names)


@pytest.mark.parametrize(
    "reference", ["https://evil.example.com/schema", "file:///etc/passwd", "other.json", 5]
)
def test_schema_reference_is_never_fetched(reference: Any):
    """Validating an argument sends no request."""
    with pytest.raises(UnusableSchema, match="and nothing is fetched"):
        safe_schema({"properties": {"a": {"$ref": reference}}})


def test_foreign_schema_is_cleaned():
    """Identifiers and invalid patterns are removed; a parameter may still be named `id`."""
    cleaned = safe_schema(
        {
            "$schema": "http://x",
            "$id": "http://x/y",
            "properties": {
                "id": {"type": "string", "pattern": "(?<", "default": {"$id": 1}},
                "$ref": {"type": "string"},
            },
        }
    )
    assert safe_schema({"properties": {"any": True}})["properties"] == {"any": {}}
    assert cleaned == {
        "type": "object",
        "properties": {"id": {"type": "string", "default": {"$id": 1}}, "$ref": {"type": "string"}},
    }


def test_pattern_that_python_cannot_read_checks_arguments():
    """Servers of other languages write `\\p{L}` for a letter; their tools are not left out."""
    schema = safe_schema({"properties": {"name": {"type": "string", "pattern": r"^\p{L}+$"}}})
    check = with_budget(bounded_validator(schema), StepBudget())
    assert check.is_valid({"name": "Žofie"})
    assert not check.is_valid({"name": "R2"})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, "of type 'array', not an object"),
        ({"properties": {"a": {"enum": ["x" * 40_000]}}}, "more than 30000 characters"),
        ({"properties": {"a": 5}}, "its schema is none: at properties/a, type is broken"),
        ({"required": 5}, "its schema is none: at required, type is broken"),
        ({"properties": {"a": {"anyOf": 5}}}, "at properties/a/anyOf"),
        ({"$defs": 5}, "at [$]defs"),
    ],
)
def test_unusable_schema_is_refused_with_its_reason(schema: dict[str, Any], said: str):
    """The tool is left out."""
    with pytest.raises(UnusableSchema, match=said):
        safe_schema(schema)


def test_deeply_nested_schema_is_refused():
    """It causes no RecursionError."""
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"not": deep}
    with pytest.raises(UnusableSchema, match="nested deeper than"):
        safe_schema(deep)


@pytest.mark.parametrize("end", ["", "#"])
def test_older_drafts_keep_their_meaning(end: str):
    """Many servers use draft 7, where `items` may be a list, or draft 4 with boolean limits."""
    seven = {
        "$schema": f"http://json-schema.org/draft-07/schema{end}",
        "properties": {"a": {"items": [{"type": "integer"}]}},
    }
    four = {
        "$schema": f"http://json-schema.org/draft-04/schema{end}",
        "properties": {"a": {"minimum": 1, "exclusiveMinimum": True}},
    }
    for schema, wrong in ((seven, ["x"]), (four, 1)):
        tool = Tool("t", "d", safe_schema(schema))
        with pytest.raises(ToolParameterError):
            tool.validate({"a": wrong})


@pytest.mark.parametrize(("number", "kept"), [(25, MAX_PATTERNS), (2_000, None)])
def test_number_of_patterns_is_limited(
    monkeypatch: pytest.MonkeyPatch, number: int, kept: int | None
):
    """Each may take a tenth of a second to compile, and an oversized schema is refused before that."""
    read: list[str] = []
    monkeypatch.setattr(schemas, "linear_search", read.append)
    patterns = {f"a{n}": {"type": "string", "pattern": f"a{n}"} for n in range(number)}
    with (
        contextlib.nullcontext()
        if kept
        else pytest.raises(UnusableSchema, match="more than 30000 characters")
    ):
        safe_schema({"properties": patterns})
    assert len(read) == (kept or 0)


@pytest.mark.parametrize("kind", ["mcp", "openapi"])
def test_foreign_schemas_are_not_processed_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path, tiny, kind: str
):
    """The loop continues with other sources meanwhile."""
    threads: set[int] = set()
    real = schemas.safe_schema

    def noted(schema: Any) -> Any:
        threads.add(threading.get_ident())
        return real(schema)

    monkeypatch.setattr(f"sayso.agent.toolsets.{kind}.safe_schema", noted)
    provider = tiny() if kind == "mcp" else pets.provider(tmp_path)
    assert asyncio.run(provider.list_tools())
    assert threads
    assert threading.get_ident() not in threads
