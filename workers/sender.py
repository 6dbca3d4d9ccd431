"""ReplySender, which sends the replies of a conversation one by one, and RedisOutbox, their queue.

A reply waits for the rate limit of its channel, and is tried again after an error, until it is
delivered or given up. `decide_after_error` says which of these an error leads to.

A worker may be killed after a platform took a reply and before Redis knows it. Then the reply is
*doubtful*: the next worker looks for a receipt of it (ReceiptFiles, on the disk of the machine),
and sends it again, marked as repeated, if there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import RedisError

from sayso.channels.base import (
    AddressBarred,
    AddressClosed,
    Channel,
    ChannelDown,
    ChatBarred,
    ConversationRateLimited,
    DeliveryUncertain,
    OptedOut,
    RateLimit,
    RateLimited,
    RecognizesPeople,
    SendError,
    TemplateRefused,
    Unreachable,
    WindowClosed,
)
from sayso.channels.types import Conversation, Delivery, PriceClass, Receipt, Reply
from sayso.infra import tracing
from sayso.infra.backoff import backoff_seconds
from sayso.infra.concurrency import call_in_thread
from sayso.infra.metrics import DELIVERIES, MESSAGES, SEND_SECONDS
from sayso.infra.records import OtherVersion
from sayso.infra.redis.scripts import Arguments
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.stored_limits import KEEP_HELD_MS
from sayso.pending.turn_changes import outbox_entry
from sayso.pending.turns import (
    ConversationParked,
    Lease,
    LeaseLost,
    NextItem,
    QueuedReply,
    ReplyTrace,
)
from sayso.workers.alerts import RedisAlerts
from sayso.workers.ingress import log_refused_template
from sayso.workers.mailbox import parse_or_release
from sayso.workers.platform_places import PlatformPlaces
from sayso.workers.wake_ups import WakeUp, no_wake_up

if TYPE_CHECKING:
    from sayso.channels.i18n.texts import TextsForLanguage

log = logging.getLogger(__name__)

#: After how many attempts a reply is given up.
MAX_SEND_ATTEMPTS = 10
#: The longest pause between two attempts, in seconds, unless the platform asks for more.
MAX_BACKOFF_SECONDS = 60.0
#: The longest wait that a platform can ask for, in seconds. After a day it is tried again.
MAX_ASKED_SECONDS = 86400.0
#: For how many seconds nothing is sent on a channel that its platform does not accept.
DOWN_SECONDS = 60.0
#: For how many seconds a worker keeps a lease while a reply waits for its slot. For longer waits it
#: releases the lease, so that it can work on other conversations.
MAX_HOLD_SECONDS = 0.5
#: How many files a process sends to one platform at a time. Each holds a connection.
MAX_FILES_SENT = 4
#: How a reply ends that is given up:
#:   dead         it cannot arrive
#:   doubtful     its last attempt may have arrived
#:   closed       its address takes no messages
#:   opted_out    its person wants no messages
#:   barred       the bot may not write there
#:   chat_barred  the bot may not write in any thread of the chat
#:   limited      the platform asks the whole channel to wait
FinalState = Literal["dead", "doubtful", "closed", "opted_out", "barred", "chat_barred", "limited"]
#: Why a reply is postponed:
#:   tried         the attempt failed
#:   suspect       the attempt may have arrived
#:   limited       the platform asks the whole channel to wait
#:   down          the platform does not accept the channel; not counted as an attempt
#:   rate_limited  its slot is later; not counted as an attempt
#:   held          the user must write first
PostponeReason = Literal["tried", "suspect", "limited", "down", "rate_limited", "held"]
#: What follows an error: why the reply is postponed (None: it is given up at once), and how it ends
#: when it is given up. The first row whose error fits counts.
_AFTER_ERROR: tuple[tuple[type[SendError], PostponeReason | None, FinalState], ...] = (
    (ConversationRateLimited, "tried", "dead"),
    (RateLimited, "limited", "limited"),
    (WindowClosed, "held", "dead"),
    (DeliveryUncertain, "suspect", "doubtful"),
    (Unreachable, "tried", "dead"),
    (ChatBarred, None, "chat_barred"),
    (AddressBarred, None, "barred"),
    (OptedOut, None, "opted_out"),
    (AddressClosed, None, "closed"),
    (SendError, None, "dead"),
)
#: The folder's name in the data folder.
RECEIPTS = "receipts"
#: The size of one file in bytes, about 1,500 receipts. Then a new file is begun, and only the one
#: before it is kept.
MAX_RECEIPTS_BYTES = 256 * 1024
#: For how many seconds a receipt is looked for. While Redis is up, the next worker takes over the
#: conversation of a killed one much sooner.
KEEP_RECEIPTS_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Sent:
    """The platform accepted a reply."""

    #: The platform's id of the message, "" if it gave none.
    receipt: str = ""
    #: When the platform shows the reply, in Unix seconds; 0.0 if it does not say.
    written_at: float = 0.0
    #: Seconds by which the reply brings its chat ahead of the chat's rate limit.
    gap: float = 0.0
    #: The class by which the platform charges the reply.
    price_class: PriceClass = "free"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A reply will not be sent."""

    #: Why, in words for an operator.
    reason: str
    end: FinalState = "dead"
    #: Seconds for which nothing is sent on the channel, if the end is `limited`.
    pause: float = 0.0
    #: The reason in `sayso_deliveries_total`: the class of the error, or another short name.
    error: str = ""


