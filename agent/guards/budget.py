"""Budgets: how many tokens and US dollars a run, a conversation and all conversations may use.

RunBudget limits one run. A Budget counts usage for each UTC day, for a conversation and for all
conversations together, and refuses a model call once a limit is reached. MemoryBudget counts in one
process, RedisBudget for all processes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from sayso.agent.messages import UsageStats
from sayso.agent.tools.environment import scope_digest
from sayso.infra.redis.connections import Connections, RedisCircuitBreaker

if TYPE_CHECKING:
    from redis import Redis


log = logging.getLogger(__name__)

#: Costs are counted in millionths of a US dollar.
_MICRO = 1_000_000
#: How many seconds a UTC day has.
_DAY_SECONDS = 86_400

#: The limit that was reached: that of one run, of one conversation for the day, or of all
#: conversations for the day.
BudgetLimit = Literal["run", "conversation", "day"]


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """Why another model call is forbidden."""

    #: The limit that was reached.
    reason: BudgetLimit
    #: How many tokens were used so far of what this limit counts.
    tokens_used: int
    #: What they cost, in US dollars.
    cost_used: float


class CountedUsage(NamedTuple):
    """Usage in whole numbers, so that sums are exact and Redis can add them."""

    tokens: int
    #: The cost in millionths of a US dollar.
    micros: int


#: The usage of a conversation that has used nothing yet.
_NOTHING = CountedUsage(0, 0)


@dataclass(frozen=True, slots=True)
class RunBudget:
    """The limits of one run, in tokens and US dollars; None for no limit.

    Raises ValueError for a limit that is not positive.
    """

    max_total_tokens: int | None = None
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        _require_positive(self)

    def refusal(self, usage: UsageStats) -> BudgetRefusal | None:
        """Return the limit that forbids a run with this usage another model call, or None.

        The call that reaches a limit is not interrupted.
        """
        return _refusal("run", counted_usage(usage), self.max_total_tokens, self.max_cost_usd)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The limits of one UTC day, in tokens and US dollars; None for no limit.

    The limits of a conversation are per day too: a chat never ends, so a total would lock its
    people out for good. Raises ValueError for a limit that is not positive.
    """

    conversation_tokens: int | None = None
    conversation_usd: float | None = None
    day_tokens: int | None = None
    day_usd: float | None = None

    def __post_init__(self) -> None:
        _require_positive(self)

    def refusal(self, conversation: CountedUsage, day: CountedUsage) -> BudgetRefusal | None:
        """Return the limit that is reached, or None.

        `conversation` is what the conversation has used today, `day` what all have used together.
        """
        refusal = _refusal(
            "conversation", conversation, self.conversation_tokens, self.conversation_usd
        )
        if refusal is None:
            refusal = _refusal("day", day, self.day_tokens, self.day_usd)
        return refusal


class Budget(Protocol):
    """Counts the usage of each day, and refuses model calls beyond its limits.

    `scope` names the conversation. Calls that are in progress when a limit is reached are not
    interrupted, so usage can exceed a limit by these calls. One budget serves all agents of a
    process.
    """

    async def refusal(self, scope: str) -> BudgetRefusal | None:
        """Return the limit that forbids this conversation a model call now, None for none."""
        ...

    async def book(self, scope: str, usage: UsageStats) -> None:
        """Add the usage of a call."""
        ...


async def budget_refusal(budget: Budget, scope: str) -> BudgetRefusal | None:
    """Return the refusal of a budget, or None.

    A budget that fails refuses nothing: users still get answers, and operators a warning.
    """
    try:
        return await budget.refusal(scope)
    except Exception as exc:  # a budget may raise anything
        log.warning("budget.unknown", extra={"reason": type(exc).__name__})
        return None


async def book_usage(budget: Budget, scope: str, usage: UsageStats) -> None:
    """Add the usage of a call to a budget. Log the usage if the budget fails."""
    try:
        await budget.book(scope, usage)
    except Exception as exc:  # the answer exists and is paid for
        log.warning(
            "budget.not_booked", extra={"reason": type(exc).__name__, "tokens": usage.total_tokens}
        )


