"""Messages of a Telegram group that one person sees (Bot API 10.2 and 10.3).

They are sent, answered in time, and edited.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.channels.base import Refused
from sayso.channels.types import Button, Conversation, Delivery, Receipt, Reply, for_readers_of
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.telegram import PLAIN_MEMBER_GROUPS, SERVER_VERSION
from tests.channels.harness import IMAGE, MemoryMedia, telegram, telegram_hook

GROUP = Conversation("tg", "-1002000000001")
ADA = "5123456789"
YES_NO = (Button("Yes", "y"), Button("No", "n"))
DECIDED = (Button("✓ Yes", ""), Button("No", ""))
QUESTION = Reply("Delete **3** files?", YES_NO, only_for=ADA)


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms):
    """Return a bot that talks to the fake."""
    return telegram(media, platforms.telegram_url, username="acme_bot")


def send(channel, reply: Reply) -> Receipt:
    """Send one piece to the group and return its receipt."""
    return asyncio.run(channel.send(Delivery("d", GROUP, reply)))


def read(channel, update: dict):
    """Return the turn of an update."""
    (turn,) = channel.receive(telegram_hook(update)).turns
    return turn


def methods(platforms: FakePlatforms) -> list[str]:
    """Return the methods that edited or deleted a message."""
    return [
        call["method"] for call in platforms.calls if call["method"].startswith(("edit", "delete"))
    ]


def test_decided_private_question_is_edited_by_its_own_method(channel, platforms: FakePlatforms):
    """Its number is none of the chat's, so the usual method would edit another message."""
    prompt = send(channel, QUESTION)
    assert prompt.message_id == f"u{ADA}:1"
    edit = Reply(
        "3 files\n\n✅ Yes", edits=prompt.message_id, optional=True, decided_buttons=DECIDED
    )
    assert send(channel, edit) == prompt
    assert methods(platforms) == ["editEphemeralMessageText"]
    (entry,) = platforms.sent
    shown = json.loads(entry["raw"]["reply_markup"])["inline_keyboard"]
    assert (entry["text"], shown[0][0]) == ("3 files\n\n✅ Yes", {"text": "✓ Yes", "disabled": {}})


def test_private_question_with_a_picture_is_edited_in_its_caption(
    channel,
    platforms: FakePlatforms,
):
    """As Telegram says that there is no text."""
    prompt = send(channel, Reply("This one?", YES_NO, IMAGE, only_for=ADA))
    assert send(channel, Reply("Taken.", edits=prompt.message_id)) == prompt
    assert (methods(platforms), platforms.sent[0]["text"]) == (
        ["editEphemeralMessageCaption"],
        "Taken.",
    )


def test_server_without_private_edits_leaves_the_question(channel, platforms: FakePlatforms):
    """A Bot API server before 10.2: an optional edit is dropped, all else is a new message."""
    platforms.log.state[SERVER_VERSION] = (10, 1)
    edit = Reply("Deleted.", edits=f"u{ADA}:1", only_for=ADA)
    assert send(channel, Reply("Gone.", edits=f"u{ADA}:1", optional=True)) == Receipt("")
    assert send(channel, edit).message_id == f"u{ADA}:1"


def test_tap_and_reply_name_the_private_question(channel):
    """So the message that was tapped is closed, and a reply to the question quotes the question."""
    tap = read(channel, signing.telegram_tap(1, "x", chat=-7, ephemeral_message_id=3, message_id=0))
    original = {
        "message_id": 0,
        "ephemeral_message_id": 3,
        "from": {"id": 7000000001, "is_bot": True},
    }
    yes = signing.telegram_text(
        2, "yes", chat=-7, message_id=0, ephemeral_message_id=4, reply_to_message=original
    )
    turn = read(channel, yes)
    assert (tap.message_id, turn.message_id, turn.replied_to) == (
        f"u{ADA}:3",
        f"u{ADA}:4",
        f"u{ADA}:3",
    )


@pytest.mark.parametrize(
    ("update", "named"),
    [
        (
            signing.telegram_text(
                1, "/status@acme_bot", chat=-7, message_id=0, ephemeral_message_id=4
            ),
            {"reply_parameters": {"ephemeral_message_id": 4}},
        ),
        (
            signing.telegram_tap(1, "x", chat=-7, message_id=0, ephemeral_message_id=4),
            {
                "ephemeral_message_parameters": {
                    "receiver_user_id": int(ADA),
                    "callback_query_id": "cb1",
                }
            },
        ),
    ],
)
def test_answer_names_the_act_that_allows_it(
    channel,
    platforms: FakePlatforms,
    update: dict,
    named: dict,
):
    """A bot that is no administrator may write to one person for 15 seconds after an act of theirs."""
    platforms.log.state[PLAIN_MEMBER_GROUPS] = {GROUP.chat}
    (piece,) = channel.split(for_readers_of(read(channel, update), Reply("Nothing is waiting.")))
    send(channel, for_readers_of(read(channel, update), piece))
    raw = platforms.sent[0]["raw"]
    assert {name: json.loads(raw[name]) for name in named} == named
    assert "receiver_user_id" not in raw


@pytest.mark.parametrize(
    "error", ["query is too old and response timeout expired", "REPLY_MESSAGE_ID_INVALID"]
)
def test_late_answer_is_tried_without_the_act(channel, platforms: FakePlatforms, error: str):
    """An administrator may write at any time.

    For others the answer is refused: it is never shown to all.
    """
    reply = Reply("Nothing is waiting.", only_for=ADA, only_for_act="cb1")
    platforms.script("telegram", f"Bad Request: {error}")
    assert send(channel, reply).message_id == f"u{ADA}:1"
    platforms.log.state[PLAIN_MEMBER_GROUPS] = {GROUP.chat}
    platforms.script("telegram", f"Bad Request: {error}")
    with pytest.raises(Refused):
        send(channel, reply)
    assert len(platforms.sent) == 1


def test_text_that_is_too_long_stays_private(channel, platforms: FakePlatforms):
    """Each of its messages is for one person."""
    send(channel, Reply("word " * 2000, only_for=ADA))
    assert len(platforms.sent) == 3
    assert all("ephemeral_message_parameters" in entry["raw"] for entry in platforms.sent)


def test_private_chat_needs_no_receiver(channel, platforms: FakePlatforms):
    """Telegram refuses one there."""
    where = Conversation("tg", ADA)
    asyncio.run(
        channel.send(Delivery("d", where, Reply("Nothing.", only_for=ADA, only_for_act="cb1")))
    )
    assert "ephemeral_message_parameters" not in platforms.sent[0]["raw"]


def test_draft_without_an_answer_is_deleted(channel, platforms: FakePlatforms):
    """After a stop before the first words there is nothing to keep.

    What cannot be deleted becomes a sign.
    """
    shown = send(channel, Reply("so"))
    (gone,) = channel.split(Reply("…", edits=shown.message_id, optional=True, removes=True))
    platforms.script("telegram", "Bad Request: message can't be deleted for everyone")
    assert send(channel, gone) == shown
    assert platforms.sent[0]["text"] == "…"
    assert send(channel, gone) == Receipt("")
    assert (platforms.sent[0]["text"], methods(platforms)) == (
        "",
        ["editMessageText", "deleteMessage"],
    )
