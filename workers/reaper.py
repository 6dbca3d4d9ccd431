"""Reaper: wakes conversations whose worker died, whose wake-up was lost, or whose retry is due."""

from __future__ import annotations

import asyncio
import logging
import secrets

from redis import Redis
from redis.exceptions import RedisError

from workers.lifeline import Lifeline
from workers.mailbox import mark
from workers.offload import offload
from workers.presence import Presence
from workers.redis import PREFIX, Scripts, WakeUp

log = logging.getLogger(__name__)

#: Seconds between two rounds.
INTERVAL = 1.0
#: Conversations woken per shard and round at most; the rest are still due in the next round.
BATCH = 200


class Reaper:
    """Runs in every worker; a short lock in Redis lets one of them work at a time.

    Those who died on this machine are known by their `lifeline`, and each worker takes care of them by itself.
    """

    def __init__(
        self, client: Redis, scripts: Scripts, wake_up: WakeUp, lifeline: Lifeline, *, prefix: str = PREFIX
    ) -> None:
        self.presence = Presence(client, lifeline.name, prefix=prefix)
        self._lifeline = lifeline
        self._client = client
        self._scripts = scripts
        self._wake_up = wake_up
        self._lock = f"{prefix}reaper"
        self._token = secrets.token_urlsafe(8)

    async def forever(self) -> None:
        """Go round until cancelled. A Redis that is away is tried again in the next round."""
        while True:
            try:
                await offload(self.presence.beat)
                await offload(self.bury)
                await offload(self.round)
            except RedisError as exc:
                log.warning("reaper.redis_away", extra={"reason": type(exc).__name__})
            except Exception:
                log.exception("reaper.failed")  # a worker that stops to reap and to show signs of life is half dead
            await asyncio.sleep(INTERVAL)

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
        """Wake everything that is overdue, unless another worker just did. Returns how many were woken."""
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        overdue = [name for names in self._scripts.on_every_shard("overdue", BATCH) for name in names]
        return sum(self._wake(conversation) for conversation in overdue)

    def _wake(self, conversation: str) -> bool:
        word = self._scripts.run("rewake", conversation, *self._wake_up(conversation))
        if word == "ok":
            log.info("lane.rewoken", extra={"conversation": conversation})
        return bool(word == "ok")
