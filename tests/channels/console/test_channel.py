"""ConsoleChannel: which requests it accepts, and which entries it adds to the feed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.channels.base import BadHook, Forbidden, Unreachable
from sayso.channels.console.adapter import MAX_PIECE_CHARS, ConsoleChannel
from sayso.channels.console.store import MAX_ENTRIES
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import (
    Button,
    Conversation,
    Delivery,
    Media,
    Reply,
    Tap,
    ToolStep,
    Turn,
    WebhookRequest,
)
from sayso.workers.replies import replace_draft
from tests.channels.parts import console_channel
from tests.memory_stores import MemoryFeed

from .echo import DownFeed

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 32


def hook(channel: ConsoleChannel, body: Any, **headers: str) -> WebhookRequest:
    """Return what the page posts, with a valid session unless `headers` replace it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    session = f"{channel.sessions.cookie}={channel.sessions.new_identity()}"
    given = {"cookie": session, "x-sayso-console": "1", "host": "localhost:8000"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    return WebhookRequest("https://bot.example/hooks/web", given, raw)


@pytest.fixture
def deliver(channel: ConsoleChannel, conversation: Conversation):
    """Send a reply and return the entry as stored."""

    def send(reply: Reply) -> dict[str, Any]:
        asyncio.run(channel.send(Delivery("d1", conversation, reply)))
        return channel.feed.read(conversation.id, "", 0)[-1][1]

    return send


def test_request_without_a_session_is_forbidden(channel: ConsoleChannel):
    """A request needs the cookie that our page set."""
    with pytest.raises(Forbidden, match="session"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, cookie=""))


def test_forged_session_is_forbidden(channel: ConsoleChannel):
    """A user id without our signature opens no session."""
    with pytest.raises(Forbidden, match="session"):
        channel.receive(
            hook(channel, {"id": "1", "text": "hi"}, cookie=f"{channel.sessions.cookie}=admin")
        )


def test_cookie_that_is_not_text_is_forbidden(channel: ConsoleChannel):
    """Unreadable bytes in a cookie raise Forbidden and no other error."""
    with pytest.raises(Forbidden):
        channel.receive(
            hook(channel, {"id": "1", "text": "hi"}, cookie=f"{channel.sessions.cookie}=\xaa\xff")
        )


def test_session_of_another_console_is_forbidden(
    channel: ConsoleChannel, feed: MemoryFeed, media: LocalMediaStore
):
    """A cookie of one console channel opens no other."""
    other = console_channel("other", feed=feed, media=media, keys=["console-test-key"])
    with pytest.raises(Forbidden, match="session"):
        channel.receive(
            hook(
                channel,
                {"id": "1", "text": "hi"},
                cookie=f"{channel.sessions.cookie}={other.sessions.new_identity()}",
            )
        )


def test_changing_the_password_ends_every_session(feed: MemoryFeed, media: LocalMediaStore):
    """A session from before the change names no user any more."""
    old, new = (
        console_channel("web", feed=feed, media=media, keys=["k"], password=word)
        for word in ("old", "new")
    )
    assert new.sessions.user_of(old.sessions.new_identity()) == ""


def test_post_without_our_header_is_forbidden(channel: ConsoleChannel):
    """Another site's form sends cookies but cannot set headers."""
    with pytest.raises(Forbidden, match="x-sayso-console"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, x_sayso_console=""))


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:9999", "localhost:8000.evil.example"],
)
def test_request_of_another_origin_is_forbidden(channel: ConsoleChannel, origin: str):
    """The post of another page is refused even with our cookie and header."""
    with pytest.raises(Forbidden, match="origin"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, origin=origin))


def test_null_origin_is_forbidden_without_a_host(channel: ConsoleChannel):
    """A sandboxed page sends "null", which matches no host, not even an empty one."""
    with pytest.raises(Forbidden, match="origin"):
        channel.receive(hook(channel, {"id": "1", "text": "hi"}, origin="null", host=""))


@pytest.mark.parametrize("origin", ["http://localhost:8000", "https://bot.example"])
def test_request_of_our_own_origin_is_accepted(channel: ConsoleChannel, origin: str):
    """Our origin is the address in the Host header, or the public address behind a proxy."""
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
        {"id": "1", "form": {"a": "b"}},
        {"id": "1", "form": {"a": 1}, "tap": "x"},
        {"id": "1", "form": [], "tap": "x"},
        {"id": "1", "form": {"a" * 256: "b"}, "tap": "x"},
        {"id": "1", "form": dict.fromkeys(map(str, range(101)), ""), "tap": "x"},
        {"id": "1", "form": {"a": "b"}, "tap": "x", "text": "yes"},
        {"id": "1", "tap": "x", "message": "+"},
    ],
)
def test_body_of_the_wrong_shape_is_a_bad_hook(channel: ConsoleChannel, body: Any):
    """The channel refuses any body but one text or one tap, and raises no other error."""
    with pytest.raises(BadHook):
        channel.receive(hook(channel, body))


