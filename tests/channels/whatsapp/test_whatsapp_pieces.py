"""WhatsApp's pieces: every text arrives, within every limit, also where a button or a file cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sayso.channels.markdown.convert import plain, whatsapp_text
from sayso.channels.markdown.list_numbers import with_shown_numbers
from sayso.channels.types import Button, Conversation, Delivery, Media, Reply
from sayso.channels.whatsapp.outgoing import (
    BUTTONS_LIMIT,
    FILE_BYTES,
    PICTURE_BYTES,
    TEXT_LIMIT,
    is_shown,
    length,
    pieces_of,
    text_of,
)
from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.channels.harness import IMAGE, PDF, MemoryMedia, whatsapp
from tests.channels.markdown.test_markup import MARKDOWN, WORDS
from tests.memory_stores import MemorySharedCache

CHAT = Conversation("wa", "whatsapp:+4915100000042")
CSV = Media("pdf", "text/csv", "sales.csv", size=1_500_000, stored=True)


class Links:
    """A media store that only makes links."""

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return a link of 100 characters."""
        return "https://bots.example.com/media/".ljust(100, "x")


LINKS: Any = Links()


def choices(count: int, label: str = "Choice {}") -> tuple[Button, ...]:
    """Return a number of buttons with distinct labels and data of the maximum length."""
    return tuple(Button(label.format(number), f"{number:064}") for number in range(1, count + 1))


def send(media: MemoryMedia, platforms: FakePlatforms, reply: Reply, **extra: Any) -> None:
    """Send a reply as a worker does, piece by piece."""
    channel = whatsapp(media, platforms.twilio_url, **extra)
    for piece in channel.split(reply):
        asyncio.run(channel.send(Delivery("d", CHAT, piece)))


@pytest.mark.parametrize("count", [4, 5, 10])
def test_four_to_ten_choices_are_a_list(media: MemoryMedia, platforms: FakePlatforms, count: int):
    """platforms.md 1.3: twilio/list-picker takes 1-10 items, and needs no approval in a session."""
    send(media, platforms, Reply("Which?", choices(count)))
    (sent,) = platforms.sent
    assert sent["text"] == "Which?"
    assert sent["buttons"] == [
        {"label": button.label, "data": button.data} for button in choices(count)
    ]