class MemoryBudget:
    """A Budget in the memory of one process. Its counts are lost when the process ends.

    `clock` returns Unix seconds.
    """

    def __init__(self, limits: BudgetLimits, *, clock: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        #: The UTC day that is counted; "" before the first call.
        self._day = ""
        #: The usage of that day by conversation; under None that of all together.
        self._used: dict[str | None, CountedUsage] = {}

    async def refusal(self, scope: str) -> BudgetRefusal | None:
        """See `Budget`."""
        with self._lock:
            self._start_new_day()
            conversation = self._used.get(scope, _NOTHING)
            day = self._used.get(None, _NOTHING)
            return self._limits.refusal(conversation, day)

    async def book(self, scope: str, usage: UsageStats) -> None:
        """See `Budget`."""
        tokens, micros = counted_usage(usage)
        with self._lock:
            self._start_new_day()
            for name in (scope, None):
                used = self._used.get(name, _NOTHING)
                self._used[name] = CountedUsage(used.tokens + tokens, used.micros + micros)

    def _start_new_day(self) -> None:
        """Reset the counters when the day changes.

        A clock that is set back from just after midnight to the day before starts no new day. A
        clock that was ahead by days and is corrected does.
        """
        now = self._clock()
        today = utc_day(now)
        if today > self._day or utc_day(now + _DAY_SECONDS) < self._day:
            self._day = today
            self._used.clear()


def counted_usage(usage: UsageStats) -> CountedUsage:
    """Return usage in whole numbers. Negative numbers, and a cost that is not finite, become 0."""
    tokens = usage.total_tokens or usage.prompt_tokens + usage.completion_tokens
    cost = usage.cost_usd if math.isfinite(usage.cost_usd) else 0.0
    return CountedUsage(max(0, tokens), max(0, round(cost * _MICRO)))


def _refusal(
    reason: BudgetLimit, used: CountedUsage, max_tokens: int | None, max_usd: float | None
) -> BudgetRefusal | None:
    """Return the refusal for this usage, None if it is below both limits."""
    is_over_tokens = max_tokens is not None and used.tokens >= max_tokens
    # A limit below a millionth of a dollar must not become 0, which would refuse the first call.
    is_over_cost = max_usd is not None and used.micros >= max(1, round(max_usd * _MICRO))
    if is_over_tokens or is_over_cost:
        return BudgetRefusal(reason, used.tokens, used.micros / _MICRO)
    return None


def utc_day(now: float) -> str:
    """Return the UTC date, in ISO 8601, of a time in Unix seconds."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def _require_positive(limits: RunBudget | BudgetLimits) -> None:
    """Raise ValueError for a limit that is not a positive, finite number or None."""
    for name, value in asdict(limits).items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(
                f"{name}={value!r} is no limit: use a number above 0, or None for no limit"
            )


#: The Lua script that returns the usage of the conversation and of the day: tokens and micros each.
#: KEYS are the counters of the two.
_USAGE_SCRIPT = """
local function usage_of(key) return redis.call('HMGET', key, 'tokens', 'micros') end
return {usage_of(KEYS[1]), usage_of(KEYS[2])}
"""

#: The Lua script that adds a call's usage to both counters or to neither, so that a conversation
#: never has more usage than its day. KEYS are the counters. ARGV: the tokens, the micros, and the
#: seconds after which the counters expire.
_ADD_SCRIPT = """
for _, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, 'tokens', ARGV[1])
  redis.call('HINCRBY', key, 'micros', ARGV[2])
  redis.call('EXPIRE', key, ARGV[3])
end
"""

#: How long the counters of a day stay in Redis after the last booking, in seconds: the day itself,
#: and another day because the clocks of processes may differ.
COUNTER_TTL_SECONDS = 172_800

#: A failure that took this long, in seconds, opens the circuit breaker.
SLOW_SECONDS = 0.25
#: How long the circuit breaker stays open, in seconds. Meanwhile the budget limits nothing.
PAUSE_SECONDS = 5.0


class RedisBudget:
    """A Budget in Redis, shared by all processes.

    Each method takes one round trip, and raises RedisError. `prefix` begins all of its keys. The
    keys contain digests of conversations, because the name of a conversation may be a phone number.
    A booking whose reply was lost may count twice. `clock` returns Unix seconds.
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
        self._circuit_breaker = RedisCircuitBreaker(
            slow_seconds=SLOW_SECONDS, pause_seconds=PAUSE_SECONDS
        )
        self._limits = limits
        self._prefix = prefix
        self._clock = clock

    async def refusal(self, scope: str) -> BudgetRefusal | None:
        """See `Budget`."""
        answer = await self._ask("EVAL", _USAGE_SCRIPT, 2, *self._keys(scope))
        # A counter that does not exist yet is returned as None.
        conversation, day = (
            CountedUsage(int(tokens or 0), int(micros or 0)) for tokens, micros in answer
        )
        return self._limits.refusal(conversation, day)

    async def book(self, scope: str, usage: UsageStats) -> None:
        """See `Budget`."""
        tokens, micros = counted_usage(usage)
        if tokens or micros:
            await self._ask(
                "EVAL", _ADD_SCRIPT, 2, *self._keys(scope), tokens, micros, COUNTER_TTL_SECONDS
            )

    def _keys(self, scope: str) -> tuple[str, str]:
        """Return the keys of today's counters: of the conversation, and of the day."""
        # Braces put all keys of a day on one node of a cluster, so that one script can use both.
        day = f"{self._prefix}:{{{utc_day(self._clock())}}}"
        return f"{day}:{scope_digest(scope)}", day

    async def _ask(self, *command: str | int) -> Any:
        """Send a command, unless the circuit is open because Redis did not answer."""
        with self._circuit_breaker.attempt():
            return await self._connections.ask_async(*command)
