"""Budgets: usage is counted per conversation and in total, and a reached limit refuses."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from sayso.agent.guards.budget import (
    Budget,
    BudgetLimits,
    BudgetRefusal,
    MemoryBudget,
    RedisBudget,
    RunBudget,
    book_usage,
    budget_refusal,
)
from sayso.agent.messages import UsageStats
from sayso.infra.redis.client import connect

DAY = 86_400.0
NOON = 1_700_000_000 // DAY * DAY + DAY / 2

Make = Callable[[BudgetLimits], Budget]


class Clock:
    """A clock at noon that a test can set."""

    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return the clock of the budgets."""
    return Clock()


@pytest.fixture(params=["memory", "redis", "cluster"])
def make(request, clock: Clock) -> Make:
    """Return a function that makes a budget of each kind."""
    if request.param == "memory":
        return lambda limits: MemoryBudget(limits, clock=clock)
    client = request.getfixturevalue(f"{request.param}_client")
    return lambda limits: RedisBudget(client, limits, clock=clock)


def used(tokens: int = 0, cost: float = 0.0) -> UsageStats:
    """Return the usage of a call."""
    return UsageStats(total_tokens=tokens, cost_usd=cost)


def spend(budget: Budget, scope: str, *several: UsageStats) -> BudgetRefusal | None:
    """Book the usage of several calls, then ask."""

    async def main() -> BudgetRefusal | None:
        for usage in several:
            await budget.book(scope, usage)
        return await budget.refusal(scope)

    return asyncio.run(main())


def ask(budget: Budget, scope: str) -> BudgetRefusal | None:
    """Ask without booking."""
    return spend(budget, scope)


def test_conversation_that_reached_its_tokens_is_refused(make: Make) -> None:
    """It is refused at the limit, not before, and the refusal names the amount."""
    budget = make(BudgetLimits(conversation_tokens=100))
    assert spend(budget, "ana", used(99, 0.5)) is None
    assert spend(budget, "ana", used(1, 0.25)) == BudgetRefusal("conversation", 100, 0.75)


def test_conversation_that_reached_its_dollars_is_refused(make: Make) -> None:
    """Sums are exact: ten times ten cents make a dollar."""
    budget = make(BudgetLimits(conversation_usd=1.0))
    assert spend(budget, "ana", *[used(cost=0.1)] * 9) is None
    assert spend(budget, "ana", used(cost=0.1)) == BudgetRefusal("conversation", 0, 1.0)


def test_conversations_do_not_pay_for_each_other(make: Make) -> None:
    """This holds until the total limit is reached."""
    budget = make(BudgetLimits(conversation_tokens=100, day_tokens=150))
    assert spend(budget, "ana", used(100)) is not None
    assert spend(budget, "bob", used(49)) is None
    assert spend(budget, "bob", used(1)) == BudgetRefusal("day", 150, 0.0)
    assert ask(budget, "cy") == BudgetRefusal("day", 150, 0.0)


def test_total_of_dollars_is_limited(make: Make) -> None:
    """A conversation that spent nothing is refused too."""
    budget = make(BudgetLimits(day_usd=0.5))
    assert spend(budget, "ana", used(7, 0.5)) == ask(budget, "bob") == BudgetRefusal("day", 7, 0.5)


def test_next_day_starts_at_zero(make: Make, clock: Clock) -> None:
    """Both the conversation's count and the total start anew at midnight UTC."""
    budget = make(BudgetLimits(conversation_tokens=1, day_tokens=1))
    clock.now = NOON + DAY / 2 - 1
    assert spend(budget, "ana", used(5)) is not None
    clock.now += 1
    assert ask(budget, "ana") is None


def test_without_limits_no_conversation_is_refused(make: Make) -> None:
    """This holds for any amount."""
    assert spend(make(BudgetLimits()), "ana", used(10**12, 10**6)) is None


@pytest.mark.parametrize(
    "odd", [used(-50), used(cost=-5), used(cost=float("nan")), used(cost=float("inf"))]
)
def test_nonsense_from_a_vendor_does_not_lower_the_count(make: Make, odd: UsageStats) -> None:
    """Negative values and non-numbers count as zero."""
    budget = make(BudgetLimits(conversation_tokens=10, conversation_usd=1))
    assert spend(budget, "ana", used(10, 1.0), odd) == BudgetRefusal("conversation", 10, 1.0)


def test_usage_without_a_total_is_the_sum_of_its_parts(make: Make) -> None:
    """Some vendors report only the parts."""
    parts = UsageStats(prompt_tokens=3, completion_tokens=4)
    assert spend(make(BudgetLimits(day_tokens=7)), "ana", parts) == BudgetRefusal("day", 7, 0.0)


def test_bookings_at_the_same_time_are_all_counted(make: Make) -> None:
    """Threads with event loops of their own book at the same time."""
    budget = make(BudgetLimits(conversation_tokens=1))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spend(budget, "ana", *[used(1, 0.000001)] * 25), range(4)))
    assert ask(budget, "ana") == BudgetRefusal("conversation", 100, 0.0001)


def test_scope_may_be_any_text(make: Make) -> None:
    """Scopes come from outside."""
    budget = make(BudgetLimits(conversation_tokens=1))
    assert spend(budget, "a:b\n\ud800" + "x" * 10_000, used(1)) is not None
    assert ask(budget, "") is None


def test_redis_holds_no_scope_in_clear_and_no_key_for_ever(
    redis_client: Redis, clock: Clock
) -> None:
    """A booking writes two keys that expire after two days; an empty booking writes none."""
    budget = RedisBudget(redis_client, BudgetLimits(), clock=clock)
    spend(budget, "+4915112345678", used())
    assert redis_client.dbsize() == 0
    spend(budget, "+4915112345678", used(3, 0.01))
    keys = sorted(redis_client.scan_iter())
    assert len(keys) == 2
    assert all(
        str(key).startswith("sayso:budget:{2023-11-14}") and "4915" not in str(key) for key in keys
    )
    assert all(0 < redis_client.ttl(key) <= 172_800 for key in keys)


