"""Rich messages of Telegram (Bot API 10.1 to 10.3), as the model reads them."""

from __future__ import annotations

import pytest

from sayso.channels.inbound_limits import MAX_MESSAGE_FILES
from sayso.channels.link_addresses import MAX_ADDRESSES
from sayso.channels.telegram.rich_incoming import MAX_CHARS, MAX_DEPTH, TOO_DEEP
from sayso.channels.types import Media, Turn
from sayso.testing.platforms import webhooks as signing
from tests.channels.harness import MemoryMedia, telegram, telegram_hook

NOTE = "a message with rich formatting"


def read(media: MemoryMedia, update: dict, **settings: str) -> Turn:
    """Return the turn of one update."""
    (turn,) = telegram(media, None, **settings).receive(telegram_hook(update)).turns
    return turn


def paragraph(text: object) -> dict:
    """Return a block with a text."""
    return {"type": "paragraph", "text": text}


def cell(text: str, **extra: object) -> dict:
    """Return a cell of a table."""
    return {"text": text, "align": "left", "valign": "top", **extra}


def photo(file_id: str) -> dict:
    """Return a block with a photo."""
    size = {
        "file_id": file_id,
        "file_unique_id": f"u-{file_id}",
        "width": 9,
        "height": 9,
        "file_size": 7,
    }
    return {"type": "photo", "photo": [size]}


def test_rich_yes_confirms_nothing(media: MemoryMedia):
    """Its words may be quoted, folded or struck out, so it is neither a yes nor /stop."""
    assert not read(media, signing.telegram_rich(1, paragraph("yes"))).decides
    assert not read(media, signing.telegram_rich(1, paragraph("/stop"))).is_stop


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            paragraph(["a ", {"type": "bold", "text": ["b", {"type": "italic", "text": "c"}]}]),
            "a bc",
        ),
        ({"type": "heading", "size": 2, "text": "Plan"}, "## Plan"),
        ({"type": "pre", "text": "a ``` b", "language": "py"}, "````py\na ``` b\n````"),
        ({"type": "footer", "text": "end"}, "end"),
        ({"type": "divider"}, "---"),
        ({"type": "mathematical_expression", "expression": "x^2"}, "$$x^2$$"),
        (
            {"type": "blockquote", "blocks": [paragraph("a"), paragraph("b")], "credit": "Ada"},
            "> a\n>\n> b\n> — Ada",
        ),
        ({"type": "expandable_blockquote", "text": "a\nb"}, "> a\n> b"),
        ({"type": "pullquote", "text": "a", "credit": "Ada"}, "> a\n> — Ada"),
        ({"type": "details", "summary": "More", "blocks": [paragraph("a")]}, "[details: More]\na"),
        (
            {
                "type": "map",
                "location": {"latitude": 1.5, "longitude": 2},
                "zoom": 3,
                "caption": {"text": "Home"},
            },
            "[map of 1.5,2] Home",
        ),
        (
            {
                "type": "buttons",
                "buttons": [{"text": "Go", "url": "https://e.org"}, {"text": "No"}],
            },
            "[button: Go (https://e.org)] [button: No]",
        ),
        ({"type": "anchor", "name": "top"}, ""),
        (paragraph({"type": "strikethrough", "text": "no"}), "~~no~~"),
        (paragraph(["10", {"type": "superscript", "text": "3"}]), "10^3"),
        (paragraph(["H", {"type": "subscript", "text": "2"}, "O"]), "H_2O"),
        (
            paragraph({"type": "url", "text": "site", "url": "https://e.org/1"}),
            "site (https://e.org/1)",
        ),
        (
            paragraph({"type": "custom_emoji", "custom_emoji_id": "1", "alternative_text": "👍"}),
            "👍",
        ),
        (paragraph({"type": "mathematical_expression", "expression": "a_1"}), "$a_1$"),
        (
            paragraph(
                {"type": "date_time", "text": "today", "unix_time": 1, "date_time_format": "d"}
            ),
            "today",
        ),
        (
            paragraph({"type": "button", "button": {"text": "Go", "callback_data": "x"}}),
            "[button: Go]",
        ),
    ],
)
def test_block_is_readable(media: MemoryMedia, block: dict, text: str):
    """What has a meaning stays, what is only a look goes."""
    turn = read(media, signing.telegram_rich(1, block))
    assert (turn.text, turn.notes, turn.media) == (text, (NOTE,), ())


