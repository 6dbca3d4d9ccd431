"""Offload: the crossings between sync and async code, none of which loses the caller's context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, Self, TypeVar

from sayso.workers.ferry import ferry
from sayso.workers.installed import installed
from sayso.workers.own_loop import OwnLoop, own_loop
from sayso.workers.threads import Threads, Work

P = ParamSpec("P")
T = TypeVar("T")


class CutOff(Exception):
    """Raised when somebody else's code took longer than it may. What it did is not known."""


class NeverBegan(Exception):
    """Raised when nobody waited any more for somebody else's code before there was a thread for it: it did nothing."""


class Quit(Exception):
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


class Strays:
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


_strays: ContextVar[Strays | None] = ContextVar("sayso_strays", default=None)


def watch_strays() -> Strays:
    """From now on, those of the current context."""
    strays = Strays()
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
        raise CutOff(f"no end after {seconds:g} s") from exc
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
        raise Quit("it cancelled itself") from exc
    except (Exception, GeneratorExit):  # the latter closes the coroutine that waits
        raise
    except BaseException as exc:  # also what libraries stop their own code with
        raise Quit(f"it raised {type(exc).__name__}") from exc


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
        raise Quit(f"it raised {type(exc).__name__}") from exc


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
        self._work = Work(self._run, self._begins)
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
        quit_ = Quit(f"it raised {type(exc).__name__}")
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
    await late(None, NeverBegan("there was no thread for it in time"))


async def _listen(work: asyncio.Future[Any], late: LateOutcome) -> None:
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if work.done() and not work.cancelled():
        error = work.exception()
        await late(None if error else work.result(), error)
    else:
        work.cancel()
