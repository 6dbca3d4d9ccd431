"""RedisBudget: the day's counters of all processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agent.budget import BudgetLimits, Refusal, day_of, spent
from agent.messages import UsageStats
from workers.offload import reach

if TYPE_CHECKING:
    from redis import Redis

#: Seconds a day's counters are kept in Redis after the last booking: the day, and one more for clocks that differ.
KEPT_SECONDS = 172_800


class RedisBudget:
    """The day's counters of all processes: one round trip for each question and each booking. Raises RedisError.

    Conversations are kept by their digest: their names are phone numbers. `clock` tells seconds since 1970.
    """

    def __init__(
        self,
        client: Redis,
        limits: BudgetLimits,
        *,
        prefix: str = "sayso:budget",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._limits = limits
        self._prefix = prefix
        self._clock = clock

    async def refusal(self, scope: str) -> Refusal | None:
        """See Budget."""
        conversation, day = await reach(self._used, self._keys(scope))
        return self._limits.refusal(conversation, day)

    async def book(self, scope: str, usage: UsageStats) -> None:
        """See Budget."""
        tokens, micros = spent(usage)
        if tokens or micros:
            await reach(self._add, self._keys(scope), {"tokens": tokens, "micros": micros})

    def _keys(self, scope: str) -> tuple[str, str]:
        day = f"{self._prefix}:{day_of(self._clock())}"
        return f"{day}:{hashlib.sha256(scope.encode(errors='surrogatepass')).hexdigest()[:32]}", day

    def _used(self, keys: tuple[str, str]) -> list[tuple[int, int]]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(key, "tokens", "micros")
            return [(int(tokens or 0), int(micros or 0)) for tokens, micros in pipe.execute()]

    def _add(self, keys: tuple[str, str], spent: Mapping[str, int]) -> None:
        """All or nothing: a conversation never has used more than its day."""
        with self._client.pipeline(transaction=True) as pipe:
            for key in keys:
                for name, amount in spent.items():
                    pipe.hincrby(key, name, amount)
                pipe.expire(key, KEPT_SECONDS)
            pipe.execute()
