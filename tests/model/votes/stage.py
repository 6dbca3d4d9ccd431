"""VoteStage: one example's people, workers and clock, and the operations on them."""

from __future__ import annotations

import itertools
import json

from sayso.channels.types import Conversation, Turn
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import shard_of
from tests.model.bot import Worker, turn
from tests.model.stage import LEASE, PATIENCE, Stop
from tests.model.votes.facts import GROUP, HOME, PLACES, WITHIN, Request
from tests.model.votes.judge import conclude
from tests.model.votes.office import VoteBot


class VoteStage:
    """Holds at most three active workers; paused workers may resume."""

    def __init__(self, bot: VoteBot) -> None:
        bot.begin()
        self.bot = bot
        self.world = bot.world
        self.heard: list[Turn] = []
        self.at_work: dict[int, Worker] = {}
        self.aside: list[Worker] = []
        self.dead: list[str] = []
        self._all: list[Worker] = []
        self._numbers = itertools.count(1)

    def hear(
        self, place: Conversation, user: str, text: str = "", tap: str = "", *, times: int = 1
    ) -> None:
        """Deliver a message or a tap this many times."""
        event = turn(place, user, f"e{next(self._numbers)}", text, tap)
        self.heard.append(event)
        for _ in range(times):
            self.bot.hear(event)

    def ask(self, kind: str) -> None:
        """Let ana ask for an action, and everybody be told."""
        self.hear(HOME, "ana", f"please {kind}")
        self.work_all()

    def newest(self, which: int = 0) -> list[Request]:
        """Return the requests that arrived about one of the actions, 0 for the newest."""
        actions = list(self.world.asked)
        if not actions:
            return []
        action = actions[-1 - which % len(actions)]
        requests = self.world.requests.values()
        return [each for each in requests if each.action_id == action and each.buttons]

    def answer(
        self, person: str, answer: str, form: str, *, which: int = 0, times: int = 1
    ) -> None:
        """Let a person answer a request about an action, if one can be answered by them.

        `form`: "tap", "words" in their own chat, or "in group" for words in the group.
        """
        requests = self.newest(which)
        own = [each for each in requests if each.place in (GROUP, Conversation("team", person))]
        if form == "tap":
            for request in own[-1:] or requests[-1:]:
                token = request.buttons[0 if answer == "yes" else 1]
                self.hear(request.place, person, tap=token, times=times)
            return
        place = GROUP if form == "in group" else Conversation("team", person)
        for request in requests[-1:]:
            self.hear(place, person, f"{answer} {request.code}", times=times)

    def withdraw(self, form: str) -> None:
        """Let ana take the newest action back, by its button or with a command."""
        buttons = [each.withdraw for each in self.world.asked.values() if each.withdraw]
        if form == "command":
            self.hear(HOME, "ana", "/reset")
        elif buttons:
            self.hear(HOME, "ana", tap=buttons[-1])

    def worker(self, place: Conversation) -> Worker:
        """Return a new worker for a conversation."""
        self._all.append(Worker(self.bot, place.id, f"w{next(self._numbers)}"))
        return self._all[-1]

    def steps(self, worker: Worker, count: int = 10_000) -> bool:
        """Run this many steps; False when the worker has finished."""
        return all(worker.step() for _ in range(count))

    def go_to(self, worker: Worker, stop: Stop) -> bool:
        """Run to the next time the worker is at this stop; False when it finished before."""
        while worker.step():
            if worker.at == stop:
                return True
        return False

    def work(self, place: Conversation) -> None:
        """Let a worker do all work of a conversation."""
        self.steps(self.worker(place))

    def work_all(self) -> None:
        """Let workers do what is due in all conversations."""
        for _ in range(4):
            with_work = [*self.bot.overdue(), *self.bot.with_work()]
            if not with_work:
                return
            for conversation in dict.fromkeys(with_work):
                self.work(PLACES[conversation])

    def end(self, worker: Worker, end: str) -> None:
        """Crash, pause, time out or continue a worker in the middle of its work."""
        self.world.counts[end] += 1
        match end:
            case "time out" if worker.answering and worker.run_out_of_time():
                self.steps(worker)
            case "crash":
                worker.crash()
            case "burial":
                worker.crash()
                self.dead.append(worker.name)
                self.bot.release_dead(worker.name)
            case "pause":
                self.aside.append(worker)
            case _:
                self.steps(worker)

    def tamper(self, what: str) -> None:
        """Change the newest action from outside: its record, or the votes about it."""
        asked = list(self.world.asked.values())[-1]
        key = f"{PREFIX}{{{shard_of(HOME.id)}}}:pending:{asked.action_id}"
        self.world.counts["tampers"] += 1
        if what == "votes":
            lines = str(self.bot.client.hget(key, "votes") or "").splitlines()
            if not lines:
                return
            others = {"user_id": "cem", "person": "cem", "known_as": [], "answer": "yes"}
            forged = [json.dumps({**json.loads(line), **others}) for line in lines]
            self.bot.client.hset(key, "votes", "\n".join([*lines, *forged]))
            return
        asked.is_tampered = True
        record = json.loads(str(self.bot.client.hget(key, "record")))
        changed = json.dumps({**record, "args": {"n": 0}}, sort_keys=True, separators=(",", ":"))
        self.bot.client.hset(key, "record", changed)

    def conclude(self) -> None:
        """Stop the faults, finish all work, let all time pass, and check the final promises."""
        self.world.weather.clear()
        self.bot.team.is_down = False
        self._drain()
        for worker in [*self.aside, *self.at_work.values()]:
            self.steps(worker)
        self._drain()
        conclude(self.world, self.bot.peek)

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._all:
            worker.crash()

    def _drain(self) -> None:
        """Work until nothing is due, now or later."""
        for _ in range(PATIENCE):
            self.bot.pass_time(LEASE)
            due = self.bot.overdue()
            for conversation in due:
                self.work(PLACES[conversation])
            if not self.bot.busy():
                return
            if not due:
                self.bot.pass_time(WITHIN / 10)
        self.world.broke("everything drains when faults stop")
