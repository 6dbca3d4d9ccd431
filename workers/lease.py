"""The lease of a conversation: how long it lasts, its tokens, and HeldLease,
which a worker keeps and a stop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from redis.exceptions import RedisError

from sayso.channels.base import ShownState
from sayso.channels.types import Conversation
from sayso.infra.ids import random_id
from sayso.infra.redis.client import PREFIX, connect_async
from sayso.infra.redis.connections import Halted
from sayso.pending.turns import Lease, LeaseLost, QueuedReply, QueuedTurn

log = logging.getLogger(__name__)

#: Milliseconds until the lease of a worker that stopped renewing ends:
#: how long a killed worker's turn waits at most.
LEASE_MS = 10_000
#: Seconds for which a lease is surely held after it was renewed.
#: Work that waits for Redis goes on for so long.
FRESH_SECONDS = LEASE_MS / 1000 * 0.9
#: Seconds between two attempts to listen for stops while Redis is away.
PAUSE_SECONDS = 1.0


def token_prefix(worker: str) -> str:
    """Return the prefix of the tokens of a worker's leases."""
    return f"{worker}."


def worker_of(token: str) -> str:
    """Return the worker of a lease's token."""
    return token.partition(".")[0]


def new_token(worker: str) -> str:
    """Return a new token for a lease of a worker."""
    return token_prefix(worker) + random_id(8)


class StateAtEnd(NamedTuple):
    """What a conversation waits for when a worker has nothing left to do there.

    An open question comes before it.
    """

    conversation: Conversation
    state: ShownState = "active"
    #: The event id of the last turn, "" for none.
    event_id: str = ""


class HeldLease:
    """A lease that this worker holds, for as long as it works on the conversation,
    and the turn under work.

    It was last renewed at `renewed_at`, by `clock`, which is monotonic. `renew` is the mailbox's.
    """

    def __init__(
        self,
        lease: Lease,
        renewed_at: float,
        renew: Callable[[Lease], Awaitable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease
        self._renewed_at = renewed_at
        self._renew_lease = renew
        self._clock = clock
        #: Ends the work when the lease is lost.
        self._limit = asyncio.Timeout(None)
        #: Renews the lease, from when a renewal is first due.
        self._renewal: asyncio.Task[None] | None = None
        #: Set when the lease is to be renewed at once, to learn of a stop.
        self._nudge = asyncio.Event()
        #: The number of the turn under work, and of the last turn that said stop; 0 for none.
        self.turn_seq = 0
        self.stop_seq = 0
        self._working: tuple[int, asyncio.Timeout] | None = None
        #: What to show once the replies are sent, None where it is shown already.
        self.state_at_end: StateAtEnd | None = None

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the lease inside the block.

        Most leases are released before a renewal is due. Raises LeaseLost.
        """
        due = asyncio.get_running_loop().call_later(LEASE_MS / 3000, self.renew_now)
        try:
            async with self._limit:
                yield
        except TimeoutError:
            if self._limit.expired():
                raise LeaseLost(self.lease.conversation) from None
            raise
        finally:
            due.cancel()
            if self._renewal:
                self._renewal.cancel()
                await asyncio.gather(self._renewal, return_exceptions=True)

    def renew_now(self) -> None:
        """Renew the lease now, and then whenever it is due."""
        self._nudge.set()
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew_until_lost())

    async def _renew_until_lost(self) -> None:
        """Renew the lease at each nudge and when it is due;
        end the work when the lease may be lost.
        """
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEASE_MS / 3000):
                        await self._nudge.wait()
                self._nudge.clear()
                # While Redis is away a renewal waits. It must not wait
                # for longer than the lease is held.
                async with asyncio.timeout(self._renewed_at + FRESH_SECONDS - self._clock()):
                    await self._renew()
                if not self.is_fresh():
                    return
        except (LeaseLost, Halted, TimeoutError):
            return
        finally:
            with contextlib.suppress(RuntimeError):  # the work has ended by itself
                self._limit.reschedule(asyncio.get_running_loop().time())

    async def _renew(self) -> None:
        asked_at = self._clock()
        turn_seq = self.turn_seq
        try:
            stop = await self._renew_lease(self.lease)
        except Halted:
            raise
        except RedisError as exc:
            ids = {"conversation": self.lease.conversation, "seq": turn_seq}
            log.warning("lease.not_renewed", extra={**ids, "reason": type(exc).__name__})
            return
        self._renewed_at = asked_at
        if turn_seq == self.turn_seq:  # otherwise the answer may be about the turn before
            self.stop(stop)

    def is_fresh(self) -> bool:
        """Return whether the lease was renewed so recently that no other worker can have taken it."""
        return self._clock() - self._renewed_at < FRESH_SECONDS

    def note_left_reply(self, reply: QueuedReply) -> None:
        """Note that a reply is sent without a turn of this run.

        What the conversation waits for may have changed.
        """
        if not reply.is_forwarded:
            self.state_at_end = StateAtEnd(reply.delivery(self.lease).conversation)

    def begin(self, queued: QueuedTurn) -> None:
        """Begin the next turn. A stop of an earlier turn does not apply to it."""
        self.turn_seq = queued.seq
        self.stop_seq = 0

    @asynccontextmanager
    async def working_on(
        self, queued: QueuedTurn, seconds: float, *, may_be_stopped: bool
    ) -> AsyncIterator[None]:
        """Limit the time of a turn.

        Raises TimeoutError at its end, or when a turn that may be stopped is.
        """
        async with asyncio.timeout(seconds) as limit:
            if may_be_stopped:
                self._working = (queued.last, limit)
            else:
                self._working = None
            self.stop(self.stop_seq)
            try:
                yield
            finally:
                self._working = None

    def stop(self, seq: int) -> None:
        """End the turn under work if the turn number `seq`, which said stop, is later.

        0 stands for no stop.
        """
        self.stop_seq = max(self.stop_seq, seq)
        if self._working and self._working[0] < seq:
            self._working[1].reschedule(asyncio.get_running_loop().time())


async def listen_for_stops(
    url: str, on_stop: Callable[[str], None], *, prefix: str = PREFIX
) -> None:
    """Call `on_stop` with each conversation in which a user says stop, until cancelled.

    Redis publishes stops. A message that is missed is noticed when the lease is renewed.
    """
    while True:
        try:
            async with connect_async(url) as client, client.pubsub() as pubsub:
                await pubsub.psubscribe(f"{prefix}*:stop")
                async for message in pubsub.listen():
                    if message["type"] == "pmessage":
                        on_stop(str(message["data"]))
        except (RedisError, OSError) as exc:
            log.warning("stop_signal.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("stop_signal.failed")  # any client may publish, and not only text
        await asyncio.sleep(PAUSE_SECONDS)
