"""Notebook: vendor-side ids shared by all processes, safe to lose."""

from __future__ import annotations

import time
from collections.abc import Callable

from redis import Redis

from sayso.workers.redis import PREFIX

#: Seconds a note is kept: 90 days. What is looked up again is made again.
KEEP_SECONDS = 90 * 24 * 3600


class RedisNotebook:
    """Notes in Redis, one key each, with a time to live."""

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = f"{prefix}note:"

    def get(self, key: str) -> str | None:
        """The value noted under `key`, or None."""
        value = self._client.get(self._prefix + key)
        return None if value is None else str(value)

    def put(self, key: str, value: str, *, seconds: int = KEEP_SECONDS) -> None:
        """Note a value for all processes, for so long."""
        self._client.set(self._prefix + key, value, ex=seconds)


class MemoryNotebook:
    """Notes in this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: dict[str, tuple[str, float]] = {}

    def get(self, key: str) -> str | None:
        """The value noted under `key`, or None."""
        value, until = self._notes.get(key, ("", 0.0))
        return value if self._clock() < until else None

    def put(self, key: str, value: str, *, seconds: int = KEEP_SECONDS) -> None:
        """Note a value, for so long."""
        self._notes[key] = (value, self._clock() + seconds)
