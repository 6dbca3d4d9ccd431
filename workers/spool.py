"""Spool: the web's queue on disk for turns while Redis is away.

With `spool: true` in the configuration, a message that comes in while Redis is away waits in a
SQLite file of the machine, and is put into its mailbox when Redis is back. `SpoolFile` is the file,
and `Spool` decides what goes into it and empties it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from redis.exceptions import RedisError, ResponseError

from sayso.channels.base import StorageDown
from sayso.channels.types import Turn
from sayso.infra.records import OtherVersion
from sayso.infra.redis.connections import CircuitOpen, RedisCircuitBreaker
from sayso.infra.storage.files import open_database, transaction, try_lock
from sayso.workers.access import AccessControl
from sayso.workers.mailbox import Accepted

log = logging.getLogger(__name__)

#: The folder's name in the data folder.
FOLDER = "spool"
#: How many turns may wait: those of about an hour at six a second.
MAX_TURNS = 20_000
#: How many turns of one conversation may wait, so that one cannot fill the spool.
MAX_TURNS_OF_ONE = 200
#: The maximum size of the file, in bytes.
MAX_SPOOL_BYTES = 64_000_000
#: How many bytes must be free on the disk: the largest turn, and what SQLite writes with it.
FREE_BYTES = 1_000_000
_PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation TEXT NOT NULL,
  event TEXT NOT NULL,
  tapped TEXT NOT NULL,
  received_at REAL NOT NULL,
  turn TEXT NOT NULL,
  unreadable INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS turns_of ON turns (conversation, event);
"""

#: Seconds between two attempts to hand over what waits.
ROUND_SECONDS = 0.5
#: After how many seconds a webhook may try a Redis again that was away.
PAUSE_SECONDS = 1.0
#: How many turns are handed over before they are deleted from the file together.
BATCH = 100


class SpoolUnusable(StorageDown):
    """Raised when the file cannot be read or written: nothing was stored.

    The message names the file.
    """


class SpoolFull(SpoolUnusable):
    """Raised when the maximum number of turns waits."""


@dataclass(frozen=True, slots=True)
class SpooledTurn:
    """A turn that waits in the file."""

    #: Its number in the file, in the order in which turns came in.
    n: int
    #: The id of its conversation.
    conversation: str
    #: The turn; None if another version of Sayso has written it, so that this process cannot read it.
    turn: Turn | None
    #: The id of the action whose button it taps, "" for none.
    tapped: str
    #: When it was received, in Unix seconds by this machine's clock.
    received_at: float


