"""Killer: kill -9 of the worker that runs a confirmed action, at random moments between claim and outcome."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from redis import Redis

from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.testing.simulation.tools import EffectEntry, Effects
from tests.flows.system import System

#: The moments that the killer observes: the first two and the last in Redis, the others in the ledger.
Moment = Literal["claimed", "started", "begin", "effect", "outcome"]

#: The probability of a kill at each moment, and the most seconds between the moment and the kill.
KILLS: dict[Moment, tuple[float, float]] = {
    "claimed": (0.3, 0.002),
    "started": (0.25, 0.004),
    "begin": (0.25, 0.08),
    "effect": (0.3, 0.02),
    "outcome": (0.15, 0.01),
}
#: The probability that a kill ends every running worker.
ALL_AT_ONCE = 0.08
#: The probability that a worker is stopped instead of killed during a payment, until another worker settled it.
FREEZE = 0.015
#: Tools whose worker is not stopped. The reconcile query is final for a dead worker. A stopped worker may still act
#: after the query, and cannot record that if it is killed immediately afterwards.
NOT_FROZEN = frozenset({"refund"})
#: Seconds after which a stopped worker is resumed in any case.
FROZEN_SECONDS = 30.0

#: The stage of an action, by the state of its record or, once it is started, by its last step in the ledger.
STAGES = {
    "claimed": "claimed",
    "begin": "before the effect",
    "effect": "after the effect",
    "refused": "after the refusal",
    "done": "outcome stored",
    "failed": "outcome stored",
    "unknown": "told unknown",
}

_MOMENTS: dict[str, Moment] = {
    "claimed": "claimed",
    "started": "started",
    "done": "outcome",
    "failed": "outcome",
}


@dataclass(frozen=True, slots=True)
class Blow:
    """One hit on a worker: its time, the conversation, and the stage of the action as found after the worker died."""

    at: float
    conversation: str
    stage: str
    frozen: bool = False


class Killer:
    """Kills workers of a running system, in a thread during its `with` block, and replaces each dead worker."""

    def __init__(
        self,
        system: System,
        ledger: Effects,
        channel: str,
        chance: random.Random,
        *,
        freeze: float = FREEZE,
    ) -> None:
        self.blows: list[Blow] = []
        self.ended = 0
        self._freeze_chance = freeze
        self._system, self._ledger, self._channel, self._chance = system, ledger, channel, chance
        self._redis = Redis.from_url(system.redis.url, decode_responses=True)
        self._places: dict[str, str] = {}
        self._spared: set[str] = set()
        self._latest: dict[str, tuple[str, str]] = {}
        self._states: dict[str, str] = {}
        self._frozen: dict[subprocess.Popen[bytes], tuple[str, float]] = {}
        self._names: dict[str, int] = {}
        self._steps: dict[str, str] = {}
        self._offset = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="killer")

    def __enter__(self) -> Self:
        self._redis.config_set("notify-keyspace-events", "Kh")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._thaw(float("inf"))

    @property
    def kills(self) -> int:
        """Return how many workers were killed."""
        return sum(not blow.frozen for blow in self.blows)

    @property
    def double_kills(self) -> int:
        """Return how many of the kills ended both workers."""
        times = Counter(blow.at for blow in self.blows if not blow.frozen)
        return sum(count > 1 for count in times.values())

    def tally(self) -> Counter[str]:
        """Return how many workers were hit at each stage of an action."""
        return Counter("frozen" if blow.frozen else blow.stage for blow in self.blows)

    def waiting(self) -> int:
        """Return how many wake-ups wait for a worker."""
        return int(self._redis.llen("rq:queue:sayso"))

    def at_work(self) -> dict[int, str]:
        """Return the conversation that each worker processes, by process id. Dead workers keep their last one."""
        for name in set(self._redis.smembers("rq:workers")) - set(self._names):
            self._names[name] = int(self._redis.hget(name, "pid") or 0)
        jobs = {pid: self._job_of(name) for name, pid in self._names.items() if self._is_ours(pid)}
        found = {
            pid: self._redis.hget(f"rq:job:{job}", "description")
            for pid, job in jobs.items()
            if job
        }
        return {pid: text.removeprefix("process ") for pid, text in found.items() if text}

    def _job_of(self, worker: str) -> str:
        """Return the job that RQ registers for a worker: a set of executions, or in RQ 2 a field of the worker."""
        for running in self._redis.smembers(f"{worker}:executions"):
            return str(running).rpartition(":")[0]
        return self._redis.hget(worker, "current_job") or ""

    def _is_ours(self, pid: int) -> bool:
        return any(worker.pid == pid for worker in self._system.workers)

    def _watch(self) -> None:
        with self._redis.pubsub(ignore_subscribe_messages=True) as events:
            events.psubscribe(f"__keyspace@0__:{PREFIX}*:pending:*")
            while not self._over.is_set():
                message = events.get_message(timeout=0.002)
                if message:
                    self._look(message["channel"].partition(":")[2])
                self._read_ledger()
                self._thaw(time.monotonic())
                self._replace_ended()

    def _replace_ended(self) -> None:
        """Count and restart each worker that ended without a kill, as any supervisor would."""
        for worker in [worker for worker in self._system.workers if worker.poll() is not None]:
            self.ended += 1
            self._replace(worker)

    def _replace(self, worker: subprocess.Popen[bytes]) -> None:
        self._system.workers.remove(worker)
        self._system.start_worker()

    def _look(self, key: str) -> None:
        """Note a change of an action after its record was written."""
        state, record = self._redis.hmget(key, "state", "record")
        if not state or not record or self._states.get(key) == state:
            return
        self._states[key] = state
        if key not in self._places:
            self._note(key, json.loads(record))
        if state in _MOMENTS:
            place = self._places[key]
            self._consider(_MOMENTS[state], self._holders(place))

    def _holders(self, place: str) -> list[int]:
        """Return the worker that processes a conversation. RQ lists long jobs only; for others, one is guessed."""
        known = [pid for pid, at in self.at_work().items() if at == place]
        return known or [self._chance.choice(self._system.workers).pid]

    def _note(self, key: str, action: dict[str, Any]) -> None:
        place = Conversation(self._channel, action["conversation_id"]).id
        self._places[key] = place
        self._latest[place] = (key, action["args"]["bill"])
        if action["kind"] in NOT_FROZEN:
            self._spared.add(action["args"]["bill"])

    def _read_ledger(self) -> None:
        for entry in self._note_steps():
            if entry.step in ("begin", "effect"):
                self._consider(entry.step, [entry.process], entry.bill)

    def _note_steps(self) -> list[EffectEntry]:
        entries, self._offset = self._ledger.tail(self._offset)
        self._steps |= {entry.bill: entry.step for entry in entries}
        return entries

    def _consider(self, moment: Moment, pids: Sequence[int], bill: str = "") -> None:
        """Decide whether to hit one of these workers, which is at this moment of an action."""
        probability, delay = KILLS[moment]
        awake = [worker for worker in self._system.workers if worker not in self._frozen]
        victims = [worker for worker in awake if worker.pid in pids]
        if not victims or not self._is_complete():
            return
        if (
            bill
            and bill not in self._spared
            and not self._frozen
            and self._chance.random() < self._freeze_chance
        ):
            self._freeze(victims[0])
        elif self._chance.random() < probability:
            time.sleep(self._chance.random() * delay)
            everybody = self._chance.random() < ALL_AT_ONCE
            self._kill(awake if everybody else victims)

    def _is_complete(self) -> bool:
        """Return whether every worker is up. A worker is killed during its work, not while it starts."""
        self.at_work()
        return {worker.pid for worker in self._system.workers} <= set(self._names.values())

    def _kill(self, victims: Sequence[subprocess.Popen[bytes]]) -> None:
        for worker in victims:
            worker.kill()
        for worker in victims:
            worker.wait()
        self._count(victims)
        for worker in victims:
            self._replace(worker)

    def _freeze(self, worker: subprocess.Popen[bytes]) -> None:
        worker.send_signal(signal.SIGSTOP)
        self._count([worker], frozen=True)
        key, _ = self._latest.get(self.blows[-1].conversation, ("", ""))
        self._frozen[worker] = (key, time.monotonic() + FROZEN_SECONDS)

    def _count(self, victims: Sequence[subprocess.Popen[bytes]], *, frozen: bool = False) -> None:
        now, places = time.monotonic(), self.at_work()
        for worker in victims:
            place = places.get(worker.pid, "")
            self.blows.append(Blow(now, place, self._stage(place), frozen))

    def _thaw(self, now: float) -> None:
        """Resume the stopped workers that are due; they are due at once when another worker settled their action."""
        for worker, (key, until) in list(self._frozen.items()):
            if now >= until:
                worker.send_signal(signal.SIGCONT)
                del self._frozen[worker]
            elif self._redis.hget(key, "state") not in ("claimed", "started"):
                self._frozen[worker] = (key, now)

    def _stage(self, place: str) -> str:
        """Return the stage of the last action of a conversation, by its record and the ledger."""
        key, bill = self._latest.get(place, ("", ""))
        state = self._redis.hget(key, "state") if key else ""
        if state != "started":
            return STAGES.get(state or "", "another turn")
        self._note_steps()
        return STAGES.get(self._steps.get(bill, ""), "started")
