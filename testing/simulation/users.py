"""Simulated users: they play stories, and read the messages that arrive in their chats.

A simulated user is one conversation on one fake platform. It plays stories, each a list of steps
such as "ask to pay a bill" and "agree". Each step that it does is an act, with the number of its
turn. It goes on when the messages in its inbox say what the step waits for.

A bill is the name of what is asked for, such as `b5`; a story that asks for something gets a new
one. A stranger is another member of the user's group, who answers questions that are not theirs.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Self

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.deciders import DECIDER_NUMBERS, SimulatedDecider
from sayso.testing.simulation.outcomes import (
    DONE,
    NO_OUTCOME,
    BillStatement,
    ChatReader,
    open_seconds,
    read_statement,
    text_pattern,
)
from sayso.testing.simulation.processes import BotProcesses
from sayso.testing.simulation.profile import (
    BUTTON,
    OTHERS,
    REST,
    Profile,
    Repertoire,
    Story,
    StoryStep,
    Verb,
)
from sayso.testing.simulation.webhooks import (
    SignWebhook,
    TelegramClient,
    WebhookClient,
    WebhookDelivery,
    webhook_clients,
)

#: Pause between two polls of the platforms, in seconds.
POLL_SECONDS = 0.01
#: The API calls that show "typing", and the parameter that names the chat.
_TYPING_CALLS = {
    "sendChatAction": "chat_id",
    "agents.sessions.setStatus": "channel_id",
    "assistant.threads.setStatus": "channel_id",
}
#: The statuses with which these calls of Slack end "typing" instead.
_END_STATUSES = ("", "active", "suspended", "closed")
#: The number of a turn, such as t5.
_TURN_NUMBER = re.compile(r"\bt(\d+)\b")
#: A message that asks whether a file arrived, instead of sending it again. The number of its turn
#: begins the name of the file.
ASKED_INSTEAD = re.compile(text_pattern("maybe_missing", name=r"t(\d+)\.[^\0]*"))
#: Seconds after which a person stops waiting and goes on. Later answers still count.
PATIENCE = 90.0
#: How long after a question's end a late person answers, in seconds. The question is open from the
#: moment at which Sayso knows that the platform has it, so its end is not known exactly.
LATE_SECONDS = 3.0
#: The most decisions of a person on one question, if each is answered with "too early".
MAX_DECISIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message as a person reads it.

    A message with several parts, such as an outcome and the next question, is several of these.
    """

    #: When it arrived, on the monotonic clock.
    at: float
    text: str
    #: The data of its buttons, in order.
    buttons: tuple[str, ...] = ()
    #: The numbers of the turns that its text names.
    turns: frozenset[int] = frozenset()
    #: The numbers of the turns that its file names, or the file that it asks about.
    files: frozenset[int] = frozenset()
    #: The bill that it is about; "" before the first bill of the chat.
    bill: str
    #: What it says about the bill.
    statement: BillStatement

    @property
    def speaks_of_bill(self) -> bool:
        """Whether the message says something about a bill that the judge understands."""
        return bool(self.bill) and self.statement.kind != "odd"


class ChatInbox:
    """The messages of one chat. Used on the event loop of the users only.

    `done` is a regular expression for what tools say when they are done, with {bill} for the bill.
    """

    def __init__(self, done: str = DONE) -> None:
        self.messages: list[ChatMessage] = []
        #: The bill of each tap, by the number of its act.
        self.bill_of_tap: dict[int, str] = {}
        #: The times of "typing", on the monotonic clock.
        self.signs: list[float] = []
        self._reader = ChatReader(done)
        self._changed = asyncio.Event()

    def add(self, sent: Mapping[str, Any], at: float) -> None:
        """Add one message as the platform received it: an entry of `RequestLog.sent`."""
        # The last part is the message itself. Parts before it are about older questions.
        *older_parts, (bill, statement) = self._reader.read(sent["text"])
        for older_bill, older in older_parts:
            self.messages.append(
                ChatMessage(at=at, text=older.text, bill=older_bill, statement=older)
            )

        asked_about = _numbers(ASKED_INSTEAD, statement.text)
        filename = (sent["media"] or {}).get("filename", "")
        self.messages.append(
            ChatMessage(
                at=at,
                text=sent["text"],
                buttons=tuple(button["data"] for button in sent["buttons"]),
                turns=_numbers(_TURN_NUMBER, statement.text) - asked_about,
                files=_numbers(_TURN_NUMBER, filename) | asked_about,
                bill=bill,
                statement=statement,
            )
        )
        self._changed.set()

    def add_tap_answer(self, number: int, text: str, at: float) -> None:
        """Add the notice that a platform shows only to the person who tapped.

        `number` is that of the tap.
        """
        self.messages.append(
            ChatMessage(
                at=at, text=text, bill=self.bill_of_tap[number], statement=read_statement(text)
            )
        )
        self._changed.set()

    async def wait_until(
        self, condition: Callable[[Sequence[ChatMessage]], bool], seconds: float
    ) -> bool:
        """Wait until a condition is true of the messages, at most this many seconds.

        Return whether it is true.
        """
        deadline = time.monotonic() + seconds
        while not condition(self.messages):
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                return condition(self.messages)
        return True


