"""`after`: what follows the outcome of a confirmed action is sealed with its proposal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.agent import Agent, AgentConfig, ChannelAgent, Tool, ToolPolicy, tool
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.guards.policy import effective_after
from sayso.agent.messages import ToolCall
from sayso.agent.providers.testing import ScriptedProvider
from sayso.agent.tools.errors import ToolValidationError
from sayso.pending import stash_pending
from sayso.pending.action import PendingAction


@tool(requires_approval=True, after="say")
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(proposes=True, after="say")
def ask_by_itself(order: int) -> None:
    """Ask whether an order may be refunded."""
    stash_pending(kind="pay", preview=f"Pay for {order}", args={"order": order})


def proposal_of(name: str, policy: ToolPolicy | None = None) -> PendingAction:
    """Return the stored action that a model's call of a tool proposes."""
    model = ScriptedProvider([ToolCall(name, {"order": 17})])
    bot = ChannelAgent(Agent([refund, ask_by_itself], model, AgentConfig(tool_policy=policy)))
    bot.ask_channel("ana", "please", conversation_id="room")
    action = bot.store.get("ana", conversation_id="room")
    assert action is not None
    return action


@pytest.mark.parametrize("name", ["refund", "ask_by_itself"])
def test_proposal_is_sealed_with_what_its_tool_says(name):
    """Also where the tool's own code asks, under another kind."""
    assert proposal_of(name).after == "say"


@pytest.mark.parametrize("name", ["refund", "ask_by_itself"])
def test_policy_overrules_the_tool(name):
    """An operator changes it without a change of code."""
    policy = ToolPolicy(allow=["*"], after={name: "continue"})
    assert proposal_of(name, policy).after == "continue"


def test_unknown_value_fails_when_it_is_given():
    """The error shows the value and the ones that exist."""
    with pytest.raises(ToolValidationError, match="after is 'stop': give 'continue', 'say'"):
        Tool("wipe", "Wipe it", (), lambda: "", after="stop")
    with pytest.raises(ValueError, match="after='stop' is unknown: give 'continue' or 'say'"):
        ChannelAgent(Agent([], ScriptedProvider([])), behavior=ChannelBehavior(after="stop"))


def test_terminal_tool_ends_the_request_with_its_result():
    """Its result is the reply, also after a yes. A tool that says "continue" means it."""

    @tool(requires_approval=True, terminal=True)
    def show(order: int) -> str:
        """Show an order."""
        return f"order {order}"

    going_on = replace(show, after="continue")
    assert effective_after("show", show, None) == "say"
    assert effective_after("show", going_on, None) == "continue"
    model = ScriptedProvider([ToolCall("show", {"order": 17})])
    bot = ChannelAgent(Agent([show], model), behavior=ChannelBehavior(after="continue"))
    bot.ask_channel("ana", "please", conversation_id="room")
    assert bot.ask_channel("ana", "yes", conversation_id="room").content.endswith("order 17")
    assert len(model.requests) == 1


def test_terminal_tool_beside_a_question_ends_nothing_after_the_decision():
    """Its result was told above the question. The model has not read the outcome, and goes on with it."""

    @tool(terminal=True, read_only=True)
    def show(order: int) -> str:
        """Show an order."""
        return f"order {order}"

    both = [ToolCall("refund", {"order": 17}, "r"), ToolCall("show", {"order": 17}, "s")]
    model = ScriptedProvider([both, "All done."], strict=True)
    bot = ChannelAgent(Agent([replace(refund, after="continue"), show], model))
    assert bot.ask_channel("ana", "refund 17 and show it").content.startswith("order 17\n\n")
    assert bot.ask_channel("ana", "yes").content.endswith("All done.")
