"""Watchdog: a blocked loop is logged once with its stack, and once more when it is free."""

from __future__ import annotations

import threading

import pytest

from sayso.infra.threads import BLOCKED_SECONDS, LOOK_SECONDS, LoopThread, Watchdog
from tests.flows.system import until


class FakeLoop:
    """A loop that answers when the test lets it."""

    thread_id = 7

    def __init__(self) -> None:
        self.free = True
        self._asked: list = []

    def call_soon(self, callback) -> None:
        """Call the function now, or when the loop is free again."""
        self._asked.append(callback)
        self.let(free=self.free)

    def let(self, *, free: bool) -> None:
        """Set whether the loop answers."""
        self.free = free
        while free and self._asked:
            self._asked.pop(0)()


class Stage:
    """A watchdog on a fake loop and a clock that the test moves."""

    def __init__(self, caplog) -> None:
        self.now = 100.0
        self.loop = FakeLoop()
        self.dog = Watchdog(
            self.loop, clock=lambda: self.now, stack=lambda thread: f"stack of {thread}"
        )
        self._caplog = caplog

    def look(self, times: int = 1, *, every: float = LOOK_SECONDS) -> None:
        """Let time pass and the watchdog look, this many times."""
        for _ in range(times):
            self.now += every
            self.dog.look()

    @property
    def said(self) -> list[str]:
        """Return its reports."""
        return [record.message for record in self._caplog.records]


@pytest.fixture
def stage(caplog):
    """Return a watchdog that has looked once."""
    made = Stage(caplog)
    made.look()
    return made


def test_blocked_loop_is_reported_once_with_its_stack_and_once_when_free(stage, caplog):
    """The block may last for any time; the second report has the whole time."""
    stage.loop.let(free=False)
    stage.look(30)
    assert stage.said == ["loop.blocked"]
    assert caplog.records[0].stack == "stack of 7"
    stage.loop.let(free=True)
    stage.look(5)
    assert stage.said == ["loop.blocked", "loop.unblocked"]
    assert caplog.records[1].seconds == pytest.approx(3.0, abs=0.2)


def test_next_block_is_reported_again(stage):
    """There is one report per block, not per process."""
    for _ in range(2):
        stage.loop.let(free=False)
        stage.look(10)
        stage.loop.let(free=True)
        stage.look(2)
    assert stage.said == ["loop.blocked", "loop.unblocked"] * 2


def test_busy_loop_that_answers_in_time_is_no_block(stage):
    """It answers just under the limit, again and again."""
    for _ in range(20):
        stage.loop.let(free=False)
        stage.look(int(BLOCKED_SECONDS / LOOK_SECONDS) - 1)
        stage.loop.let(free=True)
        stage.look()
    assert stage.said == []


def test_stopped_process_is_no_block(stage):
    """After SIGSTOP or the sleep of a laptop, the watchdog had stopped too."""
    stage.loop.let(free=False)
    stage.look()
    stage.look(every=36_000)
    stage.loop.let(free=True)
    stage.look(3)
    assert stage.said == []


def test_block_after_a_stop_is_still_seen(stage):
    """Only the time of the stop does not count."""
    stage.look(every=36_000)
    stage.loop.let(free=False)
    stage.look(10)
    assert stage.said == ["loop.blocked"]


def test_real_blocked_loop_is_reported_with_its_line(caplog):
    """A real loop runs a function that blocks without `await`."""
    loop, door = LoopThread(), threading.Event()
    dog = Watchdog(loop)
    dog.start()

    def the_culprit() -> None:
        door.wait()

    loop.call_soon(the_culprit)
    until(lambda: [record for record in caplog.records if record.message == "loop.blocked"])
    door.set()
    until(lambda: [record for record in caplog.records if record.message == "loop.unblocked"])
    dog.stop()
    loop.close()
    assert "in the_culprit\n    door.wait()" in caplog.records[0].stack
    assert not dog._thread.is_alive()


def test_watchdog_of_a_closed_loop_ends():
    """It ends with or without a stop."""
    loop = LoopThread()
    dog = Watchdog(loop)
    dog.start()
    loop.close()
    dog._thread.join(30)
    assert not dog._thread.is_alive()
    dog.stop()


def test_watchdog_that_never_started_can_be_stopped():
    """A worker may fail at its start."""
    loop = LoopThread()
    Watchdog(loop).stop()
    loop.close()
