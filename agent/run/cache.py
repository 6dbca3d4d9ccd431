"""Cache of model answers: its keys, and implementations in memory and in Redis.

`ModelCaller` looks a request up (`cached_answer`) before it asks the model, and stores the answer
(`store_answer`) afterwards. An entry is a pair: the model's Message and its UsageStats.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from sayso.agent.config import Cache, CacheEntry, CacheStats
from sayso.agent.messages import Message, Picture, Role, UsageStats, countable, has_valid_types
from sayso.agent.providers.base import is_cut_off
from sayso.agent.run.json_in_text import refuse_constant
from sayso.agent.run.structured import ResponseFormat, schema_from_response_format
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import shows_nothing
from sayso.infra.concurrency import call_in_thread
from sayso.infra.ids import random_id

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The prefix of every key.
KEY_PREFIX = "sayso:"
#: The version of the way in which keys are built. A new one makes all stored entries unused.
_VERSION = 1

#: How long a run waits for a Redis cache, in seconds. A model would have started to answer by then.
ANSWER_SECONDS = 0.5
#: How long a Redis that did not answer in time is not asked again, in seconds.
PAUSE_SECONDS = 5.0
#: How many keys `RedisCache.clear` reads and deletes in one command.
BATCH = 500


class CacheKeyBuilder:
    """Builds a key from everything that an answer depends on."""

    @staticmethod
    def build(
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Iterable[Tool | Mapping[str, Any]] | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = None,
        response_format: ResponseFormat | None = None,
        provider: str = "",
    ) -> str:
        """Return `sayso:` and 64 hex digits: the same for equal requests in all processes.

        * The order of messages and tools matters, and so does the order of properties in a schema,
          because models follow it.
        * The ids of calls do not matter, because vendors invent new ones each time; which result
          answers which call does.
        * A file counts by its reference, a tool by its plain schema.

        Raises TypeError for a value that JSON cannot represent, and the errors of
        `schema_from_response_format`.
        """
        shown_tools = []
        for each in tools or ():
            tool_schema = each.schema() if isinstance(each, Tool) else each
            shown_tools.append(_in_order(tool_schema))
        answer_schema = None
        if response_format is not None:
            answer_schema = _in_order(schema_from_response_format(response_format))
        if temperature is not None:
            temperature = float(temperature)  # 0 and 0.0 are the same request

        request = {
            "version": _VERSION,
            "provider": provider,
            "model": model,
            "system_prompt": system_prompt,
            "messages": _with_numbered_calls(messages),
            "tools": shown_tools,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "response_format": answer_schema,
        }
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        return KEY_PREFIX + hashlib.sha256(text.encode()).hexdigest()


def _in_order(schema: Mapping[str, Any]) -> str:
    """Return the schema as text, which keeps the order of its properties."""
    return json.dumps(schema, separators=(",", ":"))


def _with_numbered_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as JSON-ready data, with each id of a call replaced by a number.

    The numbers count the ids in the order in which they appear.
    """
    numbers: dict[str, int] = {"": 0}
    entries = []
    for message in messages:
        entry = message.to_dict()
        entry.pop("reasoning", None)  # its signatures are new each time
        entry.pop("actions", None)  # models do not read them, and their ids are new each time
        if message.pictures:
            entry["pictures"] = list(map(_name_of_picture, message.pictures))
        for call in entry.get("tool_calls", ()):
            call["id"] = numbers.setdefault(call["id"], len(numbers))
        if "tool_call_id" in entry:
            entry["tool_call_id"] = numbers.setdefault(entry["tool_call_id"], len(numbers))
        entries.append(entry)
    return entries


def _name_of_picture(picture: Picture) -> str:
    """Return the reference of a stored picture, or the digest of one that is not stored."""
    if picture.media:
        return picture.media.ref
    return hashlib.sha256(picture.data).hexdigest()


