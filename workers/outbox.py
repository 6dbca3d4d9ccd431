"""Outbox: replies that must reach a channel at least once, in order, whoever dies on the way."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol

from redis.exceptions import RedisError

from sayso.channels.base import (
    AddressClosed,
    Ambiguous,
    Channel,
    ChannelDown,
    Pace,
    RateLimited,
    SendError,
    Unreachable,
    WindowClosed,
)
from sayso.channels.types import Conversation, Delivery, Receipt, Reply
from sayso.workers.alerts import Alerts, MemoryAlerts
from sayso.workers.lane import LaneLost, LaneParked, Lease, QueuedReply, Work, outbox_entry, read_work
from sayso.workers.offload import offload, reach
from sayso.workers.receipts import NoReceipts, Receipts
from sayso.workers.redis import Scripts, WakeUp
from sayso.workers.turnstile import Turnstile
from sayso.workers.words import Speak

log = logging.getLogger(__name__)

#: A reply is given up after this many tries.
MAX_ATTEMPTS = 10
#: Replies that may wait in a conversation to which others forward theirs. The scripts know it too.
MAX_WAITING = 100
#: Seconds for which a reply waits for its person to write. The scripts know it too.
KEEP_HELD_SECONDS = 7 * 24 * 3600.0
#: The longest pause between two tries, in seconds, unless the platform asks for more.
MAX_BACKOFF_SECONDS = 60.0
#: The longest pause that a platform is granted: whatever it says, it is asked again after a day.
MAX_ASKED_SECONDS = 86400.0
#: Seconds for which nobody tries a channel that its platform does not know any more.
DOWN_SECONDS = 60.0
#: Seconds for which a worker holds a lane while a reply waits for its turn; for longer, the lane is let go. Less than
#: is left of a lease that was fresh a moment ago.
MAX_HOLD_SECONDS = 0.5

#: How a reply ended that is given up: its last try may have arrived, nothing arrives there, or its platform asks all to
#: wait.
End = Literal["dead", "doubtful", "closed", "limited"]
#: Why a reply is postponed: it was tried, it may have arrived, its platform asks to wait, or does not know its channel
#: any more, it was not its turn yet, or somebody must write first.
Why = Literal["tried", "suspect", "limited", "down", "paced", "held"]


class Outbox(Protocol):
    """The replies of each lane, first in first out."""

    def settle(
        self,
        lease: Lease,
        reply: QueuedReply,
        *,
        receipt: str = "",
        dead: str = "",
        end: End = "dead",
        gap: float = 0.0,
        let_go: bool = False,
        written_at: float = 0.0,
    ) -> Work:
        """The reply was sent, or is given up for the reason `dead`. What it previewed may be answered now.

        `written_at` is when the platform says that it shows the reply, 0.0 where the platform does not say.
        `gap`: seconds by which it brings its chat ahead of its pace; or, at a `limited` end, for which its channel is
        silent. With `let_go`, None means that nothing is left and the lane is let go. Raises LaneLost.
        """

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, why: Why = "tried", reason: str = "") -> None:
        """Later: the lane is let go until then. With `limited` the whole channel waits so long. Raises LaneLost.

        With `down` it does too, and nothing counts as tried. With `held`, for the reason given, it waits until a turn
        comes in, for KEEP_HELD_SECONDS at most; where one is there already, it counts as tried.
        """

    def pace(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Say how fast the reply's channel sends. Returns the seconds until its turn. Raises LaneLost."""

    def forward(self, delivery: Delivery) -> str:
        """Append it to the outbox of the conversation it is addressed to, once for its id, and wake a worker there.

        Needs no lease. Returns its id there, or "" when too many replies wait there already.
        """


