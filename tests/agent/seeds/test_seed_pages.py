"""The seeds' pages, where Sayso once differed from them: their own examples and texts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Any, Literal

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    InMemoryCache,
    Message,
    PromptBuilder,
    Role,
    Tool,
    ToolCall,
    ToolExecutionError,
    ToolMetadata,
    UsageStats,
    tool,
)
from sayso.agent.config import ToolConfig
from sayso.agent.providers.testing import ScriptedProvider


@tool(terminal=True)
def present_question(question_id: int) -> str:
    """Present a question."""
    return f"question {question_id}"


def test_sequential_calls_after_a_terminal_tool_do_not_run():
    """Terminal Actions: the loop exits immediately."""
    ran: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        ran.append(to)
        return "sent"

    calls = [
        ToolCall("send", {"to": "a"}, "1"),
        ToolCall("present_question", {"question_id": 7}, "2"),
        ToolCall("send", {"to": "b"}, "3"),
    ]
    agent = Agent(
        [send, present_question],
        ScriptedProvider([calls]),
        AgentConfig(parallel_tool_execution=False),
    )
    result = agent.run("go")
    assert (ran, result.content, result.stop_reason) == (["a"], "question 7", "terminal")
    assert result.messages[4].content.startswith("Not run: ")


def test_reasoning_history_has_one_string_per_iteration():
    """Reasoning Visibility: the list has a string also for an answer without text beside its call."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    class Speaking:
        def __init__(self) -> None:
            self.answers = [("Billing, I think. ", "look"), ("", "look"), ("Done.", "")]

        def complete(self, **_: Any) -> tuple[Message, UsageStats]:
            said, name = self.answers.pop(0)
            calls = (ToolCall(name, {}, f"c{len(self.answers)}"),) if name else ()
            return Message(Role.ASSISTANT, said, tool_calls=calls), UsageStats()

    result = Agent([look], Speaking()).run("go")
    assert (result.reasoning_history, result.iterations) == (["Billing, I think. ", "", ""], 3)
    assert result.reasoning == "Billing, I think. "


def test_message_of_a_tool_accepts_its_result():
    """History Management: Message(role=Role.TOOL, ..., tool_result=...) works and can be stored."""
    message = Message(role=Role.TOOL, content="3", tool_name="search", tool_result={"hits": 3})
    assert Message.from_dict(message.to_dict()) == message


@pytest.mark.parametrize(
    "value", [("an answer", {"tokens": 3}), (Message(Role.USER, "x"), None), (1, 2, 3)]
)
def test_cache_stores_any_tuple(value):
    """Cache Protocol: the signature is `value: Tuple[Any, Any]`."""
    cache = InMemoryCache()
    cache.set("key", value)
    assert cache.get("key") == value


def test_cache_refuses_a_value_that_is_no_tuple():
    """The error names the expected value."""
    with pytest.raises(TypeError, match="a cache keeps tuples, not 'str': give"):
        InMemoryCache().set("key", "text")


def test_errors_have_the_texts_of_the_pages():
    """Validation Flow, Tool Execution Errors, and Execution with a timeout give the texts."""

    @tool
    def divide(a: float, b: float) -> str:
        """Divide."""
        if b == 0:
            raise ValueError("Cannot divide by zero")
        return str(a / b)

    @tool(metadata=ToolMetadata(timeout=0.01))
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    calls = [
        ToolCall("x", {}, "1"),
        ToolCall("divide", {"a": 1, "b": 0}, "2"),
        ToolCall("divide", {"a": 1}, "3"),
    ]
    result = Agent([divide], ScriptedProvider([calls, "done"])).run("go")
    unknown, failed, missing = (message.content for message in result.messages[2:5])
    assert "Unknown tool 'x'. Available: ['divide']" in unknown
    assert failed.startswith("Error executing tool 'divide': ")
    assert "Issue: Missing required parameter" in missing
    with pytest.raises(ToolExecutionError, match="'wait' timed out"):
        wait.execute({})


def test_available_tools_are_listed_in_their_given_order():
    """Validation Flow: the order is that of `list(self._tools_by_name.keys())`."""

    def named(name: str) -> Tool:
        return Tool(name, "Do.", [], lambda: "done")

    result = Agent([named("b"), named("a")], ScriptedProvider([ToolCall("x"), "done"])).run("go")
    assert "Unknown tool 'x'. Available: ['b', 'a']" in result.messages[2].content