async def cached_answer(
    cache: Cache, key: str, *, transcript: Iterable[Message] = ()
) -> CacheEntry | None:
    """Return the answer of a key; None if there is none, it is invalid, or the cache fails.

    Ids of calls that the transcript already has are replaced by new ones.
    """
    try:
        entry: Any = await call_in_thread(cache.get, key)
        match entry:
            case None:
                return None
            case (
                Message(role=Role.ASSISTANT, content=str()) as message,
                UsageStats() as usage,
            ) if is_complete(entry):
                return _with_new_ids(message, transcript), countable(usage)
        raise TypeError(f"a cache gave {type(entry).__name__!r} for an answer")
    except Exception as exc:  # a failing cache must never prevent an answer
        _warn(exc)
        return None


def _with_new_ids(message: Message, transcript: Iterable[Message]) -> Message:
    """Return the answer with a new id for each call whose id the transcript already has."""
    taken_ids: set[str] = set()
    for each in transcript:
        taken_ids.update(call.id for call in each.tool_calls if call.id)

    calls = []
    for call in message.tool_calls:
        new_id = call.id
        if new_id in taken_ids:
            new_id = f"call_{random_id()}"
        calls.append(replace(call, id=new_id))
    return replace(message, tool_calls=tuple(calls))


async def store_answer(
    cache: Cache, key: str, value: CacheEntry, *, max_tokens: int | None = None
) -> None:
    """Store an answer for the cache's default time. Log a failure.

    Empty answers, and those cut off at `max_tokens`, are not stored.
    """
    if not is_complete(value, max_tokens):
        return
    try:
        await call_in_thread(cache.set, key, value)
    except Exception as exc:  # a failing cache must never prevent an answer
        _warn(exc)


async def delete_answer(cache: Cache, key: str) -> None:
    """Delete an answer that proved unusable, such as one of the wrong form. Log a failure."""
    try:
        await call_in_thread(cache.delete, key)
    except Exception as exc:  # a failing cache must never prevent an answer
        _warn(exc)


def is_complete(value: CacheEntry, max_tokens: int | None = None) -> bool:
    """Return whether an answer has text or calls, and was not cut off at `max_tokens`.

    Any other answer is not worth keeping: the next attempt may be better. None: no limit is known.
    """
    message, usage = value
    has_content = bool(message.tool_calls) or not shows_nothing(message.content)
    return has_content and (max_tokens is None or not is_cut_off(message, usage, max_tokens))


def _warn(error: Exception) -> None:
    log.warning("cache.failed", extra={"reason": type(error).__name__})


class _Stored(NamedTuple, Generic[T]):
    """A value in an ExpiringLru."""

    value: T
    #: How many characters it has.
    chars: int
    #: When it expires, by the clock of the ExpiringLru.
    expires_at: float


