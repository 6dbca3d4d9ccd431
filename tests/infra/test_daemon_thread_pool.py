"""Threads: tools get a bounded number of them in order, and a hung tool is logged and delays no other."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from sayso.agent import ToolMetadata, tool
from sayso.agent.run.tool_call import invoke
from sayso.infra import concurrency, threads
from sayso.infra.concurrency import (
    NotStarted,
    TimedOut,
    call_in_tool_thread,
    execution_timeout,
    run_sync,
    run_with_timeout,
)
from sayso.infra.threads import DaemonThreadPool, set_tool_thread_limit
from tests.clocks import StoppedClock
from tests.flows.system import until


@pytest.fixture
def one():
    """Limit the process to one thread for tools."""
    set_tool_thread_limit(1)
    yield threads._tool_pools[os.getpid()]
    del threads._tool_pools[os.getpid()]


class Hanging:
    """A tool that hangs until the test ends it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.door = threading.Event()

    def __call__(self) -> str:
        """Hang until the end."""
        self.begun.set()
        self.door.wait()
        return "in the end"


@pytest.fixture
def hanging():
    """Return a hanging tool that ends with the test."""
    function = Hanging()
    yield function
    function.door.set()


async def begun(function: Hanging) -> None:
    """Wait until the tool runs."""
    await asyncio.to_thread(function.begun.wait)


def test_no_more_run_than_there_are_threads():
    """Forty calls share four threads."""
    set_tool_thread_limit(4)
    running, most, lock = set(), [], threading.Lock()
    together = threading.Barrier(4)

    def call() -> int:
        with lock:
            running.add(threading.get_ident())
            most.append(len(running))
        together.wait(30)
        with lock:
            running.discard(threading.get_ident())
        return threading.get_ident()

    async def story():
        return await asyncio.gather(*(call_in_tool_thread(call) for _ in range(40)))

    try:
        idents = asyncio.run(story())
    finally:
        del threads._tool_pools[os.getpid()]
    assert (len(idents), len(set(idents)), max(most)) == (40, 4, 4)


def test_calls_wait_in_order(one, hanging):
    """The first caller runs first."""
    order = []

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        rest = [
            asyncio.create_task(call_in_tool_thread(lambda number=number: order.append(number)))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        hanging.door.set()
        await asyncio.gather(first, *rest)

    asyncio.run(story())
    assert order == list(range(20))


def test_call_cancelled_before_it_had_a_thread_never_runs(one, hanging):
    """The caller was told that the tool did not run."""
    ran = []

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        second, third = (
            asyncio.create_task(call_in_tool_thread(lambda name=name: ran.append(name)))
            for name in ("2", "3")
        )
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        hanging.door.set()
        await asyncio.gather(first, third)

    asyncio.run(story())
    assert ran == ["3"]


def test_call_that_timed_out_before_it_had_a_thread_never_runs_and_reports_that(one, hanging):
    """The callback for late outcomes learns at once that nothing was done."""
    ran, heard = [], []

    async def late(result, error) -> None:
        heard.append((result, type(error)))

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        second = asyncio.create_task(run_with_timeout(lambda: ran.append("second"), 30, late))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        await asyncio.gather(*concurrency._late_tasks)
        hanging.door.set()
        await first
        await call_in_tool_thread(lambda: None)

    asyncio.run(story())
    assert (ran, heard) == ([], [(None, NotStarted)])


def test_call_abandoned_before_its_start_is_not_counted():
    """Its caller was cancelled before its first step."""
    pool = DaemonThreadPool("tool", 1)
    assert pool.abandon(threads.ThreadCall(lambda: None))
    assert pool.hung == 0


def test_waiting_for_a_thread_costs_no_tool_its_time(one, hanging):
    """The limit counts from the start of the tool, and then it holds."""

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        waiting = asyncio.create_task(run_with_timeout(lambda: "done", 0.01))
        await let_time_pass()
        assert not waiting.done()
        hanging.door.set()
        return await first, await waiting

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story()) == ("in the end", "done")


async def let_time_pass() -> None:
    """Let a minute pass at once, after the tasks have begun to wait."""
    for _ in range(10):
        await asyncio.sleep(0)
    asyncio.get_running_loop().pass_time(60.0)  # type: ignore[attr-defined]  # a StoppedClock
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("own_seconds", [None, 0.01])
def test_no_limit_counts_while_a_thread_is_awaited(one, hanging, own_seconds):
    """Neither `tool_timeout_seconds`, nor the tool's own limit inside it."""

    @tool(metadata=ToolMetadata(timeout=own_seconds))
    def quick() -> str:
        """Be quick."""
        return "done"

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        waiting = asyncio.create_task(invoke(quick, {}, 0.01))
        await let_time_pass()
        assert not waiting.done()
        hanging.door.set()
        await first
        return await waiting

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story()) == "done"


def test_limit_counts_again_when_a_waiting_call_is_cancelled(one, hanging):
    """Its caller goes on, and must not do so for ever."""

    async def block():
        async with execution_timeout(0.01):
            waiting = asyncio.create_task(call_in_tool_thread(lambda: None))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await let_time_pass()

    async def story():
        first = asyncio.create_task(call_in_tool_thread(hanging))
        await begun(hanging)
        with pytest.raises(TimeoutError):
            await block()
        hanging.door.set()
        await first

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        runner.run(story())


def test_limit_counts_again_when_the_system_gives_no_thread(one, monkeypatch):
    """The block may catch the error and go on."""

    def refuse(_) -> None:
        raise RuntimeError("can't start new thread")

    async def story():
        async with execution_timeout(30) as limit:
            before = limit.when()
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                with pytest.raises(RuntimeError, match="new thread"):
                    await call_in_tool_thread(lambda: None)
            return limit.when() == before

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story())


