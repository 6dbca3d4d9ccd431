"""Kills, pauses, outages, a lossy proxy (toxiproxy), a wrong clock (libfaketime)."""

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

from sayso.config.server.embedded_redis import EmbeddedRedisError
from sayso.testing.platforms.server import Failure, RecordedRequest
from sayso.testing.simulation.plan import Plan, Room
from sayso.testing.simulation.processes import Machine, RedisServer, pick, spooled
from sayso.workers.mailbox import LEASE_MS

#: How probable each failure is. The two hang-ups stand for timeouts, cut short: before the message was taken, after it.
CHANCES = {"drop": 0.15, "lost": 0.15, "429": 0.10, "503": 0.05}


#: Seconds that the fakes ask to wait for, where they say it: Telegram and Slack.
RETRY_AFTER = 7.0


#: Failures in a row in one chat at most. The pauses between tries double, and after ten a reply is given up.
MOST_IN_A_ROW = 4


#: Who names a chat how.
_CHAT_FIELDS = {"twilio": "To", "telegram": "chat_id", "slack": "channel"}


class Flaky:
    """Asked about every message of every platform, from their servers' threads. `impatient` counts early retries."""

    def __init__(self, chance: Random, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures: Counter[str] = Counter()
        self.impatient = 0
        self._chance, self._clock = chance, clock
        self._lock = threading.Lock()
        self._row: Counter[str] = Counter()
        self._closed_until: dict[str, float] = {}

    def __call__(self, platform: str, call: RecordedRequest) -> Failure | None:
        """What goes wrong with this message, if anything."""
        fields = call.params
        chat = str(fields.get(_CHAT_FIELDS[platform]) or fields.get("channel_id"))
        with self._lock:
            self.impatient += self._clock() < self._closed_until.pop(chat, 0.0)
            error = self._error() if self._row[chat] < MOST_IN_A_ROW else ""
            self._row[chat] = self._row[chat] + 1 if error else 0
            if error == "429" and platform != "twilio":
                self._closed_until[chat] = self._clock() + RETRY_AFTER
            if not error:
                return None
            self.failures[error] += 1
            return Failure(error)

    def _error(self) -> str:
        drawn = self._chance.random()
        for error, chance in CHANCES.items():
            drawn -= chance
            if drawn < 0:
                return error
        return ""


#: Seconds without room, and between two tries to start what ended itself for want of it.
FULL_SECONDS, RETRY_SECONDS = 5.0, 1.0


class Full:
    """Lives as long as its server. With a full disk Redis ends itself, and is started again as `sayso up` would."""

    def __init__(self, server: RedisServer) -> None:
        self.deaths = 0
        self._server = server
        self._room: Room | None = None
        self._until = self._retry = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is no room now."""
        return self._room is not None

    def begin(self, room: Room, now: float) -> bool:
        """Take the room away. Whether that was possible: not while Redis is away."""
        with contextlib.suppress(RedisError, OSError):
            self._limit(room)
            self._room, self._until = room, now + FULL_SECONDS
            return True
        return False

    def tend(self, now: float) -> None:
        """Start Redis again where it ended itself, and give the room back when it is time."""
        if self._room is None:
            return
        with contextlib.suppress(RedisError, OSError, EmbeddedRedisError):
            if not self._server.is_alive() and (now >= self._retry or now >= self._until):
                self._retry = now + RETRY_SECONDS
                self.deaths += 1
                self._server.restart()
                if now < self._until:
                    self._limit(self._room)
            if now >= self._until and self._server.is_alive():
                self._server.unlimit()
                self._room = None

    def _limit(self, room: Room) -> None:
        if room == "memory":
            self._server.limit_memory()
        else:
            self._server.limit_disk()


#: Seconds after which it begins: by then everybody talks.
BEGIN_SECONDS = 5.0


#: Seconds between two looks at the spool.
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class Away:
    """What is known of one outage. Moments are of the monotonic clock; `statuses` are what webhooks heard in it."""

    began: float = 0.0
    back: float = 0.0
    spool_empty: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def drained_seconds(self) -> float:
        """From Redis's return until no message waited on the disk of the web; 0 without a spool."""
        return max(0.0, self.spool_empty - self.back)


class Outage:
    """Lives as long as its machine, in the thread that made it. `away` tells what is known so far."""

    def __init__(self, server: RedisServer, doors: Sequence[str], seconds: float, now: float) -> None:
        self.away = Away()
        self._server, self._doors, self._seconds = server, doors, seconds
        self._due = now + BEGIN_SECONDS if seconds else float("inf")
        self._look = 0.0

    @property
    def is_on(self) -> bool:
        """Whether Redis is away now."""
        return self.away.began > self.away.back

    @property
    def is_ahead(self) -> bool:
        """Whether it is still to come, or to end."""
        return self._due != float("inf") or self.is_on

    def tend(self, now: float) -> None:
        """Begin and end when it is time, then watch the spool."""
        if self.is_on and now >= self.away.began + self._seconds:
            self._server.restart()
            self.away.back = now
        elif now >= self._due:
            self._due = float("inf")
            self._server.kill()
            self.away.began = now
        elif self.away.back and now >= self._look:
            self._look = now + LOOK_SECONDS
            self._watch(now)

    def _watch(self, now: float) -> None:
        if any(spooled(door) for door in self._doors):
            self.away.spool_empty = now


#: Seconds that a worker is stopped for: twice as long as it may hold a conversation without a word.
PAUSED_SECONDS = 2 * LEASE_MS / 1000


#: How each fault is counted.
_COUNTED = {
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


#: What takes something out of a worker's hands.
_HITS = ("workers killed", "pauses", "redis killed", "outages", "memory full", "disk full", "redis ended", "ended")


#: How many of the kills take a parent of workers too, and with it half of them.
PARENTS = 0.05


#: Workers that are left running when others are stopped.
LEAST_AWAKE = 2


class Faults:
    """Lives as long as its machine, in the thread that made it. `counts` says what was done, `killed_at` when."""

    def __init__(self, machine: Machine, plan: Plan, chance: Random, now: float) -> None:
        self.counts: Counter[str] = Counter()
        self.killed_at: dict[str, list[float]] = {}
        self._machine, self._chance = machine, chance
        self._paused: dict[int, float] = {}
        self._old: list[int] = []
        self.outage = Outage(machine.redis, machine.doors, plan.outage, now)
        self._full = Full(machine.redis)
        machine.crew.at_work()  # whoever is there from the beginning must be there in the end
        self._rates: dict[str, float] = {f"kill {part}": seconds for part, seconds in plan.kill.items()}
        self._rates |= {"pause": plan.pause} if plan.pause else {}
        self._rates |= {"restart": plan.restart} if plan.restart else {}
        self._rates |= {f"full {room}": seconds for room, seconds in plan.full.items()}
        self._due = {name: now + seconds * chance.random() for name, seconds in self._rates.items()}
        self._acts: dict[str, Callable[[float], None]] = {
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
    def hits(self) -> int:
        """How often something was taken out of a worker's hands."""
        return sum(self.counts[name] for name in _HITS)

    @property
    def never_done(self) -> list[str]:
        """What was planned and did not happen."""
        return [name for name in self._rates if not self.counts[_COUNTED[name]]]

    @property
    def is_broken(self) -> bool:
        """Whether something is broken that mends only by its time, or will be."""
        return self.outage.is_ahead or self._full.is_on

    def strike(self, now: float) -> None:
        """Do what is due."""
        self.tend(now)
        self._roll()
        for name, due in self._due.items():
            if now >= due:
                self._due[name] = now + self._after(self._rates[name])
                self._acts[name](now)

    def tend(self, now: float) -> None:
        """Mend what is due to be mended."""
        self.counts["ended"] += self._machine.tend()
        self.outage.tend(now)
        self._full.tend(now)
        self.counts["redis ended"] = self._full.deaths
        self.counts["outages"] = int(self.outage.away.began > 0)
        self._wake(now)

    def end(self, now: float) -> None:
        """Nothing more is broken, and what is stopped goes on; what died by itself is still replaced."""
        self.tend(now)
        self._due.clear()
        self._old.clear()
        self._wake(float("inf"))

    def _after(self, seconds: float) -> float:
        return seconds * (0.5 + self._chance.random())

    def _kill_worker(self, _: float) -> None:
        """One that is at work, now and then their parent too.

        The stopped ones are spared: what they do when they go on is a fault of its own.
        """
        victim = pick(self._awake(), self._chance)
        if not victim:
            return
        if self._chance.random() < PARENTS:
            self._machine.crew.kill_parent(self._chance)
            self.counts["parents killed"] += 1
        self._machine.crew.kill(victim)
        self.counts["workers killed"] += 1

    def _kill_machine(self, _: float) -> None:
        """One that is up, with all its workers at once."""
        parent = self._chance.choice(self._machine.crew.parents)
        if parent.is_alive():
            self.counts["workers killed"] += self._machine.lose(parent)
            self._note("machine")

    def _note(self, part: str) -> None:
        """It was killed, and its successor runs or is about to."""
        self.counts[_COUNTED[f"kill {part}"]] += 1
        self.killed_at.setdefault(part, []).append(time.monotonic())

    def _awake(self) -> set[int]:
        return self._machine.crew.at_work() - set(self._paused)

    def _kill_web(self, _: float) -> None:
        self._machine.restart_web(self._chance.choice(self._machine.webs), signal.SIGKILL)
        self.counts["web killed"] += 1

    def _kill_redis(self, _: float) -> None:
        if not self.outage.is_on and self._machine.redis.is_alive():
            self._machine.redis.kill()
            self._machine.redis.restart()
            self._note("redis")

    def _fill(self, room: Room, now: float) -> None:
        if not self.outage.is_on and not self._full.is_on and self._full.begin(room, now):
            self.counts[f"{room} full"] += 1

    def _pause(self, now: float) -> None:
        awake = self._awake()
        if len(awake) <= LEAST_AWAKE:
            self._due["pause"] = now  # as soon as there are enough
            return
        victim = pick(awake, self._chance)
        _signal(victim, signal.SIGSTOP)
        self._paused[victim] = now + PAUSED_SECONDS
        self.counts["pauses"] += 1

    def _wake(self, now: float) -> None:
        for pid, until in list(self._paused.items()):
            if now >= until:
                _signal(pid, signal.SIGCONT)
                del self._paused[pid]

    def _restart(self, _: float) -> None:
        """Replace every worker one after the other, then the webs."""
        if not self._old:
            self._old = sorted(self._machine.crew.at_work())

    def _roll(self) -> None:
        """The next step of a rolling restart, when the last one is done."""
        if not self._old or self._machine.crew.leaving:
            return
        worker = self._old.pop()
        if worker in self._awake():
            self._machine.crew.tell_to_stop(worker)
            self.counts["workers restarted"] += 1
        if not self._old:
            for web in self._machine.webs:
                self._machine.restart_web(web, signal.SIGTERM)
                self.counts["web restarted"] += 1


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
