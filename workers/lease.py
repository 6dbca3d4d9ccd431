"""HeldLease: renewal and loss of a lease, and the turn that may be stopped under it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sayso.pending.redis.client import PREFIX
from sayso.pending.turns import Lease, QueuedTurn
from sayso.workers.mailbox import LEASE_MS

log = logging.getLogger(__name__)

#: Seconds between two attempts to listen while Redis is away.
PAUSE_SECONDS = 1.0


async def listen_for_stops(url: str, on_stop: Callable[[str], None], *, prefix: str = PREFIX) -> None:
    """Call `on_stop` with each conversation in which a user says stop, until cancelled.

    Redis publishes stops. A message that is missed is noticed when the lease is renewed.
    """
    while True:
        try:
            async with Redis.from_url(url, decode_responses=True) as client, client.pubsub() as pubsub:
                await pubsub.psubscribe(f"{prefix}*:stop")
                async for message in pubsub.listen():
                    if message["type"] == "pmessage":
                        on_stop(str(message["data"]))
        except (RedisError, OSError) as exc:
            log.warning("stop_signal.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("stop_signal.failed")  # anybody may publish, and not only text
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(slots=True)
class HeldLease:
    """A lease, when it was last renewed by this machine's monotonic clock, and the turn under work."""

    lease: Lease
    renewed_at: float
    #: Ends the work when the lease is lost.
    limit: asyncio.Timeout = field(default_factory=partial(asyncio.Timeout, None))
    #: Renews the lease, from when a renewal is first due.
    renewal_task: asyncio.Task[None] | None = None
    #: Set when the lease is to be renewed at once, to learn of a stop.
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    #: The number of the turn under work, and of the last turn that said stop.
    turn_seq: int = 0
    stop_seq: int = 0
    _working: tuple[int, asyncio.Timeout] | None = None

    def begin(self, queued: QueuedTurn) -> None:
        """Begin the next turn. A stop of an earlier turn does not apply to it."""
        self.turn_seq, self.stop_seq = queued.seq, 0

    @asynccontextmanager
    async def working_on(self, queued: QueuedTurn, seconds: float, *, may_be_stopped: bool) -> AsyncIterator[None]:
        """Limit the time of a turn. Raises TimeoutError when it is over, or when the user stops a turn that may be
        stopped.
        """
        async with asyncio.timeout(seconds) as limit:
            self._working = (queued.last, limit) if may_be_stopped else None
            self.stop(self.stop_seq)
            try:
                yield
            finally:
                self._working = None

    def stop(self, seq: int) -> None:
        """End the turn under work if the turn number `seq`, which said stop, is later. 0 stands for no stop."""
        self.stop_seq = max(self.stop_seq, seq)
        if self._working and self._working[0] < seq:
            self._working[1].reschedule(asyncio.get_running_loop().time())

    def lose(self) -> None:
        """End the work under this lease: another worker has the lease, or may have it."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.limit.reschedule(asyncio.get_running_loop().time())

    def is_fresh(self, now: float) -> bool:
        """Return whether the lease was renewed so recently that no other worker can have taken it."""
        return now - self.renewed_at < LEASE_MS / 1000 * 0.9
