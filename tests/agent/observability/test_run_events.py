"""RunEvents: an observer never stops the run that it observes."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent import UsageStats
from sayso.agent.observability.builtin import MetricsObserver
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver
from sayso.agent.observability.run_events import RunEvents, wait_for_observers


def in_loop(test):
    """Run the test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


class Hears(AgentObserver):
    """An observer that records events, or fails."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.heard, self.fails = [], fails

    def on_usage(self, run_id, usage):
        """Record the event."""
        self.heard.append((run_id, usage))
        if self.fails:
            raise self.fails


class Listens(AsyncAgentObserver):
    """An async observer that records events once its gate is open, or fails."""

    def __init__(self, fails: BaseException | None = None, *, blocking: bool = False) -> None:
        self.heard, self.fails, self.blocking, self.gate = [], fails, blocking, asyncio.Event()

    async def a_on_usage(self, run_id, usage):
        """Record the event."""
        await self.gate.wait()
        self.heard.append(usage)
        if self.fails:
            raise self.fails


ERRORS = [ValueError("secret"), SystemExit(3), asyncio.CancelledError()]


@pytest.mark.parametrize(
    "error", [*ERRORS, GeneratorExit()], ids=lambda error: type(error).__name__
)
@in_loop
async def test_no_error_of_a_sync_observer_breaks_a_run(error):
    """Even SystemExit is caught, and the next observer receives the event."""
    after = Hears()
    await RunEvents([Hears(error), after]).tell("usage", 1)
    assert len(after.heard) == 1


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    "error", [*ERRORS, KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_no_error_of_an_async_observer_breaks_a_run(error, blocking):
    """It holds for blocking and for other observers, in a thread that no person can interrupt."""

    async def run():
        observer = Listens(error, blocking=blocking)
        observer.gate.set()
        await RunEvents([observer]).tell("usage", 1)
        assert await wait_for_observers(5)
        assert observer.heard == [1]

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, run()).result()


@in_loop
async def test_error_is_logged_once_for_each_observer_and_event(caplog):
    """The log has the observer's class and the place of the error, but not its text."""
    told = RunEvents([Hears(ValueError("secret")), Hears(KeyError("secret"))])
    for _ in range(3):
        await told.tell("usage", 1)
    records = [vars(record) for record in caplog.records if record.message == "observer.failed"]
    assert [(record["observer"], record["event"], record["reason"]) for record in records] == [
        ("Hears", "usage", "ValueError"),
        ("Hears", "usage", "KeyError"),
    ]
    assert all(record["at"].startswith("test_run_events.py:") for record in records)
    assert "secret" not in str(records)


@in_loop
async def test_run_can_be_cancelled_during_a_blocking_observer():
    """A cancelled run does not wait for its observers."""
    told = asyncio.create_task(RunEvents([Listens(blocking=True)]).tell("usage", 1))
    await asyncio.sleep(0)
    told.cancel()
    with pytest.raises(asyncio.CancelledError):
        await told


@in_loop
async def test_run_waits_for_blocking_observers_only():
    """The other observer has not received the event yet when the run continues."""
    waits, goes_on = Listens(blocking=True), Listens()
    waits.gate.set()
    await RunEvents([waits, goes_on]).tell("usage", 1)
    assert (waits.heard, goes_on.heard) == ([1], [])
    goes_on.gate.set()
    assert await wait_for_observers(5)
    assert goes_on.heard == [1]


@in_loop
async def test_waiting_for_observers_has_a_time_limit():
    """A hanging webhook blocks nothing."""
    observer = Listens()
    await RunEvents([observer]).tell("usage", 1)
    assert not await wait_for_observers(0)
    observer.gate.set()
    assert await wait_for_observers(5)


@in_loop
async def test_number_of_pending_events_is_bounded(monkeypatch, caplog):
    """A hanging observer does not fill the memory, and dropped events are logged."""
    monkeypatch.setattr("sayso.agent.observability.run_events.MAX_BACKGROUND_EVENTS", 2)
    observer = Listens()
    told = RunEvents([observer])
    for number in range(5):
        await told.tell("usage", number)
    observer.gate.set()
    assert await wait_for_observers(5)
    assert observer.heard == [0, 1]
    assert [vars(record)["reason"] for record in caplog.records] == ["ObserversOverloaded"]


