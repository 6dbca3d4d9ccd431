"""Mailbox (lease, commit, release) and Inbox (accept) on Redis; second address of a conversation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.channels.base import SendError
from sayso.channels.i18n.texts import SpokenTexts, TextsForTurn
from sayso.channels.types import Conversation, Reply, Turn, shown_to
from sayso.pending.concurrency import reach
from sayso.pending.redis.scripts import SHARDS, LuaScripts, WakeUp
from sayso.pending.turns.change import Lease, TurnChange, outbox_entry
from sayso.pending.turns.queued import (
    LeaseLost,
    NextItem,
    QueuedTurn,
    StaleTurn,
    StreamListener,
    TurnHandler,
    is_quick,
    read_work,
    stops,
)

#: Milliseconds a lane stays with a worker that stopped renewing: how long a killed worker's turn waits at most.
LEASE_MS = 10_000


#: How long an event's id is remembered. Telegram repeats for 24 h, Slack for as long if asked to.
SEEN_MS = 72 * 3600 * 1000


#: What the notices of a refusal collapse with: only the newest waits.
REFUSAL = "refusal"


#: Where this room's scripts are.
LUA = Path(__file__).parent / "lua"


Outcome = Literal["new", "duplicate", "ignored", "full", "fast", "crowded", "spooled", "stranger", "hasty"]


#: What a mailbox knows of a turn: nothing, that it waits or is worked on, or that it was.
TurnStatus = Literal["unknown", "waits", "done"]


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """What is refused at the door.

    `waiting`: turns of one conversation. `per_minute` and `in_one_go`: turns of one person in one conversation, answers
    to a question and stops excepted; taps on their own buttons and /status are counted by themselves. `conversations`:
    those that may have work at once; one more cannot begin. It is kept shard by shard, so it is met approximately. Who
    was asked, and who stops their own turn, finds 10 more places in a mailbox, 2 for each person, and room for a fifth
    more conversations; half of that room is for telling people that they are refused.
    """

    waiting: int = 50
    per_minute: int = 60
    in_one_go: int = 40
    conversations: int = 100_000

    @property
    def per_shard(self) -> int:
        """Conversations of one shard that may have work at once: their share, with room for an uneven spread."""
        return -(-self.conversations // SHARDS) + 8


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a turn at the door. A `spooled` one is on this machine's disk and has no number yet.

    Of an `ignored` one, of a `stranger`'s, and of a `hasty` one, whose person sends too many on this channel, nothing
    is kept, and its platform need not send it again.
    """

    outcome: Outcome
    seq: int

    @property
    def refused(self) -> bool:
        """Whether it was not kept, and the platform should try again: the mailbox is full, its sender too fast, or
        too many people write.
        """
        return self.outcome in ("full", "fast", "crowded")


class Inbox(Protocol):
    """Where turns go in."""

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once and wake a worker, in one step. `tapped` names the pending action a button is for.

        A turn that waited elsewhere counts as received so much earlier. Nobody is told when it is refused: it waits on.
        """


class GuardedInbox(Inbox, Protocol):
    """A mailbox as whoever stands at its door needs it."""

    def tell(self, turn: Turn, reply: Reply) -> bool:
        """Say something to whoever is not let in, once a minute, while there is room. Returns whether it is said."""

    def is_asked(self, turn: Turn) -> bool:
        """Whether a question waits for the answer of whoever wrote this, or it came in before."""

    def stage(self, turn: Turn) -> TurnStatus:
        """How far a turn has come here. One that was worked on is forgotten SEEN_MS after it came in."""


class Mailbox(Inbox, Protocol):
    """Turns in, one lease at a time, commits out. Every call is safe to repeat."""

    def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take a lane and see what it holds. None while another worker has it."""

    def defer(self, conversation: str) -> float:
        """Leave a conversation to a worker that knows its channel; somebody looks again in a second to a minute.

        Return for how many seconds no worker has taken it, or -1 while one works on it.
        """

    def renew(self, lease: Lease) -> int:
        """Keep the lane; the number of the last turn with which the user of the one at the head said stop, 0 for none.

        Raises LaneLost.
        """

    def commit(self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False) -> NextItem:
        """Finish a turn, all or nothing, and see what is next. With `let_go`, None means that the lane is let go.

        Raises LaneLost, TurnOvertaken.
        """

    def release(self, lease: Lease, *, hand_over: bool = False, begun: bool = False) -> NextItem:
        """Let the lane go; what came in meanwhile is returned instead, unless it is to be handed over.

        With `begun` the turn at the head was begun, as by a holder that died, and whoever is next tries it once more.
        """


