"""Ledger: the audit log in a file, append-only, with the bodies of its entries apart so that they can be erased.

LedgerUnusable   the file cannot be read or written as a ledger
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from sayso.channels.storage.files import open_database, read_database, transaction
from sayso.pending.audit.entry import AuditEntry, Body, EntrySigner, RecordedEntry, head_of

#: The ledger's name in the data folder.
FILE = "audit.sqlite3"

#: The triggers stop mistakes. Who can write to the file can also drop them: against that, each row is signed.
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS entries (
  shard INTEGER NOT NULL, n INTEGER NOT NULL, text TEXT NOT NULL, head TEXT NOT NULL, sig TEXT NOT NULL,
  PRIMARY KEY (shard, n)
);
CREATE TABLE IF NOT EXISTS rivals (
  shard INTEGER NOT NULL, n INTEGER NOT NULL, text TEXT NOT NULL, head TEXT NOT NULL, sig TEXT NOT NULL,
  PRIMARY KEY (shard, n, text)
);
CREATE TABLE IF NOT EXISTS bodies (
  pid TEXT PRIMARY KEY NOT NULL, record TEXT, mac TEXT NOT NULL, told TEXT, user TEXT, at INTEGER NOT NULL,
  repeatable INTEGER, erased_at INTEGER, sig TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS bodies_of_user ON bodies (user);
CREATE TRIGGER IF NOT EXISTS bodies_change BEFORE UPDATE ON bodies
  WHEN NEW.pid IS NOT OLD.pid OR OLD.erased_at IS NOT NULL
    OR (NEW.erased_at IS NULL AND (NEW.mac IS NOT OLD.mac OR NEW.record IS NOT OLD.record))
    OR (NEW.erased_at IS NOT NULL AND (NEW.mac IS NOT OLD.mac OR coalesce(NEW.record, NEW.told, NEW.user) IS NOT NULL))
  BEGIN SELECT RAISE(ABORT, 'a body is only told the outcome, or erased'); END;
CREATE TRIGGER IF NOT EXISTS bodies_delete BEFORE DELETE ON bodies
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entries_insert BEFORE INSERT ON entries
  WHEN EXISTS (SELECT 1 FROM entries WHERE shard = NEW.shard AND n = NEW.n)
  BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER IF NOT EXISTS entries_update BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entries_delete BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS rivals_insert BEFORE INSERT ON rivals
  WHEN EXISTS (SELECT 1 FROM rivals WHERE shard = NEW.shard AND n = NEW.n AND text = NEW.text)
  BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER IF NOT EXISTS rivals_update BEFORE UPDATE ON rivals
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS rivals_delete BEFORE DELETE ON rivals
  BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
"""


class LedgerUnusable(Exception):
    """Raised when a file cannot be read or written as a ledger. The message names it and the cure."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What storing came to: how many entries the file has of those given, and the rivals, which it has besides."""

    entries: int
    rivals: tuple[RecordedEntry, ...] = ()


class AuditLedger:
    """One file. Every call opens and closes it, so that it may be moved away, or copied, between two calls."""

    def __init__(self, path: Path, signer: EntrySigner) -> None:
        self.path = path
        self._signer = signer

    def store(self, entries: Sequence[RecordedEntry], bodies: Sequence[Body] = ()) -> Stored:
        """Append what is new, all or nothing. Safe to repeat. Raises LedgerUnusable."""
        with self._write() as connection:
            rivals = [kept for kept in entries if self._append(connection, kept)]
            for body in bodies:
                self._keep(connection, body)
            return Stored(len(entries) - len(rivals), tuple(rivals))

    def entries(self) -> list[RecordedEntry]:
        """Every entry in the order of its number, then those whose number was taken. Raises LedgerUnusable."""
        with self._read() as connection:
            rows = connection.execute("SELECT shard, n, text, sig, head FROM entries ORDER BY shard, n").fetchall()
            rows += connection.execute("SELECT shard, n, text, sig, head FROM rivals ORDER BY shard, n, text")
        return [self._kept(*row) for row in rows]

    def bodies(self) -> dict[str, Body]:
        """The bodies by action. Raises LedgerUnusable."""
        with self._read() as connection:
            bodies = [_body(row) for row in connection.execute("SELECT * FROM bodies")]
        return {body.pid: body for body in bodies}

    def erase(self, user: str, *, at: int) -> int:
        """Remove everything personal of a user's actions from the file. Returns how many. Raises LedgerUnusable."""
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with self._write() as connection:
            rows = connection.execute("SELECT * FROM bodies WHERE user = ?", (user,)).fetchall()
            for row in rows:
                self._replace(connection, _body(row).erased(at))
        with self._open() as connection:  # what was overwritten must not live on in the log of writes
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return len(rows)

    def _kept(self, shard: object, n: object, *texts: object) -> RecordedEntry:
        if not isinstance(shard, int) or not isinstance(n, int):
            raise LedgerUnusable(
                f"{self.path} has an entry {n!r} of shard {shard!r}: somebody put it there, look at it"
            )
        return RecordedEntry(shard, n, *(str(_legible(text)) for text in texts))

    def _append(self, connection: sqlite3.Connection, kept: RecordedEntry) -> bool:
        """Whether this is a rival: no entry, or one whose number another has. It is kept, but not in its place."""
        row = self._row(kept)
        if AuditEntry.parse(kept.text):
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)", row)
            found = connection.execute("SELECT text FROM entries WHERE shard = ? AND n = ?", row[:2]).fetchone()
            if found[0] == kept.text:
                return False
        connection.execute("INSERT OR IGNORE INTO rivals VALUES (?, ?, ?, ?, ?)", row)
        return True

    def _row(self, kept: RecordedEntry) -> tuple[int, int, str, str, str]:
        sig = self._signer.sign("entry", kept.shard, kept.n, kept.text)
        return kept.shard, kept.n, kept.text, head_of(kept.text), sig

    def _keep(self, connection: sqlite3.Connection, body: Body) -> None:
        """A new body, or the present words of a known one. What was erased stays erased."""
        row = connection.execute("SELECT * FROM bodies WHERE pid = ?", (body.pid,)).fetchone()
        known = _body(row) if row else None
        if known is None:
            connection.execute(
                "INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(body.signed(self._signer))
            )
        elif known.erased_at is None and body.told and known.told != body.told:
            self._replace(connection, replace(known, told=body.told))

    def _replace(self, connection: sqlite3.Connection, body: Body) -> None:
        signed = body.signed(self._signer)
        connection.execute(
            "UPDATE bodies SET record = ?, told = ?, user = ?, erased_at = ?, sig = ? WHERE pid = ?",
            (signed.record, signed.told, signed.user, signed.erased_at, signed.sig, signed.pid),
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction on a file that is ours alone, on disk when it is over."""
        with self._open() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with _clear(self.path), open_database(self.path, _SCHEMA) as connection:
            connection.text_factory = _legible
            yield connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with _clear(self.path), read_database(self.path) as connection:
            connection.text_factory = _legible
            yield connection


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise LedgerUnusable(f"{path} cannot be used as a ledger: {exc}") from exc


def _missing(path: Path) -> str:
    return f"no ledger at {path}: a worker writes it; name its folder with --data"


def _legible(value: object) -> object:
    """What somebody put into a column, as text where it is none: no signature fits it, and its place can be named."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _body(row: Sequence[object]) -> Body:
    body = Body(*map(_legible, row))  # type: ignore[arg-type]  # the columns are declared in the order of the fields
    return replace(body, repeatable=None if body.repeatable is None else bool(body.repeatable))
