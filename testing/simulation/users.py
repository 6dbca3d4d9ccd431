"""Simulated users: the stories they play, what they do, and the messages in their chats."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Self

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.outcomes import (
    DONE,
    NO_OUTCOME,
    BillStatement,
    ChatReader,
    open_seconds,
    read_statement,
    text_pattern,
)
from sayso.testing.simulation.processes import Machine
from sayso.testing.simulation.profile import (
    BUTTON,
    REST,
    Profile,
    Repertoire,
    Story,
    StoryStep,
    Verb,
)
from sayso.testing.simulation.webhooks import (
    SignWebhook,
    WebhookClient,
    WebhookDelivery,
    webhook_clients,
)

#: Pause between two polls of the platforms, in seconds.
POLL_SECONDS = 0.01
#: The API calls that show "typing", and the field that names the chat.
_TYPING_CALLS = {
    "sendChatAction": "chat_id",
    "agents.sessions.setStatus": "channel_id",
    "assistant.threads.setStatus": "channel_id",
}
#: The statuses of Slack that end the sign.
_ENDED = ("", "active", "suspended", "closed")
_TURN_NUMBER = re.compile(r"\bt(\d+)\b")
#: A message that asks whether a file arrived, instead of sending it again.
ASKED_INSTEAD = re.compile(text_pattern("maybe_missing", name=r"t(\d+)\.[^\0]*"))
#: Seconds after which a person stops waiting and goes on. Later answers still count.
PATIENCE = 90.0
#: How long after a question's end a late person answers, in seconds.
#: Its time begins when the platform has it.
LATE_SECONDS = 3.0
#: How often a person decides again who was told that it was too early.
MAX_DECISIONS = 6


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as a person reads it: the turns it answers in text and by file,
    and what it says of a bill.
    """

    at: float
    text: str
    buttons: tuple[str, ...]
    turns: frozenset[int]
    files: frozenset[int]
    bill: str
    statement: BillStatement

    @property
    def speaks_of_bill(self) -> bool:
        """Whether it says something of a bill."""
        return bool(self.bill) and self.statement.kind != "odd"


class ChatInbox:
    """The messages of one chat. Used on the event loop of the users only.

    `signs` are the times of "typing". `tapped` holds the bill of each tap,
    by the number of its act.
    """

    def __init__(self, done: str = DONE) -> None:
        self.messages: list[ChatMessage] = []
        self.tapped: dict[int, str] = {}
        self.signs: list[float] = []
        self._reader = ChatReader(done)
        self._new = asyncio.Event()

    def add(self, sent: Mapping[str, Any], at: float) -> None:
        """Add one message as the platform received it."""
        *others, (bill, statement) = self._reader.read(sent["text"])
        for other, aside in others:  # what it also says of an older question
            self.messages.append(
                ChatMessage(at, aside.text, (), frozenset(), frozenset(), other, aside)
            )
        instead = _numbers(ASKED_INSTEAD, statement.text)
        named = (sent["media"] or {}).get("filename", "")
        self.messages.append(
            ChatMessage(
                at,
                sent["text"],
                tuple(button["data"] for button in sent["buttons"]),
                _numbers(_TURN_NUMBER, statement.text) - instead,
                _numbers(_TURN_NUMBER, named.replace(".", " ")) | instead,
                bill,
                statement,
            )
        )
        self._new.set()

    def add_tap_answer(self, number: int, text: str, at: float) -> None:
        """Add what a platform shows to the person who tapped, and to no one else."""
        statement = read_statement(text)
        self.messages.append(
            ChatMessage(at, text, (), frozenset(), frozenset(), self.tapped[number], statement)
        )
        self._new.set()

    async def until(self, seen: Callable[[Sequence[ChatMessage]], bool], seconds: float) -> bool:
        """Wait until `seen` is true of the messages.

        Return whether it was within this many seconds.
        """
        deadline = time.monotonic() + seconds
        while not seen(self.messages):
            self._new.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._new.wait()
            except TimeoutError:
                return seen(self.messages)
        return True


