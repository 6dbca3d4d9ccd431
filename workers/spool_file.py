"""SpoolFile: turns that wait on one machine's disk, in order, shared by its processes.

SpoolUnusable   the file cannot be read or written
└── SpoolFull   it holds as much as it may
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from sayso.channels.types import Turn

log = logging.getLogger(__name__)

#: The folder's name in the data folder.
FOLDER = "spool"
#: Turns that may wait: about an hour of six a second.
MAX_TURNS = 20_000
#: Turns of one conversation that may wait, so that one cannot take the room of all.
MAX_TURNS_OF_ONE = 200
#: Bytes the file may have.
MAX_BYTES = 64_000_000
#: Bytes that are free on a disk that is not full: the largest turn with what SQLite writes beside it.
FREE_BYTES = 1_000_000
#: Seconds to wait for another process that writes to the same file.
PATIENCE = 5.0

_PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, event TEXT NOT NULL, tapped TEXT NOT NULL,
  received_at REAL NOT NULL, turn TEXT NOT NULL, unreadable INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS turns_of ON turns (conversation, event);
"""


class SpoolUnusable(Exception):
    """Raised when the file cannot be read or written: nothing was kept. The message names it."""


class SpoolFull(SpoolUnusable):
    """Raised when as many turns wait as may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait."""

    turns: int = MAX_TURNS
    turns_of_one: int = MAX_TURNS_OF_ONE
    bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Kept:
    """One turn that waits, the action its button names, and when it came in, by this machine's clock."""

    n: int
    turn: Turn
    tapped: str
    received_at: float


class SpoolFile:
    """A SQLite file and, beside it, a sign that something waits, so that looking costs no more than a file's name.

    The sign is put up before a turn's transaction ends and taken down only in a transaction that finds nothing: whoever
    looks after a turn was kept sees it. Every call opens and closes the file, so that processes may fork.
    """

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self._folder = folder
        self._path = folder / "turns.sqlite3"
        self._sign = str(folder / "waiting")
        self._limits = limits or Limits()
        self._lock = threading.Lock()  # threads wait for each other here: fairer than SQLite's waiting, and no slower

    def has_some(self) -> bool:
        """Whether anything may wait. Costs a look at a file's name."""
        return os.path.exists(self._sign)  # noqa: PTH110  # a third of what Path costs, and every webhook pays it

    def holds(self, conversation: str) -> bool:
        """Whether a turn of this conversation waits. Raises SpoolUnusable."""
        if not self.has_some():
            return False
        with self._open() as db:
            found = db.execute("SELECT 1 FROM turns WHERE conversation = ? AND unreadable = 0 LIMIT 1", (conversation,))
            return found.fetchone() is not None

    def count(self) -> int:
        """How many turns wait. Raises SpoolUnusable."""
        if not self.has_some():
            return 0
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM turns WHERE unreadable = 0").fetchone()[0])

    def keep(self, turn: Turn, *, tapped: str, received_at: float) -> None:
        """Put a turn on disk, once: it is there when this returns. Raises SpoolUnusable, SpoolFull."""
        row = (turn.conversation.id, turn.event_id, tapped, received_at, turn.to_json())
        with self._write() as db:
            if db.execute("SELECT 1 FROM turns WHERE conversation = ? AND event = ?", row[:2]).fetchone():
                return
            self._check_room(db, turn.conversation.id)
            db.execute("INSERT INTO turns (conversation, event, tapped, received_at, turn) VALUES (?, ?, ?, ?, ?)", row)
            Path(self._sign).touch(mode=0o600)

    def check_room(self) -> None:
        """Check that a turn of some conversation would be kept. Raises SpoolUnusable, SpoolFull."""
        with self._open() as db:
            self._check_room(db, "")
        with _clear(self._path):
            free = shutil.disk_usage(self._folder).free
        if free < FREE_BYTES:
            raise SpoolUnusable(f"{self._path} cannot be used as a spool: its disk has {free} bytes free")

    def next(self, after: int, most: int) -> list[Kept]:
        """The next turns in the order they came in. One that cannot be read is put aside. Raises SpoolUnusable."""
        with self._open() as db:
            rows = db.execute(
                "SELECT n, turn, tapped, received_at FROM turns WHERE n > ? AND unreadable = 0 ORDER BY n LIMIT ?",
                (after, most),
            ).fetchall()
        return [kept for row in rows if (kept := self._read(*row))]

    def drop(self, numbers: Sequence[int]) -> None:
        """Forget turns that are kept elsewhere by now. Raises SpoolUnusable."""
        if numbers:
            with self._write() as db:
                db.executemany("DELETE FROM turns WHERE n = ?", [(n,) for n in numbers])

    def align(self) -> None:
        """Put the sign up or take it down, as the file is: a crash may have left it wrong. Raises SpoolUnusable."""
        with self._write() as db:
            if db.execute("SELECT 1 FROM turns WHERE unreadable = 0 LIMIT 1").fetchone():
                Path(self._sign).touch(mode=0o600)
            else:
                Path(self._sign).unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else on this machine empties the file, and nobody does meanwhile. Ends with its process."""
        with _clear(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self._folder / "drain.lock").open("a")
        with lock:
            yield _locked(lock)

    def _check_room(self, db: sqlite3.Connection, conversation: str) -> None:
        count = "SELECT count(*), count(*) FILTER (WHERE conversation = ?) FROM turns"
        turns, of_one = db.execute(count, (conversation,)).fetchone()
        if turns >= self._limits.turns or of_one >= self._limits.turns_of_one:
            raise SpoolFull(f"{self._path} is full: {turns} turns wait, {of_one} of them in {conversation}")

    def _read(self, n: int, turn: str, tapped: str, received_at: float) -> Kept | None:
        try:
            return Kept(n, Turn.from_json(turn), tapped, received_at)
        except ValidationError:  # its message would repeat the turn
            log.error("spool.unreadable", extra={"n": n, "file": self._path})
        with self._write() as db:
            db.execute("UPDATE turns SET unreadable = 1 WHERE n = ?", (n,))
        return None

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on disk when it is over."""
        with self._lock, self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            yield db  # an error ends with the connection, and the transaction with it
            db.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with _clear(self._path):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # before SQLite would make it readable for others
            with closing(sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous = EXTRA")  # the platform hears 200 for what is stored here
                db.execute("PRAGMA secure_delete = ON")
                db.execute(f"PRAGMA max_page_count = {self._limits.bytes // _PAGE_BYTES}")
                db.executescript(_SCHEMA)
                yield db


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise SpoolUnusable(f"{path} cannot be used as a spool: {exc}") from exc
