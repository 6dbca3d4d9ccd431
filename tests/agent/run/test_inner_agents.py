"""An agent as a tool of another one: calls that wait inside it surface on the outer run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sayso import Approve, DecisionError, Deny, Edit, RunSnapshot, tool
from sayso.agent import (
    Agent,
    AgentConfig,
    ChannelAgent,
    ConversationMemory,
    MemoryDecisionLog,
    ProviderError,
    Role,
    ScriptedProvider,
    ToolCall,
    ToolPolicy,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.pending import InMemoryPendingStore

ASK = ToolCall("clerk", {"request": "refund 17"}, "c1")
REFUND = ToolCall("refund", {"order": 17}, "c1")


@pytest.fixture
def ran():
    """Return what has run, in order."""
    return []


@pytest.fixture
def refund(ran):
    """Return a tool that needs an approval."""

    @tool(requires_approval=True, preview="Refund order {order}", editable=["order"])
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)
        return f"Order {order} refunded."

    return refund


def pair(refund, inner_lines, outer_lines):
    """Return an outer agent that pauses, with an inner one as its tool, and both models."""
    inner_model, outer_model = ScriptedProvider(inner_lines), ScriptedProvider(outer_lines)
    clerk = Agent([refund], inner_model, AgentConfig(name="clerk", max_retries=0))
    outer = Agent(
        [clerk.as_tool()], outer_model, AgentConfig(pause_for_approval=True, max_retries=0)
    )
    return outer, inner_model, outer_model


def stored(snapshot):
    """Return a paused run as another process reads it."""
    return RunSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict())))


def test_open_call_of_an_inner_run_surfaces_and_goes_on_there(refund, ran):
    """Each of the two runs goes on where it stopped, and no call runs twice."""
    outer, inner_model, outer_model = pair(refund, [REFUND, "It is refunded."], [ASK, "All done."])
    result = outer.run("please refund 17")
    (call,) = result.open_calls
    assert (call.id, call.tool_name, result.content, ran) == (
        "c1/c1",
        "refund",
        "Refund order 17",
        [],
    )
    result = outer.run(paused=stored(result.paused), decisions={"c1/c1": Approve(decided_by="ana")})
    assert (result.content, ran) == ("All done.", [17])
    assert [(each.id, each.outcome) for each in result.decided] == [("c1/c1", "done")]
    assert [len(inner_model.requests), len(outer_model.requests)] == [2, 2]
    assert outer_model.requests[1].messages[-1].content == "It is refunded."


def test_inner_run_may_ask_again(refund, ran):
    """The outer run stays paused until the inner one has its answer."""
    again = ToolCall("refund", {"order": 18}, "c2")
    outer, _, outer_model = pair(refund, [REFUND, again, "Both."], [ASK, "All done."])
    result = outer.run("please refund 17")
    result = outer.run(paused=stored(result.paused), decisions={"c1/c1": Approve()})
    assert ([call.id for call in result.open_calls], ran, len(outer_model.requests)) == (
        ["c1/c2"],
        [17],
        1,
    )
    result = outer.run(paused=stored(result.paused), decisions={"c1/c2": Deny("enough")})
    assert (result.content, ran) == ("All done.", [17])


def test_inner_call_can_be_changed(refund, ran):
    """The changed call is a new proposal, with an id of its own."""
    outer, _, _ = pair(refund, [REFUND, "Changed."], [ASK, "All done."])
    result = outer.run(paused=outer.run("go").paused, decisions={"c1/c1": Edit({"order": 19})})
    (call,) = result.open_calls
    assert (call.id, call.changes_of, call.preview, ran) == (
        "c1/c1~2",
        "c1/c1",
        "Refund order 19",
        [],
    )
    assert (
        outer.run(paused=result.paused, decisions={call.id: Approve(call.args_digest)}).content
        == "All done."
    )
    assert ran == [19]


def test_decision_about_an_inner_call_is_noted_in_the_outer_log(refund, ran):
    """The program gives its log to the agent that it calls."""
    noted = []

    class Log(MemoryDecisionLog):
        def begin(self, key):
            noted.append(key)
            return super().begin(key)

    clerk = Agent([refund], ScriptedProvider([REFUND, "Inside."]), AgentConfig(name="clerk"))
    config = AgentConfig(pause_for_approval=True, decision_log=Log())
    outer = Agent([clerk.as_tool()], ScriptedProvider([ASK, "Done."]), config)
    outer.run(paused=outer.run("go").paused, decisions={"c1/c1": Approve()})
    assert (len(noted), ran) == (1, [17])


def test_unknown_inner_id_names_the_known_ones(refund):
    """The ids are those of `open_calls`."""
    outer, _, _ = pair(refund, [REFUND], [ASK])
    with pytest.raises(
        DecisionError, match=r"no call 'c1' waits for a decision; known: \['c1/c1'\]"
    ):
        outer.run(paused=outer.run("go").paused, decisions={"c1": Approve()})


def test_inner_model_that_fails_after_the_effect_tells_the_outer_one(refund, ran):
    """The outer model reads what was done inside."""
    outer, _, outer_model = pair(refund, [REFUND, ProviderError("away")], [ASK, "It was refunded."])
    result = outer.run(paused=outer.run("go").paused, decisions={"c1/c1": Approve()})
    assert (result.content, ran) == ("It was refunded.", [17])
    assert "refund done: Order 17 refunded." in outer_model.requests[1].messages[-1].content


def test_agent_that_the_code_of_a_tool_runs_does_not_pause(refund, ran):
    """The code of that tool could not go on, so the call is refused as without pausing."""
    inner = Agent(
        [refund], ScriptedProvider([REFUND, "I may not."]), AgentConfig(pause_for_approval=True)
    )

    @tool
    def clerk(request: str) -> str:
        """Ask the clerk."""
        return inner.run(request).content

    model = ScriptedProvider([ASK, "No."])
    result = Agent([clerk], model, AgentConfig(pause_for_approval=True)).run("go")
    assert (result.content, result.open_calls, ran) == ("No.", (), [])
    assert model.requests[1].messages[-1].content == "I may not."


def test_inner_run_without_an_approval_is_a_plain_tool():
    """Its answer is the result of the call."""
    model = ScriptedProvider([ASK, "Hi."])
    clerk = Agent([], ScriptedProvider(["Hello from inside."]), AgentConfig(name="clerk"))
    assert Agent([clerk.as_tool(description="A clerk")], model).run("go").content == "Hi."
    result = next(message for message in model.requests[1].messages if message.role is Role.TOOL)
    assert result.content == "Hello from inside."


def channel_bot(refund, outer_lines, policy=None, **options):
    """Return a channel agent whose model asks a clerk, and that model."""
    clerk = Agent(
        [refund],
        ScriptedProvider([REFUND, "unused"]),
        AgentConfig(name="clerk", tool_policy=policy),
    )
    model = ScriptedProvider(outer_lines)
    return (
        ChannelAgent(
            Agent([clerk.as_tool()], model),
            InMemoryPendingStore(),
            behavior=ChannelBehavior(**options),
        ),
        clerk,
        model,
    )


def test_inner_call_on_a_channel_asks_its_person(refund, ran):
    """The question shows the inner call, its yes runs it, and the outer model reads the outcome."""
    bot, _, model = channel_bot(refund, [ASK, "What did I do? I refunded it."])
    assert "Refund order 17" in bot.ask_channel("ana", "please refund 17").content
    assert ran == []
    bot.ask_channel("ana", "yes")
    assert ran == [17]
    bot.ask_channel("ana", "what did you do?")
    (result,) = (message for message in model.requests[1].messages if message.role is Role.TOOL)
    assert json.loads(result.content)["result"] == "Order 17 refunded."


def test_policy_of_the_inner_agent_decides_about_its_tools_at_the_yes(refund, ran):
    """A policy that denies the tool by then stops it; that of the outer agent does not know the tool."""
    policy = ToolPolicy(allow=["*"])
    bot, *_ = channel_bot(refund, [ASK], policy)
    bot.ask_channel("ana", "please refund 17")
    denying = Agent(
        [refund], ScriptedProvider([]), AgentConfig(tool_policy=ToolPolicy(deny=["refund"]))
    )
    restarted = ChannelAgent(Agent([denying.as_tool("clerk")], ScriptedProvider([])), bot.store)
    restarted.ask_channel("ana", "yes")
    assert ran == []


def test_inner_tool_says_what_follows_its_outcome(refund, ran):
    """It and the policy of its own agent say so, as for the tools of the outer agent."""
    says = replace(refund, after="say", other_message="keep")
    bot, *_ = channel_bot(says, [ASK, "never"], after="continue")
    bot.ask_channel("ana", "please refund 17")
    action = bot.store.get("ana")
    assert (action.after, action.other_message) == ("say", "keep")
    bot, *_ = channel_bot(says, [ASK], ToolPolicy(allow=["*"], after={"refund": "continue"}))
    bot.ask_channel("ana", "please refund 17")
    assert bot.store.get("ana").after == "continue"


def test_yes_never_runs_the_tool_of_another_agent(ran):
    """Two clerks refund from accounts of their own, and their tools look the same to a person."""

    def clerk_of(account):
        @tool(requires_approval=True, preview="Refund order {order}")
        def refund(order: int) -> str:
            """Refund an order."""
            ran.append((account, order))
            return "ok"

        return Agent([refund], ScriptedProvider([REFUND, "No refund."]), AgentConfig(name=account))

    ask = ToolCall("us", {"request": "refund 17"}, "c1")
    outer = Agent(
        [clerk_of("eu").as_tool(), clerk_of("us").as_tool()], ScriptedProvider([ask, "I cannot."])
    )
    bot = ChannelAgent(outer, InMemoryPendingStore())
    assert bot.ask_channel("ana", "refund 17 in the US").content == "I cannot."
    bot.ask_channel("ana", "yes")
    assert ran == []


def test_decision_that_comes_after_the_answer_of_the_inner_agent_is_told(refund, ran):
    """It changes nothing, and its program reads that the call was decided before."""
    outer, _, _ = pair(refund, [REFUND, "Refunded."], [ASK, "Done.", "Too late."])
    memory = ConversationMemory()
    paused = outer.run("refund 17", memory=memory).paused
    (call,) = paused.open_calls
    outer.run(paused=paused, decisions={call.id: Approve()}, memory=memory)
    late = outer.run(paused=paused, decisions={call.id: Deny()}, memory=memory)
    assert [(each.id, each.outcome) for each in late.decided] == [(call.id, "unknown")]
    assert ran == [17]
