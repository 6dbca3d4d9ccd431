"""Cache, InMemoryCache, RedisCache, CacheKeyBuilder."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.observability.usage import countable
from sayso.agent.run.structured import ResponseFormat, schema_from_response_format
from sayso.agent.tools.tool import Tool
from sayso.pending.concurrency import reach

if TYPE_CHECKING:
    from redis import Redis


#: What is kept: a pair; for an agent, a model's Message and its UsageStats.
CacheEntry = tuple[Any, Any]


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

    def get(self, key: str) -> CacheEntry | None:
        """What was put there, unless its time is up."""

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
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


log = logging.getLogger(__name__)


async def looked_up(cache: Cache, key: str, *, said: Iterable[Message] = ()) -> CacheEntry | None:
    """What a cache has. One that fails, or has something that is no answer, has nothing.

    `said` is the transcript that the answer joins: ids of calls that it has already are replaced by new ones.
    """
    try:
        entry = await reach(cache.get, key)
        return entry and _answer(entry, said)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)
        return None


async def stored(cache: Cache, key: str, value: CacheEntry, *, max_tokens: int | None = None) -> None:
    """Keep an answer, if the cache can, for its own time. One that says nothing or was cut off is not kept.

    Answers of a run that asked for so many tokens at most and got them were cut off.
    """
    if not is_whole(value, max_tokens):
        return
    try:
        await reach(cache.set, key, value)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)


async def forgotten(cache: Cache, key: str) -> None:
    """Drop an answer that turned out to be of no use, such as one that does not fit its format."""
    try:
        await reach(cache.delete, key)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)


def is_whole(value: CacheEntry, max_tokens: int | None = None) -> bool:
    """Whether an answer says something, and to its end: the next one might be better."""
    message, usage = value
    says_something = bool(message.content.strip() or message.tool_calls)
    return says_something and (max_tokens is None or usage.completion_tokens < max_tokens)


def _answer(entry: Any, said: Iterable[Message]) -> CacheEntry:
    """What a run can take in, whoever wrote the cache. Raises TypeError."""
    match entry:
        case (Message(role=Role.ASSISTANT, content=str()) as message, UsageStats() as usage) if is_whole(entry):
            return _with_own_ids(message, said), countable(usage)
    raise TypeError(f"a cache gave {type(entry).__name__!r} for an answer")


def _with_own_ids(answer: Message, said: Iterable[Message]) -> Message:
    taken = {call.id for message in said for call in message.tool_calls if call.id}
    if taken.isdisjoint(call.id for call in answer.tool_calls):
        return answer
    calls = [replace(call, id=f"call_{uuid.uuid4().hex}") if call.id in taken else call for call in answer.tool_calls]
    return replace(answer, tool_calls=tuple(calls))


def _warn(error: Exception) -> None:
    log.warning("cache.failed", extra={"reason": type(error).__name__})


#: What a usage is compared with.
_NOTHING = UsageStats()


def written(value: CacheEntry) -> str:
    """Return the entry as JSON. Raises TypeError or ValueError for a value that JSON would change or cannot hold."""
    match value:
        case (Message(role=Role.ASSISTANT) as message, UsageStats() as usage):
            data: dict[str, Any] = {"message": message.to_dict(), "usage": usage.to_dict()}
        case tuple():
            data = {"values": [_part(each) for each in value]}
        case _:
            raise TypeError(f"a cache keeps tuples, not {type(value).__name__!r}: give (message, usage)")
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> CacheEntry | None:
    """What was written, as the reader's own; None for anything else, such as an entry of another version. A Message
    beside a UsageStats is an assistant's.
    """
    try:
        data = json.loads(text, parse_constant=_refused)
        if "values" in data:
            return tuple(_part_read(each) for each in data["values"])
        message, usage = Message.from_dict(data["message"]), UsageStats(**data["usage"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return (message, usage) if message.role is Role.ASSISTANT and _counts(usage) else None


def _part(value: Any) -> dict[str, Any]:
    match value:
        case Message():
            return {"message": value.to_dict()}
        case UsageStats():
            return {"usage": value.to_dict()}
        case tuple():
            return {"values": [_part(each) for each in value]}
    if json.loads(json.dumps(value, allow_nan=False)) != value:
        raise TypeError(f"a cache keeps JSON, and would change {value!r}: use lists, and text for keys")
    return {"json": value}


def _part_read(part: Mapping[str, Any]) -> Any:
    if "message" in part:
        return Message.from_dict(part["message"])
    if "values" in part:
        return tuple(_part_read(each) for each in part["values"])
    return UsageStats(**part["usage"]) if "usage" in part else part["json"]


def _counts(usage: UsageStats) -> bool:
    """Whether each of its fields is of the kind that it has in a new one; a whole number of dollars is one too."""
    kinds = ((type(value), type(getattr(_NOTHING, name))) for name, value in usage.to_dict().items())
    return all(kind is wanted or (kind, wanted) == (int, float) for kind, wanted in kinds)


def _refused(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


#: What every key begins with.
KEY_PREFIX = "sayso:"


#: Changed when keys come to be made in another way: what was kept under the old ones then expires.
_VERSION = 1


class CacheKeyBuilder:
    """Makes keys of all that an answer hangs on."""

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
        """`sayso:` and 64 hex digits: the same for the same request in every process, another for any other one.

        The order of messages and tools counts, and that of properties in a schema, in which models write them. Which
        ids calls have does not, only which result answers which call: vendors make up new ones each time. Of media the
        reference counts. A tool counts as its plain schema. Raises TypeError for what JSON cannot hold, and what
        `schema_from_response_format` raises.
        """
        schema = None if response_format is None else schema_from_response_format(response_format)
        request = {
            "version": _VERSION,
            "provider": provider,
            "model": model,
            "system_prompt": system_prompt,
            "messages": _numbered(messages),
            "tools": [_in_order(each.schema() if isinstance(each, Tool) else each) for each in tools or ()],
            "temperature": None if temperature is None else float(temperature),
            "max_tokens": max_tokens,
            "response_format": None if schema is None else _in_order(schema),
        }
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        return KEY_PREFIX + hashlib.sha256(text.encode()).hexdigest()


def _in_order(schema: Mapping[str, Any]) -> str:
    """As a text, whose order stays."""
    return json.dumps(schema, separators=(",", ":"))


def _numbered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with the ids of calls in the order in which they are met, instead of as they are spelled."""
    numbers: dict[str, int] = {"": 0}
    told = [{**message.to_dict(), **_pictured(message)} for message in messages]
    for each in told:
        each.pop("reasoning", None)  # its signatures are new each time
        for call in each.get("tool_calls", ()):
            call["id"] = numbers.setdefault(call["id"], len(numbers))
        if "tool_call_id" in each:
            each["tool_call_id"] = numbers.setdefault(each["tool_call_id"], len(numbers))
    return told


