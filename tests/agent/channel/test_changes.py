"""Changes: a person changes what an open question asks, is asked anew, and only the new question can be confirmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Tap
from sayso.pending.repository import StoredAction
from tests.contracts.rigs import CHAT, MemoryRig, RedisRig, make_processor, make_sender, turn
from tests.workers.fakes import Bot, FakeChannel

WORDS = texts_for("en")
#: The first question of each test.
FIRST = {"item": "apples", "kg": 5}


class Shop(Bot):
    """A bot that orders goods. Its person may change the weight, the quality, the note and the express delivery."""

    def __init__(self, rig, *calls, lines=(), policy=None, editable=("kg", "note"), **options) -> None:
        self.rig, self.channel, self.ordered = rig, FakeChannel(), []

        @tool(requires_approval=True, editable=editable, **{"preview": "Order {kg} kg of {item}", **options})
        def order(
            item: str,
            kg: int,
            note: str = "",
            quality: Literal["best", "good"] = "good",
            express: bool = False,
        ) -> str:
            """Order goods."""
            self.ordered.append((item, kg, note, quality, express))
            return f"ordered {kg} kg"

        answers = [
            [ToolCall("order", args, f"c{at}{n}") for n, args in enumerate(each)] for at, each in enumerate(calls)
        ]
        self.provider = ScriptedProvider([*answers, *lines])
        config = AgentConfig(max_retries=0, tool_policy=policy)
        self.agent = ChannelAgent(Agent([order], self.provider, config), rig.store, journals=rig.journals)
        channels = {"chat": self.channel}
        self.processor = make_processor(rig.mailbox, make_sender(rig.outbox, channels), channels, {"chat": self.agent})

    def fill_in(self, token: str, event: str = "f1", **values: str) -> str:
        """Send a filled-in form; return the last text."""
        self.rig.accept(replace(turn("", event=event), kind="form", tap=Tap(token), form=values))
        return self.work()

    def button(self, label: str) -> str:
        """Return the token of the last shown button with this label."""
        return next(button.data for button in self.buttons if button.label == label)

    def open_action(self) -> StoredAction:
        """Return the action that waits for the person."""
        return self.rig.repository.find_open(CHAT.id, self.scope)

    def stored(self, token: str) -> StoredAction:
        """Return the action that a button belongs to."""
        return self.rig.repository.read(CHAT.id, (token[1:23],))[0]

    @property
    def state(self) -> tuple:
        """Return what was ordered as pairs of goods and weight."""
        return tuple((item, kg) for item, kg, *_ in self.ordered)


@pytest.fixture(params=["memory", "redis"])
def shop(request):
    """Return a function that makes a shop whose model makes these calls, an answer each, then says these lines."""
    client = request.getfixturevalue("redis_client") if request.param == "redis" else None
    return lambda *calls, **options: Shop(RedisRig(client) if client else MemoryRig(), *calls, **options)


def test_form_asks_anew_and_only_the_new_question_runs(shop):
    """The new preview is exact, and the question names what was changed."""
    bot = shop([FIRST])
    bot.say("order apples")
    old = {button.label: button.data for button in bot.buttons}
    question = bot.fill_in(old["Change"], kg="2")
    assert question.startswith("Order 2 kg of apples")
    assert "Changed: Kg: ~~5~~ → 2" in question
    assert bot.ordered == []
    bot.say(tap=bot.button("Yes"))
    assert bot.state == (("apples", 2),)


def test_yes_to_the_earlier_question_runs_nothing(shop):
    """A tap on its button that arrives later says that it was changed."""
    bot = shop([FIRST])
    bot.say("order apples")
    old = {button.label: button.data for button in bot.buttons}
    bot.fill_in(old["Change"], kg="2")
    assert bot.say(tap=old["Yes"]) == WORDS.changed_meanwhile("Order 5 kg of apples")
    assert (bot.ordered, bot.stored(old["Yes"]).state) == ([], "superseded")
    assert bot.open_action().action.changes_of == old["Yes"][1:23]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"kg": "two"}, "Kg: Please enter a whole number."),
        ({"kg": ""}, "Kg: Please enter a value."),
        ({"kg": "2.5"}, "Kg: Please enter a whole number."),
        ({"note": "x" * 3001}, "Note: Please enter at most 3000 characters."),
        ({"item": "gold"}, "That is not allowed."),
        ({"kg": "2", "item": "gold"}, "That is not allowed."),
        ({"kg": "5"}, ""),
        ({}, ""),
    ],
)
def test_form_that_cannot_be_taken_leaves_the_question_open(shop, values, problem):
    """Also one with a field that is not editable, which no form of ours has."""
    bot = shop([FIRST])
    bot.say("order apples")
    token = bot.button("Change")
    answer = bot.fill_in(token, **values)
    assert answer == f"{problem}\n\n{WORDS.unchanged('Order 5 kg of apples')}".strip()
    bot.say(tap=bot.button("Yes"))
    assert bot.state == (("apples", 5),)
