"""Lists and objects that a model sends as JSON text: read where the tool takes no text, and text everywhere else."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolParameter,
    ToolParameterError,
    ToolPolicy,
    tool,
)

TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


class Item(BaseModel):
    """A line of an order."""

    name: str
    tags: list[str] = []


@tool()
def plan(items: list[Item] | None = None, counts: dict[str, int] | None = None, note: str | list[str] = "") -> str:
    """Plan."""
    return f"{items!r} {counts!r} {note!r}"


@tool(requires_approval=True, preview=lambda items: f"Order {len(items)}: {items[0]}")
def order(items: list[str]) -> str:
    """Order."""
    return f"ordered {len(items)}: {items[0]}"


def one(a: Any) -> Any:
    """Return the argument."""
    return a


def by_schema(schema: dict[str, Any], value: Any) -> Any:
    """Return what a tool with this schema of its one parameter is called with."""
    return Tool("t", "T.", {"type": "object", "properties": {"a": schema}}, one).run_raw({"a": value})


@pytest.mark.parametrize("to", [["x@evil.test"], '["x@evil.test"]', '["a", "x@evil.test"]'])
def test_policy_judges_the_list_and_not_its_text(to: Any):
    """Otherwise a model could get around a rule by writing the list as text."""

    @tool
    def send(to: list[str]) -> str:
        """Send."""
        return f"sent to {to}"

    policy = ToolPolicy(allow=["*"], deny_when=[{"tool": "send", "arg": "to", "pattern": "*@evil.test"}])
    provider = ScriptedProvider([ToolCall("send", {"to": to}), "done"])
    Agent([send], provider, AgentConfig(tool_policy=policy)).run("go")
    assert "'send' is denied" in provider.requests[1].messages[-1].content


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ({"items": '[{"name": "a"}]'}, "[Item(name='a', tags=[])] None ''"),
        ({"items": [{"name": "a", "tags": '["x", "y"]'}]}, "[Item(name='a', tags=['x', 'y'])] None ''"),
        ({"items": '[{"name": "a", "tags": "[\\"x\\"]"}]'}, "[Item(name='a', tags=['x'])] None ''"),
        ({"items": ['{"name": "a"}']}, "[Item(name='a', tags=[])] None ''"),
        ({"counts": ' {"a": "1"}'}, "None {'a': 1} ''"),
        ({"note": '["x"]'}, "None None '[\"x\"]'"),
    ],
)
def test_function_receives_the_list_or_object(given: dict[str, Any], received: str):
    """At any depth; a parameter that accepts text gets the text."""
    assert plan.execute(given) == received


@pytest.mark.parametrize(
    ("schema", "given", "received"),
    [
        (TEXTS, '["x"]', ["x"]),
        (TEXTS, ['["x"]'], ['["x"]']),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": ["array", "null"]}, "[1]", [1]),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "[1]", [1]),
        ({"anyOf": [{"type": "array"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}),
        (TEXT, '{"a": 1}', '{"a": 1}'),
        ({"type": ["array", "string"]}, "[1]", "[1]"),
        ({"anyOf": [TEXTS, TEXT]}, '["x"]', '["x"]'),
        ({}, "[1]", "[1]"),
    ],
)
def test_schema_decides_whether_text_is_read(schema: dict[str, Any], given: Any, received: Any):
    """Text is never read where the schema accepts it."""
    assert by_schema(schema, given) == received


@pytest.mark.parametrize("text", ["x, y", '"[1]"', "[1", '{"a": 1}', "[NaN]", "[" * 100_000])
def test_text_that_is_no_list_is_refused(text: str):
    """The model reads what is expected."""
    with pytest.raises(ToolParameterError, match="'a'"):
        by_schema({"type": "array"}, text)
    parameters = [ToolParameter(name="a", param_type=list)]
    with pytest.raises(ToolParameterError, match="Input should be a valid list"):
        Tool("t", "T.", parameters, one).execute({"a": text})


def test_question_and_effect_have_the_list():
    """The person reads the list that the yes runs, and never its JSON text."""
    calls = [ToolCall("order", {"items": items}) for items in ('["tea", "milk"]', ["tea", "milk"])]
    bot = ChannelAgent(Agent([order], ScriptedProvider(calls)))
    assert "Order 2: tea" in bot.ask_channel("ana", "order").content
    assert "Order 2: tea" in bot.ask_channel("ben", "order").content
    encoded, plain = bot.store.get("ana"), bot.store.get("ben")
    assert encoded
    assert plain
    assert (encoded.args, encoded.args_digest) == (plain.args, plain.args_digest)
    assert "ordered 2: tea" in bot.ask_channel("ana", "yes").content
