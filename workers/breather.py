"""Breather: a server that holds its callers up is left alone, but for one of them a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

V = TypeVar("V")

#: Seconds for which a server is not asked again after it did not answer.
BREATHER = 1.0


class NotAsked(RedisTimeoutError):
    """Raised at once where a server did not answer a moment ago: it was not asked again."""


class Breather:
    """What callers ask a server through; lives as long as the way there.

    A failure that took `slow_seconds` or longer closes it; a quick one holds nobody up, and so a server that came back
    is noticed at once. Any answer opens it, also a refusal.
    """

    def __init__(self, *, slow_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._slow_seconds = slow_seconds
        self._clock = clock
        self._closed_until: float | None = None
        self._lock = threading.Lock()

    def ask(self, question: Callable[[], V]) -> V:
        """What the question comes to. Raises NotAsked, and what the question raises."""
        began = self._enter()
        try:
            answer = question()
        except ResponseError:
            self._closed_until = None
            raise
        except RedisError:
            now = self._clock()
            self._closed_until = now + BREATHER if now - began >= self._slow_seconds else None
            raise
        self._closed_until = None
        return answer

    def _enter(self) -> float:
        """Let somebody ask; where it is closed, one of all. Returns when he began."""
        with self._lock:
            now = self._clock()
            if self._closed_until is not None:
                if now < self._closed_until:
                    raise NotAsked("it did not answer a moment ago")
                self._closed_until = now + BREATHER
            return now
