"""Simulated users, stories, inboxes."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, Self, get_args

import yaml

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.outcomes import DONE, NO_OUTCOME, ChatReader, Telling, window
from sayso.testing.simulation.plan import Plan
from sayso.testing.simulation.processes import Machine
from sayso.testing.simulation.webhooks import SignHook, WebhookClient, WebhookDelivery, phones

#: Seconds between two looks at the platforms.
LOOK_SECONDS = 0.01


#: The calls that show "typing", and where they name the chat.
_SIGNS = {"sendChatAction": "chat_id", "assistant.threads.setStatus": "channel_id"}


_TURN = re.compile(r"\bt(\d+)\b")


_INSTEAD = re.compile(r"I was interrupted while sending t(\d+)\.")


@dataclass(frozen=True, slots=True)
class Heard:
    """One message as a person reads it: the turns it answers in words and by file, and what it says of which bill."""

    at: float
    text: str
    buttons: tuple[str, ...]
    turns: frozenset[int]
    files: frozenset[int]
    bill: str
    telling: Telling

    @property
    def speaks_of_bill(self) -> bool:
        """Whether it tells something of a bill."""
        return bool(self.bill) and self.telling.kind != "odd"


class ChatInbox:
    """One chat. Written and read on the people's event loop only. `signs` are the moments of "typing"."""

    def __init__(self, done: str = DONE) -> None:
        self.heard: list[Heard] = []
        self.signs: list[float] = []
        self._reader = ChatReader(done)
        self._new = asyncio.Event()

    def add(self, sent: Mapping[str, Any], at: float) -> None:
        """Read one message as the platform got it."""
        *others, (bill, telling) = self._reader.read(sent["text"])
        for other, aside in others:  # it speaks of an older question by the way
            self.heard.append(Heard(at, aside.text, (), frozenset(), frozenset(), other, aside))
        instead = _numbers(_INSTEAD, telling.text)
        named = (sent["media"] or {}).get("filename", "")
        self.heard.append(
            Heard(
                at,
                sent["text"],
                tuple(button["data"] for button in sent["buttons"]),
                _numbers(_TURN, telling.text) - instead,
                _numbers(_TURN, named.replace(".", " ")) | instead,
                bill,
                telling,
            )
        )
        self._new.set()

    async def until(self, seen: Callable[[Sequence[Heard]], bool], seconds: float) -> bool:
        """Wait until enough was heard. Whether it was, in so many seconds."""
        deadline = time.monotonic() + seconds
        while not seen(self.heard):
            self._new.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._new.wait()
            except TimeoutError:
                return seen(self.heard)
        return True


async def follow(sent: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]) -> None:
    """Put everything that arrives at the platforms in its inbox, until cancelled."""
    read = 0
    while True:
        for message in sent()[read:]:
            read += 1
            if message["chat"] in inboxes:
                inboxes[message["chat"]].add(message, time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)


async def follow_signs(calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]) -> None:
    """Note every "typing" that a platform showed, until cancelled."""
    read = 0
    while True:
        for call in calls()[read:]:
            read += 1
            chat = str(call["params"].get(_SIGNS[call["method"]])) if call["method"] in _SIGNS else ""
            if chat in inboxes:
                inboxes[chat].signs.append(time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)


def about(heard: Sequence[Heard], bill: str) -> list[Heard]:
    """What was heard of one bill."""
    return [each for each in heard if each.bill == bill and each.speaks_of_bill]


def by_bill(heard: Sequence[Heard]) -> dict[str, list[Heard]]:
    """What was heard, by bill."""
    sorted_: dict[str, list[Heard]] = defaultdict(list)
    for each in heard:
        if each.speaks_of_bill:
            sorted_[each.bill].append(each)
    return sorted_


def _numbers(pattern: re.Pattern[str], text: str) -> frozenset[int]:
    return frozenset(map(int, pattern.findall(text)))


#: What one step is; stories.yaml says what each means.
Verb = Literal["say", "send", "want", "ask", "agree", "refuse"]


#: What a decision says that is tapped instead of typed.
BUTTON = "button"


_VERBS: tuple[Verb, ...] = get_args(Verb)


_NEEDS: dict[Verb, str] = {"say": "{turn}", "send": "{turn}", "want": "{turn}", "ask": "{bill}"}


