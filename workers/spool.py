"""Spool: the door of a web process that keeps turns on its own disk while Redis cannot take them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError, ResponseError

from sayso.channels.types import Turn
from sayso.workers.breather import Breather, NotAsked
from sayso.workers.mailbox import Accepted, Entrance
from sayso.workers.spool_file import Kept, SpoolFile, SpoolUnusable

log = logging.getLogger(__name__)

#: Seconds between two looks whether what waits can be handed over.
ROUND_SECONDS = 0.5
#: Seconds after which a webhook may find out whether a Redis that was away is there again.
PAUSE_SECONDS = 1.0
#: Turns handed over before they are forgotten here, together.
BATCH = 100


class Spool:
    """Takes turns in while Redis is away, and hands them over in order when it is back; one per web process.

    A conversation of which a turn waits has its later ones wait too, in whichever process they arrive: nothing is
    overtaken. A turn handed over twice, because a process died in between, is a duplicate to the mailbox.
    """

    def __init__(
        self,
        file: SpoolFile,
        mailbox: Entrance,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._mailbox = mailbox
        self._clock = clock
        self._breather = Breather(pause_seconds=PAUSE_SECONDS, clock=steady)
        self._watching = 0
        self._lock = threading.Lock()

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Put a turn into the mailbox, or else on disk, before this returns. Raises SpoolUnusable: it is nowhere."""
        received_at = self._clock()
        if not self._file.holds(turn.conversation.id):
            try:
                return self._breather.ask(lambda: self._mailbox.accept(turn, tapped=tapped))
            except NotAsked:
                pass
            except RedisError as exc:  # it may even have arrived: then it will be a duplicate
                log.error("redis.away", extra={"reason": type(exc).__name__})
        self._file.keep(turn, tapped=tapped, received_at=received_at)
        self.watch()
        return Accepted("spooled", 0)

    def count(self) -> int:
        """How many turns wait on this machine. Raises SpoolUnusable."""
        return self._file.count()

    def check_room(self) -> None:
        """Check that another turn would be kept. Raises SpoolUnusable."""
        self._file.check_room()

    def drain(self) -> int:
        """Hand over what waits, as far as the mailbox takes it; unless another process is at it.

        Returns how many turns it took. Raises redis.RedisError, SpoolUnusable.
        """
        with self._file.alone() as alone:
            taken = self._hand_over() if alone else 0
            if alone:
                self._file.align()
        return taken

    def watch(self) -> None:
        """Empty the spool in the background, for as long as this process lives. Called again it does nothing."""
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
                taken = self.drain() if self._file.has_some() else 0
                if taken:
                    log.info("spool.drained", extra={"turns": taken, "left": self.count()})
            except RedisError:  # still away
                pass
            except Exception:
                # The rim of a thread that nobody would start again.
                log.exception("spool.not_drained")
            time.sleep(ROUND_SECONDS)

    def _hand_over(self) -> int:
        taken, last, stuck = 0, 0, set[str]()
        while batch := self._file.next(last, BATCH):
            taken += self._hand_over_some(batch, stuck)
            last = batch[-1].n
        return taken

    def _hand_over_some(self, batch: Sequence[Kept], stuck: set[str]) -> int:
        """`stuck` are the conversations of which a turn was not taken: the rest of theirs must wait behind it."""
        done: list[int] = []
        try:
            for kept in batch:
                conversation = kept.turn.conversation.id
                if conversation not in stuck and self._is_taken(kept):
                    done.append(kept.n)
                else:
                    stuck.add(conversation)
        finally:
            self._file.drop(done)
        return len(done)

    def _is_taken(self, kept: Kept) -> bool:
        waited = max(self._clock() - kept.received_at, 0.001)  # it did wait, whatever the clock did
        try:
            accepted = self._mailbox.accept(kept.turn, tapped=kept.tapped, waited_seconds=waited)
        except ResponseError as exc:  # Redis is there: what it refuses of one conversation it may take of another
            log.warning("spool.refused", extra={"n": kept.n, "reason": type(exc).__name__})
            return False
        log.info("spool.handed_over", extra={"conversation": kept.turn.conversation.id, "outcome": accepted.outcome})
        return not accepted.refused
