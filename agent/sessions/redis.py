"""RedisSessionStore: sessions that all machines share."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.agent.sessions.record import SessionKey
from sayso.agent.sessions.shelved import ShelvedSessions
from sayso.agent.sessions.store import SessionStoreUnavailable
from sayso.workers.connections import Connections
from sayso.workers.redis import connect

#: About how many keys one command looks at.
CHUNK = 500

_REMOVE_IF = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
#: What means something in a pattern of keys.
_SPECIAL = re.compile(r"[\\*?\[\]^-]")


class RedisSessionStore(ShelvedSessions):
    """One key a session, which Redis itself lets go after `default_ttl`; without one it stays until it is deleted.

    `list` goes through all keys of the server: for operators, not for each turn. A `client` takes the place of `url`.
    No error names the URL, which may hold a password.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        prefix: str = "sayso:session:",
        default_ttl: float | None = None,
        *,
        client: Redis | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._prefix = prefix
        self._client = client or connect(url)  # it lives as long as its connections are needed
        self._connections = Connections.of(self._client)

    def _get(self, key: SessionKey) -> str | None:
        return self._text(self._named(key))

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        expiry = () if ttl is None else ("PX", math.ceil(ttl * 1000))
        self._connections.ask("SET", self._named(key), text, *expiry)

    def _remove(self, key: SessionKey) -> bool:
        return bool(self._connections.ask("DEL", self._named(key)))

    def _remove_if(self, key: SessionKey, text: str) -> None:
        self._connections.ask("EVAL", _REMOVE_IF, 1, self._named(key), text)

    def _texts(self, shelf: str) -> Iterator[tuple[str, str]]:
        start = f"{self._prefix}{shelf}:"
        for key in self._keys(_SPECIAL.sub(r"\\\g<0>", start) + "*"):
            try:
                text = self._text(key)
            except (TypeError, ValueError):
                text = ""
            if text is not None:
                yield key[len(start) :], text

    def _keys(self, pattern: str) -> set[str]:
        cursor, found = 0, set[str]()
        while True:
            cursor, keys = self._connections.ask("SCAN", cursor, "MATCH", pattern, "COUNT", CHUNK)
            found.update(_decoded(key) for key in keys)
            if not int(cursor):
                return found

    def _text(self, key: str) -> str | None:
        try:
            answer = self._connections.ask("GET", key)
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                raise TypeError("it is no text") from exc
            raise
        return None if answer is None else _decoded(answer)

    def _named(self, key: SessionKey) -> str:
        return f"{self._prefix}{key.shelf}:{key.name}"

    @contextmanager
    def _guarded(self, key: SessionKey | None) -> Iterator[None]:
        try:
            yield
        except RedisError as exc:
            what = f"session {key.session_id!r}" if key else "the list of sessions"
            raise SessionStoreUnavailable(
                f"{what} cannot be read or written in Redis ({type(exc).__name__}): see that the server is there, "
                "takes writes and has room"
            ) from exc


def _decoded(answer: str | bytes) -> str:
    """An answer of any client, also of one that does not decode."""
    return answer.decode() if isinstance(answer, bytes) else answer
