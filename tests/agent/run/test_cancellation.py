"""CancellationToken: a cancelled run ends immediately, and no other run does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent.run.cancellation import CancellationToken, RunCancelled
from sayso.infra.concurrency import call_in_tool_thread, execution_timeout


async def waits(token: CancellationToken, started: threading.Event | None = None) -> str:
    """Run until cancelled."""
    async with token.scope():
        if started is not None:
            started.set()
        await asyncio.Event().wait()
    return "answered"


async def outcome(token: CancellationToken, started: threading.Event | None = None) -> str:
    """Return the result of the run or the reason for its cancellation."""
    try:
        return await waits(token, started)
    except RunCancelled as exc:
        return exc.reason


def test_cancel_from_another_thread_interrupts_the_run() -> None:
    """Whatever the run awaits is interrupted, and the error has the reason."""
    token, started = CancellationToken(), threading.Event()
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(asyncio.run, outcome(token, started))
        started.wait()
        token.cancel("stopped by its user")
        assert ended.result() == "stopped by its user"


def test_cancelled_token_starts_no_run() -> None:
    """No code inside the scope runs."""
    token, ran = CancellationToken(), []
    token.cancel()

    async def run() -> None:
        async with token.scope():
            ran.append("a tool")

    with pytest.raises(RunCancelled, match=r"^the run was cancelled$"):
        asyncio.run(run())
    assert ran == []


def test_cancellation_at_any_moment_ends_every_run() -> None:
    """Two runs in separate loops race with a cancel call a hundred times; each run ends."""

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


def test_concurrent_cancellations_end_the_run_once() -> None:
    """The run ends with the reason that the token keeps."""
    token, started, gate = CancellationToken(), threading.Event(), threading.Barrier(8)

    def cancel(number: int) -> None:
        gate.wait()
        token.cancel(str(number))

    with ThreadPoolExecutor(9) as pool:
        ended = pool.submit(asyncio.run, outcome(token, started))
        started.wait()
        list(pool.map(cancel, range(8)))
        assert ended.result() == token.reason


def test_cancelled_task_stays_a_cancelled_task() -> None:
    """Cancelling the task itself raises CancelledError, also if the token is cancelled too."""

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


def test_timeout_inside_the_scope_stays_a_timeout() -> None:
    """The timeout of a tool is no cancellation."""

    async def run() -> None:
        async with CancellationToken().scope(), asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_cancellation_interrupts_code_below_timeouts() -> None:
    """Code below its own time limits, or waiting for a thread, is interrupted too."""
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


def test_ended_run_receives_no_cancellation() -> None:
    """The token no longer refers to it, and the task continues."""
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


def test_error_of_a_cancelled_run_is_raised() -> None:
    """The run's own error has precedence over the cancellation."""
    token = CancellationToken()

    async def run() -> None:
        async with token.scope():
            token.cancel()
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        asyncio.run(run())


def test_task_continues_after_its_run_was_cancelled() -> None:
    """The task does not count as cancelled, so another run can start in it."""

    async def main() -> tuple[int, str]:
        token = CancellationToken()
        asyncio.get_running_loop().call_soon(token.cancel, "first")
        first = await outcome(token)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        return (task.cancelling() if task else -1), first

    assert asyncio.run(main()) == (0, "first")


def test_computing_tool_can_check_for_cancellation() -> None:
    """`check` is for code that never awaits; the first reason is kept."""
    token = CancellationToken()
    token.check()
    token.cancel("first")
    token.cancel("second")
    assert token.is_cancelled
    with pytest.raises(RunCancelled, match="first"):
        token.check()
