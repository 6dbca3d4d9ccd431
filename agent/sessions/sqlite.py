"""SQLiteSessionStore: all sessions in one file, for one machine."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sayso.agent.sessions.record import SessionKey
from sayso.agent.sessions.shelved import ShelvedSessions
from sayso.agent.sessions.store import SessionStoreUnavailable

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


class SQLiteSessionStore(ShelvedSessions):
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
