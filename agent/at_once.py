"""AtOnce: coroutines side by side, none of which outlives whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

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
