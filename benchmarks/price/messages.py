"""Messages: how many a person gets for one action, with how many model calls, and how soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.price.bot import Bot
from benchmarks.price.chats import SHOP
from benchmarks.price.people import SlackPerson, TelegramPerson, WhatsAppPerson
from benchmarks.price.rows import Row
from benchmarks.price.shop import DANGEROUS, PROMPT, call_step
from benchmarks.price.units import Encode
from sayso.testing.platforms.webhooks import JPEG

ASK = "Please refund 12 euros of order 1007, the pears were bad."
REFUND = call_step(DANGEROUS, {"order_id": "1007", "amount": 12.0, "reason": "bad pears"}, 1)
ANSWER = {"text": "How can I help you with that?"}
#: The seconds that a model takes for its first word, and for each further word.
MODEL_SECONDS, WORD_SECONDS = 0.5, 0.03
LONG_ANSWER = {
    "text": "The pears come from the Altes Land. " * 12,
    "delay": MODEL_SECONDS,
    "pause": WORD_SECONDS,
}
#: The seconds between the photos of an album, and for which a worker works on it.
PHOTO_SECONDS, ALBUM_SECONDS = 0.3, 4.0
#: The seconds between two messages of a person, after which no rate limit delays anything.
PAUSE_SECONDS = 1.5
#: The most seconds that the benchmark waits for a sign of life.
PATIENCE = 5.0


def rows(_: Encode) -> Iterator[Row]:
    """Yield the rows of messages and of seconds."""
    yield from _album()
    yield from _question("“what is it?”, then yes", ["what is it?", "yes"], messages=3, done=1)
    yield from _question("yes twice", ["yes", "yes"], messages=2, done=1)
    yield from _question("late yes twice", ["yes", "yes"], messages=2, done=0, late=True)
    yield Row("Slack direct message: first sign of life", _slack_status(), 0.3, unit="s")
    what = f"Telegram, `streaming: true`: first text with a model of {MODEL_SECONDS:g} s"
    yield Row(what, _telegram_text(), 0.6, unit="s")


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
) -> Iterator[Row]:
    """Ask for a refund and reply to the question; a `late` reply comes after its time.

    `messages` and `done` are the goals: how many messages the person gets, and how many refunds.
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
            bot.say(reply)
        texts = [str(message["text"]) for message in bot.platforms.sent]
        refunds = sum("12.00 EUR refunded" in text for text in texts)
        yield Row(f"WhatsApp, {what}: messages", len(texts), messages)
        yield Row("the same: model calls after the question", len(bot.recorder.bodies) - asked, 0)
        yield Row("the same: refunds", refunds, done, at_least=bool(done))


def _slack_status() -> float:
    """Return the seconds until a direct message on Slack shows a sign of life."""
    with Bot("openai", PROMPT, SHOP, person=SlackPerson()) as bot:
        answer = {**ANSWER, "delay": MODEL_SECONDS}
        return _seconds_until(bot, "assistant.threads.setStatus", answer)


def _telegram_text() -> float:
    """Return the seconds until a person on Telegram reads the first words of a streamed answer."""
    with Bot("openai", PROMPT, SHOP, channel="    streaming: true", person=TelegramPerson()) as bot:
        return _seconds_until(bot, "sendMessageDraft", LONG_ANSWER)


def _seconds_until(bot: Bot, method: str, answer: dict[str, Any]) -> float:
    """Return the seconds from a message of the person to a call of this method.

    An answer that comes first ends the wait, too. A message before it warms up.
    """
    bot.recorder.script(ANSWER, answer)
    bot.say("Hello!")
    time.sleep(PAUSE_SECONDS)
    calls, sent = len(bot.platforms.calls), len(bot.platforms.sent)

    began = time.monotonic()
    turn = threading.Thread(target=bot.say, args=("Do you have pears?",))
    turn.start()
    while time.monotonic() < began + PATIENCE:
        new_calls = bot.platforms.calls[calls:]
        if len(bot.platforms.sent) > sent or method in [call["method"] for call in new_calls]:
            break
        time.sleep(0.002)
    seconds = time.monotonic() - began
    turn.join()
    return seconds
