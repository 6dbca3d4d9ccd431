"""Choices: a tool's own buttons send their label once, for the user they belong to, and never confirm an action."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from redis.exceptions import RedisError

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, offer_choices, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.channel.questions import MAX_KEPT_CHARS
from sayso.channels.i18n.texts import texts_for
from sayso.pending.action import RESERVED_PREFIX
from sayso.pending.turns import CHOICE_KIND
from tests.agent.channel.test_tampered import rewrite
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeChannel

#: The model's call of the tool that offers sizes.
ASK = ToolCall("ask_size", {}, "c1")


class Shop:
    """A bot with one tool that offers sizes and one that needs approval."""

    def __init__(self, rig, *lines, labels=("Small", "Large")) -> None:
        self.rig, self.channel, self.deleted, self.asked = rig, FakeChannel(), [], 0

        @tool()
        def ask_size() -> str:
            """Ask for a size."""
            self.asked += 1
            offer_choices(*labels)
            return "asked"

        @tool(requires_approval=True, preview="Delete {name}")
        def delete(name: str) -> str:
            """Delete a thing."""
            self.deleted.append(name)
            offer_choices("Another", "Enough")
            return f"deleted {name}"

        self.provider = ScriptedProvider(lines)
        agent = Agent([ask_size, delete], self.provider, AgentConfig(max_retries=0))
        self.agent = ChannelAgent(agent, rig.store, journals=rig.journals)
        channels = {"chat": self.channel}
        self.processor = make_processor(
            rig.mailbox, make_sender(rig.outbox, channels), channels, {"chat": self.agent}
        )

    def say(self, text: str = "", **fields) -> str:
        """Accept a turn and return its answer."""
        self.rig.accept(
            replace(turn(text, **fields), message_id="prompt" if "tap" in fields else "")
        )
        return self.work()

    def work(self) -> str:
        """Process the conversation and return the last text that arrived."""
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts[-1]

    @property
    def buttons(self) -> dict[str, str]:
        """Return the buttons last shown: data by label."""
        shown = next(
            each.reply.buttons for each in reversed(self.channel.sent) if each.reply.buttons
        )
        return {button.label: button.data for button in shown}

    @property
    def edits(self) -> list[str]:
        """Return the texts to which the message with the buttons was edited."""
        return [each.reply.text for each in self.channel.sent if each.reply.edits == "prompt"]

    @property
    def heard(self) -> str:
        """Return the last message of the model's last request."""
        return self.provider.requests[-1].messages[-1].content


@pytest.fixture
def make_shop():
    """Return a function that makes a shop whose model answers with these lines."""
    return lambda *lines, **options: Shop(Rig(), *lines, **options)


@pytest.fixture
def shop(make_shop):
    """Return a shop that has asked for a size."""
    shop = make_shop(ASK, "Which size?", "Small it is.", "Once more?")
    assert shop.say("a coffee") == "Which size?"
    return shop


def test_late_choice_is_refused(shop):
    """After a day the buttons are removed, and the question's text stays."""
    shop.rig.pass_time(86_401)
    assert "no longer applies" in shop.say(tap=shop.buttons["Small"])
    assert shop.edits == ["Which size?\n\n⌛"]
    assert len(shop.provider.requests) == 2


def test_second_tap_is_answered_with_the_choice_made(shop):
    """The answer is the same for a tap on either button."""
    small, large = shop.buttons.values()
    assert shop.say(tap=small) == "Small it is."
    assert shop.say(tap=large) == shop.say(tap=small) == "Already chosen: Small"
    assert shop.edits == ["Which size?\n\n👉 Small"] * 3
    decided = [
        delivery.reply.decided_buttons for delivery in shop.channel.sent if delivery.reply.edits
    ]
    assert [[button.label for button in buttons] for buttons in decided] == [
        ["✓ Small", "Large"]
    ] * 3
    assert len(shop.provider.requests) == 3


def test_choice_of_another_user_is_refused(shop):
    """The choice stays open for the user it was offered to."""
    assert "the person who asked" in shop.say(tap=shop.buttons["Small"], user="bob")
    assert shop.edits == []
    assert shop.say(tap=shop.buttons["Small"]) == "Small it is."


def test_forged_choice_is_refused(shop):
    """A position that was not offered and an intent that no choice has are both refused."""
    seal, scope, small = shop.rig.store.signer, turn().scope, shop.buttons["Small"]
    assert "no longer applies" in shop.say(tap=f"{small[:23]}7{small[24:]}")
    assert "no longer applies" in shop.say(tap=seal.button_token(small[1:23], "confirm", scope))
    assert len(shop.provider.requests) == 2


