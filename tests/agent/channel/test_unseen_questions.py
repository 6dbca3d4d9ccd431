"""Unseen questions: a question that was accepted but not delivered cannot be confirmed."""

from __future__ import annotations

import pytest

from tests.contracts.rigs import CHAT
from tests.workers.fakes import Bot


def report(bot: Bot, number: int, status: str = "failed") -> str:
    """Report the status of the message with this number, as the platform does."""
    return bot.rig.deliveries.report(f"{CHAT.id}#{number}", f"m{number}", status, "error 63016")


def test_yes_to_a_question_that_failed_later_does_nothing(make_bot):
    """platforms.md 1.3: Twilio accepts a message with 201 and reports 63016 later, so it was never shown."""
    bot = make_bot("A", lines=["Yes to what?"])
    assert "Delete A" in bot.say("delete A")
    assert report(bot, 1) == "failed"
    bot.say("yes")
    assert bot.deleted == []


def test_button_of_a_question_that_failed_later_does_nothing(make_bot):
    """A message that failed was shown to no user, so a tap on its button is not valid."""
    bot = make_bot("A")
    bot.say("delete A")
    report(bot, 1)
    bot.say(tap=bot.buttons[0].data)
    assert bot.deleted == []


def test_failure_reported_before_the_send_returns_closes_the_question(make_bot):
    """platforms.md 1.1: webhooks are fast, and the question must not open after its failure."""
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
def test_delivered_question_can_be_confirmed(make_bot, status):
    """A good status changes nothing, and neither does a failure of another reply."""
    bot = make_bot("A")
    bot.say("delete A")
    report(bot, 1, status)
    report(bot, 7)
    bot.say("yes")
    assert bot.deleted == ["A"]


def test_yes_before_the_failure_report_counts(make_bot):
    """The action has run already."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.say("yes")
    report(bot, 1)
    assert bot.deleted == ["A"]


@pytest.mark.parametrize("number", [1, 2])
def test_question_with_a_failed_part_ends(make_bot, number):
    """No part of a question may be missing when the user agrees."""
    bot = make_bot("A|A", lines=["Yes to what?"])
    bot.say("delete A")
    assert len(bot.channel.sent) == 2
    report(bot, number)
    bot.say("yes")
    assert bot.deleted == []


def test_turn_is_answered_although_its_open_question_failed_meanwhile(make_bot):
    """The message disarms an action that the failure report has already ended; its answer arrives normally."""
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


def test_question_with_a_delivered_second_copy_can_be_confirmed(make_bot):
    """A killed worker caused two sends; the failure of the first copy does not affect the second."""
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
