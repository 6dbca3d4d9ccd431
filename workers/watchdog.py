"""Watchdog: tells when the event loop is blocked, and by what line of code, while it still is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sayso.workers.loop import LoopThread
from sayso.workers.threads import stack_of

log = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_SECONDS = 0.1
#: Seconds without a sign of life after which the loop counts as blocked.
BLOCKED_SECONDS = 0.5


class Watchdog:
    """Lives as long as the loop it looks at, on a daemon thread of its own. One report per block, one when it is over.

    Only time in which it looked itself counts: in a process that was stopped, or on a laptop that slept, the loop was
    not to blame.
    """

    def __init__(
        self,
        loop: LoopThread,
        *,
        clock: Callable[[], float] = time.monotonic,
        stack: Callable[[int | None], str] = stack_of,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._stack = stack
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sayso-watchdog", daemon=True)
        self._answered = threading.Event()
        self._answered.set()
        self._looked_at = clock()
        self._waited = 0.0
        self._reported = False

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """One look: ask for a sign of life, or see for how long there was none. RuntimeError: the loop is closed."""
        now = self._clock()
        self._waited += min(now - self._looked_at, 2 * LOOK_SECONDS)
        self._looked_at = now
        if self._answered.is_set():
            self._ask_again()
        elif self._waited > BLOCKED_SECONDS and not self._reported:
            self._reported = True
            stack = self._stack(self._loop.thread)
            log.warning("loop.blocked", extra={"seconds": round(self._waited, 1), "stack": stack})

    def _ask_again(self) -> None:
        if self._reported:
            log.warning("loop.free_again", extra={"seconds": round(self._waited, 1)})
        self._waited, self._reported = 0.0, False
        self._answered.clear()
        self._loop.soon(self._answered.set)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except RuntimeError:  # the loop is closed
                return
