"""ClockLoop: an event loop with simulated time, which advances when there is nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
import time
from collections.abc import Iterator
from typing import Any

from sayso.infra import concurrency, threads

#: Seconds of real time between two checks of a working thread, and in total.
LOOK_SECONDS, PATIENCE_SECONDS = 0.05, 60.0


class Stuck(AssertionError):
    """Raised when a run waits for an event that can never happen."""


class Threads:
    """Counts the working tool threads of this process; hanging ones wait for `release`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging = 0
        self.release = threading.Event()

    def hang(self) -> None:
        """Block a tool's thread until it is released."""
        release = self.release
        with self._lock:
            self._hanging += 1
        release.wait(PATIENCE_SECONDS)
        with self._lock:
            self._hanging -= 1

    @property
    def are_busy(self) -> bool:
        """Return whether a thread is working and not hanging."""
        with self._lock:
            return _at_work() > self._hanging

    def let_go(self) -> None:
        """Release all hanging threads, and wait until they have ended."""
        self.release.set()
        until = time.monotonic() + PATIENCE_SECONDS
        while _at_work():
            if time.monotonic() > until:
                raise Stuck("a tool's thread is still at work")
            time.sleep(0)
        self.release = threading.Event()


def _at_work() -> int:
    count = 0
    for pools in (threads._tool_pools, threads._own_pools):
        pool = pools.get(os.getpid())
        if pool is not None:
            with pool._changed:
                count += pool._threads - pool._idle + len(pool._waiting)
    return count


THREADS = Threads()


class _Selector(selectors.DefaultSelector):
    """A selector that waits for working threads only."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the ready events, or advance the time."""
        while True:
            busy = timeout != 0 and THREADS.are_busy
            ready = super().select(LOOK_SECONDS if busy else 0)
            if ready or timeout == 0:
                return ready
            if not busy:
                break
        if timeout is None:
            raise Stuck("nothing will ever happen")
        self.now += timeout
        return []


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at zero. Uncaught errors are in `complaints`."""

    def __init__(self) -> None:
        self._own = _Selector()
        super().__init__(self._own)
        self.complaints: list[str] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(str(context)))

    def time(self) -> float:
        """Return the simulated time."""
        return self._own.now

    def after(self, ticks: int, act: Any) -> None:
        """Call `act` after this number of loop iterations, wherever the run waits then."""
        if ticks:
            self.call_soon(self.after, ticks - 1, act)
        else:
            act()


@contextlib.contextmanager
def under_sync_callers(loop: ClockLoop) -> Iterator[None]:
    """Make sync code of this thread run its coroutines on the loop."""
    concurrency.run_sync(asyncio.sleep(0))
    kept = concurrency._this_thread.loop
    before, kept.loop = kept.loop, loop
    try:
        yield
    finally:
        kept.loop = before
