"""A question that its platform took and did not deliver: whoever never saw it agrees to nothing."""

from __future__ import annotations

import pytest

from tests.contracts.rigs import CHAT
from tests.workers.fakes import Bot


def report(bot: Bot, number: int, status: str = "failed") -> str:
    """The platform says what became of a message, the number of which is that of its reply."""
    return bot.rig.deliveries.report(f"{CHAT.id}#{number}", f"m{number}", status, "error 63016")


def test_yes_to_a_question_that_failed_later_does_nothing(make_bot):
    """platforms.md 1.3: Twilio takes it with 201, and tells of 63016 a moment later: the words were never shown."""
    bot = make_bot("A", lines=["Yes to what?"])
    assert "Delete A" in bot.say("delete A")
    assert report(bot, 1) == "failed"
    bot.say("yes")
    assert bot.deleted == []


def test_button_of_a_question_that_failed_later_does_nothing(make_bot):
    """However it reached somebody: what failed was shown to nobody."""
    bot = make_bot("A")
    bot.say("delete A")
    report(bot, 1)
    bot.say(tap=bot.buttons[0].data)
    assert bot.deleted == []


def test_failure_may_be_told_before_the_worker_says_sent(make_bot):
    """platforms.md 1.1: webhooks are fast: the question does not open behind its failure."""
    bot = make_bot("A", lines=["Yes to what?"])
    send = bot.channel.send

    async def send_and_fail(delivery):
        receipt = await send(delivery)
        report(bot, 1)
        return receipt

    bot.channel.send = send_and_fail
    bot.say("delete A")
    bot.channel.send = send
    bot.say("yes")
    assert bot.deleted == []


@pytest.mark.parametrize("status", ["sent", "delivered", "read"])
def test_question_that_arrived_is_answered(make_bot, status):
    """Good news changes nothing, nor does a failure of another reply."""
    bot = make_bot("A")
    bot.say("delete A")
    report(bot, 1, status)
    report(bot, 7)
    bot.say("yes")
    assert bot.deleted == ["A"]


def test_answer_before_the_failure_counts(make_bot):
    """What was done was done."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.say("yes")
    report(bot, 1)
    assert bot.deleted == ["A"]


@pytest.mark.parametrize("number", [1, 2])
def test_question_of_which_a_piece_failed_later_ends(make_bot, number):
    """Nobody agrees to half of a question, whichever half it is."""
    bot = make_bot("A|A", lines=["Yes to what?"])
    bot.say("delete A")
    assert len(bot.channel.sent) == 2
    report(bot, number)
    bot.say("yes")
    assert bot.deleted == []


def test_turn_that_lets_go_of_a_question_is_answered_though_it_failed_meanwhile(make_bot):
    """Nobody did what it asked for, whichever of the two ended it: the person hears the answer, not that it broke."""
    bot = make_bot("A", lines=["It is sunny."])
    bot.say("delete A")
    ask = bot.agent.agent.arun

    async def fail_and_ask(*args, **kwargs):
        report(bot, 1)
        return await ask(*args, **kwargs)

    bot.agent.agent.arun = fail_and_ask
    assert "It is sunny." in bot.say("what is the weather?")
    bot.say("yes")
    assert bot.deleted == []


def test_question_of_which_the_second_copy_arrived_is_answered(make_bot):
    """Sent twice, as a worker died in between: the failure of the first copy takes nothing from the other."""
    bot = make_bot("A")
    send = bot.channel.send

    async def send_as_the_second(delivery):
        bot.rig.deliveries.report(delivery.id, "m0", "failed", "error 63016")
        return await send(delivery)

    bot.channel.send = send_as_the_second
    bot.say("delete A")
    bot.channel.send = send
    bot.say("yes")
    assert bot.deleted == ["A"]
