"""OwnLoop: the event loop on which a thread's sync calls run, kept from call to call.

Making one for each call costs more than most calls, and connections that a call leaves behind would die with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """Lives as long as its thread. A process that was forked meanwhile makes its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._is_busy = False
        self._lent: deque[tuple[contextvars.Context, Callable[[], Any], asyncio.Future[Any]]] = deque()

    @property
    def is_ours(self) -> bool:
        """Whether it was made in this process, and can still be used."""
        return self._pid == os.getpid() and not self._loop.is_closed()

    @property
    def is_free(self) -> bool:
        """Whether nobody waits in `run`: another coroutine would be cancelled with his, or he with that."""
        return not self._is_busy and self.is_ours

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine, in a copy of this context. Tasks that it leaves behind are cancelled."""
        task = self._loop.create_task(coroutine, context=contextvars.copy_context())
        task.add_done_callback(self._stop)
        self._is_busy = True
        try:
            while not task.done():
                self._loop.run_forever()
                self._run_lent()
            return task.result()
        finally:
            task.remove_done_callback(self._stop)  # it must not stop the loop while that waits for the rest
            self._cancel_rest()
            self._is_busy = False

    async def lend(self, function: Callable[[], T]) -> T:
        """Run a blocking function in the thread that waits in `run`. The loop stands still meanwhile, and no loop is
        running to the function, which may start one.
        """
        done = self._loop.create_future()
        self._lent.append((contextvars.copy_context(), function, done))
        self._loop.stop()
        result: T = await done
        return result

    def _stop(self, _: asyncio.Task[Any]) -> None:
        self._loop.stop()

    def _run_lent(self) -> None:
        while self._lent:
            context, function, done = self._lent.popleft()
            if done.done():
                continue
            try:
                done.set_result(context.run(function))
            except StopIteration as exc:  # which no future can hold
                done.set_exception(RuntimeError(repr(exc)))
            except Exception as exc:  # noqa: BLE001  # raised where it is waited for
                done.set_exception(exc)

    def _cancel_rest(self) -> None:
        self._lent.clear()
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
