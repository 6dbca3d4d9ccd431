"""CancellationToken: cancels runs while they run, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator


class RunCancelled(Exception):
    """Raised in a run whose token was cancelled. `reason` is what `cancel` was given, or ""."""

    def __init__(self, reason: str = "") -> None:
        message = "the run was cancelled"
        if reason:
            message += f": {reason}"
        super().__init__(message)
        self.reason = reason


class CancellationToken:
    """Cancels all runs that were given it. A run that is given it afterwards does not start.

    One token may serve many runs, in many threads and event loops. It cannot be reset.
    """

    def __init__(self) -> None:
        # Reentrant, because a signal handler may cancel while its own thread holds the lock.
        self._lock = threading.RLock()
        self._cancelled = False
        self._reason = ""
        #: The event loop of each run, and the time limit by which it is interrupted.
        self._runs: set[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = set()

    @property
    def is_cancelled(self) -> bool:
        """Whether the token was cancelled."""
        return self._cancelled

    @property
    def reason(self) -> str:
        """The reason of the cancellation; "" before it, and if none was given."""
        return self._reason

    def cancel(self, reason: str = "") -> None:
        """Interrupt all runs of the token, and return at once. A second call changes nothing.

        It may be called from any thread, and from a signal handler.
        """
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            self._reason = reason
            runs = tuple(self._runs)
        for loop, limit in runs:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(_end_now, loop, limit)

    def check(self) -> None:
        """Raise RunCancelled if the token is cancelled.

        Code that computes for long between two awaits calls it.
        """
        if self._cancelled:
            raise RunCancelled(self._reason)

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Raise RunCancelled in this block when the token is cancelled, or if it already was.

        A cancellation of the task itself stays a CancelledError, also if both happen. Do not use it
        around the `yield` of an async generator, because it would interrupt what the consumer
        awaits.
        """
        # This time limit has no end until `cancel` sets it to now. asyncio then interrupts whatever
        # the block awaits, and can tell that from a cancellation of the task.
        limit = asyncio.timeout(None)
        run = (asyncio.get_running_loop(), limit)
        with self._lock:
            self._runs.add(run)
        try:
            # After the registration, since `cancel` interrupts only the runs that are registered.
            self.check()
            async with limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise RunCancelled(self._reason) from exc
        finally:
            with self._lock:
                self._runs.discard(run)


def _end_now(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """Interrupt a run by ending its time limit. Call it on the run's own event loop."""
    with contextlib.suppress(RuntimeError):  # the run has ended, or is ending
        limit.reschedule(loop.time())