class SpoolFile:
    """A SQLite file with the turns that wait. One object per process; the machine shares the file.

    Each webhook checks whether turns wait, so there is also an empty marker file, whose lookup is
    cheap. The marker is created before the transaction of a turn ends, and removed only in a
    transaction that finds no turn. So a process that looks after a turn was stored sees it.

    Every call opens and closes the database, because processes may fork.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "turns.sqlite3"
        self._marker = str(folder / "waiting")
        #: Threads wait for it more fairly than for SQLite's lock, and no longer.
        self._lock = threading.Lock()

    def has_some(self) -> bool:
        """Return whether turns may wait. Costs one file lookup."""
        # Every webhook pays for this, and `Path` takes three times as long.
        return os.path.exists(self._marker)  # noqa: PTH110

    def holds(self, conversation: str) -> bool:
        """Return whether a turn of this conversation waits. Raises SpoolUnusable."""
        if not self.has_some():
            return False
        with self._open() as db:
            row = db.execute(
                "SELECT 1 FROM turns WHERE conversation = ? AND unreadable = 0 LIMIT 1",
                (conversation,),
            )
            return row.fetchone() is not None

    def count(self) -> int:
        """Return how many turns wait. Raises SpoolUnusable."""
        if not self.has_some():
            return 0
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM turns WHERE unreadable = 0").fetchone()[0])

    def save(self, turn: Turn, *, tapped: str, received_at: float) -> None:
        """Store a turn, once: it is on disk when this returns.

        `tapped`: the id of the action whose button it taps, "" for none. `received_at`: in Unix
        seconds. Raises SpoolUnusable, SpoolFull.
        """
        conversation = turn.conversation.id
        with self._write() as db:
            earlier = db.execute(
                "SELECT 1 FROM turns WHERE conversation = ? AND event = ?",
                (conversation, turn.event_id),
            )
            if earlier.fetchone():
                return
            self._check_room(db, conversation)
            db.execute(
                "INSERT INTO turns (conversation, event, tapped, received_at, turn)"
                " VALUES (?, ?, ?, ?, ?)",
                (conversation, turn.event_id, tapped, received_at, turn.to_json()),
            )
            Path(self._marker).touch(mode=0o600)

    def check_room(self) -> None:
        """Check that a turn of some conversation could be stored.

        Raises SpoolUnusable, SpoolFull.
        """
        with self._open() as db:
            self._check_room(db, "")
        with _translated(self._path):
            free = shutil.disk_usage(self._folder).free
        if free < FREE_BYTES:
            raise SpoolUnusable(
                f"{self._path} cannot be used as a spool: its disk has {free} bytes free"
            )

    def next(self, after: int, most: int) -> list[SpooledTurn]:
        """Return the next turns in the order they were received, none at the end of the file.

        `after`: the number of the turn before them, 0 for none. `most`: how many are returned. A
        turn that no version can read is marked so, and left out from now on. Raises SpoolUnusable.
        """
        while True:
            with self._open() as db:
                rows = db.execute(
                    "SELECT n, conversation, turn, tapped, received_at FROM turns"
                    " WHERE n > ? AND unreadable = 0 ORDER BY n LIMIT ?",
                    (after, most),
                ).fetchall()

            turns: list[SpooledTurn] = []
            for row in rows:
                spooled = self._read(*row)
                if spooled:
                    turns.append(spooled)
            # If all of them were marked now, those behind them are read. No row: the end of the file.
            if turns or not rows:
                return turns

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete turns that the mailbox has now. Raises SpoolUnusable."""
        if numbers:
            with self._write() as db:
                db.executemany("DELETE FROM turns WHERE n = ?", [(n,) for n in numbers])

    def align(self) -> None:
        """Create or remove the marker file as the database needs it.

        A crash may have left it wrong. Raises SpoolUnusable.
        """
        with self._write() as db:
            if db.execute("SELECT 1 FROM turns WHERE unreadable = 0 LIMIT 1").fetchone():
                Path(self._marker).touch(mode=0o600)
            else:
                Path(self._marker).unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether this process alone may empty the file. Raises SpoolUnusable."""
        with ExitStack() as stack:
            with _translated(self._folder):
                has_lock = stack.enter_context(try_lock(self._folder / "forward.lock"))
            yield has_lock

    def _check_room(self, db: sqlite3.Connection, conversation: str) -> None:
        """Check that a further turn of a conversation may wait. Raises SpoolFull."""
        count = "SELECT count(*), count(*) FILTER (WHERE conversation = ?) FROM turns"
        turns, of_one = db.execute(count, (conversation,)).fetchone()
        if turns >= MAX_TURNS or of_one >= MAX_TURNS_OF_ONE:
            raise SpoolFull(
                f"{self._path} is full: {turns} turns wait, {of_one} of them in {conversation}"
            )

    def _read(
        self, n: int, conversation: str, turn_json: str, tapped: str, received_at: float
    ) -> SpooledTurn | None:
        """Read a row of the file. None for a turn that no version can read, which is marked so."""
        try:
            turn = Turn.from_json(turn_json)
            return SpooledTurn(n, conversation, turn, tapped, received_at)
        except OtherVersion as exc:
            # It waits for a process that can read it, and so do the later turns of its conversation.
            log.warning("spool.unreadable", extra={"n": n, "file": self._path, "advice": str(exc)})
            return SpooledTurn(n, conversation, None, tapped, received_at)
        except ValidationError:
            # The error itself is not logged, because it would quote the turn.
            log.error("spool.unreadable", extra={"n": n, "file": self._path})

        with self._write() as db:
            db.execute("UPDATE turns SET unreadable = 1 WHERE n = ?", (n,))
        return None

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Open one transaction, which is on disk when the block ends."""
        with self._lock, self._open() as db, transaction(db):
            yield db

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the database. Raises SpoolUnusable, also for an error inside the block."""
        # Most synchronous, because the platform gets 200 for a stored turn.
        with _translated(self._path), open_database(self._path, _SCHEMA, synchronous="EXTRA") as db:
            db.execute(f"PRAGMA max_page_count = {MAX_SPOOL_BYTES // _PAGE_BYTES}")
            yield db


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise SpoolUnusable for an error of SQLite or of the disk inside the block."""
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise SpoolUnusable(f"{path} cannot be used as a spool: {exc}") from exc


