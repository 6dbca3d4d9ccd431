"""Daemon threads: a bounded pool for blocking calls, an event loop in a thread, and its watchdog.

They are not those of `anyio.to_thread` or `asyncio.to_thread`: Python waits for these at exit, so a
hung tool would hold the process. The pool here also logs a call that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

log = logging.getLogger(__name__)

#: How many tools run in threads at a time unless `set_tool_thread_limit` says otherwise.
MAX_TOOL_THREADS = 32
#: How many functions of Sayso run in threads at a time.
MAX_OWN_THREADS = 16
#: Seconds after which an unused thread ends.
IDLE_SECONDS = 30.0
#: Seconds that running tasks get to clean up when a LoopThread closes.
#: Then the thread is left to the process's end.
CLOSE_SECONDS = 3.0
#: Seconds between two checks of a watched loop.
LOOK_SECONDS = 0.1
#: Seconds without a sign of life after which the loop counts as blocked.
BLOCKED_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class ThreadCall:
    """A call for a DaemonThreadPool."""

    #: What the thread calls. It must not raise.
    run: Callable[[], None]
    #: The thread that runs the call, 0 for one that is just starting; None until then.
    thread_id: int | None = None
    has_ended: bool = False
    #: Whether nothing waits for the call any more.
    is_abandoned: bool = False
    #: The context of the caller that abandoned the call,
    #: so that its late end is logged as one of its turn.
    context: contextvars.Context | None = None


class DaemonThreadPool:
    """Runs calls in at most `max_threads` daemon threads, in order. Lives as long as its process.

    Its threads start when they are needed, and end when they were idle for IDLE_SECONDS. `name` is
    that of the log events. Abandoned calls are logged at `level`.
    """

    def __init__(self, name: str, max_threads: int, *, level: int = logging.WARNING) -> None:
        self._name = name
        self._level = level
        self._max_threads = max_threads
        #: Guards all fields below, and wakes idle threads.
        self._changed = threading.Condition()
        self._waiting: deque[ThreadCall] = deque()
        #: How many threads there are, how many of them are idle, and how many calls that were
        #: abandoned still run.
        self._threads = 0
        self._idle = 0
        self._hung = 0

    @property
    def hung(self) -> int:
        """Return the number of abandoned calls that still run."""
        return self._hung

    def start(self, call: ThreadCall, *, beyond_limit: bool = False) -> None:
        """Run the call when a thread is free; with `beyond_limit` at once, in an extra thread.

        Raises RuntimeError when the system gives no thread.
        """
        name = f"sayso-{self._name}"
        if beyond_limit:
            call.thread_id = 0
            threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()
            return

        with self._changed:
            self._waiting.append(call)
            is_idle_thread_left = self._idle >= len(self._waiting)
            if is_idle_thread_left or self._threads >= self._max_threads:
                self._changed.notify()
                return
            self._threads += 1
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                # The call waits for one of the other threads.
                if self._threads:
                    return
                self._waiting.remove(call)
            raise

    def abandon(self, call: ThreadCall) -> bool:
        """Stop waiting for the call. Return True if it had not started: then it never will.

        A call that goes on is counted, and logged with its stack.
        """
        with self._changed:
            if call.thread_id is None:
                if call in self._waiting:
                    self._waiting.remove(call)
                return True
            if call.has_ended or call.is_abandoned:
                return False
            call.is_abandoned = True
            call.context = contextvars.copy_context()
            self._hung += 1
        stack = stack_of(call.thread_id)
        extra = {"hung": self._hung, "threads": self._max_threads, "stack": stack}
        log.log(self._level, "%s.left_running", self._name, extra=extra)
        return False

    def _serve(self) -> None:
        """Run calls until this thread was idle for too long."""
        while True:
            call = self._next()
            if call is None:
                return
            self._run(call)

    def _next(self) -> ThreadCall | None:
        """Wait for the next call. Return None when this thread was idle for too long and ends."""
        with self._changed:
            while not self._waiting:
                self._idle += 1
                is_needed = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not is_needed and not self._waiting:
                    self._threads -= 1
                    return None
            call = self._waiting.popleft()
            call.thread_id = threading.get_ident()
            return call

    def _run(self, call: ThreadCall) -> None:
        call.thread_id = threading.get_ident()
        call.run()
        # The function may refer back to the call. Without this the garbage collector would have to
        # find that out, and what the function holds would live on until then.
        call.run = lambda: None
        with self._changed:
            call.has_ended = True
            if call.is_abandoned:
                self._hung -= 1
        if call.context:
            extra = {"hung": self._hung}
            call.context.run(
                partial(log.log, self._level, "%s.ended_late", self._name, extra=extra)
            )


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread as text: lines of code without values."""
    # The only way to see the stack of another thread.
    frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001
    if frame:
        return "".join(traceback.format_stack(frame))
    return "none yet"


