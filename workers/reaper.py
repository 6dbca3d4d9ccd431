"""Reaper: wakes conversations whose worker died, whose wake-up was lost, or whose retry is due."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from redis import Redis
from redis.exceptions import RedisError

from sayso.workers.lifeline import Lifeline
from sayso.workers.mailbox import mark
from sayso.workers.offload import offload
from sayso.workers.presence import Presence
from sayso.workers.redis import PREFIX, SHARDS, Scripts, ShardMoved, WakeUp

log = logging.getLogger(__name__)

#: Seconds between two rounds.
INTERVAL = 1.0
#: Seconds after which a round begins with no further shard; the next one goes on there.
ROUND_SECONDS = 0.5
#: Conversations looked at per shard and round at most; the rest are still due in the next round.
BATCH = 100


class Reaper:
    """Runs in every worker; a short lock in Redis lets one of them work at a time.

    Those who died on this machine are known by their `lifeline`, and each worker takes care of them by itself. `queue`:
    what job keys begin with, and queue key, so that what waits there is known without a call for each conversation.
    """

    def __init__(
        self,
        client: Redis,
        scripts: Scripts,
        wake_up: WakeUp,
        lifeline: Lifeline,
        *,
        queue: Sequence[str] = (),
        prefix: str = PREFIX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.presence = Presence(client, lifeline.name, prefix=prefix)
        self._lifeline = lifeline
        self._client = client
        self._scripts = scripts
        self._wake_up = wake_up
        self._queue = queue
        self._clock = clock
        self._lock = f"{prefix}reaper"
        self._token = secrets.token_urlsafe(8)
        self._shards = cycle(range(SHARDS))

    async def forever(self) -> None:
        """Show signs of life, bury and go round until cancelled; none of them waits for another."""
        await asyncio.gather(*map(_again_and_again, (self.presence.beat, self.bury, self.round)))

    def bury(self) -> list[str]:
        """Wake what workers held that died on this machine. Returns their names. Raises redis.RedisError, OSError."""
        return self._lifeline.bury(self._free)

    def _free(self, worker: str) -> None:
        held = [name for names in self._scripts.on_every_shard("bury", mark(worker)) for name in names]
        log.warning("worker.died", extra={"worker": worker, "conversations": len(held)})
        for conversation in held:
            self._wake(conversation)
        self.presence.leave(worker)

    def round(self) -> int:
        """Wake everything that is overdue and not in the queue, unless another worker just did. Returns how many were.

        Raises redis.RedisError.
        """
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        woken, ends = 0, self._clock() + ROUND_SECONDS
        for shard in islice(self._shards, SHARDS):
            woken += sum(map(self._wake, self._unanswered(shard)))
            if self._clock() > ends:
                break
        return woken

    def _unanswered(self, shard: int) -> Sequence[str]:
        """Conversations whose time has come although nobody came, but those that are in the queue."""
        overdue: Sequence[str] = ()
        with contextlib.suppress(ShardMoved):
            overdue = self._scripts.on_shard("overdue", shard, BATCH)
            if overdue and self._queue:
                overdue = self._scripts.on_shard("put_off", shard, *self._queue, *overdue)
        return overdue

    def _wake(self, conversation: str) -> bool:
        word = self._scripts.run("rewake", conversation, *self._wake_up(conversation))
        if word == "ok":
            log.info("lane.rewoken", extra={"conversation": conversation})
        return bool(word == "ok")


async def _again_and_again(call: Callable[[], object]) -> None:
    """Until cancelled. A Redis that is away is tried again after the interval."""
    while True:
        try:
            await offload(call)
        except RedisError as exc:
            log.warning("reaper.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("reaper.failed")  # a worker that stops to reap and to show signs of life is half dead
        await asyncio.sleep(INTERVAL)
