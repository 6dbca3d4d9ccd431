"""What a conversation on WhatsApp costs around a question: messages that are paid, and calls of the model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    ProviderError,
    ScriptedProvider,
    ToolCall,
    emit_artifact,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Media
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.channels.harness import FILES, WHATSAPP, MemoryMedia, whatsapp_hook
from tests.contracts.rigs import Rig, make_processor, make_sender

#: Longer than the window of a question.
WINDOW = 61.0
#: A file that a tool makes.
RECEIPT = "pdf"


class WhatsAppChat:
    """One person's chat with a bot that refunds orders, through the real adapter and a fake of Twilio."""

    def __init__(self, platforms: fakes.FakePlatforms, media: MemoryMedia) -> None:
        platforms.reset()
        self.platforms = platforms
        self.rig = Rig()
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
        self._processor = make_processor(
            self.rig.mailbox, sender, channels, agents, paid_channels={"wa"}
        )

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
    *(
        Cost((ASK, words, "yes"), 3, 1, 1)
        for words in ("what is it?", "what?", "which one?", "how much?", "?")
    ),
    *(
        Cost((ASK, words, "yes"), 3, 1, 1)
        for words in ("wait", "hmm", "hold on", "🤔", "⏳", "wiat", "which order?")
    ),
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
    assert (len(chat.texts), chat.calls, len(chat.refunded)) == (
        cost.messages,
        cost.calls,
        cost.refunds,
    )


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
    assert (len(chat.texts), chat.calls, len(chat.refunded)) == (
        cost.messages,
        cost.calls,
        cost.refunds,
    )


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


class Receipts:
    """A store whose only file is one that the fake of Twilio can fetch."""

    spool_folder = None

    def put(self, *_: object, **__: object) -> Media:
        """Return the file."""
        return Media(RECEIPT, "application/pdf", "receipt.pdf", len(FILES[RECEIPT]), stored=True)


class ContinuingChat(WhatsAppChat):
    """Such a chat with a bot whose model goes on after each decision."""

    def __init__(
        self, platforms: fakes.FakePlatforms, media: MemoryMedia, *script: object, **options: object
    ) -> None:
        super().__init__(platforms, media)
        refunded = self.refunded

        @tool(requires_approval=True, preview="Refund order {order}", **options)
        def refund(order: str) -> str:
            """Refund an order."""
            refunded.append(order)
            if order == "file":
                emit_artifact(b"%PDF-1.4", mime_type="application/pdf", filename="receipt.pdf")
            return f"Order {order} is refunded."

        self.provider = ScriptedProvider(script, strict=True)
        agent = Agent([refund], self.provider, AgentConfig(max_retries=0))
        self.agent = ChannelAgent(
            agent,
            self.rig.store,
            journals=self.rig.journals,
            media=Receipts(),
            behavior=ChannelBehavior(after="continue", is_one_message=True),
        )
        self._processor.turns.agents["wa"] = self.agent


def refund_of(*orders: str) -> list[ToolCall]:
    """Return a model's answer that refunds these orders."""
    return [ToolCall("refund", {"order": order}, f"c{order}") for order in orders]


def outcome_of(order: str) -> str:
    """Return the outcome of a refund in the bot's own words."""
    return f"✅ Done: Refund order {order}\nOrder {order} is refunded."


@pytest.mark.parametrize("answer", ["yes", "[yes]"])
def test_confirmed_action_costs_two_messages(running, answer):
    """The question, and the outcome with what the model says of it."""
    chat = ContinuingChat(*running, refund_of("5"), "Is there anything else?")
    chat.say(ASK, answer)
    assert chat.texts[1:] == [f"{outcome_of('5')}\n\nIs there anything else?"]
    assert (len(chat.texts), chat.calls) == (2, 2)


def test_denied_action_costs_two_messages(running):
    """A no is told in the same way."""
    chat = ContinuingChat(*running, refund_of("5"), "What instead?")
    chat.say(ASK, "no")
    assert chat.texts[1:] == ["❌ Nothing was done: “Refund order 5”\n\nWhat instead?"]


