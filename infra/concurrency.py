"""Run blocking code from an event loop and coroutines from sync code,
with time limits and a bounded number of threads.

From a loop: `call_in_thread` for our own short blocking functions, `call_in_tool_thread` and
`run_with_timeout` for code of others, such as tools. From sync code: `run_sync`, or
`run_without_loop` where a coroutine only calls stores.

The time that a call waits for a thread does not count against its time limit. A tool that runs
another tool gets a second thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import selectors
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from sayso.infra.threads import DaemonThreadPool, ThreadCall, own_pool, tool_pool

T = TypeVar("T")
P = ParamSpec("P")

#: Seconds for which the late outcome of a call that timed out is still waited for.
LATE_SECONDS = 600.0


class TimedOut(Exception):
    """Raised when a call of foreign code took too long. What the call has done is not known."""


class NotStarted(Exception):
    """Raised when a call was given up before a thread was free for it. It did nothing."""


class Escaped(Exception):
    """Raised when foreign code tried to end this process or the task that called it."""


#: Whether `run_without_loop` runs this code, so that what would wait on the event
#: loop blocks this thread instead.
has_no_loop: ContextVar[bool] = ContextVar("sayso_has_no_loop", default=False)


class _CallState(NamedTuple):
    """What calls in threads know about the code that makes them. Tasks and threads inherit it."""

    #: The open time limits, outermost first. They stand still while a call waits for a thread.
    time_limits: tuple[asyncio.Timeout, ...] = ()
    #: Collects the calls that nothing waits for any more; see `track_abandoned_calls`.
    abandoned_calls: list[Callable[[], bool]] | None = None
    #: Whether the sync caller of this code lends its thread to `call_in_caller_thread`.
    lends_thread: bool = False
    #: Whether this code runs in a pool's thread. Its own calls get threads beyond the limit: if
    #: they waited for a free thread while holding one, they could wait for ever.
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
    return await _CallInThread(functools.partial(function, *args, **kwargs), own_pool())()


async def call_in_tool_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code, such as a tool, in one of a bounded number of daemon threads.

    Calls wait for a thread in order. A call that is cancelled before it has a thread never runs.
    """
    return await _CallInThread(function)()


