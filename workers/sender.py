"""ReplySender: send the replies of a conversation, with rate limits, retries and an end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from redis.exceptions import RedisError

from sayso.channels.base import (
    AddressClosed,
    Channel,
    ChannelDown,
    DeliveryUncertain,
    RateLimit,
    RateLimited,
    SendError,
    Unreachable,
    WindowClosed,
)
from sayso.channels.http import backoff_seconds
from sayso.channels.i18n.texts import TextsForLanguage
from sayso.channels.types import Conversation, Delivery, Receipt, Reply
from sayso.pending.concurrency import call_in_thread
from sayso.pending.limits import KEEP_HELD_MS
from sayso.pending.turns import ConversationParked, Lease, LeaseLost, NextItem, QueuedReply
from sayso.workers.alerts import Alerts, MemoryAlerts
from sayso.workers.outbox import FinalState, NoReceipts, Outbox, PostponeReason, Receipts

log = logging.getLogger(__name__)

#: Attempts after which a reply is given up.
MAX_ATTEMPTS = 10
#: The longest pause between two attempts, in seconds, unless the platform asks for more.
MAX_BACKOFF_SECONDS = 60.0
#: The longest wait that a platform can ask for, in seconds: after a day it is tried again.
MAX_ASKED_SECONDS = 86400.0
#: Seconds during which nothing is sent on a channel that its platform does not accept.
DOWN_SECONDS = 60.0
#: Seconds for which a worker keeps a lease while a reply waits for its slot; for longer waits it releases the lease.
#: Less than what is left of a lease that was just renewed.
MAX_HOLD_SECONDS = 0.5


class ReplySender:
    """Sends one reply at a time to its channel and records the result.

    `paces` say how fast each channel may send; a channel without an entry has no limit.
    """

    def __init__(
        self,
        outbox: Outbox,
        channels: Mapping[str, Channel],
        texts_for: TextsForLanguage,
        *,
        paces: Mapping[str, Callable[[Conversation], RateLimit]] | None = None,
        receipts: Receipts | None = None,
        alerts: Alerts | None = None,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._outbox = outbox
        self._channels = channels
        self._texts_for = texts_for
        self._paces = paces or {}
        self._receipts = receipts or NoReceipts()
        self._alerts = alerts or MemoryAlerts()
        self._chance = chance
        self._sleep = sleep
        #: Channels whose rate this process has stored: a rate that changed since the last start becomes known.
        self._paced: set[str] = set()

    async def send(self, lease: Lease, reply: QueuedReply, is_held: Callable[[], bool]) -> NextItem:
        """Send the reply and return what the conversation holds next; None when nothing is left and its lease is
        released.

        Sending is not fenced: `is_held` is asked right before it, because after a long pause of this process another
        worker may have the lease. Raises ConversationParked when the reply has to wait, LeaseLost.
        """
        delivery = reply.delivery(lease)
        if reply.is_forwarded:
            return await self._forward(lease, reply, delivery)
        channel = self._channels.get(delivery.conversation.channel)
        if channel is None:
            return await self._give_up(lease, reply, "the channel is no longer configured")
        earlier_receipt = await self._earlier_receipt(reply, delivery)
        if earlier_receipt is not None:
            log.info("reply.already_sent", extra={"delivery": delivery.id})
            return await self._outbox.mark_delivered(lease, reply, receipt=earlier_receipt, let_go=True)
        if reply.closed:
            return await self._give_up(lease, reply, reply.closed, "closed")
        if reply.held is not None:
            return await self._hold(lease, reply)
        pace_of = self._paces.get(delivery.conversation.channel)
        pace = pace_of(delivery.conversation) if pace_of else RateLimit()
        await self._wait_for_slot(lease, reply, delivery.conversation.channel, pace)
        if not is_held():
            raise LeaseLost(lease.conversation)
        try:
            receipt = await self._send(channel, delivery, suspect=reply.suspect)
        except SendError as exc:
            return await self._failed(lease, reply, exc)
        self._receipts.note(delivery, receipt.message_id)
        if self._alerts.is_clearing_due(channel.name, "sending"):
            await call_in_thread(self._alerts.clear, channel.name, "sending")
        log.info("reply.sent", extra={"delivery": delivery.id, "suspect": reply.suspect})
        settle = partial(self._outbox.mark_delivered, receipt=receipt.message_id, written_at=receipt.written_at)
        return await settle(lease, reply, gap=pace.chat_gap, let_go=True)

    async def _hold(self, lease: Lease, reply: QueuedReply) -> NextItem:
        """Keep a held reply waiting: the user has not written since, so the platform is not asked again."""
        if reply.held is not None and reply.held >= KEEP_HELD_MS / 1000:
            return await self._give_up(
                lease, reply, f"WindowClosed: nobody wrote for {KEEP_HELD_MS / 1000 / 86400:g} days"
            )
        await self._outbox.postpone(lease, reply, 0.0, "held")
        raise ConversationParked(lease.conversation)

    async def _earlier_receipt(self, reply: QueuedReply, delivery: Delivery) -> str | None:
        """Return the platform's message id of a reply that an earlier worker sent; None if it is to be sent."""
        if reply.receipt or not reply.suspect:
            return reply.receipt or None
        return await call_in_thread(self._receipts.find, delivery)

    async def _forward(self, lease: Lease, reply: QueuedReply, delivery: Delivery) -> NextItem:
        """Append the reply to the outbox of another conversation: a problem with that platform delays nothing here."""
        there = await self._outbox.forward(delivery)
        if not there:
            return await self._give_up(lease, reply, "too many replies wait in the conversation that it is for")
        log.info("reply.forwarded", extra={"delivery": delivery.id, "there": there})
        return await self._outbox.mark_delivered(lease, reply, receipt=there, let_go=True)

    async def _wait_for_slot(self, lease: Lease, reply: QueuedReply, channel: str, pace: RateLimit) -> None:
        """Wait for the reply's slot. Raises ConversationParked when that takes long."""
        wait = reply.wait
        if pace.per_second and (wait is None or channel not in self._paced):
            wait = await self._outbox.book_slot(lease, reply, pace.per_second)
            self._paced.add(channel)
        wait = max(wait or 0.0, reply.ahead - (pace.burst - 1) * pace.chat_gap)
        if wait > MAX_HOLD_SECONDS:
            log.info("reply.rate_limited", extra={"conversation": lease.conversation, "seconds": wait})
            await self._outbox.postpone(lease, reply, wait, "paced")
            raise ConversationParked(lease.conversation)
        if wait > 0:
            await self._sleep(wait)

    async def _failed(self, lease: Lease, reply: QueuedReply, error: SendError) -> NextItem:
        if isinstance(error, ChannelDown):
            return await self._alert_operator(lease, reply, error)
        waits = isinstance(error, RateLimited | Unreachable | DeliveryUncertain | WindowClosed)
        if not waits or reply.attempt >= MAX_ATTEMPTS:
            reason = f"{type(error).__name__}: {error}"
            return await self._give_up(lease, reply, reason, _end(error), _asked_seconds(error))
        pause = backoff_seconds(reply.attempt, first=2.0, longest=MAX_BACKOFF_SECONDS, chance=self._chance())
        wait, why = max(pause, _asked_seconds(error)), _why(error)
        extra = {"conversation": lease.conversation, "reason": str(error), "seconds": wait}
        log.warning("reply.held" if why == "held" else "reply.postponed", extra=extra)
        await self._outbox.postpone(lease, reply, wait, why, f"{type(error).__name__}: {error}")
        raise ConversationParked(lease.conversation)

    async def _alert_operator(self, lease: Lease, reply: QueuedReply, error: ChannelDown) -> NextItem:
        """Postpone the reply and alert the operator: the platform does not accept the channel, and no reply is at
        fault.
        """
        channel = lease.conversation.partition(":")[0]
        log.error("channel.down", extra={"channel": channel, "reason": str(error)})
        await call_in_thread(self._alerts.note, channel, str(error))
        await self._outbox.postpone(lease, reply, DOWN_SECONDS, "down")
        raise ConversationParked(lease.conversation)

    async def _give_up(
        self, lease: Lease, reply: QueuedReply, reason: str, end: FinalState = "dead", gap: float = 0.0
    ) -> NextItem:
        """Record that the reply will not be sent, and return what is next."""
        log.error("reply.dead", extra={"delivery": f"{lease.conversation}#{reply.number}", "reason": reason})
        return await self._outbox.mark_delivered(lease, reply, dead=reason, end=end, gap=gap, let_go=True)

    async def _send(self, channel: Channel, delivery: Delivery, *, suspect: bool) -> Receipt:
        """Send. A crash of the adapter counts as a failed attempt: it cannot block a conversation forever."""
        try:
            return await channel.send(self._marked_as_repeated(channel, delivery) if suspect else delivery)
        except (SendError, RedisError):
            raise
        except Exception as exc:
            log.exception("reply.crashed", extra={"delivery": delivery.id})
            raise Unreachable(f"the adapter broke: {type(exc).__name__}") from exc

    def _marked_as_repeated(self, channel: Channel, delivery: Delivery) -> Delivery:
        """Return the delivery for a reply that may have arrived before: text is marked as repeated, a file is only
        asked about.

        An edit of an existing message can be sent twice as it is.
        """
        reply = delivery.reply
        if reply.edits:
            return delivery
        texts = self._texts_for(reply.language)
        if reply.media is not None:
            return replace(delivery, reply=Reply(texts.maybe_missing(reply.media.filename), language=reply.language))
        marked = replace(reply, text=texts.repeated(reply.text))
        # A message of the maximum length is sent without the mark: the platform would refuse it.
        return delivery if len(channel.split(marked)) > 1 else replace(delivery, reply=marked)


def _why(error: SendError) -> PostponeReason:
    if isinstance(error, RateLimited):
        return "limited"
    if isinstance(error, WindowClosed):
        return "held"
    return "suspect" if isinstance(error, DeliveryUncertain) else "tried"


def _asked_seconds(error: SendError) -> float:
    """Return the seconds that the platform asks to wait, capped."""
    return min(max(0.0, error.retry_after), MAX_ASKED_SECONDS) if isinstance(error, RateLimited) else 0.0


def _end(error: SendError) -> FinalState:
    if isinstance(error, AddressClosed):
        return "closed"
    if isinstance(error, RateLimited):
        return "limited"
    return "doubtful" if isinstance(error, DeliveryUncertain) else "dead"
