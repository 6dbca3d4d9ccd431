"""LoopThread: the one event loop of a worker process, on a thread of its own, so that connections outlive a job.

It is uvloop's: a turn takes less of the processor than on Python's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

#: Seconds that what still runs at the end has to clean up; after them the thread is left to the end of its process.
CLOSE_SECONDS = 3.0


class LoopThread:
    """Lives as long as its process. RQ keeps the main thread, for its signals and time limits."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, name: str = "sayso-loop") -> None:
        self._loop = loop or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait. Whatever interrupts the wait cancels the coroutine too."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def thread(self) -> int | None:
        """The id of its thread."""
        return self._thread.ident

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this on the loop. RuntimeError: it is closed."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the loop and its thread. What still runs on it is cancelled."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self.submit(_cancel_all()).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and do not wait; cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_SECONDS)
