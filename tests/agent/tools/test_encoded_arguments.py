"""Lists and objects that a model sends as JSON text: read where the tool takes no text, and text everywhere else."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Any, Literal

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
def plan(
    items: list[Item] | None = None,
    counts: dict[str, int] | None = None,
    note: str | list[str] = "",
) -> str:
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
    return Tool("t", "T.", {"type": "object", "properties": {"a": schema}}, one).run_raw(
        {"a": value}
    )


@pytest.mark.parametrize("to", [["x@evil.test"], '["x@evil.test"]', '["a", "x@evil.test"]'])
def test_policy_judges_the_list_and_not_its_text(to: Any):
    """Otherwise a model could get around a rule by writing the list as text."""

    @tool
    def send(to: list[str]) -> str:
        """Send."""
        return f"sent to {to}"

    policy = ToolPolicy(
        allow=["*"], deny_when=[{"tool": "send", "arg": "to", "pattern": "*@evil.test"}]
    )
    provider = ScriptedProvider([ToolCall("send", {"to": to}), "done"])
    Agent([send], provider, AgentConfig(tool_policy=policy)).run("go")
    assert "'send' is denied" in provider.requests[1].messages[-1].content


@pytest.mark.parametrize(
    ("given", "received"),
    [
        ({"items": '[{"name": "a"}]'}, "[Item(name='a', tags=[])] None ''"),
        (
            {"items": [{"name": "a", "tags": '["x", "y"]'}]},
            "[Item(name='a', tags=['x', 'y'])] None ''",
        ),
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


@pytest.mark.parametrize("text", ["x, y", '"x"', "[1", '{"a": 1}', "[NaN]", "[1,,]", "[" * 100_000])
def test_text_that_is_no_list_is_refused(text: str):
    """The model reads what is expected."""
    with pytest.raises(ToolParameterError, match="'a'"):
        by_schema({"type": "array"}, text)
    parameters = [ToolParameter(name="a", param_type=list)]
    with pytest.raises(ToolParameterError, match="Input should be a valid list"):
        Tool("t", "T.", parameters, one).execute({"a": text})


@pytest.mark.parametrize(
    "text",
    [
        '"[1, 2]"',
        '"\\"[1, 2]\\""',
        "```json\n[1, 2]\n```",
        "```\n[1, 2]```\n",
        "[1, 2,]",
        " [1,\n 2 , ]",
        '"[1, 2,]"',
    ],
)
def test_list_is_read_as_models_write_it(text: str):
    """Encoded twice, in a code fence, with a comma behind the last value."""
    assert by_schema({"type": "array"}, text) == [1, 2]
    assert Tool("t", "T.", [ToolParameter(name="a", param_type=list[int])], one).run_raw(
        {"a": text}
    ) == [1, 2]


def test_text_inside_a_list_keeps_its_commas():
    """Only a comma outside of text is left out."""
    assert by_schema(TEXTS, '["a,]", "b\\",}",]') == ["a,]", 'b",}']


@pytest.mark.parametrize(
    "text", ['"' + '\\"' * 300_000, "```\n" + " " * 500_000, "," * 300_000 + " " * 300_000]
)
def test_text_made_to_take_long_is_read_in_one_pass(text: str):
    """This test has no clock, but its run has a limit."""
    with pytest.raises(ToolParameterError):
        by_schema({"type": "array"}, text)


class Color(StrEnum):
    """Colors."""

    RED = "red"


@pytest.mark.parametrize("word", ["", "null", "None", " NULL "])
@pytest.mark.parametrize(
    "hint", [list[int], dict[str, int], int, bool, Color, Literal["a", 1], Item, date]
)
def test_word_for_nothing_leaves_an_argument_out(hint: Any, word: str):
    """Small models send it in place of null. It becomes the default, or the null that the tool accepts."""

    def give(a: Any = None) -> str:
        """Give."""
        return repr(a)

    give.__annotations__["a"] = hint | None
    assert tool(give).execute({"a": word}) == "None"
    give.__annotations__["a"] = hint
    give.__defaults__ = ("the default",)
    assert tool(give).execute({"a": word}) == "'the default'"


@pytest.mark.parametrize("word", ["", "null"])
def test_word_for_nothing_is_refused_where_something_is_required(word: str):
    """An empty list might mean everything to a tool."""
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    for parameters in (schema, [ToolParameter(name="a", param_type=list)]):
        with pytest.raises(ToolParameterError, match=f"'a' is '{word}'"):
            Tool("t", "T.", parameters, one).run_raw({"a": word})


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (TEXT, ""),
        (TEXT, "null"),
        ({"enum": ["None", "a"]}, "None"),
        ({"anyOf": [{"type": "integer"}, TEXT]}, ""),
        ({"$ref": "#/$defs/T"}, "none"),
        ({}, "null"),
    ],
)
def test_word_that_a_tool_accepts_stays(schema: dict[str, Any], word: str):
    """Somebody may be called None."""
    whole = {
        "type": "object",
        "properties": {"a": schema, "b": {"type": "integer"}},
        "$defs": {"T": TEXT},
    }
    assert Tool("t", "T.", whole, lambda **given: given).run_raw({"a": word, "b": "7"}) == {
        "a": word,
        "b": 7,
    }


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
