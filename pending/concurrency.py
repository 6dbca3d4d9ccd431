"""Run blocking code from an event loop and coroutines from sync code, with time limits and a bounded number of threads.

From a loop: `call_in_thread` for our own short blocking functions, `call_in_tool_thread` and `run_with_timeout` for
code of others, such as tools. From sync code: `run_sync`, or `run_without_loop` where a coroutine only calls stores.

Threads are our own, not those of `anyio.to_thread` or `asyncio.to_thread`: Python waits for theirs at exit, so a hung
tool would hold the process. Ours also log a call that hangs, do not count the wait for a thread as the tool's time, and
give a tool that runs another tool a second thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar

import uvloop

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)

#: How many tools run in threads at a time unless `set_tool_thread_limit` says otherwise, and how many functions of our
#: own.
MAX_TOOL_THREADS, MAX_OWN_THREADS = 32, 16
#: Seconds after which an unused thread ends.
IDLE_SECONDS = 30.0
#: Seconds for which the late outcome of a call that timed out is still waited for.
LATE_SECONDS = 600.0
#: Seconds that running tasks get to clean up when a LoopThread closes. Then the thread is left to the process's end.
CLOSE_SECONDS = 3.0


class TimedOut(Exception):
    """Raised when a call of foreign code took too long. What the call has done is not known."""


class NotStarted(Exception):
    """Raised when a call was given up before a thread was free for it. It did nothing."""


class Escaped(Exception):
    """Raised when foreign code tried to end this process or the task that called it."""


class DeadlineExceeded(Exception):
    """Raised when a coroutine took too long. It was cancelled and has ended."""


#: Whether `run_without_loop` runs this code, so that what would wait on the event loop blocks this thread instead.
has_no_loop: ContextVar[bool] = ContextVar("sayso_has_no_loop", default=False)


class _CallState(NamedTuple):
    """What calls in threads know about the code that makes them. Tasks and threads inherit it."""

    #: The open time limits, outermost first. They stand still while a call waits for a thread.
    time_limits: tuple[asyncio.Timeout, ...] = ()
    #: Collects the calls that nothing waits for any more; see `track_abandoned_calls`.
    abandoned_calls: AbandonedCalls | None = None
    #: The loop of the sync caller that lends its thread to `call_in_caller_thread`.
    lending_loop: ThreadLoop | None = None
    #: Whether this code runs in a pool's thread. Its own calls get threads beyond the limit: if they waited for a free
    #: thread while holding one, they could wait for ever.
    is_in_pool_thread: bool = False


_DEFAULT_STATE = _CallState()
_state: ContextVar[_CallState] = ContextVar("sayso_call_state", default=_DEFAULT_STATE)


def _set_state(**changes: Any) -> None:
    _state.set(_state.get()._replace(**changes))


#: Receives the result or the error of a call that ended after `run_with_timeout` had given it up.
LateOutcomeHandler = Callable[[Any, BaseException | None], Awaitable[None]]


async def call_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one of our own short blocking functions, such as a write to disk, in a daemon thread."""
    if has_no_loop.get():
        return function(*args, **kwargs)
    return await _CallInThread(functools.partial(function, *args, **kwargs), _own_pool())()


async def call_in_tool_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code, such as a tool, in one of a bounded number of daemon threads.

    Calls wait for a thread in order. A call that is cancelled before it has a thread never runs.
    """
    return await _CallInThread(function)()


async def call_in_caller_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code in the thread of the sync caller that lends it, otherwise in a tool thread.

    See `lend_caller_thread`.
    """
    loop = _state.get().lending_loop
    if loop is None or not loop.runs_here:
        return await call_in_tool_thread(function)

    def call() -> T:
        _set_state(lending_loop=None)  # what the function waits for runs on loops of its own
        return _call_isolated(function)

    return loop.run_in_loop_thread(call)