def test_choice_of_a_changed_record_is_refused(shop):
    """The labels are signed, so a changed record cannot offer others."""
    small = shop.buttons["Small"]
    shop.rig.store.signer._keys.insert(0, b"another")
    forged = shop.rig.store.signer.choice_token(small[1:23], 0, turn().scope)
    shop.rig.store.signer._keys.pop()
    assert "no longer applies" in shop.say(tap=forged)


def test_choice_never_confirms_an_open_question(make_shop):
    """A label such as "Yes" is no confirmation; like any other text it disarms the open question."""
    shop = make_shop(
        ASK, "Sure?", ToolCall("delete", {"name": "A"}, "c2"), "I see.", labels=("Yes", "No")
    )
    shop.say("hm")
    yes = shop.buttons["Yes"]
    shop.say("delete A")
    assert shop.say(tap=yes).endswith("I see.")
    assert "nothing was done: “Delete A”" in shop.channel.texts[-1]
    shop.say("yes")
    assert shop.deleted == []


def test_choice_is_not_taken_by_a_typed_yes(make_shop):
    """An open choice is not an action that a yes could confirm."""
    shop = make_shop(ASK, "Sure?", "What do you mean?", labels=("Yes", "No"))
    shop.say("hm")
    assert shop.say("yes") == "What do you mean?"


def test_choice_whose_record_was_changed_before_its_answer_is_refused(shop):
    """The worker died once the choice was taken. The label that the store has as its outcome is not signed."""
    small = shop.buttons["Small"]
    shop.rig.accept(turn(tap=small))
    shop.agent.agent.arun, answer = killed, shop.agent.agent.arun
    with pytest.raises(RedisError):
        shop.work()
    shop.agent.agent.arun = answer
    shop.rig.end_lease()
    rewrite(shop, small[1:23], "{}")
    assert shop.work() == texts_for("en").stale()


async def killed(*_: object, **__: object) -> None:
    """Fail as a worker that is killed."""
    raise RedisError("killed")


@pytest.mark.parametrize("step", ["claim", "start", "finish"])
def test_choice_survives_a_killed_worker(shop, step):
    """The turn resumes with the same label and runs once."""
    shop.rig.accept(turn(tap=shop.buttons["Small"]))
    records = shop.rig.store.repository
    whole = getattr(records, step)

    async def die(*args):
        await whole(*args)
        raise RedisError("killed")

    setattr(records, step, die)
    with pytest.raises(RedisError):
        shop.work()
    setattr(records, step, whole)
    shop.rig.end_lease()
    assert shop.work() == "Small it is."
    assert shop.heard == "[tapped a button]\nSmall"


def test_offer_survives_a_killed_worker(make_shop):
    """The journal holds the offer: the tool is not called again, and the buttons are sent."""
    shop = make_shop(ASK, "Which size?", "Which size?")
    shop.rig.accept(turn("a coffee"))
    commit = shop.rig.mailbox.commit

    def die(*_, **__):
        raise RedisError("killed")

    shop.rig.mailbox.commit = die
    with pytest.raises(RedisError):
        shop.work()
    shop.rig.mailbox.commit = commit
    shop.rig.end_lease()
    assert shop.work() == "Which size?"
    assert list(shop.buttons) == ["Small", "Large"]
    assert shop.asked == 1


def test_choice_whose_turn_fails_drops_the_open_question(make_shop):
    """A failed turn disarms the open action, as if the label had been typed."""
    shop = make_shop(ASK, "Which size?", ToolCall("delete", {"name": "A"}, "c2"))
    shop.say("a coffee")
    small = shop.buttons["Small"]
    shop.say("delete A")

    async def broken(*_, **__):
        raise RuntimeError("secret")

    shop.agent.agent.arun = broken
    assert shop.say(tap=small).startswith("You did not say yes, so nothing was done: “Delete A”")
    assert "Already chosen: Small" in shop.say(tap=small)


def test_stop_interrupts_a_choice(shop):
    """A choice confirms no action that would have to continue."""

    async def deaf(*_, **__):
        shop.rig.accept(turn("/stop"))
        shop.processor.renew_now(CHAT.id)
        await asyncio.sleep(3)
        raise AssertionError("nobody stopped it")

    shop.agent.agent.arun = deaf
    assert shop.say(tap=shop.buttons["Small"]) == texts_for("en").stopped()
    assert texts_for("en").broken() not in shop.channel.texts