async def follow(
    sent: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Put every message that the platforms receive into its inbox, until cancelled."""
    async for message in _each_new(sent):
        if message["chat"] in inboxes:
            inboxes[message["chat"]].add(message, time.monotonic())


async def follow_typing_signs(
    calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Note every "typing" that a platform shows, until cancelled."""
    async for call in _each_new(calls):
        chat = ""
        if call["method"] in _TYPING_CALLS and call["params"].get("status") not in _ENDED:
            chat = str(call["params"].get(_TYPING_CALLS[call["method"]]))
        if chat in inboxes:
            inboxes[chat].signs.append(time.monotonic())


async def follow_tap_answers(
    calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Put every text that Telegram shows in answer to a tap into the inbox of its chat,
    until cancelled.
    """
    async for call in _each_new(calls):
        if call["method"] != "answerCallbackQuery" or not call["params"].get("text"):
            continue
        number = int(call["params"]["callback_query_id"].removeprefix("cb"))
        for inbox in inboxes.values():
            if number in inbox.tapped:
                inbox.add_tap_answer(number, call["params"]["text"], time.monotonic())


async def _each_new(
    entries: Callable[[], Sequence[Mapping[str, Any]]],
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield each entry of a list that grows, and wait for further ones until cancelled."""
    read = 0
    while True:
        for entry in entries()[read:]:
            read += 1
            yield entry
        await asyncio.sleep(POLL_SECONDS)


def about(messages: Sequence[ChatMessage], bill: str) -> list[ChatMessage]:
    """Return the messages about one bill."""
    return [message for message in messages if message.bill == bill and message.speaks_of_bill]


def by_bill(messages: Sequence[ChatMessage]) -> dict[str, list[ChatMessage]]:
    """Return the messages by bill."""
    grouped: dict[str, list[ChatMessage]] = defaultdict(list)
    for message in messages:
        if message.speaks_of_bill:
            grouped[message.bill].append(message)
    return grouped


def _numbers(pattern: re.Pattern[str], text: str) -> frozenset[int]:
    return frozenset(map(int, pattern.findall(text)))


@dataclass(slots=True)
class Act:
    """One act of a person: its number, what it was, and the bill of a decision.

    A `next` is no act: it stands for a further step of a request, which is asked about by itself.
    """

    number: int
    verb: Verb
    bill: str
    sent_at: float
    taken_at: float = 0.0
    #: The number of the other group member who did it, 0 for the conversation's own person.
    stranger: int = 0
    tapped: bool = False
    late: bool = False
    #: The bill of the first step.
    request: str = ""

    @property
    def asks(self) -> bool:
        """Whether a question about its bill may come."""
        return self.verb in ("ask", "next")

    @property
    def agrees(self) -> bool:
        """Whether it is a yes in time, of the person who was asked."""
        return self.verb == "agree" and not self.stranger and not self.late

    @property
    def is_answered_by_turn(self) -> bool:
        """Whether the answer names the turn."""
        return self.verb in ("say", "send", "want")


class TurnBudget:
    """The turns of one simulation: a number, and perhaps an end time and a rate per second."""

    def __init__(self, turns: int, *, until: float = float("inf"), rate: float = 0.0) -> None:
        self.taken = 0
        self._turns = turns
        self._until = until
        self._rate = rate
        self._numbers: Iterator[int] = itertools.count(1)
        self._next = time.monotonic()

    @property
    def is_left(self) -> bool:
        """Whether another story may begin."""
        return self.taken < self._turns and time.monotonic() < self._until

    async def take(self) -> int:
        """Wait for the rate, and return the number of the next turn."""
        self.taken += 1
        number = next(self._numbers)
        if self._rate:
            self._next = max(self._next + 1 / self._rate, time.monotonic())
            await asyncio.sleep(self._next - time.monotonic())
        return number


@dataclass(slots=True)
class SimulatedUser:
    """One conversation. Each act waits until the web has accepted the one before.

    Decisions are the exception: several on one question are made at once, and the `strangers` in
    the chat answer each question at the same time.
    """

    client: WebhookClient
    url: str
    delivery: WebhookDelivery
    budget: TurnBudget
    chance: Random
    inbox: ChatInbox = field(default_factory=ChatInbox)
    acts: list[Act] = field(default_factory=list)
    strangers: Sequence[WebhookClient] = ()

    async def live(self, stories: Sequence[Story]) -> None:
        """Play stories while there are turns left."""
        weights = [story.weight for story in stories]
        while self.budget.is_left:
            await self.play(self.chance.choices(stories, weights)[0])

    async def play(self, story: Story) -> None:
        """Play one story. It ends early if a question does not come."""
        bill = ""
        waiting = []
        further: list[str] = []
        for before, step in zip((None, *story.steps), story.steps, strict=False):
            async with asyncio.TaskGroup() as at_once:
                # Answers to strangers name no bill: after the next question the judge
                # would take them for its answers.
                if before and before.verb == "ask" and not further:
                    at_once.create_task(self._strangers_answer(bill))
                if step.decides:
                    await self._decide(step, bill)
                elif step.verb == "ask":
                    bill, *further = await self._ask(step)
                    if not await self._waits_for(partial(_has_message_about, bill)):
                        return
                elif step.verb == "next" and step.text == REST:
                    await self._waits_for(partial(_has_rest, self._request_of(bill)))
                elif step.verb == "next":
                    bill, *further = further
                    if not await self._is_asked_next(bill):
                        return
                else:
                    waiting += [await self._act(step) for _ in range(step.times)]
        wanted = {act.number for act in waiting}
        await self._waits_for(
            lambda messages: (
                wanted
                <= {turn for message in messages for turn in (*message.turns, *message.files)}
            )
        )

    async def _ask(self, step: StoryStep) -> list[str]:
        """Make a request. Return the bills of all its steps."""
        numbers = [await self.budget.take() for _ in range(step.further_bills)]
        further = [f"b{number}" for number in numbers]
        request = (await self._act(step, further=further)).bill
        return [request, *further]

    def _request_of(self, bill: str) -> list[str]:
        """Return the bills of the request that this bill is a step of."""
        request = next(act.request for act in self.acts if act.asks and act.bill == bill)
        return [act.bill for act in self.acts if act.asks and act.request == request]

    async def _is_asked_next(self, bill: str) -> bool:
        """Wait for the question about a further step.

        Return False if the request ended before it.
        """
        request = self._request_of(bill)
        await self._waits_for(
            lambda messages: _has_message_about(bill, messages) or _has_rest(request, messages)
        )
        return _has_message_about(bill, self.inbox.messages)

    async def _decide(self, step: StoryStep, bill: str) -> None:
        """Decide; decide again if the answer is that it was too early."""
        # After the question has closed, by its own text; one that does not say closes at once.
        if step.late:
            questions = [
                each
                for each in about(self.inbox.messages, bill)
                if each.statement.kind == "question"
            ]
            closes_at = max(
                (question.at + open_seconds(question.text) for question in questions), default=0.0
            )
            await asyncio.sleep(closes_at + LATE_SECONDS - time.monotonic())
        for decided in range(1, MAX_DECISIONS + 1):
            await asyncio.gather(*(self._act(step, bill) for _ in range(step.times)))
            acts = decided * step.times
            await self._waits_for(partial(_is_answered, bill, acts))
            answers = about(self.inbox.messages, bill)
            if _has_outcome(answers) or not any(
                answer.statement.kind == "early" for answer in answers
            ):
                return
            # Another typed yes might meet the question about the next step.
            if len(self._request_of(bill)) > 1:
                step = replace(step, text=BUTTON)

    async def _strangers_answer(self, bill: str) -> None:
        """Have every stranger say yes to the question: one half taps, the other types."""
        acts = (
            self._act(StoryStep("agree", BUTTON if number % 2 else "yes"), bill, number)
            for number in range(1, len(self.strangers) + 1)
        )
        await asyncio.gather(*acts)

    async def _waits_for(self, seen: Callable[[Sequence[ChatMessage]], bool]) -> bool:
        return await self.inbox.until(seen, PATIENCE)

    async def _act(
        self, step: StoryStep, bill: str = "", stranger: int = 0, further: Sequence[str] = ()
    ) -> Act:
        """Do one act. `further` are the bills of a request behind its first one."""
        number = await self.budget.take()
        button = self._button(step, bill)
        request = ""
        if step.verb == "ask":
            bill = f"b{number}"
            request = bill
        act = Act(
            number,
            step.verb,
            bill,
            time.monotonic(),
            stranger=stranger,
            tapped=bool(button),
            late=step.late,
            request=request,
        )
        self.acts.append(act)
        for each in further:
            self.acts.append(Act(int(each[1:]), "next", each, act.sent_at, request=request))
        if button:
            self.inbox.tapped[number] = bill
        if stranger:
            client = self.strangers[stranger - 1]
        else:
            client = self.client
        act.taken_at = await self.delivery.deliver(
            self.url, _signed_webhook(client, step, act, button, further)
        )
        return act

    def _button(self, step: StoryStep, bill: str) -> str:
        """Return the data of the tapped button; "" if nothing is tapped
        or the platform refused the buttons.
        """
        if not step.tapped:
            return ""
        buttons = [
            message.buttons
            for message in about(self.inbox.messages, bill)
            if len(message.buttons) > 1
        ]
        if buttons:
            return buttons[-1][0 if step.verb == "agree" else 1]
        return ""


def _signed_webhook(
    client: WebhookClient, step: StoryStep, act: Act, button: str, further: Sequence[str] = ()
) -> SignWebhook:
    """Return the function that signs the webhook of an act.

    Its content is fixed here: a repeat says the same.
    """
    number = act.number
    if button:
        return lambda: client.tap(number, button)
    # Without a button, the question asks for a typed answer.
    if step.tapped:
        typed = {"agree": "yes", "refuse": "no"}[step.verb]
    else:
        typed = step.text
    more_bills = {f"bill{place}": bill for place, bill in enumerate(further, 2)}
    text = typed.format(turn=f"t{number}", bill=act.bill, **more_bills)
    if step.verb == "send":
        return lambda: client.photo(number, text)
    return lambda: client.text(number, text)


def _has_outcome(messages: Sequence[ChatMessage]) -> bool:
    return any(message.statement.kind not in NO_OUTCOME for message in messages)


def _has_message_about(bill: str, messages: Sequence[ChatMessage]) -> bool:
    return bool(about(messages, bill))


def _has_rest(request: Sequence[str], messages: Sequence[ChatMessage]) -> bool:
    """Return whether a message tells the rest of a request, or why it is missing."""
    return any(message.statement.kind == "rest" and message.bill in request for message in messages)


def _is_answered(bill: str, acts: int, messages: Sequence[ChatMessage]) -> bool:
    """Return whether the outcome of a bill came, or every act so far was answered as too early."""
    about_bill = about(messages, bill)
    early = sum(message.statement.kind == "early" for message in about_bill)
    return _has_outcome(about_bill) or early >= acts


class SimulatedUsers:
    """All simulated users, in a thread of their own from `with` to its end.

    Read `people` only once `is_done`.
    """

    def __init__(
        self, profile: Profile, platforms: FakePlatforms, machine: Machine, repertoire: Repertoire
    ) -> None:
        if profile.seconds:
            until = time.monotonic() + profile.seconds
        else:
            until = float("inf")
        self.budget = TurnBudget(profile.turns, until=until, rate=profile.turns_per_second)
        self.people: list[SimulatedUser] = []
        self._profile = profile
        self._platforms = platforms
        self._stories = repertoire.stories
        self.delivery = WebhookDelivery(
            repeated=profile.repeated_webhooks,
            late=profile.late_repeats,
            late_seconds=profile.late_seconds,
            chance=Random(f"{profile.seed} webhooks"),
            addresses=machine.addresses,
        )
        for name, (client, url) in enumerate(
            webhook_clients(platforms, machine.hooks, profile.conversations, profile.clock_skew)
        ):
            chance = Random(f"{profile.seed} {name}")
            inbox = ChatInbox(repertoire.done)
            if profile.strangers:
                others = client.add_strangers(profile.strangers)
            else:
                others = ()
            self.people.append(
                SimulatedUser(
                    client, url, self.delivery, self.budget, chance, inbox, strangers=others
                )
            )
        self._done = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="simulated users", daemon=True
        )
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
        self.delivery.close()

    @property
    def is_done(self) -> bool:
        """Whether all users have done everything and heard the answers.

        Raises their error if one failed.
        """
        if self._error is not None:
            raise self._error
        return self._done.is_set()

    @property
    def message_count(self) -> int:
        """The number of replies that have arrived."""
        return sum(len(person.inbox.messages) for person in self.people)

    async def _live(self) -> None:
        inboxes = {person.client.chat: person.inbox for person in self.people}
        following = [
            asyncio.create_task(follow(lambda: self._platforms.sent, inboxes)),
            asyncio.create_task(follow_typing_signs(lambda: self._platforms.calls, inboxes)),
            asyncio.create_task(follow_tap_answers(lambda: self._platforms.calls, inboxes)),
        ]
        self._loop, self._playing = asyncio.get_running_loop(), asyncio.create_task(self._play())
        await asyncio.wait({self._playing})
        if self._playing.cancelled():
            self._error = None
        else:
            self._error = self._playing.exception()
        self._done.set()
        await asyncio.to_thread(self._over.wait)
        for task in following:
            task.cancel()

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for person in self.people:
                group.create_task(person.live(self._stories))
        await self.delivery.wait_for_repeats()

    def _cancel(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