async def run_with_timeout(
    function: Callable[[], Any], seconds: float, on_late_outcome: LateOutcomeHandler | None = None
) -> Any:
    """Run a foreign function, sync or async, for at most `seconds`. Raises TimedOut, and whatever the function raises.

    The time a sync function waits for a thread does not count. When the time is up or the caller is cancelled, the
    function goes on if `on_late_outcome` is given, which then receives its outcome; otherwise it is cancelled as far as
    possible. A function that had no thread yet never runs, and `on_late_outcome` receives NotStarted.

    Under `run_without_loop` the function runs in the caller's thread, where nothing can stop it.
    """
    if has_no_loop.get():
        return _call_isolated(lambda: _finish_sync(function()))
    limit = asyncio.timeout(seconds)
    outer = _state.get().time_limits
    _set_state(time_limits=(*outer, limit))
    try:
        call = None if inspect.iscoroutinefunction(function) else _CallInThread(function)
        work = asyncio.ensure_future(_run_to_end(function, call))
    finally:
        _set_state(time_limits=outer)
    try:
        async with limit:
            return await asyncio.shield(work)
    except TimeoutError as exc:
        if not limit.expired():
            raise
        _abandon(work, call, on_late_outcome)
        raise TimedOut(f"no end after {seconds:g} s") from exc
    except asyncio.CancelledError:
        _abandon(work, call, on_late_outcome)
        raise


async def _run_to_end(function: Callable[[], Any], call: _CallInThread[Any] | None) -> Any:
    result = await call() if call else function()
    return await await_isolated(result) if inspect.isawaitable(result) else result


#: Tasks that wait for a late outcome: an event loop keeps no task alive by itself.
_late_tasks: set[asyncio.Task[None]] = set()


def _abandon(
    work: asyncio.Future[Any], call: _CallInThread[Any] | None, on_late_outcome: LateOutcomeHandler | None
) -> None:
    """Stop waiting for `work`: cancel it, or hand its outcome on once it is known."""
    _note_abandoned(work.done)
    if on_late_outcome is None:
        work.cancel()
        return
    if call is not None and call.abandon():
        work.cancel()
        late = on_late_outcome(None, NotStarted("there was no thread for it in time"))
    else:
        late = _report_late_outcome(work, on_late_outcome)
    task = asyncio.ensure_future(late)
    _late_tasks.add(task)
    task.add_done_callback(_late_tasks.discard)


async def _report_late_outcome(work: asyncio.Future[Any], on_late_outcome: LateOutcomeHandler) -> None:
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if work.done() and not work.cancelled():
        error = work.exception()
        await on_late_outcome(None if error else work.result(), error)
    else:
        work.cancel()


class AbandonedCalls:
    """The calls of foreign code that go on although their caller was cancelled.

    Covers the calls of one context and of the contexts that were copied from it.
    """

    def __init__(self) -> None:
        self._have_ended: list[Callable[[], bool]] = []

    @property
    def are_running(self) -> bool:
        """Return whether any of the calls may still have an effect."""
        return not all(has_ended() for has_ended in self._have_ended)

    def add(self, has_ended: Callable[[], bool]) -> None:
        """Add a call, given a function that says whether it has ended."""
        self._have_ended.append(has_ended)


def track_abandoned_calls() -> AbandonedCalls:
    """Collect the abandoned calls of the current context from now on."""
    calls = AbandonedCalls()
    _set_state(abandoned_calls=calls)
    return calls


def _note_abandoned(has_ended: Callable[[], bool]) -> None:
    calls = _state.get().abandoned_calls
    if calls is not None:
        calls.add(has_ended)


class execution_timeout:  # noqa: N801  # used like asyncio.timeout
    """Limit a block like `asyncio.timeout`, not counting the time in which its calls wait for a tool thread.

    `expired` tells the limit's own TimeoutError from one that the code inside raised.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            self._limit = asyncio.timeout(self._seconds)
            await self._limit.__aenter__()
            self._outer = _state.get().time_limits
            _set_state(time_limits=(*self._outer, self._limit))
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._seconds is not None:
            _set_state(time_limits=self._outer)
            await self._limit.__aexit__(*exc_info)

    @property
    def expired(self) -> bool:
        """Return whether the time was up."""
        return self._seconds is not None and self._limit.expired()


async def await_within(coroutine: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """Return what the coroutine returns within `seconds`; None sets no limit.

    Raises DeadlineExceeded, and whatever the coroutine raises itself.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await coroutine
    except Exception as exc:  # a TimeoutError, or an error of the coroutine's clean-up
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"no end after {seconds:g} s") from exc


