"""ConsoleChannel: what it lets in, and what it puts in the feed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.channels.base import BadHook, Forbidden, Unreachable
from sayso.channels.console.adapter import MAX_PIECE_CHARS, ConsoleChannel
from sayso.channels.console.store import KEPT_ENTRIES
from sayso.channels.storage.media import LocalMediaStore
from sayso.channels.types import Button, Conversation, Delivery, Media, Reply, Tap, Turn, WebhookRequest
from sayso.testing.stores import MemoryFeed
from tests.channels.parts import console_channel

from .echo import DownFeed

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 32


def hook(channel: ConsoleChannel, body: Any, **headers: str) -> WebhookRequest:
    """What the page posts, with a valid session unless `headers` say otherwise."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    session = f"{channel.cookie}={channel.new_session()}"
    given = {"cookie": session, "x-sayso-console": "1", "host": "localhost:8000"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return WebhookRequest("https://bot.example/hooks/web", given, raw)


@pytest.fixture
def deliver(channel: ConsoleChannel, conversation: Conversation):
    """Send a reply; the entry as stored."""

    def send(reply: Reply) -> dict[str, Any]:
        asyncio.run(channel.send(Delivery("d1", conversation, reply)))
        return channel.feed.read(conversation.id, "", 0)[-1][1]

    return send


def test_no_session_is_forbidden(channel: ConsoleChannel):
    """Nobody acts without the cookie that our page set."""
    with pytest.raises(Forbidden, match="session"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, cookie=""))


def test_a_forged_session_is_forbidden(channel: ConsoleChannel):
    """A user id without our signature is nobody's."""
    with pytest.raises(Forbidden, match="session"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, cookie=f"{channel.cookie}=admin"))


def test_cookie_that_is_no_text_is_refused(channel: ConsoleChannel):
    """Bytes that nobody can read are a stranger's: forbidden, not an error."""
    with pytest.raises(Forbidden):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, cookie=f"{channel.cookie}=\xaa\xff"))


def test_a_session_of_another_console_is_forbidden(channel: ConsoleChannel, feed: MemoryFeed, media: LocalMediaStore):
    """A cookie moved from one console channel to another opens nothing."""
    other = console_channel("other", feed=feed, media=media, keys=["console-test-key"])
    with pytest.raises(Forbidden, match="session"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, cookie=f"{channel.cookie}={other.new_session()}"))


def test_changing_the_password_ends_every_session(feed: MemoryFeed, media: LocalMediaStore):
    """Whoever knew the old password is out."""
    old, new = (console_channel("web", feed=feed, media=media, keys=["k"], password=word) for word in ("old", "new"))
    assert new.user_of(old.new_session()) == ""


def test_a_post_without_our_header_is_forbidden(channel: ConsoleChannel):
    """Another site's form sends cookies but cannot set headers."""
    with pytest.raises(Forbidden, match="x-sayso-console"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, x_sayso_console=""))


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:9999", "localhost:8000.evil.example"]
)
def test_another_origin_is_forbidden(channel: ConsoleChannel, origin: str):
    """What another page posts is refused even with our cookie and header."""
    with pytest.raises(Forbidden, match="origin"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, origin=origin))


def test_no_origin_is_that_of_a_request_without_a_host(channel: ConsoleChannel):
    """A page in a sandbox says "null", which is nobody's address."""
    with pytest.raises(Forbidden, match="origin"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, origin="null", host=""))