async def follow_messages(
    sent: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Put every message that the platforms receive into the inbox of its chat, until cancelled.

    `sent` returns all messages so far; `inboxes` are the inboxes by chat.
    """
    async for message in _each_new(sent):
        if message["chat"] in inboxes:
            inboxes[message["chat"]].add(message, time.monotonic())


async def follow_typing_signs(
    calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Note every "typing" that a platform shows, until cancelled."""
    async for call in _each_new(calls):
        method = call["method"]
        params = call["params"]
        if method not in _TYPING_CALLS or params.get("status") in _END_STATUSES:
            continue
        chat = str(params.get(_TYPING_CALLS[method]))
        if chat in inboxes:
            inboxes[chat].signs.append(time.monotonic())


async def follow_tap_answers(
    calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, ChatInbox]
) -> None:
    """Put every notice that Telegram shows after a tap into an inbox, until cancelled."""
    async for call in _each_new(calls):
        if call["method"] != "answerCallbackQuery" or not call["params"].get("text"):
            continue
        text = call["params"]["text"]
        # The notice names only the tap, whose id the fake made from the number of its act.
        number = int(call["params"]["callback_query_id"].removeprefix("cb"))
        for inbox in inboxes.values():
            if number in inbox.bill_of_tap:
                inbox.add_tap_answer(number, text, time.monotonic())


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
    """Return the messages by the bill that they say something about."""
    grouped: dict[str, list[ChatMessage]] = defaultdict(list)
    for message in messages:
        if message.speaks_of_bill:
            grouped[message.bill].append(message)
    return grouped


def _numbers(pattern: re.Pattern[str], text: str) -> frozenset[int]:
    return frozenset(map(int, pattern.findall(text)))


@dataclass(slots=True)
class Act:
    """One act of a person. Times are of the monotonic clock.

    An act with the verb `next` is not done by the person. It stands for a further step of a
    request, about which Sayso asks by itself.
    """

    #: The number of its turn. It is unique in the simulation.
    number: int
    verb: Verb
    #: The bill that it asks for or decides on; "" for other acts.
    bill: str
    sent_at: float
    #: When a web process accepted its webhook; 0 for not yet.
    accepted_at: float = 0.0
    #: The number of the stranger who did it, from 1; 0 for the person of the conversation.
    stranger: int = 0
    #: Whether a decision was tapped instead of typed.
    tapped: bool = False
    #: Whether a decision came after the question had closed.
    late: bool = False
    #: The bill of the first step of its request; "" for acts that are not part of a request.
    request: str = ""
    #: How many other people must agree to what it asks for; 0 if its person decides.
    need: int = 0

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
        """Whether its answer names the number of its turn."""
        return self.verb in ("say", "send", "want")


class TurnBudget:
    """The turns that all users of one simulation may take.

    `turns` is their number, `until` a time on the monotonic clock, and `rate` the most turns a
    second; 0 for no limit. A story that has begun is played to its end, so a few more are taken.
    """

    def __init__(self, turns: int, *, until: float = float("inf"), rate: float = 0.0) -> None:
        #: The number of turns so far.
        self.taken_turns = 0
        self._turns = turns
        self._until = until
        self._rate = rate
        #: When the next turn may begin.
        self._next_at = time.monotonic()

    @property
    def is_left(self) -> bool:
        """Whether another story may begin."""
        return self.taken_turns < self._turns and time.monotonic() < self._until

    async def take(self) -> int:
        """Wait for the rate, and return the number of the next turn, from 1."""
        self.taken_turns += 1
        number = self.taken_turns
        if self._rate:
            self._next_at = max(self._next_at + 1 / self._rate, time.monotonic())
            await asyncio.sleep(self._next_at - time.monotonic())
        return number


