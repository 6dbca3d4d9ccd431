"""ExplicitCaches: caches of system prompt and tools that are rented from Gemini while they pay."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

#: How long Gemini keeps a cache, in seconds.
TTL_SECONDS = 3600
#: How long before its end a cache is no longer used, in seconds.
MARGIN_SECONDS = 60
#: How many requests of an hour must have read nothing from Gemini's implicit cache, for an explicit
#: one to pay. If reading the tokens without a cache costs 1, an hour of storage costs 3.3 to 3.6,
#: the creation 1, and each request that reads the cache saves 0.9.
MIN_MISSES = 6
#: How many beginnings of prompts are watched. Those that were not seen for longest are forgotten.
MAX_PROMPTS = 100
#: The fields of a request that a cache holds. A request with a cache must not have them.
CACHED_FIELDS = ("system_instruction", "tools", "tool_config")

#: Creates a cache of these fields, and returns its name.
CreateCache = Callable[[Mapping[str, Any]], Awaitable[str]]


@dataclass(slots=True)
class _Prompt:
    """The beginning of a prompt: when it missed the implicit cache, and its explicit cache, if any."""

    misses: deque[float] = field(default_factory=lambda: deque(maxlen=MIN_MISSES))
    name: str = ""
    #: When `name` ends or, after a failure, when the next attempt may begin. By the clock.
    until: float = 0.0
    is_being_created: bool = False


class ExplicitCaches:
    """The explicit caches of one process. Thread-safe; `clock` returns monotonic seconds.

    Nothing here delays or fails an answer: a cache is created in the background, after an answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def name_of(self, key: str) -> str:
        """Return the name of the cache for a prompt, "" without one."""
        with self._lock:
            prompt = self._prompts.get(key)
            if prompt is None or self._clock() >= prompt.until:
                return ""
            return prompt.name

    def note_miss(self, key: str, fields: Mapping[str, Any], create: CreateCache) -> None:
        """Note that a request read nothing from the implicit cache.

        Create a cache if it will pay.
        """
        if self._must_create(key):
            task = asyncio.get_running_loop().create_task(self._create(key, fields, create))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget_all(self) -> None:
        """Forget all caches, because Gemini no longer has one. Those that pay are created again."""
        with self._lock:
            self._prompts.clear()

    async def aclose(self) -> None:
        """Cancel what the running event loop still creates."""
        loop = asyncio.get_running_loop()
        for task in list(self._tasks):
            if task.get_loop() is loop:
                task.cancel()

    def _must_create(self, key: str) -> bool:
        now = self._clock()
        with self._lock:
            prompt = self._prompts.setdefault(key, _Prompt())
            self._prompts.move_to_end(key)
            if len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)
            prompt.misses.append(now)
            is_due = len(prompt.misses) == MIN_MISSES and now - prompt.misses[0] < TTL_SECONDS
            if not is_due or prompt.is_being_created or now < prompt.until:
                return False
            prompt.is_being_created = True
            return True

    async def _create(self, key: str, fields: Mapping[str, Any], create: CreateCache) -> None:
        name = ""
        try:
            name = await create(fields)
        except Exception as exc:  # such as for a prompt that is too short; requests need no cache
            log.warning("provider.explicit_cache_failed", extra={"reason": type(exc).__name__})
        finally:
            with self._lock:
                prompt = self._prompts.setdefault(key, _Prompt())
                prompt.misses.clear()  # after its hour the cache must pay anew
                prompt.is_being_created = False
                prompt.name = name
                prompt.until = self._clock() + TTL_SECONDS - MARGIN_SECONDS


def prompt_key(model: str, fields: Mapping[str, Any]) -> str:
    """Return what is the same for all requests of a model with the same system prompt and tools."""
    text = json.dumps([model, fields], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
