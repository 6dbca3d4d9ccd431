"""Journals: what each conversation's turn at work has come to, kept until the turn is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sayso.workers.lane import LaneLost, Lease, TurnOvertaken
from sayso.workers.redis import Scripts


class Journals(Protocol):
    """Where turns are journalled. A journal is read with its turn (`QueuedTurn.journal`) and goes with it."""

    def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of turn `seq`, the first of them as number `at`, counted from 0.

        Safe to repeat: an entry whose number is taken is there already. Number 0 names the turn; another turn's journal
        is dropped for it. Raises LaneLost, and TurnOvertaken when the turn is not the next one or entries are missing.
        """

    def entries(self, lease: Lease) -> Sequence[str]:
        """The journal of the turn at the head, as it is now. Raises LaneLost."""


class RedisJournals:
    """Journals in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append entries to the journal of a turn. Raises redis.RedisError when nobody knows whether they are there."""
        answer = self._scripts.run("journal", lease.conversation, lease.epoch, lease.token, seq, at, *entries)
        if answer == "lost":
            raise LaneLost(lease.conversation)
        if answer != "ok":
            raise TurnOvertaken(f"{lease.conversation}: {answer}")

    def entries(self, lease: Lease) -> Sequence[str]:
        """The journal of the turn at the head, as it is now. Raises LaneLost."""
        answer = self._scripts.run("journalled", lease.conversation, lease.epoch, lease.token)
        if answer == "lost":
            raise LaneLost(lease.conversation)
        return tuple(answer)
