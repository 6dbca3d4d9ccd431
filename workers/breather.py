"""Breather: of those who call a server that holds its callers up, one at a time finds out whether it still does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf
from typing import TypeVar

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

V = TypeVar("V")


class NotAsked(RedisTimeoutError):
    """Raised at once where a server did not answer: somebody else finds out whether it does again."""


class Breather:
    """What callers ask a server through; lives as long as the way there.

    A failure that took `slow_seconds` or longer closes it; a quick one holds nobody up, and so a server that came back
    is noticed at once. Where it is closed one caller at a time asks, `pause_seconds` after the last. Any answer opens
    it, also a refusal.
    """

    def __init__(
        self, *, slow_seconds: float = 0.0, pause_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slow_seconds, self._pause_seconds = slow_seconds, pause_seconds
        self._clock = clock
        #: None: it is open. While somebody finds out, nobody knows how long it stays closed.
        self._closed_until: float | None = None
        self._lock = threading.Lock()

    def ask(self, question: Callable[[], V]) -> V:
        """What the question comes to. Raises NotAsked, and what the question raises."""
        began = self._enter()
        closed_until: float | None = began  # whatever ends it without an answer: the next one finds out
        try:
            answer = question()
        except ResponseError:
            closed_until = None
            raise
        except RedisError:
            now = self._clock()
            closed_until = now + self._pause_seconds if now - began >= self._slow_seconds else None
            raise
        else:
            closed_until = None
            return answer
        finally:
            self._closed_until = closed_until

    def _enter(self) -> float:
        """Let somebody ask; where it is closed, one of all. Returns when he began."""
        with self._lock:
            now = self._clock()
            if self._closed_until is not None:
                if now < self._closed_until:
                    raise NotAsked("it did not answer a moment ago")
                self._closed_until = inf
            return now