class ExpiringLru(Generic[T]):
    """Values by key, each stored for some seconds. Thread-safe.

    It has at most `max_entries` values with at most `max_chars` characters together. To make room,
    the least recently used ones are evicted. `clock` returns monotonic seconds.
    """

    def __init__(self, max_entries: int, max_chars: int, clock: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._clock = clock
        #: The least recently used key comes first.
        self._entries: OrderedDict[str, _Stored[T]] = OrderedDict()
        #: The characters of all values.
        self._chars = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> T | None:
        """Return a value, or None if there is none or it has expired."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.expires_at <= self._clock():
                self._remove(key)
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: str, value: T, chars: int, seconds: float) -> int:
        """Store a value of `chars` characters for some seconds, unless it is larger than the cache.

        Return how many others were evicted.
        """
        with self._lock:
            self._remove(key)
            if seconds <= 0 or chars > self._max_chars:
                return 0
            self._entries[key] = _Stored(value, chars, expires_at=self._clock() + seconds)
            self._chars += chars

            evicted = 0
            while len(self._entries) > self._max_entries or self._chars > self._max_chars:
                least_recently_used = next(iter(self._entries))
                self._remove(least_recently_used)
                evicted += 1
            return evicted

    def remove(self, key: str) -> bool:
        """Remove a value. Return whether there was one that had not expired."""
        with self._lock:
            return self._remove(key)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._entries.clear()
            self._chars = 0

    def _remove(self, key: str) -> bool:
        """Remove a value, with the lock held. Return whether there was one that had not expired."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._chars -= entry.chars
        return entry.expires_at > self._clock()


class InMemoryCache:
    """Cache in the memory of one process. Evicts the least recently used answers.

    It stores at most `max_size` answers with at most `max_chars` characters together, each for
    `default_ttl` seconds. `get` returns a copy. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        max_size: int = 1000,
        default_ttl: float = 300,
        *,
        max_chars: int = 10_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for a limit of 0 or less."""
        limits = {"max_size": max_size, "default_ttl": default_ttl, "max_chars": max_chars}
        for name, limit in limits.items():
            if limit <= 0:
                raise ValueError(f"{name} is {limit!r}: give a number above 0, or no cache at all")
        self._default_ttl = default_ttl
        self._texts = ExpiringLru[str](max_size, max_chars, clock)
        self._counter = _CacheCounter()

    @property
    def stats(self) -> CacheStats:
        """How the cache was used since it was created or cleared."""
        return self._counter.stats

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of a key, or None if there is none or it has expired."""
        text = self._texts.get(key)
        is_hit = text is not None
        self._counter.count(hits=int(is_hit), misses=int(not is_hit))
        if text is None:
            return None
        return from_json(text)

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
        """Store an entry, unless it is larger than the cache.

        Raises TypeError or ValueError if it cannot be written as JSON.
        """
        text = to_json(value)
        seconds = self._default_ttl if ttl is None else ttl
        self._counter.count(evictions=self._texts.put(key, text, len(text), seconds))

    def delete(self, key: str) -> bool:
        """Delete an entry. Return whether it existed."""
        return self._texts.remove(key)

    def clear(self) -> None:
        """Delete all entries, and reset the counts."""
        self._texts.clear()
        self._counter.reset()


class RedisCache:
    """Cache in Redis. Keys begin with `prefix` and expire after `default_ttl` seconds.

    Redis itself evicts entries when it is full. While Redis is unreachable the cache is empty: a
    run loses at most ANSWER_SECONDS, and one warning is logged. `client` is a client of redis-py;
    None: one is made for `url`.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        prefix: str = "sayso:cache:",
        default_ttl: float = 300,
        *,
        client: Redis | None = None,
    ) -> None:
        """Raises ValueError for an empty prefix, and for a time to live of 0 or less."""
        if not prefix:
            raise ValueError(
                "prefix is '': give one that only this cache has, "
                "because clear() removes all it begins"
            )
        if default_ttl <= 0:
            raise ValueError(f"default_ttl is {default_ttl!r}: give a number of seconds above 0")
        from sayso.infra.redis.connections import Connections

        if client is None:
            client = _connect(url)
        self._client = client
        self._connections = Connections.of(self._client)
        self._prefix = prefix
        self._default_ttl = default_ttl
        self._counter = _CacheCounter()
        #: Whether the last command found Redis unreachable.
        self._is_away = False

    @property
    def stats(self) -> CacheStats:
        """How this process has used the cache."""
        return self._counter.stats

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of a key, or None if there is none or it cannot be read."""
        text = self._or_default(lambda: self._connections.ask("GET", self._prefix + key), None)
        entry = None
        if text is not None:
            entry = from_json(text)
        self._counter.count(hits=int(entry is not None), misses=int(entry is None))
        return entry

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
        """Store an entry if Redis can be reached.

        Raises TypeError or ValueError if it cannot be written as JSON.
        """
        seconds = self._default_ttl if ttl is None else ttl
        text = to_json(value)
        if seconds <= 0:
            self.delete(key)
            return
        milliseconds = max(1, round(seconds * 1000))
        self._or_default(
            lambda: self._connections.ask("SET", self._prefix + key, text, "PX", milliseconds), None
        )

    def delete(self, key: str) -> bool:
        """Delete an entry for all processes. Return whether it existed."""
        return self._or_default(
            lambda: bool(self._connections.ask("DEL", self._prefix + key)), False
        )

    def clear(self) -> None:
        """Delete all keys with the prefix, in batches, and reset the counts."""
        # Characters of the prefix that mean something in a pattern of Redis get a backslash.
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix) + "*"

        def delete_all() -> None:
            keys = self._client.scan_iter(pattern, count=BATCH)
            batch = list(islice(keys, BATCH))
            while batch:
                self._client.unlink(*batch)
                batch = list(islice(keys, BATCH))

        self._or_default(delete_all, None)
        self._counter.reset()

    def _or_default(self, call: Callable[[], T], default: T) -> T:
        """Return the result of a call to Redis, or the default if Redis cannot be reached."""
        from redis.exceptions import RedisError

        try:
            answer = call()
        except (RedisError, OSError) as exc:
            # Only the type: the text may contain the address, and with it a password.
            if not self._is_away:
                log.warning("cache.redis_away", extra={"reason": type(exc).__name__})
            self._is_away = True
            return default
        if self._is_away:
            log.info("cache.redis_back")
        self._is_away = False
        return answer


def _connect(url: str) -> Redis:
    """Return a client that waits at most ANSWER_SECONDS for an answer.

    After a slow failure, Redis is not asked for PAUSE_SECONDS.
    """
    from sayso.infra.redis.client import connect, set_web_timeouts
    from sayso.infra.redis.connections import Connections

    client = connect(url)
    set_web_timeouts(client, answer_seconds=ANSWER_SECONDS)
    Connections.of(client).break_circuit(
        slow_seconds=ANSWER_SECONDS / 2, pause_seconds=PAUSE_SECONDS
    )
    return client


class _CacheCounter:
    """Counts the requests and evictions of one cache."""

    def __init__(self) -> None:
        self.stats = CacheStats()
        self._lock = threading.Lock()

    def count(self, *, hits: int = 0, misses: int = 0, evictions: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            stats = self.stats
            self.stats = CacheStats(
                stats.hits + hits, stats.misses + misses, stats.evictions + evictions
            )

    def reset(self) -> None:
        with self._lock:
            self.stats = CacheStats()


def to_json(value: CacheEntry) -> str:
    """Return the entry as JSON.

    Raises TypeError or ValueError for a value that JSON would change.
    """
    match value:
        case (Message(role=Role.ASSISTANT) as message, UsageStats() as usage):
            data: dict[str, Any] = {"message": message.to_dict(), "usage": usage.to_dict()}
        case tuple():
            data = {"values": [_part_to_dict(each) for each in value]}
        case _:
            raise TypeError(
                f"a cache keeps tuples, not {type(value).__name__!r}: give (message, usage)"
            )
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> CacheEntry | None:
    """Return a new copy of the entry that `to_json` wrote.

    Return None for anything else, such as the entry of another version of Sayso.
    """
    try:
        data = json.loads(text, parse_constant=refuse_constant)
        if "values" in data:
            return tuple(_part_from_dict(each) for each in data["values"])
        message = Message.from_dict(data["message"])
        usage = UsageStats(**data["usage"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    if message.role is Role.ASSISTANT and has_valid_types(usage):
        return (message, usage)
    return None


def _part_to_dict(value: Any) -> dict[str, Any]:
    """Return a part of an entry as JSON-ready data, under a key that names its type.

    Raises TypeError or ValueError for a value that JSON would change.
    """
    match value:
        case Message():
            return {"message": value.to_dict()}
        case UsageStats():
            return {"usage": value.to_dict()}
        case tuple():
            return {"values": [_part_to_dict(each) for each in value]}
    if json.loads(json.dumps(value, allow_nan=False)) != value:
        raise TypeError(
            f"a cache keeps JSON, and would change {value!r}: use lists, and text for keys"
        )
    return {"json": value}


def _part_from_dict(part: Mapping[str, Any]) -> Any:
    """Return the value that `_part_to_dict` wrote."""
    if "message" in part:
        return Message.from_dict(part["message"])
    if "values" in part:
        return tuple(_part_from_dict(each) for each in part["values"])
    if "usage" in part:
        return UsageStats(**part["usage"])
    return part["json"]
