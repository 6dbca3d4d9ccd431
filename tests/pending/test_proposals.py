"""Proposals: a tool asks for a yes inside a channel run and only there."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from sayso.pending import PendingActionExistsError, executor_factory, stash_pending
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.call_context import MAX_STEPS, ChannelRun, ProposedAction, context_field
from sayso.pending.proposals import (
    RunningTool,
    ShownTool,
    begin_round,
    in_channel_run,
    running_tool,
)
from sayso.pending.proposals import restore_proposals as propose_again


def run_of(user: str = "ana") -> ChannelRun:
    """Return a channel run of this user."""
    return ChannelRun(user, "chat", "room", 60.0, "v1")


def test_same_proposal_twice_is_refused_and_named():
    """A model that repeats itself must not cause an effect twice."""
    with context_field("run", run_of()) as run:
        stash_pending(kind="delete", preview="Delete A", args={"id": 1})
        with pytest.raises(PendingActionExistsError, match="Delete A"):
            stash_pending(kind="delete", preview="Delete A", args={"id": 1})
    assert [action.preview for action in run.proposals] == ["Delete A"]


def test_steps_that_are_too_long_together_are_refused():
    """Each one is short enough alone, but not all of them under one yes."""
    with context_field("run", run_of()) as run:
        stash_pending(kind="send", preview="x" * 10_000)
        with pytest.raises(PendingActionExistsError, match="as long as it may be"):
            stash_pending(kind="send", preview="y" * 6_001)
        stash_pending(kind="send", preview="y" * 6_000)
    assert len(run.proposals) == 2


def test_too_many_steps_are_refused():
    """Ten fit under one yes, since a person must read them."""
    with context_field("run", run_of()) as run:
        for number in range(MAX_STEPS):
            stash_pending(kind="delete", preview=f"Delete {number}")
        with pytest.raises(PendingActionExistsError, match="finish those first"):
            stash_pending(kind="delete", preview="One too many")
    assert len(run.proposals) == MAX_STEPS


def test_proposals_are_in_the_order_of_the_calls():
    """Calls of one answer run in parallel, and the order is not that of their ends."""
    with context_field("run", run_of()) as run:
        for at in (2, 0, 1, 0):
            with context_field("position", at):
                stash_pending(kind="k", preview=f"{at}-{len(run.proposed_actions)}")
    assert [action.preview for action in run.proposals] == ["0-1", "0-3", "1-2", "2-0"]


def test_proposals_of_a_later_answer_come_after_those_before():
    """A model that saw the results of its first calls may propose more; each answer's numbers start anew."""
    begin_round()  # outside a run there is nothing to begin
    with context_field("run", run_of()) as run:
        for answer, at in ((1, 2), (2, 1), (3, 0)):
            begin_round()
            with context_field("position", at):
                stash_pending(kind="k", preview=f"{answer}")
    assert [action.preview for action in run.proposals] == ["1", "2", "3"]


def test_proposals_of_a_killed_attempt_come_first():
    """The replayed action is the same, even from a tool that asked a model itself."""
    with context_field("run", run_of()) as first:
        for _ in range(3):
            begin_round()
        early = ProposedAction(
            stash_pending(kind="k", preview="early"), first.proposed_actions[0].position
        )
    propose_again([early])  # outside a run there is no person to ask
    with context_field("run", run_of()) as run:
        begin_round()
        propose_again([ProposedAction.from_dict(early.to_dict())])
        begin_round()
        stash_pending(kind="k", preview="late")
    assert [action.preview for action in run.proposals] == ["early", "late"]
    assert run.proposals[0] == early.action


def test_proposal_promises_only_what_its_tool_declares():
    """An undeclared property is not promised, least of all that the tool may be repeated."""
    with context_field("run", run_of()):
        bare = stash_pending(kind="k", preview="p")
        full = stash_pending(
            kind="k", preview="q", idempotent=True, reason="a big sum", version="2"
        )
    assert (bare.idempotent, bare.reason, bare.version) == (False, "", "")
    assert (full.idempotent, full.reason, full.version) == (True, "a big sum", "2")


def test_code_is_four_digits_and_only_where_asked_for():
    """The question shows it, and the person types it with the yes."""
    with context_field("run", run_of()):
        assert stash_pending(kind="k", preview="p").code == ""
        assert re.fullmatch(r"[0-9]{4}", stash_pending(kind="k", preview="q", typed_code=True).code)


MANAGERS = ApprovalRule(Deciders("role", ("manager",)), need=2, within_seconds=3 * 86_400.0)
BY_ASKER = ApprovalRule(Deciders("asker"))


def run_with_rules(**rules: ApprovalRule) -> ChannelRun:
    """Return a channel run whose policy has these rules, by the names of tools."""
    run = run_of()
    run.approval = rules.get
    return run


