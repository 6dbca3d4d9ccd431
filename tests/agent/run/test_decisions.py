"""Decisions: a run of the library waits at a call, and goes on with what a person decided."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sayso import Approve, DecisionError, Deny, Edit, RunSnapshot, tool
from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    AgentResult,
    BelievingModel,
    CancellationToken,
    ConversationMemory,
    GuardrailAction,
    GuardrailsPipeline,
    InMemorySessionStore,
    LengthGuardrail,
    Message,
    NotFound,
    PatternGuardrail,
    ProviderError,
    Role,
    RoleBasedSelector,
    ScriptedProvider,
    SQLiteDecisionLog,
    ToolCall,
    ToolMetadata,
    ToolPolicy,
    UsageStats,
)
from sayso.agent.messages import AnswerDetails
from sayso.pending import ToolContext, idempotency_key

REFUND = ToolCall("refund", {"order": 17}, "c1")
MAIL = ToolCall("mail", {"to": "ana"}, "c2")


@pytest.fixture
def ran():
    """Return what has run, in order."""
    return []


@pytest.fixture
def refund(ran):
    """Return a tool that needs an approval."""

    @tool(requires_approval=True, preview="Refund order {order}: {euros} EUR", editable=["euros"])
    def refund(order: int, euros: int = 5) -> str:
        """Refund an order."""
        ran.append(("refund", order, euros))
        return f"Order {order} refunded."

    return refund


@pytest.fixture
def mail(ran):
    """Return a tool that needs no approval."""

    @tool
    def mail(to: str) -> str:
        """Mail a person."""
        ran.append(("mail", to))
        return "sent"

    return mail


def agent_of(tools, lines, **settings):
    """Return an agent that pauses, and its model, which refuses a history that a vendor would refuse."""
    model = lines if isinstance(lines, BelievingModel) else ScriptedProvider(lines)
    memory = settings.pop("memory", None)
    config = AgentConfig(pause_for_approval=True, max_retries=0, **settings)
    return Agent(tools, model, config, memory), model


def results(request):
    """Return what a model read of its calls."""
    return [message.content for message in request.messages if message.role is Role.TOOL]


def as_stored(snapshot):
    """Return a paused run as another process reads it from a database."""
    return RunSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict())))


def test_run_ends_pending_with_its_open_call(refund, ran):
    """Nothing has run, and the result has what a person must see to decide."""
    agent, model = agent_of([refund], [REFUND])
    result = agent.run("refund order 17")
    (call,) = result.open_calls
    assert (result.stop_reason, result.content) == ("pending", "Refund order 17: 5 EUR")
    assert (call.id, call.tool_name, call.arguments) == ("c1", "refund", {"order": 17, "euros": 5})
    assert (call.preview, call.reason) == ("Refund order 17: 5 EUR", "'refund' requires approval")
    assert len(call.args_digest) == 64
    assert (ran, len(model.requests)) == ([], 1)
    assert [message.role.value for message in result.messages] == ["user", "assistant", "tool"]


def test_without_opting_in_the_call_is_refused_as_before(refund, ran):
    """The gate of `confirm_action` stays: without it nothing runs, and the model answers."""
    result = Agent([refund], ScriptedProvider([REFUND, "I may not."])).run("refund order 17")
    assert (result.content, result.stop_reason, result.open_calls, result.paused) == (
        "I may not.",
        "answer",
        (),
        None,
    )
    assert ran == []


def test_approved_call_runs_and_the_model_goes_on(refund, mail, ran):
    """The decision becomes the result of the call, in another process, and the run stays one run."""
    agent, _ = agent_of([refund, mail], [REFUND])
    paused = agent.run("refund order 17, then mail ana").paused
    other, model = agent_of([refund, mail], [MAIL, "Refunded and mailed."])
    result = other.run(paused=as_stored(paused), decisions={"c1": Approve(decided_by="ana")})
    assert (result.content, result.stop_reason, ran) == (
        "Refunded and mailed.",
        "answer",
        [("refund", 17, 5), ("mail", "ana")],
    )
    entry = json.loads(results(model.requests[0])[0])
    assert (entry["outcome"], entry["result"], entry["decided_by"]) == (
        "done",
        "Order 17 refunded.",
        "ana",
    )
    assert [message.role.value for message in result.messages] == [
        *("user", "assistant", "tool"),
        *("assistant", "tool", "assistant"),
    ]
    assert (result.trace.run_id, result.iterations, result.usage.total_tokens) == (
        paused.run_id,
        3,
        6,
    )
    (decided,) = result.decided
    assert (decided.outcome, decided.text, result.paused) == ("done", "Order 17 refunded.", None)


def test_denied_call_does_not_run_and_the_model_reads_why(refund, ran):
    """The person's reason stands under `words`, never as a result."""
    agent, model = agent_of([refund], [REFUND, "Then not."])
    paused = agent.run("refund order 17").paused
    result = agent.run(paused=paused, decisions={"c1": Deny("wrong order", decided_by="ana")})
    entry = json.loads(results(model.requests[1])[0])
    assert (entry["outcome"], entry["words"], entry["decided_by"]) == (
        "denied",
        "wrong order",
        "ana",
    )
    assert "result" not in entry
    assert (result.content, ran) == ("Then not.", [])