@dataclass(frozen=True, slots=True)
class Postponed:
    """A reply is tried again later."""

    #: What the outbox has to know of the error.
    why: PostponeReason
    #: After how many seconds the reply is tried again.
    seconds: float
    #: Why, in words for an operator; "" if the log says it already.
    reason: str = ""


def decide_after_error(error: SendError, attempt: int, *, chance: float) -> Postponed | GivenUp:
    """Return what becomes of a reply whose sending failed. Reads no clock, changes nothing.

    `attempt` is the number of the attempt that failed, from 1; `chance`, from 0 to 1, spreads the
    pauses of many replies.
    """
    # A channel that its platform does not accept is no fault of the reply: no attempt is counted.
    if isinstance(error, ChannelDown):
        return Postponed("down", DOWN_SECONDS)

    asked = 0.0
    if isinstance(error, RateLimited):
        asked = min(max(0.0, error.retry_after), MAX_ASKED_SECONDS)
    kind = type(error).__name__
    reason = f"{kind}: {error}"
    _, why, end = next(row for row in _AFTER_ERROR if isinstance(error, row[0]))
    if why is None or attempt >= MAX_SEND_ATTEMPTS:
        return GivenUp(reason, end, pause=asked, error=kind)

    pause = backoff_seconds(attempt, first=2.0, longest=MAX_BACKOFF_SECONDS, chance=chance)
    return Postponed(why, max(pause, asked), reason)


def log_failed_send(delivery: Delivery, error: SendError, following: Postponed | GivenUp) -> None:
    """Log an attempt to send that failed, without the text of the reply.

    For a reply that is given up, `reply.dead` follows. docs/reference/observability.md explains
    each event.
    """
    conversation = delivery.conversation
    extra: dict[str, Any] = {"delivery": delivery.id, "reason": str(error)}

    # What an operator has to mend.
    if isinstance(error, ChannelDown):
        log.error("channel.down", extra={"channel": conversation.channel, **extra})
        return
    if isinstance(error, AddressBarred):
        address = conversation.id
        if isinstance(error, ChatBarred):
            address = conversation.chat_id
        cure = "give the bot the right to write there"
        barred = {"conversation": address, "reason": str(error), "cure": cure}
        log.error("address.barred", extra=barred)
    if isinstance(error, TemplateRefused):
        log_refused_template(conversation.channel, error.refusal)

    # What becomes of the reply.
    if isinstance(following, Postponed):
        event = "reply.postponed"
        if following.why == "held":
            event = "reply.held"
        log.warning(event, extra={**extra, "seconds": following.seconds})


