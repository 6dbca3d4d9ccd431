"""HeldLease: the lease of a conversation in the hands of a worker, with the turn under work.

A lease is the right of one worker to work on a conversation for LEASE_MS. The worker renews it
while it works. If the worker dies, the lease ends by itself, and another worker may take it. Its
*token* names the worker, so that the leases of a dead worker can be found.
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

#: How many milliseconds after its last renewal a lease ends: how long the turn of a killed worker
#: waits at most.
LEASE_MS = 10_000
#: For how many seconds after its last renewal a lease is surely held. While Redis is away, work
#: goes on for so long.
FRESH_SECONDS = LEASE_MS / 1000 * 0.9
#: Seconds from one renewal to the next: if one fails, there is time for another.
RENEW_SECONDS = LEASE_MS / 1000 / 3
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
    """The state that a platform shows of a conversation when a worker has nothing left to do there.

    Where a question is open, the platform shows that instead.
    """

    conversation: Conversation
    state: ShownState = "active"
    #: The event id of the last turn, "" for none.
    event_id: str = ""


class HeldLease:
    """A lease that this worker holds, and the turn under work. Lives as long as the lease.

    Work inside `kept` ends when the lease may be lost. Work inside `working_on` ends when the user
    of the turn says stop, or the turn takes too long.
    """

    def __init__(
        self,
        lease: Lease,
        renewed_at: float,
        renew: Callable[[Lease], Awaitable[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`renewed_at`: when the lease was taken, by `clock`. `renew`: renews it in Redis, and
        returns the number of the last turn with which the user of the first turn said stop, 0 for
        none. `clock`: monotonic, in seconds.
        """
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
        #: The number of the turn under work, 0 for none.
        self.turn_seq = 0
        #: The number of the last turn that said stop, 0 for none.
        self.stop_seq = 0
        #: The last turn that is answered now, and the time limit of its work. None while no work
        #: may be stopped.
        self._stoppable: tuple[int, asyncio.Timeout] | None = None
        #: What to show once the replies are sent, None where it is shown already.
        self.state_at_end: StateAtEnd | None = None

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the lease inside the block. Raises LeaseLost when it may be lost.

        Most leases are released before a renewal is due, so the task that renews begins only then.
        """
        due = asyncio.get_running_loop().call_later(RENEW_SECONDS, self.renew_now)
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
        """Renew the lease at each nudge and when it is due. End the work when it may be lost."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_SECONDS):
                        await self._nudge.wait()
                self._nudge.clear()
                # While Redis is away a renewal waits. It must not wait for longer than the lease is
                # held.
                async with asyncio.timeout(self._renewed_at + FRESH_SECONDS - self._clock()):
                    await self._renew()
                if not self.is_fresh():
                    return
        except (LeaseLost, Halted, TimeoutError):
            return
        finally:
            # A RuntimeError says that the work has ended by itself.
            with contextlib.suppress(RuntimeError):
                self._limit.reschedule(asyncio.get_running_loop().time())

    async def _renew(self) -> None:
        """Renew the lease once, and learn whether the user said stop. Raises LeaseLost, Halted."""
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
        # Otherwise the answer may be about the turn before.
        if turn_seq == self.turn_seq:
            self.stop(stop)

    def is_fresh(self) -> bool:
        """Return whether no other worker can have taken the lease since its last renewal."""
        return self._clock() - self._renewed_at < FRESH_SECONDS

    def note_left_reply(self, reply: QueuedReply) -> None:
        """Note that a reply is sent which no turn of this run has said.

        The state that the platform shows of the conversation may be out of date then.
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
        """Work on a turn for at most `seconds` inside the block.

        `may_be_stopped`: the work ends early if the user says stop. Raises TimeoutError when the
        work ends for either reason.
        """
        async with asyncio.timeout(seconds) as limit:
            if may_be_stopped:
                self._stoppable = (queued.last_seq, limit)
            # The stop may have come before this block.
            self.stop(self.stop_seq)
            try:
                yield
            finally:
                self._stoppable = None

    def stop(self, seq: int) -> None:
        """End the turn under work if the turn number `seq`, which said stop, is later.

        0 stands for no stop.
        """
        self.stop_seq = max(self.stop_seq, seq)
        if self._stoppable is None:
            return
        last_seq, limit = self._stoppable
        if last_seq < seq:
            limit.reschedule(asyncio.get_running_loop().time())


async def listen_for_stops(
    url: str, on_stop: Callable[[str], None], *, prefix: str = PREFIX
) -> None:
    """Call `on_stop` with each conversation in which a user says stop, until cancelled.

    Scripts publish stops in Redis. A stop that is missed here is noticed when the lease is renewed.
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
            # Any client may publish, and not only texts.
            log.exception("stop_signal.failed")
        await asyncio.sleep(PAUSE_SECONDS)