def test_denied_call_is_not_asked_again_until_the_user_asks(refund):
    """A stubborn model reads that it was denied just now; after a new message of the user it may ask again."""
    again, third = replace(REFUND, id="c2"), replace(REFUND, id="c3")
    agent, model = agent_of([refund], [REFUND, again, "Well.", third], memory=ConversationMemory())
    result = agent.run(paused=agent.run("refund order 17").paused, decisions={"c1": Deny()})
    assert (result.content, result.open_calls) == ("Well.", ())
    assert "just said no to the same call" in results(model.requests[2])[1]
    assert [call.id for call in agent.run("do refund order 17").open_calls] == ["c3"]


def test_model_without_tool_calls_of_its_own_goes_on_too(refund, ran):
    """Its calls and their results are text."""

    class TextModel:
        supports_tools = False

        def __init__(self):
            self.prompts = []

        async def acomplete(self, **request):
            self.prompts.append("\n".join(message.content for message in request["messages"]))
            call = 'TOOL_CALL: {"tool_name": "refund", "parameters": {"order": 17}}'
            text = "Refunded." if "Order 17 refunded." in self.prompts[-1] else call
            return Message(Role.ASSISTANT, text), UsageStats(1, 1, 2)

    model = TextModel()
    agent = Agent([refund], model, AgentConfig(pause_for_approval=True))
    (call,) = (result := agent.run("refund order 17")).open_calls
    assert (
        agent.run(paused=as_stored(result.paused), decisions={call.id: Approve()}).content
        == "Refunded."
    )
    assert ran == [("refund", 17, 5)]


def test_call_without_a_decision_stays_open_and_is_no_yes(refund, ran):
    """Of two calls one is approved: only that one runs, no model is asked, and the other still waits."""
    second = ToolCall("refund", {"order": 18}, "c2")
    agent, model = agent_of([refund], [[REFUND, second], "Both done."])
    result = agent.run("refund 17 and 18")
    result = agent.run(paused=as_stored(result.paused), decisions={"c2": Approve()})
    assert (result.stop_reason, [call.id for call in result.open_calls]) == ("pending", ["c1"])
    assert (ran, len(model.requests)) == ([("refund", 18, 5)], 1)
    result = agent.run(paused=as_stored(result.paused), decisions={"c1": Approve()})
    assert (result.content, ran) == ("Both done.", [("refund", 18, 5), ("refund", 17, 5)])
    first, last = map(json.loads, results(model.requests[1]))
    assert (first["result"], last["result"]) == ("Order 17 refunded.", "Order 18 refunded.")


def test_no_decisions_at_all_run_nothing(refund, ran):
    """The run stays paused, with the same open call."""
    agent, model = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    again = agent.run(paused=paused)
    assert (again.stop_reason, again.open_calls, ran, len(model.requests)) == (
        "pending",
        paused.open_calls,
        [],
        1,
    )


def test_rest_of_the_batch_runs_at_once_and_only_once(refund, mail, ran):
    """The call beside the open one has its result before the pause; the results stand in the order of the calls."""
    agent, model = agent_of([refund, mail], [[REFUND, MAIL], "Done."])
    paused = agent.run("refund order 17 and mail ana").paused
    assert ran == [("mail", "ana")]
    agent.run(paused=as_stored(paused), decisions={"c1": Approve()})
    assert ran == [("mail", "ana"), ("refund", 17, 5)]
    first, second = results(model.requests[1])
    assert (json.loads(first)["outcome"], second) == ("done", "sent")


@pytest.mark.parametrize(
    ("decisions", "words"),
    [
        ({"c9": Approve()}, "no call 'c9' waits for a decision; known: ['c1']"),
        (
            {"c1": True},
            "the decision about 'c1' is True: give Approve(), Deny() or Edit({...}); known calls: ['c1']",
        ),
        ({"c1": Approve(args_digest="0" * 64)}, "is for arguments with the digest '000"),
        ({"c1": Edit({})}, "changes {}: give an object"),
        ({"c1": Deny(5)}, "the decision about 'c1' has message=5: give a text"),
        (["c1"], "give an object with a decision for each id of ['c1']"),
        ({"c1": Edit({"euros": "many"})}, "the edit of 'c1' (refund) cannot be made:"),
        (
            {"c1": Edit({"order": 18})},
            "['order'] cannot be changed; editable of 'refund': ['euros']",
        ),
    ],
)
def test_wrong_decision_is_an_error_that_changes_nothing(refund, ran, decisions, words):
    """It names the value and the known ids, and the right decision is possible afterwards."""
    memory = ConversationMemory()
    agent, model = agent_of([refund], [REFUND, "Done."], memory=memory)
    paused = agent.run("refund order 17").paused
    before = memory.to_dict()
    with pytest.raises(DecisionError) as raised:
        agent.run(paused=paused, decisions=decisions)
    assert words in str(raised.value)
    assert (ran, memory.to_dict(), len(model.requests)) == ([], before, 1)
    assert agent.run(paused=paused, decisions={"c1": Approve()}).content == "Done."


def test_wrong_decision_beside_a_right_one_runs_neither(refund, ran):
    """An edit that does not fit is found before the approved call runs."""
    second = ToolCall("refund", {"order": 18}, "c2")
    agent, _ = agent_of([refund], [[REFUND, second]])
    paused = agent.run("refund 17 and 18").paused
    with pytest.raises(DecisionError):
        agent.run(paused=paused, decisions={"c1": Approve(), "c2": Edit({"euros": "x"})})
    assert ran == []


def test_decisions_without_the_paused_run_are_an_error(refund):
    """So is a paused run that was not read from its JSON."""
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    with pytest.raises(DecisionError, match=r"give paused=result\.paused"):
        agent.run("go", decisions={"c1": Approve()})
    with pytest.raises(TypeError, match=r"RunSnapshot\.from_dict"):
        agent.run(paused=paused.to_dict(), decisions={"c1": Approve()})