async def await_isolated(awaitable: Awaitable[T]) -> T:
    """Wait for a foreign coroutine. Raises Escaped when it tries to end more than itself."""
    try:
        return await awaitable
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # our own task is being cancelled
            raise
        raise Escaped("it cancelled itself") from exc
    except (Exception, GeneratorExit):  # GeneratorExit closes the coroutine that waits here
        raise
    except BaseException as exc:  # SystemExit, and what some libraries stop their own code with
        raise Escaped(f"it raised {type(exc).__name__}") from exc


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutines at once and return their results in order.

    When one fails, the others are cancelled and have ended before its error is raised. `asyncio.gather` alone would
    leave them running.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        rest = [task for task in tasks if not task.done()]
        for task in rest:
            if not task.cancelling():  # a second cancellation would interrupt its clean-up
                task.cancel()
        if rest:
            await asyncio.wait(rest)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from sync code and return its result. Inside a running loop, that loop waits too."""
    if not _is_in_loop():
        return thread_loop().run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run, in this thread and without an event loop, a coroutine that awaits nothing but stores and this module.

    Their calls block here. A loop and its thread pool would cost more than the one Redis call that the coroutine makes.
    """
    token = has_no_loop.set(True)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        has_no_loop.reset(token)
    raise RuntimeError("a coroutine that waits for an event loop was run without one")


def _finish_sync(result: Any) -> Any:
    """Return the result, awaited on a loop of its own if it is awaitable."""
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        has_no_loop.set(False)
        return await result

    return run_sync(wait())


def _call_isolated(function: Callable[[], T]) -> T:
    """Call a foreign function in this thread. Raises Escaped when it tries to end more than itself.

    A KeyboardInterrupt passes: it comes from the person at the terminal.
    """
    try:
        return function()
    except (SystemExit, GeneratorExit, asyncio.CancelledError) as exc:
        raise Escaped(f"it raised {type(exc).__name__}") from exc


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ThreadLoop:
    """An event loop for `run_sync`. Lives as long as its thread; a forked process makes its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._is_busy = False

    @property
    def is_usable(self) -> bool:
        """Return whether the loop was made in this process and is open."""
        return self._pid == os.getpid() and not self._loop.is_closed()

    @property
    def is_free(self) -> bool:
        """Return whether no `run` is under way: the tasks of two runs on one loop would be cancelled together."""
        return not self._is_busy and self.is_usable

    @property
    def runs_here(self) -> bool:
        """Return whether the calling code runs on this loop. In a copied context it may run on another loop."""
        return asyncio._get_running_loop() is self._loop  # noqa: SLF001  # returns None where no loop runs

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in a copy of this context and return its result. Tasks that it leaves are cancelled."""
        self._is_busy = True
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            self._cancel_rest()
            self._is_busy = False

    def run_in_loop_thread(self, function: Callable[[], T]) -> T:
        """Call a blocking function from a task of this loop. The loop stands still meanwhile.

        The function sees no running loop and no task, so it may start its own: from Python 3.14 on a thread runs one
        task at a time.
        """
        task: Any = asyncio.current_task()
        asyncio._leave_task(self._loop, task)  # noqa: SLF001  # exported by asyncio for implementers of loops and tasks
        asyncio._set_running_loop(None)  # noqa: SLF001
        try:
            return contextvars.copy_context().run(function)
        finally:
            asyncio._set_running_loop(self._loop)  # noqa: SLF001
            asyncio._enter_task(self._loop, task)  # noqa: SLF001

    def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks(self._loop)
        if not rest:
            return
        for task in rest:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of a process half of it may be gone
            if self.is_usable and not self._loop.is_running():
                self._loop.close()


