"""Repeated answers: the same yes or no again is not answered, while its outcome is the last thing that the bot said."""

# ruff: noqa: RUF001 - Japanese has its own question mark

from __future__ import annotations

import pytest

from sayso.agent import ToolCall
from sayso.channels.base import DeliveryUncertain, Refused
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Delivery, Reply
from sayso.pending.consent.asking import invites_answer
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from sayso.pending.stored_limits import REPEAT_MS
from tests.agent.channel.test_choices import Shop
from tests.contracts.rigs import CHAT, Rig


def asked(make_bot, *lines, name="A"):
    """Return a bot that has asked whether to delete something. Its model then says these lines."""
    bot = make_bot(lines=[ToolCall("delete", {"name": name}, "c1"), *(lines or ["The model."])])
    bot.say("delete it")
    return bot


def costs(bot) -> tuple[int, int]:
    """Return the number of messages that the bot sent, and of calls of its model."""
    return len(bot.channel.new_texts), len(bot.provider.requests)


@pytest.mark.parametrize("answer", ["no", "No.", "cancel", "stop"])
def test_no_after_a_yes_goes_to_the_model(make_bot, answer):
    """It is no repetition: the person has changed their mind."""
    bot = asked(make_bot)
    bot.say("yes")
    assert bot.say(answer) == "The model."


def test_yes_after_a_no_goes_to_the_model(make_bot):
    """Nothing runs."""
    bot = asked(make_bot)
    bot.say("no")
    assert bot.say("yes") == "The model."
    assert bot.deleted == []


def test_yes_to_a_question_of_the_model_goes_to_the_model(make_bot):
    """It answers the last words of the bot, even a moment after a yes to something else."""
    bot = asked(make_bot, "Shall I also send the invoice?", "Sent.")
    for words in ("yes", "thanks"):
        bot.say(words)
    assert bot.say("yes") == "Sent."


@pytest.mark.parametrize("name", ["A. And B?", "A. Say YES to delete B", "A。Bも？", "A؟"])
def test_yes_to_an_outcome_that_asks_something_goes_to_the_model(make_bot, name):
    """A tool may return a question, or ask for a yes."""
    bot = asked(make_bot, name=name)
    assert bot.say("yes") == f"deleted {name}"
    assert bot.say("yes") == "The model."


def test_yes_to_offered_choices_goes_to_the_model():
    """The outcome has buttons that wait for an answer."""
    shop = Shop(Rig(), ToolCall("delete", {"name": "A"}, "c1"), "The model.")
    for words in ("delete A", "yes"):
        shop.say(words)
    assert shop.say("yes") == "The model."


@pytest.mark.parametrize("failure", [Refused("no"), DeliveryUncertain("lost")])
def test_yes_again_is_answered_where_the_outcome_may_not_have_arrived(make_bot, failure):
    """A person who does not know the outcome is never left without an answer."""
    bot = asked(make_bot)
    bot.channel.errors = (
        [None, failure] if isinstance(failure, Refused) else [None, failure, failure, failure]
    )
    bot.say("yes")
    for _ in range(9):
        bot.rig.pass_time(5)
        bot.work()
    before = costs(bot)[1]
    bot.say("yes")
    assert costs(bot)[1] == before + 1


def test_yes_again_is_answered_where_the_platform_says_that_the_outcome_failed(make_bot):
    """WhatsApp reports it later."""
    bot = asked(make_bot)
    bot.say("yes")
    outcome = bot.channel.sent[-1]
    bot.rig.deliveries.report(outcome.id, f"m{len(bot.channel.sent)}", "failed")
    assert bot.say("yes") == "The model."


def test_yes_again_is_answered_after_another_message_of_the_bot(make_bot):
    """The yes may answer a reminder."""
    bot = asked(make_bot)
    bot.say("yes")
    bot.rig.outbox.forward(Delivery("other#1", CHAT, Reply("Reminder: call Ana?")))
    assert bot.say("yes") == "The model."


def test_yes_again_is_answered_after_a_minute(make_bot):
    """So late it answers something else."""
    bot = asked(make_bot)
    bot.say("yes")
    bot.rig.pass_time(REPEAT_MS / 1000 + 1)
    assert bot.say("yes") == "The model."


def test_yes_of_another_member_goes_to_the_model(make_bot):
    """In a group, only the person who said it can repeat it."""
    bot = asked(make_bot)
    bot.say("yes")
    assert bot.say("yes", user="bob") == "The model."


@pytest.mark.parametrize("words", ["thanks", "ok", "great", "yes and no", "yes, and the weather?"])
def test_other_words_after_an_outcome_go_to_the_model(make_bot, words):
    """Only a plain yes repeats a yes. An "ok" is one only where a channel says so."""
    bot = asked(make_bot)
    bot.say("yes")
    assert bot.say(words) == "The model."


@pytest.mark.parametrize(
    "answer", ["delete it", "delete them", "go ahead", "yes, delete it", "confirm"]
)
def test_command_after_an_outcome_goes_to_the_model(make_bot, answer):
    """It was a yes to the question, and may be a new request now."""
    bot = asked(make_bot)
    bot.say("yes")
    assert bot.say(answer) == "The model."
    assert bot.deleted == ["A"]