def test_arguments_that_were_changed_where_they_were_stored_do_not_run(refund, ran):
    """Neither with a stale digest, nor with one that was changed too, if the approval names what the person saw."""
    agent, _ = agent_of([refund], [REFUND])
    result = agent.run("refund order 17")
    (seen,) = result.open_calls
    data = result.paused.to_dict()
    data["calls"][0]["arguments"]["euros"] = 5000
    with pytest.raises(ValueError, match="not those that were proposed"):
        RunSnapshot.from_dict(data)
    changed = replace(seen, arguments={"order": 17, "euros": 5000})
    with pytest.raises(DecisionError, match="not those that were proposed"):
        agent.run(paused=replace(result.paused, calls=(changed,)), decisions={"c1": Approve()})
    forged = replace(changed, args_digest="")
    with pytest.raises(DecisionError, match="show the person the call that waits now"):
        agent.run(
            paused=replace(result.paused, calls=(forged,)),
            decisions={"c1": Approve(seen.args_digest)},
        )
    assert ran == []


def test_sealed_run_that_was_changed_where_it_was_stored_is_not_read(refund):
    """Nor one without a seal, or with that of another key. A key that was rotated out of use may still verify."""
    agent, _ = agent_of([refund], [REFUND, "Done."])
    paused = agent.run("refund order 17").paused
    data = json.loads(json.dumps(paused.to_dict(["new", "old"])))
    forged = json.loads(json.dumps(data))
    forged["calls"][0] |= {"arguments": {"order": 17, "euros": 5000}, "args_digest": ""}
    for stored, keys in (
        (forged, ["new"]),
        (data, ["old"]),
        (paused.to_dict(), ["new"]),
        ({**data, "mac": 1}, ["new"]),
    ):
        with pytest.raises(ValueError, match="was not sealed"):
            RunSnapshot.from_dict(stored, keys)
    read = RunSnapshot.from_dict(data, ["newest", "new"])
    assert agent.run(paused=read, decisions={"c1": Approve()}).content == "Done."


def test_tool_of_a_changed_name_does_not_run(refund, mail, ran):
    """The definition of the tool is compared with the one that was shown."""
    agent, model = agent_of([refund, mail], [REFUND, "Not done."])
    result = agent.run("refund order 17")
    forged = replace(
        result.open_calls[0], tool_name="mail", arguments={"to": "eve"}, args_digest=""
    )
    agent.run(paused=replace(result.paused, calls=(forged,)), decisions={"c1": Approve()})
    assert (json.loads(results(model.requests[1])[0])["outcome"], ran) == ("failed", [])


def test_tool_with_another_meaning_does_not_run_by_an_old_yes(refund, ran):
    """A release changed its description; the preview reads the same."""
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    other, _ = agent_of([replace(refund, description="Refund twice.")], ["It has changed."])
    result = other.run(paused=as_stored(paused), decisions={"c1": Approve()})
    assert (result.decided[0].outcome, ran) == ("failed", [])


def test_edit_is_a_new_proposal_with_its_own_yes(refund, ran):
    """No model is asked. An approval of the earlier call runs nothing; that of the new one runs the new arguments."""
    agent, model = agent_of([refund], [REFUND, "Refunded 2 EUR."])
    paused = agent.run("refund order 17").paused
    result = agent.run(paused=paused, decisions={"c1": Edit({"euros": 2}, decided_by="ana")})
    (call,) = result.open_calls
    assert (call.id, call.changes_of, call.preview) == ("c1~2", "c1", "Refund order 17: 2 EUR")
    assert (result.stop_reason, ran, len(model.requests)) == ("pending", [], 1)
    with pytest.raises(DecisionError, match="no call 'c1' waits"):
        agent.run(paused=as_stored(result.paused), decisions={"c1": Approve()})
    result = agent.run(
        paused=as_stored(result.paused), decisions={"c1~2": Approve(call.args_digest)}
    )
    assert (ran, result.content) == ([("refund", 17, 2)], "Refunded 2 EUR.")
    assert json.loads(results(model.requests[1])[0])["arguments"] == {"order": 17, "euros": 2}


def test_edit_is_judged_by_the_policy_again(refund, ran):
    """`deny_when` refuses the changed arguments, and the call stays open."""
    policy = ToolPolicy(
        allow=["*"],
        deny_when=[{"tool": "refund", "arg": "euros", "pattern": ">100", "matches": "number"}],
    )
    agent, _ = agent_of([refund], [REFUND, "Done."], tool_policy=policy)
    paused = agent.run("refund order 17").paused
    with pytest.raises(DecisionError, match="is denied"):
        agent.run(paused=paused, decisions={"c1": Edit({"euros": 500})})
    assert ran == []


def test_call_that_the_policy_denies_by_now_does_not_run(refund, ran):
    """The model reads why."""
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    strict, model = agent_of([refund], ["Not allowed."], tool_policy=ToolPolicy(deny=["refund"]))
    result = strict.run(paused=paused, decisions={"c1": Approve()})
    assert (result.decided[0].outcome, ran) == ("failed", [])
    assert "denied by now" in json.loads(results(model.requests[0])[0])["error"]