def test_lone_surrogate_is_stored_as_a_question_mark(channel: ConsoleChannel):
    """JSON can spell what UTF-8 cannot encode, so the channel replaces it at once."""
    (turn,) = channel.receive(hook(channel, b'{"id": "1", "text": "a\\ud800"}')).turns
    assert turn.text == "a?"


def test_text_becomes_a_turn_of_the_user(channel: ConsoleChannel):
    """User, conversation and event id come from the session; the client names only the event."""
    session = channel.sessions.new_identity()
    user = channel.sessions.user_of(session)
    received = channel.receive(
        hook(
            channel,
            {"id": "e1", "text": "list invoices"},
            cookie=f"{channel.sessions.cookie}={session}",
        )
    )
    (turn,) = received.turns
    assert (turn.event_id, turn.user_id, turn.text) == ("e1", user, "list invoices")
    assert turn.conversation == Conversation("web", user)
    assert (received.answer.status, received.answer.body) == (200, '{"ok":true}')


def test_same_id_from_two_users_is_two_events(channel: ConsoleChannel):
    """A user cannot make another user's message look like a duplicate: an event is known in its conversation only."""
    turns = [channel.receive(hook(channel, {"id": "e1", "text": "hi"})).turns[0] for _ in range(2)]
    assert len({(turn.conversation.id, turn.event_id) for turn in turns}) == 2


def test_tap_carries_the_data_of_its_button(channel: ConsoleChannel):
    """The data arrives as the question contained it."""
    (turn,) = channel.receive(hook(channel, {"id": "e1", "tap": "c:abc"})).turns
    assert (turn.tap, turn.text) == (Tap("c:abc", callback_id="e1"), "")


def test_form_names_its_question_and_its_values(channel: ConsoleChannel):
    """It decides nothing by itself."""
    body = {"id": "e1", "form": {"quantity": "2", "note": ""}, "tap": "e:abc", "message": "17-2"}
    (turn,) = channel.receive(hook(channel, body)).turns
    assert (turn.kind, turn.form, turn.message_id) == (
        "form",
        {"quantity": "2", "note": ""},
        "17-2",
    )
    assert (turn.tap, turn.decides) == (Tap("e:abc", callback_id="e1"), False)


def test_tap_names_its_message(channel: ConsoleChannel):
    """The answer can then replace that message."""
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
def test_first_language_of_the_browser_is_a_hint(
    channel: ConsoleChannel, header: str, language: str
):
    """A client can send any header, so a value that is no language tag gives no hint."""
    (turn,) = channel.receive(
        hook(channel, {"id": "e1", "text": "hi"}, accept_language=header)
    ).turns
    assert turn.language == language


def test_retired_key_still_opens_its_sessions(feed: MemoryFeed, media: LocalMediaStore):
    """The first key signs, and all keys verify."""
    before = console_channel("web", feed=feed, media=media, keys=["old"])
    after = console_channel("web", feed=feed, media=media, keys=["new", "old"])
    assert after.sessions.user_of(before.sessions.new_identity())
    assert not before.sessions.user_of(after.sessions.new_identity())


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
    """The HTML of a reply has no script, handler or image, and links only to the web, mail and phones."""
    html = deliver(Reply(hostile))["html"].lower()
    assert not any(f"<{tag}" in html for tag in ("script", "img", "iframe"))
    assert not any(f'href="{scheme}' in html for scheme in ("javascript", "data", "/", "ftp"))
    assert " onmouseover=" not in html.replace("&quot; onmouseover", "")


def test_link_opens_in_a_new_page_without_access_to_ours(deliver):
    """A link has rel="noopener" and shows its address."""
    html = deliver(Reply("[site](https://ok.example)"))["html"]
    assert (
        '<a href="https://ok.example" rel="noopener" target="_blank">site</a> (https://ok.example)'
        in html
    )


def test_tables_come_without_style_attributes(deliver):
    """Our Content-Security-Policy forbids inline styles, so alignment is a class."""
    html = deliver(Reply("| a | b |\n|--|--:|\n| 1 | 2 |"))["html"]
    assert '<td class="right">2</td>' in html
    assert "style=" not in html


