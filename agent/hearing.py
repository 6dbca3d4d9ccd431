"""Hearing: who listens to an answer while it comes, one step of the model after the other."""

from __future__ import annotations

from typing import Protocol

from sayso.agent.config import AgentConfig
from sayso.agent.journal import Answered, CallOutcome, Journal, Recalled


class Hearing(Protocol):
    """Hears the text of one step, piece by piece."""

    async def __call__(self, piece: str) -> None:
        """The next piece."""

    def anew(self) -> None:
        """The model calls tools: what comes next is another text."""


def may_be_heard(config: AgentConfig) -> bool:
    """Whether what the model says may be seen as it comes: nothing judges it, or what it leads to, before."""
    return not (config.coherence_check or (config.guardrails and config.guardrails.output))


class HeardJournal:
    """A journal that tells who listens when a step is over."""

    def __init__(self, journal: Journal, hearing: Hearing) -> None:
        self._journal = journal
        self._hearing = hearing

    async def recall(self) -> Recalled | None:
        """The next answer that is known."""
        return await self._journal.recall()

    def note(self, answered: Answered) -> bool:
        """Take down an answer that calls tools: its step is over."""
        self._hearing.anew()
        return self._journal.note(answered)

    async def save(self, *begun: int) -> None:
        """Write what was taken down."""
        await self._journal.save(*begun)

    async def keep(self, at: int, outcome: CallOutcome) -> CallOutcome:
        """Take down what a call came to."""
        return await self._journal.keep(at, outcome)

    def key(self, at: int) -> str:
        """The idempotency key of a call."""
        return self._journal.key(at)