def test_yes_to_a_call_that_was_refused_before_does_not_run_later(refund, ran):
    """The model was told that it failed, also if the policy allows it again."""
    agent, _ = agent_of([refund], [REFUND, "Done."])
    paused = agent.run("refund order 17").paused
    strict, _ = agent_of([refund], ["Not allowed."], tool_policy=ToolPolicy(deny=["refund"]))
    strict.run(paused=paused, decisions={"c1": Approve()})
    assert agent.run(paused=paused, decisions={"c1": Approve()}).decided[0].outcome == "failed"
    assert ran == []


def test_call_of_a_tool_that_is_hidden_by_now_does_not_run(refund, ran):
    """A selector that keeps the tool from its user counts at the yes, too."""
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    selector = RoleBasedSelector("guest", allowed={"admin": ["refund"]})
    hiding = Agent(
        [refund],
        ScriptedProvider(["Not there."]),
        AgentConfig(pause_for_approval=True),
        selector=selector,
    )
    assert hiding.run(paused=paused, decisions={"c1": Approve()}).decided[0].outcome == "failed"
    assert ran == []


def test_yes_is_for_the_preview_that_was_shown(ran):
    """A preview that reads otherwise at the yes runs nothing, as on a channel."""
    price = {"now": 5}

    @tool(requires_approval=True, preview=lambda order: f"Refund {order}: {price['now']} EUR")
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)
        return "ok"

    agent, _ = agent_of([refund], [REFUND, "It has changed."])
    paused = agent.run("refund order 17").paused
    price["now"] = 6
    result = agent.run(paused=paused, decisions={"c1": Approve()})
    assert (result.decided[0].outcome, ran) == ("failed", [])
    assert "changed since" in result.decided[0].text


def test_effect_is_told_when_the_model_fails_afterwards(refund, ran):
    """The outcome is in the result, and the model is asked again without running the call again."""
    agent, model = agent_of([refund], [REFUND, ProviderError("away"), "Refunded."])
    paused = agent.run("refund order 17").paused
    result = agent.run(paused=paused, decisions={"c1": Approve()})
    assert (result.stop_reason, result.decided[0].outcome) == ("provider_error", "done")
    result = agent.run(paused=as_stored(result.paused))
    assert (result.content, ran) == ("Refunded.", [("refund", 17, 5)])
    assert json.loads(results(model.requests[2])[0])["outcome"] == "done"


def test_memory_has_each_call_once_when_the_model_is_asked_again(refund):
    """It has all of the run already, and no call waits any more."""
    memory = ConversationMemory()
    agent, model = agent_of([refund], [REFUND, ProviderError("away"), "Refunded."])
    paused = agent.run("refund order 17", memory=memory).paused
    paused = agent.run(paused=paused, decisions={"c1": Approve()}, memory=memory).paused
    assert agent.run(paused=as_stored(paused), memory=memory).content == "Refunded."
    assert len(results(model.requests[-1])) == 1
    assert [call.id for message in memory.get_history() for call in message.tool_calls] == ["c1"]


def test_same_decisions_given_twice_run_the_call_once(refund, ran):
    """The paused run of before gets the outcome of the first time."""
    agent, _ = agent_of([refund], [REFUND, "Done.", "Done already."])
    stored = agent.run("refund order 17").paused.to_dict()
    first = agent.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": Approve()})
    second = agent.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": Approve()})
    assert (ran, second.content) == ([("refund", 17, 5)], "Done already.")
    assert [each.outcome for each in (*first.decided, *second.decided)] == ["done", "done"]


def test_another_process_learns_of_a_started_call_from_the_file(refund, ran, tmp_path):
    """A process died during the call. The model reads "unknown", and the call does not run again."""
    stored = SQLiteDecisionLog(tmp_path / "log.db")
    agent, _ = agent_of([refund], [REFUND, "Done."], decision_log=stored)
    paused = agent.run("refund order 17").paused
    agent.run(paused=paused, decisions={"c1": Approve()})
    other, model = agent_of(
        [refund], ["Done already."], decision_log=SQLiteDecisionLog(tmp_path / "log.db")
    )
    assert other.run(paused=paused, decisions={"c1": Approve()}).decided[0].outcome == "done"
    assert ran == [("refund", 17, 5)]
    assert json.loads(results(model.requests[0])[0])["result"] == "Order 17 refunded."


def test_call_that_was_started_and_never_ended_is_unknown(refund, ran, tmp_path):
    """As after a kill: the model reads that it may have happened, and the call does not run."""
    stored = SQLiteDecisionLog(tmp_path / "log.db")
    agent, model = agent_of([refund], [REFUND, "I cannot tell."], decision_log=stored)
    paused = agent.run("refund order 17").paused
    stored.end = lambda key, outcome: None
    agent.run(paused=paused, decisions={"c1": Approve()})
    ran.clear()
    other, model = agent_of(
        [refund], ["I cannot tell."], decision_log=SQLiteDecisionLog(tmp_path / "log.db")
    )
    assert other.run(paused=paused, decisions={"c1": Approve()}).decided[0].outcome == "unknown"
    assert (ran, "may have taken effect" in results(model.requests[0])[0]) == ([], True)


def test_run_that_goes_on_may_ask_again(refund, ran):
    """A second approval in one run has a paused run of its own."""
    second = ToolCall("refund", {"order": 18}, "c2")
    agent, _ = agent_of([refund], [REFUND, second, "Both done."])
    result = agent.run("refund 17, then 18")
    for order in (17, 18):
        (call,) = result.open_calls
        assert call.arguments["order"] == order
        result = agent.run(paused=as_stored(result.paused), decisions={call.id: Approve()})
    assert (result.content, result.iterations, ran) == (
        "Both done.",
        3,
        [("refund", 17, 5), ("refund", 18, 5)],
    )


