"""Proposals: a tool asks for a yes inside a channel run, and nothing happens elsewhere."""

from __future__ import annotations

import asyncio
import re
from contextvars import copy_context

import pytest

from sayso.pending import PendingActionExistsError, executor_factory, stash_pending
from sayso.pending.context import set_position
from sayso.pending.proposals import (
    MAX_STEPS,
    ChannelRun,
    ProposedAction,
    begin_round,
    channel_run,
    in_channel_run,
)
from sayso.pending.proposals import restore_proposals as propose_again


def run_of(user: str = "ana") -> ChannelRun:
    """A channel run of this user."""
    return ChannelRun(user, "chat", "room", 60.0, "v1")


def test_same_proposal_twice_is_refused_and_named():
    """A model that repeats itself must not have one thing done twice."""
    with channel_run(run_of()) as run:
        stash_pending(kind="delete", preview="Delete A", args={"id": 1})
        with pytest.raises(PendingActionExistsError, match="Delete A"):
            stash_pending(kind="delete", preview="Delete A", args={"id": 1})
    assert [action.preview for action in run.proposals] == ["Delete A"]


def test_steps_that_are_too_long_together_are_refused():
    """Each may be read by itself, all of them under one yes are not."""
    with channel_run(run_of()) as run:
        stash_pending(kind="send", preview="x" * 10_000)
        with pytest.raises(PendingActionExistsError, match="as long as it may be"):
            stash_pending(kind="send", preview="y" * 6_001)
        stash_pending(kind="send", preview="y" * 6_000)
    assert len(run.proposals) == 2


def test_more_steps_than_a_person_reads_are_refused():
    """Ten fit under one yes."""
    with channel_run(run_of()) as run:
        for number in range(MAX_STEPS):
            stash_pending(kind="delete", preview=f"Delete {number}")
        with pytest.raises(PendingActionExistsError, match="finish those first"):
            stash_pending(kind="delete", preview="One too many")
    assert len(run.proposals) == MAX_STEPS


def test_proposals_are_in_the_order_of_the_calls():
    """Calls of one answer run at once: the order is not that of who was quickest."""
    with channel_run(run_of()) as run:
        for at in (2, 0, 1, 0):
            copy_context().run(
                lambda at=at: (set_position(at), stash_pending(kind="k", preview=f"{at}-{len(run.positions)}"))
            )
    assert [action.preview for action in run.proposals] == ["0-1", "0-3", "1-2", "2-0"]


def test_proposals_of_a_later_answer_come_after_those_before():
    """A model that has seen what its first calls came to may propose more: each answer's places begin anew."""
    begin_round()  # outside a run there is nothing to begin
    with channel_run(run_of()) as run:
        for answer, at in ((1, 2), (2, 1), (3, 0)):
            begin_round()
            copy_context().run(
                lambda at=at, answer=answer: (set_position(at), stash_pending(kind="k", preview=f"{answer}"))
            )
    assert [action.preview for action in run.proposals] == ["1", "2", "3"]


def test_what_a_killed_attempt_proposed_comes_before_what_is_proposed_now():
    """It is the same action; a tool that asked a model itself had gone through answers of its own."""
    with channel_run(run_of()) as first:
        for _ in range(3):
            begin_round()
        early = ProposedAction(stash_pending(kind="k", preview="early"), first.positions[0])
    propose_again([early])  # outside a run there is nobody to ask
    with channel_run(run_of()) as run:
        begin_round()
        propose_again([ProposedAction.from_dict(early.to_dict())])
        begin_round()
        stash_pending(kind="k", preview="late")
    assert [action.preview for action in run.proposals] == ["early", "late"]
    assert run.proposals[0] == early.action


def test_proposal_says_what_its_tool_says_and_no_more():
    """What a tool does not say of itself is not promised: least of all that it may be repeated."""
    with channel_run(run_of()):
        bare = stash_pending(kind="k", preview="p")
        full = stash_pending(kind="k", preview="q", idempotent=True, reason="a big sum", version="2")
    assert (bare.idempotent, bare.reason, bare.version) == (False, "", "")
    assert (full.idempotent, full.reason, full.version) == (True, "a big sum", "2")


def test_code_is_four_digits_and_only_where_asked_for():
    """It is shown in the question and typed with the yes."""
    with channel_run(run_of()):
        assert stash_pending(kind="k", preview="p").code == ""
        assert re.fullmatch(r"[0-9]{4}", stash_pending(kind="k", preview="q", typed_code=True).code)


def test_outside_a_run_nothing_is_proposed():
    """There is nobody to ask."""
    assert not in_channel_run()
    assert stash_pending(kind="delete", preview="Delete it", executor=lambda: None) is None


def test_run_ends_with_its_turn():
    """What was installed for one turn is gone after it, also when the turn broke."""
    with pytest.raises(RuntimeError), channel_run(run_of()):
        raise RuntimeError
    assert not in_channel_run()


def test_concurrent_runs_do_not_see_each_other():
    """Each turn proposes into its own scope."""

    async def propose(user: str) -> str:
        with channel_run(run_of(user)):
            await asyncio.sleep(0)
            return stash_pending(kind="k", preview=user).user_id

    async def both() -> list[str]:
        return await asyncio.gather(propose("ana"), propose("bob"))

    assert asyncio.run(both()) == ["ana", "bob"]


def test_inexact_arguments_are_refused_and_leave_nothing():
    """A proposal that cannot be digested is none."""
    with channel_run(run_of()) as run:
        with pytest.raises(TypeError, match="not exact JSON"):
            stash_pending(kind="k", preview="p", args={"a": (1,)})
        assert run.proposals == []


def test_proposal_has_the_scope_of_its_run():
    """The tool cannot choose whose yes counts."""
    with channel_run(run_of()) as run:
        action = stash_pending(kind="k", preview="p", args={"a": 1}, executor=print, ttl_seconds=5)
    assert (action.user_id, action.channel_id, action.conversation_id) == ("ana", "chat", "room")
    assert (action.ttl_seconds, action.parser_version) == (5, "v1")
    assert run.executors == {action.pending_action_id: print}


def test_mark_of_a_factory_registers_nothing():
    """Importing does nothing: the loader finds the mark."""

    @executor_factory("delete")
    def rebuild(action):
        """Rebuild."""

    assert rebuild.__sayso_kind__ == "delete"
