"""AuditLedger: the audit log in an append-only SQLite file,
with the bodies of the actions apart for erasure.

An entry records one transition of an action; the body is its signed record. Entries can be exported
as JSON lines, with their signatures and without personal data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sayso.infra.storage.files import open_database, read_database, transaction
from sayso.pending.action import PLAN_KIND, ActionSigner, ActionState, derived_keys

#: What an entry records: the state that an action changed to.
Event = ActionState
#: The exact form in which the scripts write entries. Any other could be read
#: differently by different parsers.
_ENTRY = re.compile(
    r'\{"n":(?P<n>[1-9][0-9]{0,14}),"at":(?P<at>[0-9]{1,15}),"pid":"(?P<pid>[A-Za-z0-9_-]+)",'
    r'"event":"(?P<event>[a-z]+)","by":(?P<by>"(?:[^"\\\x00-\x1f]|\\.)*"),'
    r'"body":"(?P<body>[^"\\\x00-\x1f]*)","prev":"(?P<prev>[0-9a-f]{40})"\}'
)
#: The ledger's name in the data folder.
FILE = "audit.sqlite3"

#: The triggers prevent mistakes. A process that can write to the file can drop them; each row's
#: signature is against that. `rivals` has entries whose number is taken by another entry.
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


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A parsed entry: the transition, who decided it, the MAC of the record,
    and the hash of the entry before.

    `at` is in Unix milliseconds.
    """

    n: int
    at: int
    pid: str
    event: str
    by: str
    body: str
    prev: str

    @classmethod
    def parse(cls, text: str) -> AuditEntry | None:
        """Parse the text of an entry. None: our scripts have not written it."""
        match = _ENTRY.fullmatch(text)
        if not match:
            return None
        try:
            by = str(json.loads(match["by"]))
        except ValueError:
            return None
        return cls(
            int(match["n"]),
            int(match["at"]),
            match["pid"],
            match["event"],
            by,
            match["body"],
            match["prev"],
        )


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """The text of an entry as it was found, and the number it was found under."""

    shard: int
    n: int
    text: str
    #: None for an entry in Redis, which is not signed yet.
    sig: str | None = None
    #: The hash that the source noted, if any.
    head: str | None = None

    @property
    def entry(self) -> AuditEntry | None:
        """Return the parsed entry. None: our scripts have not written it."""
        return AuditEntry.parse(self.text)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Number and hash of the last entry of a shard; number 0 when there is none."""

    n: int
    head: str


def entry_hash(text: str) -> str:
    """Return the hash by which the next entry names this one.

    Redis scripts have no hash but SHA-1.
    """
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class EntrySigner:
    """Signs with the first key and accepts signatures of all keys.

    The keys differ from those of ActionSigner, so that nothing signed here
    passes for the record of an action.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = derived_keys(keys, "sayso.audit")

    def sign(self, *parts: str | int | bool | None) -> str:
        """Return the MAC over these parts, in hex."""
        return _mac(self._keys[0], parts)

    def verify(self, sig: str, *parts: str | int | bool | None) -> bool:
        """Return whether `sig` was made over exactly these parts with one of the keys."""
        return any(
            hmac.compare_digest(_mac(key, parts).encode(), sig.encode()) for key in self._keys
        )


def _mac(key: bytes, parts: Sequence[str | int | bool | None]) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