def test_model_that_believes_results_does_three_steps_with_three_approvals(refund, mail, ran):
    """No side effect of an earlier step is repeated, and no other message is needed."""
    steps = [MAIL, REFUND, ToolCall("refund", {"order": 18}), ToolCall("mail", {"to": "bob"})]
    agent, _ = agent_of([refund, mail], BelievingModel({"do it": steps}))
    result = agent.run("do it")
    approvals = 0
    while result.open_calls:
        approvals += 1
        decisions = {call.id: Approve(call.args_digest) for call in result.open_calls}
        result = agent.run(paused=as_stored(result.paused), decisions=decisions)
    assert (approvals, ran) == (
        2,
        [("mail", "ana"), ("refund", 17, 5), ("refund", 18, 5), ("mail", "bob")],
    )
    assert result.stop_reason == "answer"


def test_iterations_and_budget_count_over_the_pause(refund, ran):
    """The effect takes place all the same; only the model is not asked any more."""
    agent, model = agent_of([refund], [REFUND], max_iterations=1)
    paused = agent.run("refund order 17").paused
    result = agent.run(paused=paused, decisions={"c1": Approve()})
    assert (result.stop_reason, result.decided[0].outcome, len(model.requests)) == (
        "max_iterations",
        "done",
        1,
    )
    agent, model = agent_of([refund], [REFUND], max_total_tokens=2)
    paused = agent.run("refund order 17").paused
    result = agent.run(paused=paused, decisions={"c1": Approve()})
    assert (result.stop_reason, result.decided[0].outcome, len(model.requests)) == (
        "budget",
        "done",
        1,
    )


def test_new_words_may_come_with_the_decision(refund):
    """They stand behind the result of the call."""
    agent, model = agent_of([refund], [REFUND, "Ok."])
    paused = agent.run("refund order 17").paused
    agent.run("and tell me the balance", paused=paused, decisions={"c1": Approve()})
    assert [message.role.value for message in model.requests[1].messages] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]


def test_new_words_are_answered_while_a_call_waits(refund, ran):
    """The model reads that the call waits. It stays open for its own decision, also beside another open call."""
    agent, model = agent_of([refund], [REFUND, "Four.", "Refunded."])
    paused = agent.run("refund order 17").paused
    result = agent.run("what is 2 + 2?", paused=paused)
    assert (result.content, result.stop_reason, len(result.open_calls)) == ("Four.", "answer", 1)
    assert json.loads(results(model.requests[1])[0])["outcome"] == "waiting"
    result = agent.run(paused=as_stored(result.paused), decisions={"c1": Approve()})
    assert (result.content, ran) == ("Refunded.", [("refund", 17, 5)])
    assert model.requests[2].messages[-1].role is Role.USER


def test_memory_keeps_the_open_call_and_takes_a_plain_message_on_top(refund, ran):
    """The history is valid at each step, and the decision is written where the call stands."""
    memory = ConversationMemory()
    agent, model = agent_of([refund], [REFUND, "Four.", "Refunded."], memory=memory)
    paused = agent.run("refund order 17").paused
    assert agent.run("what is 2 + 2?").content == "Four."
    assert json.loads(results(model.requests[1])[0])["outcome"] == "waiting"
    result = agent.run(paused=as_stored(paused), decisions={"c1": Approve()})
    assert (result.content, ran) == ("Refunded.", [("refund", 17, 5)])
    roles = [message.role.value for message in memory.get_history()]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "user", "assistant"]
    assert json.loads(memory.get_history()[2].content)["outcome"] == "done"


def test_same_call_is_not_proposed_twice_while_it_waits(refund):
    """Two approvals of it would have its effect twice."""
    agent, model = agent_of(
        [refund], [REFUND, replace(REFUND, id="c2"), "It waits."], memory=ConversationMemory()
    )
    agent.run("refund order 17")
    result = agent.run("refund order 17!")
    assert (result.content, result.open_calls) == ("It waits.", ())
    assert "waits for a decision already" in results(model.requests[2])[1]


def test_call_that_a_model_makes_twice_in_one_answer_waits_once(refund):
    """The second is answered at once."""
    agent, _ = agent_of([refund], [[REFUND, replace(REFUND, id="c2")]])
    result = agent.run("refund order 17")
    assert [call.id for call in result.open_calls] == ["c1"]
    assert "waits for a decision already" in result.messages[3].content


