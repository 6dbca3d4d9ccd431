"""KnownShards: what a process knows of the shards of one server, in memory.

It knows their watermarks, which of them are halted, and which lost writes while their halt could
not be written. The guard asks the server and decides; this object remembers, for all threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sayso.infra.redis.connections import CURE
from sayso.workers.data_loss.watermarks import HaltReason, ShardAnswer, ShardState, Watermarks

log = logging.getLogger(__name__)

#: How many changes of a shard's watermark a process remembers with their times: about the last
#: minute of a busy shard.
MOMENTS = 300


@dataclass(frozen=True, slots=True)
class Learned:
    """What a process has learned of a server.

    It is replaced as a whole and never changed, because a check needs the value of its beginning.
    """

    watermarks: Watermarks = field(default_factory=dict)
    #: The answers from which the watermarks were learned, by shard. A shard that gives the same
    #: answer again has lost nothing.
    answers: Mapping[int, ShardAnswer] = field(default_factory=dict)


class KnownShards:
    """Remembers watermarks and halts. Lives as long as its guard. Any thread may call it."""

    def __init__(self, watermarks: Watermarks, clock: Callable[[], float] = time.monotonic) -> None:
        """`watermarks`: those that are known from the start. `clock`: monotonic, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        #: Replaced under the lock, read without it.
        self.learned = Learned(watermarks)
        #: The write counters of the watermarks by shard, for the scripts. Changed in place.
        self.seen_writes: dict[int | str, int] = {
            shard: watermark.writes for shard, watermark in watermarks.items()
        }
        #: When a shard was seen to have how many writes.
        self._moments: defaultdict[int, deque[tuple[float, int]]] = defaultdict(
            partial(deque, maxlen=MOMENTS)
        )

        #: The halts of shards as JSON, as far as this process knows.
        self._halts: dict[int, str] = {}
        #: Shards that have lost writes while the halt could not be written.
        self._refused: set[int] = set()
        #: Set while there are any of them: then this process refuses all commands.
        self.refusing = threading.Event()
        #: Set when the server was resumed; the thread that waits for it clears it.
        self.resumed = threading.Event()

    @property
    def has_trouble(self) -> bool:
        """Return whether a shard is halted or refused."""
        return bool(self._halts) or self.refusing.is_set()

    def changed(self, answers: Mapping[int, ShardAnswer], before: Learned) -> Collection[int]:
        """Return the shards to look at: those whose answer is not the one that was learned.

        While any shard is halted or refused, return all: an operator may have resumed them.
        """
        if self._halts or self._refused:
            return answers.keys()
        return [shard for shard, answer in answers.items() if before.answers.get(shard) != answer]

    def learn(self, answers: Mapping[int, ShardAnswer]) -> None:
        """Remember the watermarks of shards that work. Those that were halted have been resumed."""
        with self._lock:
            watermarks = dict(self.learned.watermarks)
            learned_answers = dict(self.learned.answers)
            for shard, answer in answers.items():
                state = ShardState.of(answer)
                before = watermarks.get(shard)
                watermark = state.next_watermark(before)
                if watermark is None:
                    continue
                if watermark != before:
                    watermarks[shard] = watermark
                    self.seen_writes[shard] = watermark.writes
                    self._moments[shard].append((self._clock(), state.writes))
                # An answer that another check has overtaken is below the watermark: a server that
                # gives it later has lost writes.
                if state.writes == watermark.writes:
                    learned_answers[shard] = answer
            self.learned = Learned(watermarks, learned_answers)

            self._refuse(self._refused - answers.keys())
            resumed = self._halts.keys() & answers.keys()
            for shard in resumed:
                del self._halts[shard]
            is_working = not self._halts

        if resumed:
            self.resumed.set()
            if is_working:
                log.warning("redis.resumed")

    def note_halts(self, states: Mapping[int, ShardState]) -> None:
        """Note which shards are halted, of those that answered."""
        halted = {shard: state.halted for shard, state in states.items() if state.halted}
        with self._lock:
            new = halted.keys() - self._halts.keys()
            self._halts |= halted
            self._refuse(self._refused - halted.keys())
        if new:
            reasons = (HaltReason.read(halted[shard]) for shard in new)
            log.error("redis.halted", extra=halt_log_fields(reasons) | {"advice": CURE})

    def note_own_halts(self, halts: Mapping[int, HaltReason]) -> None:
        """Note the halts that this process has written."""
        with self._lock:
            self._halts |= {shard: halt.to_json() for shard, halt in halts.items()}
            self._refuse(self._refused - halts.keys())

    def refuse(self, shards: Iterable[int]) -> None:
        """Refuse all commands while any of these shards has lost writes and is not halted."""
        with self._lock:
            self._refuse({*self._refused, *shards})

    def _refuse(self, shards: set[int]) -> None:
        """Set which shards are refused. The caller has the lock."""
        self._refused = shards
        if shards:
            self.refusing.set()
        else:
            self.refusing.clear()

    def seconds_after(self, shard: int, writes: int) -> float | None:
        """Return for how many seconds a shard was seen to go on after it had this many writes.

        None if this process did not see that write.
        """
        with self._lock:
            moments = list(self._moments[shard])
        if not moments or moments[0][1] > writes:
            return None
        last_at, _ = moments[-1]
        later = [at for at, seen in moments if seen > writes]
        first_later_at = later[0] if later else last_at
        return last_at - first_later_at


def halt_log_fields(halts: Iterable[HaltReason]) -> dict[str, Any]:
    """Return what the log says of halts: how much was lost together."""
    halt = HaltReason.sum(halts)
    seconds = "unknown"
    if halt.lost_seconds is not None:
        seconds = f"{halt.lost_seconds:.1f}"
    return {"remembered": halt.remembered, "found": halt.found, "lost_seconds": seconds}
