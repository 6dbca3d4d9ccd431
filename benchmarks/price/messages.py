"""Messages: how many a person gets for one action, with how many model calls, and how soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from benchmarks.price.bot import Bot
from benchmarks.price.chats import SHOP
from benchmarks.price.people import WhatsAppPerson
from benchmarks.price.rows import Row
from benchmarks.price.shop import DANGEROUS, PROMPT, call_step
from benchmarks.price.units import Encode
from benchmarks.signs import (
    MODEL_SECONDS,
    SLACK_GOAL,
    TELEGRAM_GOAL,
    signs_stack,
    slack_status_seconds,
    telegram_words_seconds,
)
from sayso.testing.platforms.webhooks import JPEG

ASK = "Please refund 12 euros of order 1007, the pears were bad."
REFUND = call_step(DANGEROUS, {"order_id": "1007", "amount": 12.0, "reason": "bad pears"}, 1)
ANSWER = {"text": "I am here if you need more."}
#: The seconds between the photos of an album.
PHOTO_SECONDS = 0.3
#: The seconds for which a worker works on an album.
ALBUM_SECONDS = 4.0


def rows(_: Encode) -> Iterator[Row]:
    """Yield the rows of messages and of seconds."""
    yield from _album()
    yield from _question("yes", ["yes"], messages=2, done=1)
    yield from _question("“what is it?”, then yes", ["what is it?", "yes"], messages=3, done=1)
    yield from _question("two yeses at once", ["yes", "yes"], messages=3, done=1, at_once=True)
    yield from _question("a late yes", ["yes"], messages=2, done=0, late=True)
    yield from _three_steps()
    with signs_stack() as (stack, platforms):
        slack = slack_status_seconds(stack, platforms)
        telegram = telegram_words_seconds(stack, platforms)
    yield Row("Slack direct message: first sign of life", slack, SLACK_GOAL, unit="s")
    what = f"Telegram, `streaming: true`: first text with a model of {MODEL_SECONDS:g} s"
    yield Row(what, telegram, TELEGRAM_GOAL, unit="s")


def _album() -> Iterator[Row]:
    """Send an album of three photos, as Twilio does: three webhooks."""
    person = WhatsAppPerson()
    with Bot("openai", PROMPT, SHOP, person=person) as bot:
        bot.recorder.script(ANSWER, ANSWER, ANSWER)
        worker = threading.Thread(target=bot.work, args=(ALBUM_SECONDS,))
        worker.start()
        for _ in range(3):
            bot.receive(person.photo(bot.platforms.host("twilio", JPEG)))
            time.sleep(PHOTO_SECONDS)
        worker.join()
        yield Row("WhatsApp, an album of 3 photos: messages", len(bot.platforms.sent), 1)
        yield Row("the same: model calls", len(bot.recorder.bodies), 1)


def _question(
    what: str,
    replies: list[str],
    *,
    messages: int,
    done: int,
    late: bool = False,
    at_once: bool = False,
) -> Iterator[Row]:
    """Ask for a refund and reply to the question; a `late` reply comes after its time.

    `at_once`: a worker takes up the replies when all have come. `messages` and `done` are the goals:
    how many messages the person gets, and how many refunds.
    """
    ttl = 0.3 if late else 60
    channel = f"    confirm_ttl: {ttl}"
    with Bot("openai", PROMPT, SHOP, channel=channel, person=WhatsAppPerson()) as bot:
        bot.recorder.script(REFUND, ANSWER, ANSWER)
        bot.say(ASK)
        asked = len(bot.recorder.bodies)
        if late:
            time.sleep(ttl * 2)
        for reply in replies:
            bot.receive(bot.person.text(reply))
            if not at_once:
                bot.work()
        bot.work()
        texts = [str(message["text"]) for message in bot.platforms.sent]
        refunds = sum("12.00 EUR refunded" in text for text in texts)
        yield Row(f"WhatsApp, {what}: messages", len(texts), messages)
        yield Row("the same: model calls after the question", len(bot.recorder.bodies) - asked, 1)
        yield Row("the same: refunds", refunds, done, at_least=bool(done))


def _three_steps() -> Iterator[Row]:
    """Ask for three refunds, and say yes to each of the questions."""
    orders = ("1007", "1008", "1009")
    refunds = [
        call_step(DANGEROUS, {"order_id": order, "amount": 12.0, "reason": "bad pears"}, number)
        for number, order in enumerate(orders, 1)
    ]
    with Bot("openai", PROMPT, SHOP, person=WhatsAppPerson()) as bot:
        bot.recorder.script(*refunds, ANSWER)
        bot.say("Please refund 12 euros each of the orders 1007, 1008 and 1009.")
        for _ in orders:
            bot.say("yes")
        texts = [str(message["text"]) for message in bot.platforms.sent]
        refunded = sum("12.00 EUR refunded" in text for text in texts)
        yield Row("WhatsApp, three steps with a yes each: messages", len(texts), 4)
        yield Row("the same: model calls", len(bot.recorder.bodies), 4)
        yield Row("the same: refunds", refunded, 3, at_least=True)
