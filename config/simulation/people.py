"""People: each plays stories on a phone, waits for answers as people do, and keeps a diary of what was done."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from sayso.config.simulation.courier import Courier, Hook
from sayso.config.simulation.inbox import Heard, Inbox, about
from sayso.config.simulation.phones import Phone
from sayso.config.simulation.stories import BUTTON, Step, Story, Verb
from sayso.config.simulation.verdict import NO_OUTCOME, window

#: Seconds after which somebody stops waiting and does something else. What comes later still counts as told.
PATIENCE = 90.0
#: Seconds after the end of a question's time at which somebody is late: its time began when the platform had it.
LATE_SECONDS = 3.0
#: Times somebody decides again who was told that it was too early.
MOST_DECISIONS = 6


@dataclass(slots=True)
class Act:
    """One thing that a person did: its number among all, what it was, and which bill a decision was about.

    `stranger` is the number of the other one in the group who did it, 0 for the conversation's own person.
    """

    number: int
    verb: Verb
    bill: str
    sent_at: float
    taken_at: float = 0.0
    stranger: int = 0
    tapped: bool = False
    late: bool = False

    @property
    def agrees(self) -> bool:
        """Whether it is the yes of whoever was asked, in time."""
        return self.verb == "agree" and not self.stranger and not self.late

    @property
    def is_answered_by_turn(self) -> bool:
        """Whether its answer names its turn."""
        return self.verb in ("say", "send", "want")


class Budget:
    """The turns of one simulation: so many, until a moment if there is one, so many a second if that is limited."""

    def __init__(self, turns: int, *, until: float = float("inf"), rate: float = 0.0) -> None:
        self.taken = 0
        self._turns, self._until, self._rate = turns, until, rate
        self._numbers: Iterator[int] = itertools.count(1)
        self._next = time.monotonic()

    @property
    def is_left(self) -> bool:
        """Whether another story may begin."""
        return self.taken < self._turns and time.monotonic() < self._until

    async def take(self) -> int:
        """The number of the next turn, when its moment has come."""
        self.taken += 1
        number = next(self._numbers)
        if self._rate:
            self._next = max(self._next + 1 / self._rate, time.monotonic())
            await asyncio.sleep(self._next - time.monotonic())
        return number


@dataclass(slots=True)
class Person:
    """One conversation. Acts are taken by the web in the order they are done: each waits for the one before.

    Decisions are the exception: several on one question are made at once, and the `strangers`, who share the chat,
    answer each question at the same moment.
    """

    phone: Phone
    url: str
    courier: Courier
    budget: Budget
    chance: Random
    inbox: Inbox = field(default_factory=Inbox)
    diary: list[Act] = field(default_factory=list)
    strangers: Sequence[Phone] = ()

    async def live(self, stories: Sequence[Story]) -> None:
        """Play stories while there are turns left."""
        weights = [story.weight for story in stories]
        while self.budget.is_left:
            await self.play(self.chance.choices(stories, weights)[0])

    async def play(self, story: Story) -> None:
        """One story; it ends early when a question does not come."""
        bill, waiting = "", []
        for before, step in zip((None, *story.steps), story.steps, strict=False):
            async with asyncio.TaskGroup() as at_once:
                if before and before.verb == "ask":
                    at_once.create_task(self._meddle(bill))
                if step.decides:
                    await self._decide(step, bill)
                elif step.verb == "ask":
                    bill = (await self._act(step)).bill
                    if not await self._hears(lambda heard, bill=bill: bool(about(heard, bill))):  # type: ignore[misc]
                        return
                else:
                    waiting += [await self._act(step) for _ in range(step.times)]
        wanted = {act.number for act in waiting}
        await self._hears(lambda heard: wanted <= {turn for each in heard for turn in (*each.turns, *each.files)})

    async def _decide(self, step: Step, bill: str) -> None:
        """Decide; who was told that it was too early decides again."""
        if step.late:
            await asyncio.sleep(_closes_at(about(self.inbox.heard, bill)) + LATE_SECONDS - time.monotonic())
        for decided in range(1, MOST_DECISIONS + 1):
            await asyncio.gather(*(self._act(step, bill) for _ in range(step.times)))
            acts = decided * step.times
            await self._hears(lambda heard, acts=acts: _is_told(about(heard, bill), acts))  # type: ignore[misc]
            if not _is_early(about(self.inbox.heard, bill)):
                return

    async def _meddle(self, bill: str) -> None:
        """Every stranger says yes to the question: one half taps, the other types."""
        acts = (
            self._act(Step("agree", BUTTON if number % 2 else "yes"), bill, number)
            for number in range(1, len(self.strangers) + 1)
        )
        await asyncio.gather(*acts)

    async def _hears(self, seen: Callable[[Sequence[Heard]], bool]) -> bool:
        return await self.inbox.until(seen, PATIENCE)

    async def _act(self, step: Step, bill: str = "", stranger: int = 0) -> Act:
        number, button = await self.budget.take(), self._button(step, bill)
        bill = f"b{number}" if step.verb == "ask" else bill
        act = Act(number, step.verb, bill, time.monotonic(), stranger=stranger, tapped=bool(button), late=step.late)
        self.diary.append(act)
        phone = self.strangers[stranger - 1] if stranger else self.phone
        act.taken_at = await self.courier.deliver(self.url, _hook(phone, step, act, button))
        return act

    def _button(self, step: Step, bill: str) -> str:
        """What a tap says; "" when nothing is tapped or the platform would not take the buttons."""
        if not step.tapped:
            return ""
        buttons = [each.buttons for each in about(self.inbox.heard, bill) if len(each.buttons) > 1]
        return buttons[-1][0 if step.verb == "agree" else 1] if buttons else ""


def _closes_at(heard: Sequence[Heard]) -> float:
    """When the last question is over, by what it says; questions that say nothing are over at once."""
    return max((each.at + window(each.text) for each in heard if each.telling.kind == "question"), default=0.0)


def _hook(phone: Phone, step: Step, act: Act, button: str) -> Hook:
    """The webhook of an act. What it says is settled here: a repeat says the same."""
    number = act.number
    if button:
        return lambda: phone.tap(number, button)
    words = _words(step).format(turn=f"t{number}", bill=act.bill)
    if step.verb == "send":
        return lambda: phone.photo(number, words)
    return lambda: phone.text(number, words)


def _words(step: Step) -> str:
    """What is typed; where a button is missing, the question asks for a typed answer anyway."""
    return {"agree": "yes", "refuse": "no"}[step.verb] if step.tapped else step.words


def _is_early(heard: Sequence[Heard]) -> bool:
    return bool(heard) and not _has_outcome(heard) and any(each.telling.kind == "early" for each in heard)


def _has_outcome(heard: Sequence[Heard]) -> bool:
    return any(each.telling.kind not in NO_OUTCOME for each in heard)


def _is_told(heard: Sequence[Heard], acts: int) -> bool:
    """Whether the outcome is there, or every act so far was too early, as far as a person can tell."""
    early = sum(each.telling.kind == "early" for each in heard)
    return _has_outcome(heard) or early >= acts
