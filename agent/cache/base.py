"""Cache: keeps a model's answers for a while, and may forget any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

#: What is kept: a pair; for an agent, a model's Message and its UsageStats.
Entry = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often a cache was asked, and what it came to, since it was made or cleared. An eviction made room."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def total_requests(self) -> int:
        """Hits and misses."""
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """The share of hits, from 0 to 1; 0 before the first request."""
        return self.hits / self.total_requests if self.total_requests else 0.0

    def __str__(self) -> str:
        counts = f"hits={self.hits}, misses={self.misses}, evictions={self.evictions}"
        return f"CacheStats({counts}, hit_rate={self.hit_rate:.2%})"


@runtime_checkable
class Cache(Protocol):
    """Called from the event loop, by all runs and threads at once."""

    def get(self, key: str) -> Entry | None:
        """What was put there, unless its time is up."""

    def set(self, key: str, value: Entry, ttl: float | None = None) -> None:
        """Keep it for so many seconds, None for the cache's own number. For none or fewer, nothing is kept."""

    def delete(self, key: str) -> bool:
        """Forget it; whether there was anything."""
        ...

    def clear(self) -> None:
        """Forget everything, and count anew."""

    @property
    def stats(self) -> CacheStats:
        """How it was used so far, by this process."""
        ...
