"""InTime: a limit on how long a coroutine takes, free where that has nothing to wait for.

A timer is made and unmade at each question to a model and each round trip; what is known at once needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine as awaitable_generator
from typing import Any, TypeVar

T = TypeVar("T")


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
