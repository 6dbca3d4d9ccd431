"""OwnLoop: one event loop a thread, kept from call to call, which nothing that is run on it can break."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.pending.concurrency import (
    Escaped,
    ThreadLoop,
    call_in_caller_thread,
    lend_caller_thread,
    run_sync,
    thread_loop,
)


async def loop_now() -> asyncio.AbstractEventLoop:
    """Where this runs."""
    return asyncio.get_running_loop()


def lent(function):
    """What a sync caller gets that lends its thread to the function."""
    with lend_caller_thread(True):
        return run_sync(call_in_caller_thread(function))


def test_interrupted_function_leaves_the_loop_usable():
    """Whoever presses Ctrl+C gets the KeyboardInterrupt, and may ask again."""

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lent(interrupted)
    assert lent(lambda: "again") == "again"


def test_interrupted_function_is_no_error_of_the_loop(caplog):
    """Nobody reads of an exception that was never retrieved: whoever pressed Ctrl+C has it."""

    def interrupted():
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        lent(interrupted)
    run_sync(loop_now())  # lets go of what was left
    gc.collect()
    assert not caplog.records


def test_interrupted_function_stops_what_is_beside_it():
    """A background task is cleaned up, and the loop is free for the next call."""
    steps = []

    async def background():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    async def run():
        run.task = asyncio.ensure_future(background())
        await asyncio.sleep(0)
        await call_in_caller_thread(interrupted)

    def interrupted():
        raise KeyboardInterrupt

    before = thread_loop()
    with pytest.raises(KeyboardInterrupt), lend_caller_thread(True):
        run_sync(run())
    assert (steps, thread_loop()) == (["cleaned up"], before)


def test_interrupted_wait_stops_what_was_under_way():
    """A run that was left by its caller goes on nowhere, and its clean-up is waited for."""
    steps = []

    async def run():
        try:
            await call_in_caller_thread(interrupted)
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lend_caller_thread(True):
        run_sync(run())
    assert (steps, run_sync(loop_now())) == (["cleaned up"], thread_loop()._loop)


@pytest.mark.parametrize("leaving", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_lent_function_ends_nothing_but_itself(leaving):
    """A tool in the caller's thread cannot end the caller's program."""

    def leave():
        raise leaving

    with pytest.raises(Escaped, match=leaving.__name__):
        lent(leave)
    assert lent(lambda: "again") == "again"


def test_leftover_tasks_are_cancelled():
    """What a call leaves running is stopped before the call returns."""
    stopped = []

    async def background():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    async def call():
        call.task = asyncio.ensure_future(background())
        await asyncio.sleep(0)

    run_sync(call())
    assert stopped == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_has_a_loop_of_its_own():
    """A child shares no sockets with its parent's loop."""
    ours = run_sync(loop_now())
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, b"own" if run_sync(loop_now()) is not ours else b"shared")
        os._exit(0)
    os.wait()
    assert os.read(reader, 10) == b"own"


def test_each_thread_has_its_own():
    """Two sync callers never meet."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_sync, loop_now()).result() is not run_sync(loop_now())


def test_loop_is_kept_from_call_to_call():
    """Connections that a call leaves behind live on."""
    assert run_sync(loop_now()) is run_sync(loop_now())


def test_closed_loop_is_replaced():
    """Somebody may close whatever loop he finds."""
    thread_loop()._loop.close()
    assert run_sync(asyncio.sleep(0, "again")) == "again"


def test_lent_function_runs_in_the_callers_thread_and_may_start_a_loop():
    """No loop is running to it."""

    async def inner():
        return threading.current_thread()

    assert lent(lambda: asyncio.run(inner())) is threading.current_thread()


def test_no_task_is_running_to_a_lent_function():
    """Python 3.14 lets a thread run one at a time; whoever lends it goes on as the one that he was."""

    async def run():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        return await call_in_caller_thread(lambda: asyncio.current_task(loop)), asyncio.current_task() is task

    with lend_caller_thread(True):
        assert run_sync(run()) == (None, True)


def test_another_loop_in_the_same_context_has_nothing_lent():
    """What a coroutine runs in a thread of its own, in a copy of its context, stays on its own loop."""

    async def elsewhere():
        await call_in_caller_thread(lambda: None)
        return asyncio.get_running_loop()

    async def run():
        return await asyncio.to_thread(asyncio.run, elsewhere())

    with lend_caller_thread(True):
        assert run_sync(run()) is not thread_loop()._loop


def test_stop_iteration_of_a_lent_function_is_told():
    """No future can hold it."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        lent(lambda: next(iter(())))


def test_errors_come_without_our_own():
    """Who asked has to read nothing of how it was run."""

    async def fail():
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs") as caught:
        run_sync(fail())
    assert caught.value.__context__ is None


def test_loop_is_closed_with_its_thread():
    """A thread that ends leaves no loop behind."""
    kept = ThreadLoop()
    loop = kept._loop
    del kept
    assert loop.is_closed()


def test_lent_function_may_wait_for_coroutines_of_its_own():
    """They have another loop: the one that lends goes on where it was."""

    def nested():
        with lend_caller_thread(True):
            return run_sync(call_in_caller_thread(lambda: run_sync(asyncio.sleep(0, "inner"))))

    assert lent(nested) == lent(lambda: run_sync(call_in_caller_thread(lambda: "inner"))) == "inner"