def test_run_goes_on_with_another_memory(refund, ran):
    """What the memory does not have is taken from the paused run, and added at the end."""
    agent, _ = agent_of([refund], [REFUND, "Refunded."], memory=ConversationMemory())
    paused = agent.run("refund order 17").paused
    other = ConversationMemory()
    other.add_many([Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello")])
    result = agent.run(
        paused=as_stored(paused), decisions={"c1": Approve()}, memory=other, scope="bob"
    )
    assert (result.content, ran) == ("Refunded.", [("refund", 17, 5)])
    roles = [message.role.value for message in other.get_history()]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


def test_memory_that_knows_the_outcome_lets_nothing_run_again(refund, ran, tmp_path):
    """A conversation that was stored after the call is as good as a file of started calls."""
    memory = ConversationMemory()
    of_one, of_other = SQLiteDecisionLog(tmp_path / "1"), SQLiteDecisionLog(tmp_path / "2")
    agent, _ = agent_of([refund], [REFUND, "Refunded."], memory=memory, decision_log=of_one)
    stored = agent.run("refund order 17").paused.to_dict()
    agent.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": Approve()})
    kept = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    other, _ = agent_of([refund], ["Refunded already."], memory=kept, decision_log=of_other)
    result = other.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": Approve()})
    assert (result.content, result.decided[0].outcome, ran) == (
        "Refunded already.",
        "done",
        [("refund", 17, 5)],
    )


def test_reasoning_of_the_model_is_kept_until_the_run_is_over(refund):
    """A thinking model gets it back with the result of its call."""
    answer = Message(
        Role.ASSISTANT, tool_calls=(REFUND,), details=AnswerDetails(reasoning={"thought": "hm"})
    )
    for memory in (None, ConversationMemory()):
        agent, model = agent_of([refund], [answer, "Refunded."], memory=memory)
        paused = agent.run("refund order 17").paused
        result = agent.run(paused=as_stored(paused), decisions={"c1": Approve()})
        assert model.requests[1].messages[1].details.reasoning == {"thought": "hm"}
        assert all(message.details is None for message in result.messages)


def test_approved_tool_learns_by_whose_yes_it_runs(ran):
    """Its idempotency key is the same however often the decision is handed in."""

    @tool(requires_approval=True)
    def refund(order: int, context: ToolContext) -> str:
        """Refund an order."""
        ran.append((context.confirmed.by, context.person.id, len(idempotency_key())))
        return "ok"

    agent, _ = agent_of([refund], [REFUND, "Done."])
    agent.run(paused=agent.run("go").paused, decisions={"c1": Approve(decided_by="ana")})
    assert ran == [("ana", "ana", 32)]


def test_failed_and_empty_effects_are_told_as_failed(ran):
    """A tool that found nothing to do has not done it."""

    @tool(requires_approval=True, preview="Refund {order}")
    def refund(order: int) -> NotFound:
        """Refund an order."""
        if order == 18:
            raise OSError("bank away")
        return NotFound("order", str(order))

    agent, _ = agent_of([refund], [[REFUND, ToolCall("refund", {"order": 18}, "c2")], "Neither."])
    result = agent.run(paused=agent.run("go").paused, decisions={"c1": Approve(), "c2": Approve()})
    assert [each.outcome for each in result.decided] == ["failed", "failed"]


def test_terminal_tool_ends_the_run_after_its_yes(ran):
    """Its result is the reply, and no model is asked."""

    @tool(requires_approval=True, terminal=True)
    def refund(order: int) -> str:
        """Refund an order."""
        return "Refunded, bye."

    agent, model = agent_of([refund], [REFUND])
    result = agent.run(paused=agent.run("go").paused, decisions={"c1": Approve()})
    assert (result.content, result.stop_reason, len(model.requests)) == (
        "Refunded, bye.",
        "terminal",
        1,
    )


def test_confirm_action_and_pausing_exclude_each_other():
    """Two ways to decide would leave open which one counts."""
    with pytest.raises(ValueError, match="give one of them"):
        AgentConfig(pause_for_approval=True, confirm_action=lambda *asked: True)


def test_snapshot_of_another_version_is_refused(refund):
    """It is never half read."""
    agent, _ = agent_of([refund], [REFUND])
    data = agent.run("go").paused.to_dict()
    with pytest.raises(ValueError, match="version 2"):
        RunSnapshot.from_dict({**data, "version": 2})


def test_two_threads_with_the_same_decision_run_the_call_once(ran):
    """The later one is told that the outcome is not known, or what it was; it does not run the call."""
    began, may_end = threading.Event(), threading.Event()

    @tool(requires_approval=True)
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)
        began.set()
        may_end.wait(30)
        return "ok"

    agent, _ = agent_of([refund], [REFUND, "One.", "Two."])
    paused = agent.run("go").paused
    with ThreadPoolExecutor() as pool:
        first = pool.submit(agent.run, paused=paused, decisions={"c1": Approve()})
        began.wait(30)
        second = agent.run(paused=paused, decisions={"c1": Approve()})
        may_end.set()
        assert (first.result().decided[0].outcome, second.decided[0].outcome) == ("done", "unknown")
    assert ran == [17]


def test_run_that_is_cancelled_during_an_approved_call_leaves_it_unknown(ran):
    """The call that had not begun still waits, and the run can go on."""
    token = CancellationToken()

    @tool(requires_approval=True)
    async def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)
        token.cancel("stop")
        await asyncio.Event().wait()

    agent, model = agent_of(
        [refund], [[REFUND, ToolCall("refund", {"order": 18}, "c2")], "I cannot tell."]
    )
    paused = agent.run("go").paused
    decisions = {"c1": Approve(), "c2": Approve()}
    result = agent.run(paused=paused, decisions=decisions, cancellation_token=token)
    assert (result.stop_reason, ran, result.decided[0].outcome) == ("cancelled", [17], "unknown")
    assert [call.id for call in result.open_calls] == ["c2"]
    result = agent.run(paused=as_stored(result.paused), decisions={"c2": Deny()})
    assert (result.content, ran) == ("I cannot tell.", [17])
    assert json.loads(results(model.requests[1])[0])["outcome"] == "unknown"


def test_cancelled_token_carries_out_no_decision(refund, ran):
    """All calls still wait."""
    token = CancellationToken()
    token.cancel()
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("go").paused
    result = agent.run(paused=paused, decisions={"c1": Approve()}, cancellation_token=token)
    assert (result.open_calls, ran) == (paused.open_calls, [])