@dataclass(slots=True)
class SimulatedUser:
    """One conversation. Each act waits until the web has accepted the one before.

    Decisions are the exception: several on one question are made at once, and the `strangers` in
    the chat answer each question at the same time.
    """

    #: Signs the webhooks of this person.
    client: WebhookClient
    #: Where the webhooks go.
    url: str
    delivery: WebhookDelivery
    budget: TurnBudget
    #: Draws the stories.
    rng: Random
    inbox: ChatInbox = field(default_factory=ChatInbox)
    #: Everything the person and the strangers did, in order.
    acts: list[Act] = field(default_factory=list)
    strangers: Sequence[WebhookClient] = ()

    async def play_stories(self, stories: Sequence[Story]) -> None:
        """Play stories while there are turns left."""
        weights = [story.weight for story in stories]
        while self.budget.is_left:
            await self.play(self.rng.choices(stories, weights)[0])

    async def play(self, story: Story) -> None:
        """Play one story. It ends early if a question does not come."""
        # The bill that the story is about now.
        bill = ""
        # The bills of the further steps of its request.
        further_bills: list[str] = []
        # The turns whose answers the story waits for in the end.
        waiting_turns: set[int] = set()
        previous: StoryStep | None = None
        for step in story.steps:
            async with asyncio.TaskGroup() as at_once:
                # A question was asked, so the strangers answer it too, while this step is done. In
                # a request of several steps they do not: answers to strangers name no bill, and
                # after the next question the judge would take them for answers to that.
                asked_person = previous and previous.verb == "ask" and not previous.need
                if asked_person and not further_bills:
                    at_once.create_task(self._strangers_answer(bill))

                if step.decides:
                    await self._decide(step, bill)
                elif step.verb == "ask":
                    bill, *further_bills = await self._ask(step)
                    if not await self._wait_for(partial(_has_message_about, bill)):
                        return
                elif step.verb == "next" and step.text == OTHERS:
                    await self._wait_for(partial(_is_decided, bill))
                elif step.verb == "next" and step.text == REST:
                    await self._wait_for(partial(_has_rest, self._request_of(bill)))
                elif step.verb == "next":
                    bill, *further_bills = further_bills
                    if not await self._is_asked_next(bill):
                        return
                else:
                    for _ in range(step.times):
                        act = await self._act(step)
                        waiting_turns.add(act.number)
            previous = step
        await self._wait_for(partial(_answer_all, waiting_turns))

    async def _ask(self, step: StoryStep) -> list[str]:
        """Make a request. Return the bills of all its steps."""
        numbers = [await self.budget.take() for _ in range(step.further_bills)]
        further_bills = [f"b{number}" for number in numbers]
        act = await self._act(step, further_bills=further_bills)
        return [act.bill, *further_bills]

    def _request_of(self, bill: str) -> list[str]:
        """Return the bills of the request that this bill is a step of."""
        request = next(act.request for act in self.acts if act.asks and act.bill == bill)
        return [act.bill for act in self.acts if act.asks and act.request == request]

    async def _is_asked_next(self, bill: str) -> bool:
        """Wait for the question about a further step.

        Return False if the request ended before it.
        """
        request = self._request_of(bill)
        await self._wait_for(
            lambda messages: _has_message_about(bill, messages) or _has_rest(request, messages)
        )
        return _has_message_about(bill, self.inbox.messages)

    async def _decide(self, step: StoryStep, bill: str) -> None:
        """Decide; decide again if the answer is that it was too early."""
        if step.late:
            await self._sleep_until_closed(bill)
        for decisions in range(1, MAX_DECISIONS + 1):
            await asyncio.gather(*(self._act(step, bill) for _ in range(step.times)))
            await self._wait_for(partial(_is_answered, bill, decisions * step.times))

            answers = about(self.inbox.messages, bill)
            was_early = any(answer.statement.kind == "early" for answer in answers)
            if _has_outcome(answers) or not was_early:
                return
            # Another typed yes might meet the question about the next step.
            if len(self._request_of(bill)) > 1:
                step = replace(step, text=BUTTON)

    async def _sleep_until_closed(self, bill: str) -> None:
        """Wait until the question has closed.

        The time is that in its text. A text without one counts as a question that closes at once.
        """
        closes_at = 0.0
        for message in about(self.inbox.messages, bill):
            if message.statement.kind == "question":
                closes_at = max(closes_at, message.at + open_seconds(message.text))
        await asyncio.sleep(closes_at + LATE_SECONDS - time.monotonic())

    async def _strangers_answer(self, bill: str) -> None:
        """Have every stranger say yes to the question: one half taps, the other types."""
        acts = []
        for stranger in range(1, len(self.strangers) + 1):
            text = BUTTON if stranger % 2 else "yes"
            acts.append(self._act(StoryStep("agree", text), bill, stranger=stranger))
        await asyncio.gather(*acts)

    async def _wait_for(self, condition: Callable[[Sequence[ChatMessage]], bool]) -> bool:
        """Wait until a condition is true of the messages. Return False if patience ends before."""
        return await self.inbox.wait_until(condition, PATIENCE)

    async def _act(
        self,
        step: StoryStep,
        bill: str = "",
        *,
        stranger: int = 0,
        further_bills: Sequence[str] = (),
    ) -> Act:
        """Do one act, and wait until a web process has accepted its webhook.

        `bill` is what a decision is about. An `ask` gets a new bill; `further_bills` are those of
        the other steps of its request.
        """
        number = await self.budget.take()
        button = self._button_data(step, bill)
        request = ""
        if step.verb == "ask":
            bill = f"b{number}"
            request = bill
        act = Act(
            number=number,
            verb=step.verb,
            bill=bill,
            sent_at=time.monotonic(),
            stranger=stranger,
            tapped=bool(button),
            late=step.late,
            request=request,
            need=step.need,
        )
        self.acts.append(act)
        for further_bill in further_bills:
            step_number = int(further_bill.removeprefix("b"))
            next_act = Act(step_number, "next", further_bill, act.sent_at, request=request)
            self.acts.append(next_act)

        if button:
            self.inbox.bill_of_tap[number] = bill
        client = self.strangers[stranger - 1] if stranger else self.client
        webhook = _signed_webhook(client, step, act, button, further_bills)
        act.accepted_at = await self.delivery.deliver(self.url, webhook)
        return act

    def _button_data(self, step: StoryStep, bill: str) -> str:
        """Return the data of the button to tap on the latest question about a bill.

        Return "" if the step is not a tap, or if the platform refused the buttons.
        """
        if not step.tapped:
            return ""
        questions = [
            message for message in about(self.inbox.messages, bill) if len(message.buttons) > 1
        ]
        if not questions:
            return ""
        # The buttons of a question are yes and no, in this order.
        place = 0 if step.verb == "agree" else 1
        return questions[-1].buttons[place]


