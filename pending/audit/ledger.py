"""AuditLedger: the audit log in an append-only SQLite file, with the bodies of the actions apart for erasure.

Its entries can be exported as JSON lines, with their signatures and without personal data.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from sayso.channels.storage.files import open_database, read_database, transaction
from sayso.pending.audit.entry import AuditBody, AuditEntry, EntrySigner, RecordedEntry, entry_hash

#: The ledger's name in the data folder.
FILE = "audit.sqlite3"

#: The triggers prevent mistakes. A process that can write to the file can drop them; each row's signature is against
#: that. `rivals` has entries whose number is taken by another entry.
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
  BEGIN SELECT RAISE(ABORT, 'a body may only get its outcome, or be erased'); END;
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
    """How many of the entries given are now in the file, and those stored apart because of a conflict."""

    entries: int
    conflicts: tuple[RecordedEntry, ...] = ()


class AuditLedger:
    """One file. Each call opens and closes it, so that the file can be moved or copied between two calls."""

    def __init__(self, path: Path, signer: EntrySigner) -> None:
        self.path = path
        self._signer = signer

    def store(self, entries: Sequence[RecordedEntry], bodies: Sequence[AuditBody] = ()) -> Stored:
        """Append all new entries and bodies, or nothing. Safe to repeat. Raises LedgerUnusable."""
        with self._write() as connection:
            conflicts = [entry for entry in entries if not self._append(connection, entry)]
            for body in bodies:
                self._store_body(connection, body)
            return Stored(len(entries) - len(conflicts), tuple(conflicts))

    def entries(self) -> list[RecordedEntry]:
        """Return all entries by number, then those whose number was taken. Raises LedgerUnusable."""
        with self._read() as connection:
            rows = connection.execute("SELECT shard, n, text, sig, head FROM entries ORDER BY shard, n").fetchall()
            rows += connection.execute("SELECT shard, n, text, sig, head FROM rivals ORDER BY shard, n, text")
        return [self._recorded(*row) for row in rows]

    def bodies(self) -> dict[str, AuditBody]:
        """Return the bodies by action id. Raises LedgerUnusable."""
        with self._read() as connection:
            bodies = [_body(row) for row in connection.execute("SELECT * FROM bodies")]
        return {body.pid: body for body in bodies}

    def erase(self, user: str, *, at: int) -> int:
        """Remove all personal data of a user's actions from the file. Return how many. Raises LedgerUnusable."""
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with self._write() as connection:
            rows = connection.execute("SELECT * FROM bodies WHERE user = ?", (user,)).fetchall()
            for row in rows:
                self._replace(connection, _body(row).erased(at))
        with self._open() as connection:  # the overwritten data must not remain in the write-ahead log
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return len(rows)

    def _recorded(self, shard: object, n: object, *texts: object) -> RecordedEntry:
        if not isinstance(shard, int) or not isinstance(n, int):
            raise LedgerUnusable(f"{self.path} has an entry {n!r} of shard {shard!r}: somebody put it there, remove it")
        return RecordedEntry(shard, n, *(str(_legible(text)) for text in texts))

    def _append(self, connection: sqlite3.Connection, recorded: RecordedEntry) -> bool:
        """Append an entry. False: it is invalid, or another entry has its number, so it is stored apart."""
        sig = self._signer.sign("entry", recorded.shard, recorded.n, recorded.text)
        row = (recorded.shard, recorded.n, recorded.text, entry_hash(recorded.text), sig)
        if AuditEntry.parse(recorded.text):
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)", row)
            stored = connection.execute("SELECT text FROM entries WHERE shard = ? AND n = ?", row[:2]).fetchone()
            if stored[0] == recorded.text:
                return True
        connection.execute("INSERT OR IGNORE INTO rivals VALUES (?, ?, ?, ?, ?)", row)
        return False

    def _store_body(self, connection: sqlite3.Connection, body: AuditBody) -> None:
        """Store a new body, or the present outcome of a known one. An erased body stays erased."""
        row = connection.execute("SELECT * FROM bodies WHERE pid = ?", (body.pid,)).fetchone()
        known = _body(row) if row else None
        if known is None:
            connection.execute(
                "INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(body.signed(self._signer))
            )
        elif known.erased_at is None and body.outcome_text and known.outcome_text != body.outcome_text:
            self._replace(connection, replace(known, outcome_text=body.outcome_text))

    def _replace(self, connection: sqlite3.Connection, body: AuditBody) -> None:
        signed = body.signed(self._signer)
        connection.execute(
            "UPDATE bodies SET record = ?, told = ?, user = ?, erased_at = ?, sig = ? WHERE pid = ?",
            (signed.record, signed.outcome_text, signed.user, signed.erased_at, signed.sig, signed.pid),
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction on a file that only this user can read. It is on disk when the block ends."""
        with self._open() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with _translated_errors(self.path), open_database(self.path, _SCHEMA) as connection:
            connection.text_factory = _legible
            yield connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with _translated_errors(self.path), read_database(self.path) as connection:
            connection.text_factory = _legible
            yield connection


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise LedgerUnusable(f"{path} cannot be used as a ledger: {exc}") from exc


def _missing(path: Path) -> str:
    return f"no ledger at {path}: a worker writes it; name its folder with --data"


def _legible(value: object) -> object:
    """Return a column's value as text, even if it holds bytes. Its signature will not match."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _body(row: Sequence[object]) -> AuditBody:
    body = AuditBody(*map(_legible, row))  # type: ignore[arg-type]  # the columns are declared in the order of the fields
    return replace(body, repeatable=None if body.repeatable is None else bool(body.repeatable))


def to_lines(entries: Iterable[RecordedEntry]) -> Iterator[str]:
    """Yield one line per entry."""
    for entry in entries:
        yield json.dumps({"shard": entry.shard, "text": entry.text, "sig": entry.sig}, ensure_ascii=False)


def read_export(path: Path) -> list[RecordedEntry]:
    """Read the entries of an exported file. Raises LedgerUnusable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    lines = text.removesuffix("\n").split("\n") if text else []  # JSON does not escape the other line ends of Unicode
    last_numbers: dict[int, int] = {}
    return [_read_line(path, number, line, last_numbers) for number, line in enumerate(lines, start=1)]


def _read_line(path: Path, number: int, line: str, last_numbers: dict[int, int]) -> RecordedEntry:
    """Read one line. A text that is not an entry gets the number of the next entry of its shard."""
    try:
        fields = json.loads(line)
        shard, text, sig = int(fields["shard"]), str(fields["text"]), str(fields.get("sig") or "")
        f"{text}{sig}".encode()  # a lone surrogate cannot be hashed
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise LedgerUnusable(f"{path}:{number}: not a line that `sayso audit export` wrote") from None
    entry = AuditEntry.parse(text)
    last_numbers[shard] = entry.n if entry else last_numbers.get(shard, 0) + 1
    return RecordedEntry(shard, last_numbers[shard], text, sig)