def test_session_has_the_outcome_before_the_model_is_asked(refund, ran):
    """A program that fails then, or is killed, does not lose it."""
    store = InMemorySessionStore()
    settings = {"session_store": store, "session_id": "ana"}
    agent, _ = agent_of([refund], [REFUND], **settings)
    paused = agent.run("refund order 17").paused

    def fail(text):
        raise OSError("gone")

    other, _ = agent_of([refund], ["Refunded."], **settings)
    with pytest.raises(OSError, match="gone"):
        other.run(paused=as_stored(paused), decisions={"c1": Approve()}, stream_handler=fail)
    (result,) = (
        message for message in store.load("ana").get_history() if message.role is Role.TOOL
    )
    assert json.loads(result.content)["outcome"] == "done"
    third, _ = agent_of([refund], ["Refunded already."], **settings)
    assert (
        third.run(paused=as_stored(paused), decisions={"c1": Approve()}).content
        == "Refunded already."
    )
    assert ran == [("refund", 17, 5)]


def test_words_that_a_guardrail_blocks_do_not_stop_the_decision(refund, ran):
    """The effect was approved; only the words are withheld."""
    pipeline = GuardrailsPipeline(input=[LengthGuardrail(20)])
    agent, _ = agent_of([refund], [REFUND], guardrails=pipeline)
    paused = agent.run("refund order 17").paused
    result = agent.run("and " * 20, paused=paused, decisions={"c1": Approve()})
    assert (result.stop_reason, result.decided[0].outcome, ran) == (
        "guardrail",
        "done",
        [("refund", 17, 5)],
    )


def test_all_doors_go_on(refund, ran):
    """`arun` and `ask` too, and `astream` with the text while it arrives."""

    async def go():
        agent, _ = agent_of([refund], [REFUND, "One."])
        paused = (await agent.aask("go")).paused
        first = await agent.arun(paused=paused, decisions={"c1": Approve()})
        agent, _ = agent_of([refund], [REFUND, "Two."])
        paused = agent.ask("go").paused
        pieces = [
            piece async for piece in agent.astream(paused=paused, decisions={"c1": Approve()})
        ]
        return first, pieces

    first, pieces = asyncio.run(go())
    assert (first.content, pieces[-1].content, isinstance(pieces[-1], AgentResult)) == (
        "One.",
        "Two.",
        True,
    )
    assert ran == [("refund", 17, 5), ("refund", 17, 5)]


def test_tool_that_says_where_its_effect_begins_is_noted_there(ran, tmp_path):
    """What fails before may run again; from the effect on, the call does not begin a second time."""
    stored, is_away = SQLiteDecisionLog(tmp_path / "log.db"), list[bool]()

    @tool(requires_approval=True, marks_effect=True)
    def refund(order: int, context: ToolContext) -> str:
        """Refund an order."""
        ran.append("prepare")
        if is_away.pop():
            raise OSError("bank away")
        with context.effect():
            ran.append("refund")
        return "refunded"

    agent, _ = agent_of([refund], [REFUND, "Away.", "Refunded.", "Already."], decision_log=stored)
    paused = agent.run("go").paused
    ends = []
    for _ in range(3):
        is_away[:] = [False] if ends else [True]
        ends.append(agent.run(paused=paused, decisions={"c1": Approve()}).decided[0])
    assert [(end.outcome, end.text) for end in ends[1:]] == [
        ("done", "refunded"),
        ("done", "refunded"),
    ]
    assert (ends[0].outcome, ran) == ("failed", ["prepare", "prepare", "refund", "prepare"])


@pytest.mark.parametrize("first", [Deny("no"), Edit({"euros": 2})])
def test_yes_from_an_old_page_runs_nothing_after_another_decision(refund, ran, first):
    """The first decision about a call counts, also for a paused run that was stored before it."""
    agent, _ = agent_of([refund], [REFUND, "Fine.", "Fine."])
    stored = agent.run("refund order 17").paused.to_dict()
    agent.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": first})
    late = agent.run(paused=RunSnapshot.from_dict(stored), decisions={"c1": Approve()})
    assert (ran, late.decided[0].outcome) == (
        [],
        "denied" if isinstance(first, Deny) else "replaced",
    )


def test_no_and_change_that_come_after_the_yes_tell_that_it_ran(refund, ran):
    """They cannot take it back, and do not hide it."""
    agent, _ = agent_of([refund], [REFUND, "Done.", "Too late.", "Too late."])
    paused = agent.run("refund order 17").paused
    agent.run(paused=paused, decisions={"c1": Approve()})
    for late in (Deny("wait"), Edit({"euros": 2})):
        result = agent.run(paused=paused, decisions={"c1": late})
        assert (result.content, result.decided[0].outcome) == ("Too late.", "done")
    assert ran == [("refund", 17, 5)]


def test_two_changes_of_one_call_run_once(refund, ran):
    """Both are asked about under one id, and the first yes counts; the second reads that other arguments ran."""
    agent, _ = agent_of([refund], [REFUND, "Two.", "Not three."])
    paused = agent.run("refund order 17").paused
    two, three = (
        agent.run(paused=paused, decisions={"c1": Edit({"euros": n})}).paused for n in (2, 3)
    )
    agent.run(paused=two, decisions={"c1~2": Approve()})
    late = agent.run(paused=three, decisions={"c1~2": Approve()})
    assert (ran, late.decided[0].outcome) == ([("refund", 17, 2)], "failed")
    assert "decided before with other arguments" in late.decided[0].text


