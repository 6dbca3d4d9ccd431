"""OwnLoop: the event loop on which a thread's sync calls run, kept from call to call.

Making one for each call costs more than most calls, and connections that a call leaves behind would die with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