def test_two_processes_share_the_count_in_redis(redis_client: Redis, clock: Clock) -> None:
    """Each process has its own budget object over the same server."""
    here, there = (
        RedisBudget(redis_client, BudgetLimits(day_tokens=4), clock=clock) for _ in range(2)
    )
    spend(here, "ana", used(2))
    assert spend(there, "bob", used(2)) == BudgetRefusal("day", 4, 0.0)


def test_each_question_is_one_round_trip(redis_client: Redis, clock: Clock, monkeypatch) -> None:
    """A model call waits for the answer."""
    sent: list[object] = []
    connection = redis_client.connection_pool.connection_class
    send = connection.send_packed_command
    monkeypatch.setattr(
        connection,
        "send_packed_command",
        lambda self, *args, **kw: sent.append(args) or send(self, *args, **kw),
    )
    budget = RedisBudget(redis_client, BudgetLimits(), clock=clock)
    ask(budget, "ana")  # which connects
    sent.clear()
    spend(budget, "ana", used(1))
    assert len(sent) == 2


def test_event_loop_runs_while_redis_counts(tmp_path: Path) -> None:
    """In this test it has to, since the server runs in the same loop."""
    socket = str(tmp_path / "s")
    client = Redis(unix_socket_path=socket, protocol=2, driver_info=None, socket_timeout=2)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"EVAL")
        writer.write(b"*2\r\n" + b"*2\r\n$1\r\n9\r\n$1\r\n0\r\n" * 2)
        await reader.read()
        writer.close()

    async def main() -> BudgetRefusal | None:
        async with await asyncio.start_unix_server(answer, socket):
            refusal = await RedisBudget(client, BudgetLimits(day_tokens=9)).refusal("ana")
            client.close()
            client.connection_pool.disconnect()
        return refusal

    assert asyncio.run(main()) == BudgetRefusal("day", 9, 0.0)


def test_unreachable_budget_refuses_no_conversation(caplog) -> None:
    """People get answers. The operators get a warning without a scope and without the server's text."""
    caplog.set_level(logging.WARNING)
    budget = RedisBudget(
        Redis(unix_socket_path="/nonexistent/secret.sock"), BudgetLimits(day_tokens=1)
    )

    async def main() -> BudgetRefusal | None:
        await book_usage(budget, "ana", used(5))
        return await budget_refusal(budget, "ana")

    assert asyncio.run(main()) is None
    assert [record.message for record in caplog.records] == ["budget.not_booked", "budget.unknown"]
    assert "secret" not in caplog.text


def test_silent_redis_is_waited_for_once() -> None:
    """The server accepts connections and never answers: of ten calls one waits, the circuit breaker ends the others."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"redis://127.0.0.1:{silent.getsockname()[1]}", answer_seconds=0.3)
        budget = RedisBudget(client, BudgetLimits(day_tokens=1))
        for _ in range(5):
            assert asyncio.run(budget_refusal(budget, "ana")) is None
            asyncio.run(book_usage(budget, "ana", used(1)))
        silent.setblocking(False)
        tries = [silent.accept()[0]]
        with pytest.raises(BlockingIOError):
            tries.append(silent.accept()[0])
    tries[0].close()


def test_other_runs_go_on_while_redis_counts(redis_url: str, redis_client: Redis) -> None:
    """Other runs are answered in the meantime."""
    budget = RedisBudget(connect(redis_url), BudgetLimits(day_tokens=1))

    async def both() -> tuple[BudgetRefusal | None, int]:
        await budget.book("ana", used(1))
        redis_client.client_pause(100, all=True)
        waiting, turns = asyncio.ensure_future(budget.refusal("ana")), 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        return waiting.result(), turns

    refused, turns = asyncio.run(both())
    assert refused == BudgetRefusal("day", 1, 0.0)
    assert turns > 10


def test_run_that_reached_its_limit_is_refused() -> None:
    """Either limit refuses; without a limit no run is refused."""
    assert RunBudget(100, 1.0).refusal(used(99, 0.99)) is None
    assert RunBudget(100, 1.0).refusal(used(100, 0.5)) == BudgetRefusal("run", 100, 0.5)
    assert RunBudget(100, 1.0).refusal(used(1, 1.0)) == BudgetRefusal("run", 1, 1.0)
    assert RunBudget().refusal(used(10**9, 10**9)) is None


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_invalid_limit_is_refused(value: float) -> None:
    """The error names the value and the cure."""
    with pytest.raises(ValueError, match=r"day_usd=.* use a number above 0, or None"):
        BudgetLimits(day_usd=value)
    with pytest.raises(ValueError, match="max_total_tokens="):
        RunBudget(max_total_tokens=value)  # type: ignore[arg-type]


def test_clock_set_back_at_midnight_forgets_nothing(clock: Clock) -> None:
    """In memory only one day is counted."""
    budget = MemoryBudget(BudgetLimits(day_tokens=1), clock=clock)
    spend(budget, "ana", used(1))
    clock.now -= DAY
    assert ask(budget, "ana") is not None


def test_day_far_ahead_by_mistake_does_not_last_until_then(make: Make, clock: Clock) -> None:
    """A clock that was wrong for a moment does not lock a conversation out for years."""
    budget = make(BudgetLimits(day_tokens=5))
    clock.now += 3000 * DAY
    assert spend(budget, "a", used(9)) is not None
    clock.now -= 3000 * DAY
    assert ask(budget, "a") is None
