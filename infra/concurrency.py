"""Run blocking code from an event loop, and coroutines from sync code.

*Foreign* code is code that Sayso did not write, such as a tool: it may block for long, end the
process, or never end.

| called from | runs | with |
|---|---|---|
| a coroutine | a short blocking function of Sayso | `call_in_thread` |
| a coroutine | foreign blocking code | `call_in_tool_thread`, `call_in_caller_thread` |
| a coroutine | foreign code, sync or async | `call_foreign`, with a time limit `run_with_timeout` |
| sync code | a coroutine | `run_sync` |
| sync code | a coroutine that only calls stores | `run_without_loop` |

The number of threads is limited (`threads.py`). The time that a call waits for a thread does not
count against its time limit. A tool that runs another tool gets a second thread.
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

#: Seconds for which `run_with_timeout` waits for a late outcome. After them a thread that still runs
#: counts as hung, and its outcome is reported to nobody.
LATE_SECONDS = 600.0


class TimedOut(Exception):
    """Raised when a call of foreign code took too long. What the call has done is not known."""


class NotStarted(Exception):
    """Raised when a call was given up before a thread was free for it. It did nothing."""


class Escaped(Exception):
    """Raised in place of an exception by which foreign code would end this process or its caller.

    Such exceptions are SystemExit, and a CancelledError although nothing cancelled the caller.
    """


#: Whether `run_without_loop` runs this code, so that what would wait on the event
#: loop blocks this thread instead.
has_no_loop: ContextVar[bool] = ContextVar("sayso_has_no_loop", default=False)


class _TimeLimit:
    """The time limit of one `execution_timeout`, which stands still while calls wait for a thread.

    Lives as long as its block. Only code on its event loop may pause and resume it.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.loop = asyncio.get_running_loop()
        self._timeout = timeout
        #: How many calls wait for a thread: those of parallel tasks may wait at the same time.
        self._waiting_calls = 0
        #: What is left of the time while the limit stands still.
        self._seconds_left: float | None = None

    def pause(self) -> None:
        """Stand still for one more call, until `resume` was called for each of them."""
        self._waiting_calls += 1
        # None: another call has set it so, and the block ended while that call waited.
        deadline = self._timeout.when()
        if self._waiting_calls == 1 and deadline is not None:
            self._seconds_left = deadline - self.loop.time()
            self._set_deadline(None)

    def resume(self) -> None:
        """Count the time again, unless other calls still wait."""
        self._waiting_calls -= 1
        if self._waiting_calls == 0 and self._seconds_left is not None:
            self._set_deadline(self.loop.time() + self._seconds_left)
            self._seconds_left = None

    def _set_deadline(self, deadline: float | None) -> None:
        # RuntimeError: the time is up or the block has ended, and a task of the block goes on.
        with contextlib.suppress(RuntimeError):
            self._timeout.reschedule(deadline)


class _CallState(NamedTuple):
    """What calls in threads know about the code that makes them. Tasks and threads inherit it."""

    #: The time limits of the blocks around this code, the outermost first. Some may belong to
    #: another event loop, which waits for the tool that runs this code.
    time_limits: tuple[_TimeLimit, ...] = ()
    #: Collects the calls that nothing waits for any more, as functions that return whether the call
    #: has ended (`track_abandoned_calls`); None: they are not collected.
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
    """Run a short blocking function of Sayso, such as a write to disk, in a daemon thread."""
    if has_no_loop.get():
        return function(*args, **kwargs)
    call = _CallInThread(functools.partial(function, *args, **kwargs), own_pool())
    return await call.outcome()