def test_limit_stands_still_until_the_last_of_parallel_calls_has_a_thread(one, hanging):
    """The first one runs already, while the second still waits."""
    earlier = Hanging()

    async def both():
        async with execution_timeout(0.01):
            calls = (hanging, lambda: "second")
            return await asyncio.gather(*map(call_in_tool_thread, calls))

    async def story():
        first = asyncio.create_task(call_in_tool_thread(earlier))
        await begun(earlier)
        waiting = asyncio.create_task(both())
        await asyncio.sleep(0)
        earlier.door.set()
        await first
        await begun(hanging)
        await let_time_pass()
        hanging.door.set()
        return await waiting

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        assert runner.run(story()) == ["in the end", "second"]


@pytest.mark.parametrize("run", [run_sync, asyncio.run])
def test_tool_that_runs_a_tool_keeps_its_own_limit(hanging, run):
    """The inner call waits for a thread on another loop, which must not move the outer limit."""

    def outer() -> str:
        run(call_in_tool_thread(lambda: "inner"))
        return hanging()

    async def story():
        waiting = asyncio.create_task(run_with_timeout(outer, 0.01))
        await begun(hanging)
        await let_time_pass()
        assert waiting.done()
        with pytest.raises(TimedOut):
            await waiting

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        runner.run(story())


def test_limit_holds_once_the_tool_runs(one, hanging):
    """A hung tool is counted and logged, with the line at which it hangs, until it ends."""

    async def story():
        with pytest.raises(TimedOut):
            await run_with_timeout(hanging, 0.01)
        await asyncio.sleep(0)

    asyncio.run(story())
    assert one.hung == 1
    hanging.door.set()
    until(lambda: one.hung == 0)


def test_hung_tool_is_logged_with_its_stack(one, hanging, caplog):
    """The stack shows its author where it hangs."""

    async def story():
        with pytest.raises(TimedOut):
            await run_with_timeout(hanging, 0.01)
        await asyncio.sleep(0)

    asyncio.run(story())
    (record,) = [record for record in caplog.records if record.message == "tool.left_running"]
    assert (record.hung, record.threads) == (1, 1)
    assert "self.door.wait()" in record.stack


def test_arguments_of_a_call_are_freed_when_it_ends(one):
    """The thread does not hold them until the next call, and no reference cycle does."""
    given = Hanging()
    seen = weakref.ref(given)
    gc.disable()
    try:
        run_sync(call_in_tool_thread(partial(id, given)))
        del given
        until(lambda: seen() is None)
    finally:
        gc.enable()


def test_tool_that_runs_tools_does_not_wait_for_itself(one):
    """It holds the only thread, so the inner tools get threads beyond the bound, at any depth."""

    def inner() -> str:
        return "inner"

    def outer() -> str:
        return (
            f"outer {run_sync(call_in_tool_thread(lambda: run_sync(call_in_tool_thread(inner))))}"
        )

    assert asyncio.run(call_in_tool_thread(outer)) == "outer inner"


def test_tool_that_ends_its_thread_ends_only_itself(one):
    """The thread serves the next call."""

    async def story():
        with pytest.raises(concurrency.Escaped):
            await call_in_tool_thread(lambda: sys.exit(1))
        return await call_in_tool_thread(lambda: "next")

    assert asyncio.run(story()) == "next"


def test_result_for_a_loop_that_is_gone_harms_no_thread(one, hanging):
    """The caller's loop closed while its tool ran."""

    async def story():
        with pytest.raises(TimedOut):
            await run_with_timeout(hanging, 0.01)

    async def again():
        return await call_in_tool_thread(lambda: "next")

    asyncio.run(story())
    hanging.door.set()
    assert asyncio.run(again()) == "next"


def test_machine_without_threads_fails_the_call(monkeypatch):
    """The call does not wait for a thread that will never come."""
    pool = DaemonThreadPool("tool", 2)

    def refuse(_) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    work = threads.ThreadCall(lambda: None)
    with pytest.raises(RuntimeError):
        pool.start(work)
    assert (pool._threads, list(pool._waiting)) == (0, [])


def test_idle_threads_end(monkeypatch):
    """A burst of tools does not leave many threads."""
    monkeypatch.setattr("sayso.infra.threads.IDLE_SECONDS", 0.01)
    pool, done = DaemonThreadPool("tool", 8), threading.Event()
    pool.start(threads.ThreadCall(done.set))
    assert done.wait(30)
    until(lambda: pool._threads == 0)
    again = threading.Event()
    pool.start(threads.ThreadCall(again.set))
    assert again.wait(30)


def test_forked_child_has_threads_of_its_own(one):
    """RQ's own worker forks, and a parent's threads do not exist in its child."""
    asyncio.run(call_in_tool_thread(lambda: None))
    child = os.fork()
    if child == 0:
        os._exit(0 if asyncio.run(call_in_tool_thread(lambda: "there")) == "there" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_hung_tool_does_not_hold_the_process():
    """They are daemon threads, for which Python does not wait."""
    script = """
import asyncio, threading
from sayso.infra.concurrency import TimedOut, run_with_timeout
async def main():
    try:
        await run_with_timeout(threading.Event().wait, 0.01)
    except TimedOut:
        print("left")
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "left\n"


def test_sayso_functions_do_not_hold_the_process_either():
    """A round of the reaper that waits for a silent Redis is abandoned at exit."""
    script = """
import asyncio, threading
from sayso.infra.concurrency import call_in_thread
async def main():
    task = asyncio.create_task(call_in_thread(threading.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
asyncio.run(main())
print("left")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "left\n"
