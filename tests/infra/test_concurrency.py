"""Coroutines that run at once, and foreign code that ends late."""

from __future__ import annotations

import asyncio
import gc

import pytest

from sayso.infra.concurrency import TimedOut, gather_all, run_with_timeout
from tests.clocks import StoppedClock


async def hang_in_clean_up(begun: asyncio.Event, may_end: asyncio.Event) -> None:
    """Wait to be cancelled, and then clean up until it may end."""
    try:
        begun.set()
        await asyncio.Event().wait()
    finally:
        await may_end.wait()


async def let_time_pass(seconds: float) -> None:
    """Let the time pass at once, between the steps of the tasks."""
    for _ in range(10):
        await asyncio.sleep(0)
    asyncio.get_running_loop().pass_time(seconds)  # type: ignore[attr-defined]  # a StoppedClock
    for _ in range(10):
        await asyncio.sleep(0)


async def seconds_until_end(waiting: asyncio.Task) -> float:
    """Return how many seconds pass until a task has ended, in steps of a tenth."""
    for tenths in range(100):
        await let_time_pass(0.0)
        if waiting.done():
            return tenths / 10
        await let_time_pass(0.1)
    raise AssertionError("no end after 10 s")


def test_clean_up_that_hangs_delays_an_error_for_no_longer_than_stop_seconds():
    """The others are cancelled after the first error."""

    async def fail() -> None:
        raise ValueError("failed")

    async def story():
        begun, may_end = asyncio.Event(), asyncio.Event()
        coroutines = (hang_in_clean_up(begun, may_end), fail())
        waiting = asyncio.create_task(gather_all(coroutines, stop_seconds=2.0))
        seconds = await seconds_until_end(waiting)
        may_end.set()
        with pytest.raises(ValueError, match="failed"):
            await waiting
        return seconds

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story()) == pytest.approx(2.0, abs=0.11)


def test_clean_up_that_hangs_holds_a_cancelled_caller_for_no_longer_than_stop_seconds(caplog):
    """Even if none of the coroutines ends, and asyncio logs no exception that nothing retrieved."""

    async def story():
        begun, may_end = asyncio.Event(), asyncio.Event()
        coroutines = [hang_in_clean_up(begun, may_end) for _ in range(2)]
        waiting = asyncio.create_task(gather_all(coroutines, stop_seconds=2.0))
        await begun.wait()
        waiting.cancel()
        seconds = await seconds_until_end(waiting)
        may_end.set()
        await let_time_pass(0.0)
        return seconds, waiting.cancelled()

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story()) == (pytest.approx(2.0, abs=0.11), True)
    gc.collect()
    assert not caplog.records


def test_results_of_coroutines_come_in_order():
    """None of them gives an empty list."""

    async def story():
        return await gather_all(asyncio.sleep(0, each) for each in "ab"), await gather_all(())

    assert asyncio.run(story()) == (["a", "b"], [])


class EmptyError(Exception):
    """An error that counts as false, since it has no items."""

    def __len__(self) -> int:
        return 0


def test_late_error_is_reported_even_if_it_counts_as_false():
    """The class of the error belongs to the author of the tool."""
    reported = []

    async def late(value, error) -> None:
        reported.append((value, type(error)))

    async def story():
        may_fail = asyncio.Event()

        async def fail() -> None:
            await may_fail.wait()
            raise EmptyError

        with pytest.raises(TimedOut):
            await run_with_timeout(fail, 0.01, late)
        may_fail.set()
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert reported == [(None, EmptyError)]
