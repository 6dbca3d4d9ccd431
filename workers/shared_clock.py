"""SharedClock: Redis's time, for moments that one process writes down and another compares with its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from redis import Redis
from redis.exceptions import RedisError

#: Seconds for which what Redis said is carried on by the monotonic clock, and after which one is asked again that did
#: not answer.
TRUSTED_SECONDS, AGAIN_SECONDS = 60.0, 1.0


class SharedClock:
    """Lives as long as its process; called from any thread, it returns seconds since 1970.

    While Redis does not answer it is carried on; until Redis has answered once, it is the machine's own clock. An event
    loop never waits for it: what it is asked there, a thread asks Redis, for the next time.
    """

    def __init__(
        self, client: Redis, *, own: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._own, self._monotonic = client, own, monotonic
        self._ahead: float | None = None
        self._ask_at = float("-inf")

    def __call__(self) -> float:
        """Now, by Redis's clock."""
        if self._monotonic() >= self._ask_at:
            self._ask_at = self._monotonic() + AGAIN_SECONDS
            if _on_a_loop():
                threading.Thread(target=self._ask, name="shared-clock", daemon=True).start()
            else:
                self._ask()
        return self._own() if self._ahead is None else self._monotonic() + self._ahead

    def _ask(self) -> None:
        with contextlib.suppress(RedisError):
            seconds, microseconds = self._client.time()
            self._ahead = seconds + microseconds / 1e6 - self._monotonic()
            self._ask_at = self._monotonic() + TRUSTED_SECONDS


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
