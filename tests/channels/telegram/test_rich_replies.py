"""Answers as rich messages of Telegram (Bot API 10.2).

When they are sent, and what replaces them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from benchmarks.replies import KINDS, long_text
from sayso.channels.base import AddressClosed, DeliveryUncertain, RateLimited, Refused
from sayso.channels.markdown.convert import plain
from sayso.channels.telegram.rich_outgoing import MAX_COLUMNS, rich_blocks
from sayso.channels.types import Button, Conversation, Delivery, Receipt, Reply
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.telegram import SERVER_VERSION
from sayso.testing.platforms.telegram_rich import checked_rich_text
from tests.channels.harness import IMAGE, MemoryMedia, telegram
from tests.memory_stores import MemorySharedCache

CHAT = Conversation("tg", "5123456789")
TOPIC = Conversation("tg", "-1002000000001", "77")
TABLE = "Sales:\n\n| Name | Sum |\n|---|--:|\n| **A** | 1 |\n| B | 2 |"
LONG = "\n\n".join(f"Paragraph {number}: {'word ' * 60}" for number in range(20))
CHOICES = (Button("Small", "s"), Button("Large", "l"))


@pytest.fixture
def channel(media: MemoryMedia, platforms: FakePlatforms):
    """Return a bot that sends rich messages to the fake."""
    return telegram(media, platforms.telegram_url, rich_messages=True)


def send(channel, reply: Reply, conversation: Conversation = CHAT) -> list[Receipt]:
    """Send all pieces of a reply, as the worker does, and return their receipts."""
    pieces = [replace(piece, only_for=reply.only_for) for piece in channel.split(reply)]
    return [asyncio.run(channel.send(Delivery("d", conversation, piece))) for piece in pieces]


def methods(platforms: FakePlatforms) -> list[str]:
    """Return the method of each message."""
    return [entry["raw"]["method"] for entry in platforms.sent]


@pytest.mark.parametrize(
    "question",
    [
        Reply(f"{TABLE}\n\nSure?", CHOICES, answer_seconds=60.0, preview=TABLE),
        Reply(
            f"{TABLE}\n\n{LONG}\n\nSure?",
            CHOICES,
            answer_seconds=60.0,
            preview=f"{TABLE}\n\n{LONG}",
        ),
        Reply(TABLE, answer_seconds=300.0, buttons=CHOICES[:1]),
        Reply(TABLE, edits="1", decided_buttons=CHOICES),
    ],
    ids=["question", "long question", "undo", "decided question"],
)
def test_question_is_never_rich(channel, platforms: FakePlatforms, question: Reply):
    """An app that cannot show a rich message would show the buttons without what a yes agrees to."""
    send(channel, Reply("?"))
    send(channel, question)
    assert set(methods(platforms)) <= {"sendMessage", "editMessageText"}
    assert not any("rich_message" in entry["raw"] for entry in platforms.sent)


def test_table_and_long_answer_are_one_rich_message_each(channel, platforms: FakePlatforms):
    """In their topic, with the buttons of an offer."""
    (receipt,) = send(channel, Reply(TABLE, CHOICES), TOPIC)
    send(channel, Reply(LONG), TOPIC)
    assert methods(platforms) == ["sendRichMessage", "sendRichMessage"]
    table, long = platforms.sent
    assert (receipt.message_id, table["thread"], [each["data"] for each in table["buttons"]]) == (
        "1",
        "77",
        ["s", "l"],
    )
    assert table["text"] == "Sales:\n\n| Name | Sum |\n| --- | --- |\n| A | 1 |\n| B | 2 |"
    assert long["text"].count("Paragraph") == 20


@pytest.mark.parametrize(
    "reply",
    [Reply("**Short** text"), Reply(TABLE, media=IMAGE), Reply(TABLE, only_for="5123456789")],
)
def test_other_replies_stay_as_they_are(channel, platforms: FakePlatforms, reply: Reply):
    """Every app shows them."""
    send(channel, reply, TOPIC)
    assert "sendRichMessage" not in methods(platforms)


@pytest.mark.parametrize(
    ("text", "is_rtl"),
    [
        (TABLE, False),
        ("| الاسم | المبلغ |\n|---|---|\n| A | 1 |", True),
        ("7 | **שם** |\n---|---|\n1 | A", True),
    ],
)
def test_table_of_a_script_that_is_read_from_the_right_begins_there(
    channel, platforms: FakePlatforms, text: str, *, is_rtl: bool
):
    """The message says so, because Telegram does not look at the script of a table."""
    send(channel, Reply(text))
    (entry,) = platforms.sent
    assert json.loads(entry["raw"]["rich_message"]).get("is_rtl", False) == is_rtl


def test_without_the_setting_no_reply_is_rich(media: MemoryMedia, platforms: FakePlatforms):
    """Telegram's apps of today show nothing of a rich message that they do not know."""
    send(telegram(media, platforms.telegram_url), Reply(TABLE))
    assert methods(platforms) == ["sendMessage"]


