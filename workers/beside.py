"""Beside: a task beside a turn, which calls its platform now and then and ends with the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds that a call which is under way may still take when the turn is over.
LAST_CALL_SECONDS = 3.0


class Beside:
    """Lives as long as one attempt at a turn. After `end` nothing of it reaches the platform any more."""

    def __init__(self) -> None:
        #: The turn is over: whoever comes back from a call makes no other.
        self.is_over = False
        self._calling = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self, work: Coroutine[Any, Any, Any], *, with_a_call: bool = False) -> None:
        """Begin; `with_a_call` says that its first call is to be made however soon the turn is over."""
        self._task, self._calling = asyncio.create_task(work), with_a_call

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call is under way: broken off, nobody would know what it did."""
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    async def end(self, *, at_once: bool = False) -> None:
        """The turn is over; a call that is under way may end, unless all has to end `at_once`."""
        self.is_over, task = True, self._task
        if task is None:
            return
        if self._calling and not at_once:
            await asyncio.wait({task}, timeout=LAST_CALL_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
