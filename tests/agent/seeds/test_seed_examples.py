"""The examples of selectools' page about tools, run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from sayso.agent import (
    Agent,
    Ambiguous,
    Artifact,
    NotFound,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolParameter,
    ToolRegistry,
    ToolResult,
    ToolValidationError,
    emit_artifact,
    tool,
)


def test_tool_from_its_parts():
    """The schema is that of the page, plus the default, which helps a model."""

    def get_weather(location: str, units: str = "celsius") -> str:
        return f"Weather in {location}: 72°{units[0].upper()}"

    weather = Tool(
        name="get_weather",
        description="Get current weather for a location",
        parameters=[
            ToolParameter(
                name="location",
                param_type=str,
                description="City name or coordinates",
                required=True,
            ),
            ToolParameter(
                "units", str, "Temperature units", required=False, enum=["celsius", "fahrenheit"]
            ),
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


def test_missing_argument_takes_the_functions_default():
    """The declared parameters have no default, so the function's own applies."""
    weather = Tool(
        "w", "w", [ToolParameter("units", str, required=False)], lambda units="celsius": units
    )
    assert weather.execute({}) == "celsius"
    assert weather.execute({"units": "kelvin"}) == "kelvin"


def test_custom_name():
    """The tool has the custom name, and the function stays callable."""

    @tool(name="web_search", description="Search the web")
    def search_google(query: str) -> str:
        return f"Results: {query}"

    assert (search_google.name, search_google.description) == ("web_search", "Search the web")
    assert search_google("x") == "Results: x"


def test_unit_test_of_a_tool():
    """The page's own unit test runs."""

    @tool(description="Add numbers")
    def add(a: int, b: int) -> str:
        return str(a + b)

    assert add.execute({"a": 2, "b": 3}) == "5"
    with pytest.raises(ToolValidationError):
        add.execute({"a": 2})


@dataclass(frozen=True)
class RateLimited(ToolResult):
    """A custom result type."""

    kind: ClassVar[str] = "rate_limited"
    retry_after: int = 0


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (RateLimited(30), '{"kind": "rate_limited", "retry_after": 30}'),
        (
            NotFound(entity="customer", query="acme"),
            '{"kind": "not_found", "entity": "customer", "query": "acme"}',
        ),
        (
            Ambiguous(entity="customer", query="a", matches=["ada", "al"]),
            '{"kind": "ambiguous", "entity": "customer", "query": "a", "matches": ["ada", "al"]}',
        ),
    ],
)
def test_custom_typed_result(result, text):
    """`kind` is a ClassVar and comes first in the JSON."""
    assert Tool("t", "t", [], lambda: result).execute({}) == text


def test_artifact_has_all_its_fields():
    """The tool provides the digest and the size of a URL."""
    made = emit_artifact(
        "https://x.test/q2.png",
        mime_type="image/png",
        filename="q2.png",
        sha256="ab",
        size=3,
        role="preview",
        retention="30d",
    )
    assert made == Artifact(
        "https://x.test/q2.png", "image/png", "q2.png", "ab", 3, "preview", "30d"
    )


def test_tools_of_two_registries_in_one_agent():
    """An agent accepts the concatenated lists."""
    sums, web = ToolRegistry(), ToolRegistry()

    @sums.tool(description="Add")
    def add(a: int, b: int) -> str:
        return str(a + b)

    @web.tool(description="Search")
    def search(query: str) -> str:
        return query

    assert Agent(tools=sums.all() + web.all()).tools == [add, search]
    assert web.get("search") is search


def test_parameter_declared_twice_is_refused():
    """The error is raised at definition."""
    with pytest.raises(ToolValidationError, match="declared twice"):
        Tool("t", "t", [ToolParameter("x"), ToolParameter("x")], lambda x: x)


def test_agent_calls_a_tool():
    """The page's first example: the model sees the schema, calls the tool, and answers with its result."""

    @tool()
    def get_weather(location: str) -> str:
        """Get current weather for a city."""
        return f"Weather in {location}: 22C, sunny"

    provider = ScriptedProvider(
        [ToolCall("get_weather", {"location": "Paris"}), "It is sunny in Paris."]
    )
    agent = Agent(tools=[get_weather], provider=provider)
    assert agent.run("What is the weather in Paris?").content == "It is sunny in Paris."
    asked, told = provider.requests
    assert list(asked.tools) == [get_weather.schema()]
    assert told.messages[-1].content == "Weather in Paris: 22C, sunny"


def test_injected_connection_is_hidden_from_the_model():
    """`injected_kwargs`: the model's schema is that of the page, and the function receives both arguments."""

    class Connection:
        """A connection that answers any query."""

        def ask(self, sql: str) -> str:
            return f"rows of {sql}"

    def query_database(sql: str, db_connection: Connection) -> str:
        return db_connection.ask(sql)

    query = Tool(
        name="query_db",
        description="Execute a read-only SQL query",
        parameters=[ToolParameter(name="sql", param_type=str, description="SQL SELECT query")],
        function=query_database,
        injected_kwargs={"db_connection": Connection()},
    )
    assert query.schema() == {
        "name": "query_db",
        "description": "Execute a read-only SQL query",
        "parameters": {
            "type": "object",
            "properties": {"sql": {"type": "string", "description": "SQL SELECT query"}},
            "required": ["sql"],
        },
    }
    assert query.execute({"sql": "SELECT 1"}) == "rows of SELECT 1"
    with pytest.raises(ToolValidationError, match="'db_connection' is not a valid parameter"):
        query.execute({"sql": "SELECT 1", "db_connection": "mine"})


def test_config_injector_overrides_injected_arguments():
    """It is called at each call; None overrides nothing."""
    said: dict | None = {"user_id": 123, "role": "admin"}

    def check(resource: str, user_id: int, role: str) -> str:
        return f"User {user_id} ({role}) access to {resource}: granted"

    made = Tool(
        "check", "Check", [ToolParameter("resource")], check, injected_kwargs={"user_id": 1, "role": "guest"},
        config_injector=lambda: said,
    )  # fmt: skip
    assert made.execute({"resource": "file"}) == "User 123 (admin) access to file: granted"
    said = None
    assert made.execute({"resource": "file"}) == "User 1 (guest) access to file: granted"


def test_result_that_is_no_text_is_converted():
    """Best practice 5 and pitfall 3: a number becomes its text, and None becomes "done"."""

    @tool(description="Count")
    def get_count() -> int:
        return 42

    @tool(description="Log message")
    def log_message(msg: str):
        heard.append(msg)

    heard: list[str] = []
    assert get_count.execute({}) == "42"
    assert (log_message.execute({"msg": "hi"}), heard) == ("done", ["hi"])


def test_model_corrects_an_invalid_call():
    """Pitfalls 1 and 2: a quoted number is accepted, a missing argument is reported, and the next call succeeds."""

    @tool(description="Calculate")
    def calculate(a: int, b: int) -> str:
        return str(a + b)

    provider = ScriptedProvider([
        ToolCall("calculate", {"a": "42"}), ToolCall("calculate", {"a": "42", "b": 1}), "It is 43.",
    ])  # fmt: skip
    assert Agent([calculate], provider).run("42 + 1?").content == "It is 43."
    told = [request.messages[-1].content for request in provider.requests[1:]]
    assert "Missing required parameter: 'b'" in told[0]
    assert told[1] == "43"
