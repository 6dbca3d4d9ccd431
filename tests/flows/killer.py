"""Killer: kill -9 of the worker that is at a confirmed action, at random moments between claim and outcome."""

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
from sayso.pending.redis.client import PREFIX
from sayso.testing.simulation.tools import EffectEntry, Effects
from tests.flows.system import System

#: What the killer sees: the first two and the last in Redis, the others in the ledger.
Moment = Literal["claimed", "started", "begin", "effect", "outcome"]

#: How probable a kill is at each moment, and how many seconds after it at most the kill comes.
KILLS: dict[Moment, tuple[float, float]] = {
    "claimed": (0.3, 0.002),
    "started": (0.25, 0.004),
    "begin": (0.25, 0.08),
    "effect": (0.3, 0.02),
    "outcome": (0.15, 0.01),
}
#: How probable it is that a kill takes every worker that runs.
ALL_AT_ONCE = 0.08
#: How probable it is during a payment that its worker is not killed but stopped, until another one has spoken for it.
FREEZE = 0.015
#: Tools whose worker is not stopped. What is asked of the world is certain of the dead; a sleeper may still act on it,
#: and can tell nobody if it is killed right after that.
NOT_FROZEN = frozenset({"refund"})
#: Seconds after which a stopped worker goes on in any case.
FROZEN_SECONDS = 30.0

#: How far an action is, by its record's state or, once it is started, by its last step in the ledger.
STAGES = {
    "claimed": "claimed",
    "begin": "before the effect",
    "effect": "after the effect",
    "refused": "after the refusal",
    "done": "outcome stored",
    "failed": "outcome stored",
    "unknown": "told unknown",
}

_MOMENTS: dict[str, Moment] = {"claimed": "claimed", "started": "started", "done": "outcome", "failed": "outcome"}


@dataclass(frozen=True, slots=True)
class Blow:
    """One worker hit: when, what it had in hand, and how far the action was by then, as found after its death."""

    at: float
    conversation: str
    stage: str
    frozen: bool = False


class Killer:
    """Lives beside a running system, on a thread of its own, from `with` to its end. Every dead worker is replaced."""

    def __init__(
        self, system: System, ledger: Effects, channel: str, chance: random.Random, *, freeze: float = FREEZE
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
        """How many workers were killed."""
        return sum(not blow.frozen for blow in self.blows)

    @property
    def double_kills(self) -> int:
        """How many of the kills took both workers."""
        times = Counter(blow.at for blow in self.blows if not blow.frozen)
        return sum(count > 1 for count in times.values())

    def tally(self) -> Counter[str]:
        """How many workers were hit, by how far their action was."""
        return Counter("frozen" if blow.frozen else blow.stage for blow in self.blows)

    def waiting(self) -> int:
        """How many wake-ups wait for a worker."""
        return int(self._redis.llen("rq:queue:sayso"))

    def at_work(self) -> dict[int, str]:
        """The conversation that each worker has in hand, by process id; also of the dead, as they left it."""
        for name in set(self._redis.smembers("rq:workers")) - set(self._names):
            self._names[name] = int(self._redis.hget(name, "pid") or 0)
        jobs = {pid: self._job_of(name) for name, pid in self._names.items() if self._is_ours(pid)}
        found = {pid: self._redis.hget(f"rq:job:{job}", "description") for pid, job in jobs.items() if job}
        return {pid: text.removeprefix("process ") for pid, text in found.items() if text}

    def _job_of(self, worker: str) -> str:
        """What RQ says a worker runs: a set of executions, or in RQ 2 a field of the worker."""
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
        """A worker that ended although nobody killed it is started again, as any supervisor would, and counted."""
        for worker in [worker for worker in self._system.workers if worker.poll() is not None]:
            self.ended += 1
            self._replace(worker)

    def _replace(self, worker: subprocess.Popen[bytes]) -> None:
        self._system.workers.remove(worker)
        self._system.start_worker()

    def _look(self, key: str) -> None:
        """A record was written: has the action moved?"""
        state, record = self._redis.hmget(key, "state", "rec")
        if not state or not record or self._states.get(key) == state:
            return
        self._states[key] = state
        if key not in self._places:
            self._note(key, json.loads(record))
        if state in _MOMENTS:
            place = self._places[key]
            self._consider(_MOMENTS[state], self._holders(place))

    def _holders(self, place: str) -> list[int]:
        """The worker that has a conversation in hand. RQ hears of what lasts; of what does not, one is guessed."""
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
        """The worker with one of these process ids is at it now. Shall it live?"""
        probability, delay = KILLS[moment]
        awake = [worker for worker in self._system.workers if worker not in self._frozen]
        victims = [worker for worker in awake if worker.pid in pids]
        if not victims or not self._is_complete():
            return
        if bill and bill not in self._spared and not self._frozen and self._chance.random() < self._freeze_chance:
            self._freeze(victims[0])
        elif self._chance.random() < probability:
            time.sleep(self._chance.random() * delay)
            everybody = self._chance.random() < ALL_AT_ONCE
            self._kill(awake if everybody else victims)

    def _is_complete(self) -> bool:
        """Whether every worker is up. One is killed in the middle of its work, not while it still starts."""
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
        """Let those go on whose time has come; it comes at once when their action was settled by somebody else."""
        for worker, (key, until) in list(self._frozen.items()):
            if now >= until:
                worker.send_signal(signal.SIGCONT)
                del self._frozen[worker]
            elif self._redis.hget(key, "state") not in ("claimed", "started"):
                self._frozen[worker] = (key, now)

    def _stage(self, place: str) -> str:
        """How far the last action of a conversation is, by its record and the ledger."""
        key, bill = self._latest.get(place, ("", ""))
        state = self._redis.hget(key, "state") if key else ""
        if state != "started":
            return STAGES.get(state or "", "another turn")
        self._note_steps()
        return STAGES.get(self._steps.get(bill, ""), "started")