#: What may be wrong with an entry. `forked`: two different entries have one number. `rolled back`:
#: Redis has fewer entries than the log. The last two are about the body, which is stored apart.
FaultReason = Literal[
    "edited",
    "removed",
    "reordered",
    "repeated",
    "bad signature",
    "impossible",
    "forked",
    "rolled back",
    "body edited",
    "body removed",
]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One place where the log is not as it was written."""

    shard: int
    n: int
    reason: FaultReason
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"shard {self.shard}, entry {self.n}: {self.reason}{detail}"


@dataclass(frozen=True, slots=True)
class AuditBody:
    """The signed record of an action, and what its user was told in the end.

    `repeatable`: whether the action may be started more than once, None when that is not known. It
    stays when the body is erased, as the MAC does. Times are in Unix milliseconds. A body that has
    no record and was not erased lost its record before it was collected.
    """

    pid: str
    record: str | None
    mac: str
    outcome_text: str | None
    user: str | None
    at: int
    repeatable: bool | None = None
    erased_at: int | None = None
    sig: str = ""

    @classmethod
    def of(cls, pid: str, record: str | None, mac: str, outcome_text: str, *, at: int) -> AuditBody:
        """Return the body of a record in Redis.

        A plan has no effect of its own, so it may be started again.
        """
        signed = _fields(record)
        may_repeat = bool(signed.get("idempotent")) or signed.get("kind") == PLAN_KIND
        # No lone surrogates.
        user = str(signed.get("user_id", "")).encode(errors="replace").decode() or None
        return cls(
            pid, record, mac, outcome_text, user, at, may_repeat if "pid" in signed else None
        )

    @property
    def channel(self) -> str:
        """Return the channel of the action, "" if that is not known."""
        return str(_fields(self.record).get("channel_id") or "")

    @property
    def user_name(self) -> str:
        """Return the name that the person had chosen, "" if that is not known."""
        return str(_fields(self.record).get("user_name") or "")

    @property
    def changes_of(self) -> str:
        """Return the id of the earlier proposal that the person has changed to this one,
        "" for none.
        """
        return str(_fields(self.record).get("changes_of") or "")

    @property
    def editable(self) -> dict[str, Any]:
        """Return the arguments that the person could change before the yes,
        with the values that they had.

        All others may hold what no preview shows. A plan has those of its steps,
        after their numbers.
        """
        entries = _fields(self.record).get("form")
        if not isinstance(entries, list):
            return {}
        return {str(entry.get("name")): entry.get("value") for entry in entries}

    @property
    def is_step(self) -> bool:
        """Return whether the action is a step of a plan, which is answered as a whole."""
        return bool(_fields(self.record).get("plan"))

    @property
    def preview(self) -> str:
        """Return the preview that the user agreed to, or why it is not here."""
        if self.erased_at:
            return "(erased)"
        return str(_fields(self.record).get("preview", "")) or "(not kept)"

    def signed(self, signer: EntrySigner) -> AuditBody:
        """Return the body with its signature."""
        return replace(self, sig=signer.sign(*self._parts))

    def erased(self, at: int) -> AuditBody:
        """Return the body without personal data."""
        return replace(self, record=None, outcome_text=None, user=None, erased_at=at)

    def fault(self, action_signer: ActionSigner, signer: EntrySigner, mac: str) -> str:
        """Return what is wrong with it as the body of an entry that names this MAC,
        "" when nothing is.
        """
        if not signer.verify(self.sig, *self._parts):
            return "bad signature"
        if self.mac and self.mac != mac:
            return "another record's"
        if self.record is None:
            return ""
        if not action_signer.verify(self.record, self.mac):
            return "not what was signed"
        if _fields(self.record).get("pid") == self.pid:
            return ""
        return "another action's"

    @property
    def _parts(self) -> tuple[str | int | bool | None, ...]:
        return (
            "body",
            self.pid,
            self.record,
            self.mac,
            self.outcome_text,
            self.user,
            self.at,
            self.repeatable,
            self.erased_at,
        )


def _fields(record: str | None) -> dict[str, Any]:
    """Return the fields of a record; none when it is unreadable."""
    try:
        fields = json.loads(record or "{}")
    except (ValueError, RecursionError):
        return {}
    if isinstance(fields, dict):
        return fields
    return {}


def check_bodies(
    entries: Iterable[RecordedEntry],
    bodies: Mapping[str, AuditBody],
    action_signer: ActionSigner,
    signer: EntrySigner,
) -> Iterator[Fault]:
    """Yield the faults of one ledger's bodies, each at the first entry of its action."""
    first: dict[str, tuple[int, AuditEntry]] = {}
    for recorded in entries:
        if entry := recorded.entry:
            first.setdefault(entry.pid, (recorded.shard, entry))
    for pid, (shard, entry) in first.items():
        body = bodies.get(pid)
        if body:
            problem = body.fault(action_signer, signer, entry.body)
        else:
            problem = ""
        if body is None or problem:
            yield Fault(shard, entry.n, "body edited" if body else "body removed", problem)