def test_proposal_has_the_rule_of_its_tool_and_its_time():
    """The rule is signed with the action. The tool's own time to answer does not count."""
    with context_field("run", run_with_rules(refund=MANAGERS)):
        action = stash_pending(kind="refund", preview="p", ttl_seconds=5.0)
    assert action.approval_rule == MANAGERS
    assert action.ttl_seconds == 3 * 86_400.0


def test_others_are_asked_for_no_code_and_the_asker_changes_nothing():
    """The person who asked neither confirms nor edits what others decide about."""
    form = [{"name": "sum", "label": "Sum", "kind": "text", "value": "5"}]
    shown = ShownTool("digest", form=form)
    with context_field("run", run_with_rules(refund=MANAGERS)):
        action = stash_pending(kind="refund", preview="p", typed_code=True, shown=shown)
    assert (action.code, action.form) == ("", ())


def test_rule_by_the_asker_leaves_the_proposal_as_without_a_rule():
    """The asker decides, with the tool's own time, code and form."""
    with context_field("run", run_with_rules(refund=BY_ASKER)):
        action = stash_pending(kind="refund", preview="p", typed_code=True, ttl_seconds=5.0)
    assert (action.approval, action.ttl_seconds) == (None, 5.0)
    assert action.code


@pytest.mark.parametrize("named", ["ask_by_itself", "pay"])
def test_rule_of_the_asking_tool_and_of_what_runs_both_count(named):
    """Code cannot escape a rule by asking for a call of another name."""
    asking = RunningTool("ask_by_itself", False, True, False, lambda: "digest")
    with context_field("run", run_with_rules(**{named: MANAGERS})), running_tool(asking):
        action = stash_pending(kind="pay", preview="p")
    assert action.approval_rule == MANAGERS


@pytest.mark.parametrize(("first", "second"), [("refund", "note"), ("note", "refund")])
def test_proposal_that_other_people_decide_is_refused_in_the_same_turn(first, second):
    """All proposals of a turn share one question, and one question has one rule."""
    with context_field("run", run_with_rules(refund=MANAGERS)) as run:
        stash_pending(kind=first, preview="The first")
        with pytest.raises(PendingActionExistsError, match=r"'The first' .* finish that one first"):
            stash_pending(kind=second, preview="The second")
        stash_pending(kind=first, preview="The third")
    assert [action.preview for action in run.proposals] == ["The first", "The third"]


def test_restored_proposal_keeps_its_rule():
    """Another worker goes on with the turn, and the question still waits for the same people."""
    with context_field("run", run_with_rules(refund=MANAGERS)) as run:
        stash_pending(kind="refund", preview="p")
    stored = json.loads(json.dumps(run.proposed_actions[0].to_dict()))
    restored = ProposedAction.from_dict(stored)
    assert restored == run.proposed_actions[0]
    assert restored.action.approval_rule == MANAGERS
    with context_field("run", run_of()) as run:
        propose_again([restored])
        with pytest.raises(PendingActionExistsError, match="different people"):
            stash_pending(kind="note", preview="q")


def test_tool_outside_a_run_proposes_nothing():
    """There is no person to ask."""
    assert not in_channel_run()
    assert stash_pending(kind="delete", preview="Delete it", executor=lambda: None) is None


def test_run_ends_with_its_turn():
    """Its state is gone after the turn, even if the turn failed."""
    with pytest.raises(RuntimeError), context_field("run", run_of()):
        raise RuntimeError
    assert not in_channel_run()


def test_concurrent_runs_do_not_see_each_other():
    """Each turn proposes into its own scope."""

    async def propose(user: str) -> str:
        with context_field("run", run_of(user)):
            await asyncio.sleep(0)
            return stash_pending(kind="k", preview=user).user_id

    async def both() -> list[str]:
        return await asyncio.gather(propose("ana"), propose("bob"))

    assert asyncio.run(both()) == ["ana", "bob"]


def test_inexact_arguments_are_refused_and_leave_nothing():
    """A proposal without a digest is refused."""
    with context_field("run", run_of()) as run:
        with pytest.raises(TypeError, match="not exact JSON"):
            stash_pending(kind="k", preview="p", args={"a": (1,)})
        assert run.proposals == []


def test_proposal_has_the_scope_of_its_run():
    """The tool cannot choose who confirms."""
    with context_field("run", run_of()) as run:
        action = stash_pending(kind="k", preview="p", args={"a": 1}, executor=print, ttl_seconds=5)
    assert (action.user_id, action.channel_id, action.conversation_id) == ("ana", "chat", "room")
    assert (action.ttl_seconds, action.parser_version) == (5, "v1")
    assert run.executors == {action.pending_action_id: print}


def test_decorator_of_a_factory_registers_nothing():
    """Importing does nothing; the loader finds the decorated function."""

    @executor_factory("delete")
    def rebuild(action):
        """Rebuild."""

    assert rebuild.__sayso_kind__ == "delete"