@pytest.mark.parametrize("answer", ["yes", "Yes!", "sim", "yes please", "yessss", "yeah", "YES 🙏"])
def test_second_yes_gets_no_answer(make_bot, answer):
    """The effect happened once, its outcome was told, and no model was called."""
    bot = asked(make_bot)
    for words in ("yes", answer, "yes"):
        bot.say(words)
    assert bot.deleted == ["A"]
    assert costs(bot) == (2, 1)


def test_second_yes_while_the_first_runs_gets_no_answer(make_bot):
    """It came in before the outcome."""
    bot = asked(make_bot)
    bot.hear("yes")
    bot.hear("yes")
    bot.work()
    assert bot.deleted == ["A"]
    assert costs(bot) == (2, 1)


def test_second_no_gets_no_answer(make_bot):
    """The person knows that nothing was done."""
    bot = asked(make_bot)
    for _ in range(3):
        bot.say("no")
    assert costs(bot) == (2, 1)


def test_second_late_yes_gets_no_answer(make_bot):
    """The person knows that the question expired."""
    bot = asked(make_bot)
    bot.rig.pass_time(61)
    for _ in range(2):
        bot.say("yes")
    assert "expired" in bot.channel.texts[-1]
    assert (bot.deleted, costs(bot)) == ([], (2, 1))


def test_second_ok_gets_no_answer_where_an_ok_is_a_yes(make_bot):
    """There it is one."""
    bot = asked(make_bot)
    bot.behave(confirm_ok=True)
    for words in ("ok", "ok", "yes", "ok"):
        bot.say(words)
    assert (bot.deleted, costs(bot)) == (["A"], (2, 1))


def test_typed_yes_after_a_tap_gets_no_answer(make_bot):
    """The tap said the same."""
    bot = asked(make_bot)
    bot.say(tap=bot.buttons[0].data)
    bot.say("yes")
    assert (bot.deleted, costs(bot)) == (["A"], (2, 1))


def test_yes_again_after_a_crash_gets_no_answer(make_bot):
    """The next worker told the outcome."""
    bot = asked(make_bot)
    bot.hear("yes")
    bot.die_after("finish")
    bot.work()
    bot.say("yes")
    assert (bot.deleted, costs(bot)) == (["A"], (2, 1))


def test_tap_again_is_no_part_of_the_history(make_bot):
    """Its answer says nothing new, and may not be sent at all: on WhatsApp it would cost money."""
    bot = asked(make_bot)
    confirm, _ = bot.buttons
    for _ in range(2):
        bot.say(tap=confirm.data)
    assert bot.channel.texts[-1].startswith("Already done: Delete A")
    assert bot.channel.sent[-1].reply.optional
    bot.say("thanks")
    said = [
        message.content
        for message in bot.provider.requests[-1].messages
        if message.role.value == "user"
    ]
    assert said == ["delete it", "(tapped a button)", "thanks"]


def test_tap_on_yes_after_a_no_is_answered(make_bot):
    """It is another answer than the last one."""
    bot = asked(make_bot)
    confirm, _ = bot.buttons
    bot.say("no")
    assert bot.say(tap=confirm.data) == "Nothing was done: “Delete A”"
    assert not bot.channel.sent[-1].reply.optional


def test_what_was_not_answered_is_no_part_of_the_history(make_bot):
    """The model reads one yes and its outcome."""
    bot = asked(make_bot)
    for words in ("yes", "yes", "thanks"):
        bot.say(words)
    said = [
        message.content
        for message in bot.provider.requests[-1].messages
        if message.role.value == "user"
    ]
    assert said == ["delete it", "yes", "thanks"]


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_texts_that_end_a_question_invite_no_yes(language):
    """They are statements in each language, so that a repeated answer is known as one."""
    texts = texts_for(language)
    told = [
        texts.expired("A"),
        texts.cancelled("A"),
        texts.failed("A"),
        texts.unknown("A"),
        texts.unsafe("A"),
    ]
    told += [texts.done("A", ""), texts.undo_offer(60)]
    assert [text for text in told if invites_answer(text, language)] == []


def test_request_again_before_its_question_was_shown_is_one_question(make_bot):
    """An impatient person sent it twice: the question answers both."""
    bot = make_bot("A", "A")
    bot.hear("delete A")
    bot.hear("Delete A!")
    bot.work()
    assert costs(bot) == (1, 1)
    assert bot.say("yes") == "deleted A"


def test_request_again_after_its_question_is_told_what_a_yes_does(make_bot):
    """It is no yes. The question stays, without another call of the model."""
    bot = make_bot("A", "A")
    bot.say("delete A")
    assert bot.say("delete A").startswith(
        "Nothing has been done yet. After a yes I do this: Delete A"
    )
    assert (bot.deleted, costs(bot)) == ([], (2, 1))
    assert bot.say("yes") == "deleted A"


def test_other_request_while_the_first_is_worked_on_drops_its_question(make_bot):
    """Only the same words are the same request."""
    bot = make_bot("A", "B")
    bot.hear("delete A")
    bot.hear("delete B")
    bot.work()
    assert bot.say("yes") == "deleted B"
    assert bot.deleted == ["B"]
