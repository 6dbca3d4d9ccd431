"""Ferry: a store's sync call waits on the loop as a coroutine would, in its caller's context, and is ended like one."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar

import pytest

from sayso.pending.redis.ferry import aboard, ferry, wait_for

whose: ContextVar[str] = ContextVar("whose", default="nobody's")


async def later(value):
    """An answer that takes a round of the loop."""
    await asyncio.sleep(0)
    return value


async def broken():
    """An answer that is an error."""
    await asyncio.sleep(0)
    raise OSError("away")


def test_function_gets_its_answers_and_gives_its_own():
    """Two round trips, one call."""
    assert asyncio.run(ferry(lambda: (wait_for(later(1)), wait_for(later(2)), "done"))) == (1, 2, "done")


def test_function_that_asks_nothing_is_just_called():
    """A memory twin never leaves the caller's step."""
    assert asyncio.run(ferry(lambda: 7)) == 7


def test_loop_goes_on_while_one_waits():
    """The second is asked before the first has its answer."""

    async def story():
        answer, asked = asyncio.Event(), []

        def call(name: str) -> str:
            asked.append(name)
            wait_for(answer.wait())
            return name

        calls = [asyncio.create_task(ferry(lambda name=name: call(name))) for name in "ab"]
        await asyncio.sleep(0)
        assert asked == ["a", "b"]
        answer.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(story()) == ["a", "b"]


def test_only_what_is_called_by_the_ferry_is_aboard():
    """Its caller is not, nor is anybody in another thread."""

    async def story():
        return aboard(), await ferry(aboard), await asyncio.to_thread(aboard), aboard()

    assert asyncio.run(story()) == (False, True, False, False)


def test_each_call_has_its_callers_context_on_both_sides_of_a_wait():
    """An idempotency key is a context variable: mixed up, two actions would share one."""

    async def one(name: str):
        whose.set(name)
        return await ferry(lambda: (whose.get(), wait_for(later(None)), whose.get()))

    async def story():
        return await asyncio.gather(*(one(name) for name in "abc"))

    assert asyncio.run(story()) == [(name, None, name) for name in "abc"]


def test_what_a_call_sets_stays_its_own():
    """As in a thread."""

    async def story():
        await ferry(lambda: whose.set("the call's"))
        return whose.get()

    assert asyncio.run(story()) == "nobody's"


def test_error_of_an_answer_reaches_the_function_and_its_caller():
    """Where it asked, so that `except` works there; uncaught, it is the caller's."""

    def caught() -> str:
        try:
            return wait_for(broken())
        except OSError as exc:
            return f"heard: {exc}"

    assert asyncio.run(ferry(caught)) == "heard: away"
    with pytest.raises(OSError, match="away"):
        asyncio.run(ferry(lambda: wait_for(broken())))


def test_cancelled_call_ends_where_it_waits():
    """Its cleanup runs, the rest of it does not, and the caller is cancelled."""
    steps = []

    def call() -> None:
        try:
            steps.append("asked")
            wait_for(asyncio.Event().wait())
            steps.append("never")
        finally:
            steps.append("cleaned up")

    async def story():
        task = asyncio.create_task(ferry(call))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert steps == ["asked", "cleaned up"]


def test_call_that_is_cut_off_may_still_ask_in_its_cleanup():
    """As a coroutine may await in `finally`."""
    said = []

    def call() -> None:
        try:
            wait_for(asyncio.Event().wait())
        finally:
            said.append(wait_for(later("good-bye")))

    async def story():
        task = asyncio.create_task(ferry(call))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert said == ["good-bye"]


def test_timeout_ends_a_call():
    """`asyncio.timeout` around it works, and its caller hears TimeoutError."""

    async def story():
        async with asyncio.timeout(0.01):
            await ferry(lambda: wait_for(asyncio.Event().wait()))

    with pytest.raises(TimeoutError):
        asyncio.run(story())


def test_closed_call_runs_its_cleanup():
    """A coroutine that is thrown away in mid-call takes its function with it."""
    steps = []

    def call() -> None:
        try:
            wait_for(asyncio.sleep(0))
        finally:
            steps.append("cleaned up")

    coroutine = ferry(call)
    coroutine.send(None)
    coroutine.close()
    assert steps == ["cleaned up"]


def test_closed_call_cannot_ask_once_more():
    """A loop that is gone answers nobody: the question is refused where it is asked, and the call ends."""
    steps = []

    def call() -> None:
        try:
            wait_for(asyncio.sleep(0))
        finally:
            try:
                wait_for(asyncio.sleep(0))
            except RuntimeError:
                steps.append("refused")
                raise

    coroutine = ferry(call)
    coroutine.send(None)
    with pytest.raises(RuntimeError):
        coroutine.close()
    gc.collect()
    assert steps == ["refused"]


def test_call_within_a_call_waits_for_its_own():
    """A store that is reached while another call waits: each goes on with what it asked for."""

    async def inner():
        return await ferry(lambda: wait_for(later("inner")))

    assert asyncio.run(ferry(lambda: (wait_for(inner()), wait_for(later("outer"))))) == ("inner", "outer")