class ReplySender:
    """Sends one reply at a time to its channel, and records the result. One per worker process."""

    def __init__(
        self,
        outbox: RedisOutbox,
        channels: Mapping[str, Channel],
        texts_for: TextsForLanguage,
        *,
        receipts: ReceiptFiles,
        alerts: RedisAlerts,
        rates: Mapping[str, float] | None = None,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`channels`: the adapters, by name. `rates`: the messages a second that an account allows,
        by channel, 0 for no limit; for other channels the limit of the platform holds. `chance`:
        returns a random number from 0 to 1, which spreads the pauses of many replies.
        """
        self._outbox = outbox
        self._channels = channels
        self._texts_for = texts_for
        self._rates = rates or {}
        self._receipts = receipts
        self._alerts = alerts
        self._chance = chance
        self._sleep = sleep
        self._file_places = PlatformPlaces(MAX_FILES_SENT)
        #: Names of channels whose rate this process has stored in Redis. Each process stores it
        #: once, so that a rate that was changed in the configuration becomes known.
        self._stored_rates: set[str] = set()

    async def send(self, lease: Lease, reply: QueuedReply, is_held: Callable[[], bool]) -> NextItem:
        """Send the reply, and return what is next in the conversation.

        None: nothing is left, and the lease is released. `is_held` returns whether the lease is
        still held. It is called right before the reply is sent: no platform checks a fencing token,
        and after a long pause of this process another worker may have the lease.

        Raises ConversationParked when the reply has to wait, LeaseLost, and redis.RedisError. After
        the latter the reply is still the next one, and it may have been sent: the next worker takes
        it for doubtful.
        """
        if reply.is_forwarded:
            return await self._forward(lease, reply)

        delivery = reply.delivery(lease)
        channel = self._channels.get(delivery.conversation.channel)
        if channel is None:
            no_channel = GivenUp("the channel is no longer configured", error="no_channel")
            return await self._give_up(lease, reply, no_channel)

        receipt = await self._earlier_receipt(reply, delivery)
        if receipt is not None:
            log.info("reply.already_sent", extra={"delivery": delivery.id})
            sent = Sent(receipt.message_id, receipt.written_at, price_class=receipt.price_class)
            following = await self._outbox.mark_delivered(lease, reply, sent, let_go=True)
            DELIVERIES.labels(channel.name, "already_sent", "").inc()
            return following

        if reply.closed_reason:
            closed = GivenUp(reply.closed_reason, "closed", error="AddressClosed")
            return await self._give_up(lease, reply, closed)

        # The reply waits for the user to write, who has not: the platform would refuse it again.
        if reply.held_seconds is not None:
            if reply.held_seconds >= KEEP_HELD_MS / 1000:
                days = KEEP_HELD_MS / 1000 / 86400
                reason = f"WindowClosed: the user did not write for {days:g} days"
                return await self._give_up(lease, reply, GivenUp(reason, error="WindowClosed"))
            await self._outbox.postpone(lease, reply, 0.0, "held")
            raise ConversationParked(lease.conversation)
        return await self._attempt(lease, reply, channel, delivery, is_held)

    async def _earlier_receipt(self, reply: QueuedReply, delivery: Delivery) -> Receipt | None:
        """Return the proof that an earlier attempt delivered the reply, None if there is none.

        A worker that was killed may have noted it on the disk of this machine. Otherwise the
        platform may have reported the message to a webhook, which names no price class.
        """
        if reply.is_doubtful:
            noted = await call_in_thread(self._receipts.find, delivery)
            if noted is not None:
                return noted
        if reply.receipt:
            return Receipt(reply.receipt)
        return None

    async def _forward(self, lease: Lease, reply: QueuedReply) -> NextItem:
        """Move what the outbox holds for another conversation there.

        A reply is sent from there, so that a problem with that platform delays nothing here.
        """
        trace = _trace_of(reply)
        with tracing.span(
            "forward reply", parent=trace.parent, links=[trace.link], kind="producer"
        ):
            there = await self._forwarded(lease, reply)
        delivery_id = reply.delivery_id(lease)
        if not there:
            reason = "too many replies wait in the conversation that it is for"
            return await self._give_up(lease, reply, GivenUp(reason, error="full"))
        log.info("reply.forwarded", extra={"delivery": delivery_id, "there": there})
        return await self._outbox.mark_delivered(lease, reply, Sent(there), let_go=True)

    async def _forwarded(self, lease: Lease, reply: QueuedReply) -> str:
        """Move an entry, and return what it became there, "" if there is no room for it."""
        entry = json.loads(reply.text)
        if "reply" in entry:
            delivery = await self._at_present_address(reply.delivery(lease))
            return await self._outbox.forward(delivery)
        return await self._outbox.forward_entry(reply.delivery_id(lease), entry)

    async def _at_present_address(self, delivery: Delivery) -> Delivery:
        """Return the delivery for the conversation of the person who has its address now."""
        channel = self._channels.get(delivery.conversation.channel)
        if not isinstance(channel, RecognizesPeople):
            return delivery
        conversation = await call_in_thread(channel.conversation_of, delivery.conversation)
        return replace(delivery, conversation=conversation)

    async def _attempt(
        self,
        lease: Lease,
        reply: QueuedReply,
        channel: Channel,
        delivery: Delivery,
        is_held: Callable[[], bool],
    ) -> NextItem:
        """Send the reply when the rate limit allows it, and record the result."""
        limit = self._rate_limit(channel, delivery.conversation)
        # The answer to a tap is no message of the chat, whose limit does not count it.
        if delivery.reply.answers_tap:
            limit = replace(limit, chat_gap=0.0)
            reply = replace(reply, ahead_seconds=0.0)
        await self._wait_for_slot(lease, reply, channel.name, limit)

        place: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        if delivery.reply.media:
            place = self._file_places.of(channel)
        async with place:
            # The wait for a place has no limit. Another task renews the lease meanwhile.
            if not is_held():
                raise LeaseLost(lease.conversation)
            answer = await self._send_traced(channel, reply, delivery)
        if isinstance(answer, SendError):
            return await self._handle_failure(lease, reply, answer)

        self._note_sent(channel, delivery, answer)
        if self._alerts.is_clearing_due(channel.name, "sending"):
            await call_in_thread(self._alerts.clear, channel.name, "sending")
        log.info("reply.sent", extra={"delivery": delivery.id, "suspect": reply.is_doubtful})
        sent = Sent(answer.message_id, answer.written_at, limit.chat_gap, answer.price_class)
        return await self._outbox.mark_delivered(lease, reply, sent, let_go=True)

    async def _send_traced(
        self, channel: Channel, reply: QueuedReply, delivery: Delivery
    ) -> Receipt | SendError:
        """Send the reply within a span, and measure how long that takes.

        Return the receipt of the platform, or the error. Raises RedisError.
        """
        attributes = {
            tracing.CHANNEL: channel.name,
            tracing.DELIVERY: delivery.id,
            tracing.ATTEMPT: reply.attempt,
        }
        trace = _trace_of(reply)
        answer: Receipt | SendError
        began = time.perf_counter()
        try:
            with tracing.span(
                f"send {channel.name}",
                parent=trace.parent,
                links=[trace.link],
                kind="client",
                attributes=attributes,
            ) as span:
                answer = await self._send(channel, delivery, suspect=reply.is_doubtful)
                span.set_attribute(tracing.MESSAGE_ID, answer.message_id)
        except SendError as exc:
            answer = exc
        SEND_SECONDS.labels(channel.name).observe(time.perf_counter() - began)
        return answer

    def _note_sent(self, channel: Channel, delivery: Delivery, receipt: Receipt) -> None:
        """Note on this machine that the platform took the reply, before Redis is told.

        The reply is counted here, because the message exists even if Redis never learns of it.
        """
        result = _result_of(delivery.reply, receipt)
        DELIVERIES.labels(channel.name, result, "").inc()
        if result != "left_out":
            MESSAGES.labels(channel.name, receipt.price_class).inc()
        self._receipts.note(delivery, receipt)

    def _rate_limit(self, channel: Channel, conversation: Conversation) -> RateLimit:
        """Return how fast the channel may send to a conversation.

        A rate in the configuration replaces that of the platform; 0 is no limit at all.
        """
        rate = self._rates.get(channel.name)
        if rate == 0:
            return RateLimit()
        limit = channel.rate_limit(conversation)
        if rate is None:
            return limit
        return replace(limit, per_second=rate)

    async def _wait_for_slot(
        self, lease: Lease, reply: QueuedReply, channel_name: str, limit: RateLimit
    ) -> None:
        """Wait until the rate limits of the channel and of the chat allow the reply.

        Raises ConversationParked when that takes longer than MAX_HOLD_SECONDS.
        """
        channel_wait = await self._channel_wait(lease, reply, channel_name, limit)
        # The first `burst` messages need no gap between them, so a chat may be ahead of its limit
        # by the gaps of all but one of them.
        chat_wait = reply.ahead_seconds - (limit.burst - 1) * limit.chat_gap
        wait = max(channel_wait, chat_wait)
        if wait > MAX_HOLD_SECONDS:
            log.info(
                "reply.rate_limited", extra={"delivery": reply.delivery_id(lease), "seconds": wait}
            )
            await self._outbox.postpone(lease, reply, wait, "rate_limited")
            raise ConversationParked(lease.conversation)
        if wait > 0:
            await self._sleep(wait)

    async def _channel_wait(
        self, lease: Lease, reply: QueuedReply, channel_name: str, limit: RateLimit
    ) -> float:
        """Return in how many seconds the channel's rate limit allows the reply.

        A reply comes with its wait (`wait_seconds`) where Redis knows the limit: the script that
        returned the reply has booked its slot. Only where that does not suffice, another call
        stores the limit of the configuration and books the slot.
        """
        if reply.rate_is_elsewhere:
            must_ask = True
        elif limit.per_second:
            must_ask = reply.wait_seconds is None or channel_name not in self._stored_rates
        else:
            # Without a limit there is a wait only if the platform has asked the channel to wait, or
            # if Redis still has the limit of an earlier configuration, which the call deletes.
            must_ask = reply.wait_seconds is not None
        if not must_ask:
            return reply.wait_seconds or 0.0

        wait = await self._outbox.book_slot(lease, reply, limit.per_second)
        self._stored_rates.add(channel_name)
        return wait

    async def _handle_failure(self, lease: Lease, reply: QueuedReply, error: SendError) -> NextItem:
        """Postpone the reply, or give it up and return what is next.

        Raises ConversationParked for a reply that is postponed.
        """
        channel = lease.conversation.partition(":")[0]
        following = decide_after_error(error, reply.attempt, chance=self._chance())
        delivery = reply.delivery(lease)
        if isinstance(error, WindowClosed) and not delivery.reply.may_wait:
            following = GivenUp(f"WindowClosed: {error}", error="WindowClosed")
        log_failed_send(delivery, error, following)

        if isinstance(error, ChannelDown):
            await call_in_thread(self._alerts.note, channel, str(error))
        if isinstance(error, TemplateRefused):
            await call_in_thread(self._alerts.note, channel, error.refusal.alert, "templates")

        if isinstance(following, GivenUp):
            return await self._give_up(lease, reply, following)
        # This counts attempts, so it counts one that cannot be recorded, too.
        DELIVERIES.labels(channel, "postponed", type(error).__name__).inc()
        await self._outbox.postpone(
            lease,
            reply,
            following.seconds,
            following.why,
            following.reason,
        )
        raise ConversationParked(lease.conversation)

    async def _give_up(self, lease: Lease, reply: QueuedReply, result: GivenUp) -> NextItem:
        """Record that the reply will not be sent, and return what is next."""
        log.error(
            "reply.dead", extra={"delivery": reply.delivery_id(lease), "reason": result.reason}
        )
        following = await self._outbox.mark_delivered(lease, reply, result, let_go=True)
        # Counted only after it is recorded: a worker that has lost its lease leaves the reply to
        # another worker, which counts it.
        DELIVERIES.labels(lease.conversation.partition(":")[0], "dead", result.error).inc()
        return following

    async def _send(self, channel: Channel, delivery: Delivery, *, suspect: bool) -> Receipt:
        """Send the reply, and return the receipt of its platform. Raises SendError and RedisError.

        `suspect`: an earlier attempt may have delivered the reply. A crash of the adapter counts as
        a failed attempt, so that it cannot block a conversation forever. The adapter may have
        crashed over the answer of its platform, so the reply may have arrived.
        """
        try:
            if suspect:
                delivery = self._marked_as_repeated(channel, delivery)
            return await channel.send(delivery)
        except (SendError, RedisError):
            raise
        except OtherVersion as exc:
            raise Unreachable(f"what it needs was stored by another release: {exc}") from exc
        except Exception as exc:
            log.exception("reply.crashed", extra={"delivery": delivery.id})
            raise DeliveryUncertain(f"the adapter broke: {type(exc).__name__}") from exc

    def _marked_as_repeated(self, channel: Channel, delivery: Delivery) -> Delivery:
        """Return the delivery of a reply that may have arrived already.

        A text is marked as repeated. A file is not sent again: the person is asked whether it is
        missing, below the text that stood above it. Where the platform's longest message has no
        room for that, only the text is sent, as it was: it must not be lost. An edit of an existing
        message can be sent twice without a mark.
        """
        reply = delivery.reply
        if reply.edits:
            return delivery

        texts = self._texts_for(reply.language)
        if reply.media is None:
            marked = replace(reply, text=texts.repeated(reply.text))
        else:
            text = texts.maybe_missing(reply.media.filename)
            if reply.text:
                text = f"{texts.repeated(reply.text)}\n\n{text}"
            marked = replace(reply, text=text, media=None)
        if len(channel.split(marked)) > 1:
            marked = replace(reply, media=None)
        return replace(delivery, reply=marked)


def _trace_of(reply: QueuedReply) -> ReplyTrace:
    """Return the traces of the reply; none while nothing is traced, since it costs a parse."""
    if tracing.is_tracing():
        return reply.trace
    return ReplyTrace(parent="", link="")


def _result_of(reply: Reply, receipt: Receipt) -> Literal["sent", "edited", "left_out"]:
    """Return what became of a reply that its platform took, for its counter.

    An edit that is impossible is sent as a new message, or left out if it is optional.
    """
    if not reply.edits:
        return "sent"
    if not receipt.message_id and reply.optional:
        return "left_out"
    if receipt.message_id in ("", reply.edits):
        return "edited"
    return "sent"


class RedisOutbox:
    """The replies of each conversation, first in first out. One per process.

    Each call runs one script in Redis, or two or three where other shards store a part of it. It is
    safe to repeat, even if only the first of them ran. All methods raise redis.RedisError.
    """

    def __init__(self, scripts: ShardedScripts, wake_up: WakeUp = no_wake_up) -> None:
        """`wake_up`: makes the job that wakes a worker for a forwarded reply."""
        self._scripts = scripts
        self._wake_up = wake_up

    async def mark_delivered(
        self, lease: Lease, reply: QueuedReply, result: Sent | GivenUp, *, let_go: bool = False
    ) -> NextItem:
        """Record that the reply was sent or is given up, and remove it from the outbox.

        Return what is next, None if nothing is left. The window to answer a question opens here,
        when its last piece was sent. `let_go`: release the lease if nothing is left to do. Raises
        LeaseLost.
        """
        # delivered.lua explains the arguments.
        args: dict[str, Any] = {**_reply_args(lease, reply), "let_go": let_go}
        match result:
            case Sent():
                args |= {
                    "outcome": "sent",
                    "detail": "".join(result.receipt.split()),
                    "ms": round(result.gap * 1000),
                    # As text: Lua would write so large a number with an exponent.
                    "written_at": str(round(result.written_at * 1_000_000)),
                    "cause": reply.cause,
                    "price_class": result.price_class,
                }
            case GivenUp():
                args |= {
                    "outcome": result.end,
                    "detail": result.reason,
                    "ms": round(result.pause * 1000),
                    "written_at": "0",
                    "cause": "",
                    "price_class": "free",
                }

        # Two things are in another shard than the conversation, and are stored there first: the
        # rate of the channel on a cluster, and what holds for the whole chat.
        if isinstance(result, GivenUp):
            if result.end == "limited" and reply.rate_is_elsewhere:
                await self._silence(lease, result.pause)
            if result.end == "chat_barred":
                await self._note_chat(lease, reply, barred=True)

        answer = json.loads(await self._scripts.arun("delivered", lease.conversation, args))
        if answer["status"] == "lost":
            raise LeaseLost(lease.conversation)
        # The message shows that the bot may write in the chat again.
        if answer["lifts_bar"]:
            await self._note_chat(lease, reply, barred=False)
        return await parse_or_release(self._scripts, lease, answer["next_item"])

    async def _note_chat(self, lease: Lease, reply: QueuedReply, *, barred: bool) -> None:
        """Store whether the bot may write in the threads of the reply's chat.

        That is stored with the chat, which may be in another shard than its threads.
        """
        chat = reply.delivery(lease).conversation.chat_id
        await self._scripts.arun("bar_chat", chat, {"barred": barred})

    async def postpone(
        self,
        lease: Lease,
        reply: QueuedReply,
        seconds: float,
        why: PostponeReason = "tried",
        reason: str = "",
    ) -> None:
        """Postpone the reply by `seconds` and release the lease. Raises LeaseLost.

        `limited`: the whole channel waits so long. `down`: the whole channel waits, and no attempt
        is counted. `held`: the reply waits until the user writes, for KEEP_HELD_MS at most; if a
        turn of the user waits already, the reply is tried again and an attempt is counted. `reason`
        is what an operator reads.
        """
        # On a cluster, the whole channel is silenced apart. The reply keeps its place in the line:
        # it is marked with the number of its next attempt.
        if reply.rate_is_elsewhere and why in ("limited", "down"):
            next_attempt = reply.attempt
            if why == "limited":
                next_attempt += 1
            await self._silence(lease, seconds, f"{reply.number}:{next_attempt}")

        args = {
            **_reply_args(lease, reply),
            "delay_ms": round(seconds * 1000),
            "why": why,
            "reason": reason,
        }
        if await self._scripts.arun("postpone_reply", lease.conversation, args) == "lost":
            raise LeaseLost(lease.conversation)

    async def book_slot(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Store how fast the reply's channel may send, and book a slot for the reply.

        Return the seconds until the slot. `per_second` is the rate in messages a second, 0 for no
        limit: then the reply waits only if the platform has asked the channel to wait. Raises
        LeaseLost.
        """
        gap_ms = 0.0
        if per_second:
            gap_ms = 1000 / per_second
        if reply.rate_is_elsewhere:
            # The slot is that of this attempt: a repeated call books no second one.
            mark = f"{reply.number}:{reply.attempt}"
            answer = await self._run_for_channel(
                "channel_slot", lease.conversation, {"gap_ms": gap_ms, "mark": mark}
            )
        else:
            args = {**_reply_args(lease, reply), "gap_ms": gap_ms}
            answer = await self._scripts.arun("book_slot", lease.conversation, args)
        if answer == "lost":
            raise LeaseLost(lease.conversation)
        return int(answer) / 1000

    async def _silence(self, lease: Lease, seconds: float, mark: str = "") -> None:
        """Let nothing be sent on a channel for some seconds, where its rate is elsewhere.

        `mark` names the reply that goes first after that, "" for none.
        """
        args = {"ms": round(seconds * 1000), "mark": mark}
        await self._run_for_channel("channel_silence", lease.conversation, args)

    async def _run_for_channel(self, name: str, conversation: str, args: Arguments) -> Any:
        """Run a script about the rate of a conversation's channel, where a cluster has it apart.

        All conversations of a channel share one rate, so it is not in the shard of any of them.
        """
        channel = conversation.partition(":")[0]
        named = {"conversation": conversation, **args}
        return await self._scripts.arun_on(name, f"rate_limit:{channel}", named)

    async def forward(self, delivery: Delivery) -> str:
        """Append a reply to the outbox of the conversation it is addressed to, and wake a worker.

        A repeated call appends nothing. It needs no lease. Return the id of the reply there, "" if
        too many replies wait there already.
        """
        to = delivery.conversation.id
        entry = outbox_entry(delivery.conversation, delivery.reply, later=True)
        job = self._wake_up(to)
        number = await self._scripts.arun(
            "forward_reply", to, {"delivery": delivery.id, **job.names}, entry, *job.fields
        )
        if not number:
            return ""
        return f"{to}#{number}"

    async def forward_entry(self, delivery_id: str, entry: Mapping[str, Any]) -> str:
        """Move an entry that is no plain reply: a question, its ending, or a turn.

        `entry`: as `sayso.pending.forwarding` writes it. A repeated call changes nothing. It needs
        no lease. Return what the entry became there, "" if there is no room for it.
        """
        to = Conversation(*entry["to"]).id
        payload: tuple[str, ...] = ()
        if "messages" in entry:
            script = "forward_question"
            args = {"action": entry["action"], "messages": entry["messages"]}
        elif "ending" in entry:
            script = "end_question"
            args = entry["question"]
            payload = (entry["ending"],)
        else:
            script = "forward_turn"
            args = {name: entry[name] for name in ("user", "action_id", "received_at")}
            payload = (entry["turn"],)
        job = self._wake_up(to)
        answer = await self._scripts.arun(
            script, to, {"delivery": delivery_id, **args, **job.names}, *payload, *job.fields
        )
        return f"{to}#{answer}" if answer else ""


def _reply_args(lease: Lease, reply: QueuedReply) -> dict[str, Any]:
    return {**lease.args, "number": reply.number}


class ReceiptFiles:
    """Remembers which replies a platform accepted, for the time until Redis has it.

    Each process appends to one file in a folder that all processes of the machine share, and reads
    those of all. The files are never synced to the disk: they survive a killed process, and not the
    end of the machine.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """`name` is that of the file, which no other process may use."""
        self._path = folder / name
        #: The descriptor of the open file, -1 for none.
        self._file = -1
        #: The bytes that were written to the open file.
        self._size = 0

    def note(self, delivery: Delivery, receipt: Receipt) -> None:
        """Remember the platform's receipt of a delivery. A failure is only logged.

        It writes on the event loop: a write to the page cache is faster than a call in a thread.
        """
        line = f"{_key(delivery)} {json.dumps(asdict(receipt))}\n".encode()
        try:
            if self._needs_new_file():
                self._begin_file()
            self._size += os.write(self._file, line)
        except OSError as exc:
            log.warning(
                "receipt.not_noted", extra={"delivery": delivery.id, "reason": type(exc).__name__}
            )

    def find(self, delivery: Delivery) -> Receipt | None:
        """Return the platform's receipt of a delivery.

        None if no file that was written in the last KEEP_RECEIPTS_SECONDS has the delivery.
        """
        line_start = f"\n{_key(delivery)} ".encode()
        for path in self._path.parent.glob("*"):
            try:
                if time.time() - path.stat().st_mtime >= KEEP_RECEIPTS_SECONDS:
                    continue
                data = b"\n" + path.read_bytes()
            except OSError:  # another process has removed the file
                continue

            _, separator, rest = data.partition(line_start)
            # A killed worker may have left a line without its end, which says nothing.
            if separator and b"\n" in rest:
                stored, _, _ = rest.partition(b"\n")
                # On a full disk, a line without its end may be followed by another line.
                with contextlib.suppress(ValueError, TypeError):
                    return Receipt(**json.loads(stored))
        return None

    def _needs_new_file(self) -> bool:
        """Return whether no file is open, or the open one is full or was removed.

        Another process removes the file of a process that was idle for long. What is written to a
        removed file is lost.
        """
        if self._file < 0 or self._size > MAX_RECEIPTS_BYTES:
            return True
        return os.fstat(self._file).st_nlink == 0

    def _begin_file(self) -> None:
        """Begin a new file, keep the one before it, and remove files that are too old to be read.

        Raises OSError; then no file is open, and the next call begins anew.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._file >= 0:
            # Forgotten first: the system soon gives the number of a closed file to another one.
            closing = self._file
            self._file = -1
            os.close(closing)

        # There is none at the first call, and where another process has removed it.
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(f"{self._path.name}.old"))
        for path in self._path.parent.glob("*"):
            with contextlib.suppress(OSError):  # another process removed it first
                if time.time() - path.stat().st_mtime > KEEP_RECEIPTS_SECONDS:
                    path.unlink()

        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
        self._size = 0


def _key(delivery: Delivery) -> str:
    """Return the delivery's id and a digest of its content.

    The id alone is not enough: a Redis that was emptied gives out the same ids again.
    """
    content = repr(delivery.reply).encode("utf-8", "surrogatepass")
    return f"{delivery.id} {hashlib.sha256(content).hexdigest()[:16]}"