def _signed_webhook(
    client: WebhookClient, step: StoryStep, act: Act, button: str, further_bills: Sequence[str]
) -> SignWebhook:
    """Return the function that signs the webhook of an act.

    `button` is the data of the tapped button, "" for none. The content is fixed here, so that a
    repeated delivery says the same.
    """
    number = act.number
    if button:
        return lambda: client.tap(number, button)

    typed = step.text
    # Where the platform refused the buttons, the question asks for a typed answer.
    if step.tapped:
        typed = {"agree": "yes", "refuse": "no"}[step.verb]
    more_bills = {f"bill{place}": bill for place, bill in enumerate(further_bills, 2)}
    text = typed.format(turn=f"t{number}", bill=act.bill, **more_bills)
    if step.verb == "send":
        return lambda: client.photo(number, text)
    return lambda: client.text(number, text)


def _has_outcome(messages: Sequence[ChatMessage]) -> bool:
    return any(message.statement.kind not in NO_OUTCOME for message in messages)


def _is_decided(bill: str, messages: Sequence[ChatMessage]) -> bool:
    """Return whether the outcome of what other people decide was told."""
    return _has_outcome(about(messages, bill))


def _has_message_about(bill: str, messages: Sequence[ChatMessage]) -> bool:
    return bool(about(messages, bill))


def _has_rest(request: Sequence[str], messages: Sequence[ChatMessage]) -> bool:
    """Return whether a message tells the rest of a request, or why it is missing."""
    return any(message.statement.kind == "rest" and message.bill in request for message in messages)


def _is_answered(bill: str, acts: int, messages: Sequence[ChatMessage]) -> bool:
    """Return whether the outcome of a bill came, or as many answers "too early" as `acts`."""
    about_bill = about(messages, bill)
    early = sum(message.statement.kind == "early" for message in about_bill)
    return _has_outcome(about_bill) or early >= acts


def _answer_all(turns: Set[int], messages: Sequence[ChatMessage]) -> bool:
    """Return whether the messages answer all these turns, by text or by file."""
    answered = set[int]()
    for message in messages:
        answered |= message.turns | message.files
    return turns <= answered


