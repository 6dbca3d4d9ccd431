"""Under review: any tool is asked for without a line by its author, and its user's yes runs exactly what was shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolExecutionError,
    ToolPolicy,
    ToolRegistry,
    tool,
)
from agent.tools.metadata import ToolMetadata, ToolTag

RAN: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_ran():
    """Before each test."""
    RAN.clear()


@tool
def send(body: str, copies: int = 1) -> str:
    """Send a letter."""
    RAN.append((body, copies))
    return f"sent {copies}"


BODY = "".join(f"{number} " for number in range(1250)).strip()


def bot(given: Tool, args: dict, policy: ToolPolicy | None) -> ChannelAgent:
    """A channel whose model calls the tool."""
    provider = ScriptedProvider([ToolCall(given.name, args), "understood"])
    return ChannelAgent(Agent([given], provider, AgentConfig(tool_policy=policy)))


def test_long_call_is_shown_whole_and_runs_whole():
    """5,000 characters, coerced arguments: what is asked, what is sealed and what runs are the same."""
    desk = bot(send, {"body": BODY, "copies": "3"}, ToolPolicy(review=["send"]))
    asked = desk.ask_channel("ana", "go").content
    assert len(BODY) > 4_800
    assert f"send: body = {BODY}, copies = 3" in asked
    assert RAN == []
    assert desk.ask_channel("ana", "yes").content == "sent 3"
    assert RAN == [(BODY, 3)]


def test_recorded_arguments_are_validated_again():
    """The tool takes less by now: what it would refuse from a model it refuses from a record."""
    tools = ToolRegistry([send])
    provider = ScriptedProvider([ToolCall("send", {"body": "x", "copies": 3})])
    desk = ChannelAgent(Agent(tools, provider, AgentConfig(tool_policy=ToolPolicy(review=["send"]))))
    desk.ask_channel("ana", "go")

    @tool(name="send")
    def send_later(body: str) -> str:
        """Send a letter, once."""
        RAN.append((body, 1))
        return "sent"

    tools.remove("send")
    tools.register(send_later)
    told = desk.ask_channel("ana", "yes").content
    assert (RAN, "send: body = x, copies = 3" in told) == ([], True)


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        (None, True),
        (ToolPolicy(), True),
        (ToolPolicy(review=["*"]), True),
        (ToolPolicy(allow=["se*"]), False),
        (ToolPolicy(deny=["*"]), False),
        (ToolPolicy(allow=["*"], deny_when=[{"tool": "*", "arg": "copies", "pattern": "2"}]), False),
    ],
)
def test_destructive_hint_asks_where_no_rule_names_it(policy, asks):
    """Nothing of it runs before the yes, unless a rule allows it."""
    hinted = replace(send, metadata=ToolMetadata(tags=frozenset({ToolTag.DESTRUCTIVE})))
    desk = bot(hinted, {"body": "x", "copies": 2}, policy)
    assert ("send: body = x, copies = 2" in desk.ask_channel("ana", "go").content) is asks
    assert (RAN == [("x", 2)]) is (policy is not None and policy.allow == ["se*"])


def test_what_is_too_much_to_agree_to_is_told_to_the_model():
    """It is neither cut nor asked."""
    desk = bot(send, {"body": "x" * 20_000}, ToolPolicy(review=["send"]))
    result = desk.ask_channel("ana", "go")
    assert (result.content, RAN) == ("understood", [])
    assert "at most 16,000 are read" in result.messages[2].content
    desk.ask_channel("ana", "yes")
    assert RAN == []


@pytest.mark.parametrize(
    ("failure", "told"),
    [(ToolExecutionError("the printer is off", tool_name="print_out"), False), (KeyError("x"), True)],
)
def test_a_failure_that_says_what_it_is_needs_no_traceback(caplog, failure: Exception, told: bool):
    """One line names it; where the tool's code broke, its author sees where."""

    @tool
    def print_out() -> str:
        """Print it."""
        raise failure

    assert "failed" in confirmed(print_out)
    (record,) = [record for record in caplog.records if record.message == "pending.failed"]
    assert bool(record.exc_info) is told
    assert told or str(failure) in record.why


@pytest.mark.parametrize("seconds", [0.01, None])
def test_a_tool_that_ran_out_of_time_has_not_failed(seconds: float | None):
    """Its own limit, or what it waited for: it may still take effect, and nobody says that it did not."""

    @tool(metadata=ToolMetadata(timeout=seconds))
    async def print_out() -> str:
        """Print it."""
        if seconds is None:
            raise TimeoutError
        await asyncio.Event().wait()
        return ""

    assert "I cannot tell whether it finished" in confirmed(print_out)


def confirmed(asked: Tool) -> str:
    """What its user hears after the yes."""
    config = AgentConfig(tool_policy=ToolPolicy(review=["*"]))
    bot = ChannelAgent(Agent([asked], ScriptedProvider([ToolCall(asked.name, {})]), config))
    bot.ask_channel("ana", "print")
    return bot.ask_channel("ana", "yes").content
