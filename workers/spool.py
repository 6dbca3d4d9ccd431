"""Spool: the web's disk queue for turns while Redis is away (SQLite)."""

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
#: Turns that may wait: about an hour at six a second.
MAX_TURNS = 20_000
#: Turns of one conversation that may wait, so that one cannot fill the spool.
MAX_TURNS_OF_ONE = 200
#: Maximum bytes of the file.
MAX_SPOOL_BYTES = 64_000_000
#: Bytes that must be free on the disk: the largest turn with what SQLite writes beside it.
FREE_BYTES = 1_000_000
_PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
  n INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, event TEXT NOT NULL, tapped TEXT NOT NULL,
  received_at REAL NOT NULL, turn TEXT NOT NULL, unreadable INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS turns_of ON turns (conversation, event);
"""

#: Seconds between two attempts to hand over what waits.
ROUND_SECONDS = 0.5
#: Seconds after which a webhook may try a Redis again that was away.
PAUSE_SECONDS = 1.0
#: Turns that are handed over before they are deleted here together.
BATCH = 100


class SpoolUnusable(StorageDown):
    """Raised when the file cannot be read or written: nothing was stored.

    The message names the file.
    """


class SpoolFull(SpoolUnusable):
    """Raised when the maximum number of turns waits."""


@dataclass(frozen=True, slots=True)
class SpooledTurn:
    """A waiting turn, the action that its button names, and when it was received,
    by this machine's clock.
    """

    n: int
    turn: Turn
    tapped: str
    received_at: float


class SpoolFile:
    """A SQLite file with the turns that wait, and an empty marker file,
    so that a check costs one file lookup.

    The marker is created before a turn's transaction ends and removed only in a transaction that
    finds nothing: a process that looks after a turn was stored sees it. Every call opens and closes
    the database: processes may fork.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "turns.sqlite3"
        self._marker = str(folder / "waiting")
        self._lock = threading.Lock()  # fairer to threads than SQLite's own wait, and no slower

    def has_some(self) -> bool:
        """Return whether turns may wait. Costs one file lookup."""
        return os.path.exists(self._marker)  # noqa: PTH110  # a third of what Path costs, and every webhook pays it

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

    def keep(self, turn: Turn, *, tapped: str, received_at: float) -> None:
        """Store a turn, once: it is on disk when this returns. Raises SpoolUnusable, SpoolFull."""
        row = (turn.conversation.id, turn.event_id, tapped, received_at, turn.to_json())
        with self._write() as db:
            if db.execute(
                "SELECT 1 FROM turns WHERE conversation = ? AND event = ?", row[:2]
            ).fetchone():
                return
            self._check_room(db, turn.conversation.id)
            db.execute(
                "INSERT INTO turns (conversation, event, tapped, received_at, turn) VALUES (?, ?, ?, ?, ?)",
                row,
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
        """Return the next turns in the order they were received.

        A turn that cannot be read is marked so and skipped.

        Raises SpoolUnusable.
        """
        with self._open() as db:
            rows = db.execute(
                "SELECT n, turn, tapped, received_at FROM turns WHERE n > ? AND unreadable = 0 ORDER BY n LIMIT ?",
                (after, most),
            ).fetchall()
        return [spooled for row in rows if (spooled := self._read(*row))]

    def drop(self, numbers: Sequence[int]) -> None:
        """Delete turns that the mailbox has now. Raises SpoolUnusable."""
        if numbers:
            with self._write() as db:
                db.executemany("DELETE FROM turns WHERE n = ?", [(n,) for n in numbers])

    def align(self) -> None:
        """Create or remove the marker file as the database needs it:
        a crash may have left it wrong.
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
        count = "SELECT count(*), count(*) FILTER (WHERE conversation = ?) FROM turns"
        turns, of_one = db.execute(count, (conversation,)).fetchone()
        if turns >= MAX_TURNS or of_one >= MAX_TURNS_OF_ONE:
            raise SpoolFull(
                f"{self._path} is full: {turns} turns wait, {of_one} of them in {conversation}"
            )

    def _read(self, n: int, turn: str, tapped: str, received_at: float) -> SpooledTurn | None:
        try:
            return SpooledTurn(n, Turn.from_json(turn), tapped, received_at)
        except OtherVersion as exc:  # it waits for a process that can read it
            log.warning("spool.unreadable", extra={"n": n, "file": self._path, "advice": str(exc)})
            return None
        except ValidationError:  # the error would quote the turn
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
        # Most synchronous, because the platform gets 200 for a stored turn.
        with _translated(self._path), open_database(self._path, _SCHEMA, synchronous="EXTRA") as db:
            db.execute(f"PRAGMA max_page_count = {MAX_SPOOL_BYTES // _PAGE_BYTES}")
            yield db


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise SpoolUnusable(f"{path} cannot be used as a spool: {exc}") from exc


class Spool:
    """Accepts turns while Redis is away, and hands them over in order when it is back;
    one per web process.

    While a turn of a conversation waits, its later turns wait too, in every process: no turn
    overtakes another. A turn that is handed over twice, because a process died in between, is a
    duplicate to the mailbox.
    """

    def __init__(
        self,
        file: SpoolFile,
        inbox: AccessControl,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._inbox = inbox
        self._clock = clock
        self._circuit_breaker = RedisCircuitBreaker(pause_seconds=PAUSE_SECONDS, clock=monotonic)
        self._watching = 0
        self._lock = threading.Lock()

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Put a turn into the mailbox, or else on disk, before this returns.

        Raises SpoolUnusable.
        """
        received_at = self._clock()
        if not self._file.holds(turn.conversation.id):
            try:
                with self._circuit_breaker.attempt():
                    return self._inbox.accept(turn, tapped=tapped)
            except CircuitOpen:
                pass
            except RedisError as exc:
                # It may have arrived all the same: then it will be a duplicate.
                log.error("redis.away", extra={"reason": type(exc).__name__})
        if reason := self._inbox.ignores(turn):  # not written to disk
            ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
            log.info("turn.ignored", extra={**ids, "reason": reason})
            return Accepted("ignored", 0)
        self._file.keep(turn, tapped=tapped, received_at=received_at)
        self.watch()
        return Accepted("spooled", 0)

    def count(self) -> int:
        """Return how many turns wait on this machine. Raises SpoolUnusable."""
        return self._file.count()

    def check_room(self) -> None:
        """Check that another turn could be stored. Raises SpoolUnusable."""
        self._file.check_room()

    def forward(self) -> int:
        """Hand over what waits, as far as the mailbox accepts it,
        unless another process is doing so.

        Return how many turns were handed over. Raises redis.RedisError, SpoolUnusable.
        """
        count = 0
        last = 0
        stuck = set[str]()
        with self._file.alone() as is_alone:
            if is_alone:
                while batch := self._file.next(last, BATCH):
                    count += self._hand_over(batch, stuck)
                    last = batch[-1].n
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
                if self._file.has_some():
                    count = self.forward()
                else:
                    count = 0
                if count:
                    log.info("spool.forwarded", extra={"turns": count, "left": self.count()})
            except RedisError:  # still away
                pass
            except Exception:
                # Nothing would restart this thread.
                log.exception("spool.failed")
            time.sleep(ROUND_SECONDS)

    def _hand_over(self, batch: Sequence[SpooledTurn], stuck: set[str]) -> int:
        """Hand over a batch.

        Turns of a conversation in `stuck` stay: an earlier turn of it was not accepted.
        """
        done: list[int] = []
        try:
            for spooled in batch:
                conversation = spooled.turn.conversation.id
                if conversation not in stuck and self._is_taken(spooled):
                    done.append(spooled.n)
                else:
                    stuck.add(conversation)
        finally:
            self._file.drop(done)
        return len(done)

    def _is_taken(self, spooled: SpooledTurn) -> bool:
        # It did wait, even if the clock was set back.
        waited = max(self._clock() - spooled.received_at, 0.001)
        ids = {"conversation": spooled.turn.conversation.id, "event": spooled.turn.event_hash}
        try:
            accepted = self._inbox.accept(
                spooled.turn, tapped=spooled.tapped, waited_seconds=waited
            )
        except (
            ResponseError,
            OtherVersion,
        ) as exc:
            # Redis is there: it may accept turns of other conversations.
            log.warning(
                "spool.refused", extra={**ids, "n": spooled.n, "reason": type(exc).__name__}
            )
            return False
        log.info(
            "spool.handed_over", extra={**ids, "seq": accepted.seq, "outcome": accepted.outcome}
        )
        return not accepted.refused
