"""Whisper: hears at once that somebody said stop. A word that is missed is heard when the lease is renewed."""

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
from sayso.pending.turns.change import Lease
from sayso.pending.turns.queued import QueuedTurn
from sayso.workers.mailbox import LEASE_MS

log = logging.getLogger(__name__)


#: Seconds between two tries to listen while Redis is away.
PAUSE_SECONDS = 1.0


async def listen(url: str, heard: Callable[[str], None], *, prefix: str = PREFIX) -> None:
    """Call `heard` with each conversation in which somebody says stop, until cancelled."""
    while True:
        try:
            async with Redis.from_url(url, decode_responses=True) as client, client.pubsub() as pubsub:
                await pubsub.psubscribe(f"{prefix}*:stop")
                async for message in pubsub.listen():
                    if message["type"] == "pmessage":
                        heard(str(message["data"]))
        except (RedisError, OSError) as exc:
            log.warning("whisper.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("whisper.failed")  # anybody may publish, and not only text
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(slots=True)
class HeldLease:
    """A lease, when it was last renewed by this machine's monotonic clock, and the turn that is worked on."""

    lease: Lease
    renewed_at: float
    #: Ends the work when the lane is lost.
    limit: asyncio.Timeout = field(default_factory=partial(asyncio.Timeout, None))
    #: Renews the lease, from when it is first due.
    keeping: asyncio.Task[None] | None = None
    #: Somebody wants the lease to be renewed, and so stops to be heard, at once.
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    #: The number of the turn it is at, and of the last one that said to stop it.
    at: int = 0
    stopped: int = 0
    _working: tuple[int, asyncio.Timeout] | None = None

    def begin(self, queued: QueuedTurn) -> None:
        """The next turn: whoever stopped an earlier one did not mean it."""
        self.at, self.stopped = queued.seq, 0

    @asynccontextmanager
    async def working_on(self, queued: QueuedTurn, seconds: float, *, may_be_stopped: bool) -> AsyncIterator[None]:
        """The time a turn has. Raises TimeoutError when it is over, or when somebody says stop to one that may be
        stopped.
        """
        async with asyncio.timeout(seconds) as limit:
            self._working = (queued.last, limit) if may_be_stopped else None
            self.stop(self.stopped)
            try:
                yield
            finally:
                self._working = None

    def stop(self, seq: int) -> None:
        """The turn of this number said stop, 0 for none; one that is worked on and was before it ends."""
        self.stopped = max(self.stopped, seq)
        if self._working and self._working[0] < seq:
            self._working[1].reschedule(asyncio.get_running_loop().time())

    def lose(self) -> None:
        """End the work under this lease: another worker has it, or may have it."""
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.limit.reschedule(asyncio.get_running_loop().time())

    def is_fresh(self, now: float) -> bool:
        """Return whether the lease was renewed so recently that nobody else can have taken it."""
        return now - self.renewed_at < LEASE_MS / 1000 * 0.9
