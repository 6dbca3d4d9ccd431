"""Session stores in JSON files, in Redis and in SQLite.

`sessions.py` says what a session is, and has their base class KeyValueSessions.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from redis.exceptions import RedisError, ResponseError

from sayso.agent.memory.sessions import KeyValueSessions, SessionKey
from sayso.infra.redis.client import connect
from sayso.infra.storage.files import (
    folder_lock,
    open_database,
    remove_older,
    sync,
    write_atomically,
)

#: A temporary file is removed after this many seconds: its process was killed while writing.
UNFINISHED_SECONDS = 3600
#: About how many keys one SCAN command of Redis looks at.
SCAN_COUNT = 500
#: The Lua script that deletes the key KEYS[1] if it still has the value ARGV[1].
_REMOVE_IF = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)
#: Characters that have a meaning in a key pattern of Redis, and must be escaped.
_PATTERN_CHARS = re.compile(r"[\\*?\[\]^-]")
#: The columns are the digest of the namespace, the digest of the session's key, and the record as
#: JSON text.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
  namespace_digest TEXT NOT NULL, digest TEXT NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (namespace_digest, digest)
) WITHOUT ROWID;
"""


class JsonFileSessionStore(KeyValueSessions):
    """Keeps each session as a JSON file in a folder. Only the user of the process can read it.

    A file is on disk when `save` returns. The folder must be on a local disk: on a network drive,
    two processes may not see each other's locks. The parameters are those of KeyValueSessions.
    """

    storage_errors = (OSError,)

    def __init__(
        self,
        directory: str | Path = "./sessions",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._folder = Path(directory).absolute()

    def _load_text(self, key: SessionKey) -> str | None:
        try:
            return self._path(key).read_text("ascii")
        except FileNotFoundError:
            return None

    def _save_text(self, key: SessionKey, text: str, ttl: float | None) -> None:
        path = self._path(key)
        # Shared: several processes may save at once, but not while `_delete_if_unchanged` compares.
        with folder_lock(self._folder, shared=True):
            is_first = not path.parent.exists()
            write_atomically(path, text.encode("ascii"))
            if is_first:
                sync(self._folder)

    def _delete_text(self, key: SessionKey) -> bool:
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        sync(path.parent)
        return True

    def _delete_if_unchanged(self, key: SessionKey, text: str) -> None:
        # No other process may save between the comparison and the removal.
        with folder_lock(self._folder):
            if self._load_text(key) == text:
                self._delete_text(key)

    def _list_texts(self, namespace_digest: str) -> Iterator[tuple[str, str]]:
        folder = self._folder / namespace_digest
        remove_older(folder.glob(".*"), time.time() - UNFINISHED_SECONDS)
        for path in folder.glob("*.json"):
            try:
                text = path.read_text("ascii")
            except FileNotFoundError:  # it was removed meanwhile
                continue
            except ValueError:  # it is damaged: "" is no record either
                text = ""
            yield path.stem, text

    def _path(self, key: SessionKey) -> Path:
        return self._folder / key.namespace_digest / f"{key.digest}.json"

    def _place_and_cure(self, error: Exception) -> str:
        problem = getattr(error, "strerror", None) or error
        return f"{self._folder}: {problem}; check its disk and rights"


class RedisSessionStore(KeyValueSessions):
    """Keeps each session under a Redis key that begins with `prefix`.

    A key expires `default_ttl` seconds after its last save, by default never. `list` scans all keys
    of the server: it is meant for operators, not for each turn. Errors do not show the URL, which
    may contain a password.
    """

    storage_errors = (RedisError,)

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        prefix: str = "sayso:session:",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._prefix = prefix
        self._client = connect(url)

    def _load_text(self, key: SessionKey) -> str | None:
        return self._text(self._redis_key(key))

    def _save_text(self, key: SessionKey, text: str, ttl: float | None) -> None:
        milliseconds = None
        if ttl is not None:
            milliseconds = math.ceil(ttl * 1000)
        self._client.set(self._redis_key(key), text, px=milliseconds)

    def _delete_text(self, key: SessionKey) -> bool:
        return bool(self._client.delete(self._redis_key(key)))

    def _delete_if_unchanged(self, key: SessionKey, text: str) -> None:
        self._client.eval(_REMOVE_IF, 1, self._redis_key(key), text)

    def _list_texts(self, namespace_digest: str) -> Iterator[tuple[str, str]]:
        start = f"{self._prefix}{namespace_digest}:"
        pattern = _PATTERN_CHARS.sub(r"\\\g<0>", start) + "*"
        for key in set(self._client.scan_iter(pattern, SCAN_COUNT)):  # SCAN may return a key twice
            try:
                text = self._text(key)
            except (TypeError, ValueError):  # it is damaged: "" is no record either
                text = ""
            if text is not None:
                yield key[len(start) :], text

    def _text(self, key: str) -> str | None:
        try:
            return cast("str | None", self._client.get(key))  # `connect` makes clients that decode
        except ResponseError as exc:
            if str(exc).startswith("WRONGTYPE"):
                raise TypeError("it is no text") from exc
            raise

    def _redis_key(self, key: SessionKey) -> str:
        return f"{self._prefix}{key.namespace_digest}:{key.digest}"

    def _place_and_cure(self, error: Exception) -> str:
        return (
            f"Redis ({type(error).__name__}): "
            "check that the server is running, accepts writes and has memory left"
        )


class SQLiteSessionStore(KeyValueSessions):
    """Keeps sessions in a SQLite file. Only the user of the process can read it.

    Each call opens and closes the file, so that any thread and process may call. Raises ValueError
    for the path `:memory:`, whose contents would be gone after each call.
    """

    storage_errors = (OSError, sqlite3.Error)

    def __init__(
        self,
        db_path: str | Path = "sessions.db",
        default_ttl: float | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if str(db_path) == ":memory:":
            raise ValueError(
                "db_path=':memory:' would forget at once: use a file, or InMemorySessionStore"
            )
        super().__init__(default_ttl, clock=clock)
        self._path = Path(db_path).absolute()

    def _load_text(self, key: SessionKey) -> str | None:
        rows = self._run(
            "SELECT record FROM sessions WHERE namespace_digest = ? AND digest = ?",
            key.namespace_digest,
            key.digest,
        )
        if not rows:
            return None
        text = rows[0][0]
        if not isinstance(text, str):
            raise TypeError("it is no text")
        return text

    def _save_text(self, key: SessionKey, text: str, ttl: float | None) -> None:
        self._run(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)",
            key.namespace_digest,
            key.digest,
            text,
        )

    def _delete_text(self, key: SessionKey) -> bool:
        removed_rows = self._run(
            "DELETE FROM sessions WHERE namespace_digest = ? AND digest = ? RETURNING 1",
            key.namespace_digest,
            key.digest,
        )
        return bool(removed_rows)

    def _delete_if_unchanged(self, key: SessionKey, text: str) -> None:
        self._run(
            "DELETE FROM sessions WHERE namespace_digest = ? AND digest = ? AND record = ?",
            key.namespace_digest,
            key.digest,
            text,
        )

    def _list_texts(self, namespace_digest: str) -> list[tuple[str, str]]:
        rows = self._run(
            "SELECT digest, record FROM sessions WHERE namespace_digest = ?", namespace_digest
        )
        return [(str(digest), text if isinstance(text, str) else "") for digest, text in rows]

    def _run(self, statement: str, *values: str) -> list[Any]:
        """Execute one statement as a transaction, which is on disk when this returns."""
        with open_database(self._path, _SCHEMA) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            return database.execute(statement, values).fetchall()

    def _place_and_cure(self, error: Exception) -> str:
        return (
            f"{self._path}: {error}; check that it is a writable database of Sayso and not damaged"
        )
