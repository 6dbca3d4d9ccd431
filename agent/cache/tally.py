"""Tally: how a cache was used, counted by many threads."""

from __future__ import annotations

import threading
from dataclasses import replace

from sayso.agent.cache.base import CacheStats


class Tally:
    """Lives as long as its cache."""

    def __init__(self) -> None:
        self.stats = CacheStats()
        self._lock = threading.Lock()

    def asked(self, *, hit: bool) -> None:
        """A request, and whether there was something."""
        with self._lock:
            one = {"hits": self.stats.hits + 1} if hit else {"misses": self.stats.misses + 1}
            self.stats = replace(self.stats, **one)

    def evicted(self) -> None:
        """One entry less, to make room."""
        with self._lock:
            self.stats = replace(self.stats, evictions=self.stats.evictions + 1)

    def reset(self) -> None:
        """From the beginning."""
        with self._lock:
            self.stats = CacheStats()