def test_one_content_serves_every_list_of_its_length(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: a Content is permanent, so titles, descriptions and ids are variables."""
    notebook = MemorySharedCache()
    for label in (
        "Choice {}",
        "Other {}",
        "{} is more than 24 letters long",
        "{} has more than 24 as well",
    ):
        send(media, platforms, Reply("Which?", choices(4, label)), cache=notebook)
    assert [call["method"] for call in platforms.calls] == ["content", "content"]
    assert len(platforms.sent) == 4


def test_long_item_has_its_whole_label_as_description(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: a title has 24 characters, so the rest is in the description."""
    send(media, platforms, Reply("Which?", choices(4, "{} is a name of more than 24 letters")))
    (content,) = (call["params"] for call in platforms.calls)
    items = content["types"]["twilio/list-picker"]["items"]
    assert all(set(item) == {"item", "id", "description"} for item in items)
    assert "4 is a name of more than 24 letters" in platforms.sent[0]["raw"]["ContentVariables"]


@pytest.mark.parametrize(
    "buttons",
    [
        choices(11),
        choices(4, "{}" + "x" * 80),
        choices(4, "The same 24 letters at the start {}"),
    ],
    ids=["too many", "too long", "the same"],
)
def test_choices_that_fit_no_list_are_numbered(
    media: MemoryMedia, platforms: FakePlatforms, buttons: tuple[Button, ...]
):
    """platforms.md 1.3: all choices stand below the text, to be typed."""
    send(media, platforms, Reply("1. Which?", buttons))
    words = "\n".join(entry["text"] for entry in platforms.sent)
    assert words.startswith("1. Which?\n\n1. ")
    assert [line for line in words.split("\n")[2:] if line] == [
        f"{number}. {button.label}" for number, button in enumerate(buttons, 1)
    ]
    assert platforms.calls == []


@pytest.mark.parametrize("code", ["63021", "63013"])
def test_refused_list_is_numbered(media: MemoryMedia, platforms: FakePlatforms, code: str):
    """platforms.md 1.4, pains.md 1: if the buttons are refused, the text names the choices."""
    platforms.script("twilio", code)
    send(media, platforms, Reply("Which?", choices(4, "a_{}_*b*")))
    assert platforms.sent[0]["buttons"] == []
    seen = platforms.sent[0]["text"].replace("\u200b", "")
    assert seen == "Which?\n\n1. a_1_*b*\n2. a_2_*b*\n3. a_3_*b*\n4. a_4_*b*"


def test_optional_edit_is_left_out_and_any_other_is_sent():
    """platforms.md 1.3: WhatsApp cannot edit a message."""
    assert pieces_of(Reply("Done", edits="SM1", optional=True), LINKS) == ()
    assert pieces_of(Reply("Done", edits="SM1"), LINKS) == (Reply("Done"),)
    undo = (Button("Undo", "u"),)
    assert pieces_of(Reply("Done", undo, edits="SM1"), LINKS) == (Reply("Done", undo),)


def test_each_piece_has_the_language_of_its_reply():
    """A text that the worker adds to a piece is in that language."""
    reply = Reply("x" * 2000, choices(2), PDF, language="de", collapse="p")
    assert [piece.language for piece in pieces_of(reply, LINKS)] == ["de"] * 3
    assert [piece.collapse for piece in pieces_of(reply, LINKS)] == [""] * 3


@pytest.mark.parametrize(
    ("mime", "size", "shown"),
    [
        ("image/jpeg", PICTURE_BYTES, True),
        ("image/png", 0, True),
        ("image/png", PICTURE_BYTES + 1, False),
        ("image/webp", 10, False),
        ("image/gif", 10, False),
        *[(f"audio/{kind}", FILE_BYTES, True) for kind in ("ogg", "amr", "3gpp", "aac", "mpeg")],
        ("audio/wav", 10, False),
        ("video/mp4", FILE_BYTES, True),
        ("video/mp4", FILE_BYTES + 1, False),
        ("video/webm", 10, False),
        ("application/pdf", FILE_BYTES, True),
        ("application/pdf", FILE_BYTES + 1, False),
        ("application/msword", 10, True),
        ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", 10, True),
        ("application/zip", 10, False),
        ("text/vcard", 10, True),
        ("text/csv", 10, False),
    ],
)
def test_media_types_and_sizes_that_whatsapp_shows(mime: str, size: int, shown: bool):
    """platforms.md 1.3: JPEG and PNG up to 5 MB, the other listed types up to 16 MB."""
    assert is_shown(Media("x", mime, size=size)) == shown


def test_file_that_whatsapp_cannot_show_is_a_link(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3, pains.md 13: the message has name, size and a link that is made at send time and not stored."""
    reply = Reply("Your sales", media=CSV)
    assert whatsapp(media, None).split(reply) == (reply,)
    send(media, platforms, reply)
    url = media.url(CSV.ref, filename=CSV.filename, mime_type=CSV.mime_type)
    (sent,) = platforms.sent
    assert sent["text"] == f"Your sales\n\nsales.csv (1.43 MB)\n{url}"
    assert "MediaUrl" not in sent["raw"]


def test_text_without_room_for_a_link_stands_above_it():
    """No text is lost or cut in two for a link."""
    text = "x" * (TEXT_LIMIT - 100)
    assert pieces_of(Reply(text, media=CSV), LINKS) == (Reply(text), Reply(media=CSV))


@pytest.mark.parametrize("size", [1, BUTTONS_LIMIT, BUTTONS_LIMIT + 1, TEXT_LIMIT])
def test_text_that_fits_one_message_is_one(size: int):
    """platforms.md 1.3: each message is paid for, so none is split without need."""
    text = ("word " * TEXT_LIMIT)[: size - 1] + "."
    assert [piece.text for piece in pieces_of(Reply(text), LINKS)] == [text]
    if size <= BUTTONS_LIMIT:
        question = Reply(text, (Button("Yes", "y", "danger"), Button("No", "n")))
        assert pieces_of(question, LINKS) == (question,)
        assert pieces_of(Reply(text, media=IMAGE), LINKS) == (Reply(text, media=IMAGE),)


def test_marks_in_a_name_format_nothing(media: MemoryMedia, platforms: FakePlatforms):
    """WhatsApp would take the underscores for italics and hide them."""
    send(media, platforms, Reply(media=replace(CSV, filename="_sales_ *final*.csv")))
    assert platforms.sent[0]["text"].startswith(
        "_\u200bsales_ *\u200bfinal*.csv (1.43 MB)\nhttp://"
    )


def test_small_file_without_a_name_is_a_link_too(media: MemoryMedia, platforms: FakePlatforms):
    """The link text says "file" where the name would be."""
    send(media, platforms, Reply(media=replace(CSV, filename="", size=10)))
    assert platforms.sent[0]["text"].startswith("file (10 B)\nhttp://")


@pytest.mark.parametrize(
    "file", [replace(IMAGE, size=PICTURE_BYTES + 1), replace(IMAGE, mime_type="image/gif")]
)
def test_picture_that_whatsapp_cannot_show_is_a_link_below_the_text(file: Media):
    """One message has both, as for any file that is sent as a link."""
    assert pieces_of(Reply("See", media=file), LINKS) == (Reply("See", media=file),)


def test_document_is_a_message_below_the_text():
    """platforms.md 1.3: WhatsApp shows no text beside a document."""
    assert pieces_of(Reply("See", media=PDF), LINKS) == (Reply("See"), Reply(media=PDF))


def test_emoji_count_as_two_characters(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: Twilio may count an emoji as more than one of the 1,600, and 21617 is permanent."""
    send(media, platforms, Reply("👍" * 1600))
    send(media, platforms, Reply("👍" * 1600, choices(2)))
    assert "".join(entry["text"] for entry in platforms.sent) == "👍" * 3200
    assert max(len(entry["text"]) for entry in platforms.sent) <= 800


ALIKE = (Button("Delete the file alpha.txt", "1"), Button("Delete the file alpine.txt", "2"))


def test_labels_with_the_same_first_20_characters_are_a_list(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 1.3: a button title has 20 characters; two equal titles would be refused or confused."""
    send(media, platforms, Reply("Which?", ALIKE))
    (sent,) = platforms.sent
    assert [button["data"] for button in sent["buttons"]] == ["1", "2"]
    assert len({button["label"] for button in sent["buttons"]}) == 2


def test_labels_with_the_same_first_24_characters_are_numbered(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 1.3: two or three choices are also all named in the text."""
    labels = ["The same 24 letters at the start, a", "The same 24 letters at the start, b"]
    send(media, platforms, Reply("Which?", tuple(Button(label, label[-1]) for label in labels)))
    assert platforms.sent[0]["text"] == f"Which?\n\n1. {labels[0]}\n2. {labels[1]}"
    assert platforms.calls == []


def test_refused_choices_are_numbered_and_a_question_is_not(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 1.4, pains.md 1: a question already says what to type; other choices are on their buttons alone."""
    yes_no = (Button("Yes", "y", "primary"), Button("No", "n", "danger"))
    for buttons in (choices(2), yes_no, (Button("Undo", "u"),)):
        platforms.script("twilio", "63013")
        send(media, platforms, Reply("Which?", buttons))
    assert [entry["text"] for entry in platforms.sent] == [
        "Which?\n\n1. Choice 1\n2. Choice 2",
        "Which?",
        "Which?",
    ]


def test_refused_values_make_no_further_content(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.3: a Content is permanent, so a refused message makes no second one of its shape."""
    notebook = MemorySharedCache()
    for _ in range(3):
        platforms.script("twilio", "63013")
        send(media, platforms, Reply("Which?", choices(2)), cache=notebook)
    assert [call["method"] for call in platforms.calls] == ["content"]


LONG = st.builds(
    lambda unit, count: (unit * count)[:100_000], MARKDOWN | WORDS, st.integers(1, 5000)
).filter(str.strip)
BUTTONS = st.sampled_from(
    [(), choices(2), choices(4), choices(10, "*_`{}`_* and more than 24"), choices(11)]
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(LONG, BUTTONS)
@example(("**bold `x`* [a](https://x.y/_z_) 👍🏽\n\n- ~~" * 3000)[:100_000], choices(2))
@example("```py\n" + "x = [1]\n" * 12_000, choices(10))
@example("*" * 100_000, ())
@example(
    "**<!--~~~py\n1. [a](https://x.y/_z_)<https://](https://x.y [[a](https://x.y/_z_)# " * 30, ()
)
def test_any_text_arrives_whole_and_within_the_limits(md: str, buttons: tuple[Button, ...]):
    """platforms.md 1.3: a piece has 1,600 characters, or 1,024 beside buttons, also once these are refused.

    A list that repeats one number keeps the numbers that it is shown with.
    """
    pieces = pieces_of(Reply(md, buttons), LINKS)
    for piece in pieces:
        assert 0 < length(piece.text) <= (BUTTONS_LIMIT if piece.buttons else TEXT_LIMIT)
        assert length(text_of(piece)) <= TEXT_LIMIT
    rest = iter("".join(piece.text for piece in pieces))
    shown = md if len(pieces) == 1 else with_shown_numbers(md)
    assert all(char in rest for char in shown if not char.isspace())
    assert [piece.buttons for piece in pieces[:-1]] == [()] * (len(pieces) - 1)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.sampled_from(["word", "Wort,", "слово", "👍🏽", "字", "x" * 300]), min_size=1, max_size=8
    ),
    st.integers(1, 9000),
)
def test_joined_pieces_are_the_plain_text(words: list[str], count: int):
    """platforms.md 1.3: the messages joined are the original text."""
    md = " ".join(words * count)[:100_000].strip()
    pieces = pieces_of(Reply(md), LINKS)
    assert "".join(piece.text for piece in pieces) == md
    assert "".join("".join(whatsapp_text(piece.text) for piece in pieces).split()) == "".join(
        plain(md).split()
    )
