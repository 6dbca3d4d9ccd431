"""Stage: one example's people, workers and clock, and the operations on them."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from sayso.channels.types import Conversation, Turn
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import shard_of
from sayso.workers.lease import LEASE_MS
from tests.model.books import Books
from tests.model.bot import Bot, Worker, ask, turn
from tests.model.ending import conclude
from tests.model.world import CONVERSATIONS, Pressable, Proposal

#: Longer than a lease, in seconds.
LEASE = LEASE_MS / 1000 + 1
#: Longer than a window.
WINDOW = 61.0
#: Rounds of the reaper after which remaining work counts as stuck.
PATIENCE = 60

Person = tuple[str, Conversation]
#: A call of a store, and whether a worker stops "before" or "after" it.
Stop = tuple[str, str]


class Stage:
    """Holds at most three active workers; paused workers may resume."""

    def __init__(self, bot: Bot) -> None:
        bot.begin()
        self.bot = bot
        self.world = bot.world
        self.books = Books(bot.client, bot.world)
        self.heard: list[Turn] = []
        self.at_work: dict[int, Worker] = {}
        self.aside: list[Worker] = []
        self.dead: list[str] = []
        self._all: list[Worker] = []
        self._numbers = itertools.count(1)

    def hear(self, who: Person, says: str, wish: tuple[str, ...] = (), *, times: int = 1) -> None:
        """Deliver a person's message or tap this many times. Does nothing without a button to tap."""
        user, place = who
        text, tap = self._words(user, place, says, wish)
        if text or tap:
            event = turn(place, user, f"e{next(self._numbers)}", text, tap)
            self.heard.append(event)
            for _ in range(times):
                self.bot.hear(event)

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

    def settle_down(self, place: Conversation) -> None:
        """Wait for leases to end, and let a worker finish what others left."""
        self.bot.pass_time(LEASE)
        self.work(place)

    def asked(self, who: Person, wish: tuple[str, ...], says: str) -> None:
        """Ask the person for a yes; before an undo, also confirm and run the action."""
        self.settle_down(who[1])
        if says == "undo tap":
            wish = ("archive", *wish[1:])
        self.hear(who, "ask", wish)
        self.work(who[1])
        if says == "undo tap":
            self.hear(who, "yes")
            self.work(who[1])

    def end(self, worker: Worker, end: str) -> None:
        """Crash, pause, time out or continue a worker in the middle of its work."""
        if end == "time out" and worker.answering and worker.run_out_of_time():
            self.world.counts["timeouts"] += 1
            self.steps(worker)
        elif end == "crash":
            self.world.counts["crashes"] += 1
            worker.crash()
        elif end == "burial":  # other workers on its machine notice the death
            self.world.counts["burials"] += 1
            worker.crash()
            self.dead.append(worker.name)
            self.bot.release_dead(worker.name)
        elif end == "pause":
            self.world.counts["pauses"] += 1
            self.aside.append(worker)
        elif end == "leave" and len(self.at_work) < 3:
            self.at_work[min({0, 1, 2} - self.at_work.keys())] = worker
        else:
            self.steps(worker)

    def tamper(self, proposal: Proposal, how: str) -> None:
        """Change a stored record from outside to a different value."""
        key = f"{PREFIX}{{{shard_of(proposal.conversation)}}}:pending:{proposal.pid}"
        proposal.tampered = True
        self.world.counts["tampers"] += 1
        if how == "mac":
            self.bot.client.hset(key, "mac", "0" * 64)
            return
        record = json.loads(str(self.bot.client.hget(key, "record")))
        changes: dict[str, dict[str, Any]] = {
            "args": {"args": record["args"] | {"n": 0}},
            "no args": {"args": {}},
            "kind": {"kind": "pay<"},
            "preview": {"preview": "nothing much"},
            "user": {"user_id": "mallory"},
        }
        changed = (
            json.dumps(record | changes[how], sort_keys=True, separators=(",", ":"))
            if how in changes
            else how
        )
        self.bot.client.hset(key, "record", changed)

    def conclude(self) -> None:
        """Stop the faults, finish all work, resume paused workers, and check the final promises."""
        self.world.weather.clear()
        self._drain()
        for worker in [*self.aside, *self.at_work.values()]:
            self.steps(worker)
        self._drain()
        self.books.check()
        conclude(self.world)

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._all:
            worker.crash()

    def _drain(self) -> None:
        for _ in range(PATIENCE):
            self.bot.pass_time(LEASE)
            for conversation in self.bot.overdue():
                self.work(CONVERSATIONS[conversation])
            if not self.bot.busy():
                return
        self.world.broke("everything drains when faults stop")

    def _words(
        self, user: str, place: Conversation, says: str, wish: tuple[str, ...]
    ) -> tuple[str, str]:
        match says:
            case "ask":
                return ask(wish or ("delete",)), ""
            case "yes":
                return f"yes {self._code(user, place)}".strip(), ""
            case "no":
                return "no", ""
            case "junk":
                return "yes, but only the other one", ""
            case "chat":
                return "what do you know?", ""
        return "", self._button(user, place, says.removesuffix(" tap"))

    def _code(self, user: str, place: Conversation) -> str:
        """Return the code in the newest question to this person."""
        proposal = self.world.proposals.get(self.world.live.get((place.id, user), ""))
        if proposal is None or not proposal.code or not proposal.arrived:
            return ""
        texts = [reply.text for (where, _), reply in self.world.sent.items() if where == place.id]
        found = re.findall(r"\*\*yes (\d{4})\*\*", "".join(texts))
        return found[-1] if found else ""

    def _button(self, user: str, place: Conversation, which: str) -> str:
        """Return the data of a button that this person has."""
        prompts = self.world.prompts(place.id, user, "cancel" if which == "cancel" else "confirm")
        asked = [
            data for data in prompts if self.world.proposals[self.world.buttons[data].pid].live
        ]
        undos = [data for data in prompts if data not in asked]
        others = [data for data, button in self.world.buttons.items() if button.user != user]
        found = {"undo": undos, "stale": prompts[:1], "foreign": others}.get(which, asked)
        if not found:
            return ""
        data = found[-1]
        if which == "forged":
            return data[:-1] + ("A" if data[-1] != "A" else "B")
        return self._ignore(data) if which == "ignore" else data

    def _ignore(self, data: str) -> str:
        """Return the token that postpones the button's decision. No question shows such a button."""
        pressed = self.world.buttons[data]
        scope = next(each.scope for each in self.heard if each.user_id == pressed.user)
        ignore = self.bot.store.signer.button_token(pressed.pid, "ignore", scope)
        self.world.buttons[ignore] = Pressable(
            pressed.pid, "ignore", pressed.user, pressed.conversation
        )
        return ignore