class StoriesUnusable(Exception):
    """Raised when a file of stories cannot be played. The message names the place and the cure."""


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One act of a person, done `times` times at once; a `late` decision only when the question is no longer open."""

    verb: Verb
    words: str
    times: int = 1
    late: bool = False

    @property
    def decides(self) -> bool:
        """Whether it answers a question."""
        return self.verb in ("agree", "refuse")

    @property
    def tapped(self) -> bool:
        """Whether it is a tap."""
        return self.decides and self.words == BUTTON


@dataclass(frozen=True, slots=True)
class Story:
    """What one person does from beginning to end. `weight` is how often, beside the other stories.

    One without weight is played only where a row of the matrix names it: as often as one of weight 1 for each time.
    """

    name: str
    weight: float
    steps: tuple[StoryStep, ...]


@dataclass(frozen=True, slots=True)
class Repertoire:
    """What a file holds: its stories, and a regular expression for what tools say when they are done."""

    stories: tuple[Story, ...]
    done: str


def load_stories(file: Path, only: tuple[str, ...] = ()) -> Repertoire:
    """The stories of a file, all or only those named. Raises StoriesUnusable."""
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise StoriesUnusable(f"{file}: {exc}") from exc
    told = read.get("stories") if isinstance(read, dict) else None
    if not isinstance(told, dict) or not told:
        raise StoriesUnusable(f"{file}: no stories: begin with `stories:` and a name below it")
    unknown = sorted(set(only) - set(told))
    if unknown:
        raise StoriesUnusable(f"{file}: no story {unknown[0]!r}; known: {sorted(told)}")
    stories = [_story(file, name, told[name]) for name in told if not only or name in only]
    played = tuple(
        replace(story, weight=story.weight or only.count(story.name)) for story in stories if story.weight or only
    )
    if not played:
        raise StoriesUnusable(f"{file}: no story has a weight above 0: nobody would do anything")
    return Repertoire(played, _done(file, read.get("done", DONE)))


def _done(file: Path, done: Any) -> str:
    if not isinstance(done, str) or "{bill}" not in done:
        raise StoriesUnusable(f"{file}: done is {done!r}: write what your tools say, with {{bill}} in it")
    try:
        re.compile(done.replace("{bill}", "b1"))
    except re.error as exc:
        raise StoriesUnusable(f"{file}: done is {done!r}, no regular expression: {exc}") from exc
    return done


def _story(file: Path, name: str, told: Any) -> Story:
    place = f"{file}: story {name!r}"
    if not isinstance(told, dict) or not isinstance(told.get("steps"), list) or not told["steps"]:
        raise StoriesUnusable(f"{place}: has no steps: add `steps:` and a list")
    weight = told.get("weight", 1)
    if not isinstance(weight, int | float) or weight < 0:
        raise StoriesUnusable(f"{place}: weight is {weight!r}: write a number, 0 for never by itself")
    steps = tuple(_step(place, step) for step in told["steps"])
    for number, step in enumerate(steps):
        if step.decides and not any(before.verb == "ask" for before in steps[:number]):
            raise StoriesUnusable(f"{place}: {step.verb!r} comes before any `ask`: nothing was asked yet")
    return Story(str(name), weight, steps)


def _step(place: str, told: Any) -> StoryStep:
    verb = next((verb for verb in _VERBS if isinstance(told, dict) and verb in told), None)
    if verb is None:
        raise StoriesUnusable(f"{place}: {told!r} is no step; a step has one of {', '.join(_VERBS)}")
    words, times = told[verb], told.get("times", 1)
    if not isinstance(words, str):
        raise StoriesUnusable(f"{place}: {verb} is {words!r}: put the words in quotes")
    if _NEEDS.get(verb, "") not in words:
        raise StoriesUnusable(f"{place}: {verb} {words!r} must hold {_NEEDS[verb]}, or its answer cannot be told apart")
    if not isinstance(times, int) or not 1 <= times <= 10:
        raise StoriesUnusable(f"{place}: times is {times!r}: write a number from 1 to 10")
    late = told.get("late", False)
    if not isinstance(late, bool) or (late and verb not in ("agree", "refuse")):
        raise StoriesUnusable(f"{place}: late is {late!r}: write true, at a decision")
    return StoryStep(verb, words, times, late)


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


class TurnBudget:
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
class SimulatedUser:
    """One conversation. Acts are taken by the web in the order they are done: each waits for the one before.

    Decisions are the exception: several on one question are made at once, and the `strangers`, who share the chat,
    answer each question at the same moment.
    """

    phone: WebhookClient
    url: str
    courier: WebhookDelivery
    budget: TurnBudget
    chance: Random
    inbox: ChatInbox = field(default_factory=ChatInbox)
    diary: list[Act] = field(default_factory=list)
    strangers: Sequence[WebhookClient] = ()

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

    async def _decide(self, step: StoryStep, bill: str) -> None:
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
            self._act(StoryStep("agree", BUTTON if number % 2 else "yes"), bill, number)
            for number in range(1, len(self.strangers) + 1)
        )
        await asyncio.gather(*acts)

    async def _hears(self, seen: Callable[[Sequence[Heard]], bool]) -> bool:
        return await self.inbox.until(seen, PATIENCE)

    async def _act(self, step: StoryStep, bill: str = "", stranger: int = 0) -> Act:
        number, button = await self.budget.take(), self._button(step, bill)
        bill = f"b{number}" if step.verb == "ask" else bill
        act = Act(number, step.verb, bill, time.monotonic(), stranger=stranger, tapped=bool(button), late=step.late)
        self.diary.append(act)
        phone = self.strangers[stranger - 1] if stranger else self.phone
        act.taken_at = await self.courier.deliver(self.url, _hook(phone, step, act, button))
        return act

    def _button(self, step: StoryStep, bill: str) -> str:
        """What a tap says; "" when nothing is tapped or the platform would not take the buttons."""
        if not step.tapped:
            return ""
        buttons = [each.buttons for each in about(self.inbox.heard, bill) if len(each.buttons) > 1]
        return buttons[-1][0 if step.verb == "agree" else 1] if buttons else ""


def _closes_at(heard: Sequence[Heard]) -> float:
    """When the last question is over, by what it says; questions that say nothing are over at once."""
    return max((each.at + window(each.text) for each in heard if each.telling.kind == "question"), default=0.0)


def _hook(phone: WebhookClient, step: StoryStep, act: Act, button: str) -> SignHook:
    """The webhook of an act. What it says is settled here: a repeat says the same."""
    number = act.number
    if button:
        return lambda: phone.tap(number, button)
    words = _words(step).format(turn=f"t{number}", bill=act.bill)
    if step.verb == "send":
        return lambda: phone.photo(number, words)
    return lambda: phone.text(number, words)


def _words(step: StoryStep) -> str:
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


class Crowd:
    """From `with` to its end. `people` may be read by others once `is_done`."""

    def __init__(self, plan: Plan, platforms: FakePlatforms, machine: Machine, repertoire: Repertoire) -> None:
        until = time.monotonic() + plan.minutes * 60 if plan.minutes else float("inf")
        self.budget = TurnBudget(plan.turns, until=until, rate=plan.rate)
        self.people: list[SimulatedUser] = []
        self._plan, self._platforms, self._stories = plan, platforms, repertoire.stories
        self.courier = WebhookDelivery(
            redeliver=plan.redeliver,
            shuffle=plan.shuffle,
            late=plan.late,
            chance=Random(f"{plan.seed} courier"),  # noqa: S311  # no secret
            doors=machine.doors,
        )
        for name, (phone, url) in enumerate(phones(platforms, machine.hooks, plan.conversations, plan.skew)):
            chance = Random(f"{plan.seed} {name}")  # noqa: S311  # no secret
            inbox, others = ChatInbox(repertoire.done), phone.others(plan.strangers) if plan.strangers else ()
            self.people.append(SimulatedUser(phone, url, self.courier, self.budget, chance, inbox, strangers=others))
        self._done, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="crowd", daemon=True)
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()
        self.courier.close()

    @property
    def is_done(self) -> bool:
        """Whether everybody has done and heard everything. Raises what went wrong among them."""
        if self._error is not None:
            raise self._error
        return self._done.is_set()

    @property
    def heard(self) -> int:
        """How many replies have arrived."""
        return sum(len(person.inbox.heard) for person in self.people)

    async def _live(self) -> None:
        inboxes = {person.phone.chat: person.inbox for person in self.people}
        following = [
            asyncio.create_task(follow(lambda: self._platforms.sent, inboxes)),
            asyncio.create_task(follow_signs(lambda: self._platforms.calls, inboxes)),
        ]
        self._loop, self._playing = asyncio.get_running_loop(), asyncio.create_task(self._play())
        await asyncio.wait({self._playing})
        self._error = None if self._playing.cancelled() else self._playing.exception()
        self._done.set()
        await asyncio.to_thread(self._over.wait)
        for task in following:
            task.cancel()

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for person in self.people:
                group.create_task(person.live(self._stories))
        await self.courier.drained()

    def _cancel(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