@pytest.mark.parametrize("origin", ["http://localhost:8000", "https://bot.example"])
def test_our_own_origin_is_welcome(channel: ConsoleChannel, origin: str):
    """The address in the Host header counts, and so does the public address behind a proxy."""
    assert channel.receive(hook(channel, {"id": "1", "text": "hi"}, origin=origin)).turns


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[" * 60_000,
        b'"' + b"x" * 70_000 + b'"',
        [],
        "text",
        None,
        {},
        {"text": "no id"},
        {"id": "1"},
        {"id": 1, "text": "hi"},
        {"id": "", "text": "hi"},
        {"id": "x" * 65, "text": "hi"},
        {"id": "a:b", "text": "hi"},
        {"id": "a\n", "text": "hi"},
        {"id": "1", "text": 5},
        {"id": "1", "text": ""},
        {"id": "1", "text": " \n"},
        {"id": "1", "text": "x" * 4001},
        {"id": "1", "tap": ""},
        {"id": "1", "tap": {"data": "x"}},
        {"id": "1", "tap": "é" * 33},
        {"id": "1", "text": "hi", "tap": "x"},
        {"id": "1", "text": None, "tap": "x"},
        {"id": "1", "tap": "x", "message": 5},
        {"id": "1", "tap": "x", "message": "+"},
    ],
)
def test_a_body_of_the_wrong_shape_is_a_bad_hook(channel: ConsoleChannel, body: Any):
    """Anything but one text or one tap is refused, and crashes nothing."""
    with pytest.raises(BadHook):
        channel.receive(hook(channel, body))


def test_half_a_character_is_stored_as_a_question_mark(channel: ConsoleChannel):
    """JSON can spell what UTF-8 cannot; nothing behind us has to meet it."""
    (turn,) = channel.receive(hook(channel, b'{"id": "1", "text": "a\\ud800"}')).turns
    assert turn.text == "a?"


def test_a_text_becomes_the_users_own_turn(channel: ConsoleChannel):
    """User, conversation and event id all come from the session; the client names only the event."""
    session = channel.new_session()
    user = channel.user_of(session)
    received = channel.receive(
        hook(channel, {"id": "e1", "text": "list invoices"}, cookie=f"{channel.cookie}={session}")
    )
    (turn,) = received.turns
    assert (turn.event_id, turn.user_id, turn.text) == (f"{user}:e1", user, "list invoices")
    assert turn.conversation == Conversation("web", user)
    assert (received.answer.status, received.answer.body) == (200, '{"ok":true}')


def test_the_same_id_from_two_users_is_two_events(channel: ConsoleChannel):
    """Nobody can make somebody else's message look like a duplicate."""
    events = {channel.receive(hook(channel, {"id": "e1", "text": "hi"})).turns[0].event_id for _ in range(2)}
    assert len(events) == 2


def test_a_tap_carries_the_buttons_data(channel: ConsoleChannel):
    """The data comes back as it was minted."""
    (turn,) = channel.receive(hook(channel, {"id": "e1", "tap": "c:abc"})).turns
    assert (turn.tap, turn.text) == (Tap("c:abc", callback_id="e1"), "")


def test_a_tap_names_the_message_it_was_on(channel: ConsoleChannel):
    """So that the answer can take its place."""
    (turn,) = channel.receive(hook(channel, {"id": "e1", "tap": "c:abc", "message": "17-2"})).turns
    assert turn.message_id == "17-2"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("pt-BR,pt;q=0.9,en;q=0.8", "pt-BR"),
        ("de;q=0.7", "de"),
        (" fr , en", "fr"),
        ("*", ""),
        ("", ""),
        ("<script>", ""),
        ("," * 100_000, ""),
    ],
)
def test_the_browsers_first_language_is_a_hint(channel: ConsoleChannel, header: str, language: str):
    """Of any shape, since anybody can send it."""
    (turn,) = channel.receive(hook(channel, {"id": "e1", "text": "hi"}, accept_language=header)).turns
    assert turn.language == language