def test_streamed_text_becomes_a_rich_message(channel, platforms: FakePlatforms):
    """The message that grew is edited, and keeps its place."""
    (shown,) = send(channel, Reply("Sales:"))
    assert send(channel, Reply(TABLE, edits=shown.message_id)) == [shown]
    (entry,) = platforms.sent
    assert (entry["raw"]["method"], entry["text"][:6]) == ("editMessageText", "Sales:")
    assert json.loads(entry["raw"]["rich_message"])["blocks"][1]["type"] == "table"


@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize("text", [TABLE, LONG])
def test_old_server_gets_the_answer_as_before(
    channel,
    platforms: FakePlatforms,
    text: str,
    *,
    edits: bool,
):
    """It is learned, so the next answer is split as before, and asked once only."""
    platforms.log.state[SERVER_VERSION] = (10, 1)
    shown = send(channel, Reply("…"))[0].message_id if edits else ""
    for _ in range(2):
        send(channel, Reply(text, edits=shown))
        shown = ""
        platforms.log.state[SERVER_VERSION] = (10, 3)
    assert not any("rich_message" in entry["raw"] for entry in platforms.sent)
    words = " ".join(entry["text"] for entry in platforms.sent)
    assert words.count("Paragraph 7:") == (2 if text == LONG else 0)
    assert words.count("Sales:") == (2 if text == TABLE else 0)


def test_refused_content_is_sent_as_before_and_not_learned(channel, platforms: FakePlatforms):
    """Telegram finds addresses in texts by itself, and refuses some of them."""
    platforms.script("telegram", "Bad Request: RICH_MESSAGE_EMAIL_INVALID")
    send(channel, Reply(TABLE))
    send(channel, Reply(TABLE))
    assert methods(platforms) == ["sendMessage", "sendRichMessage"]


@pytest.mark.parametrize("answer", ["drop", "lost", "502"])
def test_unclear_answer_is_no_refusal(channel, platforms: FakePlatforms, answer: str):
    """The rich message may have arrived: nothing else is sent in its place."""
    platforms.script("telegram", answer)
    with pytest.raises(DeliveryUncertain):
        send(channel, Reply(TABLE))
    assert methods(platforms) == (["sendRichMessage"] if answer == "lost" else [])


def test_wait_is_no_refusal(channel, platforms: FakePlatforms):
    """The same rich message is sent later."""
    platforms.script("telegram", "429")
    with pytest.raises(RateLimited):
        send(channel, Reply(TABLE))
    assert platforms.sent == []


