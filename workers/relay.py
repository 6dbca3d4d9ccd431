"""Relay: what comes in under a second name of a conversation is worked on in the one where its person writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from sayso.channels.base import SendError
from sayso.channels.types import Conversation
from sayso.workers.drafts import Draft
from sayso.workers.drain import Answers
from sayso.workers.lane import Change, Lease, QueuedTurn
from sayso.workers.mailbox import Entrance
from sayso.workers.offload import reach


@runtime_checkable
class Places(Protocol):
    """A channel on which a conversation may have two names."""

    async def place(self, conversation: Conversation) -> Conversation:
        """The name under which people write there; the same one for most. Raises SendError."""


@dataclass(frozen=True, slots=True)
class Relay:
    """An agent whose turns are handed on to where they belong; it answers only what belongs where it is.

    A turn is handed on before it is finished here, and is stored there once: killed in between, it is handed on again
    and not taken twice. Those that are worked on together are handed on one by one: the next attempt may not join them.
    """

    agent: Answers
    places: Places
    entrance: Entrance

    async def answer(self, queued: QueuedTurn, lease: Lease, hear: Draft | None = None) -> Change:
        """All that the turn changes: nothing here where it is handed on. Who is refused there hears it there."""
        there = await self._place(queued)
        if there == queued.turn.conversation:
            return await self.agent.answer(queued, lease, hear)
        for turn in queued.parts or (queued.turn,):
            await reach(self.entrance.accept, replace(turn, conversation=there))
        return Change()

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> Change:
        """All that a turn changes that took too long or broke."""
        return await self.agent.give_up(queued, lease, words)

    def is_answer(self, text: str) -> bool:
        """Whether these words would be a yes or a no."""
        return self.agent.is_answer(text)

    def may_settle(self, queued: QueuedTurn) -> bool:
        """Whether the turn may settle what was asked."""
        return self.agent.may_settle(queued)

    async def _place(self, queued: QueuedTurn) -> Conversation:
        """A tap is about what was asked here, and what was begun here goes on here. Where nobody can say the other
        name, it is answered here.
        """
        here = queued.turn.conversation
        if queued.turn.tap or queued.journal:
            return here
        try:
            return await self.places.place(here)
        except SendError:
            return here