@in_loop
async def test_sync_run_calls_only_sync_methods():
    """`run()` without a loop works this way."""
    sync, never = Hears(), Listens(blocking=True)
    await RunEvents([sync, never], asynchronous=False).tell("usage", 1)
    assert len(sync.heard) == 1
    assert never.heard == []


@in_loop
async def test_sync_methods_are_called_before_async_ones():
    """The order of the observers makes no difference."""
    order = []

    class Both(AsyncAgentObserver):
        blocking = True

        async def a_on_usage(self, run_id, usage):
            order.append("async")

    class Sync(AgentObserver):
        def on_usage(self, run_id, usage):
            order.append("sync")

    await RunEvents([Both(), Sync()]).tell("usage", 1)
    assert order == ["sync", "async"]


@in_loop
async def test_async_method_without_async_is_called():
    """The author forgot the `async`."""
    heard = []

    class Forgot(AsyncAgentObserver):
        blocking = True

        def a_on_usage(self, run_id, usage):
            heard.append(usage)

    await RunEvents([Forgot()]).tell("usage", 1)
    assert heard == [1]


@in_loop
async def test_object_with_the_methods_is_an_observer(caplog):
    """It needs no base class, because the seed defines a protocol."""

    heard = []

    class Duck:
        def on_usage(self, run_id, usage):
            heard.append(usage)

    told = RunEvents([Duck()])
    await told.tell("usage", 1)
    await told.tell("run_end", None)
    assert heard == [1]
    assert caplog.records == []


@in_loop
async def test_observers_receive_the_id_of_the_run():
    """The trace has the same id."""
    observer = Hears()
    told = RunEvents([observer], run_id="r1", parent_run_id="outer", metadata={"user": "u1"})
    await told.tell("usage", 1)
    assert observer.heard == [("r1", 1)]
    assert (told.trace.run_id, told.trace.parent_run_id, told.trace.metadata) == (
        "r1",
        "outer",
        {"user": "u1"},
    )


def test_run_ids_are_unique():
    """Runs that start at the same moment have different ids."""
    assert RunEvents().run_id != RunEvents().run_id


def test_event_that_no_observer_handles_need_not_be_prepared():
    """Metrics are always counted: they must not make each run prepare all events."""
    assert not RunEvents().has_observer_of(*EVENTS, "llm_call")
    assert not RunEvents([AgentObserver()]).has_observer_of(*EVENTS, "llm_call")
    metrics = RunEvents([MetricsObserver()])
    assert {name for name in (*EVENTS, "llm_call") if metrics.has_observer_of(name)} == {
        "llm_call", "tool_end", "tool_error",
    }  # fmt: skip


def test_step_is_dated_from_its_start():
    """Duration and timestamp come from one monotonic clock."""
    told = RunEvents()
    began = time.perf_counter()
    told.note("llm_call", began=began, model="m")
    (step,) = told.trace.steps
    assert step.duration_ms >= 0
    assert step.timestamp >= told.trace.start_time
    assert (
        step.timestamp + step.duration_ms / 1000
        <= told.trace.start_time + (time.perf_counter() - began) + 1
    )


@pytest.mark.parametrize(("chars", "kept"), [(3, "abc…"), (6, "abcdef"), (None, "abcdef")])
def test_long_result_is_cut_in_the_trace(chars, kept):
    """A trace is stored, and results may be long."""
    told = RunEvents(tool_result_chars=chars)
    told.note("tool_execution", tool_result="abcdef")
    assert [step.tool_result for step in told.trace] == [kept]


def test_usage_of_side_questions_is_summed():
    """It is kept apart from the loop's own usage."""
    told = RunEvents()
    told.add_side_usage(UsageStats(1, 2, 3, 0.5))
    told.add_side_usage(UsageStats(1, 2, 3, 0.5))
    assert (told.side_usage.total_tokens, told.side_usage.cost_usd) == (6, 1.0)


def test_run_events_log_nothing_by_default(caplog):
    """Without observers there is no log record."""
    with caplog.at_level(logging.DEBUG):
        asyncio.run(RunEvents().tell("usage", 1))
    assert caplog.records == [] or all(
        record.name != "sayso.agent.observability.run_events" for record in caplog.records
    )
