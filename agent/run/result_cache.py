"""Result cache: what a tool said a moment ago, given again instead of running it."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sayso.agent.tools.tool import Tool
from sayso.pending.concurrency import reach

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result as its tool gave it and, if it was compressed, its summary with the mark that says so (seed: Cache
    integration). Neither is screened or cut yet: that is done each time it is shown.
    """

    raw: str
    compressed: str = ""
    mark: str = ""


class ResultCache(Protocol):
    """Keeps results for a while. Called from the event loop, by all runs at once; it may forget anything."""

    def get(self, key: str) -> CachedResult | None:
        """What was put there, unless its time is up."""

    def put(self, key: str, result: CachedResult, ttl_seconds: float) -> None:
        """Keep a result for so many seconds."""


class MemoryResultCache:
    """The results of this process: so many, of so many characters together; what was not asked for longest goes first.

    `clock` tells seconds that never go back.
    """

    def __init__(
        self,
        max_entries: int = 1000,
        max_chars: int = 10_000_000,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries: OrderedDict[str, tuple[CachedResult, float]] = OrderedDict()
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._chars = 0
        self._clock = clock
        self._lock = threading.Lock()

    def get(self, key: str) -> CachedResult | None:
        """What was put there, unless its time is up or there was no room for it."""
        with self._lock:
            result, until = self._entries.get(key, (None, 0.0))
            if result is None:
                return None
            if until <= self._clock():
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return result

    def put(self, key: str, result: CachedResult, ttl_seconds: float) -> None:
        """Keep a result for so many seconds; one that has no room by itself is not kept."""
        with self._lock:
            if key in self._entries:
                self._drop(key)
            if _chars(result) > self._max_chars:
                return
            self._entries[key] = (result, self._clock() + ttl_seconds)
            self._chars += _chars(result)
            while len(self._entries) > self._max_entries or self._chars > self._max_chars:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        result, _ = self._entries.pop(key)
        self._chars -= _chars(result)


def cache_key(tool: Tool, args: Mapping[str, Any]) -> str:
    """What names a call by its effect-free meaning: tool, version and validated arguments, as JSON.

    "" for a call whose result must not be given again: of a tool that does not say it is `cacheable`, or that is given
    arguments the model does not see, such as a ToolContext. Those often belong to one person, and the next person
    must not read that person's result.
    """
    if not tool.cacheable or tool.takes_hidden_arguments:
        return ""
    what = json.dumps([tool.name, tool.version, args], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(what.encode()).hexdigest()


async def recalled(cache: ResultCache, key: str) -> CachedResult | None:
    """What a cache has. One that fails has nothing."""
    try:
        return await reach(cache.get, key)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        log.warning("results.cache_failed", extra={"reason": type(exc).__name__})
        return None


async def remember(cache: ResultCache, key: str, result: CachedResult, ttl_seconds: float) -> None:
    """Keep a result, if the cache can."""
    try:
        await reach(cache.put, key, result, ttl_seconds)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        log.warning("results.cache_failed", extra={"reason": type(exc).__name__})


def _chars(result: CachedResult) -> int:
    return len(result.raw) + len(result.compressed)
