"""Ferry: carries a sync call of a store across an event loop, which waits for its round trips and for nothing else.

A store is written once, without async. Called from a loop, it runs in a greenlet: where it would block for an answer of
Redis, it lets the loop go on and is resumed with the answer.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class _Ferry(greenlet):  # type: ignore[misc]  # it has no types
    """A store's call under way."""


def aboard() -> bool:
    """Whether this code was called by `ferry`, and so must not block."""
    return isinstance(getcurrent(), _Ferry)


def wait_for(answer: Awaitable[T]) -> T:
    """From aboard: let the loop wait for this, and go on with it."""
    loop = cast("greenlet", getcurrent().parent)
    return cast("T", loop.switch(answer))


async def ferry(function: Callable[[], T]) -> T:
    """Call a store's function from a loop, in a copy of the caller's context."""
    call = _Ferry(function)
    call.gr_context = contextvars.copy_context()
    step: Any = call.switch()
    while not call.dead:
        try:
            answer = await step
        except GeneratorExit as exc:  # it was thrown away in mid-call: its cleanup runs, and can wait for nothing
            _end(call, exc)
            raise
        except BaseException as exc:  # noqa: BLE001  # it is the function's to handle, cancellation included
            step = call.throw(exc)
        else:
            step = call.switch(answer)
    return cast("T", step)


def _end(call: greenlet, reason: BaseException) -> None:
    step: Any = call.throw(reason)
    while not call.dead:
        step.close()
        step = call.throw(RuntimeError("nobody waits for this call any more"))