def test_lists_in_lists_keep_their_numbers_and_marks(media: MemoryMedia):
    """The label is Telegram's; a bullet becomes Markdown's."""
    inner = {
        "type": "list",
        "items": [
            {"label": "☑", "has_checkbox": True, "is_checked": True, "blocks": [paragraph("milk")]},
            {"label": "☐", "has_checkbox": True, "blocks": [paragraph("bread")]},
        ],
    }
    outer = {
        "type": "list",
        "items": [
            {"label": "1.", "blocks": [paragraph("buy"), inner]},
            {"label": "b)", "blocks": [paragraph("go")]},
        ],
    }
    text = "1. buy\n  - [x] milk\n  - [ ] bread\nb) go"
    assert read(media, signing.telegram_rich(1, outer)).text == text


def test_table_keeps_its_columns(media: MemoryMedia):
    """A cell over several places leaves the others empty, and no cell ends its row."""
    table = {
        "type": "table",
        "caption": "Sales",
        "cells": [
            [cell("Name", is_header=True), cell("Sum", is_header=True, colspan=2)],
            [cell("a|b", rowspan=2), cell("1\n2"), cell("3")],
            [cell("4"), {"align": "left", "valign": "top"}],
        ],
    }
    lines = [
        "Sales",
        "| Name | Sum |  |",
        "| --- | --- | --- |",
        "| a\\|b | 1 2 | 3 |",
        "|  | 4 |  |",
    ]
    assert read(media, signing.telegram_rich(1, table)).text.split("\n") == lines


def test_files_inside_are_read_in_their_order(media: MemoryMedia):
    """Each stands in the text where people see it."""
    voice = {
        "type": "voice_note",
        "voice_note": {"file_id": "v", "duration": 1, "mime_type": "audio/ogg"},
    }
    document = {"file_id": "d", "file_name": "bill.pdf", "mime_type": "application/pdf"}
    slides = {
        "type": "slideshow",
        "blocks": [
            photo("p"),
            {"type": "document", "document": document, "caption": {"text": "Bill", "credit": "me"}},
        ],
    }
    turn = read(media, signing.telegram_rich(1, paragraph("see"), slides, voice))
    assert turn.text == "see\n\n[photo]\n\n[document] Bill — me\n\n[voice message]"
    assert turn.media == (
        Media("p", "image/jpeg", size=7),
        Media("d", "application/pdf", "bill.pdf"),
        Media("v", "audio/ogg"),
    )


def test_unknown_block_is_named_and_read_as_far_as_possible(media: MemoryMedia):
    """Telegram adds kinds of blocks and texts faster than bots learn them."""
    block = {"type": "hologram", "text": "seen", "blocks": [paragraph("inside")]}
    known = read(
        media,
        signing.telegram_rich(
            1, block, paragraph([{"type": "smell"}, {"type": "glow", "text": "x"}])
        ),
    )
    assert known.text == (
        "[a block of the kind 'hologram', which cannot be read here]\nseen\ninside\n\n"
        "[text of the kind 'smell', which cannot be read here]x"
    )


def test_what_is_read_is_bounded(media: MemoryMedia):
    """Depth, length, files and addresses."""
    deep = paragraph("bottom")
    for _ in range(200):
        deep = {"type": "blockquote", "blocks": [deep]}
    links = [
        {"type": "url", "text": "w", "url": f"https://e.org/{number}"}
        for number in range(MAX_ADDRESSES + 5)
    ]
    photos = [photo(str(number)) for number in range(MAX_MESSAGE_FILES + 2)]
    assert read(media, signing.telegram_rich(1, deep)).text == "> " * (MAX_DEPTH + 1) + TOO_DEEP
    assert (
        read(media, signing.telegram_rich(1, paragraph(links))).text.count("https://")
        == MAX_ADDRESSES
    )
    turn = read(media, signing.telegram_rich(1, *photos))
    assert (len(turn.media), turn.text.count("left out")) == (MAX_MESSAGE_FILES, 2)
    long = read(media, signing.telegram_rich(1, paragraph("x" * (MAX_CHARS + 7)))).text
    assert long == "x" * MAX_CHARS + "\n[7 more characters are left out]"


def test_bold_words_are_no_edit_and_new_words_are(media: MemoryMedia):
    """As for other messages, only what people read counts."""
    plain, bold, other = (
        read(media, signing.telegram_rich(1, paragraph(text), photo("a"), edit_date=1795204801))
        for text in ("pay 5", ["pay ", {"type": "bold", "text": "5"}], "pay 6")
    )
    assert (plain.content == bold.content, plain.content == other.content) == (True, False)


def test_edited_and_forwarded_rich_message_is_read(media: MemoryMedia):
    """With the notes of any other message."""
    origin = {"type": "hidden_user", "sender_user_name": "Bob", "date": 1}
    update = signing.telegram_rich(1, paragraph("a"), forward_origin=origin, edit_date=1795204801)
    turn = read(media, {"update_id": 2, "edited_message": update["message"]})
    assert (turn.kind, turn.text, turn.notes) == ("edit", "a", ("forwarded from Bob", NOTE))