def test_a_retired_key_still_opens_its_sessions(feed: MemoryFeed, media: LocalMediaStore):
    """The first key signs, all keys verify."""
    before = console_channel("web", feed=feed, media=media, keys=["old"])
    after = console_channel("web", feed=feed, media=media, keys=["new", "old"])
    assert after.user_of(before.new_session())
    assert not before.user_of(after.new_session())


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](java&#115;cript:alert(1))",
        "[x](data:text/html,<b>)",
        "[x](/hooks/web)",
        "[x](//evil.example)",
        "[x](ftp://evil.example)",
        "![x](https://evil.example/pixel.png)",
        '[x](https://ok.example "\\" onmouseover=alert(1)")',
        "<javascript:alert(1)>",
    ],
)
def test_hostile_markdown_is_harmless(deliver, hostile: str):
    """No tag, handler, image or link to anything but the web, mail and phones comes out of a bot's text."""
    html = deliver(Reply(hostile))["html"].lower()
    assert not any(f"<{tag}" in html for tag in ("script", "img", "iframe"))
    assert not any(f'href="{scheme}' in html for scheme in ("javascript", "data", "/", "ftp"))
    assert " onmouseover=" not in html.replace("&quot; onmouseover", "")


def test_links_open_elsewhere_and_learn_nothing(deliver):
    """A link never gets a handle on our page."""
    html = deliver(Reply("[site](https://ok.example)"))["html"]
    assert '<a href="https://ok.example" rel="noopener" target="_blank">site</a> (https://ok.example)' in html


def test_tables_come_without_style_attributes(deliver):
    """Our Content-Security-Policy forbids inline styles: alignment is a class."""
    html = deliver(Reply("| a | b |\n|--|--:|\n| 1 | 2 |"))["html"]
    assert '<td class="right">2</td>' in html
    assert "style=" not in html


def test_a_bubble_holds_text_and_buttons(deliver, question: Reply):
    """Everything the page needs, and the delivery id that it de-duplicates by."""
    entry = deliver(question)
    assert (entry["type"], entry["delivery"], entry["text"]) == ("bubble", "d1", "Delete INV-42?")
    assert entry["buttons"][0] == {"label": "Delete INV-42", "data": "c:1", "style": "danger"}
    assert entry["media"] is None


def test_a_link_is_made_when_the_entry_is_shown(channel: ConsoleChannel, conversation: Conversation, tmp_path: Path):
    """Links die within the hour, a feed lives for days: what is stored is the reference."""
    now = [1000.0]
    store = LocalMediaStore(tmp_path, keys=["k"], public_url="https://bot.example", clock=lambda: now[0])
    channel = console_channel("web", feed=MemoryFeed(), media=store, keys=["k"])
    media = store.put(PNG, mime_type="image/png", filename="chart.png")
    asyncio.run(channel.send(Delivery("d1", conversation, Reply("Chart", media=media))))
    now[0] += 100_000
    ((_, entry),) = channel.entries(conversation.chat, "")
    assert entry["media"]["url"].startswith("/media/")
    assert store.open_token(entry["media"]["url"].removeprefix("/media/"))[1:] == ("image/png", "chart.png")


def test_attending_shows_the_users_words_before_typing(channel: ConsoleChannel, conversation: Conversation):
    """After a reload, the user's own bubbles are there."""
    turn = Turn("u1:e1", conversation, "u1", text="hi", message_id="e1")
    asyncio.run(channel.show_typing(turn))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert entries == [{"type": "user", "event": "e1", "text": "hi"}, {"type": "typing"}]


def test_attending_a_tap_tells_which_button(channel: ConsoleChannel, conversation: Conversation):
    """After a reload, the page knows which button was chosen."""
    asyncio.run(channel.show_typing(Turn("u1:e1", conversation, "u1", tap=Tap("c:1", "e1"), message_id="1-0")))
    assert channel.feed.read(conversation.id, "", 0)[0][1] == {"type": "tap", "event": "e1", "data": "c:1"}