async def call_in_tool_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code, such as a tool, in one of a bounded number of daemon threads.

    Calls wait for a thread in order. A call that is cancelled before it has a thread never runs.
    """
    return await _CallInThread(function, tool_pool()).outcome()


async def call_foreign(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a foreign function: a sync one in a tool thread, an async one on the event loop.

    There is no time limit, and what an async function raises is not turned into Escaped: callers
    that need this wrap the call in `run_with_timeout` or `await_isolated`.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await call_in_tool_thread(lambda: function(*args, **kwargs))
    if inspect.isawaitable(result):
        return await result
    return result


async def call_in_caller_thread(function: Callable[[], T]) -> T:
    """Run foreign blocking code in the thread of the sync caller, if that lends its thread.

    If not, it runs in a tool thread. A caller of `run_sync` may lend its thread, and its event loop
    stands still meanwhile. So a tool can use what belongs to the caller's thread, such as a
    connection of sqlite3 that the program has opened. A call takes 1.3 microseconds of processor
    time; one in a tool thread takes 24.
    """
    loop = asyncio.get_running_loop()
    thread_loop = _this_thread.loop
    is_lent = _state.get().lends_thread and thread_loop is not None and thread_loop.loop is loop
    if not is_lent:
        return await call_in_tool_thread(function)
    task: Any = asyncio.current_task()

    # The function must see no loop and no task, so that it may run its own: a thread runs one loop
    # at a time, and from Python 3.14 on one task. These are the functions that asyncio documents
    # for those who extend it; public ones would need a second thread for each sync caller.
    # What is left first is entered again last.
    asyncio._leave_task(loop, task)  # noqa: SLF001
    asyncio._set_running_loop(None)  # noqa: SLF001
    # A `run_sync` in the function must make a new loop: this one is in the middle of a step.
    _this_thread.loop = None
    try:
        return contextvars.copy_context().run(_call_isolated, function)
    finally:
        _this_thread.loop = thread_loop
        asyncio._set_running_loop(loop)  # noqa: SLF001
        asyncio._enter_task(loop, task)  # noqa: SLF001


def keep_caller_thread() -> None:
    """Lend no thread of a sync caller in this task: calls that run in parallel need several."""
    _set_state(lends_thread=False)


async def run_with_timeout(
    function: Callable[[], Any], seconds: float, on_late_outcome: LateOutcomeHandler | None = None
) -> Any:
    """Run a foreign function, sync or async, for at most `seconds`, and return its result.

    The time for which a sync function waits for a thread does not count. Raises TimedOut when the
    time is up, and what the function raises, or Escaped in its place.

    When the time is up or the caller is cancelled, a function that has begun is cancelled. That
    does not stop one in a thread. If `on_late_outcome` is given, the function goes on instead, and
    `on_late_outcome` receives its outcome, provided that it comes within LATE_SECONDS and the event
    loop still runs: `run_sync` ends with its coroutine and cancels the report. A function that had
    no thread yet never runs, and `on_late_outcome` receives NotStarted.

    Under `run_without_loop` the function runs in the caller's thread, without a time limit.
    """
    if has_no_loop.get():
        return _run_in_this_thread(function)
    try:
        async with execution_timeout(seconds) as limit:
            call = None
            if not inspect.iscoroutinefunction(function):
                call = _CallInThread(function, tool_pool())
            work = asyncio.ensure_future(_run_to_end(function, call))
            return await asyncio.shield(work)
    except TimeoutError as exc:
        # The function may raise a TimeoutError itself.
        if not limit.expired():
            raise
        _abandon(work, call, on_late_outcome)
        raise TimedOut(f"no end after {seconds:g} s") from exc
    except asyncio.CancelledError as exc:
        if work.cancelled() and not _is_being_cancelled():
            raise Escaped("it cancelled itself") from exc
        _abandon(work, call, on_late_outcome)
        raise


async def _run_to_end(function: Callable[[], Any], call: _CallInThread[Any] | None) -> Any:
    """Run a function, in the thread of a `call` or on this loop, and wait for an async result."""
    if call is None:
        result = function()
    else:
        result = await call.outcome()
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
    """Stop waiting for `work`: cancel it, or pass its outcome on once it is known.

    `call` is the call in a thread that `work` waits for, None for a function on the loop.
    """
    # A cancelled `work` in a thread is done at once, while the thread goes on. So
    # `_CallInThread.outcome`, which `work` waits for, also notes when the thread has ended.
    _note_abandoned(work.done)
    if on_late_outcome is None:
        work.cancel()
        return

    if call is not None and call.abandon():
        # This makes `outcome` abandon the call once more, with the same answer.
        work.cancel()
        report = on_late_outcome(None, NotStarted("there was no thread for it in time"))
    else:
        report = _report_late_outcome(work, on_late_outcome)
    task = asyncio.ensure_future(report)
    _late_tasks.add(task)
    task.add_done_callback(_late_tasks.discard)


async def _report_late_outcome(
    work: asyncio.Future[Any], on_late_outcome: LateOutcomeHandler
) -> None:
    """Wait for the end of `work`, for LATE_SECONDS at most, and pass its outcome on."""
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if not work.done() or work.cancelled():
        work.cancel()
        return
    error = work.exception()
    if error is not None:
        await on_late_outcome(None, error)
    else:
        await on_late_outcome(work.result(), None)


def track_abandoned_calls() -> list[Callable[[], bool]]:
    """Collect the calls that nothing waits for any more: the caller timed out or was cancelled.

    Covers the calls that this context, and the tasks and threads that it starts, make from here on.
    Return the list that is filled: for each such call it gets a function that says whether the call
    has ended. A worker gives a conversation to another one only after all of them.
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
    """Limit a block like `asyncio.timeout`, without the time in which its calls wait for a thread.

    None for `seconds` is no limit.
    """
    outer = _state.get().time_limits
    async with asyncio.timeout(seconds) as timeout:
        if seconds is not None:
            _set_state(time_limits=(*outer, _TimeLimit(timeout)))
        try:
            yield timeout
        finally:
            _set_state(time_limits=outer)


