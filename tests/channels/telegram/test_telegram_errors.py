"""Telegram's errors, row by row of platforms.md 2.4, and the channel's reaction to each."""

from __future__ import annotations

import asyncio

import pytest

from sayso.channels.base import (
    AddressBarred,
    AddressClosed,
    ChannelDown,
    ChatBarred,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
)
from sayso.channels.telegram.client import REACTIONS
from sayso.channels.types import Conversation, Delivery, Reply
from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.channels.harness import IMAGE, MemoryMedia, telegram

GROUP = Conversation("tg", "-1002000000001")

#: Each row of the table: the answer of Telegram, and the error that follows.
ROWS = [
    ("429", RateLimited),
    ("Forbidden: bot was blocked by the user", AddressClosed),
    ("Forbidden: user is deactivated", AddressClosed),
    ("Forbidden: bot was kicked from the supergroup chat", AddressClosed),
    ("Forbidden: bot is not a member of the supergroup chat", AddressClosed),
    ("Forbidden: bot can't initiate conversation with a user", AddressClosed),
    ("Bad Request: chat not found", AddressClosed),
    ("Bad Request: message thread not found", Refused),
    ("Bad Request: TOPIC_CLOSED", AddressBarred),
    ("Bad Request: not enough rights to send text messages to the chat", ChatBarred),
    ("Bad Request: have no rights to send a message", ChatBarred),
    ("Bad Request: CHAT_WRITE_FORBIDDEN", ChatBarred),
    ("Bad Request: not enough rights to send photos to the chat", Refused),
    ("Bad Request: message is too long", Refused),
    ("Bad Request: reply markup is too long", Refused),
    ("Bad Request: wrong HTTP URL specified", Refused),
    ("Bad Request: failed to get HTTP URL content", Refused),
    ("Bad Request: message can't be deleted", Refused),
    ("401", ChannelDown),
    ("404", ChannelDown),
    ("409", Refused),
    ("413", Refused),
    ("500", DeliveryUncertain),
    ("502", DeliveryUncertain),
    ("503", DeliveryUncertain),
    ("lost", DeliveryUncertain),
    ("drop", DeliveryUncertain),
]


def failure(media: MemoryMedia, platforms: FakePlatforms, reply: Reply) -> SendError:
    """Return the error that sending raises."""
    with pytest.raises(SendError) as caught:
        asyncio.run(telegram(media, platforms.telegram_url).send(Delivery("d", GROUP, reply)))
    return caught.value


@pytest.mark.parametrize(("answer", "error"), ROWS)
def test_each_answer_has_its_reaction(
    media: MemoryMedia, platforms: FakePlatforms, answer: str, error: type[SendError]
):
    """platforms.md 2.4: PTB calls some of these network errors, and a retry of a permanent one would never end."""
    platforms.script("telegram", answer)
    raised = failure(media, platforms, Reply("hello"))
    assert type(raised) is error
    assert len(platforms.sent) == (1 if answer == "lost" else 0)


def test_wait_is_the_one_of_telegram(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.4: the error has the value of parameters.retry_after."""
    platforms.script("telegram", "429")
    raised = failure(media, platforms, Reply("hello"))
    assert isinstance(raised, RateLimited)
    assert raised.retry_after == 7.0


def test_error_never_quotes_the_message(media: MemoryMedia, platforms: FakePlatforms):
    """The text after a colon may be the user's."""
    platforms.script("telegram", "Bad Request: can't find something: the-secret-words")
    assert "the-secret-words" not in str(failure(media, platforms, Reply("the-secret-words")))


def test_unknown_method_is_no_revoked_token(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 2.4: a self-hosted Bot API server may be older than the program, so the channel goes on."""
    from telegram.error import InvalidToken

    from sayso.channels.telegram.client import send_error

    assert type(send_error(InvalidToken("Not Found: method not found"))) is Refused


def test_every_row_of_the_reactions_can_be_reached():
    """A row after a catch-all row of the same kind would never match."""
    seen: set[str] = set()
    for kind, words, _ in REACTIONS:
        assert kind not in seen
        seen |= {kind} if not words else set()


@pytest.mark.parametrize(
    "answer", ["Bad Request: PHOTO_INVALID_DIMENSIONS", "Bad Request: IMAGE_PROCESS_FAILED"]
)
def test_picture_that_telegram_refuses_is_sent_as_a_document(
    media: MemoryMedia, platforms: FakePlatforms, answer: str
):
    """platforms.md 2.3: a photo's sides sum up to 10000, their ratio is up to 20; another chart still arrives."""
    platforms.script("telegram", answer)
    asyncio.run(
        telegram(media, platforms.telegram_url).send(
            Delivery("d", GROUP, Reply("chart", media=IMAGE))
        )
    )
    assert [(entry["raw"]["method"], entry["text"]) for entry in platforms.sent] == [
        ("sendDocument", "chart")
    ]


def test_reply_into_a_topic_that_is_gone_goes_to_the_chat(
    media: MemoryMedia, platforms: FakePlatforms
):
    """Public reports of three bots: the topic was deleted, and the reply was lost with it."""
    topic = Conversation("tg", "-1002000000001", "79")
    platforms.script("telegram", "Bad Request: message thread not found")
    asyncio.run(telegram(media, platforms.telegram_url).send(Delivery("d", topic, Reply("hello"))))
    (sent,) = platforms.sent
    assert (sent["text"], sent["chat"], sent["thread"]) == ("hello", topic.chat, "")


def test_reopened_topic_takes_messages_again(media: MemoryMedia):
    """Telegram writes a service message into the topic."""
    message = {
        "message_id": 1,
        "date": 1,
        "chat": {"id": -1002000000001, "type": "supergroup", "is_forum": True},
    }
    message |= {"from": {"id": 7, "is_bot": False, "first_name": "Ada"}, "forum_topic_reopened": {}}
    message |= {"message_thread_id": 79, "is_topic_message": True}
    (change,) = telegram(media, None).read({"update_id": 1, "message": message}).addresses
    assert (change.conversation, change.closed) == (Conversation("tg", "-1002000000001", "79"), "")