#: The thread pools by the id of the process: a forked process has none of its parent's threads.
_tool_pools: dict[int, DaemonThreadPool] = {}
_own_pools: dict[int, DaemonThreadPool] = {}


def set_tool_thread_limit(max_threads: int) -> None:
    """Let `call_in_tool_thread` run this many functions at a time in this process.

    Call it before the first one.
    """
    _tool_pools[os.getpid()] = DaemonThreadPool("tool", max_threads)


def tool_pool() -> DaemonThreadPool:
    """Return the pool for foreign functions, such as tools."""
    process_id = os.getpid()
    pool = _tool_pools.get(process_id)
    if pool is None:
        # Another thread may add one at the same moment: then that one is used.
        pool = _tool_pools.setdefault(process_id, DaemonThreadPool("tool", MAX_TOOL_THREADS))
    return pool


def own_pool() -> DaemonThreadPool:
    """Return the pool for functions of Sayso.

    They are short, so an abandoned one is worth no more than a debug line.
    """
    process_id = os.getpid()
    pool = _own_pools.get(process_id)
    if pool is None:
        new_pool = DaemonThreadPool("own", MAX_OWN_THREADS, level=logging.DEBUG)
        pool = _own_pools.setdefault(process_id, new_pool)
    return pool


class LoopThread:
    """An event loop in a separate daemon thread. Lives as long as its process.

    In a worker, RQ needs the main thread for its signals and time limits. `loop` is the loop to
    run; None: a new one of uvloop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, name: str = "sayso-loop"
    ) -> None:
        self._loop = loop or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """Return the id of the loop's thread."""
        return self._thread.ident

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, wait, and return its result.

        An exception that interrupts the wait, such as KeyboardInterrupt, cancels the coroutine too.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop without waiting.

        Cancelling the future cancels the coroutine.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call this on the loop. Raises RuntimeError when the loop is closed."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the loop and its thread. What still runs on the loop is cancelled."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self.submit(_cancel_all_tasks()).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_SECONDS)


class Watchdog:
    """Logs that an event loop is blocked by code that does not await, with the stack of that code.

    It logs once when the loop is blocked, and once when it runs again. It watches from a daemon
    thread. Only time in which this thread itself ran counts: if the process was stopped, or the
    laptop slept, the loop is not to blame.

    `clock` returns seconds that never go back, `stack` the stack of a thread as text.
    """

    def __init__(
        self,
        loop: LoopThread,
        *,
        clock: Callable[[], float] = time.monotonic,
        stack: Callable[[int | None], str] = stack_of,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._stack = stack
        self._thread = threading.Thread(target=self._watch, name="sayso-watchdog", daemon=True)
        #: Set when the watchdog is stopped.
        self._is_stopped = threading.Event()
        #: Set by the loop, as a sign of life. It is clear while the loop owes one.
        self._sign_of_life = threading.Event()
        self._sign_of_life.set()
        self._last_look_at = clock()
        #: Seconds since the loop was asked for a sign of life.
        self._waited_seconds = 0.0
        self._has_reported = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Ask the loop for a sign of life, or measure how long there has been none.

        Raises RuntimeError when the loop is closed.
        """
        now = self._clock()
        # More time than this has only passed if this thread did not run either.
        self._waited_seconds += min(now - self._last_look_at, 2 * LOOK_SECONDS)
        self._last_look_at = now
        seconds = round(self._waited_seconds, 1)

        if self._sign_of_life.is_set():
            if self._has_reported:
                log.warning("loop.unblocked", extra={"seconds": seconds})
            self._waited_seconds = 0.0
            self._has_reported = False
            self._sign_of_life.clear()
            self._loop.call_soon(self._sign_of_life.set)
        elif self._waited_seconds > BLOCKED_SECONDS and not self._has_reported:
            self._has_reported = True
            stack = self._stack(self._loop.thread_id)
            log.warning("loop.blocked", extra={"seconds": seconds, "stack": stack})

    def _watch(self) -> None:
        while not self._is_stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except RuntimeError:
                # The loop is closed.
                return
