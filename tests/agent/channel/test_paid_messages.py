"""What a conversation on WhatsApp costs around a question: messages that are paid, and calls of the model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.channels.harness import WHATSAPP, MemoryMedia, whatsapp_hook
from tests.contracts.rigs import MemoryRig, make_processor, make_sender

#: Longer than the window of a question.
WINDOW = 61.0


class WhatsAppChat:
    """One person's chat with a bot that refunds orders, through the real adapter and a fake of Twilio."""

    def __init__(self, platforms: fakes.FakePlatforms, media: MemoryMedia) -> None:
        platforms.reset()
        self.platforms = platforms
        self.rig = MemoryRig()
        self.refunded = []
        self._sids = (f"SM{number:032x}" for number in itertools.count(1))

        @tool(requires_approval=True, preview="Refund order {order}")
        def refund(order: str) -> str:
            """Refund an order."""
            self.refunded.append(order)
            return f"Order {order} is refunded."

        lines = ["I see.", "Well.", "So?", "Hm."]
        self.provider = ScriptedProvider([ToolCall("refund", {"order": "5"}, "c1"), *lines])
        agent = Agent([refund], self.provider, AgentConfig(max_retries=0))
        self.agent = ChannelAgent(agent, self.rig.store, journals=self.rig.journals)
        self.channel = WHATSAPP.open(media, platforms)
        channels = {"wa": self.channel}
        sender = make_sender(self.rig.outbox, channels)
        agents = {"wa": self.agent}
        self._processor = make_processor(self.rig.mailbox, sender, channels, agents, paid_channels={"wa"})

    def hear(self, text: str = "", *, tap: str = "") -> None:
        """Accept the webhook of a message or a tap."""
        account = fakes.TWILIO_ACCOUNT_SID
        form = signing.whatsapp_text(next(self._sids), text, account_sid=account)
        if tap:
            form = signing.whatsapp_tap(next(self._sids), tap, account_sid=account)
        for turn in self.channel.receive(whatsapp_hook(form)).turns:
            self.rig.accept(turn)

    def work(self) -> None:
        """Answer all that was accepted."""
        asyncio.run(self._processor.run(WHATSAPP.conversation.id))

    def say(self, *messages: str) -> None:
        """Write each message after the last one was answered. A message in brackets is an act.

        "[wait]" lets the window close; "[yes]" and "[no]" tap a button of the question.
        """
        for message in messages:
            match message:
                case "[wait]":
                    self.rig.pass_time(WINDOW)
                case "[yes]":
                    self.hear(tap=self.buttons[0])
                case "[no]":
                    self.hear(tap=self.buttons[1])
                case _:
                    self.hear(message)
            self.work()

    @property
    def buttons(self) -> list[str]:
        """Return what the buttons of the last question send."""
        asked = [message for message in self.platforms.sent if message["buttons"]]
        return [button["data"] for button in asked[-1]["buttons"]]

    @property
    def texts(self) -> list[str]:
        """Return the texts of all paid messages."""
        return [message["text"] for message in self.platforms.sent]

    @property
    def typing(self) -> list[dict]:
        """Return the calls that showed "typing"."""
        return [call for call in self.platforms.calls if call["method"] == "typing"]

    @property
    def calls(self) -> int:
        """Return how often the model was called."""
        return len(self.provider.requests)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[fakes.FakePlatforms, MemoryMedia]]:
    """Yield the fake platforms and a media source, started once."""
    media = MemoryMedia()
    with fakes.FakePlatforms() as platforms:
        yield platforms, media
    media.close()


@pytest.fixture
def chat(running) -> WhatsAppChat:
    """Return a new chat."""
    return WhatsAppChat(*running)


@dataclass(frozen=True)
class Cost:
    """What the messages of a person cost: paid messages of the bot, calls of the model, refunds."""

    said: tuple[str, ...]
    messages: int
    calls: int
    refunds: int

    def __str__(self) -> str:
        return ", ".join(self.said)