async def await_isolated(awaitable: Awaitable[T]) -> T:
    """Wait for a foreign coroutine. Raises Escaped when it tries to end more than itself.

    A coroutine that cancels the task in which it runs looks the same as a caller that cancels this
    task. So its CancelledError passes. In the main thread a KeyboardInterrupt passes, too: it comes
    from the person at the terminal.
    """
    try:
        return await awaitable
    except asyncio.CancelledError as exc:
        if _is_being_cancelled():
            raise
        raise Escaped("it cancelled itself") from exc
    # GeneratorExit closes the coroutine that waits here.
    except (Exception, GeneratorExit):
        raise
    # SystemExit, and what some libraries stop their own code with.
    except BaseException as exc:
        # Python interrupts the main thread alone. In another thread the foreign code has raised the
        # KeyboardInterrupt itself, and it would end the event loop of a worker.
        is_main_thread = threading.current_thread() is threading.main_thread()
        if isinstance(exc, KeyboardInterrupt) and is_main_thread:
            raise
        raise Escaped(f"it raised {type(exc).__name__}") from exc


def _is_being_cancelled() -> bool:
    """Return whether something cancelled the task that runs this."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def gather_all(
    coroutines: Iterable[Coroutine[Any, Any, T]], *, stop_seconds: float | None = None
) -> list[T]:
    """Run the coroutines at once and return their results in order.

    When one fails, or the caller is cancelled, the others are cancelled and have ended before the
    error is raised. `asyncio.gather` alone would leave them running after a failure. `stop_seconds`
    is how long they may take for their clean-up: one that takes longer is left running. None is no
    limit.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    together = asyncio.gather(*tasks)
    # Without this, asyncio would log the error of one whose caller was cancelled and never reads it.
    together.add_done_callback(lambda done: done.exception())
    try:
        # `await together` would itself cancel the tasks of a cancelled caller, and then wait until
        # one of them has ended, without a limit.
        await asyncio.wait([together])
        return together.result()
    finally:
        rest = [task for task in tasks if not task.done()]
        for task in rest:
            # A second cancellation would interrupt its clean-up.
            if not task.cancelling():
                task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=stop_seconds)


