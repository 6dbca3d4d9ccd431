"""MemoryDraft: a conversation's memory as it will be after a run, worked on before any of it counts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from sayso.agent.memory import ConversationMemory
from sayso.agent.messages import Message


class MemoryDraft:
    """Lives from the last word of a run until it is remembered: whoever stops the run meanwhile, stops it before that.

    `after` is the memory with what was `said`, and `forgotten` what that let go of.
    """

    def __init__(self, memory: ConversationMemory, said: Sequence[Message]) -> None:
        self.after = memory.branch()
        self._memory, self._said = memory, said
        self._summary, self._notes = self.after.summary, deepcopy(self.after.notes)
        self.forgotten = self.after.add_many(said)

    def summary_now(self) -> str:
        """What the conversation's summary is by now: another run may have written one."""
        return self._memory.summary

    def commit(self) -> None:
        """From now on it is remembered. What another run has learnt meanwhile stays."""
        memory, after = self._memory, self.after
        memory.add_many(self._said)
        if after.summary != self._summary:
            memory.summary = after.summary
        memory.notes.update({key: note for key, note in after.notes.items() if note != self._notes.get(key)})
