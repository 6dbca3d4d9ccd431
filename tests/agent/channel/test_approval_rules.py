"""`approval`: who decides about an action is sealed with its proposal, by the policy of its tool."""

from __future__ import annotations

import pytest

from sayso.agent import Agent, AgentConfig, ToolPolicy, tool
from sayso.agent.messages import ToolCall
from sayso.agent.providers.testing import ScriptedProvider
from sayso.pending.action import PendingAction
from sayso.pending.approval_rule import ApprovalRule, Deciders
from tests.agent.channel.shop import Shop

MANAGERS = ApprovalRule(Deciders("role", ("manager",)), need=2, within_seconds=7200.0)
REFUND = ToolCall("refund", {"order": 17})


@tool(typed_code=True, editable=["order"])
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool(requires_approval=True)
def note(order: int) -> str:
    """Note an order."""
    return f"noted {order}"


def agent_with(policy: ToolPolicy, *answers) -> Agent:
    """Return an agent with this policy, whose model gives these answers."""
    config = AgentConfig(tool_policy=policy)
    return Agent([refund, note], ScriptedProvider(list(answers)), config)


def proposal_of(agent: Agent) -> PendingAction:
    """Return the action that is stored after a message of Ana."""
    shop = Shop(agent=agent)
    shop.ask()
    return shop.home_action().action


@pytest.mark.parametrize("pattern", ["refund", "REF*"])
def test_proposal_is_sealed_with_the_rule_of_the_policy(pattern):
    """Also where `allow` names the tool. What the tool says of code and form does not count."""
    policy = ToolPolicy(allow=["refund"], approval={pattern: MANAGERS})
    action = proposal_of(agent_with(policy, REFUND))
    assert action.approval_rule == MANAGERS
    assert (action.kind, action.ttl_seconds, action.code, action.form) == ("refund", 7200.0, "", ())
    assert action.reason == f"'refund' matches the approval rule {pattern!r}"


def test_rule_by_the_asker_asks_the_person_as_without_a_rule():
    """It forces the question, and the person who asked decides."""
    rule = ApprovalRule(Deciders("asker"))
    policy = ToolPolicy(allow=["*"], approval={"refund": rule})
    action = proposal_of(agent_with(policy, REFUND))
    assert action.approval is None
    assert action.code


def test_call_that_other_people_decide_waits_for_the_end_of_the_first_question():
    """One question has one rule. The model reads that it must finish the first one."""
    both = [REFUND, ToolCall("note", {"order": 17}, "n")]
    policy = ToolPolicy(allow=["*"], approval={"refund": MANAGERS})
    action = proposal_of(agent_with(policy, both))
    assert (action.kind, action.approval_rule) == ("refund", MANAGERS)


def test_rule_of_an_inner_agent_covers_its_tools():
    """An agent that is a tool of another has its own policy, which names who decides there."""
    config = AgentConfig(name="clerk", tool_policy=ToolPolicy(approval={"refund": MANAGERS}))
    clerk = Agent([refund], ScriptedProvider([REFUND]), config)
    ask = ToolCall("clerk", {"request": "refund 17"})
    outer = Agent([clerk.as_tool()], ScriptedProvider([ask]), AgentConfig())
    assert proposal_of(outer).approval_rule == MANAGERS