def run_sync(coroutine: Coroutine[Any, Any, T], *, lends_thread: bool = False) -> T:
    """Run a coroutine from sync code and return its result. Tasks that it leaves are cancelled.

    With `lends_thread`, `call_in_caller_thread` uses this thread.

    Called inside a running loop, it runs the coroutine on another loop in a second thread, while
    the running one stands still. No thread is lent then: `call_in_caller_thread` uses a tool
    thread.
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
    """Run a coroutine on the loop of this thread."""
    if _this_thread.loop is None or not _this_thread.loop.is_usable:
        _this_thread.loop = _ThreadLoop()
    loop = _this_thread.loop.loop
    try:
        return loop.run_until_complete(coroutine)
    finally:
        rest = asyncio.all_tasks(loop)
        if rest:
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


class _ThreadLoop:
    """The event loop of `run_sync` in one thread.

    Lives as long as its thread; a forked process makes a new one. All calls in the thread share it:
    a new loop takes ten times as long as a call, and could not use open connections.
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
        # At the end of a process, half of what this needs may be gone.
        with contextlib.suppress(Exception):
            if self._pid != os.getpid():
                # A forked process shares its parent's epoll. To close the loop would remove from it
                # what wakes the parent's loop, so the selector gets a new epoll first.
                self._selector.__init__()  # type: ignore[misc]
            self.loop.close()


class _ThisThread(threading.local):
    """The values of each thread."""

    #: The loop that runs on this thread or waits for its next call; None before the first call, and
    #: while the thread is lent to a function.
    loop: _ThreadLoop | None = None


_this_thread = _ThisThread()


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this thread without an event loop, and return its result.

    A loop and its thread pool would cost more than the one Redis call that the coroutine makes. So
    the coroutine may await only stores, `call_in_thread` and `run_with_timeout`, which block this
    thread instead of waiting. Raises RuntimeError for a coroutine that needs an event loop, after
    it has closed the coroutine.
    """
    token = has_no_loop.set(True)
    try:
        # The coroutine runs until it ends, or until it would wait for a loop.
        coroutine.send(None)
        coroutine.close()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        has_no_loop.reset(token)
    raise RuntimeError("a coroutine that waits for an event loop was run without one")


def _run_in_this_thread(function: Callable[[], Any]) -> Any:
    """Run a foreign function to its end in this thread, an async one on an event loop.

    Foreign code does not know of `run_without_loop`, and may start an event loop itself.
    """

    def run_to_end() -> Any:
        result = function()
        if inspect.isawaitable(result):
            return run_sync(await_isolated(result))
        return result

    token = has_no_loop.set(False)
    try:
        return _call_isolated(run_to_end)
    finally:
        has_no_loop.reset(token)


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

    It is created on the event loop that waits for it. Lives until its function has ended.
    """

    def __init__(self, function: Callable[[], T], pool: DaemonThreadPool) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        #: Gets the value and the error of the function, one of which is None.
        self._outcome: asyncio.Future[tuple[T | None, BaseException | None]] = (
            self._loop.create_future()
        )
        #: The time limits that stand still while this call waits for a thread. Those of another loop
        #: go on: it waits for the tool that makes this call, and the tool has its thread.
        self._limits = [limit for limit in _state.get().time_limits if limit.loop is self._loop]
        self._call = ThreadCall(self._run)
        self._pool = pool

    async def outcome(self) -> T:
        """Start the call, wait for it, and return the value of the function or raise its error.

        Call this once.
        """
        for limit in self._limits:
            limit.pause()
        try:
            self._pool.start(self._call, beyond_limit=_state.get().is_in_pool_thread)
        except RuntimeError:
            # The system gives no thread.
            self._resume_limits()
            raise

        try:
            value, error = await self._outcome
        except asyncio.CancelledError:
            if self.abandon():
                # No thread resumes them any more.
                self._resume_limits()
            else:
                _note_abandoned(lambda: self._call.has_ended)
            raise
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # no error, so this is the function's own value

    def abandon(self) -> bool:
        """Stop waiting for the call.

        Return True if it had not started, in which case it never will. Another call of this method
        returns the same then.
        """
        return self._pool.abandon(self._call)

    def _resume_limits(self) -> None:
        for limit in self._limits:
            limit.resume()

    def _run(self) -> None:
        """Call the function and hand its outcome to the loop. Runs in the thread of the pool."""
        if self._limits:
            self._call_on_loop(self._resume_limits)
        self._context.run(_set_state, is_in_pool_thread=True, lends_thread=False)
        outcome = _outcome_of(self._context, self._function)
        self._call_on_loop(_set_outcome, self._outcome, outcome)

    def _call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        # RuntimeError: the loop is closed, and with it the task that waited.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


def _outcome_of(
    context: contextvars.Context, function: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    """Return the value and the error of a function, one of which is None."""
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
