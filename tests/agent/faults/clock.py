"""ClockLoop: an event loop on which nobody waits: when there is nothing to do, it is later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
import time
from collections.abc import Iterator
from typing import Any

from sayso.pending import concurrency, threads

#: Seconds of real time that a thread at work is given between two looks at it, and in all.
LOOK_SECONDS, PATIENCE_SECONDS = 0.05, 60.0


class Stuck(AssertionError):
    """Raised when a run waits for what can never happen."""


class Threads:
    """The tools' threads of this process, as far as they are at work: those that hang wait for `release`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging = 0
        self.release = threading.Event()

    def hang(self) -> None:
        """In a tool's thread: never come back by itself."""
        release = self.release
        with self._lock:
            self._hanging += 1
        release.wait(PATIENCE_SECONDS)
        with self._lock:
            self._hanging -= 1

    @property
    def are_busy(self) -> bool:
        """Whether one of them will have something to say."""
        with self._lock:
            return _at_work() > self._hanging

    def let_go(self) -> None:
        """Whatever hangs goes on, and is waited for."""
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
    """Waits for threads that are at work, and otherwise not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready; else the time has passed."""
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
    """Its time is in seconds since it was made. What is wrong in it, and nobody catches, is in `complaints`."""

    def __init__(self) -> None:
        self._own = _Selector()
        super().__init__(self._own)
        self.complaints: list[str] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(str(context)))

    def time(self) -> float:
        """Later only when there was nothing to do."""
        return self._own.now

    def after(self, ticks: int, act: Any) -> None:
        """Act after so many rounds of the loop: at any of the places where a run waits."""
        if ticks:
            self.call_soon(self.after, ticks - 1, act)
        else:
            act()


@contextlib.contextmanager
def under_sync_callers(loop: ClockLoop) -> Iterator[None]:
    """What sync code of this thread runs, it runs on the loop."""
    concurrency.run_sync(asyncio.sleep(0))
    kept = concurrency._here.loop
    before, kept.loop = kept.loop, loop
    try:
        yield
    finally:
        kept.loop = before