class RedisMailbox:
    """The mailbox in Redis: each call is one script, one round trip."""

    def __init__(
        self,
        scripts: LuaScripts,
        voice: TextsForTurn,
        wake_up: WakeUp = lambda _: (),
        *,
        limits: InboxLimits | None = None,
    ) -> None:
        self._scripts = scripts
        self._voice = voice
        self._wake_up = wake_up
        self._limits = limits or InboxLimits()

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once and wake a worker. Raises redis.RedisError when nothing was promised."""
        conversation, limits = turn.conversation.id, self._limits
        outcome, seq = self._scripts.run(
            "accept",
            conversation,
            turn.event_id,
            turn.scope.id,
            tapped or "-",
            turn.to_json(),
            limits.waiting,
            SEEN_MS,
            limits.per_minute,
            limits.in_one_go,
            limits.per_shard,
            _flags(turn),
            waited_ms(waited_seconds),
            *self._wake_up(conversation),
        )
        accepted = Accepted(outcome, int(seq))
        if accepted.refused and not waited_seconds and hears_refusal(turn):
            self.tell(turn, refusal(self._voice(turn), outcome))  # the platform hears it each time
        return accepted

    def tell(self, turn: Turn, reply: Reply) -> bool:
        """Say something, once a minute and while there is room. Raises redis.RedisError."""
        entry, name = outbox_entry(turn.conversation, shown_to(turn, reply)), turn.conversation.id
        return bool(self._scripts.run("tell", name, entry, self._limits.per_shard, *self._wake_up(name)))

    def is_asked(self, turn: Turn) -> bool:
        """Whether a question waits for an answer, or it came in before. Raises redis.RedisError."""
        return bool(self._scripts.run("asked", turn.conversation.id, turn.scope.id, turn.event_id))

    def stage(self, turn: Turn) -> TurnStatus:
        """How far a turn has come here. Raises redis.RedisError."""
        spelled = json.dumps(turn.event_id, ensure_ascii=False)
        answer: TurnStatus = self._scripts.run("stage", turn.conversation.id, turn.event_id, spelled)
        return answer

    def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take a lane if it is free. `token` is the worker's own random word."""
        answer = self._scripts.run("lease", conversation, token, LEASE_MS)
        if not answer:
            return None
        return Lease(conversation, int(answer[0]), token), read_work(answer[1])

    def defer(self, conversation: str) -> float:
        """Leave a conversation to a worker that knows its channel. Return the seconds since the first that did not."""
        waited = int(self._scripts.run("defer", conversation))
        return waited / 1000 if waited >= 0 else -1.0

    def renew(self, lease: Lease) -> int:
        """Keep the lane for another LEASE_MS. Raises LaneLost."""
        answer = self._scripts.run("renew", lease.conversation, lease.epoch, lease.token, LEASE_MS)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return int(answer)

    def commit(self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False) -> NextItem:
        """Pop the turn, append its replies, save its history, move or arm its action: all or nothing."""
        data = change.to_json(queued.turn.conversation)
        answer = self._scripts.run(
            "commit",
            lease.conversation,
            lease.epoch,
            lease.token,
            queued.seq,
            queued.user,
            queued.turn.event_id,
            data,
            queued.last,
            "1" if let_go else "0",
        )
        return checked(answer, lease)

    def release(self, lease: Lease, *, hand_over: bool = False, begun: bool = False) -> NextItem:
        """Let the lane go; a lane lost meanwhile is let go too."""
        flags = ("1" if hand_over else "0", "1" if begun else "0")
        wake_up = self._wake_up(lease.conversation) if hand_over else ()
        answer = self._scripts.run("release", lease.conversation, lease.epoch, lease.token, *flags, *wake_up)
        return read_work(answer[1]) if answer[0] == "more" else None


def mark(worker: str) -> str:
    """What the tokens of a worker's leases begin with."""
    return f"{worker}."


def new_token(worker: str) -> str:
    """The token of one lease of a worker."""
    return mark(worker) + secrets.token_urlsafe(8)


def hears_refusal(turn: Turn) -> bool:
    """Return whether a refused turn is answered with a message. A tap in a group is not: all others would read it."""
    return not (turn.tap and turn.in_group)


def refusal(words: SpokenTexts, outcome: Outcome) -> Reply:
    """What somebody hears whose turn was refused."""
    match outcome:
        case "fast":
            text = words.too_fast()
        case "crowded":
            text = words.crowded()
        case _:
            text = words.busy()
    return Reply(text, collapse=REFUSAL)


def _flags(turn: Turn) -> str:
    """How the turn is to be taken, in letters; "-" for no matter."""
    stop = stops(turn)
    letters = {"a": not turn.addressed, "s": stop, "t": turn.tap is not None, "q": is_quick(turn)}
    return "".join(letter for letter, given in letters.items() if given) or "-"


def waited_ms(seconds: float) -> int:
    """How long a turn waited before it came here, as far as we believe it.

    It is a span of the one machine that kept the turn, so that no two clocks are compared. Whatever that clock did
    meanwhile, a turn was not received in the future, nor before SEEN_MS: no question is open for that long.
    """
    return max(0, min(round(seconds * 1000), SEEN_MS))


def checked(answer: Sequence[Any], lease: Lease) -> NextItem:
    """What is next, if the script did its work. Raises LaneLost, TurnOvertaken."""
    if answer[0] == "lost":
        raise LeaseLost(lease.conversation)
    if answer[0] != "ok":
        raise StaleTurn(f"{lease.conversation}: {answer[0]}")
    return read_work(answer[1])


@runtime_checkable
class HasAliases(Protocol):
    """A channel on which a conversation may have two names."""

    async def place(self, conversation: Conversation) -> Conversation:
        """The name under which people write there; the same one for most. Raises SendError."""


@dataclass(frozen=True, slots=True)
class AliasForwarder:
    """An agent whose turns are handed on to where they belong; it answers only what belongs where it is.

    A turn is handed on before it is finished here, and is stored there once: killed in between, it is handed on again
    and not taken twice. Those that are worked on together are handed on one by one: the next attempt may not join them.
    """

    agent: TurnHandler
    places: HasAliases
    entrance: Inbox

    async def answer(self, queued: QueuedTurn, lease: Lease, hear: StreamListener | None = None) -> TurnChange:
        """All that the turn changes: nothing here where it is handed on. Who is refused there hears it there."""
        there = await self._place(queued)
        if there == queued.turn.conversation:
            return await self.agent.answer(queued, lease, hear)
        for turn in queued.parts or (queued.turn,):
            await reach(self.entrance.accept, replace(turn, conversation=there))
        return TurnChange()

    async def give_up(self, queued: QueuedTurn, lease: Lease, words: str) -> TurnChange:
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