def test_bubble_holds_text_and_buttons(deliver, question: Reply):
    """The entry has all that the page needs, and the delivery id that removes duplicates."""
    entry = deliver(question)
    assert (entry["type"], entry["delivery"], entry["text"]) == ("bubble", "d1", "Delete INV-42?")
    assert entry["buttons"][0] == {"label": "Delete INV-42", "data": "c:1", "style": "danger"}
    assert entry["media"] is None


def test_media_link_is_made_when_an_entry_is_shown(
    channel: ConsoleChannel, conversation: Conversation, tmp_path: Path
):
    """Links expire within the hour and a feed lives for days, so the feed stores the reference."""
    now = [1000.0]
    store = LocalMediaStore(
        tmp_path, keys=["k"], public_url="https://bot.example", clock=lambda: now[0]
    )
    channel = console_channel("web", feed=MemoryFeed(), media=store, keys=["k"])
    media = store.put(PNG, mime_type="image/png", filename="chart.png")
    asyncio.run(channel.send(Delivery("d1", conversation, Reply("Chart", media=media))))
    now[0] += 100_000
    ((_, entry),) = channel.entries(conversation, "")
    assert entry["media"]["url"].startswith("/media/")
    assert store.open_token(entry["media"]["url"].removeprefix("/media/"))[2:] == (
        "image/png",
        "chart.png",
    )


def test_typing_adds_the_text_of_the_user_first(
    channel: ConsoleChannel, conversation: Conversation
):
    """After a reload, the page still shows the user's own bubbles."""
    turn = Turn("u1:e1", conversation, "u1", text="hi", message_id="e1")
    asyncio.run(channel.show_typing(turn))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert entries == [{"type": "user", "event": "e1", "text": "hi"}]


def test_typing_after_a_tap_adds_the_tapped_button(
    channel: ConsoleChannel, conversation: Conversation
):
    """After a reload, the page still shows the chosen button."""
    asyncio.run(
        channel.show_typing(
            Turn("u1:e1", conversation, "u1", tap=Tap("c:1", "e1"), message_id="1-0")
        )
    )
    assert channel.feed.read(conversation.id, "", 0)[0][1] == {
        "type": "tap",
        "event": "e1",
        "data": "c:1",
    }


def test_turn_in_which_the_agent_goes_on_shows_no_message_of_its_person(
    channel: ConsoleChannel, conversation: Conversation
):
    """The person wrote nothing more: an empty bubble would stand below the outcome of their tap."""
    going_on = Turn(
        "after:a1", conversation, "u1", message_id="1-0", kind="continuation", continues="a1"
    )
    asyncio.run(channel.show_typing(going_on))
    assert channel.feed.read(conversation.id, "", 0) == []