def test_choice_is_passed_to_the_model_as_a_tap(shop):
    """The message is marked as a tap and keeps its place in the conversation."""
    shop.say(tap=shop.buttons["Large"])
    assert shop.heard == "[tapped a button]\nLarge"


def test_typed_label_is_plain_text(shop):
    """The buttons stay in place."""
    assert shop.say("Small") == "Small it is."
    assert shop.heard == "Small"
    assert shop.edits == []


def test_no_tool_can_have_the_kind_of_a_choice():
    """The kind is reserved, so a tool's action can never pass for a choice."""
    assert CHOICE_KIND.startswith(RESERVED_PREFIX)


def test_payloads_are_short_ids(make_shop):
    """platforms.md 2.3: a payload of 64 bytes holds none of ten labels of sixty characters."""
    labels = [f"{number} {'x' * 58}" for number in range(10)]
    shop = make_shop(ASK, "Which?", "That.", labels=labels)
    shop.say("a coffee")
    assert list(shop.buttons) == labels
    assert all(len(data.encode()) <= 64 for data in shop.buttons.values())
    shop.say(tap=shop.buttons[labels[9]])
    assert shop.heard.endswith(labels[9])


def test_choices_of_a_long_answer_are_a_message_of_their_own(make_shop):
    """A later edit replaces no part of the long answer."""
    shop = make_shop(ASK, "x" * (MAX_KEPT_CHARS + 1), "Small it is.")
    assert shop.say("a coffee") == "Please choose:"
    shop.say(tap=shop.buttons["Small"])
    assert shop.edits == ["Please choose:\n\n👉 Small"]


def test_question_comes_before_choices(make_shop):
    """A message never has two questions to answer."""
    shop = make_shop([ASK, ToolCall("delete", {"name": "A"}, "c2")])
    shop.say("hm")
    assert list(shop.buttons) == ["Yes", "No"]


def test_confirmed_tool_may_offer_choices(make_shop):
    """The choices appear below the tool's result."""
    shop = make_shop(ToolCall("delete", {"name": "A"}, "c2"), "Another, then.")
    shop.say("delete A")
    assert shop.say("yes") == "deleted A"
    shop.say(tap=shop.buttons["Another"])
    assert shop.heard == "[tapped a button]\nAnother"


def test_labels_are_listed_where_buttons_do_not_work():
    """A call without a channel could not receive a tap."""
    shop = Shop(Rig(), ASK, "Which size?")
    assert shop.agent.ask_channel("ana", "a coffee").content == "Which size?\n\n- Small\n- Large"


@pytest.mark.parametrize(
    "labels",
    [(), [str(number) for number in range(11)], ("",), (" ",), ("x" * 61,), ("Small", "small ")],
)
def test_unusable_offer_is_refused(labels):
    """The error names the problem for the tool's author."""
    with pytest.raises(ValueError, match="choice"):
        offer_choices(*labels)


def test_list_of_labels_is_refused_with_the_cure():
    """A list is easily given in place of its labels."""
    with pytest.raises(TypeError, match=r"offer_choices\(\*labels\)"):
        offer_choices(["Small", "Large"])


def test_labels_show_invisible_characters():
    """A direction mark cannot turn one label into another."""
    shop = Shop(Rig(), ASK, "Which?", labels=("safe\u202eelif\n",))
    shop.say("hm")
    assert list(shop.buttons) == ["safe⟨U+202E⟩elif"]


def test_audit_log_of_a_choice_has_all_transitions(shop):
    """A choice is armed, shown, claimed, started and done, like every action."""
    small = shop.buttons["Small"]
    shop.say(tap=small)
    events = [entry["event"] for entry in shop.rig.audit() if entry["pid"] == small[1:23]]
    assert events == ["armed", "shown", "claimed", "started", "done"]


def test_answer_keeps_its_direction_marks(make_shop):
    """Direction marks in an answer are shown and kept when the buttons are removed."""
    shop = make_shop(ASK, "\u2068A\u2069\tok", "That.")
    assert shop.say("hm") == "\u2068A\u2069\tok"
    shop.say(tap=shop.buttons["Small"])
    assert shop.edits == ["\u2068A\u2069\tok\n\n👉 Small"]


def test_chosen_answer_does_not_pass_for_an_outcome(make_shop):
    """A model wrote its label."""
    label = "✅ Done: order 17"
    shop = make_shop(ASK, "Which size?", "That.", labels=(label, "Small"))
    shop.say("hm")
    shop.say(tap=shop.buttons[label])
    assert shop.edits == ["Which size?\n\n👉 (+) Done: order 17"]