class RedisOutbox:
    """The outbox in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: Scripts, wake_up: WakeUp = lambda _: ()) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

    def settle(
        self,
        lease: Lease,
        reply: QueuedReply,
        *,
        receipt: str = "",
        dead: str = "",
        end: End = "dead",
        gap: float = 0.0,
        let_go: bool = False,
        written_at: float = 0.0,
    ) -> Work:
        """Drop the reply from the outbox and note what became of it. Raises LaneLost."""
        outcome, detail = (end, dead) if dead else ("sent", "".join(receipt.split()))
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        when, cause = round(written_at * 1_000_000), "" if dead else reply.cause
        told = (outcome, detail, round(gap * 1000), "1" if let_go else "0", when, cause)
        answer = self._scripts.run("settle", *place, *told)
        if answer[0] == "lost":
            raise LaneLost(lease.conversation)
        return read_work(answer[1])

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, why: Why = "tried", reason: str = "") -> None:
        """Park the lane. Raises LaneLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        if self._scripts.run("postpone", *place, round(seconds * 1000), why, reason) == "lost":
            raise LaneLost(lease.conversation)

    def pace(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Note the channel's pace and book the reply's slot. Raises LaneLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        wait_ms = int(self._scripts.run("pace", *place, 1000 / per_second))
        if wait_ms == -2:
            raise LaneLost(lease.conversation)
        return wait_ms / 1000

    def forward(self, delivery: Delivery) -> str:
        """Say it in another lane, once."""
        to, entry = delivery.conversation.id, outbox_entry(delivery.conversation, delivery.reply)
        said = self._scripts.run("forward", to, delivery.id, entry, *self._wake_up(to))
        return f"{to}#{said}" if said else ""


class Postman:
    """Carries one reply at a time to its channel and records what became of it.

    `paces` say how fast each channel may send; one that is not named sends as fast as it goes.
    """

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        speak: Speak,
        *,
        paces: Mapping[str, Callable[[Conversation], Pace]] | None = None,
        receipts: Receipts | None = None,
        alerts: Alerts | None = None,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._speak = speak
        self._paces = paces or {}
        self._receipts = receipts or NoReceipts()
        self._alerts = alerts or MemoryAlerts()
        self._chance = chance
        self._sleep = sleep
        #: Channels whose pace this process has said: one that was changed since the last start becomes known.
        self._paced: set[str] = set()
        #: The fewer are under way at once, the fewer it is unknown of whether they arrived when this process is killed.
        self._turnstile = Turnstile()

    async def carry(self, lease: Lease, reply: QueuedReply, is_held: Callable[[], bool]) -> Work:
        """Send the reply and return what the lane holds next, None when nothing is left and the lane is let go.

        Sending is not fenced: `is_held` is asked last of all before it, for after a long pause of this process the lane
        may be somebody else's. Raises LaneParked when it has to wait, LaneLost.
        """
        delivery = reply.delivery(lease)
        if reply.is_forwarded:
            return await self._forward(lease, reply, delivery)
        channel = self._channels.get(delivery.conversation.channel)
        if channel is None:
            return await self._bury(lease, reply, "the channel is no longer configured")
        arrived = await self._arrived(reply, delivery)
        if arrived is not None:
            log.info("reply.had_arrived", extra={"delivery": delivery.id})
            return await reach(self._outbox.settle, lease, reply, receipt=arrived, let_go=True)
        if reply.closed:
            return await self._bury(lease, reply, reply.closed, "closed")
        if reply.held is not None:
            return await self._hold(lease, reply)
        pace = self._pace(delivery.conversation)
        await self._wait(lease, reply, delivery.conversation.channel, pace)
        await self._turnstile.step()
        if not is_held():
            raise LaneLost(lease.conversation)
        try:
            receipt = await self._send(channel, delivery, suspect=reply.suspect)
        except SendError as exc:
            return await self._failed(lease, reply, exc)
        self._receipts.note(delivery, receipt.message_id)
        if self._alerts.is_clearing_due(channel.name, "sending"):
            await offload(self._alerts.clear, channel.name, "sending")
        log.info("reply.sent", extra={"delivery": delivery.id, "suspect": reply.suspect})
        settle = partial(self._outbox.settle, receipt=receipt.message_id, written_at=receipt.written_at)
        return await reach(settle, lease, reply, gap=pace.chat_gap, let_go=True)

    async def _hold(self, lease: Lease, reply: QueuedReply) -> Work:
        """Nobody wrote since it was held: the platform is not asked again."""
        if reply.held is not None and reply.held >= KEEP_HELD_SECONDS:
            return await self._bury(lease, reply, f"WindowClosed: nobody wrote for {KEEP_HELD_SECONDS / 86400:g} days")
        await reach(self._outbox.postpone, lease, reply, 0.0, "held")
        raise LaneParked(lease.conversation)

    async def _arrived(self, reply: QueuedReply, delivery: Delivery) -> str | None:
        """The platform's id of a reply that an earlier holder sent, as far as anybody knows. None: it is to be sent."""
        if reply.receipt or not reply.suspect:
            return reply.receipt or None
        return await offload(self._receipts.find, delivery)

    async def _forward(self, lease: Lease, reply: QueuedReply, delivery: Delivery) -> Work:
        """Have another conversation say it: whatever is wrong with its platform holds nobody up in this one."""
        there = await reach(self._outbox.forward, delivery)
        if not there:
            return await self._bury(lease, reply, "too many replies wait in the conversation that it is for")
        log.info("reply.forwarded", extra={"delivery": delivery.id, "there": there})
        return await reach(self._outbox.settle, lease, reply, receipt=there, let_go=True)

    def _pace(self, conversation: Conversation) -> Pace:
        pace = self._paces.get(conversation.channel)
        return pace(conversation) if pace else Pace()

    async def _wait(self, lease: Lease, reply: QueuedReply, channel: str, pace: Pace) -> None:
        """Until it is this reply's turn. Raises LaneParked when that takes long."""
        wait = reply.wait
        if pace.per_second and (wait is None or channel not in self._paced):
            wait = await reach(self._outbox.pace, lease, reply, pace.per_second)
            self._paced.add(channel)
        wait = max(wait or 0.0, reply.ahead - (pace.burst - 1) * pace.chat_gap)
        if wait > MAX_HOLD_SECONDS:
            log.info("reply.waits", extra={"conversation": lease.conversation, "seconds": wait})
            await reach(self._outbox.postpone, lease, reply, wait, "paced")
            raise LaneParked(lease.conversation)
        if wait > 0:
            await self._sleep(wait)

    async def _failed(self, lease: Lease, reply: QueuedReply, error: SendError) -> Work:
        if isinstance(error, ChannelDown):
            return await self._wait_for_the_operator(lease, reply, error)
        waits = isinstance(error, RateLimited | Unreachable | Ambiguous | WindowClosed)
        if not waits or reply.attempt >= MAX_ATTEMPTS:
            return await self._give_up(lease, reply, error)
        wait, why = max(self._backoff(reply.attempt), _asked(error)), _why(error)
        extra = {"conversation": lease.conversation, "reason": str(error), "seconds": wait}
        log.warning("reply.held" if why == "held" else "reply.postponed", extra=extra)
        await reach(self._outbox.postpone, lease, reply, wait, why, f"{type(error).__name__}: {error}")
        raise LaneParked(lease.conversation)

    async def _wait_for_the_operator(self, lease: Lease, reply: QueuedReply, error: ChannelDown) -> Work:
        """No reply of the channel can arrive, and none is to blame: all are kept, and the operator hears why."""
        channel = lease.conversation.partition(":")[0]
        log.error("channel.down", extra={"channel": channel, "reason": str(error)})
        await offload(self._alerts.note, channel, str(error))
        await reach(self._outbox.postpone, lease, reply, DOWN_SECONDS, "down")
        raise LaneParked(lease.conversation)

    async def _give_up(self, lease: Lease, reply: QueuedReply, error: SendError) -> Work:
        return await self._bury(lease, reply, f"{type(error).__name__}: {error}", _end(error), _asked(error))

    async def _bury(self, lease: Lease, reply: QueuedReply, reason: str, end: End = "dead", gap: float = 0.0) -> Work:
        log.error("reply.dead", extra={"delivery": f"{lease.conversation}#{reply.number}", "reason": reason})
        return await reach(self._outbox.settle, lease, reply, dead=reason, end=end, gap=gap, let_go=True)

    async def _send(self, channel: Channel, delivery: Delivery, *, suspect: bool) -> Receipt:
        """Send. An adapter's own crash is tried again like a platform's: it cannot hold a conversation for ever."""
        try:
            return await channel.send(self._repeated(channel, delivery) if suspect else delivery)
        except (SendError, RedisError):
            raise
        except Exception as exc:
            log.exception("reply.crashed", extra={"delivery": delivery.id})
            raise Unreachable(f"the adapter broke: {type(exc).__name__}") from exc

    def _repeated(self, channel: Channel, delivery: Delivery) -> Delivery:
        """What is said when it may have arrived before: words again, marked; a file is asked for, not sent twice.

        What changes a message that is there already can be said twice.
        """
        reply = delivery.reply
        if reply.edits:
            return delivery
        words = self._speak(reply.language)
        if reply.media is not None:
            return replace(delivery, reply=Reply(words.maybe_missing(reply.media.filename), language=reply.language))
        marked = replace(reply, text=words.repeated(reply.text))
        # A message that is full already goes out as it was: the mark must not get it refused.
        return delivery if len(channel.pieces(marked)) > 1 else replace(delivery, reply=marked)

    def _backoff(self, attempt: int) -> float:
        ceiling = min(MAX_BACKOFF_SECONDS, 2.0**attempt)
        return ceiling * (0.5 + self._chance() / 2)


def _why(error: SendError) -> Why:
    if isinstance(error, RateLimited):
        return "limited"
    if isinstance(error, WindowClosed):
        return "held"
    return "suspect" if isinstance(error, Ambiguous) else "tried"


def _asked(error: SendError) -> float:
    """Seconds for which the platform asks to wait, as far as that is believed."""
    return min(max(0.0, error.retry_after), MAX_ASKED_SECONDS) if isinstance(error, RateLimited) else 0.0


def _end(error: SendError) -> End:
    if isinstance(error, AddressClosed):
        return "closed"
    if isinstance(error, RateLimited):
        return "limited"
    return "doubtful" if isinstance(error, Ambiguous) else "dead"