def test_reconciler_tells_that_an_interrupted_call_was_done(ran, tmp_path):
    """It gets a record with the idempotency key of the call, and what it says becomes the outcome."""

    def was_refunded(record) -> str | None:
        return (
            "Refund R-17 booked."
            if (record.pending_action_id, record.args) == (ran[0], {"order": 17})
            else None
        )

    @tool(requires_approval=True, reconcile=was_refunded)
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(idempotency_key())
        return "ok"

    stored = SQLiteDecisionLog(tmp_path / "log.db")
    stored.end = lambda key, outcome: None  # as if the process died
    agent, _ = agent_of([refund], [REFUND, "Done."], decision_log=stored)
    paused = agent.run("go").paused
    agent.run(paused=paused, decisions={"c1": Approve()})
    other, _ = agent_of([refund], ["Done."], decision_log=SQLiteDecisionLog(tmp_path / "log.db"))
    (decided,) = other.run(paused=paused, decisions={"c1": Approve()}).decided
    assert (decided.outcome, decided.text, len(ran)) == ("done", "Refund R-17 booked.", 1)


def test_reconciler_that_finds_no_effect_leaves_the_call_unknown(ran, tmp_path):
    """Another process may run it at this moment, so nothing is certain, and nothing runs again."""

    @tool(requires_approval=True, reconcile=lambda record: False)
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)
        return "ok"

    stored = SQLiteDecisionLog(tmp_path / "log.db")
    stored.end = lambda key, outcome: None  # as if the process died
    agent, _ = agent_of([refund], [REFUND, "Done.", "Unclear."], decision_log=stored)
    paused = agent.run("go").paused
    agent.run(paused=paused, decisions={"c1": Approve()})
    (decided,) = agent.run(paused=paused, decisions={"c1": Approve()}).decided
    assert (decided.outcome, ran) == ("unknown", [17])


def test_edit_changes_only_what_was_offered_with_the_call(refund, ran):
    """A policy that names more since then counts for calls that are made since then."""
    agent, _ = agent_of([refund], [REFUND])
    paused = agent.run("refund order 17").paused
    wider = ToolPolicy(review=["*"], editable={"refund": ["euros", "order"]})
    other, _ = agent_of([refund], [], tool_policy=wider)
    with pytest.raises(DecisionError, match="'order'"):
        other.run(paused=paused, decisions={"c1": Edit({"order": 18})})
    assert ran == []


def test_preview_that_takes_too_long_at_the_yes_runs_nothing(ran):
    """The run goes on, and the model reads why."""
    may_end, is_slow = threading.Event(), threading.Event()

    def preview(order: int) -> str:
        if is_slow.is_set():
            may_end.wait(30)
        return f"Refund {order}"

    @tool(requires_approval=True, preview=preview, metadata=ToolMetadata(timeout=0.05))
    async def refund(order: int) -> str:
        """Refund an order."""
        ran.append(order)

    agent, _ = agent_of([refund], [REFUND, "Slow."])
    paused = agent.run("go").paused
    is_slow.set()
    result = agent.run(paused=paused, decisions={"c1": Approve()})
    may_end.set()
    assert (result.content, result.decided[0].outcome, ran) == ("Slow.", "failed", [])


def test_answer_of_a_run_that_goes_on_may_have_a_form(refund):
    """The form is given again: it may be a class, which no database keeps."""
    agent, _ = agent_of([refund], [REFUND, '{"done": true}'])
    schema = {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]}
    paused = agent.run("refund order 17", response_format=schema).paused
    result = agent.run(paused=paused, decisions={"c1": Approve()}, response_format=schema)
    assert result.parsed == {"done": True}


def test_observers_are_told_of_the_approved_call_in_the_run_that_made_it(refund):
    """Both parts have the id of one run."""
    told = []

    class Observer(AgentObserver):
        def on_tool_start(self, run_id, call_id, tool_name, arguments):
            told.append((run_id, call_id, tool_name, arguments))

        def on_run_end(self, run_id, result):
            told.append((run_id, result.stop_reason))

    agent, _ = agent_of([refund], [REFUND, "Done."], observers=[Observer()])
    paused = agent.run("refund order 17").paused
    agent.run(paused=as_stored(paused), decisions={"c1": Approve()})
    run_id = paused.run_id
    call = (run_id, "c1", "refund", {"order": 17, "euros": 5})
    assert told == [(run_id, "pending"), call, (run_id, "answer")]


def test_denied_call_is_not_asked_again_behind_other_messages(refund):
    """They were answered while it waited. The no is the last that the user said."""
    again = ToolCall("refund", {"order": 17}, "c2")
    agent, _ = agent_of([refund], [REFUND, "Sunny.", again, "As you wish."])
    memory = ConversationMemory()
    waiting = agent.run("refund order 17", memory=memory)
    agent.run("how is the weather?", memory=memory)
    result = agent.run(paused=waiting.paused, decisions={"c1": Deny()}, memory=memory)
    assert (result.stop_reason, result.content) == ("answer", "As you wish.")


def test_reason_of_a_no_passes_the_guardrails(refund):
    """What the person wrote beside the no is input, like a message of theirs."""
    hide = PatternGuardrail(("4111",), action=GuardrailAction.REWRITE)
    block = PatternGuardrail(("secret",))
    guardrails = GuardrailsPipeline(input=[hide, block])
    agent, model = agent_of([refund], [REFUND, "fine", REFUND, "fine"], guardrails=guardrails)
    for message, words in {"card 4111": "card [redacted]", "a secret": "(withheld)"}.items():
        waiting = agent.run("refund order 17")
        agent.run(paused=waiting.paused, decisions={"c1": Deny(message)})
        (entry,) = results(model.requests[-1])
        assert json.loads(entry)["words"] == words