def test_three_steps_cost_four_messages_and_three_yeses(running):
    """Each outcome stands above the next question, which has the buttons."""
    chat = ContinuingChat(
        *running, refund_of("1"), refund_of("2"), refund_of("3"), "All three are refunded."
    )
    chat.say("refund orders 1, 2 and 3", "yes", "[yes]", "yes")
    assert chat.refunded == ["1", "2", "3"]
    assert (len(chat.texts), chat.calls) == (4, 4)
    for place, order in enumerate(("1", "2"), 1):
        assert chat.texts[place].startswith(
            f"{outcome_of(order)}\n\nRefund order {int(order) + 1}\n"
        )
    assert chat.texts[3] == f"{outcome_of('3')}\n\nAll three are refunded."


def test_model_that_is_away_costs_no_message_more(running):
    """The reason why the rest is missing stands below the outcome."""
    chat = ContinuingChat(*running, refund_of("5"), ProviderError("down"))
    chat.say(ASK, "yes")
    (rest,) = chat.texts[1:]
    assert rest == f"{outcome_of('5')}\n\n{texts_for('en').model_lost()}"
    assert chat.refunded == ["5"]


def test_offer_to_undo_stands_beside_the_outcome_in_one_message(running):
    """Outcome, offer, words and button are one message; the model's words come last."""
    chat = ContinuingChat(
        *running, refund_of("5"), "Anything else", undo=lambda order: "taken back"
    )
    chat.say(ASK, "yes")
    assert [button["label"] for button in chat.platforms.sent[-1]["buttons"]] == ["Undo"]
    assert chat.texts[1].startswith(f"{outcome_of('5')}\n\nYou can undo")
    assert chat.texts[1].endswith("\n\nAnything else")
    assert len(chat.texts) == 2


def test_undo_button_and_the_next_question_are_two_messages(running):
    """One message has the buttons of one decision: a tap must be clear."""
    script = (refund_of("1"), refund_of("2"), "Both are refunded.")
    chat = ContinuingChat(*running, *script, undo=lambda order: "taken back")
    chat.say("refund orders 1 and 2", "yes")
    undo, question = chat.platforms.sent[1:]
    assert undo["text"].startswith(outcome_of("1"))
    assert question["text"].startswith("Refund order 2")
    assert (len(undo["buttons"]), len(question["buttons"])) == (1, 2)


def test_undo_costs_one_message_and_no_call(running):
    """No model goes on after it."""
    chat = ContinuingChat(
        *running, refund_of("5"), "Anything else", undo=lambda order: "taken back"
    )
    chat.say(ASK, "yes")
    chat.hear(tap=chat.buttons[0])
    chat.work()
    assert (chat.texts[2:], chat.calls) == (["✅ taken back"], 2)


def test_outcome_with_a_file_does_not_wait_for_the_model(running):
    """The file is a message of its own, and stands right below the outcome that it belongs to."""
    chat = ContinuingChat(*running, refund_of("file"), "There is your receipt.")
    chat.say(ASK, "yes")
    assert chat.texts[1:] == [outcome_of("file"), "", "There is your receipt."]


def test_second_tap_costs_nothing_and_a_second_yes_is_a_message(running):
    """The yes may answer what the model said. A tap on the question of the outcome cannot."""
    chat = ContinuingChat(
        *running, refund_of("5"), "Let me know if I should mail them.", "I mail them."
    )
    chat.say(ASK, "yes", "[yes]", "[yes]")
    assert (len(chat.texts), chat.calls) == (2, 2)
    chat.say("yes")
    assert (chat.texts[2:], chat.calls) == (["I mail them."], 3)


def test_long_words_of_the_model_leave_the_outcome_whole(running):
    """What does not fit into one message is several; the outcome begins the first one."""
    chat = ContinuingChat(*running, refund_of("5"), "word " * 600)
    chat.say(ASK, "yes")
    assert chat.texts[1].startswith(outcome_of("5"))
    assert len(chat.texts) == 3
