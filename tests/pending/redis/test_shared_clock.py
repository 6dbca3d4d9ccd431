"""The clock that processes share: Redis's, carried on while it is not asked or does not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.pending.redis.client import AGAIN_SECONDS, TRUSTED_SECONDS, SharedClock


class Server:
    """A Redis that says what time it is, or nothing; and counts who asks."""

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
    """On a machine whose own clock is an hour ahead."""
    return SharedClock(server, own=lambda: 4600.0, monotonic=watch)


def test_redis_says_what_time_it_is_and_is_asked_once_a_minute() -> None:
    """Between two questions the monotonic clock goes on; the machine's own clock counts for nothing."""
    server, watch = Server(), Watch()
    clock = shared(server, watch)
    assert clock() == 1000.5
    watch.now += TRUSTED_SECONDS - 1
    assert (clock(), server.asked) == (1000.5 + TRUSTED_SECONDS - 1, 1)
    server.now, watch.now = 2000.0, watch.now + 1
    assert (clock(), server.asked) == (2000.0, 2)


def test_a_redis_that_is_away_is_carried_on_and_asked_again_soon() -> None:
    """What it said last is better than what the machine says."""
    server, watch = Server(), Watch()
    clock = shared(server, watch)
    clock()
    server.now, watch.now = None, watch.now + TRUSTED_SECONDS
    assert clock() == clock() == 1000.5 + TRUSTED_SECONDS
    assert server.asked == 2
    server.now, watch.now = 3000.0, watch.now + AGAIN_SECONDS
    assert clock() == 3000.0


def test_until_redis_has_answered_the_own_clock_is_all_there_is() -> None:
    """A web that starts without Redis still shows the files of a console."""
    server = Server()
    server.now = None
    assert shared(server, Watch())() == 4600.0


def test_an_event_loop_does_not_wait_for_it() -> None:
    """Redis may be silent for seconds, and everybody's turns would stand still."""
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
