"""Paused runs: what the memory of a conversation says about calls that wait."""

from __future__ import annotations

import math

import pytest

from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import ActionLink, Message, Role
from sayso.agent.run.pause import (
    PAUSED_RUN,
    WAITING,
    RunCounts,
    note_run_counts,
    rename_actions,
    run_counts_of,
    with_waiting_results,
)


def test_only_a_call_that_waits_is_shown_as_waiting():
    """A model must not read "Nothing was done" about a call that ran."""
    waiting = Message(Role.TOOL, "", tool_call_id="a", actions=(ActionLink("1"),))
    done = Message(Role.TOOL, "", tool_call_id="b", actions=(ActionLink("2", "done"),))
    contents = [message.content for message in with_waiting_results([waiting, done])]
    assert contents == [WAITING, ""]


def test_a_changed_question_keeps_the_counts_of_its_run():
    """The run goes on counting under the id of the new action."""
    memory = ConversationMemory()
    note_run_counts(memory, RunCounts("run", 3, actions=("old", "other")))
    rename_actions(memory, {"old": "new"})
    assert run_counts_of(memory, ["old"]) is None
    assert run_counts_of(memory, ["new"]) == RunCounts("run", 3, actions=("new", "other"))


@pytest.mark.parametrize(
    "change", [{"actions": None}, {"actions": "a"}, {"iterations": math.inf}, {"iterations": -1}]
)
def test_counts_that_are_not_valid_are_ignored(change):
    """The run goes on, and counts from zero."""
    memory = ConversationMemory()
    memory.notes[PAUSED_RUN] = {**RunCounts("run", 3, actions=("a",)).to_dict(), **change}
    rename_actions(memory, {"a": "b"})
    assert run_counts_of(memory, ["a", "b"]) is None
