"""Mailbox: the ordered turns of each conversation, worked on by one worker at a time.

    accept -> lease -> commit* -> release

Everything a turn changes - the mailbox, the replies, the history, the pending action - changes in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from channels.types import Reply, Turn
from workers.lane import Change, LaneLost, Lease, QueuedTurn, TurnOvertaken, Work, outbox_entry, read_work
from workers.redis import Scripts

#: Milliseconds a lane stays with a worker that stopped renewing: how long a killed worker's turn waits at most.
LEASE_MS = 10_000
#: Turns that may wait in one conversation; one more is refused until some are done.
MAILBOX_CAP = 50
#: What somebody hears whose mailbox is full, once a minute.
BUSY = "You write faster than I can answer. Please wait for my replies: your last messages may not have reached me."
#: How long an event's id is remembered. Telegram repeats for 24 h, Slack for as long if asked to.
SEEN_MS = 72 * 3600 * 1000

#: Where this room's scripts are.
LUA = Path(__file__).parent / "lua"

#: The arguments that make the RQ job which drains a conversation: keys, id and hash. Empty: nobody is woken.
WakeUp = Callable[[str], Sequence[str | bytes | int | float]]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a turn at the door. Only `full` was not kept: the platform should try again."""

    outcome: Literal["new", "duplicate", "ignored", "full"]
    seq: int


class Mailbox(Protocol):
    """Turns in, one lease at a time, commits out. Every call is safe to repeat."""

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Store a turn once and wake a worker, in one step. `tapped` names the pending action a button is for."""

    def lease(self, conversation: str, token: str) -> tuple[Lease, Work] | None:
        """Take a lane and see what it holds. None while another worker has it."""

    def renew(self, lease: Lease) -> None:
        """Keep the lane. Raises LaneLost."""

    def commit(self, lease: Lease, queued: QueuedTurn, change: Change) -> Work:
        """Finish a turn, all or nothing, and see what is next. Raises LaneLost, TurnOvertaken."""

    def release(self, lease: Lease, *, hand_over: bool = False) -> Work:
        """Let the lane go; what came in meanwhile is returned instead, unless it is to be handed over."""


class RedisMailbox:
    """The mailbox in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: Scripts, wake_up: WakeUp = lambda _: (), *, cap: int = MAILBOX_CAP) -> None:
        self._scripts = scripts
        self._wake_up = wake_up
        self._cap = cap

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Store a turn once and wake a worker. Raises redis.RedisError when nothing was promised."""
        conversation = turn.conversation.id
        outcome, seq = self._scripts.run(
            "accept",
            conversation,
            turn.event_id,
            turn.scope.id,
            tapped or "-",
            turn.to_json(),
            self._cap,
            SEEN_MS,
            "0" if turn.addressed else "1",
            outbox_entry(turn.conversation, Reply(BUSY)),
            *self._wake_up(conversation),
        )
        return Accepted(outcome, int(seq))

    def lease(self, conversation: str, token: str) -> tuple[Lease, Work] | None:
        """Take a lane if it is free. `token` is the worker's own random word."""
        answer = self._scripts.run("lease", conversation, token, LEASE_MS)
        if not answer:
            return None
        return Lease(conversation, int(answer[0]), token), read_work(answer[1])

    def renew(self, lease: Lease) -> None:
        """Keep the lane for another LEASE_MS. Raises LaneLost."""
        if self._scripts.run("renew", lease.conversation, lease.epoch, lease.token, LEASE_MS) == "lost":
            raise LaneLost(lease.conversation)

    def commit(self, lease: Lease, queued: QueuedTurn, change: Change) -> Work:
        """Pop the turn, append its replies, save its history, move or arm its action: all or nothing."""
        data = change.to_json(queued.turn.conversation)
        answer = self._scripts.run(
            "commit", lease.conversation, lease.epoch, lease.token, queued.seq, queued.user, queued.turn.event_id, data
        )
        return checked(answer, lease)

    def release(self, lease: Lease, *, hand_over: bool = False) -> Work:
        """Let the lane go; a lane lost meanwhile is let go too."""
        flag = "1" if hand_over else "0"
        wake_up = self._wake_up(lease.conversation) if hand_over else ()
        answer = self._scripts.run("release", lease.conversation, lease.epoch, lease.token, flag, *wake_up)
        return read_work(answer[1]) if answer[0] == "more" else None


def checked(answer: Sequence[Any], lease: Lease) -> Work:
    """What is next, if the script did its work. Raises LaneLost, TurnOvertaken."""
    if answer[0] == "lost":
        raise LaneLost(lease.conversation)
    if answer[0] != "ok":
        raise TurnOvertaken(f"{lease.conversation}: {answer[0]}")
    return read_work(answer[1])