def test_tool_calls_after_a_decision_are_an_entry_of_their_own(
    channel: ConsoleChannel, conversation: Conversation
):
    """They stand below the outcome, and the call that was confirmed stays above it."""
    decided = Turn("u1:m1", conversation, "u1", text="yes", message_id="m1")
    going_on = Turn(
        "after:a1", conversation, "u1", message_id="m1", kind="continuation", continues="a1"
    )
    asyncio.run(channel.show_steps(decided, [ToolStep("refund", "done")]))
    asyncio.run(channel.show_steps(going_on, [ToolStep("mail", "waits")]))
    events = [entry["event"] for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert events == ["m1", "after:a1"]


def test_drafts_displace_no_entry_of_the_feed(channel: ConsoleChannel, conversation: Conversation):
    """The feed holds the last draft of a growing answer, and none beside the answer."""
    turn, shown = Turn("u1:e1", conversation, "u1", text="hi"), ""
    asyncio.run(channel.send(Delivery("d0", conversation, Reply("said before"))))
    for length in range(MAX_ENTRIES + 10):
        shown = asyncio.run(channel.draft(turn, "word " * length, shown))
    kinds = [entry["type"] for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert kinds == ["bubble", "draft"]
    asyncio.run(channel.send(Delivery("d1", conversation, Reply("all of it", edits=shown))))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert [(entry["type"], entry["text"]) for entry in entries] == [
        ("bubble", "said before"),
        ("bubble", "all of it"),
    ]


def test_tool_calls_are_one_entry_of_their_turn(
    channel: ConsoleChannel,
    conversation: Conversation,
):
    """The newest state replaces the last one.

    There are no arguments, and no invisible characters of a name.
    """
    tapped = Turn("u1:e1", conversation, "u1", tap=Tap("c:1", "e1"), message_id="1-0")
    shown = asyncio.run(channel.show_steps(tapped, [ToolStep("lo\u202eok", "running", 0.5)]))
    asyncio.run(channel.show_steps(tapped, [ToolStep("look", "done", 1.23456)], shown))
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert entries == [
        {
            "type": "steps",
            "event": "e1",
            "steps": [{"name": "look", "state": "done", "seconds": 1.235}],
        }
    ]


def test_tool_calls_can_be_hidden(
    media: LocalMediaStore,
    feed: MemoryFeed,
    conversation: Conversation,
):
    """A bot for customers may not want to name its tools."""
    channel = console_channel("web", feed=feed, media=media, keys=["k"], steps=False)
    turn = Turn("u1:e1", conversation, "u1", text="hi")
    assert asyncio.run(channel.show_steps(turn, [ToolStep("look", "running")])) == ""
    assert feed.read(conversation.id, "", 0) == []


def test_draft_of_a_stopped_answer_is_removed(channel: ConsoleChannel, conversation: Conversation):
    """Nothing of it stays in the feed, and no empty bubble replaces it.

    Sending it twice changes nothing.
    """
    shown = asyncio.run(channel.draft(Turn("u1:e1", conversation, "u1", text="hi"), "gro"))
    (removal,) = replace_draft(shown, ())
    for piece in channel.split(removal.reply) * 2:
        asyncio.run(channel.send(Delivery("d1", conversation, piece)))
    assert [entry["type"] for _, entry in channel.feed.read(conversation.id, "", 0)] == ["removed"]


def test_answer_sent_twice_after_its_draft_has_one_delivery_id(
    channel: ConsoleChannel, conversation: Conversation
):
    """The first attempt replaced the draft, and the page shows each delivery once."""
    shown = asyncio.run(channel.draft(Turn("u1:e1", conversation, "u1", text="hi"), "gro"))
    for attempt in (1, 2):
        asyncio.run(
            channel.send(Delivery("d1", conversation, Reply("grown", edits=shown), attempt))
        )
    entries = [entry for _, entry in channel.feed.read(conversation.id, "", 0)]
    assert [(entry["type"], entry["delivery"]) for entry in entries] == [("bubble", "d1")] * 2


def test_unavailable_feed_makes_sending_unreachable(
    media: LocalMediaStore, conversation: Conversation
):
    """The outbox tries again, and the page shows a delivery id once."""
    channel = console_channel("web", feed=DownFeed(), media=media, keys=["k"])
    with pytest.raises(Unreachable):
        asyncio.run(channel.send(Delivery("d1", conversation, Reply("hi"))))
    with pytest.raises(Unreachable):
        asyncio.run(channel.send(Delivery("d1", conversation, Reply("hi", edits="1-0"))))
    with pytest.raises(Unreachable):
        asyncio.run(channel.draft(Turn("u1:e1", conversation, "u1", text="hi"), "gro"))


def test_typing_never_raises(media: LocalMediaStore, conversation: Conversation):
    """The turn runs without its typing indicator."""
    channel = console_channel("web", feed=DownFeed(), media=media, keys=["k"])
    asyncio.run(channel.show_typing(Turn("u1:e1", conversation, "u1", text="hi")))


@pytest.mark.parametrize(
    "text",
    ["word " * 10_000, "x" * 40_000, "line\n" * 9_000, "a" * MAX_PIECE_CHARS + "\n\n" + "b", ""],
)
def test_pieces_lose_no_character(channel: ConsoleChannel, text: str):
    """The pieces joined make the whole text, each within the limit."""
    pieces = channel.split(Reply(text))
    assert "".join(piece.text for piece in pieces) == text
    assert all(len(piece.text) <= MAX_PIECE_CHARS for piece in pieces)


def test_caption_stays_with_its_file(channel: ConsoleChannel):
    """Text, file and buttons are one bubble."""
    reply = Reply("Chart", (Button("OK", "1"),), Media("0" * 64, "image/png", stored=True))
    assert channel.split(reply) == (reply,)


def test_long_text_has_its_buttons_at_the_end(channel: ConsoleChannel, question: Reply):
    """The file comes first, and the buttons come under the last piece."""
    media = Media("0" * 64, "image/png", stored=True)
    first, last = channel.split(Reply("x" * 20_000, question.buttons, media))
    assert (first.media, first.buttons, last.media, last.buttons) == (
        media,
        (),
        None,
        question.buttons,
    )


def test_channel_without_keys_cannot_be_built(feed: MemoryFeed, media: LocalMediaStore):
    """The channel has no mode with unsigned sessions."""
    with pytest.raises(ValueError, match="keys is empty"):
        console_channel("web", feed=feed, media=media, keys=[])
