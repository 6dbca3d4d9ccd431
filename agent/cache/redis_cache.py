"""RedisCache: answers shared by all processes, as JSON with a time to live."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sayso.agent.cache.base import CacheStats, Entry
from sayso.agent.cache.entries import read, written
from sayso.agent.cache.tally import Tally

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

log = logging.getLogger(__name__)

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
        from sayso.workers.connections import Connections

        self._connections = Connections.of(_client(url) if client is None else client)
        self._prefix = prefix
        self._default_ttl = default_ttl
        self._tally = Tally()
        self._is_away = False

    @property
    def stats(self) -> CacheStats:
        """How this process used it so far."""
        return self._tally.stats

    def get(self, key: str) -> Entry | None:
        """What any process put there, unless its time is up or it cannot be read."""
        text = self._reached(lambda: self._ask("GET", self._prefix + key), None)
        entry = None if text is None else read(text)
        self._tally.asked(hit=entry is not None)
        return entry

    def set(self, key: str, value: Entry, ttl: float | None = None) -> None:
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
    from sayso.workers.breather import Breather
    from sayso.workers.connections import Connections
    from sayso.workers.redis import connect, hurry

    client = connect(url)
    hurry(client, answer_seconds=ANSWER_SECONDS)
    Connections.of(client).breather = Breather(slow_seconds=ANSWER_SECONDS / 2, pause_seconds=PAUSE_SECONDS)
    return client


def _literally(prefix: str) -> str:
    """As a pattern of Redis that matches nothing else."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)
