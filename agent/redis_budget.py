"""RedisBudget: the day's counters of all processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sayso.agent.budget import BudgetLimits, Refusal, day_of, spent
from sayso.agent.messages import UsageStats
from sayso.agent.scope import digest_of
from sayso.workers.breather import Breather
from sayso.workers.connections import Connections
from sayso.workers.offload import reach

if TYPE_CHECKING:
    from redis import Redis

#: What the conversation and the day have used.
_USED = """
local function used(key) return redis.call('HMGET', key, 'tokens', 'micros') end
return {used(KEYS[1]), used(KEYS[2])}
"""
#: Count in both or in neither: a conversation never has used more than its day.
_ADD = """
for _, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, 'tokens', ARGV[1])
  redis.call('HINCRBY', key, 'micros', ARGV[2])
  redis.call('EXPIRE', key, ARGV[3])
end
"""

#: Seconds a day's counters are kept in Redis after the last booking: the day, and one more for clocks that differ.
KEPT_SECONDS = 172_800
#: After a failure that took so long nobody asks for a while, but one: people are answered without the budget meanwhile.
SLOW_SECONDS, PAUSE_SECONDS = 0.25, 5.0


class RedisBudget:
    """The day's counters of all processes: one round trip for each question and each booking. Raises RedisError.

    Conversations are kept by their digest: their names are phone numbers. A booking whose answer was lost may count
    twice. `clock` tells seconds since 1970.
    """

    def __init__(
        self,
        client: Redis,
        limits: BudgetLimits,
        *,
        prefix: str = "sayso:budget",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connections = Connections.of(client)
        self._breather = Breather(slow_seconds=SLOW_SECONDS, pause_seconds=PAUSE_SECONDS)
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
            await reach(self._add, self._keys(scope), tokens, micros)

    def _keys(self, scope: str) -> tuple[str, str]:
        day = f"{self._prefix}:{day_of(self._clock())}"
        return f"{day}:{digest_of(scope)}", day

    def _used(self, keys: tuple[str, str]) -> list[tuple[int, int]]:
        answer = self._ask("EVAL", _USED, 2, *keys)
        return [(int(tokens or 0), int(micros or 0)) for tokens, micros in answer]

    def _add(self, keys: tuple[str, str], tokens: int, micros: int) -> None:
        """All or nothing: a conversation never has used more than its day."""
        self._ask("EVAL", _ADD, 2, *keys, tokens, micros, KEPT_SECONDS)

    def _ask(self, *command: str | int) -> Any:
        """As stores ask: an event loop goes on meanwhile. A Redis that is silent is not waited for by every run."""
        return self._breather.ask(lambda: self._connections.ask(*command))