def refuse_after(
    platforms: FakePlatforms,
    parts: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let the fake, which knows no rich messages, take so many parts and answer the next one with `kind`."""
    platforms.log.state[SERVER_VERSION] = (10, 1)
    fake = platforms.fakes["telegram"]
    answer = fake._send
    taken = []

    def send_or_refuse(*args):
        taken.append(args)
        return fake.failure(kind) if len(taken) == parts + 1 else answer(*args)

    monkeypatch.setattr(fake, "_send", send_or_refuse)


def paragraphs(platforms: FakePlatforms) -> list[int]:
    """Return how often each paragraph of LONG stands in the chat."""
    words = " ".join(entry["text"] for entry in platforms.sent)
    return [words.count(f"Paragraph {number}:") for number in range(20)]


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize(
    ("kind", "error"),
    [("429", RateLimited), ("403", AddressClosed), ("Bad Request: no", Refused)],
)
def test_parts_that_arrived_are_not_sent_again(
    platforms: FakePlatforms, media: MemoryMedia, monkeypatch, kind: str, error: type, *, rich: bool
):
    """The next attempt begins with the part that Telegram did not take.

    That holds in another process, too, and without the setting.
    """
    cache = MemorySharedCache()
    refuse_after(platforms, 1, kind, monkeypatch)
    first = telegram(media, platforms.telegram_url, rich_messages=True, cache=cache)
    with pytest.raises(error):
        send(first, Reply(LONG))
    begun = paragraphs(platforms)
    platforms.log.state[SERVER_VERSION] = (10, 3)
    second = telegram(media, platforms.telegram_url, rich_messages=rich, cache=cache)
    asyncio.run(second.send(Delivery("d", CHAT, Reply(LONG), attempt=2)))
    assert (0 < sum(begun) < 20, paragraphs(platforms)) == (True, [1] * 20)


def test_text_whose_part_may_have_arrived_is_uncertain(
    channel,
    platforms: FakePlatforms,
    monkeypatch,
):
    """It is sent again as a whole, below a note that says so."""
    refuse_after(platforms, 1, "502", monkeypatch)
    with pytest.raises(DeliveryUncertain):
        send(channel, Reply(LONG))
    marked = Reply(f"(sent again)\n\n{LONG}")
    asyncio.run(channel.send(Delivery("d", CHAT, marked, attempt=2)))
    assert set(paragraphs(platforms)) == {1, 2}


def test_part_into_a_topic_that_is_gone_goes_to_the_chat(
    channel,
    platforms: FakePlatforms,
    monkeypatch,
):
    """The parts before it stay where they are."""
    refuse_after(platforms, 1, "Bad Request: message thread not found", monkeypatch)
    send(channel, Reply(LONG), TOPIC)
    assert ([entry["thread"] for entry in platforms.sent], paragraphs(platforms)) == (
        ["77", ""],
        [1] * 20,
    )


def test_part_that_an_earlier_attempt_has_edited_is_no_end(
    channel,
    platforms: FakePlatforms,
    monkeypatch,
):
    """Telegram refuses an edit that changes nothing, and the parts after it are still to be sent."""
    platforms.log.state[SERVER_VERSION] = (10, 1)
    fake = platforms.fakes["telegram"]
    shown = send(channel, Reply("…"))[0].message_id
    answer = fake._send
    monkeypatch.setattr(fake, "_send", lambda *_: fake.failure("403"))
    with pytest.raises(AddressClosed):
        send(channel, Reply(LONG, edits=shown))
    monkeypatch.setattr(fake, "_send", answer)
    other = Delivery("another id", CHAT, Reply(LONG, edits=shown), attempt=2)
    asyncio.run(channel.send(other))
    assert paragraphs(platforms) == [1] * 20


@pytest.mark.parametrize(
    ("md", "block"),
    [
        (
            "## A *b*",
            {"type": "heading", "text": ["A ", {"type": "italic", "text": "b"}], "size": 2},
        ),
        ("```py\nx < 1\n```", {"type": "pre", "text": "x < 1", "language": "py"}),
        ("---", {"type": "divider"}),
        ("> a", {"type": "blockquote", "blocks": [{"type": "paragraph", "text": "a"}]}),
        (
            "a & ~~b~~",
            {"type": "paragraph", "text": ["a & ", {"type": "strikethrough", "text": "b"}]},
        ),
        ("2*3*4 `x`", {"type": "paragraph", "text": ["2*3*4 ", {"type": "code", "text": "x"}]}),
        (
            "3. a",
            {
                "type": "list",
                "items": [
                    {"blocks": [{"type": "paragraph", "text": "a"}], "value": 3, "type": "1"}
                ],
            },
        ),
        (
            "[mail](mailto:a@b.org)",
            {
                "type": "paragraph",
                "text": {"type": "email_address", "text": "mail", "email_address": "a@b.org"},
            },
        ),
    ],
)
def test_each_kind_of_block(md: str, block: dict):
    """The formatting is that of other messages, and so are the rules about asterisks and links."""
    blocks = rich_blocks(f"{md}\n\nend")
    assert blocks is not None
    assert blocks[0] == block


def test_label_cannot_hide_its_target():
    """As in other messages, the address stands behind the words."""
    (block,) = rich_blocks("[your bank](https://evil.example/x)")
    assert block["text"] == [
        {"type": "url", "text": "your bank", "url": "https://evil.example/x"},
        " (https://evil.example/x)",
    ]


@pytest.mark.parametrize(
    "md",
    [
        "5) a",
        "007. a",
        "",
        "x" * 32_769,
        "\n\n".join("a" * 501),
        "|" * (MAX_COLUMNS + 2) + "\n" + "|-" * (MAX_COLUMNS + 1) + "|",
    ],
)
def test_text_that_would_look_otherwise_is_not_rich(md: str):
    """Numbers stay as they were written, and Telegram's limits are kept."""
    assert rich_blocks(md) is None


@pytest.mark.parametrize("kind", KINDS)
def test_no_letter_of_a_hostile_text_is_lost(kind: str):
    """The blocks show every letter and digit that another message would show, in order."""
    md = long_text(KINDS[kind])[:3000]
    blocks = rich_blocks(md)
    shown = plain(md)
    if blocks:
        shown = checked_rich_text(json.dumps({"blocks": blocks}))
    seen = iter(shown)
    assert all(char in seen for char in plain(md) if char.isalnum())