@pytest.mark.parametrize("door", ["complete", "acomplete"])
def test_provider_may_answer_with_text_and_usage(door):
    """Retry and Error Handling: `response_text, usage_stats = self.provider.complete(...)`."""

    class Plain:
        pass

    async def acomplete(self: Any, **_: Any) -> tuple[str, UsageStats]:
        return "hello", UsageStats(1, 2, 3)

    setattr(
        Plain,
        door,
        acomplete if door == "acomplete" else lambda self, **_: ("hello", UsageStats(1, 2, 3)),
    )
    result = Agent([], Plain()).run("go")
    assert (result.content, result.usage.total_tokens) == ("hello", 3)


def test_prompt_of_text_tools_has_the_text_of_the_page():
    """Schema Usage: the prompt begins the list with the page's line."""
    assert "Available tools (JSON schema):" in PromptBuilder().build([present_question])


def test_warning_of_a_failed_compression_names_the_exception(caplog):
    """Failure fallback: "a WARNING with the exception type" names the summarizer's own error."""

    class Broken:
        def complete(self, **_: Any) -> Any:
            raise ZeroDivisionError("no such model")

    @tool
    def dump() -> str:
        """Dump."""
        return "row " * 100

    config = AgentConfig(
        tool=ToolConfig(
            compress_results=True,
            compress_threshold=10,
            compress_provider=Broken(),
            compress_model="m",
        )
    )
    with caplog.at_level(logging.WARNING):
        Agent([dump], ScriptedProvider([ToolCall("dump"), "done"]), config).run("go")
    assert "ZeroDivisionError" in caplog.text


def test_inferred_parameters_have_an_element_type_and_a_description():
    """Typed Collection Parameters and Schema Inference: both are derived from the hints."""

    @tool
    def process(
        tags: list[str], scores: list[int], config: dict[str, str], extra: list[str] | None, n: int
    ) -> str:
        """Process."""
        return f"{tags} {scores} {config} {extra} {n}"

    assert [each.element_type for each in process.parameters] == [str, int, str, str, None]
    assert [each.description for each in process.parameters][::4] == [
        "Parameter 'tags'",
        "Parameter 'n'",
    ]


def test_values_of_a_literal_are_the_enum_of_its_parameter():
    """Literal Types: "auto-extracted into the enum field of the parameter", also inside Optional."""

    @tool
    def set_mode(
        mode: Literal["fast", "slow"], level: Literal[1, True] | None, other: Literal["a"] | int = 3
    ) -> str:
        """Set."""
        return f"{mode} {level!r} {other!r}"

    assert [each.enum for each in set_mode.parameters] == [("fast", "slow"), (1, True), None]
    assert set_mode.execute({"mode": "fast", "other": 5}) == "fast None 5"


def test_sync_function_declared_async_does_not_block_the_event_loop():
    """Page 001: `ToolMetadata(is_async=True)` is a hint, and a plain function still runs in a thread."""

    def where() -> str:
        """Tell the thread."""
        return threading.current_thread().name

    claimed = Tool("where", "Tell the thread.", [], where, metadata=ToolMetadata(is_async=True))

    async def run() -> tuple[str, str]:
        return threading.current_thread().name, await claimed.aexecute({})

    loop, ran = asyncio.run(run())
    assert ran != loop


def test_unrequested_toolcall_reason_is_removed():
    """Page 001: a call with an extra `toolcall_reason` is accepted, and a tool's own parameter of this name is kept."""

    @tool
    def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    @tool
    def note(toolcall_reason: str) -> str:
        """Note."""
        return toolcall_reason

    foreign = Tool("add", "Add.", add.schema()["parameters"], add.function)
    for each in (add, foreign):
        assert each.execute({"a": 2, "b": 3, "toolcall_reason": "to know"}) == "5"
    assert note.execute({"toolcall_reason": "mine"}) == "mine"


def test_tool_is_subscriptable():
    """Page 004: the signature of the page's ToolSelector can be evaluated."""

    def select(messages: Iterable[Message], tools: Iterable[Tool[Any]]) -> Iterable[Tool[Any]]:
        return tools

    assert Tool[Any].__origin__ is Tool
    assert list(select([], [present_question])) == [present_question]


@pytest.mark.parametrize(
    ("config", "asked"), [(AgentConfig(), ""), (AgentConfig(model="gpt-5-mini"), "gpt-5-mini")]
)
def test_configured_model_is_requested_although_it_is_the_default(config, asked):
    """AgentConfig.model: a provider's own default counts only if no model was configured."""

    class Own(ScriptedProvider):
        default_model = "house-model"

    provider = Own(["done"])
    Agent([], provider, config).run("go")
    assert provider.requests[0].model == asked
    assert config.model == "gpt-5-mini"
