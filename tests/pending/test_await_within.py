"""A time limit for a coroutine that starts a timer only if the coroutine waits."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable

import pytest

from sayso.pending.concurrency import DeadlineExceeded, await_within

NEVER = 60.0


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given: object) -> None:
        asyncio.run(test(**given))

    return run


async def _at_once(value: str) -> str:
    return value


async def _later(value: str) -> str:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return value


async def _hung(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log.append("told")
        await asyncio.sleep(0)
        log.append("cleaned up")
        raise


@in_a_loop
async def test_coroutine_over_its_limit_is_cancelled_and_has_ended():
    """It can clean up, even with an await."""
    log: list[str] = []
    with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
        await await_within(_hung(log), 0.01)
    assert log == ["told", "cleaned up"]


@in_a_loop
async def test_limit_of_zero_ends_every_coroutine_that_waits():
    """A coroutine that does not wait is in time."""
    with pytest.raises(DeadlineExceeded):
        await await_within(_hung([]), 0)
    assert await await_within(_at_once("done"), 0) == "done"


@in_a_loop
async def test_timeout_error_of_the_coroutine_is_passed_on():
    """It is raised unchanged, before and after a wait."""

    async def fails(waits: int) -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise TimeoutError("its own")

    for waits in (0, 1):
        with pytest.raises(TimeoutError, match="its own"):
            await await_within(fails(waits), NEVER)


@in_a_loop
async def test_failing_cleanup_counts_as_a_timeout():
    """An error in the cleanup does not hide the timeout."""

    async def breaks() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("broken")

    with pytest.raises(DeadlineExceeded) as caught:
        await await_within(breaks(), 0)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("seconds", [None, NEVER])
@in_a_loop
async def test_result_of_the_coroutine_is_returned(seconds):
    """This holds whether it waits or not, and for every awaitable."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, "from a future")

    async def waits() -> str:
        async with asyncio.timeout(NEVER):
            return await future

    assert await await_within(_at_once("at once"), seconds) == "at once"
    assert await await_within(_later("later"), seconds) == "later"
    assert await await_within(waits(), seconds) == "from a future"


@in_a_loop
async def test_coroutine_can_handle_errors_of_its_awaits():
    """The awaited call fails, and the coroutine goes on."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_exception, ValueError("no"))

    async def goes_on() -> str:
        try:
            await future
        except ValueError:
            await asyncio.sleep(0)
            return "went on"
        return "never"

    assert await await_within(goes_on(), NEVER) == "went on"


@in_a_loop
async def test_handled_error_is_no_cause_of_a_later_one():
    """A later error does not carry the handled one as its context."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_exception, ValueError("handled"))

    async def fails_later() -> None:
        with contextlib.suppress(ValueError):
            await future
        raise LookupError("later")

    with pytest.raises(LookupError) as caught:
        await await_within(fails_later(), NEVER)
    assert caught.value.__context__ is None


@in_a_loop
async def test_cancelling_the_caller_cancels_the_coroutine():
    """The caller ends with CancelledError."""
    log: list[str] = []
    task = asyncio.create_task(await_within(_hung(log), NEVER))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["told", "cleaned up"]


@in_a_loop
async def test_coroutine_shares_the_context_of_its_caller():
    """Context variables that it sets stay set, before and after a wait."""
    variable = contextvars.ContextVar("variable", default="")

    async def sets() -> None:
        variable.set("before")
        await asyncio.sleep(0)
        assert variable.get() == "before"
        variable.set("after")

    await await_within(sets(), NEVER)
    assert variable.get() == "after"


def test_discarded_call_closes_its_coroutine():
    """A loop that ends in the middle leaves no coroutine open."""
    log: list[str] = []

    async def open_() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            log.append("closed")

    outer = await_within(open_(), None)

    async def begin() -> None:
        outer.send(None)
        outer.close()

    asyncio.run(begin())
    assert log == ["closed"]
