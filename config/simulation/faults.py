"""Faults: what is broken on a machine, when, and for how long."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from sayso.config.simulation.crew import pick
from sayso.config.simulation.full import Full
from sayso.config.simulation.machine import Machine
from sayso.config.simulation.outage import Outage
from sayso.config.simulation.plan import Plan, Room
from sayso.workers.mailbox import LEASE_MS

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