class LedgerUnusable(Exception):
    """Raised when a file cannot be read or written as a ledger.

    The message names it and the cure.
    """


class AuditLedger:
    """One file.

    Each call opens and closes it, so that the file can be moved or copied between two calls.
    """

    def __init__(self, path: Path, signer: EntrySigner) -> None:
        self.path = path
        self._signer = signer

    def store(
        self, entries: Sequence[RecordedEntry], bodies: Sequence[AuditBody] = ()
    ) -> list[RecordedEntry]:
        """Append all new entries and bodies, or nothing.

        Return the entries stored apart because of a conflict.

        Safe to repeat. Raises LedgerUnusable.
        """
        with self._write() as connection:
            conflicts = [entry for entry in entries if not self._append(connection, entry)]
            for body in bodies:
                self._store_body(connection, body)
            return conflicts

    def entries(self) -> list[RecordedEntry]:
        """Return all entries by number, then those whose number was taken.

        Raises LedgerUnusable.
        """
        with self._read() as connection:
            rows = connection.execute(
                "SELECT shard, n, text, sig, head FROM entries ORDER BY shard, n"
            ).fetchall()
            rows += connection.execute(
                "SELECT shard, n, text, sig, head FROM rivals ORDER BY shard, n, text"
            )
        entries = []
        for shard, n, *texts in rows:
            if not isinstance(shard, int) or not isinstance(n, int):
                raise LedgerUnusable(
                    f"{self.path} has an entry {n!r} of shard {shard!r}: Sayso did not write it, remove it"
                )
            entries.append(RecordedEntry(shard, n, *(str(_legible(text)) for text in texts)))
        return entries

    def find_entries(
        self, *, having: str = "", shard: int = -1, n: int = -1
    ) -> Iterator[tuple[int, AuditEntry]]:
        """Yield the shards and entries whose text has a piece, or the one of a number,
        without reading all into memory.

        What Sayso has not written is left out. Raises LedgerUnusable.
        """
        all_of = "SELECT shard, text FROM entries WHERE"
        with self._read() as connection:
            if having:
                rows = connection.execute(f"{all_of} instr(text, ?)", (having,))
            else:
                rows = connection.execute(f"{all_of} shard = ? AND n = ?", (shard, n))
            for row_shard, text in rows:
                entry = AuditEntry.parse(str(_legible(text)))
                if entry and isinstance(row_shard, int):
                    yield row_shard, entry

    def find_decided(self, is_it: Callable[[str], bool]) -> Iterator[AuditEntry]:
        """Yield the entries that were made for an event which `is_it` recognizes by its id.

        Raises LedgerUnusable.
        """
        by = None
        is_wanted = False
        with self._read() as connection:
            # Parsed only where it is wanted: millions of entries take seconds so.
            for (text,) in connection.execute(
                """SELECT text FROM entries WHERE NOT instr(text, '"by":""')"""
            ):
                raw = str(_legible(text)).partition('"by":')[2].partition(',"body":')[0]
                if raw != by:
                    by = raw
                    is_wanted = is_it(_loads(raw))
                if (
                    is_wanted
                    and (entry := AuditEntry.parse(str(_legible(text))))
                    and is_it(entry.by)
                ):
                    yield entry

    def bodies(self, pid: str = "") -> dict[str, AuditBody]:
        """Return the bodies by action id: of one action, or of all. Raises LedgerUnusable."""
        with self._read() as connection:
            rows = connection.execute("SELECT * FROM bodies WHERE pid = ? OR ? = ''", (pid, pid))
            bodies = [_body(row) for row in rows]
        return {body.pid: body for body in bodies}

    def find_told(self, text: str) -> list[str]:
        """Return the actions whose outcome, as its person read it, contains a text.

        Raises LedgerUnusable.
        """
        with self._read() as connection:
            rows = connection.execute(
                "SELECT pid FROM bodies WHERE instr(told, ?)", (text,)
            ).fetchall()
        return [str(_legible(pid)) for (pid,) in rows]

    def erase(self, user: str, *, at: int) -> int:
        """Remove all personal data of a user's actions from the file.

        Return how many. Raises LedgerUnusable.
        """
        if not self.path.exists():
            raise LedgerUnusable(_missing(self.path))
        with self._write() as connection:
            rows = connection.execute("SELECT * FROM bodies WHERE user = ?", (user,)).fetchall()
            for row in rows:
                self._replace(connection, _body(row).erased(at))
        # The overwritten data must not remain in the write-ahead log.
        with self._open() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return len(rows)

    def cut(self, heads: Mapping[int, int]) -> int:
        """Remove the entries after the last number of each shard from a
        copy that belongs to an older Redis.

        Return how many. Raises LedgerUnusable.
        """
        with self._write() as connection:
            removed = 0
            for table in ("entries", "rivals"):
                # Opening the file creates the trigger again.
                connection.execute(f"DROP TRIGGER {table}_delete")
                for shard, last in heads.items():
                    rows = connection.execute(
                        f"DELETE FROM {table} WHERE shard = ? AND n > ?",  # noqa: S608  # names of our own
                        (shard, last),
                    )
                    removed += rows.rowcount
        with self._open():
            return removed

    def _append(self, connection: sqlite3.Connection, recorded: RecordedEntry) -> bool:
        """Append an entry.

        False: it is invalid, or another entry has its number, so it is stored apart.
        """
        sig = self._signer.sign("entry", recorded.shard, recorded.n, recorded.text)
        row = (recorded.shard, recorded.n, recorded.text, entry_hash(recorded.text), sig)
        if recorded.entry:
            connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)", row)
            stored = connection.execute(
                "SELECT text FROM entries WHERE shard = ? AND n = ?", row[:2]
            ).fetchone()
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
                "INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                astuple(body.signed(self._signer)),
            )
        elif (
            known.erased_at is None
            and body.outcome_text
            and known.outcome_text != body.outcome_text
        ):
            self._replace(connection, replace(known, outcome_text=body.outcome_text))

    def _replace(self, connection: sqlite3.Connection, body: AuditBody) -> None:
        signed = body.signed(self._signer)
        connection.execute(
            "UPDATE bodies SET record = ?, told = ?, user = ?, erased_at = ?, sig = ? WHERE pid = ?",
            (
                signed.record,
                signed.outcome_text,
                signed.user,
                signed.erased_at,
                signed.sig,
                signed.pid,
            ),
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction on a file that only this user can read.

        It is on disk when the block ends.
        """
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
        with _translated_errors(self.path), read_database(self.path, version=1) as connection:
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
    body = AuditBody(*map(_legible, row))  # type: ignore[arg-type]  # the columns are declared in the order of the fields
    return replace(body, repeatable=None if body.repeatable is None else bool(body.repeatable))


def to_lines(entries: Iterable[RecordedEntry]) -> Iterator[str]:
    """Yield one line per entry."""
    for entry in entries:
        yield json.dumps(
            {"shard": entry.shard, "text": entry.text, "sig": entry.sig}, ensure_ascii=False
        )


def read_export(path: Path) -> list[RecordedEntry]:
    """Read the entries of an exported file. Raises LedgerUnusable.

    A text that is not an entry gets the number of the next entry of its shard.
    """
    try:
        exported = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise LedgerUnusable(f"{path} cannot be read: {exc}") from exc
    # JSON does not escape the other line ends of Unicode.
    if exported:
        lines = exported.removesuffix("\n").split("\n")
    else:
        lines = []
    entries: list[RecordedEntry] = []
    last_numbers: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            shard = int(fields["shard"])
            text = str(fields["text"])
            sig = str(fields.get("sig") or "")
            f"{text}{sig}".encode()  # a lone surrogate cannot be hashed
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise LedgerUnusable(
                f"{path}:{number}: not a line that `sayso audit export` wrote"
            ) from None
        entry = AuditEntry.parse(text)
        if entry:
            last_numbers[shard] = entry.n
        else:
            last_numbers[shard] = last_numbers.get(shard, 0) + 1
        entries.append(RecordedEntry(shard, last_numbers[shard], text, sig))
    return entries
