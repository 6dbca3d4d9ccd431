"""ConversationProcessor: sends the replies and answers the turns of a conversation, one by one.

A worker works on a conversation only while it holds the *lease* of the conversation, so its turns
are answered in order, one at a time. `_run` takes the lease, and `_work` is the loop over what
waits in the conversation. `turn_processor.py` answers each turn, and `sender.py` sends each reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.exceptions import RedisError

from sayso.infra import tracing
from sayso.infra.concurrency import track_abandoned_calls
from sayso.infra.metrics import LEASES_LOST
from sayso.infra.records import OtherVersion
from sayso.infra.redis.connections import Halted
from sayso.pending.call_context import call_context, context_field
from sayso.pending.turns import (
    ConversationParked,
    Lease,
    LeaseLost,
    NextItem,
    QueuedReply,
    StaleTurn,
)
from sayso.workers.albums import AlbumWait
from sayso.workers.lease import LEASE_MS, HeldLease, new_token
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.progress import BackgroundTask
from sayso.workers.sender import ReplySender
from sayso.workers.turn_processor import TurnProcessor

log = logging.getLogger(__name__)

#: After how many turns a busy conversation lets others go first.
MAX_TURNS = 5
#: After how many seconds a busy conversation lets others go first, if it has had a turn.
MAX_SECONDS = 20.0
#: Within how many seconds a conversation that is cut off must release its lease. Its worker waits a
#: little longer (`CUT_SECONDS` of the RQ worker).
LET_GO_SECONDS = 2.0
#: How long a conversation of a channel that no worker knows is kept for one that does, in seconds.
#: During a rolling change some workers know a channel and others do not. After this its turns and
#: replies are given up.
UNKNOWN_CHANNEL_SECONDS = 24 * 3600.0


class _TakenLease(NamedTuple):
    """A lease that a worker has just taken."""

    lease: Lease
    #: The first thing to do in the conversation.
    first_item: NextItem
    #: When the lease was asked for, by the processor's clock: it began then or later.
    asked_at: float


@dataclass(frozen=True, slots=True)
class ConversationProcessor:
    """Works through conversations. One instance serves a whole worker, on its event loop.

    Its methods take the lease of a conversation, walk through what waits there, and release the
    lease. A TurnProcessor answers each turn.
    """

    mailbox: RedisMailbox
    sender: ReplySender
    #: Answers the turns, and knows their channels and agents.
    turns: TurnProcessor
    #: The name of this worker in the tokens of its leases.
    worker: str = ""
    #: A monotonic clock, in seconds.
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    #: Set when this worker stops.
    _stopping: threading.Event = field(default_factory=threading.Event)
    #: The leases that this worker holds, by the id of the conversation.
    _held_leases: dict[str, HeldLease] = field(default_factory=dict)
    #: Conversations that were cut off in the middle and whose leases are not released, with the
    #: latest time at which each lease ends, by the clock.
    _unreleased: dict[str, float] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Return whether this worker holds no conversation, so that it may leave at once.

        Otherwise the other workers take its conversations over when its process has ended.
        """
        now = self.clock()
        is_one_unreleased = any(now < ends_at for ends_at in self._unreleased.values())
        return not (self._held_leases or is_one_unreleased)

    def hand_over(self) -> None:
        """Hand over each conversation before its next turn: this worker is stopping.

        The replies of the current turn are still sent.
        """
        self._stopping.set()

    async def end_typing(self) -> None:
        """Wait until the typing signs of finished turns are removed: this worker is leaving.

        It waits for LAST_CALL_SECONDS at most.
        """
        await self.turns.end_signs()

    def renew_now(self, conversation: str) -> None:
        """Renew the lease of a conversation at once, to learn that its user said stop."""
        held = self._held_leases.get(conversation)
        if held is not None:
            held.renew_now()

    async def run(self, conversation: str) -> None:
        """Send the replies and answer the turns of a conversation, until none is left.

        Nothing happens if another worker holds its lease. This is the work of one RQ job.
        """
        with context_field(
            "log_fields", {"conversation": conversation, **call_context().log_fields}
        ):
            await self._run(conversation)

    async def _run(self, conversation: str) -> None:
        """Take the lease of a conversation, and work until nothing is left or the work must end."""
        channel = conversation.partition(":")[0]
        is_known = self.turns.knows(channel)
        if not is_known and await self._leave_to_other_worker(conversation):
            return

        token = new_token(self.worker)
        abandoned = track_abandoned_calls()
        try:
            taken = await self._lease(conversation, token)
        except Halted:
            # The conversation is woken when Redis is resumed.
            _log_left(conversation, "Halted")
            return
        except OtherVersion as exc:
            _log_other_version(conversation, exc)
            return
        if taken is None:
            # Another worker has the lease.
            return

        # The lease that was not released has ended: this is another one.
        self._unreleased.pop(conversation, None)
        held = HeldLease(taken.lease, taken.asked_at, self.mailbox.renew, self.clock)
        self._held_leases[conversation] = held
        try:
            async with held.kept():
                await self._work(held, taken.first_item)
        except (LeaseLost, ConversationParked, StaleTurn, Halted) as exc:
            # The lease is not released here:
            # - LeaseLost: another worker may have it.
            # - ConversationParked: the sender has released it until a postponed reply is due.
            # - StaleTurn: what the turn has read was changed meanwhile, so nothing was committed.
            #   The turn is tried again when the lease ends.
            # - Halted: Redis refuses every call. The conversation is woken when Redis is resumed.
            # Any other error fails the job, and the turn is tried again when the lease ends.
            if isinstance(exc, LeaseLost):
                LEASES_LOST.inc()
            _log_left(conversation, type(exc).__name__, held.turn_seq)
        except OtherVersion as exc:
            # The mailbox has released the lease, or the lease ends by itself.
            _log_other_version(conversation, exc)
        except asyncio.CancelledError:
            await self._release_midway(held, abandoned)
            raise
        finally:
            # After a lost lease, another job of this worker may have taken the conversation.
            if self._held_leases.get(conversation) is held:
                del self._held_leases[conversation]

    async def _lease(self, conversation: str, token: str) -> _TakenLease | None:
        """Take the lease of a conversation. Return None while another worker has it."""
        while True:
            asked_at = self.clock()
            taken = await self.mailbox.lease(conversation, token)
            if taken is None:
                return None
            # An answer that waited for replicas may come so late that the lease is nearly over. The
            # same token gets the lease again. No pause is needed: each such answer takes seconds.
            lease_seconds = LEASE_MS / 1000
            if self.clock() - asked_at < lease_seconds / 2:
                lease, first_item = taken
                return _TakenLease(lease, first_item, asked_at)

    async def _leave_to_other_worker(self, conversation: str) -> bool:
        """Leave the conversation to a worker that knows its channel.

        Return False once it has waited too long: then this worker gives up its turns and replies.
        """
        try:
            waited = await self.mailbox.leave_to_other_worker(conversation)
        except Halted:
            _log_left(conversation, "Halted")
            return True
        if waited is None:
            # A worker that knows the channel is at work.
            return True
        if waited == 0:
            # No worker has found the conversation before.
            log.warning("conversation.unknown_channel", extra={"conversation": conversation})
        return waited < UNKNOWN_CHANNEL_SECONDS

    async def _release_midway(
        self, held: HeldLease, abandoned: Sequence[Callable[[], bool]]
    ) -> None:
        """Release a lease in the middle of its work, because the job was cancelled.

        A worker that stops cancels the jobs that still run after its grace period. An operator may
        also stop a job.

        The next worker continues where the journal of the turn ends. A tool call without a result
        is then as uncertain as after a kill. `abandoned`: for each call in a thread that was cut
        off, a function that returns whether the call has ended.
        """
        lease = held.lease
        # `is_idle` stays False until the lease is released, or has ended by itself. Nothing renews
        # it any more.
        self._unreleased[lease.conversation] = self.clock() + LEASE_MS / 1000

        # A tool that cannot be stopped may still act, and the next worker must not overtake it. So
        # the lease is not released. It is not renewed either, so it ends within LEASE_MS, or when
        # this process has ended.
        if not all(has_ended() for has_ended in abandoned):
            _log_left(lease.conversation, "a tool still runs", held.turn_seq)
            return

        _log_left(lease.conversation, "cut off", held.turn_seq)
        with contextlib.suppress(TimeoutError, RedisError):
            async with asyncio.timeout(LET_GO_SECONDS):
                # `begun`: a turn that kills its workers is given up after some attempts. This was
                # one of them, unless the work was cut off between turns: while it sent a reply, or
                # waited for the parts of an album.
                is_begun = held.turn_seq != 0
                await self.mailbox.release(lease, hand_over=True, begun=is_begun)
                # Another job of this worker may have taken the conversation by now, and removed it.
                self._unreleased.pop(lease.conversation, None)

    async def _work(self, held: HeldLease, work: NextItem) -> None:
        """Send replies and answer turns until nothing is left. `work` is the first item.

        The conversation is handed over before a turn if it has had its share (MAX_TURNS,
        MAX_SECONDS), or if this worker stops. Replies do not count as turns, and all of them are
        sent first. The time for them counts, but one turn is answered in any case: otherwise slow
        replies from elsewhere could hold the turns back for ever.

        Each step below returns what is next. The same script that finds nothing next releases the
        lease, so that work which comes in later wakes another worker. Only the script that takes a
        lease keeps it although there is nothing to do.
        """
        share_ends_at = self.clock() + MAX_SECONDS
        turn_count = 0
        album = AlbumWait()
        album_sign: BackgroundTask | None = None
        if work is None:
            work = await self._next_or_release(held)

        while work is not None:
            if isinstance(work, QueuedReply):
                # Before the first turn, it is the reply of a dead worker, or the notice that a
                # question's time has ended. The state that the platform shows of the conversation,
                # such as an open question, may be out of date then, and is shown again at the end.
                if turn_count == 0:
                    held.note_left_reply(work)
                work = await self._send(held, work)
                continue

            is_time_up = turn_count > 0 and self.clock() > share_ends_at
            had_its_share = turn_count >= MAX_TURNS or is_time_up
            if had_its_share or self._stopping.is_set():
                await self.mailbox.release(held.lease, hand_over=True)
                return

            # The turn is part of an album, and more parts may come. Read the turn again after a
            # pause: it may have more parts then.
            pause = album.next_pause(work)
            if pause > 0:
                # If the work ends during the pause, the sign may still be shown, once. Then its
                # task ends by itself.
                if album_sign is None:
                    album_sign = self.turns.begin_album_sign(work)
                await self.sleep(pause)
                work = await self._next_or_release(held)
                continue

            # The turn shows the typing sign again.
            if album_sign is not None:
                await album_sign.end(at_once=True)
                album_sign = None

            turn_count += 1
            ids = {"seq": work.seq, "event": work.turn.event_hash}
            with context_field("log_fields", {**call_context().log_fields, **ids}):
                work = await self.turns.process(held, work)
            # `process` set the number. It stays after an error, so that the log names the turn.
            held.turn_seq = 0

        # All replies are sent, so it is known whether a question is open. After a hand-over the
        # next worker does this, behind the turn that is left.
        self.turns.begin_to_show_state(held)

    async def _next_or_release(self, held: HeldLease) -> NextItem:
        """Return what is next in the conversation, and keep the lease for it.

        If nothing is, release the lease and return None. None also comes when the lease is lost.
        """
        return await self.mailbox.release(held.lease)

    async def _send(self, held: HeldLease, reply: QueuedReply) -> NextItem:
        """Send a reply, and return what is next. The log lines of the work name the reply.

        Raises ConversationParked if the reply must wait.
        """
        about: dict[str, str] = {}
        if reply.action_id:
            about["action"] = reply.action_id
        if tracing.is_tracing() and reply.trace.parent:
            about["trace_id"] = tracing.trace_id(reply.trace.parent)
        ids = {**call_context().log_fields, "delivery": reply.delivery_id(held.lease), **about}
        with context_field("log_fields", ids):
            return await self.sender.send(held.lease, reply, held.is_fresh)


def _log_left(conversation: str, reason: str, seq: int = 0) -> None:
    log.info(
        "conversation.left", extra={"conversation": conversation, "seq": seq, "reason": reason}
    )


def _log_other_version(conversation: str, error: OtherVersion) -> None:
    """Log that a conversation is left to a worker of another version. It is due again soon."""
    log.warning(
        "conversation.other_version", extra={"conversation": conversation, "advice": str(error)}
    )
