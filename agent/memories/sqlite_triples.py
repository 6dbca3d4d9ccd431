"""SQLiteTripleStore: relationships in one file, which all processes of a machine share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sayso.agent.memories.triples import Triple, TripleStoreError

#: Seconds that a call waits for another that writes.
PATIENCE = 10.0

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS triples (
    n INTEGER PRIMARY KEY AUTOINCREMENT, scope BLOB NOT NULL, key TEXT NOT NULL, words TEXT NOT NULL,
    subject TEXT NOT NULL, relation TEXT NOT NULL, object TEXT NOT NULL,
    confidence REAL NOT NULL, source_turn INTEGER NOT NULL, created_at REAL NOT NULL,
    UNIQUE (scope, key)
);
"""
_COLUMNS = "subject, relation, object, confidence, source_turn, created_at"
_INSERT = f"INSERT OR REPLACE INTO triples (scope, key, words, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # a constant
_SELECT = f"SELECT {_COLUMNS} FROM triples WHERE scope = ?"  # noqa: S608  # a constant
_SCOPES = "SELECT DISTINCT scope FROM triples"
_PRUNE = (
    "DELETE FROM triples WHERE scope = ? AND n NOT IN (SELECT n FROM triples WHERE scope = ? ORDER BY n DESC LIMIT ?)"
)


class SQLiteTripleStore:
    """The file is only its owner's to read. Every call opens and closes it, so that threads share nothing and processes
    may fork.
    """

    def __init__(self, path: str | Path = "knowledge_graph.db") -> None:
        self.path = Path(path)

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Keep these in one transaction; past `most` of the scope the oldest go."""
        rows = [(_bytes(scope), triple.key, triple.words, *_row(triple)) for triple in triples]
        with self._write() as db:
            db.executemany(_INSERT, rows)
            db.execute(_PRUNE, (_bytes(scope), _bytes(scope), most))

    def query(self, scope: str, keywords: Sequence[str]) -> list[Triple]:
        """Those in which any of the keywords is, in whatever case."""
        if not keywords:
            return []
        found = " OR ".join(["instr(words, ?)"] * len(keywords))
        with self._open() as db:
            rows = db.execute(
                f"{_SELECT} AND ({found}) ORDER BY n", (_bytes(scope), *(word.casefold() for word in keywords))
            ).fetchall()
        return [Triple(*row) for row in rows]

    def all(self, scope: str) -> list[Triple]:
        """Those of the scope."""
        with self._open() as db:
            return [Triple(*row) for row in db.execute(f"{_SELECT} ORDER BY n", (_bytes(scope),)).fetchall()]

    def clear(self, scope: str) -> None:
        """Forget those of the scope; nothing of them stays in the file."""
        with self._write() as db:
            db.execute("DELETE FROM triples WHERE scope = ?", (_bytes(scope),))
        with self._open() as db:  # what was deleted must not live on in the log of writes
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def erase(self, is_gone: Callable[[str], bool]) -> int:
        """Forget those of the scopes of which this is true. Returns how many. A file that is not there is not made."""
        if not self.path.exists():
            return 0
        with self._open() as db:
            found = [bytes(row[0]).decode("utf-8", "surrogatepass") for row in db.execute(_SCOPES).fetchall()]
        gone = {scope: self.count(scope) for scope in found if is_gone(scope)}
        for scope in gone:
            self.clear(scope)
        return sum(gone.values())

    def count(self, scope: str) -> int:
        """How many the scope has."""
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM triples WHERE scope = ?", (_bytes(scope),)).fetchone()[0])

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            yield db  # an error ends with the connection, and the transaction with it
            db.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)  # before SQLite would make it readable for others
            with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as db:
                db.execute("PRAGMA secure_delete = ON")
                _prepare(db)
                yield db
        except (sqlite3.Error, OSError) as exc:
            raise TripleStoreError(f"{self.path} cannot be used: {exc}; move it away, or name another path") from exc


def _prepare(db: sqlite3.Connection) -> None:
    """Two who turn one new file to WAL at once would wait for each other, so SQLite refuses one of them at once."""
    patience_ends = time.monotonic() + PATIENCE
    while True:
        try:
            db.executescript(_SCHEMA)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience_ends:
                raise
            time.sleep(0.005)
        else:
            return


def _bytes(scope: str) -> bytes:
    """A scope may be any text, half characters included."""
    return scope.encode("utf-8", "surrogatepass")


def _row(triple: Triple) -> tuple[str, str, str, float, int, float]:
    return (
        triple.subject, triple.relation, triple.object, triple.confidence, triple.source_turn, triple.created_at
    )  # fmt: skip
