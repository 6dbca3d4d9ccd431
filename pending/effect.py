"""EffectStart: the moment at which the effect of one call begins.

What a tool does before this moment is preparation, which may run again after a crash. From this
moment on the call is not repeated, because its effect may have happened.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from sayso.infra.concurrency import is_in_loop, run_without_loop
from sayso.pending.turns import LeaseLost, StaleTurn

#: Stores that an effect begins. Safe to repeat. Raises LeaseLost or StaleTurn if the call belongs
#: to another worker.
EffectNote = Callable[[], Coroutine[Any, Any, None]]


class EffectRefused(Exception):
    """Raised where an effect must not begin: another worker has the call, or its time is up.

    Nothing was done. If another worker has the call, that worker runs it from its beginning.
    """


class EffectStart:
    """The moment at which the effect of one call begins. Lives as long as one attempt at the call.

    `note` is called before the effect: once it has returned, no worker runs the call again. The
    tool calls `begin` from any thread, and the caller of the tool ends the attempt with `close`.
    """

    def __init__(self, note: EffectNote) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_closed = False

    @property
    def has_begun(self) -> bool:
        """Return whether the effect may have happened."""
        return self._has_begun

    async def begin(self) -> None:
        """Begin the effect. It begins once: a second call does nothing.

        Raises EffectRefused if it must not begin, and what `note` raises if the store does not
        answer.
        """
        if not self._needs_note():
            return
        try:
            await self._note()
        except (LeaseLost, StaleTurn) as exc:
            raise _taken_over() from exc
        self._enter()

    def begin_now(self) -> None:
        """Begin the effect as `begin` does, and block this thread meanwhile.

        A thread with an event loop may call it, too: `note` makes one call of the store, and the
        loop stands still for it.
        """
        run_without_loop(self.begin())

    def close(self) -> bool:
        """End the attempt, so that its effect cannot begin later. Return whether it had begun."""
        with self._lock:
            self._is_closed = True
            return self._has_begun

    def _needs_note(self) -> bool:
        """Return whether the effect has not begun. Raises EffectRefused in a closed attempt."""
        with self._lock:
            if self._is_closed and not self._has_begun:
                raise _too_late()
            return not self._has_begun

    def _enter(self) -> None:
        """Begin the effect, unless the attempt was closed while the note was stored.

        Such an attempt has no effect, though the note says that it began. If the call ran out of
        time, its caller records that it failed. If its worker was stopped, only the note remains:
        the next worker cannot know that nothing happened, and ends the call as unknown.
        """
        with self._lock:
            if self._is_closed:
                raise _too_late()
            self._has_begun = True


class EffectBlock:
    """The block of code that holds an effect: `with context.effect():`, also as `async with`."""

    __slots__ = ("_start",)

    def __init__(self, start: EffectStart | None) -> None:
        self._start = start

    def __enter__(self) -> None:
        if self._start is not None:
            self._start.begin_now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the block. An error of the effect passes."""

    async def __aenter__(self) -> None:
        if self._start is not None:
            await self._start.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the block. An error of the effect passes."""


def begin_effect(start: EffectStart | None) -> Awaitable[None]:
    """Begin an effect. None as `start` does nothing.

    In a thread with an event loop the result must be awaited. In any other thread the effect has
    begun when this returns.
    """
    if start is None:
        return _Done()
    if is_in_loop():
        return start.begin()
    start.begin_now()
    return _Done()


class _Done:
    """An awaitable that is done. Unlike a coroutine, it gives no warning if it is not awaited."""

    __slots__ = ()

    def __await__(self) -> Any:
        return iter(())


def _taken_over() -> EffectRefused:
    return EffectRefused(
        "the effect did not begin: another worker has taken over this call, and runs it"
    )


def _too_late() -> EffectRefused:
    return EffectRefused("the effect did not begin: the call was given up before")
