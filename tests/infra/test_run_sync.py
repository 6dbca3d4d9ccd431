"""run_sync: sync code runs coroutines on an event loop of its thread, which nothing that runs there can break."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent import Agent, AgentConfig, AgentResult, ScriptedProvider, ToolCall, tool
from sayso.infra import concurrency
from sayso.infra.concurrency import (
    Escaped,
    TimedOut,
    call_in_caller_thread,
    run_sync,
    run_with_timeout,
    run_without_loop,
)

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


async def loop_now() -> asyncio.AbstractEventLoop:
    """Return the loop that runs this."""
    return asyncio.get_running_loop()


def lent(function):
    """Return what a sync caller gets that lends its thread to the function."""
    return run_sync(call_in_caller_thread(function), lends_thread=True)


def interrupt():
    """Interrupt this program at the terminal."""
    signal.raise_signal(signal.SIGINT)


def agent_with(function: Callable[[], str]) -> Agent:
    """Return an agent that calls this function once."""
    named = tool(name="act", description="Act.")(function)
    return Agent(
        [named], ScriptedProvider([ToolCall("act", {}, "c1"), "done"]), AgentConfig(max_retries=0)
    )


def thread_name() -> str:
    """Return the name of the thread that the tool runs in."""
    return threading.current_thread().name


def tool_result(result: AgentResult) -> str:
    """Return what the model was told of the call."""
    return result.messages[2].content


@forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("thread", ["this", "another"])
def test_forked_process_leaves_the_loop_of_its_parent_awake(thread):
    """The two share an epoll: a child that closes the loop must not take the parent's wake-up call away."""
    with ThreadPoolExecutor(1) as pool:
        call = (
            (lambda *args: pool.submit(*args).result())
            if thread == "another"
            else (lambda f, *args: f(*args))
        )
        call(run_sync, loop_now())
        if (child := os.fork()) == 0:
            run_sync(loop_now())
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        began = time.monotonic()
        call(
            run_sync, asyncio.wait_for(asyncio.to_thread(time.sleep, 0.1), 30)
        )  # done while the loop waits for it
        assert time.monotonic() - began < 20


@forks
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


@forks
def test_process_that_was_forked_inside_a_tool_can_run_agents():
    """It has only the thread of the tool."""
    inner = agent_with(lambda: "inner")

    def child() -> None:
        sys.exit(0 if inner.run("go").content == "done" else 1)

    def fork() -> str:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        return str(process.exitcode)

    assert tool_result(agent_with(fork).run("go")) == "0"


def test_interrupt_reaches_the_caller_and_leaves_the_loop_usable():
    """The person at the terminal means the program, which may ask again."""
    with pytest.raises(KeyboardInterrupt):
        lent(interrupt)
    assert lent(lambda: "again") == "again"


def test_interrupt_in_a_tool_reaches_the_caller():
    """The next run is not harmed."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent_with(interrupted).run("go")
    assert agent_with(thread_name).run("go").content == "done"


def test_interrupt_in_an_async_tool_reaches_the_caller():
    """It computes on the loop of the caller's thread, and is no failed tool."""

    async def interrupted() -> str:
        interrupt()
        return "went on"

    with pytest.raises(KeyboardInterrupt):
        agent_with(interrupted).run("go")
    assert agent_with(thread_name).run("go").content == "done"


def test_coroutine_that_needs_a_loop_is_closed_when_it_was_run_without_one():
    """Its clean-up runs before the caller gets the error, and still without a loop."""
    steps = []

    async def needs_loop():
        try:
            await asyncio.sleep(0)
        finally:
            steps.append(concurrency.has_no_loop.get())

    coroutine = needs_loop()
    with pytest.raises(RuntimeError, match="without one"):
        run_without_loop(coroutine)
    assert steps == [True]


def test_interrupt_is_no_error_of_the_loop(caplog):
    """Nothing is logged about an exception that was never retrieved: the caller has it."""
    with contextlib.suppress(KeyboardInterrupt):
        lent(interrupt)
    run_sync(loop_now())  # lets go of what was left
    gc.collect()
    assert not caplog.records


def test_interrupt_stops_background_tasks():
    """A background task is cleaned up, as is the run, and the loop is free for the next call."""
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
        try:
            await call_in_caller_thread(interrupt)
        finally:
            await asyncio.sleep(0)
            steps.append("ended")

    before = run_sync(loop_now())
    with pytest.raises(KeyboardInterrupt):
        run_sync(run(), lends_thread=True)
    assert (sorted(steps), run_sync(loop_now())) == (["cleaned up", "ended"], before)


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


