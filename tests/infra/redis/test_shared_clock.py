"""The shared clock: Redis's time, continued locally while Redis is not asked or does not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.infra.redis.shared_clock import RETRY_SECONDS, TRUSTED_SECONDS, SharedClock


class Server:
    """A Redis that returns its time or fails, and counts the calls."""

    def __init__(self) -> None:
        self.now: float | None = 1000.5
        self.asked = 0

    def time(self) -> tuple[int, int]:
        self.asked += 1
        if self.now is None:
            raise RedisConnectionError
        return int(self.now), round(self.now % 1 * 1e6)


class Watch:
    """A monotonic clock that stands still until it is moved."""

    now = 7.0

    def __call__(self) -> float:
        return self.now


def shared(server: Any, watch: Watch) -> SharedClock:
    """Return the shared clock on a machine whose own clock is an hour ahead."""
    return SharedClock(server, own=lambda: 4600.0, monotonic=watch)


def test_time_comes_from_redis_once_a_minute() -> None:
    """The monotonic clock continues it; the machine's own time is not used."""
    server, watch = Server(), Watch()
    clock = shared(server, watch)
    assert clock() == 1000.5
    watch.now += TRUSTED_SECONDS - 1
    assert (clock(), server.asked) == (1000.5 + TRUSTED_SECONDS - 1, 1)
    server.now, watch.now = 2000.0, watch.now + 1
    assert (clock(), server.asked) == (2000.0, 2)


def test_time_goes_on_during_an_outage() -> None:
    """The last time of Redis is better than the machine's. Redis is asked again soon."""
    server, watch = Server(), Watch()
    clock = shared(server, watch)
    clock()
    server.now, watch.now = None, watch.now + TRUSTED_SECONDS
    assert clock() == clock() == 1000.5 + TRUSTED_SECONDS
    assert server.asked == 2
    server.now, watch.now = 3000.0, watch.now + RETRY_SECONDS
    assert clock() == 3000.0


def test_own_clock_counts_until_redis_has_answered() -> None:
    """A web that starts without Redis still serves the console's files."""
    server = Server()
    server.now = None
    assert shared(server, Watch())() == 4600.0


def test_event_loop_does_not_wait_for_redis() -> None:
    """Redis may be silent for seconds, and all turns would stand still."""
    server, watch = Server(), Watch()
    clock = shared(server, watch)
    clock()
    answers, asked = threading.Event(), threading.Event()
    server.time = lambda: (answers.wait(30), asked.set(), (2000, 0))[2]
    watch.now += TRUSTED_SECONDS

    async def story() -> float:
        return clock()

    assert asyncio.run(story()) == 1000.5 + TRUSTED_SECONDS
    answers.set()
    assert asked.wait(30)
