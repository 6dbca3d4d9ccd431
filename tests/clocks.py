"""StoppedClock: an event loop on which time limits end when a test says so, not because the machine is slow."""

from __future__ import annotations

import asyncio
import math
import time


class StoppedClock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until `pass_time` or `start`. Pass it to asyncio.Runner as loop_factory."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._began: float | None = None
        self._most = math.inf
        super().__init__()

    def time(self) -> float:
        """Return the seconds that have passed for this loop."""
        if self._began is None:
            return self._passed
        return self._passed + min(time.monotonic() - self._began, self._most)

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._passed += seconds

    def start(self, most: float = math.inf) -> None:
        """Let the time pass by itself from the first call on, for `most` seconds. Any thread may call it."""
        if self._began is None:
            self._began, self._most = time.monotonic(), most