def test_reply_quotes_the_rich_message(media: MemoryMedia):
    """A chosen part of it wins."""
    original = signing.telegram_rich(
        1, {"type": "heading", "size": 1, "text": "Plan"}, paragraph("a")
    )["message"]
    whole = signing.telegram_text(2, "why?", reply_to_message=original)
    part = signing.telegram_text(
        2, "why?", reply_to_message=original, quote={"text": "Plan", "position": 0}
    )
    assert (read(media, whole).quoted, read(media, part).quoted) == ("# Plan\n\na", "Plan")


def test_rich_message_in_a_group_addresses_the_bot(media: MemoryMedia):
    """By its name, which is no part of the words."""
    text = [{"type": "mention", "text": "@acme_bot", "username": "acme_bot"}, " look"]
    turn = read(
        media, signing.telegram_rich(1, paragraph(text), photo("p"), chat=-5), username="acme_bot"
    )
    assert (turn.addressed, turn.text) == (True, "look\n\n[photo]")


TASKS = [{"id": 1, "text": "milk", "completion_date": 1795204801}, {"id": 2, "text": "bread"}]


def test_checklist_is_read(media: MemoryMedia):
    """A mark of what is done is read, and is no edit of what was written."""
    checklist = {"title": "Buy", "tasks": TASKS}
    undone = {"title": "Buy", "tasks": [{"id": 1, "text": "milk"}, {"id": 2, "text": "bread"}]}
    turn, before = (
        read(media, signing.telegram_text(1, "", checklist=each)) for each in (checklist, undone)
    )
    assert turn.notes == ("checklist Buy: [x] milk; [ ] bread",)
    assert turn.content == before.content


def test_reply_to_a_task_quotes_the_task(media: MemoryMedia):
    """Without a task, the whole list."""
    original = signing.telegram_text(1, "", checklist={"title": "Buy", "tasks": TASKS})["message"]
    update = signing.telegram_text(2, "how much?", reply_to_message=original)
    assert read(media, update).quoted == "checklist Buy: [x] milk; [ ] bread"
    update["message"]["reply_to_checklist_task_id"] = 2
    assert read(media, update).quoted == "bread"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (
            {"game": {"title": "Chess", "description": "A classic", "photo": []}},
            "game Chess: A classic",
        ),
        (
            {
                "invoice": {
                    "title": "Tea",
                    "description": "Green",
                    "currency": "EUR",
                    "total_amount": 145,
                }
            },
            "invoice Tea: Green",
        ),
        (
            {"story": {"chat": {"id": 1, "type": "private"}, "id": 2}},
            "a story, which cannot be read here",
        ),
        (
            {"paid_media": {"star_count": 5, "paid_media": [{"type": "preview", "width": 9}]}},
            "paid media for 5 Stars, which cannot be read here",
        ),
        (
            {"giveaway": {"winner_count": 2, "prize_description": "tea", "chats": []}},
            "giveaway (winners: 2): tea",
        ),
        (
            {"giveaway_winners": {"winner_count": 1, "winners": [{"id": 1, "first_name": "Bob"}]}},
            "giveaway (winners: 1): Bob",
        ),
    ],
)
def test_other_content_is_noted(media: MemoryMedia, content: dict, note: str):
    """Only what a bot really does not get "cannot be read here"."""
    assert read(media, signing.telegram_text(1, "", **content)).notes == (note,)


def test_paid_media_that_the_bot_may_see_are_files(media: MemoryMedia):
    """Such as those that it sent itself."""
    paid = {
        "star_count": 5,
        "paid_media": [
            photo("a"),
            {"type": "video", "video": {"file_id": "b"}},
            {
                "type": "live_photo",
                "live_photo": {"file_id": "moving", "photo": [{"file_id": "c"}]},
            },
            {"type": "live_photo", "live_photo": {"file_id": "d"}},
        ],
    }
    turn = read(media, signing.telegram_text(1, "", paid_media=paid))
    assert [each.ref for each in turn.media] == ["a", "b", "c", "d"]
    assert turn.notes == ("paid media for 5 Stars",)


def test_live_photo_is_its_still_picture(media: MemoryMedia):
    """Telegram names both files, and models read pictures."""
    update = signing.telegram_photo(1, "still", "look", live_photo={"file_id": "moving"})
    assert [each.ref for each in read(media, update).media] == ["still"]


@pytest.mark.parametrize("field", ["business_connection_id", "guest_query_id"])
def test_message_to_another_account_is_no_turn(media: MemoryMedia, field: str):
    """Strangers who write to a person's own account must not become users of the bot."""
    update = signing.telegram_text(1, "yes", **{field: "x"})
    received = telegram(media, None).receive(telegram_hook(update))
    assert (received.turns, received.ignored) == (
        (),
        "sent to a person's own account, or to a guest bot",
    )