def _pictured(message: Message) -> dict[str, Any]:
    """The images that a model sees beside a message, by their bytes or references."""
    seen = [each.media.ref if each.media else hashlib.sha256(each.data).hexdigest() for each in message.pictures]
    return {"pictures": seen} if seen else {}


class CacheCounter:
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
        self._tally = CacheCounter()
        self._lock = threading.Lock()

    @property
    def stats(self) -> CacheStats:
        """How it was used so far."""
        return self._tally.stats

    def get(self, key: str) -> CacheEntry | None:
        """What was put there, unless its time is up or there was no room for it."""
        text = self._text(key)
        self._tally.asked(hit=text is not None)
        return None if text is None else read(text)

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
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


T = TypeVar("T")


#: Seconds a run waits for an answer of the cache: a model would have begun its own by then.
ANSWER_SECONDS = 0.5


#: Seconds in which nobody waits for one that was silent.
PAUSE_SECONDS = 5.0


#: Keys that are looked at and removed at a time.
BATCH = 500


class RedisCache:
    """Every key begins with `prefix` and lives for `default_ttl` seconds. The server evicts, and counts, by itself.

    A Redis that is away is as good as empty: it costs no run more than the wait, and one warning until it is back.
    `url` is read only where no `client` is given.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        prefix: str = "sayso:cache:",
        default_ttl: float = 300,
        *,
        client: Redis | None = None,
    ) -> None:
        """Raises ValueError for a prefix of every key there is, or a time to live of none."""
        if not prefix:
            raise ValueError("prefix is '': give one that only this cache has, because clear() removes all it begins")
        if default_ttl <= 0:
            raise ValueError(f"default_ttl is {default_ttl!r}: give a number of seconds above 0")
        from sayso.pending.redis.client import Connections

        self._connections = Connections.of(_client(url) if client is None else client)
        self._prefix = prefix
        self._default_ttl = default_ttl
        self._tally = CacheCounter()
        self._is_away = False

    @property
    def stats(self) -> CacheStats:
        """How this process used it so far."""
        return self._tally.stats

    def get(self, key: str) -> CacheEntry | None:
        """What any process put there, unless its time is up or it cannot be read."""
        text = self._reached(lambda: self._ask("GET", self._prefix + key), None)
        entry = None if text is None else read(text)
        self._tally.asked(hit=entry is not None)
        return entry

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
        """Keep it, if Redis can. Raises TypeError or ValueError for what is not JSON."""
        seconds, text = self._default_ttl if ttl is None else ttl, written(value)
        if seconds <= 0:
            self.delete(key)
            return
        milliseconds = max(1, round(seconds * 1000))
        self._reached(lambda: self._ask("SET", self._prefix + key, text, "PX", milliseconds), None)

    def delete(self, key: str) -> bool:
        """Forget it, for all processes; whether there was anything."""
        return self._reached(lambda: bool(self._ask("DEL", self._prefix + key)), False)

    def clear(self) -> None:
        """Forget all that begins with the prefix and nothing else, batch by batch; count anew."""
        self._reached(self._clear, None)
        self._tally.reset()

    def _clear(self) -> None:
        cursor: Any = None
        while cursor is None or int(cursor):
            cursor, keys = self._ask("SCAN", cursor or 0, "MATCH", f"{_literally(self._prefix)}*", "COUNT", BATCH)
            if keys:
                self._ask("UNLINK", *keys)

    def _ask(self, *command: Any) -> Any:
        return self._connections.ask(*command)

    def _reached(self, call: Callable[[], T], otherwise: T) -> T:
        """What a call to Redis comes to, or what there is without it."""
        from redis.exceptions import RedisError

        try:
            answer = call()
        except (RedisError, OSError) as exc:
            self._note(away=True, reason=type(exc).__name__)
            return otherwise
        self._note(away=False)
        return answer

    def _note(self, *, away: bool, reason: str = "") -> None:
        if away and not self._is_away:  # by its kind: the text may hold the address, and with it a password
            log.warning("cache.redis_away", extra={"reason": reason})
        elif self._is_away and not away:
            log.info("cache.redis_back")
        self._is_away = away


def _client(url: str) -> Redis:
    """One that gives up soon where nothing is answered, and is not asked again for a while."""
    from sayso.pending.redis.client import Connections, RedisCircuitBreaker, connect, hurry

    client = connect(url)
    hurry(client, answer_seconds=ANSWER_SECONDS)
    Connections.of(client).breather = RedisCircuitBreaker(slow_seconds=ANSWER_SECONDS / 2, pause_seconds=PAUSE_SECONDS)
    return client


def _literally(prefix: str) -> str:
    """As a pattern of Redis that matches nothing else."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)
