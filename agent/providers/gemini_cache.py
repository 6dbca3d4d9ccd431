"""ExplicitCaches: caches of system prompt and tools that are rented from Gemini while they pay.

Gemini has two kinds of caches. The implicit one is free and works by itself, but Gemini promises
nothing: a request may find its prompt there or not. An explicit one is created by a request, lives
for an hour, and costs money as long as it lives.
"""

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
#: How many beginnings of prompts are watched. One more replaces the one that missed longest ago.
MAX_PROMPTS = 100
#: The fields of a request that a cache holds. A request that refers to a cache must not have them.
CACHED_FIELDS = ("system_instruction", "tools", "tool_config")

#: Creates a cache of these fields, and returns its name.
CreateCache = Callable[[Mapping[str, Any]], Awaitable[str]]


@dataclass(slots=True)
class _Prompt:
    """The beginning of a prompt, system prompt and tools, and its explicit cache."""

    #: When requests last found it missing in the implicit cache, by the clock.
    misses: deque[float] = field(default_factory=lambda: deque(maxlen=MIN_MISSES))
    #: Gemini's name of the explicit cache, "" without one.
    cache_name: str = ""
    #: When the cache ends or, after a failure, when the next attempt may begin, by the clock.
    until: float = 0.0
    #: Whether a cache is being created.
    is_being_created: bool = False


class ExplicitCaches:
    """The explicit caches of one provider, which lives as long as its process. Thread-safe.

    Nothing here delays or fails an answer: a cache is created in the background, after an answer.
    A prompt has a key, see `prompt_key`. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Key -> prompt; the one that was missed last stands at the end.
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        #: The caches that are being created.
        self._tasks: set[asyncio.Task[None]] = set()

    def name_of(self, key: str) -> str:
        """Return the name of the cache for a prompt, "" without one."""
        with self._lock:
            prompt = self._prompts.get(key)
            if prompt is None or self._clock() >= prompt.until:
                return ""
            return prompt.cache_name

    def note_miss(self, key: str, fields: Mapping[str, Any], create: CreateCache) -> None:
        """Note that a request read nothing from the implicit cache.

        If an explicit cache of `fields` will pay, create it with `create` in the background.
        """
        if self._begins_creation(key):
            task = asyncio.get_running_loop().create_task(self._create(key, fields, create))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget_all(self) -> None:
        """Forget all caches, because Gemini no longer has one. Those that pay are created again."""
        with self._lock:
            self._prompts.clear()

    async def aclose(self) -> None:
        """Cancel the caches that the running event loop is still creating."""
        loop = asyncio.get_running_loop()
        for task in list(self._tasks):
            if task.get_loop() is loop:
                task.cancel()

    def _begins_creation(self, key: str) -> bool:
        """Note a miss. Return whether a cache is to be created now, and reserve its creation."""
        now = self._clock()
        with self._lock:
            prompt = self._prompts.setdefault(key, _Prompt())
            self._prompts.move_to_end(key)
            if len(self._prompts) > MAX_PROMPTS:
                self._prompts.popitem(last=False)

            prompt.misses.append(now)
            will_pay = len(prompt.misses) == MIN_MISSES and now - prompt.misses[0] < TTL_SECONDS
            if not will_pay or prompt.is_being_created or now < prompt.until:
                return False
            prompt.is_being_created = True
            return True

    async def _create(self, key: str, fields: Mapping[str, Any], create: CreateCache) -> None:
        """Create a cache, and note its name or that this failed."""
        cache_name = ""
        try:
            cache_name = await create(fields)
        except Exception as exc:  # such as for a prompt that is too short; requests need no cache
            log.warning("provider.explicit_cache_failed", extra={"reason": type(exc).__name__})
        finally:
            with self._lock:
                prompt = self._prompts.setdefault(key, _Prompt())
                prompt.misses.clear()  # after an hour, the next cache must pay anew
                prompt.is_being_created = False
                prompt.cache_name = cache_name
                prompt.until = self._clock() + TTL_SECONDS - MARGIN_SECONDS


def prompt_key(model: str, fields: Mapping[str, Any]) -> str:
    """Return the key of a prompt: a hash of the model and of the fields that a cache would hold."""
    text = json.dumps([model, fields], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
