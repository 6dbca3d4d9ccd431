"""CancellationToken: stops runs that are under way, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator


class RunCancelled(Exception):
    """Raised in a run whose token was cancelled. `reason` is what the canceller said, "" for nothing."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(f"the run was cancelled: {reason}" if reason else "the run was cancelled")
        self.reason = reason


class CancellationToken:
    """Cancelled once and for good: every run that has it now ends, and every run that gets it later never begins.

    One token may serve many runs, in many threads and event loops.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may cancel while its own thread is in here.
        self._lock = threading.RLock()
        self._cancelled = False
        self._reason = ""
        self._runs: set[_Interruption] = set()

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled it."""
        return self._cancelled

    @property
    def reason(self) -> str:
        """What the first canceller said."""
        return self._reason

    def cancel(self, reason: str = "") -> None:
        """Interrupt what its runs wait for. Returns at once; from any thread, also a signal handler's. Cancelling again
        changes nothing.
        """
        with self._lock:
            if self._cancelled:
                return
            self._cancelled, self._reason = True, reason
            runs = tuple(self._runs)
        for run in runs:
            run.soon()

    def check(self) -> None:
        """Raise RunCancelled if it is cancelled: for code that computes for long between two awaits."""
        if self._cancelled:
            raise RunCancelled(self._reason)

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """What is awaited inside is interrupted by `cancel`, and RunCancelled is raised; at once if that was before.

        A cancellation of the task itself stays a CancelledError, also where both happen. Not to be held over the
        `yield` of an async generator: what its consumer awaits there would be interrupted instead.
        """
        self.check()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                with self._watching(limit):
                    yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise RunCancelled(self._reason) from exc

    @contextlib.contextmanager
    def _watching(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Between the two looks at the token somebody may have cancelled it: the second is under its lock."""
        run = _Interruption(asyncio.get_running_loop(), limit)
        with self._lock:
            self._runs.add(run)
            cancelled = self._cancelled
        try:
            if cancelled:
                run.now()
            yield
        finally:
            with self._lock:
                self._runs.discard(run)


class _Interruption:
    """How one run is interrupted: its time, so far unlimited, is up. One that has ended meanwhile hears nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        self._loop = loop
        self._limit = limit

    def soon(self) -> None:
        """From another thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.now)

    def now(self) -> None:
        """From its own loop."""
        with contextlib.suppress(RuntimeError):  # it has ended, or is ending
            self._limit.reschedule(self._loop.time())
