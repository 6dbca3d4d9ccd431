"""Faults of a simulation: kills, pauses, restarts, outages, full memory or disk, failing platforms.

`Faults` does to the processes of a bot what a profile plans, and `FlakyPlatforms` lets the fake
platforms fail. Both draw from a seeded random generator, so a run can be repeated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from redis.exceptions import RedisError

from sayso.ops.server.embedded_redis import EmbeddedRedisError
from sayso.testing.platforms.server import ScriptedFailure
from sayso.testing.simulation.processes import BotProcesses, RedisServer, pick, spooled
from sayso.testing.simulation.profile import Profile, StorageKind
from sayso.workers.lease import LEASE_MS

#: The chance with which a send fails, by error. "drop" and "lost" stand for timeouts before and
#: after the message was accepted.
CHANCES = {"drop": 0.15, "lost": 0.15, "429": 0.10, "503": 0.05}
#: Seconds that the fakes of Telegram and Slack ask to wait: what their answers 429 say.
RETRY_AFTER = 7.0
#: The most failures in a row in one chat. The bot gives a reply up after ten attempts, with pauses
#: that double: with more failures, replies would be lost and the run would take very long.
MAX_IN_A_ROW = 4
#: How long Redis has no free memory or disk, in seconds.
FULL_SECONDS = 5.0
#: Seconds between two attempts to start a Redis that ended itself.
RETRY_SECONDS = 1.0
#: Seconds until the outage begins: by then every user is active.
OUTAGE_BEGINS_SECONDS = 5.0
#: Pause between two checks of the spool, in seconds.
POLL_SECONDS = 0.25
#: How long a worker is paused, in seconds: twice its lease on a conversation.
PAUSED_SECONDS = 2 * LEASE_MS / 1000
#: The name under which each planned fault is counted. The report prints it, and the `at_least` of a
#: profile refers to it.
_COUNT_NAMES = {
    "kill worker": "workers killed",
    "kill machine": "machines killed",
    "kill web": "web killed",
    "kill redis": "redis killed",
    "pause": "pauses",
    "full memory": "memory full",
    "full disk": "disk full",
    "outage": "outages",
    "restart": "workers restarted",
}
#: The count of webs, parents and workers that ended without a fault that ended them.
PROCESSES_ENDED = "processes ended"
#: The count of times at which Redis ended itself, because its disk was full.
_REDIS_ENDED = "redis ended"
#: The counts of what may interrupt the work of a worker.
_INTERRUPTIONS = (
    "workers killed",
    "pauses",
    "redis killed",
    "outages",
    "memory full",
    "disk full",
    _REDIS_ENDED,
    PROCESSES_ENDED,
)
#: The share of kills of a worker that also kill its parent, and with it half of the workers.
PARENT_SHARE = 0.05
#: The fewest workers that stay running while others are paused.
MIN_AWAKE = 2


class FlakyPlatforms:
    """Decides which messages a platform fails: a `FailureSource` of `FakePlatforms`.

    Lives as long as one simulation. Safe to use from threads.
    """

    def __init__(self, rng: Random, clock: Callable[[], float] = time.monotonic) -> None:
        #: The number of failures, by error.
        self.failures: Counter[str] = Counter()
        #: The number of messages that came before the pause that a 429 asked for was over.
        self.impatient = 0
        self._rng = rng
        self._clock = clock
        self._lock = threading.Lock()
        #: By chat: the number of failures in a row.
        self._in_a_row: Counter[str] = Counter()
        #: By chat: until when the last 429 asked to wait.
        self._wait_until: dict[str, float] = {}

    def __call__(self, platform: str, chat: str) -> ScriptedFailure | None:
        """Return the failure of the next message in a chat, None if it does not fail."""
        with self._lock:
            # `pop`: only the first message after a 429 is judged.
            if self._clock() < self._wait_until.pop(chat, 0.0):
                self.impatient += 1

            error = ""
            if self._in_a_row[chat] < MAX_IN_A_ROW:
                error = self._draw_error()
            if not error:
                self._in_a_row[chat] = 0
                return None

            self._in_a_row[chat] += 1
            self.failures[error] += 1
            # Twilio's 429 is about the whole account, so another chat may be sent to meanwhile.
            if error == "429" and platform != "twilio":
                self._wait_until[chat] = self._clock() + RETRY_AFTER
            return ScriptedFailure(error)

    def _draw_error(self) -> str:
        """Return an error by its chance, "" for none."""
        remaining = self._rng.random()
        for error, chance in CHANCES.items():
            remaining -= chance
            if remaining < 0:
                return error
        return ""


class FullStorage:
    """Fills the memory or the disk of Redis for a while, one at a time.

    With a full disk Redis ends itself, because it cannot write its append-only file. Then it is
    restarted, as `sayso up` does. Times are of the monotonic clock.
    """

    def __init__(self, server: RedisServer) -> None:
        #: How often Redis ended itself.
        self.deaths = 0
        self._server = server
        #: What is full now; None for nothing.
        self._storage: StorageKind | None = None
        #: When the storage is free again.
        self._until = 0.0
        #: Before this time a Redis that ended itself is not restarted again.
        self._restart_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether memory or disk is full now."""
        return self._storage is not None

    def begin(self, storage: StorageKind, now: float) -> bool:
        """Fill the memory or disk. Return False if Redis is away."""
        try:
            self._limit(storage)
        except (RedisError, OSError):
            return False
        self._storage = storage
        self._until = now + FULL_SECONDS
        return True

    def update(self, now: float) -> None:
        """Restart Redis if it ended itself, and lift the limit when it is time."""
        if self._storage is None:
            return
        is_over = now >= self._until
        # What fails here is tried again in the next step.
        with contextlib.suppress(RedisError, OSError, EmbeddedRedisError):
            if not self._server.is_alive() and (now >= self._restart_at or is_over):
                self._restart_at = now + RETRY_SECONDS
                self.deaths += 1
                self._server.restart()
                if not is_over:
                    self._limit(self._storage)
            if is_over and self._server.is_alive():
                self._server.unlimit()
                self._storage = None

    def _limit(self, storage: StorageKind) -> None:
        if storage == "memory":
            self._server.limit_memory()
        else:
            self._server.limit_disk()