@pytest.mark.parametrize("leaving", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_lent_function_ends_nothing_but_itself(leaving):
    """A tool in the caller's thread cannot end the caller's program."""

    def leave():
        raise leaving

    with pytest.raises(Escaped, match=leaving.__name__):
        lent(leave)
    assert lent(lambda: "again") == "again"


@pytest.mark.parametrize("exit_", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_tool_that_wants_to_end_more_than_itself_ends_only_itself(exit_):
    """As in a thread of its own: the model is told, and the caller goes on."""

    def quits() -> str:
        raise exit_

    result = agent_with(quits).run("go")
    assert f"Escaped: it raised {type(exit_).__name__}" in tool_result(result)
    assert result.content == "done"


async def cancel_itself() -> None:
    """Cancel the task that runs this."""
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)


def test_foreign_function_that_cancels_its_task_does_not_cancel_its_caller():
    """A worker would take the CancelledError for its own stop."""

    async def caller():
        with pytest.raises(Escaped):
            await run_with_timeout(cancel_itself, 30)
        return "goes on"

    assert run_sync(caller()) == "goes on"


@pytest.mark.parametrize("run", [run_sync, asyncio.run])
def test_foreign_function_without_a_loop_may_run_one(run):
    """On that loop, time limits hold."""

    async def inner():
        with pytest.raises(TimedOut):
            await run_with_timeout(asyncio.Event().wait, 0.01)
        return "inner"

    def outer() -> str:
        return run(inner())

    assert run_without_loop(run_with_timeout(outer, 30)) == "inner"


def test_lent_function_runs_in_the_callers_thread_and_may_run_a_loop():
    """It sees no running loop."""

    async def inner():
        return threading.current_thread()

    assert lent(lambda: asyncio.run(inner())) is threading.current_thread()


def test_no_task_is_running_to_a_lent_function():
    """Python 3.14 lets a thread run one at a time; the lending task goes on as before."""

    async def run():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        return await call_in_caller_thread(
            lambda: asyncio.current_task(loop)
        ), asyncio.current_task() is task

    assert run_sync(run(), lends_thread=True) == (None, True)


def test_lent_function_may_wait_for_coroutines_of_its_own():
    """They have another loop: the one that lends goes on where it was."""

    def nested():
        return lent(lambda: run_sync(asyncio.sleep(0, "inner")))

    assert lent(nested) == lent(lambda: run_sync(call_in_caller_thread(lambda: "inner"))) == "inner"


def test_another_loop_in_the_same_context_has_nothing_lent():
    """What a coroutine runs in a thread of its own, in a copy of its context, stays on its own loop."""

    async def elsewhere():
        return await call_in_caller_thread(threading.current_thread)

    async def run():
        return await asyncio.to_thread(asyncio.run, elsewhere())

    assert run_sync(run(), lends_thread=True) is not threading.current_thread()


def test_stop_iteration_of_a_lent_function_is_reported():
    """No future can hold it."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        lent(lambda: next(iter(())))


def test_agent_inside_a_tool_leaves_the_run_around_it_alone():
    """Three deep, each in the one thread that all of them were lent."""
    inmost = agent_with(thread_name)
    middle = agent_with(lambda: tool_result(inmost.run("go")))
    result = agent_with(lambda: tool_result(middle.run("go"))).run("go")
    assert (tool_result(result), result.content) == ("MainThread", "done")


def test_tool_may_ask_another_agent_twice():
    """Each time in the thread that it was lent."""
    inner = [agent_with(thread_name), agent_with(thread_name)]
    result = agent_with(lambda: " ".join(tool_result(each.run("go")) for each in inner)).run("go")
    assert tool_result(result) == "MainThread MainThread"


def test_tool_that_runs_a_loop_of_its_own_is_lent_nothing_there():
    """The loop that waits for it is not the one that runs the agent inside."""
    inner = agent_with(thread_name)
    result = agent_with(lambda: tool_result(asyncio.run(inner.arun("go")))).run("go")
    assert tool_result(result) == "sayso-tool"


def test_thread_that_has_the_callers_context_is_lent_nothing():
    """It is not the thread that waits."""
    inner, results = agent_with(thread_name), []

    def starts() -> str:
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=run, args=(lambda: results.append(tool_result(asyncio.run(inner.arun("go")))),)
        )
        thread.start()
        thread.join()
        return results[0]

    assert tool_result(agent_with(starts).run("go")) == "sayso-tool"


def test_each_thread_has_its_own():
    """Two sync callers never meet."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_sync, loop_now()).result() is not run_sync(loop_now())


def test_loop_is_kept_from_call_to_call():
    """Connections that a call leaves behind live on."""
    assert run_sync(loop_now()) is run_sync(loop_now())


def test_closed_loop_is_replaced():
    """Foreign code may close the loop that it finds."""
    run_sync(loop_now()).close()
    assert run_sync(asyncio.sleep(0, "again")) == "again"


def test_errors_come_without_our_own():
    """The traceback shows nothing of how the coroutine was run."""

    async def fail():
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs") as caught:
        run_sync(fail())
    assert caught.value.__context__ is None


def test_loop_is_closed_with_its_thread():
    """A thread that ends leaves no loop behind."""
    kept = concurrency._ThreadLoop()
    loop = kept.loop
    del kept
    assert loop.is_closed()
