"""Outbox: replies that must reach a channel at least once, in order, whoever dies on the way."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from redis.exceptions import RedisError

from channels.base import Ambiguous, Channel, RateLimited, SendError, Unreachable
from channels.types import Delivery, Receipt, Reply
from workers.lane import LaneLost, LaneParked, Lease, QueuedReply, Work, read_work
from workers.offload import reach
from workers.redis import Scripts
from workers.words import Speak

log = logging.getLogger(__name__)

#: A reply is given up after this many tries.
MAX_ATTEMPTS = 10
#: The longest pause between two tries, in seconds, unless the platform asks for more.
MAX_BACKOFF_SECONDS = 60.0


class Outbox(Protocol):
    """The replies of each lane, first in first out."""

    def settle(self, lease: Lease, reply: QueuedReply, *, receipt: str = "", dead: str = "") -> Work:
        """The reply was sent, or is given up for the reason `dead`. What it previewed may be answered now."""

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, *, suspect: bool = False) -> None:
        """Try again later: the lane is let go until then. `suspect` says that this try may have arrived."""


class RedisOutbox:
    """The outbox in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def settle(self, lease: Lease, reply: QueuedReply, *, receipt: str = "", dead: str = "") -> Work:
        """Drop the reply from the outbox. Raises LaneLost."""
        outcome, detail = ("dead", dead) if dead else ("sent", receipt)
        answer = self._scripts.run(
            "settle", lease.conversation, lease.epoch, lease.token, reply.number, outcome, detail
        )
        if answer[0] == "lost":
            raise LaneLost(lease.conversation)
        return read_work(answer[1])

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, *, suspect: bool = False) -> None:
        """Park the lane. Raises LaneLost."""
        delay_ms = round(seconds * 1000)
        flag = "1" if suspect else "0"
        answer = self._scripts.run(
            "postpone", lease.conversation, lease.epoch, lease.token, reply.number, delay_ms, flag
        )
        if answer == "lost":
            raise LaneLost(lease.conversation)


class Postman:
    """Carries one reply at a time to its channel and records what became of it."""

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        speak: Speak,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._speak = speak
        self._chance = chance

    async def carry(self, lease: Lease, reply: QueuedReply) -> Work:
        """Send the reply and return what the lane holds next. Raises LaneParked when it has to wait, LaneLost."""
        delivery = reply.delivery(lease)
        channel = self._channels.get(delivery.conversation.channel)
        if channel is None:
            return await self._bury(lease, reply, "the channel is no longer configured")
        try:
            receipt = await _send(channel, self._repeated(channel, delivery) if reply.suspect else delivery)
        except SendError as exc:
            return await self._failed(lease, reply, exc)
        log.info("reply.sent", extra={"delivery": delivery.id, "suspect": reply.suspect})
        return await reach(self._outbox.settle, lease, reply, receipt=receipt.message_id)

    async def _failed(self, lease: Lease, reply: QueuedReply, error: SendError) -> Work:
        waits = isinstance(error, RateLimited | Unreachable | Ambiguous)
        if not waits or reply.attempt >= MAX_ATTEMPTS:
            return await self._bury(lease, reply, f"{type(error).__name__}: {error}")
        wait = error.retry_after if isinstance(error, RateLimited) else self._backoff(reply.attempt)
        extra = {"conversation": lease.conversation, "reason": str(error), "seconds": wait}
        log.warning("reply.postponed", extra=extra)
        await reach(self._outbox.postpone, lease, reply, wait, suspect=isinstance(error, Ambiguous))
        raise LaneParked(lease.conversation)

    async def _bury(self, lease: Lease, reply: QueuedReply, reason: str) -> Work:
        log.error("reply.dead", extra={"conversation": lease.conversation, "reason": reason})
        return await reach(self._outbox.settle, lease, reply, dead=reason)

    def _repeated(self, channel: Channel, delivery: Delivery) -> Delivery:
        """What is said when it may have arrived before: words again, marked; a file is asked for, not sent twice."""
        reply = delivery.reply
        words = self._speak(reply.language)
        if reply.media is not None:
            return replace(delivery, reply=Reply(words.maybe_missing(reply.media.filename), language=reply.language))
        marked = replace(reply, text=words.repeated(reply.text))
        # A message that is full already goes out as it was: the mark must not get it refused.
        return delivery if len(channel.pieces(marked)) > 1 else replace(delivery, reply=marked)

    def _backoff(self, attempt: int) -> float:
        ceiling = min(MAX_BACKOFF_SECONDS, 2.0**attempt)
        return ceiling * (0.5 + self._chance() / 2)


async def _send(channel: Channel, delivery: Delivery) -> Receipt:
    """Send. An adapter's own crash is tried again like a platform's, so that it cannot hold a conversation for ever."""
    try:
        return await channel.send(delivery)
    except (SendError, RedisError):
        raise
    except Exception as exc:
        log.exception("reply.crashed", extra={"delivery": delivery.id})
        raise Unreachable(f"the adapter broke: {type(exc).__name__}") from exc
