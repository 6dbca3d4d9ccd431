"""SharedClock: the time of the Redis server, by which all processes and scripts agree."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.concurrency import is_in_loop

#: Seconds for which the monotonic clock carries on the time that Redis gave.
TRUSTED_SECONDS = 60.0
#: Seconds after which a Redis that did not answer is asked again.
RETRY_SECONDS = 1.0


class SharedClock:
    """The time of the Redis server in Unix seconds, for any thread. Lives as long as its process.

    While Redis does not answer, the monotonic clock carries the time on; until the first answer it
    is the machine's own clock. An event loop never waits: there a thread asks Redis, and the next
    call has the answer.

    `own` returns the time of this machine in Unix seconds, `monotonic` seconds that never go back.
    """

    def __init__(
        self,
        client: Redis,
        *,
        own: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._own = own
        self._monotonic = monotonic
        #: By how many seconds the server's time is ahead of the monotonic clock; None: unknown.
        self._ahead: float | None = None
        #: When Redis is asked next, by the monotonic clock.
        self._ask_at = float("-inf")

    def __call__(self) -> float:
        """Return the time now."""
        if self._monotonic() >= self._ask_at:
            # Set at once, so that other threads do not ask meanwhile.
            self._ask_at = self._monotonic() + RETRY_SECONDS
            if is_in_loop():
                threading.Thread(target=self._ask, name="shared-clock", daemon=True).start()
            else:
                self._ask()
        if self._ahead is None:
            return self._own()
        return self._monotonic() + self._ahead

    def _ask(self) -> None:
        with contextlib.suppress(RedisError):
            seconds, microseconds = self._client.time()
            self._ahead = seconds + microseconds / 1e6 - self._monotonic()
            self._ask_at = self._monotonic() + TRUSTED_SECONDS