class Spool:
    """Accepts turns while Redis is away, and hands them over in order when it is back.

    One per web process. While a turn of a conversation waits, its later turns wait, too, in every
    process: no turn overtakes another. If a process dies after it has handed a turn over and before
    it has deleted it, the turn is handed over again, and the mailbox knows it as a duplicate.
    """

    def __init__(
        self,
        file: SpoolFile,
        inbox: AccessControl,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inbox`: takes the turns when Redis is there. `clock`: in Unix seconds."""
        self._file = file
        self._inbox = inbox
        self._clock = clock
        self._circuit_breaker = RedisCircuitBreaker(pause_seconds=PAUSE_SECONDS, clock=monotonic)
        self._watching = 0
        self._lock = threading.Lock()

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Put a turn into the mailbox or, while Redis is away, on disk.

        `tapped`: the id of the action whose button it taps, "" for none. Raises SpoolUnusable.
        """
        received_at = self._clock()
        if not self._file.holds(turn.conversation.id):
            try:
                with self._circuit_breaker.attempt():
                    return self._inbox.accept(turn, tapped=tapped)
            except CircuitOpen:
                # Redis was away a moment ago, so it is not asked again by every webhook.
                pass
            except RedisError as exc:
                # It may have arrived all the same: then it will be a duplicate.
                log.error("redis.away", extra={"reason": type(exc).__name__})

        # What the bot ignores is not written to disk.
        reason = self._inbox.ignores(turn)
        if reason:
            ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
            log.info("turn.ignored", extra={**ids, "reason": reason})
            return Accepted("ignored", 0)
        self._file.save(turn, tapped=tapped, received_at=received_at)
        self.watch()
        return Accepted("spooled", 0)

    def count(self) -> int:
        """Return how many turns wait on this machine. Raises SpoolUnusable."""
        return self._file.count()

    def check_room(self) -> None:
        """Check that another turn could be stored. Raises SpoolUnusable."""
        self._file.check_room()

    def forward(self) -> int:
        """Hand over what waits, as far as the mailbox accepts it, unless another process does so.

        Return how many turns were handed over. Raises redis.RedisError, SpoolUnusable.
        """
        count = 0
        stuck = set[str]()
        with self._file.alone() as is_alone:
            if not is_alone:
                return 0
            batch = self._file.next(0, BATCH)
            while batch:
                count += self._hand_over(batch, stuck)
                batch = self._file.next(batch[-1].n, BATCH)
            self._file.align()
        return count

    def watch(self) -> None:
        """Empty the spool in the background for the life of this process.

        A second call does nothing.
        """
        with self._lock:
            if self._watching == os.getpid():  # a thread does not survive a fork
                return
            self._watching = os.getpid()
            try:
                self._file.align()
            except SpoolUnusable:
                log.exception("spool.unusable")
            threading.Thread(target=self._watch, name="spool", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                count = 0
                if self._file.has_some():
                    count = self.forward()
                if count:
                    log.info("spool.forwarded", extra={"turns": count, "left": self.count()})
            except RedisError:
                # Redis is still away.
                pass
            except Exception:
                # Nothing would restart this thread.
                log.exception("spool.failed")
            time.sleep(ROUND_SECONDS)

    def _hand_over(self, batch: Sequence[SpooledTurn], stuck: set[str]) -> int:
        """Hand over a batch of turns. Return how many the mailbox has now.

        `stuck`: the conversations with a turn that was not accepted, or that this process cannot
        read. Their later turns stay, so that none overtakes it. Conversations are added.
        """
        done: list[int] = []
        try:
            for spooled in batch:
                is_taken = False
                if spooled.turn is not None and spooled.conversation not in stuck:
                    is_taken = self._is_taken(spooled.turn, spooled)
                if is_taken:
                    done.append(spooled.n)
                else:
                    stuck.add(spooled.conversation)
        finally:
            self._file.delete(done)
        return len(done)

    def _is_taken(self, turn: Turn, spooled: SpooledTurn) -> bool:
        """Hand over the turn of a row. Return whether the mailbox has dealt with it."""
        # It did wait, even if the clock was set back.
        waited = max(self._clock() - spooled.received_at, 0.001)
        ids = {"conversation": spooled.conversation, "event": turn.event_hash}
        try:
            accepted = self._inbox.accept(turn, tapped=spooled.tapped, waited_seconds=waited)
        except (ResponseError, OtherVersion) as exc:
            # Redis is there: it may accept turns of other conversations.
            log.warning(
                "spool.refused", extra={**ids, "n": spooled.n, "reason": type(exc).__name__}
            )
            return False
        log.info(
            "spool.handed_over", extra={**ids, "seq": accepted.seq, "outcome": accepted.outcome}
        )
        return not accepted.refused
