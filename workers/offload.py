"""Offload: the crossings between sync and async code, none of which loses the caller's context."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call one of our own short blocking functions, such as a store's, in the loop's pool of threads."""
    return await asyncio.to_thread(function, *args, **kwargs)


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


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine from sync code, also inside a running loop (which then waits too)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(context.run, asyncio.run, coroutine).result()


def _outcome(context: contextvars.Context, function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(function), None
    except BaseException as exc:  # noqa: BLE001  # raised again by the task that waits
        return None, exc


def _settle(future: asyncio.Future[T], outcome: T) -> None:
    if not future.done():
        future.set_result(outcome)
