"""Offload: the crossings between sync and async code, none of which loses the caller's context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from workers.ferry import ferry

P = ParamSpec("P")
T = TypeVar("T")


class CutOff(Exception):
    """Raised when somebody else's code took longer than it may. What it did is not known."""


class Quit(Exception):
    """Raised when somebody else's code tried to end this process, or its own task."""


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
    """Call one of our own short blocking functions, such as a write to disk, without holding up the event loop."""
    cross = crossing.get()
    if cross is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    result: T = await cross(functools.partial(function, *args, **kwargs))
    return result


#: Hears how somebody else's function ended that nobody waited for any more.
LateOutcome = Callable[[Any, BaseException | None], Awaitable[None]]

#: Seconds after which a function that nobody waits for any more is not listened to either.
LATE_SECONDS = 600.0


async def perform(function: Callable[[], Any], seconds: float, late: LateOutcome | None = None) -> Any:
    """Run somebody else's function, sync or async, for so long at most. Raises CutOff, and whatever it raises itself.

    When its time is up, or ours, it goes on if there is a `late` that hears how it ended; without one it is cancelled,
    as far as it can be. For a caller that has no event loop (`run_here`) it runs in the caller's own thread, where
    nothing can stop it.
    """
    if crossing.get() is not None:
        return _performed_here(function)
    work = asyncio.ensure_future(_performed(function))
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await asyncio.shield(work)
    except TimeoutError as exc:
        if not limit.expired():
            raise
        _leave(work, late)
        raise CutOff(f"no end after {seconds:g} s") from exc
    except asyncio.CancelledError:
        _leave(work, late)
        raise


async def contained(awaitable: Awaitable[T]) -> T:
    """Wait for somebody else's coroutine. Raises Quit when it wants to end more than itself."""
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as exc:
        raise Quit(f"it raised {type(exc).__name__}") from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # we are being stopped ourselves
            raise
        raise Quit("it cancelled itself") from exc


async def in_thread(function: Callable[[], T]) -> T:
    """Run somebody else's blocking function, such as a tool, in a daemon thread of its own.

    Not in the loop's pool: a few hung tools would leave no thread for Redis there, and `asyncio.run` waits for the
    pool, so one would hold up the whole run although its timeout has passed.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        outcome = _outcome(context, function)
        with contextlib.suppress(RuntimeError):  # the loop closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, future, outcome)

    threading.Thread(target=work, name="sayso-tool", daemon=True).start()
    value, error = await future
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # no error, so this is the function's own value


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
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def _performed_here(function: Callable[[], Any]) -> Any:
    try:
        result = function()
        return run_sync(_awaited(result)) if inspect.isawaitable(result) else result
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


async def _performed(function: Callable[[], Any]) -> Any:
    result = function() if inspect.iscoroutinefunction(function) else await in_thread(function)
    return await contained(result) if inspect.isawaitable(result) else result


#: Tasks that nobody waits for: a loop keeps none alive by itself.
_left: set[asyncio.Task[None]] = set()


def _leave(work: asyncio.Future[Any], late: LateOutcome | None) -> None:
    if late is None:
        work.cancel()
        return
    task = asyncio.get_running_loop().create_task(_listen(work, late))
    _left.add(task)
    task.add_done_callback(_left.discard)


async def _listen(work: asyncio.Future[Any], late: LateOutcome) -> None:
    await asyncio.wait({work}, timeout=LATE_SECONDS)
    if work.done() and not work.cancelled():
        error = work.exception()
        await late(None if error else work.result(), error)
    else:
        work.cancel()