@dataclass(slots=True)
class OutageRecord:
    """What is known of one outage of Redis. Times are of the monotonic clock, 0 for not yet."""

    #: When Redis went away.
    began: float = 0.0
    #: When Redis was back.
    back: float = 0.0
    #: When messages were last seen in the spool of a web, after Redis was back.
    spool_used_at: float = 0.0
    #: By HTTP status: the number of responses to webhooks that began and ended while Redis was
    #: away. Filled by `WebhookDelivery`.
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def drained_seconds(self) -> float:
        """Seconds from the return of Redis until the spool was empty; 0 without a spool."""
        return max(0.0, self.spool_used_at - self.back)


class Outage:
    """Takes Redis away once, for a number of seconds; 0 for never.

    Used in the thread that started Redis. `addresses` are the web processes whose spools are
    watched. `record` holds what is known so far.
    """

    def __init__(
        self, server: RedisServer, addresses: Sequence[str], seconds: float, now: float
    ) -> None:
        self.record = OutageRecord()
        self._server = server
        self._addresses = addresses
        self._seconds = seconds
        #: When the outage begins; infinity if it has begun or never does.
        self._due = now + OUTAGE_BEGINS_SECONDS if seconds else float("inf")
        self._next_poll = 0.0

    @property
    def is_on(self) -> bool:
        """Whether Redis is away now."""
        return self.record.began > self.record.back

    @property
    def is_ahead(self) -> bool:
        """Whether the outage is still to begin or to end."""
        return self._due != float("inf") or self.is_on

    def update(self, now: float) -> None:
        """Begin and end the outage when it is time, then watch the spool."""
        if self.is_on and now >= self.record.began + self._seconds:
            self._server.restart()
            self.record.back = now
        elif now >= self._due:
            self._due = float("inf")
            self._server.kill()
            self.record.began = now
        elif self.record.back and now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            if any(spooled(address) for address in self._addresses):
                self.record.spool_used_at = now