async def call_foreign(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a foreign function: a sync one in a tool thread, an async one on the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await call_in_tool_thread(lambda: function(*args, **kwargs))
    if inspect.isawaitable(result):
        return await result
    return result


async def call_in_caller_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code in the thread of the sync caller, if it lends its thread;
    otherwise in a tool thread.

    See `run_sync`. The event loop stands still meanwhile. A tool can so use what belongs to the
    caller's thread, such as a connection of sqlite3 that the program has opened. A call takes 1.3
    microseconds of processor time; one in a tool thread takes 24.
    """
    loop = asyncio.get_running_loop()
    lender = _here.loop
    if not _state.get().lends_thread or lender is None or lender.loop is not loop:
        return await call_in_tool_thread(function)
    task: Any = asyncio.current_task()

    # The function must see no loop and no task, so that it may run its own: a thread runs one loop
    # at a time, and from Python 3.14 on one task. These are the functions that asyncio documents
    # for those who extend it; public ones would need a second thread for each sync caller.
    asyncio._leave_task(loop, task)  # noqa: SLF001
    asyncio._set_running_loop(None)  # noqa: SLF001
    _here.loop = None
    try:
        return contextvars.copy_context().run(_call_isolated, function)
    finally:
        _here.loop = lender
        asyncio._set_running_loop(loop)  # noqa: SLF001
        asyncio._enter_task(loop, task)  # noqa: SLF001


def keep_caller_thread() -> None:
    """Lend no thread of a sync caller in this task:
    calls that run in parallel need threads of their own.
    """
    _set_state(lends_thread=False)


async def run_with_timeout(
    function: Callable[[], Any], seconds: float, on_late_outcome: LateOutcomeHandler | None = None
) -> Any:
    """Run a foreign function, sync or async, for at most `seconds`.

    Raises TimedOut, and whatever the function raises.

    The time a sync function waits for a thread does not count. When the time is up or the caller is
    cancelled, the function goes on if `on_late_outcome` is given, which then receives its outcome;
    otherwise it is cancelled as far as possible. A function that had no thread yet never runs, and
    `on_late_outcome` receives NotStarted.

    Under `run_without_loop` the function runs in the caller's thread, where nothing can stop it.
    """
    if has_no_loop.get():
        return _call_isolated(lambda: _finish_sync(function()))
    try:
        async with execution_timeout(seconds) as limit:
            if inspect.iscoroutinefunction(function):
                call = None
            else:
                call = _CallInThread(function)
            work = asyncio.ensure_future(_run_to_end(function, call))
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
    if inspect.isawaitable(result):
        return await await_isolated(result)
    return result


#: Tasks that wait for a late outcome: an event loop keeps no task alive by itself.
_late_tasks: set[asyncio.Task[None]] = set()


def _abandon(
    work: asyncio.Future[Any],
    call: _CallInThread[Any] | None,
    on_late_outcome: LateOutcomeHandler | None,
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


async def _report_late_outcome(
    work: asyncio.Future[Any], on_late_outcome: LateOutcomeHandler
) -> None:
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if work.done() and not work.cancelled():
        error = work.exception()
        await on_late_outcome(None if error else work.result(), error)
    else:
        work.cancel()


def track_abandoned_calls() -> list[Callable[[], bool]]:
    """Collect the calls of foreign code that go on although their caller was cancelled,
    from now on.

    Covers the calls of this context and of those that are copied from it. For each call the list
    gets a function that says whether it has ended.
    """
    calls: list[Callable[[], bool]] = []
    _set_state(abandoned_calls=calls)
    return calls


def _note_abandoned(has_ended: Callable[[], bool]) -> None:
    calls = _state.get().abandoned_calls
    if calls is not None:
        calls.append(has_ended)


@contextlib.asynccontextmanager
async def execution_timeout(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Limit a block like `asyncio.timeout`, not counting the time in
    which its calls wait for a tool thread.
    """
    outer = _state.get().time_limits
    async with asyncio.timeout(seconds) as limit:
        _set_state(time_limits=(*outer, limit))
        try:
            yield limit
        finally:
            _set_state(time_limits=outer)


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


async def gather_all(
    coroutines: Iterable[Coroutine[Any, Any, T]], *, stop_seconds: float | None = None
) -> list[T]:
    """Run the coroutines at once and return their results in order.

    When one fails, the others are cancelled and have ended before its error is raised.
    `asyncio.gather` alone would leave them running. With `stop_seconds`, one that has not ended by
    then is left running.
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
            await asyncio.wait(rest, timeout=stop_seconds)


def run_sync(coroutine: Coroutine[Any, Any, T], *, lends_thread: bool = False) -> T:
    """Run a coroutine from sync code and return its result. Tasks that it leaves are cancelled.

    Inside a running loop, that loop waits too. With `lends_thread`,
    `call_in_caller_thread` uses this thread.
    """
    outer = _state.get()
    _set_state(lends_thread=lends_thread)
    try:
        if not is_in_loop():
            return _run_on_thread_loop(coroutine)
        context = contextvars.copy_context()
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(context.run, asyncio.run, coroutine).result()
    finally:
        _state.set(outer)


def _run_on_thread_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    if _here.loop is None or not _here.loop.is_usable:
        _here.loop = _ThreadLoop()
    loop = _here.loop.loop
    try:
        return loop.run_until_complete(coroutine)
    finally:
        if rest := asyncio.all_tasks(loop):
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


class _ThreadLoop:
    """The event loop of `run_sync` in one thread.

    Lives as long as its thread; a forked process makes its own.

    It is kept from call to call: a new loop takes ten times as long as a call,
    and could not use open connections.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop(self._selector)

    @property
    def is_usable(self) -> bool:
        """Return whether the loop was made in this process and is open."""
        return self._pid == os.getpid() and not self.loop.is_closed()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of a process half of it may be gone
            if self._pid != os.getpid():
                # A forked process shares its parent's epoll. To close the loop would remove from it
                # what wakes the parent's loop, so the selector gets an epoll of its own first.
                self._selector.__init__()  # type: ignore[misc]
            self.loop.close()


class _OfThisThread(threading.local):
    """The loop that runs on this thread or waits for its next call;
    None while the thread is lent to a function.
    """

    loop: _ThreadLoop | None = None


_here = _OfThisThread()


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run, in this thread and without an event loop, a coroutine that awaits
    nothing but stores and this module.

    Their calls block here. A loop and its thread pool would cost more than the one
    Redis call that the coroutine makes.
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


def is_in_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _CallInThread(Generic[T]):
    """One call of a function in a pool's thread, in a copy of the caller's context.

    Await it by calling it, once.
    """

    def __init__(self, function: Callable[[], T], pool: DaemonThreadPool | None = None) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[tuple[T | None, BaseException | None]] = (
            self._loop.create_future()
        )
        self._limits = _state.get().time_limits
        self._seconds_left: dict[asyncio.Timeout, float] = {}
        self._call = ThreadCall(self._run)
        self._pool = pool or tool_pool()

    async def __call__(self) -> T:
        for limit in self._limits:  # they stand still until a thread is free
            if (when := limit.when()) is not None and not limit.expired():
                # Its block has ended, and this task outlives it.
                with contextlib.suppress(RuntimeError):
                    limit.reschedule(None)
                    self._seconds_left[limit] = when - self._loop.time()
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
        """Stop waiting for the call.

        Return True if it had not started, in which case it never will.
        """
        return self._pool.abandon(self._call)

    def _resume_limits(self) -> None:
        for limit, seconds in self._seconds_left.items():
            with contextlib.suppress(RuntimeError):  # its block has ended meanwhile
                limit.reschedule(self._loop.time() + seconds)

    def _run(self) -> None:
        if self._seconds_left:
            self._call_on_loop(self._resume_limits)
        self._context.run(_set_state, is_in_pool_thread=True, lends_thread=False)
        self._call_on_loop(_set_outcome, self._outcome, _outcome_of(self._context, self._function))

    def _call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        # The loop is closed, and with it the task that waited.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


def _outcome_of(
    context: contextvars.Context, function: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(function), None
    except Exception as exc:  # noqa: BLE001  # raised again by the task that waits
        return None, exc
    except BaseException as exc:  # noqa: BLE001  # it must not end the loop of the task that waits
        escaped = Escaped(f"it raised {type(exc).__name__}")
        escaped.__cause__ = exc
        return None, escaped


def _set_outcome(
    future: asyncio.Future[tuple[T | None, BaseException | None]],
    outcome: tuple[T | None, BaseException | None],
) -> None:
    if not future.done():
        future.set_result(outcome)