class _ThreadLoops(threading.local):
    """The loops of one thread: the first for its code, each next one for code that runs while the loop before waits."""

    def __init__(self) -> None:
        self.loops: list[ThreadLoop] = []


_thread_loops = _ThreadLoops()


def thread_loop() -> ThreadLoop:
    """Return the first free loop of this thread. Creates one when there is none."""
    loops = _thread_loops.loops
    if loops and loops[0].is_free:
        return loops[0]
    _thread_loops.loops = [loop for loop in loops if loop.is_usable]
    free = next((loop for loop in _thread_loops.loops if loop.is_free), None)
    if free is None:
        free = ThreadLoop()
        _thread_loops.loops.append(free)
    return free


@contextlib.contextmanager
def lend_caller_thread(lends: bool) -> Iterator[None]:
    """Let `run_sync` calls inside the block lend their thread to `call_in_caller_thread`, or forbid it with False."""
    outer = _state.get().lending_loop
    _set_state(lending_loop=thread_loop() if lends and not _is_in_loop() else None)
    try:
        yield
    finally:
        _set_state(lending_loop=outer)


class LoopThread:
    """An event loop in a daemon thread of its own. Lives as long as its process.

    RQ keeps the main thread, for its signals and time limits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, name: str = "sayso-loop") -> None:
        self._loop = loop or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """Return the id of the loop's thread."""
        return self._thread.ident

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait. Whatever interrupts the wait cancels the coroutine too."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop without waiting. Cancelling the future cancels the coroutine."""
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


def _do_nothing() -> None:
    """Do nothing when a call starts."""


@dataclass(slots=True, eq=False)
class ThreadCall:
    """A call for a DaemonThreadPool. `run` must not raise; `on_start` is called right before it, in the same thread.

    `thread_id` is None until the call has started. `is_abandoned` says that nobody waits for the call any more.
    """

    run: Callable[[], None]
    on_start: Callable[[], None] = _do_nothing
    thread_id: int | None = None
    has_ended: bool = False
    is_abandoned: bool = False


