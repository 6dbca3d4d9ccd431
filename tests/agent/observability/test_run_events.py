"""RunEvents: an observer never stops the run it watches."""

from __future__ import annotations

import asyncio
import functools
import logging
import time

import pytest

from sayso.agent import UsageStats
from sayso.agent.observability.observer import AgentObserver, AsyncAgentObserver
from sayso.agent.observability.trace import RunEvents, wait_for_observers


def in_loop(test):
    """The test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


class Hears(AgentObserver):
    """Remembers, or fails."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.heard, self.fails = [], fails

    def on_usage(self, run_id, usage):
        """Remembered."""
        self.heard.append((run_id, usage))
        if self.fails:
            raise self.fails


class Listens(AsyncAgentObserver):
    """Remembers once the gate is open, or fails."""

    def __init__(self, fails: BaseException | None = None, *, blocking: bool = False) -> None:
        self.heard, self.fails, self.blocking, self.gate = [], fails, blocking, asyncio.Event()

    async def a_on_usage(self, run_id, usage):
        """Remembered."""
        await self.gate.wait()
        self.heard.append(usage)
        if self.fails:
            raise self.fails


ERRORS = [ValueError("secret"), SystemExit(3), asyncio.CancelledError()]


@pytest.mark.parametrize("error", [*ERRORS, GeneratorExit()], ids=lambda error: type(error).__name__)
@in_loop
async def test_no_error_of_a_sync_observer_breaks_a_run(error):
    """Not even one that wants to end the process; the next observer hears the event."""
    after = Hears()
    await RunEvents([Hears(error), after]).tell("usage", 1)
    assert len(after.heard) == 1


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("error", [*ERRORS, KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@in_loop
async def test_no_error_of_an_async_observer_breaks_a_run(error, blocking):
    """Awaited or not."""
    observer = Listens(error, blocking=blocking)
    observer.gate.set()
    await RunEvents([observer]).tell("usage", 1)
    assert await wait_for_observers(5)
    assert observer.heard == [1]


@in_loop
async def test_an_error_is_logged_once_for_each_observer_and_event(caplog):
    """With the observer's class and where it was raised, and without the error's words."""
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
async def test_who_is_stopped_while_an_observer_is_at_work_stops():
    """A run that is cancelled does not wait for those who watch it."""
    told = asyncio.create_task(RunEvents([Listens(blocking=True)]).tell("usage", 1))
    await asyncio.sleep(0)
    told.cancel()
    with pytest.raises(asyncio.CancelledError):
        await told


@in_loop
async def test_a_run_waits_for_a_blocking_observer_only():
    """The other one has heard nothing yet when the run goes on."""
    waits, goes_on = Listens(blocking=True), Listens()
    waits.gate.set()
    await RunEvents([waits, goes_on]).tell("usage", 1)
    assert (waits.heard, goes_on.heard) == ([1], [])
    goes_on.gate.set()
    assert await wait_for_observers(5)
    assert goes_on.heard == [1]


@in_loop
async def test_waiting_for_observers_ends_when_its_time_is_up():
    """A webhook that hangs holds nobody."""
    observer = Listens()
    await RunEvents([observer]).tell("usage", 1)
    assert not await wait_for_observers(0)
    observer.gate.set()
    assert await wait_for_observers(5)


@in_loop
async def test_events_under_way_are_bounded(monkeypatch, caplog):
    """What hangs for ever does not fill the memory; what is lost is logged."""
    monkeypatch.setattr("sayso.agent.observability.trace.MAX_BACKGROUND_EVENTS", 2)
    observer = Listens()
    told = RunEvents([observer])
    for number in range(5):
        await told.tell("usage", number)
    observer.gate.set()
    assert await wait_for_observers(5)
    assert observer.heard == [0, 1]
    assert [vars(record)["reason"] for record in caplog.records] == ["ObserversOverloaded"]


@in_loop
async def test_without_async_only_sync_methods_are_called():
    """As a sync `run()` has it."""
    sync, never = Hears(), Listens(blocking=True)
    await RunEvents([sync, never], asynchronous=False).tell("usage", 1)
    assert len(sync.heard) == 1
    assert never.heard == []


@in_loop
async def test_sync_methods_hear_an_event_before_async_ones():
    """Whatever the order of the observers."""
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
async def test_an_async_method_that_is_none_is_called_all_the_same():
    """Somebody forgot the `async`."""
    heard = []

    class Forgot(AsyncAgentObserver):
        blocking = True

        def a_on_usage(self, run_id, usage):
            heard.append(usage)

    await RunEvents([Forgot()]).tell("usage", 1)
    assert heard == [1]


@in_loop
async def test_whoever_has_the_methods_hears(caplog):
    """Subclass or not: the seed calls it a protocol."""

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
async def test_observers_are_given_the_id_of_the_run():
    """Which the trace has too."""
    observer = Hears()
    told = RunEvents([observer], run_id="r1", parent_run_id="outer", metadata={"user": "u1"})
    await told.tell("usage", 1)
    assert observer.heard == [("r1", 1)]
    assert (told.trace.run_id, told.trace.parent_run_id, told.trace.metadata) == ("r1", "outer", {"user": "u1"})


def test_two_runs_have_different_ids():
    """Also those made at the same moment."""
    assert RunEvents().run_id != RunEvents().run_id


def test_whether_anybody_listens():
    """For those who would have to make something only to tell it."""
    assert not RunEvents().has_observers
    assert RunEvents([AgentObserver()]).has_observers


def test_a_step_is_dated_from_its_beginning():
    """Duration and moment come from one clock that never goes back."""
    told = RunEvents()
    began = time.perf_counter()
    step = told.note("llm_call", began=began, model="m")
    assert step.duration_ms >= 0
    assert step.timestamp >= told.trace.start_time
    assert step.timestamp + step.duration_ms / 1000 <= told.trace.start_time + (time.perf_counter() - began) + 1
    assert told.trace.steps == [step]


@pytest.mark.parametrize(("chars", "kept"), [(3, "abc…"), (6, "abcdef"), (None, "abcdef")])
def test_a_long_result_is_cut_in_the_trace(chars, kept):
    """A trace is to be kept, results may be pages."""
    assert RunEvents(tool_result_chars=chars).note("tool_execution", tool_result="abcdef").tool_result == kept


def test_what_side_questions_cost_adds_up():
    """Apart from the loop's own."""
    told = RunEvents()
    told.add_side_usage(UsageStats(1, 2, 3, 0.5))
    told.add_side_usage(UsageStats(1, 2, 3, 0.5))
    assert (told.side_usage.total_tokens, told.side_usage.cost_usd) == (6, 1.0)


def test_the_log_of_run_events_is_quiet_by_itself(caplog):
    """Nobody listens, nothing is said."""
    with caplog.at_level(logging.DEBUG):
        asyncio.run(RunEvents().tell("usage", 1))
    assert caplog.records == [] or all(record.name != "sayso.agent.observability.trace" for record in caplog.records)