ASK = "refund order 5"
#: Questions about the question. The yes after them runs what was asked.
ASKED = [
    *(Cost((ASK, words, "yes"), 3, 1, 1) for words in ("what is it?", "what?", "which one?", "how much?", "?")),
    *(Cost((ASK, words, "yes"), 3, 1, 1) for words in ("wait", "hmm", "hold on", "🤔", "⏳", "wiat", "which order?")),
    Cost((ASK, "wait", "hmm", "hold on", "⏳", "wait", "yes"), 3, 1, 1),
    Cost((ASK, "what is it?", "wait", "what is it?", "yes"), 4, 1, 1),
    Cost((ASK, *["what is it?"] * 5, "yes"), 7, 1, 1),
    Cost((ASK, "wait", "no"), 3, 1, 0),
    Cost((ASK, "wait", "[wait]", "yes"), 3, 1, 0),
    Cost((ASK, "what is the weather?", "yes"), 3, 3, 0),
    Cost((ASK, *["what is it?"] * 6, "yes"), 8, 3, 0),
]


@pytest.mark.parametrize("cost", ASKED, ids=str)
def test_question_about_the_question_costs_one_message_and_no_call(chat, cost):
    """The question stays open. A new request drops it, and so does the sixth question."""
    chat.say(*cost.said)
    assert (len(chat.texts), chat.calls, len(chat.refunded)) == (cost.messages, cost.calls, cost.refunds)


#: Answers that are repeated, and requests that are sent twice.
REPEATED = [
    Cost((ASK, "yes", "yes"), 2, 1, 1),
    Cost((ASK, "yes", "yes", "yes"), 2, 1, 1),
    Cost((ASK, "[yes]", "yes"), 2, 1, 1),
    Cost((ASK, "yes", "[yes]"), 2, 1, 1),
    Cost((ASK, "[yes]", "[yes]", "[yes]"), 2, 1, 1),
    Cost((ASK, "no", "no"), 2, 1, 0),
    Cost((ASK, "[no]", "[no]", "no"), 2, 1, 0),
    Cost((ASK, "[wait]", "yes", "yes"), 2, 1, 0),
    Cost((ASK, "[wait]", "[yes]", "yes", "[yes]"), 2, 1, 0),
    Cost((ASK, "yes", "no"), 3, 2, 1),
    Cost((ASK, "no", "yes"), 3, 2, 0),
    Cost((ASK, "no", "[yes]"), 3, 1, 0),
    Cost((ASK, "yes", "thanks", "yes"), 4, 3, 1),
    Cost((ASK, "yes", "/help", "yes"), 4, 2, 1),
    Cost((ASK, ASK, "yes"), 3, 1, 1),
    Cost(("/stop", "/stop"), 2, 0, 0),
]


@pytest.mark.parametrize("cost", REPEATED, ids=str)
def test_repeated_answer_costs_nothing(chat, cost):
    """Where the person knows the outcome. Any other answer costs what it did before."""
    chat.say(*cost.said)
    assert (len(chat.texts), chat.calls, len(chat.refunded)) == (cost.messages, cost.calls, cost.refunds)


def test_message_that_gets_no_answer_shows_no_typing(chat):
    """It would announce an answer for 25 seconds, and cannot be taken back on WhatsApp."""
    chat.say(ASK, "wait")
    signs = len(chat.typing)
    chat.say("hold on")
    assert len(chat.typing) == signs == 2
    chat.say("yes", "yes")
    assert len(chat.typing) == 3


def test_messages_sent_twice_within_a_moment_cost_as_one(chat):
    """The request twice while the model works, and the yes twice while the refund runs."""
    for twice in (ASK, "yes"):
        chat.hear(twice)
        chat.hear(twice)
        chat.work()
    assert chat.texts[1:] == ["Order 5 is refunded."]
    assert (len(chat.texts), chat.calls, chat.refunded) == (2, 1, ["5"])


def test_yes_again_is_answered_where_the_outcome_was_not_delivered(chat):
    """WhatsApp took the message, and then said that it could not be delivered."""
    chat.say(ASK, "yes")
    statuses, _ = chat.rig.deliveries.statuses(WHATSAPP.conversation.id)
    outcome = statuses[-1]
    chat.rig.deliveries.report(outcome.id, outcome.receipt, "failed")
    chat.say("yes")
    assert chat.calls == 2