class DaemonThreadPool:
    """Runs calls in at most `max_threads` daemon threads, in order. Lives as long as its process.

    Abandoned calls are logged at `level`.
    """

    def __init__(self, name: str, max_threads: int, *, level: int = logging.WARNING) -> None:
        self._name = name
        self._level = level
        self._max_threads = max_threads
        self._changed = threading.Condition()
        self._waiting: deque[ThreadCall] = deque()
        self._threads = self._idle = self._hung = 0

    @property
    def hung(self) -> int:
        """Return the number of abandoned calls that still run."""
        return self._hung

    def start(self, call: ThreadCall, *, beyond_limit: bool = False) -> None:
        """Run the call as soon as a thread is free, or at once in an extra thread with `beyond_limit`.

        Raises RuntimeError when the system gives no thread.
        """
        if beyond_limit:
            call.thread_id = 0
            threading.Thread(target=self._run, args=(call,), name=f"sayso-{self._name}", daemon=True).start()
            return
        with self._changed:
            self._waiting.append(call)
            if self._idle >= len(self._waiting) or self._threads >= self._max_threads:
                self._changed.notify()
                return
            self._threads += 1
        self._add_thread(call)

    def abandon(self, call: ThreadCall) -> bool:
        """Stop waiting for the call. Return True if it had not started, in which case it never will.

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
            self._hung += 1
        log.log(
            self._level,
            "%s.left_running",
            self._name,
            extra={"hung": self._hung, "threads": self._max_threads, "stack": stack_of(call.thread_id)},
        )
        return False

    def _add_thread(self, call: ThreadCall) -> None:
        try:
            threading.Thread(target=self._serve, name=f"sayso-{self._name}", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                if self._threads:  # the call waits for one of the other threads
                    return
                self._waiting.remove(call)
            raise

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            self._run(call)

    def _next(self) -> ThreadCall | None:
        """Wait for the next call. None: this thread was idle for too long and ends."""
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
        call.on_start()
        call.run()
        call.on_start = call.run = _do_nothing  # they may refer back to the call: do not leave that to the collector
        with self._changed:
            call.has_ended = True
            if call.is_abandoned:
                self._hung -= 1
        if call.is_abandoned:
            log.log(self._level, "%s.ended_late", self._name, extra={"hung": self._hung})


def stack_of(thread_id: int | None) -> str:
    """Return the stack of a thread as text: lines of code without values."""
    frame = sys._current_frames().get(thread_id or 0)  # noqa: SLF001  # the only way to see another thread's stack
    return "".join(traceback.format_stack(frame)) if frame else "none yet"


#: The thread pools by process id: a forked process has none of its parent's threads.
_tool_pools: dict[int, DaemonThreadPool] = {}
_own_pools: dict[int, DaemonThreadPool] = {}


def set_tool_thread_limit(max_threads: int) -> None:
    """Let `call_in_tool_thread` run so many functions at a time in this process. Call it before the first one."""
    _tool_pools[os.getpid()] = DaemonThreadPool("tool", max_threads)


def _tool_pool() -> DaemonThreadPool:
    pid = os.getpid()
    return _tool_pools.get(pid) or _tool_pools.setdefault(pid, DaemonThreadPool("tool", MAX_TOOL_THREADS))


def _own_pool() -> DaemonThreadPool:
    """Return the pool for our own functions. They are short, so an abandoned one is worth no more than a debug line."""
    pid = os.getpid()
    pool = _own_pools.get(pid)
    return pool or _own_pools.setdefault(pid, DaemonThreadPool("own", MAX_OWN_THREADS, level=logging.DEBUG))


class _CallInThread(Generic[T]):
    """One call of a function in a pool's thread, in a copy of the caller's context. Await it by calling it, once."""

    def __init__(self, function: Callable[[], T], pool: DaemonThreadPool | None = None) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[tuple[T | None, BaseException | None]] = self._loop.create_future()
        self._limits, self._seconds_left = _state.get().time_limits, dict[asyncio.Timeout, float]()
        self._call = ThreadCall(self._run, self._resume_limits_soon)
        self._pool = pool or _tool_pool()

    async def __call__(self) -> T:
        self._pause_limits()
        self._pool.start(self._call, beyond_limit=_state.get().is_in_pool_thread)
        try:
            value, error = await self._outcome
        except asyncio.CancelledError:
            if not self.abandon():
                _note_abandoned(lambda: self._call.has_ended)
            raise
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # no error, so this is the function's own value

    def abandon(self) -> bool:
        """Stop waiting for the call. Return True if it had not started, in which case it never will."""
        return self._pool.abandon(self._call)

    def _pause_limits(self) -> None:
        for limit in self._limits:
            if (when := limit.when()) is not None and not limit.expired():
                with contextlib.suppress(RuntimeError):  # its block has ended, and this task outlives it
                    limit.reschedule(None)
                    self._seconds_left[limit] = when - self._loop.time()

    def _resume_limits(self) -> None:
        for limit, seconds in self._seconds_left.items():
            with contextlib.suppress(RuntimeError):  # its block has ended meanwhile
                limit.reschedule(self._loop.time() + seconds)

    def _resume_limits_soon(self) -> None:
        if self._seconds_left:
            self._call_on_loop(self._resume_limits)

    def _run(self) -> None:
        self._context.run(_set_state, is_in_pool_thread=True)
        self._call_on_loop(_set_outcome, self._outcome, _outcome_of(self._context, self._function))

    def _call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *args)


def _outcome_of(context: contextvars.Context, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(function), None
    except Exception as exc:  # noqa: BLE001  # raised again by the task that waits
        return None, exc
    except BaseException as exc:  # noqa: BLE001  # it must not end the loop of the task that waits
        escaped = Escaped(f"it raised {type(exc).__name__}")
        escaped.__cause__ = exc
        return None, escaped


def _set_outcome(
    future: asyncio.Future[tuple[T | None, BaseException | None]], outcome: tuple[T | None, BaseException | None]
) -> None:
    if not future.done():
        future.set_result(outcome)
