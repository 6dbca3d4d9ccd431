"""JSON file, SQLite, Redis."""

from __future__ import annotations

import fcntl
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.agent.memory.sessions import KeyValueSessions, SessionKey, SessionStoreUnavailable
from sayso.channels.media import remove_older, sync_folder, write_atomically
from sayso.pending.redis.client import Connections, connect

#: Seconds after which a file that somebody began to write, and was killed over, is removed.
UNFINISHED_SECONDS = 3600


#: What those who write share, and who removes what has expired has alone.
_LOCK = ".lock"


class JsonFileSessionStore(KeyValueSessions):
    """Files in a folder, for one machine. Only our own user reads them; a file is on disk when `save` returns.

    Needs a disk of this machine: on a network drive two processes may not see each other's locks.
    """

    def __init__(
        self,
        directory: str | Path = "./sessions",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._folder = Path(directory).absolute()

    def _get(self, key: SessionKey) -> str | None:
        try:
            return self._path(key).read_text("ascii")
        except FileNotFoundError:
            return None

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        path = self._path(key)
        if not path.parent.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._folder)
        with self._locked(fcntl.LOCK_SH):
            write_atomically(path, text.encode("ascii"))

    def _remove(self, key: SessionKey) -> bool:
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        sync_folder(path.parent)
        return True

    def _remove_if(self, key: SessionKey, text: str) -> None:
        with self._locked(fcntl.LOCK_EX):  # nobody may save between the look and the removal
            if self._get(key) == text:
                self._remove(key)

    def _texts(self, shelf: str) -> list[tuple[str, str]]:
        folder = self._folder / shelf
        remove_older(folder.glob(".*"), time.time() - UNFINISHED_SECONDS)
        return [(path.stem, text) for path in folder.glob("*.json") if (text := _text_of(path)) is not None]

    def _path(self, key: SessionKey) -> Path:
        return self._folder / key.shelf / f"{key.name}.json"

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        handle = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _guarded(self, key: SessionKey | None) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            what = f"session {key.session_id!r}" if key else "the list of sessions"
            raise SessionStoreUnavailable(
                f"{what} cannot be read or written in {self._folder}: {exc.strerror or exc}; see to its disk and rights"
            ) from exc


def _text_of(path: Path) -> str | None:
    """The text of a file, "" if it is none; None for one that has just gone."""
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return None
    except ValueError:
        return ""


#: About how many keys one command looks at.
CHUNK = 500


_REMOVE_IF = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


#: What means something in a pattern of keys.
_SPECIAL = re.compile(r"[\\*?\[\]^-]")


class RedisSessionStore(KeyValueSessions):
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


#: Seconds to wait for another process that writes to the same file.
PATIENCE = 5.0


#: What was removed is overwritten: people's words do not stay in the free pages of the file.
_OPENING = """
PRAGMA secure_delete = ON;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS sessions (
  shelf TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (shelf, name)
) WITHOUT ROWID;
"""


class SQLiteSessionStore(KeyValueSessions):
    """One file that only our own user reads. Each call opens and closes it, so any thread and process may call."""

    def __init__(
        self,
        db_path: str | Path = "sessions.db",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if str(db_path) == ":memory:":
            raise ValueError("db_path=':memory:' would forget at once: use a file, or InMemorySessionStore")
        super().__init__(default_ttl, clock=clock)
        self._path = Path(db_path).absolute()

    def _get(self, key: SessionKey) -> str | None:
        rows = self._run("SELECT text FROM sessions WHERE shelf = ? AND name = ?", key.shelf, key.name)
        return _text(rows[0][0]) if rows else None

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        self._run("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", key.shelf, key.name, text)

    def _remove(self, key: SessionKey) -> bool:
        return bool(self._run("DELETE FROM sessions WHERE shelf = ? AND name = ? RETURNING 1", key.shelf, key.name))

    def _remove_if(self, key: SessionKey, text: str) -> None:
        self._run("DELETE FROM sessions WHERE shelf = ? AND name = ? AND text = ?", key.shelf, key.name, text)

    def _texts(self, shelf: str) -> list[tuple[str, str]]:
        rows = self._run("SELECT name, text FROM sessions WHERE shelf = ?", shelf)
        return [(str(name), text if isinstance(text, str) else "") for name, text in rows]

    def _run(self, statement: str, *values: str) -> list[Any]:
        """One statement, which is a transaction of its own, on disk when it is over."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.touch(mode=0o600)  # before SQLite would make it readable for others
        with closing(sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.executescript(_OPENING)
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _guarded(self, key: SessionKey | None) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as exc:
            what = f"session {key.session_id!r}" if key else "the list of sessions"
            raise SessionStoreUnavailable(
                f"{what} cannot be read or written in {self._path}: {exc}; see that it is our own database, whole and "
                "writable"
            ) from exc


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value
