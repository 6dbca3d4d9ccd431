"""Proposals: a tool asks for a yes inside a channel run, and nothing happens elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from pending import PendingActionExistsError, executor_factory, stash_pending
from pending.proposals import ChannelRun, channel_run, in_channel_run


def run_of(user: str = "ana") -> ChannelRun:
    """A channel run of this user."""
    return ChannelRun(user, "chat", "room", 60.0, "v1")


def test_second_proposal_of_a_turn_is_refused_and_names_the_first():
    """The user can say yes to one thing only."""
    with channel_run(run_of()) as run:
        stash_pending(kind="delete", preview="Delete A")
        with pytest.raises(PendingActionExistsError, match="Delete A"):
            stash_pending(kind="delete", preview="Delete B")
    assert run.proposal.preview == "Delete A"


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
        assert run.proposal is None


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
