"""Budget, memory and Redis."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sayso.agent.tools.context import scope_digest
from sayso.agent.messages import UsageStats
from sayso.pending.concurrency import reach
from sayso.pending.redis.client import Connections, RedisCircuitBreaker

if TYPE_CHECKING:
    from redis import Redis


log = logging.getLogger(__name__)


#: Costs are counted in millionths of a dollar.
_MICRO = 1_000_000


_DAY_SECONDS = 86_400


#: Which limit is reached: of one run, of one conversation's day, or of everybody's day.
BudgetLimit = Literal["run", "conversation", "day"]


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """Why no model may be asked, and how much of that limit is used: tokens and US dollars."""

    reason: BudgetLimit
    tokens_used: int
    cost_used: float


@dataclass(frozen=True, slots=True)
class RunBudget:
    """What one run may spend; None for no limit."""

    max_total_tokens: int | None = None
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        _demand_positive(self, ("max_total_tokens", "max_cost_usd"))

    def refusal(self, usage: UsageStats) -> BudgetRefusal | None:
        """Whether a run that has used so much may ask a model again. The call that reaches a limit is not cut off."""
        tokens, micros = spent(usage)
        return _refusal("run", (tokens, micros), self.max_total_tokens, self.max_cost_usd)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Tokens and US dollars that may be spent; None for no limit.

    Each counts one UTC day, a conversation's too: a chat never ends, and a total would lock its people out for good.
    """

    conversation_tokens: int | None = None
    conversation_usd: float | None = None
    day_tokens: int | None = None
    day_usd: float | None = None

    def __post_init__(self) -> None:
        _demand_positive(self, ("conversation_tokens", "conversation_usd", "day_tokens", "day_usd"))

    def refusal(self, conversation: tuple[int, int], day: tuple[int, int]) -> BudgetRefusal | None:
        """Whether a limit is reached by so many tokens and millionths of a dollar."""
        return _refusal("conversation", conversation, self.conversation_tokens, self.conversation_usd) or _refusal(
            "day", day, self.day_tokens, self.day_usd
        )


class Budget(Protocol):
    """Counts what was spent. `scope` names the conversation. Runs that ask at the same time may all begin their call:
    a limit is passed by what was under way when it was reached, and by no more.
    """

    async def refusal(self, scope: str) -> BudgetRefusal | None:
        """Why this conversation may not ask a model now; None if it may."""
        ...

    async def book(self, scope: str, usage: UsageStats) -> None:
        """Count what a call has used."""
        ...


async def refusal_of(budget: Budget, scope: str) -> BudgetRefusal | None:
    """The budget's word. One that cannot be asked refuses nobody: people are answered, and operators are warned."""
    try:
        return await budget.refusal(scope)
    except Exception as exc:  # noqa: BLE001  # whatever its store raises
        log.warning("budget.unknown", extra={"reason": type(exc).__name__})
        return None


async def book_in(budget: Budget, scope: str, usage: UsageStats) -> None:
    """Count what a call has used, if the budget can. What could not be counted is told in the log."""
    try:
        await budget.book(scope, usage)
    except Exception as exc:  # noqa: BLE001  # the answer is there, and paid for
        log.warning("budget.not_booked", extra={"reason": type(exc).__name__, "tokens": usage.total_tokens})


class MemoryBudget:
    """The day's counters of this process: for tests, and for a bot that runs in one process and may forget them.

    `clock` tells seconds since 1970.
    """

    def __init__(self, limits: BudgetLimits, *, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._day = ""
        self._tokens: Counter[str | None] = Counter()
        self._micros: Counter[str | None] = Counter()

    async def refusal(self, scope: str) -> BudgetRefusal | None:
        """See Budget."""
        with self._lock:
            self._turn_the_page()
            return self._limits.refusal(self._used(scope), self._used(None))

    async def book(self, scope: str, usage: UsageStats) -> None:
        """See Budget."""
        tokens, micros = spent(usage)
        with self._lock:
            self._turn_the_page()
            for name in (scope, None):
                self._tokens[name] += tokens
                self._micros[name] += micros

    def _used(self, name: str | None) -> tuple[int, int]:
        """None is everybody."""
        return self._tokens[name], self._micros[name]

    def _turn_the_page(self) -> None:
        """Other days are forgotten. A clock that is set back a little at midnight begins no new one; a day that it
        showed by mistake, far ahead, does not last until then.
        """
        now = self._clock()
        today = day_of(now)
        if today > self._day or day_of(now + _DAY_SECONDS) < self._day:
            self._day = today
            self._tokens.clear()
            self._micros.clear()


def spent(usage: UsageStats) -> tuple[int, int]:
    """Tokens and millionths of a dollar, whole, so that sums are exact; what a vendor reports below nothing is none."""
    tokens = usage.total_tokens or usage.prompt_tokens + usage.completion_tokens
    cost = usage.cost_usd if math.isfinite(usage.cost_usd) else 0.0
    return max(0, tokens), max(0, round(cost * _MICRO))


def _refusal(
    reason: BudgetLimit, used: tuple[int, int], max_tokens: int | None, max_usd: float | None
) -> BudgetRefusal | None:
    tokens, micros = used
    over_tokens = max_tokens is not None and tokens >= max_tokens
    over_cost = max_usd is not None and micros >= max(1, round(max_usd * _MICRO))
    return BudgetRefusal(reason, tokens, micros / _MICRO) if over_tokens or over_cost else None


def day_of(now: float) -> str:
    """The UTC day of a time in seconds since 1970, as ISO 8601 writes it."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def _demand_positive(limits: RunBudget | BudgetLimits, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(limits, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} is no limit: use a number above 0, or None for no limit")


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
        self._breather = RedisCircuitBreaker(slow_seconds=SLOW_SECONDS, pause_seconds=PAUSE_SECONDS)
        self._limits = limits
        self._prefix = prefix
        self._clock = clock

    async def refusal(self, scope: str) -> BudgetRefusal | None:
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
        return f"{day}:{scope_digest(scope)}", day

    def _used(self, keys: tuple[str, str]) -> list[tuple[int, int]]:
        answer = self._ask("EVAL", _USED, 2, *keys)
        return [(int(tokens or 0), int(micros or 0)) for tokens, micros in answer]

    def _add(self, keys: tuple[str, str], tokens: int, micros: int) -> None:
        """All or nothing: a conversation never has used more than its day."""
        self._ask("EVAL", _ADD, 2, *keys, tokens, micros, KEPT_SECONDS)

    def _ask(self, *command: str | int) -> Any:
        """As stores ask: an event loop goes on meanwhile. A Redis that is silent is not waited for by every run."""
        return self._breather.ask(lambda: self._connections.ask(*command))
