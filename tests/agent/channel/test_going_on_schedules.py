"""Requests of three destructive steps, answered in any order and with faults: one effect each, told, and no silence."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace

from redis.exceptions import RedisError

from sayso.agent import Agent, AgentConfig, BelievingModel, ChannelAgent, ProviderError, ToolCall
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.providers.testing import InvalidHistory
from tests.contracts.rigs import CHAT, ENGLISH, Rig, turn
from tests.workers.fakes import Bot

#: How many schedules are played; the same ones each time.
COUNT = int(os.environ.get("SAYSO_REQUESTS", "100"))
#: What a person does after a request, more often what leads on.
ACTS = (
    *("yes",) * 8, *("tap yes",) * 4, "no", "tap no", "tap an old yes", "tap an old yes", "say thanks", "say thanks",
    "ask what", "stop", "wait", "no, why", "ask again",
)  # fmt: skip
NAMES = ("A", "B", "C")


class FaultyModel(BelievingModel):
    """Works for its user, and fails at random. `refused` are the histories that no vendor would take."""

    def __init__(self, wishes, chance: random.Random, failures: float) -> None:
        super().__init__(wishes)
        self.refused: list[str] = []
        self.failures = 0
        self._chance = chance
        self._share = failures

    async def acomplete(self, **kwargs):
        """Answer, or fail."""
        if self._chance.random() < self._share:
            self.failures += 1
            raise ProviderError("down")
        try:
            return await super().acomplete(**kwargs)
        except InvalidHistory as exc:
            self.refused.append(str(exc))
            raise


class Mortal:
    """A store whose worker is killed right before or right after a step, at random."""

    def __init__(self, store, chance: random.Random, share: float, steps: tuple[str, ...]) -> None:
        self._store, self._chance, self._share, self._steps = store, chance, share, steps

    def __getattr__(self, name: str):
        method = getattr(self._store, name)
        if name not in self._steps:
            return method

        async def mortal(*args, **options):
            fate = self._chance.random()
            if fate < self._share:
                raise RedisError("killed before")
            answer = await method(*args, **options)
            if fate < 2 * self._share:
                raise RedisError("killed after")
            return answer

        return mortal


class Play:
    """One schedule: a person, their bot, and what came of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        deaths = self.chance.choice((0.0, 0.0, 0.05, 0.15))
        failures = self.chance.choice((0.0, 0.0, 0.2))
        wishes = {
            f"do {number}": [ToolCall("delete", {"name": f"{name}{number}"}) for name in NAMES]
            for number in range(4)
        }
        self.bot = Bot(Rig())
        self.model = FaultyModel(wishes, self.chance, failures)
        agent = Agent(
            self.bot.agent.agent.tools, self.model, AgentConfig(max_retries=0, max_iterations=20)
        )
        rig = self.bot.rig
        self.bot.agent = ChannelAgent(
            agent,
            rig.store,
            journals=rig.journals,
            behavior=ChannelBehavior(after="continue", is_one_message=self.chance.random() < 0.5),
        )
        self.bot.processor.turns.agents["chat"] = self.bot.agent
        turns = self.bot.processor.turns
        mortal = Mortal(turns.mailbox, self.chance, deaths, ("commit",))
        self.bot.processor = replace(self.bot.processor, turns=replace(turns, mailbox=mortal))
        settlement = rig.store.settlement
        settlement._repository = Mortal(
            rig.store.repository, self.chance, deaths, ("claim", "start", "finish")
        )
        self.done: list[str] = []
        self.requests = 0

    def act(self, what: str) -> None:
        """Let the person do something, perhaps delivered twice."""
        self.done.append(what)
        event = turn(self._text(what), tap=self._tap(what))
        if not (event.text or event.tap):
            return
        for _ in range(self.chance.choice((1, 1, 2))):
            self.bot.rig.accept(event)

    def work(self) -> None:
        """Let workers do all work, each until it dies."""
        for _ in range(60):
            try:
                asyncio.run(self.bot.processor.run(CHAT.id))
            except RedisError:
                self.bot.rig.end_lease()
                continue
            return
        raise AssertionError(f"never done: {self.done}")

    def _text(self, what: str) -> str:
        match what:
            case "ask" | "ask again":
                self.requests += 1
                return f"do {self.requests - 1}" if self.requests <= 4 else ""
            case "yes" | "no":
                return what
            case "say thanks":
                return "thank you so much for all of that"
            case "ask what":
                return "what?"
            case "no, why":
                return "no, that is the wrong one"
            case "stop":
                return "/stop"
            case "wait":
                self.bot.rig.pass_time(61)
        return ""

    def _tap(self, what: str) -> str:
        if not what.startswith("tap"):
            return ""
        asked = [
            each.reply.buttons for each in self.bot.channel.sent if len(each.reply.buttons) == 2
        ]
        if not asked:
            return ""
        buttons = self.chance.choice(asked) if "old" in what else asked[-1]
        return buttons[1 if "no" in what else 0].data

    def faults(self) -> list[str]:
        """Return the promises that were broken."""
        texts = [each.reply.text for each in self.bot.channel.sent]
        said = "\n".join(texts)
        found = [
            f"{name} took effect twice"
            for name in set(self.bot.deleted)
            if self.bot.deleted.count(name) > 1
        ]
        for number in range(4):
            for name in (f"{letter}{number}" for letter in NAMES):
                says_done = f"deleted {name}" in said
                is_told = says_done or ENGLISH.unknown(f"Delete {name}") in said
                is_done = name in self.bot.deleted
                if is_done and not is_told:
                    found.append(f"{name} is untold")
                if says_done and not is_done:
                    found.append(f"told {name} without an effect")
        found += [f"refused: {each}" for each in self.model.refused]
        fails = self.model.failures or "stop" in self.done
        last = next((text for text in reversed(texts) if text), "")
        if not fails and self.bot.deleted and self._is_silent(last):
            found.append(f"silent after {last!r}")
        return found

    def _is_silent(self, last: str) -> bool:
        """Return whether the last message is the outcome of an action, without what follows it."""
        outcome = any(
            last.endswith(f"\ndeleted {name}") and last.startswith("✅")
            for name in self.bot.deleted
        )
        return outcome or last in [
            ENGLISH.cancelled(f"Delete {name}{at}") for name in NAMES for at in range(4)
        ]


def test_no_schedule_of_answers_and_faults_loses_doubles_or_silences_anything() -> None:
    """People say yes, no, thanks or /stop, tap old and new buttons, and write before the bot has answered."""
    broken = []
    for seed in range(COUNT):
        play = Play(seed)
        play.act("ask")
        play.work()
        for _ in range(play.chance.randint(1, 7)):
            for _ in range(play.chance.choice((1, 1, 1, 2, 3))):
                play.act(play.chance.choice(ACTS))
            play.work()
        if faults := play.faults():
            broken.append((seed, play.done, faults))
    assert broken == []
