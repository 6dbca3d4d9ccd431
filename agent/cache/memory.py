"""InMemoryCache: answers in this process, so many and so long; what was not asked for longest goes first."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from sayso.agent.cache.base import CacheStats, Entry
from sayso.agent.cache.entries import read, written
from sayso.agent.cache.tally import Tally


class InMemoryCache:
    """At most `max_size` answers of `max_chars` characters together, each for `default_ttl` seconds.

    What is got is the caller's own. `clock` tells seconds that never go back.
    """

    def __init__(
        self,
        max_size: int = 1000,
        default_ttl: float = 300,
        *,
        max_chars: int = 10_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for limits that let it keep nothing."""
        for name, limit in (("max_size", max_size), ("default_ttl", default_ttl), ("max_chars", max_chars)):
            if limit <= 0:
                raise ValueError(f"{name} is {limit!r}: give a number above 0, or no cache at all")
        self._max_size, self._max_chars = max_size, max_chars
        self._default_ttl = default_ttl
        self._clock = clock
        self._entries: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._chars = 0
        self._tally = Tally()
        self._lock = threading.Lock()

    @property
    def stats(self) -> CacheStats:
        """How it was used so far."""
        return self._tally.stats

    def get(self, key: str) -> Entry | None:
        """What was put there, unless its time is up or there was no room for it."""
        text = self._text(key)
        self._tally.asked(hit=text is not None)
        return None if text is None else read(text)

    def set(self, key: str, value: Entry, ttl: float | None = None) -> None:
        """Keep it; one that has no room by itself is not kept. Raises TypeError or ValueError for what is not JSON."""
        seconds, text = self._default_ttl if ttl is None else ttl, written(value)
        with self._lock:
            self._drop(key)
            if seconds <= 0 or len(text) > self._max_chars:
                return
            self._entries[key] = (text, self._clock() + seconds)
            self._chars += len(text)
            while len(self._entries) > self._max_size or self._chars > self._max_chars:
                self._drop(next(iter(self._entries)))
                self._tally.evicted()

    def delete(self, key: str) -> bool:
        """Forget it; whether there was anything."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        """Forget everything, and count anew."""
        with self._lock:
            self._entries.clear()
            self._chars = 0
        self._tally.reset()

    def _text(self, key: str) -> str | None:
        with self._lock:
            text, until = self._entries.get(key, (None, 0.0))
            if text is None or until <= self._clock():
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return text

    def _drop(self, key: str) -> bool:
        """Whether there was anything whose time was not up."""
        text, until = self._entries.pop(key, ("", 0.0))
        self._chars -= len(text)
        return bool(text) and until > self._clock()
