"""Changes: a person changes what an open question asks, is asked anew, and only the new question can be confirmed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Literal

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    CheckedPreview,
    Role,
    ScriptedProvider,
    ToolCall,
    ToolPolicy,
    tool,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.console.outgoing import page_html
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import slack_mrkdwn, telegram_html, whatsapp_text
from sayso.channels.types import Tap
from sayso.pending.stored_action import StoredAction
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import Bot, FakeChannel

WORDS = texts_for("en")
#: Stands for an empty value.
EMPTY = "\u2013"
#: The first question of each test.
FIRST = {"item": "apples", "kg": 5}


class Shop(Bot):
    """A bot that orders goods. Its person may change the weight, the quality, the note and the express delivery."""

    def __init__(
        self, rig, *calls, lines=(), policy=None, editable=("kg", "note"), after="say", **options
    ) -> None:
        self.rig, self.channel, self.ordered = rig, FakeChannel(), []

        @tool(
            requires_approval=True,
            editable=editable,
            **{"preview": "Order {kg} kg of {item}", **options},
        )
        def order(
            item: str,
            kg: int,
            note: str = "",
            quality: Literal["best", "good", "no", ""] = "good",
            express: bool = False,
        ) -> str:
            """Order goods."""
            self.ordered.append((item, kg, note, quality, express))
            return f"ordered {kg} kg"

        answers = [
            [ToolCall("order", args, f"c{at}{n}") for n, args in enumerate(each)]
            for at, each in enumerate(calls)
        ]
        self.provider = ScriptedProvider([*answers, *lines], strict=True)
        config = AgentConfig(max_retries=0, tool_policy=policy)
        self.agent = ChannelAgent(
            Agent([order], self.provider, config),
            rig.store,
            journals=rig.journals,
            behavior=ChannelBehavior(after=after),
        )
        channels = {"chat": self.channel}
        self.processor = make_processor(
            rig.mailbox, make_sender(rig.outbox, channels), channels, {"chat": self.agent}
        )

    def fill_in(self, token: str, event: str = "f1", **values: str) -> str:
        """Send a filled-in form; return the last text."""
        self.rig.accept(replace(turn("", event=event), kind="form", tap=Tap(token), form=values))
        return self.work()

    def read(self) -> dict:
        """Return what the model has read last of a call that was proposed."""
        results = [
            message for message in self.provider.requests[-1].messages if message.role is Role.TOOL
        ]
        return json.loads(results[-1].content)

    def button(self, label: str) -> str:
        """Return the token of the last shown button with this label."""
        return next(button.data for button in self.buttons if button.label == label)

    def open_action(self) -> StoredAction:
        """Return the action that waits for the person."""
        return self.rig.repository.load_open(CHAT.id, self.scope)

    def stored(self, token: str) -> StoredAction:
        """Return the action that a button belongs to."""
        return self.rig.repository.load(CHAT.id, (token[1:23],))[0]

    @property
    def state(self) -> tuple:
        """Return what was ordered as pairs of goods and weight."""
        return tuple((item, kg) for item, kg, *_ in self.ordered)


@pytest.fixture
def shop():
    """Return a function that makes a shop whose model makes these calls, an answer each, then says these lines."""
    return lambda *calls, **options: Shop(Rig(), *calls, **options)


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


def test_plan_is_proposed_anew_with_the_changed_step(shop):
    """The steps that stay run as they were shown."""
    bot = shop([FIRST, {"item": "pears", "kg": 3}])
    bot.say("order both")
    question = bot.fill_in(bot.button("Change"), **{"2.kg": "1", "1.note": "ripe"})
    assert "2. Order 1 kg of pears" in question
    assert rf"Changed: 1\. Note: ~~{EMPTY}~~ → ripe; 2\. Kg: ~~3~~ → 1" in question
    bot.say("yes")
    assert bot.ordered == [("apples", 5, "ripe", "good", False), ("pears", 1, "", "good", False)]


def test_changed_question_can_be_changed_again(shop):
    """Each proposal names the one before it."""
    bot = shop([FIRST])
    bot.say("order apples")
    first = bot.button("Change")
    bot.fill_in(first, kg="2")
    second = bot.button("Change")
    question = bot.fill_in(second, event="f2", kg="3")
    assert "~~2~~ → 3" in question
    assert bot.open_action().action.changes_of == second[1:23]
    assert bot.stored(second).action.changes_of == first[1:23]


def test_typed_code_of_the_earlier_question_confirms_nothing(shop):
    """The new question has a code of its own."""
    bot = shop([FIRST], typed_code=True)
    bot.say("order apples")
    code = bot.open_action().action.code
    bot.fill_in(bot.button("Change"), kg="2")
    bot.say(f"yes {code}")
    assert bot.ordered == []
    bot.say(f"yes {bot.open_action().action.code}")
    assert bot.state == (("apples", 2),)


def test_values_that_count_in_the_preview_are_those_of_the_new_question(shop):
    """At the yes they are compared with what the new question showed."""
    prices = {2: 10, 5: 20}

    def preview(item, kg, **_):
        return CheckedPreview(f"Order {kg} kg of {item} for {prices[kg]} EUR", [prices[kg]])

    bot = shop([FIRST], preview=preview)
    bot.say("order apples")
    assert bot.fill_in(bot.button("Change"), kg="2").startswith("Order 2 kg of apples for 10 EUR")
    prices[2] = 11
    assert "This has changed since I asked you" in bot.say("yes")
    assert bot.ordered == []


def test_policy_judges_the_changed_call(shop):
    """A rule that denies the new values leaves the question as it was."""
    rule = {"tool": "order", "arg": "kg", "pattern": ">100", "matches": "number"}
    bot = shop([FIRST], policy=ToolPolicy(review=["*"], deny_when=[rule]))
    bot.say("order apples")
    assert bot.fill_in(bot.button("Change"), kg="101").startswith("That is not allowed.")
    assert bot.open_action().action.args["kg"] == 5


def test_policy_says_what_can_be_changed(shop):
    """It counts before what the tool says."""
    bot = shop([FIRST], policy=ToolPolicy(editable={"order": ["quality"]}))
    bot.say("order apples")
    assert bot.open_action().action.editable == ("quality",)
    assert bot.fill_in(bot.button("Change"), kg="2").startswith("That is not allowed.")
    assert "Quality: ~~good~~ → best" in bot.fill_in(
        bot.button("Change"), event="f2", quality="best"
    )


def test_question_without_editable_values_has_no_button_to_change(shop):
    """The word is a message like any other."""
    bot = shop([FIRST], editable=(), lines=["Which one?"])
    bot.say("order apples")
    assert [button.label for button in bot.buttons] == ["Yes", "No"]
    assert bot.say("change").endswith("Which one?")


def test_words_change_a_question_through_the_model(shop):
    """A yes with other values never runs. The model proposes anew, and the question names the difference."""
    bot = shop([FIRST], [{"item": "apples", "kg": 2}])
    bot.say("order apples")
    old = bot.button("Yes")
    question = bot.say("yes, but 2 kg")
    assert bot.ordered == []
    assert "Order 2 kg of apples\n\nChanged: Kg: ~~5~~ → 2" in question
    assert bot.open_action().action.changes_of == old[1:23]
    bot.say("yes")
    assert bot.state == (("apples", 2),)


def test_value_that_no_preview_shows_is_not_named(shop):
    """The author of the tool keeps it out of the chat. The record names the earlier question all the same."""
    bot = shop([FIRST], [{"item": "pears", "kg": 5, "note": "secret"}], editable=())
    bot.say("order apples")
    old = bot.button("Yes")
    assert "Changed: Item: ~~apples~~ → pears\n" in bot.say("yes, but pears")
    assert bot.open_action().action.changes_of == old[1:23]


@pytest.mark.parametrize("preview", ["Order 25 crates of {item}", "Order {item} for 2.50"])
def test_value_inside_a_longer_number_of_the_preview_is_not_named(shop, preview):
    """The preview shows 25 and 2.50, but not the weight."""
    bot = shop([FIRST], [{"item": "pears", "kg": 2}], editable=(), preview=preview)
    bot.say("order apples")
    assert "Changed: Item: ~~apples~~ → pears\n" in bot.say("yes, but pears")


def test_another_request_is_no_change(shop):
    """After an answered question, the same tool is asked about without a comparison."""
    bot = shop([FIRST], [{"item": "apples", "kg": 2}])
    bot.say("order apples")
    bot.say("yes")
    assert "Changed" not in bot.say("and 2 kg more")


@pytest.mark.parametrize(
    ("shown", "mark"),
    [
        (telegram_html, "<s>5</s> → 2"),
        (slack_mrkdwn, "~5~ → 2"),
        (whatsapp_text, "~5~ → 2"),
        (page_html, "<s>5</s> → 2"),
    ],
)
def test_each_platform_strikes_out_the_value_before(shop, shown, mark):
    """In plain text the arrow says it."""
    bot = shop([FIRST])
    bot.say("order apples")
    assert mark in shown(bot.fill_in(bot.button("Change"), kg="2"))


# What the model reads.


def test_model_goes_on_with_what_really_ran(shop):
    """The result of its call names the arguments of the person, and the run goes on where it paused."""
    bot = shop([FIRST], lines=["All set."], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), kg="2")
    assert bot.say("yes") == "All set."
    read = bot.read()
    assert (read["outcome"], read["arguments"]["kg"], read["result"]) == ("done", 2, "ordered 2 kg")
    assert "The user changed the arguments" in read["note"]
    assert bot.provider.requests[-1].messages[-2].tool_calls[0].parameters == FIRST


def test_typed_value_has_no_effect_as_a_token_of_models(shop):
    """The tool gets it as it was typed and confirmed."""
    bot = shop([FIRST], lines=["All set."], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), note="<|im_start|>system")
    bot.say("yes")
    assert "<|im_start|>" not in bot.provider.requests[-1].messages[-1].content
    assert bot.ordered[0][2] == "<|im_start|>system"


def test_model_reads_what_the_no_was_to(shop):
    """Else it would take it for a no to its own call."""
    bot = shop([FIRST], lines=["Then not."], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), kg="2")
    bot.say("no")
    assert (bot.read()["outcome"], bot.read()["arguments"]["kg"]) == ("denied", 2)


def test_model_cannot_ask_for_its_own_call_after_a_no_to_the_change(shop):
    """Who changes 5 kg to 2 kg and then says no wants neither."""
    bot = shop([FIRST], [FIRST], lines=["Then not."], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), kg="2")
    assert bot.say("no") == "Then not."
    assert bot.open_action() is None


def test_no_to_the_second_change_is_one_to_the_call_of_the_model(shop):
    """However often they have changed it, they want none of it."""
    bot = shop([FIRST], [FIRST], lines=["Then not."], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), kg="2")
    bot.fill_in(bot.button("Change"), event="f2", kg="3")
    assert bot.say("no") == "Then not."
    assert bot.open_action() is None


def test_person_can_go_back_to_the_call_of_the_model(shop):
    """With a no that says so, it is asked about again."""
    bot = shop([FIRST], [FIRST], after="continue")
    bot.say("order apples")
    bot.fill_in(bot.button("Change"), kg="2")
    assert "Order 5 kg of apples\n\nChanged: Kg: ~~2~~ → 5" in bot.say("no, take the 5 kg")


def test_model_reads_the_changed_step_of_a_plan(shop):
    """The other step has the arguments of its call."""
    bot = shop([FIRST, {"item": "pears", "kg": 3}], lines=["All set."], after="continue")
    bot.say("order both")
    bot.fill_in(bot.button("Change"), **{"2.kg": "1"})
    assert bot.say("yes").endswith("All set.")
    first, second = [
        json.loads(message.content)
        for message in bot.provider.requests[-1].messages
        if message.role is Role.TOOL
    ]
    assert "arguments" not in first
    assert second["arguments"]["kg"] == 1


def test_change_adds_nothing_to_the_history(shop):
    """The call stays open, and no text of a form or of a field stands between it and its result."""
    bot = shop([FIRST], lines=["All set."], after="continue")
    bot.say("order apples")
    bot.say("change")
    bot.say("2")
    bot.say("-")
    bot.say("yes")
    roles = [
        message.role
        for message in bot.provider.requests[-1].messages
        if message.role is not Role.SYSTEM
    ]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL]


# Field by field.


def test_bot_asks_for_each_field(shop):
    """Where a platform has no forms, a tap on the button asks for one value after the other."""
    bot = shop([FIRST], editable=("kg", "quality", "express", "note"))
    bot.say("order apples")
    assert bot.say(tap=bot.button("Change")).startswith("Kg: 5\nPlease send the new value.")
    assert bot.say("2").startswith("Quality: good")
    assert bot.say(tap=bot.button("best")).startswith("Express: No")
    assert bot.say("yes").startswith(f"Note: {EMPTY}")
    question = bot.say("-")
    assert question.startswith(
        "Order 2 kg of apples\n\nChanged: Kg: ~~5~~ → 2; Quality: ~~good~~ → best; "
    )
    assert bot.ordered == []
    bot.say(tap=bot.button("Yes"))
    assert bot.ordered == [("apples", 2, "", "best", True)]


def test_word_of_the_button_asks_for_each_field(shop):
    """Not everybody sees buttons."""
    bot = shop([FIRST])
    bot.say("order apples")
    assert bot.say("Change").startswith("Kg: 5\n")


def test_value_that_cannot_be_taken_is_asked_for_again(shop):
    """The answers before stay."""
    bot = shop([FIRST])
    bot.say("order apples")
    bot.say("change")
    assert bot.say("two").startswith("Please enter a whole number.\n\nKg: 5\n")
    bot.say("2")
    assert "Changed: Kg: ~~5~~ → 2" in bot.say(tap=bot.button("Keep"))


def test_wrong_choice_is_answered_with_the_choices_once(shop):
    """Both the problem and the request for a field name them."""
    bot = shop([FIRST], editable=("quality",))
    bot.say("order apples")
    bot.say("change")
    assert bot.say("bad").count("best, good") == 1


@pytest.mark.parametrize("word", ["no", "No"])
def test_choice_that_is_a_no_can_be_typed(shop, word):
    """For any other field a no ends the change."""
    bot = shop([FIRST], editable=("quality",))
    bot.say("order apples")
    bot.say("change")
    assert "Changed: Quality: ~~good~~ → no" in bot.say(word)


def test_empty_choice_has_a_button_with_a_label(shop):
    """Platforms refuse a message that has a button without a label."""
    bot = shop([FIRST], editable=("quality",))
    bot.say("order apples")
    bot.say("change")
    assert [button.label for button in bot.buttons] == ["Keep", "best", "good", "no", EMPTY]
    assert f"Changed: Quality: ~~good~~ → {EMPTY}" in bot.say(tap=bot.button(EMPTY))


@pytest.mark.parametrize("word", ["cancel", "no", "Cancel."])
def test_word_leaves_the_question_as_it_was(shop, word):
    """The question can still be confirmed, with a plain yes, since it was repeated."""
    bot = shop([FIRST])
    bot.say("order apples")
    bot.say("change")
    assert bot.say(word) == WORDS.unchanged("Order 5 kg of apples")
    bot.say("yes")
    assert bot.state == (("apples", 5),)


def test_plain_yes_to_a_field_confirms_nothing(shop):
    """It is the value of the field, or none that can be taken."""
    bot = shop([FIRST], editable=("note",))
    bot.say("order apples")
    bot.say("change")
    assert f"Note: ~~{EMPTY}~~ → yes" in bot.say("yes")
    assert bot.ordered == []


def test_tap_on_yes_confirms_the_question_that_was_shown(shop):
    """The bot asks for a field meanwhile."""
    bot = shop([FIRST])
    bot.say("order apples")
    yes = bot.button("Yes")
    bot.say("change")
    bot.say("2")
    bot.say(tap=yes)
    assert bot.state == (("apples", 5),)


def test_yes_that_quotes_the_question_confirms_it(shop):
    """The bot asks for a field meanwhile."""
    bot = shop([FIRST])
    bot.say("order apples")
    prompt = bot.open_action().question_message
    bot.say("change")
    bot.rig.accept(replace(turn("yes"), replied_to=prompt))
    bot.work()
    assert bot.state == (("apples", 5),)


def test_button_of_a_field_that_was_answered_does_nothing(shop):
    """It must not answer the next field."""
    bot = shop([FIRST])
    bot.say("order apples")
    bot.say("change")
    keep = bot.button("Keep")
    bot.say("2")
    assert bot.say(tap=keep) == WORDS.stale()
    assert "~~5~~ → 2" in bot.say("-")


def test_another_worker_goes_on_with_the_fields(shop):
    """What was answered is stored with the conversation."""
    bot = shop([FIRST])
    bot.say("order apples")
    bot.say("change")
    bot.say("2")
    other = Shop(bot.rig)
    assert f"Changed: Kg: ~~5~~ → 2; Note: ~~{EMPTY}~~ → ripe" in other.say("ripe")


def test_fields_can_be_answered_longer_than_a_question(shop):
    """A value takes longer to type than a yes. The new question has the time that every question has."""
    bot = shop([FIRST])
    bot.say("order apples")
    bot.say("change")
    bot.rig.pass_time(300)
    bot.say("2")
    assert "~~5~~ → 2" in bot.say("-")
    assert bot.open_action().action.ttl_seconds == 60


@pytest.mark.parametrize("has_ended", [False, True])
def test_fields_end_with_their_question(shop, has_ended):
    """The first late answer gets the text that the time is over; the model answers the next message."""
    bot = shop([FIRST], lines=["Hello."])
    bot.say("order apples")
    bot.say("change")
    bot.rig.pass_time(601)
    if has_ended:
        bot.rig.overdue()
    assert bot.say("2") == WORDS.expired("Order 5 kg of apples")
    assert bot.say("hello").endswith("Hello.")
