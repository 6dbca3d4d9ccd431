"""CancellationToken: a cancelled run ends at once, and only then."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent.run.cancellation import CancellationToken, RunCancelled
from sayso.pending.concurrency import call_in_tool_thread, execution_timeout


async def waits(token: CancellationToken, started: threading.Event | None = None) -> str:
    """A run that would never end by itself."""
    async with token.scope():
        if started is not None:
            started.set()
        await asyncio.Event().wait()
    return "answered"


async def outcome(token: CancellationToken, started: threading.Event | None = None) -> str:
    """What became of it."""
    try:
        return await waits(token, started)
    except RunCancelled as exc:
        return exc.reason


def test_cancelled_from_another_thread() -> None:
    """What the run waits for is interrupted, and the reason is told."""
    token, started = CancellationToken(), threading.Event()
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(asyncio.run, outcome(token, started))
        started.wait()
        token.cancel("stopped by its user")
        assert ended.result() == "stopped by its user"


def test_cancelled_before_it_begins() -> None:
    """Nothing inside is run."""
    token, ran = CancellationToken(), []
    token.cancel()

    async def run() -> None:
        async with token.scope():
            ran.append("a tool")

    with pytest.raises(RunCancelled, match=r"^the run was cancelled$"):
        asyncio.run(run())
    assert ran == []


def test_every_moment_of_a_cancellation_ends_every_run() -> None:
    """Two runs in loops of their own and a canceller set off together, often: none of them is missed."""

    def raced() -> list[str]:
        token, gate = CancellationToken(), threading.Barrier(3)

        def run() -> str:
            gate.wait()
            return asyncio.run(asyncio.wait_for(outcome(token), 60))

        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(run) for _ in range(2)]
            gate.wait()
            token.cancel("stop")
            return [ended.result() for ended in runs]

    assert [raced() for _ in range(100)] == [["stop", "stop"]] * 100


def test_many_cancel_at_once() -> None:
    """The run ends once, with the reason that the token keeps."""
    token, started, gate = CancellationToken(), threading.Event(), threading.Barrier(8)

    def cancel(number: int) -> None:
        gate.wait()
        token.cancel(str(number))

    with ThreadPoolExecutor(9) as pool:
        ended = pool.submit(asyncio.run, outcome(token, started))
        started.wait()
        list(pool.map(cancel, range(8)))
        assert ended.result() == token.reason


def test_cancelled_task_is_no_cancelled_run() -> None:
    """Whoever stops the task itself sees it cancelled, also where the token is cancelled too."""

    async def main() -> list[bool]:
        seen = []
        for also in (False, True):
            token = CancellationToken()
            task = asyncio.create_task(waits(token))
            await asyncio.sleep(0)
            if also:
                token.cancel()
            task.cancel()
            await asyncio.wait({task})
            seen.append(task.cancelled())
        return seen

    assert asyncio.run(main()) == [True, True]


def test_time_limit_inside_is_no_cancellation() -> None:
    """A tool's timeout stays one."""

    async def run() -> None:
        async with CancellationToken().scope(), asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_time_limits_inside_are_no_obstacle() -> None:
    """What waits below limits of its own, or for a thread, is interrupted like the rest."""
    token, started, go_on = CancellationToken(), threading.Event(), threading.Event()

    def blocks() -> None:
        started.set()
        go_on.wait()

    async def run() -> None:
        async with token.scope(), execution_timeout(600), asyncio.timeout(600):
            await call_in_tool_thread(blocks)

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(asyncio.run, run())
        started.wait()
        token.cancel()
        assert isinstance(ended.exception(), RunCancelled)
    go_on.set()


def test_run_that_ended_hears_nothing() -> None:
    """The token holds none of it, and the task lives on."""
    token = CancellationToken()

    async def main() -> int:
        async with token.scope():
            pass
        loop, woken = asyncio.get_running_loop(), []
        loop.call_soon_threadsafe = woken.append  # type: ignore[method-assign, assignment]
        token.cancel()
        del loop.call_soon_threadsafe  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return len(woken)

    assert asyncio.run(main()) == 0


def test_run_that_failed_says_why() -> None:
    """Its own error is what is raised, cancelled or not."""
    token = CancellationToken()

    async def run() -> None:
        async with token.scope():
            token.cancel()
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        asyncio.run(run())


def test_task_goes_on_after_its_run_was_cancelled() -> None:
    """It is not taken for cancelled: the next run in it is."""

    async def main() -> tuple[int, str]:
        token = CancellationToken()
        asyncio.get_running_loop().call_soon(token.cancel, "first")
        first = await outcome(token)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        return (task.cancelling() if task else -1), first

    assert asyncio.run(main()) == (0, "first")


def test_tool_that_computes_can_ask() -> None:
    """`check` is for what never awaits; the first reason is kept."""
    token = CancellationToken()
    token.check()
    token.cancel("first")
    token.cancel("second")
    assert token.is_cancelled
    with pytest.raises(RunCancelled, match="first"):
        token.check()