def test_drafts_push_nothing_out_of_the_feed(channel: ConsoleChannel, conversation: Conversation):
    """However long an answer grows, the feed holds its last draft, and none beside the answer."""
    turn, shown = Turn("u1:e1", conversation, "u1", text="hi"), ""
    asyncio.run(channel.send(Delivery("d0", conversation, Reply("said before"))))
    for length in range(KEPT_ENTRIES + 10):
        shown = asyncio.run(channel.draft(turn, "word " * length, shown))
    kinds = [entry["type"] for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert kinds == ["bubble", "draft"]
    asyncio.run(channel.send(Delivery("d1", conversation, Reply("all of it", edits=shown))))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert [(entry["type"], entry["text"]) for entry in entries] == [("bubble", "said before"), ("bubble", "all of it")]


def test_an_answer_sent_again_behind_its_draft_is_one_bubble(channel: ConsoleChannel, conversation: Conversation):
    """The draft is gone by then, and the page shows each delivery once."""
    shown = asyncio.run(channel.draft(Turn("u1:e1", conversation, "u1", text="hi"), "gro"))
    for attempt in (1, 2):
        asyncio.run(channel.send(Delivery("d1", conversation, Reply("grown", edits=shown), attempt)))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert [(entry["type"], entry["delivery"]) for entry in entries] == [("bubble", "d1")] * 2


def test_a_feed_that_is_away_makes_sending_unreachable(media: LocalMediaStore, conversation: Conversation):
    """The outbox tries again; the page shows a delivery id once."""
    channel = console_channel("web", feed=DownFeed(), media=media, keys=["k"])
    with pytest.raises(Unreachable):
        asyncio.run(channel.send(Delivery("d1", conversation, Reply("hi"))))
    with pytest.raises(Unreachable):
        asyncio.run(channel.send(Delivery("d1", conversation, Reply("hi", edits="1-0"))))
    with pytest.raises(Unreachable):
        asyncio.run(channel.draft(Turn("u1:e1", conversation, "u1", text="hi"), "gro"))


def test_attending_never_raises(media: LocalMediaStore, conversation: Conversation):
    """Typing dots are a courtesy: without them the turn still runs."""
    channel = console_channel("web", feed=DownFeed(), media=media, keys=["k"])
    asyncio.run(channel.show_typing(Turn("u1:e1", conversation, "u1", text="hi")))


@pytest.mark.parametrize(
    "text", ["word " * 10_000, "x" * 40_000, "line\n" * 9_000, "a" * MAX_PIECE_CHARS + "\n\n" + "b", ""]
)
def test_pieces_lose_no_character(channel: ConsoleChannel, text: str):
    """The parts make the whole, each within the limit."""
    pieces = channel.split(Reply(text))
    assert "".join(piece.text for piece in pieces) == text
    assert all(len(piece.text) <= MAX_PIECE_CHARS for piece in pieces)


def test_a_caption_stays_with_its_file(channel: ConsoleChannel):
    """Text, file and buttons are one bubble."""
    reply = Reply("Chart", (Button("OK", "1"),), Media("0" * 64, "image/png", stored=True))
    assert channel.split(reply) == (reply,)


def test_a_long_text_asks_at_its_end(channel: ConsoleChannel, question: Reply):
    """The file leads, and the buttons come under the last words."""
    media = Media("0" * 64, "image/png", stored=True)
    first, last = channel.split(Reply("x" * 20_000, question.buttons, media))
    assert (first.media, first.buttons, last.media, last.buttons) == (media, (), None, question.buttons)


def test_a_channel_without_keys_cannot_be_built(feed: MemoryFeed, media: LocalMediaStore):
    """Unsigned sessions are never an option."""
    with pytest.raises(ValueError, match="keys is empty"):
        console_channel("web", feed=feed, media=media, keys=[])


def test_the_outcome_is_not_repeated_where_it_was_asked_for(channel: ConsoleChannel, conversation: Conversation):
    """The page shows the outcome in the next message: the question keeps its preview, and what was chosen."""
    text = "Delete INV-42\n\n✅ INV-42 is deleted."
    (piece,) = channel.split(Reply(text, outcome_elsewhere="Delete INV-42\n\n✅ Confirm"))
    assert piece.text == "Delete INV-42\n\n✅ Confirm"
