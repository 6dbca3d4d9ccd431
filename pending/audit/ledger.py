"""AuditLedger: the audit log of one machine, in an append-only SQLite file in the data folder.

The file has the entries of the log, each with a signature, and apart from them the bodies of the
actions, which can be erased. `chain_check.py` verifies it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from sayso.infra.storage.files import open_database, read_database, transaction
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.entries import (
    AuditEntry,
    EntrySigner,
    RecordedEntry,
    decided_by_text,
    entry_hash,
    text_with_action,
)

#: The ledger's name in the data folder.
FILE = "audit.sqlite3"

#: `entries` has the log. Its columns are: `n`, the number of the entry; `head`, the hash of its
#: text; `sig`, the signature over its text and place. `rivals` has entries whose number is taken by
#: another entry, and texts that are none. `bodies` has the fields of AuditBody in their order:
#: `pid` is the id of the action, `told` the outcome. New columns are added at the end.
#: The triggers prevent mistakes. A process that can write to the file can drop them; each row's
#: signature is against that.
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
  repeatable INTEGER, erased_at INTEGER, sig TEXT NOT NULL, decision TEXT, votes TEXT
);
CREATE INDEX IF NOT EXISTS bodies_of_user ON bodies (user);
CREATE TRIGGER IF NOT EXISTS bodies_change BEFORE UPDATE ON bodies
  WHEN NEW.pid IS NOT OLD.pid OR OLD.erased_at IS NOT NULL
    OR (NEW.erased_at IS NULL AND (NEW.mac IS NOT OLD.mac OR NEW.record IS NOT OLD.record))
    OR (NEW.erased_at IS NOT NULL AND (NEW.mac IS NOT OLD.mac OR coalesce(NEW.record, NEW.told, NEW.user) IS NOT NULL))
  BEGIN SELECT RAISE(ABORT, 'a body may only get its outcome, or be erased'); END;
CREATE TRIGGER IF NOT EXISTS bodies_decision BEFORE UPDATE ON bodies
  WHEN (NEW.erased_at IS NULL AND OLD.decision IS NOT NULL AND NEW.decision IS NOT OLD.decision)
    OR (NEW.erased_at IS NOT NULL AND coalesce(NEW.decision, NEW.votes) IS NOT NULL)
  BEGIN SELECT RAISE(ABORT, 'a decision may not change'); END;
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
#: The version of the schema. A file of a higher version is refused.
_VERSION = 2
#: The columns that version 1 did not have.
_NEW_COLUMNS = {"bodies": ("decision TEXT", "votes TEXT")}


class LedgerUnusable(Exception):
    """Raised when a file cannot be read or written as a ledger.

    The message names it and the cure.
    """


class AuditLedger:
    """The ledger in one file.

    Each call opens and closes the file, so that it can be moved or copied between two calls. The
    first write creates it. Every method may raise LedgerUnusable.
    """

    def __init__(self, path: Path, signer: EntrySigner) -> None:
        self.path = path
        self._signer = signer

    def store(
        self, entries: Sequence[RecordedEntry], bodies: Sequence[AuditBody] = ()
    ) -> list[RecordedEntry]:
        """Append all new entries and bodies, or nothing. Safe to repeat.

        Return the conflicts: entries that are invalid, or whose number another entry has. They are
        stored apart. Of a known body only new decisions and a new outcome are stored.
        """
        with self._write() as connection:
            conflicts = [entry for entry in entries if not self._append(connection, entry)]
            for body in bodies:
                self._store_body(connection, body)
            return conflicts

    def entries(self) -> list[RecordedEntry]:
        """Return all entries by shard and number, then the conflicts."""
        columns = "SELECT shard, n, text, sig, head FROM"
        with self._read() as connection:
            rows = connection.execute(f"{columns} entries ORDER BY shard, n").fetchall()
            rows += connection.execute(f"{columns} rivals ORDER BY shard, n, text")
        return self._recorded(rows)

    def _recorded(self, rows: Iterable[Sequence[object]]) -> list[RecordedEntry]:
        """Return the entries in rows with shard, number, text, signature and hash."""
        entries = []
        for shard, number, text, sig, stored_hash in rows:
            if not isinstance(shard, int) or not isinstance(number, int):
                raise LedgerUnusable(
                    f"{self.path} has an entry {number!r} of shard {shard!r}: Sayso did not write it, remove it"
                )
            recorded = RecordedEntry(
                shard,
                number,
                str(_legible(text)),
                sig=str(_legible(sig)),
                stored_hash=str(_legible(stored_hash)),
            )
            entries.append(recorded)
        return entries

    def find_by_action(self, action_id: str) -> Iterator[tuple[int, AuditEntry]]:
        """Yield the entries of an action, each with its shard, without reading all into memory.

        An entry of another action may be among them. What Sayso has not written is left out.
        """
        return self._find("instr(text, ?)", text_with_action(action_id))

    def find_recorded(self, action_id: str) -> list[RecordedEntry]:
        """Return the entries of an action as they are stored, with their signatures.

        An entry of another action may be among them, and one that Sayso has not written.
        """
        with self._read() as connection:
            rows = connection.execute(
                "SELECT shard, n, text, sig, head FROM entries WHERE instr(text, ?)",
                (text_with_action(action_id),),
            ).fetchall()
        return self._recorded(rows)

    def find_by_number(self, shard: int, number: int) -> Iterator[tuple[int, AuditEntry]]:
        """Yield the shard and the entry of this number, nothing if there is none."""
        return self._find("shard = ? AND n = ?", shard, number)

    def _find(self, condition: str, *values: str | int) -> Iterator[tuple[int, AuditEntry]]:
        with self._read() as connection:
            rows = connection.execute(
                f"SELECT shard, text FROM entries WHERE {condition}",  # noqa: S608  # conditions of this class
                values,
            )
            for shard, text in rows:
                entry = AuditEntry.parse(str(_legible(text)))
                if entry and isinstance(shard, int):
                    yield shard, entry

    def find_decided(self, is_wanted: Callable[[str], bool]) -> Iterator[AuditEntry]:
        """Yield the entries of decisions made by certain events.

        `is_wanted` returns whether the event of this id is one of them.
        """
        # Parsing millions of entries takes seconds. So the event is cut out of the text first, and
        # `is_wanted` is asked once for neighbors of the same event.
        last_event = None
        is_candidate = False
        with self._read() as connection:
            for (text,) in connection.execute(
                """SELECT text FROM entries WHERE NOT instr(text, '"by":""')"""
            ):
                legible = str(_legible(text))
                event = decided_by_text(legible)
                if event != last_event:
                    last_event = event
                    is_candidate = is_wanted(_loads(event))
                if not is_candidate:
                    continue
                entry = AuditEntry.parse(legible)
                if entry and is_wanted(entry.decided_by_event):
                    yield entry

    def bodies(self, action_id: str = "") -> dict[str, AuditBody]:
        """Return the bodies by action id: of one action, or with "" of all."""
        with self._read() as connection:
            rows = connection.execute(
                "SELECT * FROM bodies WHERE pid = ? OR ? = ''", (action_id, action_id)
            )
            bodies = [_body(row) for row in rows]
        return {body.action_id: body for body in bodies}

    def find_bodies(self, text: str) -> list[AuditBody]:
        """Return the bodies whose record contains a text."""
        with self._read() as connection:
            rows = connection.execute("SELECT * FROM bodies WHERE instr(record, ?)", (text,))
            return [_body(row) for row in rows]

    def find_by_outcome(self, text: str) -> list[str]:
        """Return the ids of the actions whose outcome, as its user read it, contains a text."""
        with self._read() as connection:
            rows = connection.execute(
                "SELECT pid FROM bodies WHERE instr(told, ?)", (text,)
            ).fetchall()
        return [str(_legible(action_id)) for (action_id,) in rows]

    def erase(self, user: str, *, at: int) -> int:
        """Erase what the file has of a user, and return how many bodies had something.

        The bodies of the user's actions are erased, and those of the requests in which others were
        asked about these. From actions of others the user's votes are erased, and from the requests
        about these what others were told, which may name the user.

        `at` is the present time in Unix milliseconds. Also raises LedgerUnusable if there is no
        file.
        """
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with self._write() as connection:
            own = connection.execute("SELECT * FROM bodies WHERE user = ?", (user,)).fetchall()
            for row in own:
                self._replace(connection, _body(row).erased(at))

            asked = [
                body
                for body in self._requests_with(connection, json.dumps(user))
                if body.requested and user in body.requested.asker_ids
            ]
            for body in asked:
                self._replace(connection, body.erased(at))

            voted = connection.execute(
                "SELECT * FROM bodies WHERE instr(votes, ?)", (json.dumps(user),)
            ).fetchall()
            for row in voted:
                decided = _body(row)
                self._replace(connection, decided.without_voter(user, at))
                for request in self._requests_with(connection, json.dumps(decided.action_id)):
                    self._replace(connection, request.without_outcome())
        # The overwritten data must not remain in the write-ahead log.
        with self._open() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return len(own) + len(asked) + len(voted)

    @staticmethod
    def _requests_with(connection: sqlite3.Connection, text: str) -> list[AuditBody]:
        """Return the bodies of requests whose record contains a text."""
        rows = connection.execute("SELECT * FROM bodies WHERE instr(record, ?)", (text,)).fetchall()
        return [body for body in map(_body, rows) if body.is_request]

    def cut(self, last_numbers: Mapping[int, int]) -> int:
        """Remove the newest entries of each shard from a copy that belongs to an older Redis.

        `last_numbers` has, by shard, the number of the last entry that stays. Return how many
        entries were removed.
        """
        removed = 0
        with self._write() as connection:
            for table in ("entries", "rivals"):
                # Opening the file creates the trigger again.
                connection.execute(f"DROP TRIGGER {table}_delete")
                for shard, last in last_numbers.items():
                    rows = connection.execute(
                        f"DELETE FROM {table} WHERE shard = ? AND n > ?",  # noqa: S608  # names of this class
                        (shard, last),
                    )
                    removed += rows.rowcount
        with self._open():
            return removed

    def _append(self, connection: sqlite3.Connection, recorded: RecordedEntry) -> bool:
        """Append an entry, and return whether it is in the log now.

        False: it is invalid, or another entry has its number, so it is stored apart.
        """
        sig = self._signer.sign("entry", recorded.shard, recorded.number, recorded.text)
        stored_hash = entry_hash(recorded.text)
        row = (recorded.shard, recorded.number, recorded.text, stored_hash, sig)
        if recorded.entry:
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)", row)
            (stored_text,) = connection.execute(
                "SELECT text FROM entries WHERE shard = ? AND n = ?",
                (recorded.shard, recorded.number),
            ).fetchone()
            if stored_text == recorded.text:
                return True
        connection.execute("INSERT OR IGNORE INTO rivals VALUES (?, ?, ?, ?, ?)", row)
        return False

    def _store_body(self, connection: sqlite3.Connection, body: AuditBody) -> None:
        """Store a new body, or what is new of a known one. An erased body stays erased."""
        row = connection.execute("SELECT * FROM bodies WHERE pid = ?", (body.action_id,)).fetchone()
        if not row:
            connection.execute(
                "INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                astuple(body.signed(self._signer)),
            )
            return

        known = _body(row)
        if known.erased_at is not None:
            return
        updated = known.updated_with(body)
        if updated != known:
            self._replace(connection, updated)

    def _replace(self, connection: sqlite3.Connection, body: AuditBody) -> None:
        signed = body.signed(self._signer)
        connection.execute(
            """UPDATE bodies SET record = ?, told = ?, user = ?, erased_at = ?, sig = ?,
            decision = ?, votes = ? WHERE pid = ?""",
            (
                signed.record,
                signed.outcome_text,
                signed.user,
                signed.erased_at,
                signed.sig,
                signed.decision,
                signed.votes,
                signed.action_id,
            ),
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction. It is on disk when the block ends."""
        with self._open() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file to write. A new one can only be read by the user of this process."""
        opened = open_database(self.path, _SCHEMA, version=_VERSION, new_columns=_NEW_COLUMNS)
        with _translated_errors(self.path), opened as connection:
            connection.text_factory = _legible
            yield connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """Open the existing file to read only."""
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        opened = read_database(self.path, version=_VERSION)
        with _translated_errors(self.path), opened as connection:
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


def _loads(text: str) -> str:
    """Return the value of a JSON text as a text, "" for anything else than JSON."""
    try:
        return str(json.loads(text))
    except (ValueError, RecursionError):
        return ""


def _legible(value: object) -> object:
    """Return a column's value as text, even if it holds bytes. Its signature will not match."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value


def _body(row: Sequence[object]) -> AuditBody:
    """Return the body of a row, whose columns are in the order of the fields of AuditBody.

    A file of version 1 that is only read has fewer columns: then the last fields have their
    defaults.
    """
    names = [field.name for field in fields(AuditBody)]
    values = dict(zip(names, map(_legible, row), strict=False))
    # SQLite has no booleans.
    if values["repeatable"] is not None:
        values["repeatable"] = bool(values["repeatable"])
    return AuditBody(**values)  # type: ignore[arg-type]  # a forged value fails its signature
