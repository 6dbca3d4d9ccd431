"""Run_sync() on one loop thread, tools in threads with a limit (anyio), late results."""

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
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import coroutine as awaitable_generator
from typing import Any, Generic, ParamSpec, Self, TypeVar

import uvloop

from sayso.pending.redis.ferry import ferry

T = TypeVar("T")


async def at_once(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in their order. Raises what the first that fails raises, once the others have stopped.

    `asyncio.gather` returns as soon as the first of them has stopped, and leaves the others to themselves.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        rest = [task for task in tasks if not task.done()]
        for task in rest:
            if not task.cancelling():  # told twice, it could not clean up
                task.cancel()
        if rest:
            await asyncio.wait(rest)


class TimeIsUp(Exception):
    """Raised when a coroutine took longer than it may. It was cancelled, and has ended."""


async def in_time(coroutine: Coroutine[Any, Any, T], seconds: float | None) -> T:
    """What the coroutine returns, within `seconds`; None waits for ever. Raises TimeIsUp, and what it raises itself."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    try:
        waited_for = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    try:
        async with asyncio.timeout_at(deadline) as limit:
            return await _rest(coroutine, waited_for)
    except Exception as exc:  # a TimeoutError, or what failed while it was cancelled
        if not limit.expired():
            raise
        raise TimeIsUp(f"no end after {seconds:g} s") from exc


@awaitable_generator
def _rest(coroutine: Coroutine[Any, Any, T], waited_for: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits: as `yield from` does, which cannot begin in the middle."""
    try:
        while True:
            try:
                answer = yield waited_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as exc:  # noqa: BLE001  # it is the coroutine's to handle, cancellation included
                thrown = exc
            else:
                waited_for = coroutine.send(answer)
                continue
            try:  # out here: what the coroutine has handled is no longer being handled
                waited_for = coroutine.throw(thrown)
            finally:
                del thrown  # its traceback holds this frame
    except StopIteration as end:
        result: T = end.value
        return result


class installed(Generic[T]):  # noqa: N801  # used like a function
    """`with installed(variable, value):` inside, also in tasks and threads started there, the variable is this value.

    No `contextmanager`, which takes four times as long: each call of a tool is inside of six.
    """

    __slots__ = ("_token", "_value", "_variable")
    _token: Token[Any]

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


#: Seconds that what still runs at the end has to clean up; after them the thread is left to the end of its process.
CLOSE_SECONDS = 3.0


class LoopThread:
    """Lives as long as its process. RQ keeps the main thread, for its signals and time limits."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, name: str = "sayso-loop") -> None:
        self._loop = loop or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait. Whatever interrupts the wait cancels the coroutine too."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def thread(self) -> int | None:
        """The id of its thread."""
        return self._thread.ident

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this on the loop. RuntimeError: it is closed."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the loop and its thread. What still runs on it is cancelled."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self.submit(_cancel_all()).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and do not wait; cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_SECONDS)


log = logging.getLogger(__name__)


#: Seconds after which a thread that nobody needs ends.
IDLE_SECONDS = 30.0


def _nothing() -> None:
    """Nobody wants to know when it begins."""


@dataclass(slots=True, eq=False)
class ThreadCall:
    """Something to run in a thread; it must not raise. `begins` is called there right before.

    `thread` is the one that it began in, `left` says that nobody waits for it any more.
    """

    run: Callable[[], None]
    begins: Callable[[], None] = _nothing
    thread: int | None = None
    over: bool = False
    left: bool = False


class Threads:
    """At most `most` threads, made when they are needed. What finds none waits its turn. Lives as long as its process.

    No ThreadPoolExecutor: Python waits for its threads at exit, so one hung tool would hold the process for ever. What
    nobody waits for any more is logged at `level`.
    """

    def __init__(self, name: str, most: int, *, level: int = logging.WARNING) -> None:
        self._name = name
        self._level = level
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[ThreadCall] = deque()
        self._threads = self._idle = self._hung = 0

    @property
    def hung(self) -> int:
        """How many functions run that nobody waits for any more."""
        return self._hung

    def start(self, work: ThreadCall, *, beyond: bool = False) -> None:
        """Run this as soon as a thread is free; `beyond` the bound at once. RuntimeError: no thread can be had."""
        if beyond:
            work.thread = 0
            threading.Thread(target=self._run, args=(work,), name=f"sayso-{self._name}", daemon=True).start()
            return
        with self._changed:
            self._waiting.append(work)
            if self._idle >= len(self._waiting) or self._threads >= self._most:
                self._changed.notify()
                return
            self._threads += 1
        self._one_more(work)

    def leave(self, work: ThreadCall) -> bool:
        """Nobody waits for it any more. What has not begun never will, and the answer is True; what goes on is counted,
        and logged with its stack.
        """
        with self._changed:
            if work.thread is None:
                if work in self._waiting:
                    self._waiting.remove(work)
                return True
            if work.over or work.left:
                return False
            work.left = True
            self._hung += 1
        log.log(
            self._level,
            "%s.left_running",
            self._name,
            extra={"hung": self._hung, "threads": self._most, "stack": stack_of(work.thread)},
        )
        return False

    def _one_more(self, work: ThreadCall) -> None:
        try:
            threading.Thread(target=self._serve, name=f"sayso-{self._name}", daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                if self._threads:  # it waits its turn
                    return
                self._waiting.remove(work)
            raise

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            self._run(work)

    def _next(self) -> ThreadCall | None:
        with self._changed:
            while not self._waiting:
                self._idle += 1
                needed = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not needed and not self._waiting:
                    self._threads -= 1
                    return None
            work = self._waiting.popleft()
            work.thread = threading.get_ident()
            return work

    def _run(self, work: ThreadCall) -> None:
        work.thread = threading.get_ident()
        work.begins()
        work.run()
        work.begins = work.run = _nothing  # whose work it is may hold it: not to be left to the garbage collector
        with self._changed:
            work.over = True
            if work.left:
                self._hung -= 1
        if work.left:
            log.log(self._level, "%s.ended_late", self._name, extra={"hung": self._hung})


def stack_of(thread: int | None) -> str:
    """The lines of code that a thread is at; no values."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001  # there is no other way to see another thread
    return "".join(traceback.format_stack(frame)) if frame else "none yet"


class OwnLoop:
    """Lives as long as its thread. A process that was forked meanwhile makes its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._is_busy = False
        self._waited_for: asyncio.Task[Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it was made in this process, and can still be used."""
        return self._pid == os.getpid() and not self._loop.is_closed()

    @property
    def is_free(self) -> bool:
        """Whether nobody waits in `run`: another coroutine would be cancelled with his, or he with that."""
        return not self._is_busy and self.is_ours

    @property
    def runs_here(self) -> bool:
        """Whether it is what asks: a copied context may ask from another loop, in another thread."""
        return asyncio._get_running_loop() is self._loop  # noqa: SLF001  # which raises nothing where none runs

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine, in a copy of this context. Tasks that it leaves behind are cancelled."""
        task = self._loop.create_task(coroutine, context=contextvars.copy_context())
        task.add_done_callback(self._stop)
        self._waited_for, self._is_busy = task, True
        try:
            while not task.done():
                self._loop.run_forever()
            return task.result()
        except (KeyboardInterrupt, SystemExit):  # they leave a loop although the task that raised them has them too
            if task.done() and not task.cancelled():
                task.exception()  # seen: it is on its way
            raise
        finally:
            self._waited_for = None  # its end may be told late: it must not stop the loop that waits for the rest
            self._cancel_rest()
            self._is_busy = False

    def lend(self, function: Callable[[], T]) -> T:
        """Call a blocking function from what `run` waits for. The loop stands still meanwhile. To the function no loop
        is running and no task, so that it may start its own: from Python 3.14 on a thread runs one task at a time.
        """
        task: Any = asyncio.current_task()
        asyncio._leave_task(self._loop, task)  # noqa: SLF001  # asyncio exports these, for whoever runs loops and tasks
        asyncio._set_running_loop(None)  # noqa: SLF001
        try:
            return contextvars.copy_context().run(function)
        finally:
            asyncio._set_running_loop(self._loop)  # noqa: SLF001
            asyncio._enter_task(self._loop, task)  # noqa: SLF001

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if task is self._waited_for:
            self._loop.stop()

    def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks(self._loop)
        if not rest:
            return
        for task in rest:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of a process half of it may be gone
            if self.is_ours and not self._loop.is_running():
                self._loop.close()


class _Kept(threading.local):
    """The first is for what a thread runs, the next for what that runs in turn, while it holds the lent thread."""

    def __init__(self) -> None:
        self.loops: list[OwnLoop] = []


_kept = _Kept()


def own_loop() -> OwnLoop:
    """This thread's: the first on which nothing runs."""
    if _kept.loops and _kept.loops[0].is_free:
        return _kept.loops[0]
    _kept.loops = [loop for loop in _kept.loops if loop.is_ours]
    free = next((loop for loop in _kept.loops if loop.is_free), None)
    if free is None:
        free = OwnLoop()
        _kept.loops.append(free)
    return free


P = ParamSpec("P")


class TimedOut(Exception):
    """Raised when somebody else's code took longer than it may. What it did is not known."""


class NotStarted(Exception):
    """Raised when nobody waited any more for somebody else's code before there was a thread for it: it did nothing."""


class Escaped(Exception):
    """Raised when somebody else's code tried to end this process, or its own task."""


#: The loop of a sync caller who lends its thread.
_lender: ContextVar[OwnLoop | None] = ContextVar("sayso_lender", default=None)


#: How `reach` and `offload` call a function. None: as they say themselves.
Crossing = Callable[[Callable[[], Any]], Awaitable[Any]]


crossing: ContextVar[Crossing | None] = ContextVar("sayso_crossing", default=None)


async def reach(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a store: its code runs here and now, and the event loop goes on while it waits for Redis."""
    call = functools.partial(function, *args, **kwargs)
    cross = crossing.get() or ferry
    result: T = await cross(call)
    return result


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call one of our own short blocking functions, such as a write to disk, without holding up the event loop.

    Not in the loop's pool: Python waits for its threads at exit, for most of a minute when Redis is silent.
    """
    call = functools.partial(function, *args, **kwargs)
    cross = crossing.get()
    if cross is None:
        return await _Errand(call, _own_pool())()
    result: T = await cross(call)
    return result


class AbandonedCalls:
    """Somebody else's functions that go on although their caller was cancelled: those called in one context, or in one
    that was started from it.
    """

    def __init__(self) -> None:
        self._ended: list[Callable[[], bool]] = []

    @property
    def are_running(self) -> bool:
        """Whether any of them may still have an effect."""
        return not all(ended() for ended in self._ended)

    def add(self, ended: Callable[[], bool]) -> None:
        """One more, and how to see whether it has ended."""
        self._ended.append(ended)


_strays: ContextVar[AbandonedCalls | None] = ContextVar("sayso_strays", default=None)


def watch_strays() -> AbandonedCalls:
    """From now on, those of the current context."""
    strays = AbandonedCalls()
    _strays.set(strays)
    return strays


def _is_stray(ended: Callable[[], bool]) -> None:
    strays = _strays.get()
    if strays is not None:
        strays.add(ended)


#: Hears how somebody else's function ended that nobody waited for any more.
LateOutcome = Callable[[Any, BaseException | None], Awaitable[None]]


#: Seconds after which a function that nobody waits for any more is not listened to either.
LATE_SECONDS = 600.0


async def perform(function: Callable[[], Any], seconds: float, late: LateOutcome | None = None) -> Any:
    """Run somebody else's function, sync or async, for so long at most. Raises CutOff, and whatever it raises itself.

    The time a sync function waits for a thread does not count. When its time is up, or ours, it goes on if there is a
    `late` that hears how it ended; without one it is cancelled, as far as it can be. One that had no thread yet never
    runs, and `late` hears NeverBegan. For a caller that has no event loop (`run_here`) it runs in the caller's own
    thread, where nothing can stop it.
    """
    if crossing.get() is not None:
        return _performed_here(function)
    limit = asyncio.timeout(seconds)
    token = _limits.set((*_limits.get(), limit))
    try:
        errand = None if inspect.iscoroutinefunction(function) else _Errand(function)
        work = asyncio.ensure_future(_performed(function, errand))
    finally:
        _limits.reset(token)
    try:
        async with limit:
            return await asyncio.shield(work)
    except TimeoutError as exc:
        if not limit.expired():
            raise
        _leave(work, errand, late)
        raise TimedOut(f"no end after {seconds:g} s") from exc
    except asyncio.CancelledError:
        _leave(work, errand, late)
        raise


class within:  # noqa: N801  # used like asyncio.timeout
    """As `asyncio.timeout`, except that the time in which `in_thread` waits for a thread does not count.

    `expired` tells its own TimeoutError from one that the code inside raised.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            self._limit = asyncio.timeout(self._seconds)
            await self._limit.__aenter__()
            self._token = _limits.set((*_limits.get(), self._limit))
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        if self._seconds is not None:
            _limits.reset(self._token)
            await self._limit.__aexit__(*exc_info)

    @property
    def expired(self) -> bool:
        """Whether its time was up."""
        return self._seconds is not None and self._limit.expired()


async def contained(awaitable: Awaitable[T]) -> T:
    """Wait for somebody else's coroutine. Raises Quit when it wants to end more than itself."""
    try:
        return await awaitable
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # we are being stopped ourselves
            raise
        raise Escaped("it cancelled itself") from exc
    except (Exception, GeneratorExit):  # the latter closes the coroutine that waits
        raise
    except BaseException as exc:  # also what libraries stop their own code with
        raise Escaped(f"it raised {type(exc).__name__}") from exc


async def in_thread(function: Callable[[], T]) -> T:
    """Run somebody else's blocking function, such as a tool, in one of the process's bounded number of daemon threads.

    Calls wait for a thread in order; one that is cancelled before it has one never runs. Not in the loop's pool: a few
    hung tools would leave no thread for Redis there, and Python waits for that pool at exit.
    """
    return await _Errand(function)()


async def in_lent_thread(function: Callable[[], T]) -> T:
    """As `in_thread`; under a sync caller who waits (`lending`) for this very loop, in the caller's own thread."""
    loop = _lender.get()
    if loop is None or not loop.runs_here:
        return await in_thread(function)
    return loop.lend(functools.partial(_stay, function))


def _stay(function: Callable[[], T]) -> T:
    """Call a function that may end nothing but itself; the KeyboardInterrupt is that of whoever waits here. What it
    waits for in turn has loops of its own, which the lent one cannot serve.
    """
    _lender.set(None)
    return _called(function)


def lending(lends: bool) -> contextlib.AbstractContextManager[OwnLoop | None]:
    """Inside, `run_sync` lends its caller's thread, or what runs at once with others keeps away from it."""
    return installed(_lender, own_loop() if lends and not _is_in_loop() else None)


def bound_threads(most: int) -> None:
    """From now on `in_thread` runs so many functions of this process at a time. Call it before the first."""
    _threads[os.getpid()] = Threads("tool", most)


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only offloads and performs, in this thread and without an event loop: a loop and its pool
    cost more than the Redis call they would wait for.
    """
    token = crossing.set(_at_once)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        crossing.reset(token)
    raise RuntimeError("a coroutine that waits for an event loop was run without one")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine from sync code, also inside a running loop (which then waits too)."""
    if not _is_in_loop():
        return own_loop().run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _performed_here(function: Callable[[], Any]) -> Any:
    return _called(lambda: _at_its_end(function()))


def _at_its_end(result: Any) -> Any:
    return run_sync(_awaited(result)) if inspect.isawaitable(result) else result


def _called(function: Callable[[], T]) -> T:
    """What somebody else's function returns, in a thread that waits for it. Raises Quit when it wants to end more than
    itself; only the KeyboardInterrupt of whoever sits at the terminal passes.
    """
    try:
        return function()
    except (SystemExit, GeneratorExit, asyncio.CancelledError) as exc:
        raise Escaped(f"it raised {type(exc).__name__}") from exc


async def _at_once(function: Callable[[], T]) -> T:
    return function()


async def _awaited(value: Awaitable[T]) -> T:
    token = crossing.set(None)
    try:
        return await value
    finally:
        crossing.reset(token)


#: The threads of this process for tools and for our own functions: a forked one has none of its parent's.
_threads: dict[int, Threads] = {}


_own_threads: dict[int, Threads] = {}


#: Tools at a time where nobody said otherwise, and functions of our own.
MOST_THREADS, OWN_THREADS = 32, 16


#: The time limits, one within the other, that waiting for a thread does not use up.
_limits: ContextVar[tuple[asyncio.Timeout, ...]] = ContextVar("sayso_limits", default=())


#: Whether this is code that holds a thread already. What it calls in turn has one beyond the bound: waiting in line
#: behind itself could never end.
_inside: ContextVar[bool] = ContextVar("sayso_inside", default=False)


def _tool_pool() -> Threads:
    return _threads.get(os.getpid()) or _threads.setdefault(os.getpid(), Threads("tool", MOST_THREADS))


def _own_pool() -> Threads:
    """Its functions are short: one that is left is at its end, as when its worker stops, and no news."""
    ours = _own_threads.get(os.getpid())
    return ours or _own_threads.setdefault(os.getpid(), Threads("own", OWN_THREADS, level=logging.DEBUG))


class _Errand(Generic[T]):
    """One function on its way to a thread and back, in a copy of its caller's context."""

    def __init__(self, function: Callable[[], T], pool: Threads | None = None) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[tuple[T | None, BaseException | None]] = self._loop.create_future()
        self._limits, self._left = _limits.get(), dict[asyncio.Timeout, float]()
        self._work = ThreadCall(self._run, self._begins)
        self._pool = pool or _tool_pool()

    async def __call__(self) -> T:
        self._stop_the_clock()
        self._pool.start(self._work, beyond=_inside.get())
        try:
            value, error = await self._outcome
        except asyncio.CancelledError:
            if not self.leave():
                _is_stray(lambda: self._work.over)
            raise
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # no error, so this is the function's own value

    def leave(self) -> bool:
        """Nobody waits any more. Whether it had not begun, and so never will."""
        return self._pool.leave(self._work)

    def _stop_the_clock(self) -> None:
        for limit in self._limits:
            if (when := limit.when()) is not None and not limit.expired():
                with contextlib.suppress(RuntimeError):  # it was left, and this task lives on
                    limit.reschedule(None)
                    self._left[limit] = when - self._loop.time()

    def _go_on(self) -> None:
        for limit, left in self._left.items():
            with contextlib.suppress(RuntimeError):  # it was left meanwhile
                limit.reschedule(self._loop.time() + left)

    def _begins(self) -> None:
        if self._left:
            self._call_back(self._go_on)

    def _run(self) -> None:
        self._context.run(_inside.set, True)
        self._call_back(_settle, self._outcome, _outcome(self._context, self._function))

    def _call_back(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *args)


def _outcome(context: contextvars.Context, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(function), None
    except Exception as exc:  # noqa: BLE001  # raised again by the task that waits
        return None, exc
    except BaseException as exc:  # noqa: BLE001  # it must not end the loop of the task that waits
        quit_ = Escaped(f"it raised {type(exc).__name__}")
        quit_.__cause__ = exc
        return None, quit_


def _settle(
    future: asyncio.Future[tuple[T | None, BaseException | None]], outcome: tuple[T | None, BaseException | None]
) -> None:
    if not future.done():
        future.set_result(outcome)


async def _performed(function: Callable[[], Any], errand: _Errand[Any] | None) -> Any:
    result = await errand() if errand else function()
    return await contained(result) if inspect.isawaitable(result) else result


#: Tasks that nobody waits for: a loop keeps none alive by itself.
_left: set[asyncio.Task[None]] = set()


def _leave(work: asyncio.Future[Any], errand: _Errand[Any] | None, late: LateOutcome | None) -> None:
    _is_stray(work.done)
    if late is None:
        work.cancel()
        return
    never_began = errand is not None and errand.leave()
    if never_began:
        work.cancel()
    task = asyncio.get_running_loop().create_task(_refuse(late) if never_began else _listen(work, late))
    _left.add(task)
    task.add_done_callback(_left.discard)


async def _refuse(late: LateOutcome) -> None:
    await late(None, NotStarted("there was no thread for it in time"))


async def _listen(work: asyncio.Future[Any], late: LateOutcome) -> None:
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if work.done() and not work.cancelled():
        error = work.exception()
        await late(None if error else work.result(), error)
    else:
        work.cancel()