class Faults:
    """Injects the faults of a profile, in the thread that started the processes of the bot.

    Make it when these processes are ready. Call `inject_due` in each step while people begin
    stories (the conversations of `stories.yaml`), then `wind_down` in each step until they have
    their answers.

    A fault "machine" is about one machine of workers: a parent with its workers and its folder.
    """

    def __init__(self, bot: BotProcesses, profile: Profile, rng: Random, now: float) -> None:
        #: The number of faults and of what they caused. The names of planned faults are in
        #: _COUNT_NAMES.
        self.counts: Counter[str] = Counter()
        #: By what was killed, "redis" or "machine": when each successor began to run, on the
        #: monotonic clock.
        self.killed_at: dict[str, list[float]] = {}
        self.outage = Outage(bot.redis, bot.addresses, profile.outage_seconds, now)
        self._bot = bot
        self._rng = rng
        self._full = FullStorage(bot.redis)
        #: When each paused worker continues, by process id.
        self._paused: dict[int, float] = {}
        #: Whether a pause waits until enough workers are at work. Workers are not killed meanwhile:
        #: where they start slowly, there would never be enough.
        self._pause_waits = False
        #: The workers that a rolling restart has not replaced yet.
        self._to_restart: list[int] = []
        # Otherwise a worker that ends before the first fault would not be missed.
        bot.workers.note_workers()

        #: The seconds between two faults of a kind, and when the next one is due.
        self._intervals = _planned_intervals(profile)
        self._due = {
            name: now + seconds * rng.random() for name, seconds in self._intervals.items()
        }
        self._actions: dict[str, Callable[[float], None]] = {
            "kill worker": self._kill_worker,
            "kill machine": self._kill_machine,
            "kill web": self._kill_web,
            "kill redis": self._kill_redis,
            "pause": self._pause,
            "restart": self._restart,
            "full memory": partial(self._fill, "memory"),
            "full disk": partial(self._fill, "disk"),
        }

    @property
    def interruptions(self) -> int:
        """How often the work of a worker may have been interrupted."""
        return sum(self.counts[name] for name in _INTERRUPTIONS)

    @property
    def never_done(self) -> list[str]:
        """The planned faults that did not happen."""
        return [name for name in self._intervals if not self.counts[_COUNT_NAMES[name]]]

    @property
    def is_timed_fault_pending(self) -> bool:
        """Whether the outage is on or still to come, or a memory or disk is full."""
        return self.outage.is_ahead or self._full.is_on

    def inject_due(self, now: float) -> None:
        """Inject the faults that are due."""
        self.update(now)
        self._continue_restart()
        for name, due in self._due.items():
            if now >= due:
                # Half to one and a half intervals later, so that faults meet in all combinations.
                self._due[name] = now + self._intervals[name] * (0.5 + self._rng.random())
                self._actions[name](now)

    def update(self, now: float) -> None:
        """End the faults that are over, and restart what ended by itself."""
        self.counts[PROCESSES_ENDED] += self._bot.restart_ended()
        self.outage.update(now)
        # It would restart Redis, which the outage keeps away.
        if not self.outage.is_on:
            self._full.update(now)
        self.counts[_REDIS_ENDED] = self._full.deaths
        self.counts[_COUNT_NAMES["outage"]] = int(self.outage.record.began > 0)
        self._wake(now)

    def wind_down(self, now: float) -> None:
        """Inject no more faults, and let paused workers continue. Call it in each step.

        Faults that have begun, and the outage, still go on until their time is over, and processes
        that end by themselves are restarted.
        """
        self.update(now)
        self._due.clear()
        self._to_restart.clear()
        self._wake(float("inf"))

    def _kill_worker(self, _: float) -> None:
        """Kill a worker, now and then a random parent too.

        Paused workers are spared: the simulation is to show what they do when they continue.
        """
        victim = pick(self._awake(), self._rng)
        if not victim or self._pause_waits:
            return
        if self._rng.random() < PARENT_SHARE:
            self._bot.workers.kill_parent(self._rng)
            self.counts["parents killed"] += 1
        self._bot.workers.kill(victim)
        self._count("kill worker")

    def _kill_machine(self, _: float) -> None:
        """Kill a running machine of workers at once: the parent and all its workers."""
        parent = self._rng.choice(self._bot.workers.parents)
        if parent.is_alive() and not self._pause_waits:
            workers = self._bot.replace_machine(parent)
            self._count("kill worker", workers)
            self._count("kill machine")
            self._note_successor("machine")

    def _count(self, fault: str, times: int = 1) -> None:
        """Count a planned fault, a key of _COUNT_NAMES."""
        self.counts[_COUNT_NAMES[fault]] += times

    def _note_successor(self, part: str) -> None:
        """Note that the successor of something killed has begun to run.

        The time to recover is measured from here and not from the kill: the simulation starts the
        successor, and how long that takes says nothing about Sayso.
        """
        self.killed_at.setdefault(part, []).append(time.monotonic())

    def _awake(self) -> set[int]:
        """Return the process ids of the workers that are at work and not paused."""
        return self._bot.workers.at_work() - set(self._paused)

    def _kill_web(self, _: float) -> None:
        self._bot.restart_web(self._rng.choice(self._bot.webs), signal.SIGKILL)
        self._count("kill web")

    def _kill_redis(self, _: float) -> None:
        if not self.outage.is_on and self._bot.redis.is_alive():
            self._bot.redis.kill()
            self._bot.redis.restart()
            self._count("kill redis")
            self._note_successor("redis")

    def _fill(self, storage: StorageKind, now: float) -> None:
        if not self.outage.is_on and not self._full.is_on and self._full.begin(storage, now):
            self._count(f"full {storage}")

    def _pause(self, now: float) -> None:
        """Stop a worker beyond its lease, once enough others are at work."""
        awake = self._awake()
        self._pause_waits = len(awake) <= MIN_AWAKE
        if self._pause_waits:
            # It is tried again in the next step.
            self._due["pause"] = now
            return
        victim = pick(awake, self._rng)
        _signal(victim, signal.SIGSTOP)
        self._paused[victim] = now + PAUSED_SECONDS
        self._count("pause")

    def _wake(self, now: float) -> None:
        """Let the workers continue whose pause is over."""
        for pid, until in list(self._paused.items()):
            if now >= until:
                _signal(pid, signal.SIGCONT)
                del self._paused[pid]

    def _restart(self, _: float) -> None:
        """Begin to replace every worker, one after the other, then the webs."""
        if not self._to_restart:
            self._to_restart = sorted(self._bot.workers.at_work())

    def _continue_restart(self) -> None:
        """Do the next step of a rolling restart when the last one is done.

        A worker that was killed meanwhile, or is paused, is left out.
        """
        if not self._to_restart:
            return
        # The worker before is still stopping.
        if self._bot.workers.stopping:
            return
        worker = self._to_restart.pop()
        if worker in self._awake():
            self._bot.workers.tell_to_stop(worker)
            self._count("restart")
        if not self._to_restart:
            for web in self._bot.webs:
                self._bot.restart_web(web, signal.SIGTERM)
                self.counts["web restarted"] += 1


def _planned_intervals(profile: Profile) -> dict[str, float]:
    """Return the seconds between two faults of each kind that a profile plans."""
    intervals: dict[str, float] = {}
    for part, seconds in profile.kill_every.items():
        intervals[f"kill {part}"] = seconds
    if profile.pause_every:
        intervals["pause"] = profile.pause_every
    if profile.restart_every:
        intervals["restart"] = profile.restart_every
    for storage, seconds in profile.full_every.items():
        intervals[f"full {storage}"] = seconds
    return intervals


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