class SimulatedUsers:
    """All simulated users. From `with` to its end they act in a separate thread.

    Read `people` only once `is_done`, because until then that thread changes them.
    """

    def __init__(
        self, profile: Profile, platforms: FakePlatforms, bot: BotProcesses, repertoire: Repertoire
    ) -> None:
        until = float("inf")
        if profile.seconds:
            until = time.monotonic() + profile.seconds
        self.budget = TurnBudget(profile.turns, until=until, rate=profile.turns_per_second)
        self.delivery = WebhookDelivery(
            repeated=profile.repeated_webhooks,
            late=profile.late_repeats,
            late_seconds=profile.late_seconds,
            rng=Random(f"{profile.seed} webhooks"),
            addresses=bot.addresses,
        )
        self.people: list[SimulatedUser] = []
        self._platforms = platforms
        self._stories = repertoire.stories

        clients = webhook_clients(platforms, bot.hooks, profile.conversations, profile.clock_skew)
        for number, (client, url) in enumerate(clients):
            strangers: Sequence[WebhookClient] = ()
            if profile.strangers:
                strangers = client.add_strangers(profile.strangers)
            user = SimulatedUser(
                client=client,
                url=url,
                delivery=self.delivery,
                budget=self.budget,
                rng=Random(f"{profile.seed} {number}"),
                inbox=ChatInbox(repertoire.done),
                strangers=strangers,
            )
            self.people.append(user)
        #: Those who decide about what the people ask for.
        self.deciders = self._make_deciders(profile, bot.hooks)

        #: Set when all users are done or one has failed.
        self._done = threading.Event()
        #: Set when the `with` block ends. Until then, late messages are still read.
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name="simulated users", daemon=True
        )
        #: Set when the thread has a loop and plays, so that it can be cancelled.
        self._playing_began = threading.Event()
        #: The error of a user, or of a reader of messages, that failed.
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._playing_began.wait()
        return self

    def __exit__(self, *_: object) -> None:
        # In this order: the thread closes its loop once `_over` is set.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
        self._over.set()
        self._thread.join()
        self.delivery.close()

    @property
    def is_done(self) -> bool:
        """Whether all users have played their stories and have their answers.

        Raises the error of a user, or of a reader of messages, that failed.
        """
        self._raise_error()
        return self._done.is_set()

    @property
    def message_count(self) -> int:
        """The number of replies that have arrived. Raises like `is_done`."""
        self._raise_error()
        return sum(len(person.inbox.messages) for person in self.people)

    async def _live(self) -> None:
        """Play all stories, and read messages until the `with` block ends."""
        inboxes = {person.client.chat: person.inbox for person in self.people}
        readers = [
            asyncio.create_task(follow_messages(lambda: self._platforms.sent, inboxes)),
            asyncio.create_task(self._decide_for_others()),
            asyncio.create_task(follow_typing_signs(lambda: self._platforms.calls, inboxes)),
            asyncio.create_task(follow_tap_answers(lambda: self._platforms.calls, inboxes)),
        ]
        self._loop = asyncio.get_running_loop()
        self._playing = asyncio.create_task(self._play())
        # A reader must not fail unnoticed: the judge would count what it did not read as lost.
        for task in (*readers, self._playing):
            task.add_done_callback(self._note_error)
        self._playing_began.set()

        await asyncio.wait({self._playing})
        self._done.set()

        # The judge waits for replies that are still on their way.
        await asyncio.to_thread(self._over.wait)
        for task in readers:
            task.cancel()

    def _make_deciders(
        self, profile: Profile, hooks: Sequence[tuple[str, str]]
    ) -> list[SimulatedDecider]:
        """Return those who decide, on the first channel of Telegram; none without one."""
        url = next((url for platform, url in hooks if platform == "telegram"), "")
        if not url:
            return []
        return [
            SimulatedDecider(
                name=name,
                client=TelegramClient(self._platforms, number, url),
                url=url,
                delivery=self.delivery,
                take_turn=self.budget.take,
                rng=Random(f"{profile.seed} {name}"),
            )
            for name, number in DECIDER_NUMBERS.items()
        ]

    async def _decide_for_others(self) -> None:
        """Let the deciders read their chats and answer, until cancelled."""
        deciders = {each.client.chat: each for each in self.deciders}
        async with asyncio.TaskGroup() as answers:
            async for message in _each_new(lambda: self._platforms.sent):
                if message["chat"] in deciders:
                    answers.create_task(deciders[message["chat"]].read(message))

    def _note_error(self, task: asyncio.Task[None]) -> None:
        """Keep the error of a task that failed. One that was cancelled has not failed."""
        if not task.cancelled():
            self._error = self._error or task.exception()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for person in self.people:
                group.create_task(person.play_stories(self._stories))
        await self.delivery.wait_for_repeats()

    def _cancel(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
