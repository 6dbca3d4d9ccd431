"""Several conversations of one person: the list, and which conversation a request reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest
import redis

from sayso.channels.base import BadHook
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.store import (
    KEEP_SECONDS,
    MAX_CHATS,
    MAX_TITLE_CHARS,
    Chat,
    Chats,
    StoreDown,
    title_of,
)
from sayso.channels.types import Conversation, Delivery, Media, Reply, Turn
from tests.memory_stores import MemoryChats

from .echo import EchoApp, HangingFeed

POST = {"X-Sayso-Console": "1"}
FIRST = Conversation("web", "u1")
SECOND = Conversation("web", "u1", "00000000000000aa")


@pytest.fixture(params=["memory", "redis"])
def chats(request: pytest.FixtureRequest):
    """Yield each kind of list, on a clock that is one second later at each use."""
    clock: Callable[[], float] = count(1.0).__next__
    if request.param == "memory":
        yield MemoryChats(clock)
        return
    with redis.Redis(
        unix_socket_path=request.getfixturevalue("redis_socket"), decode_responses=True
    ) as client:
        client.flushall()
        yield Chats(client, "t:", clock)


def test_conversation_that_was_used_last_is_first(chats: Chats):
    """An unused one stands above all. No person sees those of others."""
    chats.note_use(FIRST, "delete INV-42")
    chats.add(SECOND)
    assert chats.all("web", "u1") == [Chat(SECOND.thread, "", 0.0), Chat("", "delete INV-42", 1.0)]
    chats.note_use(SECOND, "list invoices")
    chats.note_use(FIRST, "another title")
    assert chats.all("web", "u1") == [
        Chat("", "delete INV-42", 3.0),
        Chat(SECOND.thread, "list invoices", 2.0),
    ]
    assert chats.all("web", "u2") == chats.all("other", "u1") == []


def test_conversation_is_renamed_and_removed(chats: Chats):
    """What is said later changes no title.

    A removed one does not come back when its last answer arrives.
    """
    chats.add(SECOND)
    chats.rename("web", "u1", SECOND.thread, "Mine")
    chats.note_use(SECOND, "list invoices")
    assert [chat.title for chat in chats.all("web", "u1")] == ["Mine"]
    chats.remove("web", "u1", SECOND.thread)
    chats.note_use(SECOND, "late")
    assert chats.all("web", "u1") == []
    assert (chats.has("web", "u1", SECOND.thread), chats.has("web", "u1", "")) == (False, True)


def test_list_expires_with_its_conversations(redis_socket: str):
    """Each use renews the expiry."""
    with redis.Redis(unix_socket_path=redis_socket, decode_responses=True) as client:
        client.flushall()
        Chats(client, "t:").note_use(FIRST)
        (key,) = client.keys("t:*")
        assert KEEP_SECONDS - 5 <= client.ttl(key) <= KEEP_SECONDS


def test_unavailable_list_raises_store_down():
    """Callers handle one error, and not those of the client."""
    with pytest.raises(StoreDown, match="ConnectionError"):
        Chats(redis.Redis(unix_socket_path="/nonexistent/sock", retry=None), "t:").all("web", "u1")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("list\n  invoices", "list invoices"),
        ("\u202egnp.exe\x00", "gnp.exe"),
        ("<b>x</b>", "<b>x</b>"),
        ("word " * 40, ("word " * 40)[: MAX_TITLE_CHARS - 1].rstrip() + "…"),
    ],
)
def test_title_is_one_short_line(text: str, title: str):
    """It shows the first words. The page shows it as text."""
    assert title_of(text) == title


def test_first_words_of_a_person_become_the_title(
    channel: ConsoleChannel,
    conversation: Conversation,
):
    """A command is no title; a file gives its name; an answer counts as use of the conversation."""
    for text, media in (
        ("/help", ()),
        ("", (Media("r", "image/png", "dot.png"),)),
        ("what is it?", ()),
    ):
        asyncio.run(
            channel.show_typing(Turn("e", conversation, "u1", text, media=media, message_id="e"))
        )
    (before,) = channel.chats.all("web", "u1")
    asyncio.run(channel.send(Delivery("d", conversation, Reply("A dot."))))
    (after,) = channel.chats.all("web", "u1")
    assert (before.title, after.title, after.at > before.at) == ("dot.png", "dot.png", True)


def new_chat(browser) -> str:
    """Begin a conversation, and return its id."""
    return browser.post("/console/web/chats", json={"new": True}, headers=POST).json["id"]


def test_each_conversation_is_answered_by_itself(browser, echo: EchoApp, channel: ConsoleChannel):
    """Its turns have an address of their own, and so a history and questions of their own."""
    browser.post("/hooks/web", json={"id": "e1", "text": "first"}, headers=POST)
    chat = new_chat(browser)
    browser.post("/hooks/web", json={"id": "e2", "text": "second", "chat": chat}, headers=POST)
    first, second = (turn.conversation for turn in echo.turns)
    assert (first.chat, first.thread, second.thread) == (second.chat, "", chat)
    assert first.id != second.id
    shown = [browser.get(f"/console/web/older?chat={each}").json["entries"] for each in ("", chat)]
    assert [entries[0]["text"] for entries in shown] == ["first", "second"]
    assert "You said" in browser.get(f"/console/web/poll?chat={chat}").text
    assert [row["title"] for row in browser.get("/console/web/chats").json["chats"]] == [
        "second",
        "first",
    ]
    assert f'data-chat="{chat}"' in browser.get("/console").text  # the one that was used last
    assert 'data-chat=""' in browser.get("/console/web?chat=").text


def test_foreign_and_deleted_conversations_cannot_be_reached(
    browser,
    echo: EchoApp,
    channel: ConsoleChannel,
):
    """An id of another person, an invented one and a deleted one are all unknown."""
    other = echo.app.test_client()
    other.get("/console")
    foreign = new_chat(other)
    deleted = new_chat(browser)
    assert browser.post("/console/web/chats", json={"delete": deleted}, headers=POST).json == {
        "ok": True
    }
    for chat in (foreign, deleted, "0" * 16, "../x", "A" * 16):
        for path in ("older", "poll", "events", "waiting"):
            assert browser.get(f"/console/web/{path}?chat={chat}").status_code == 404
        assert browser.get(f"/console/web?chat={chat}").status_code == 303
        assert (
            browser.post(
                "/hooks/web", json={"id": "e", "text": "x", "chat": chat}, headers=POST
            ).status_code
            == 400
        )
        for change in ({"delete": chat}, {"rename": chat, "title": "x"}):
            assert browser.post("/console/web/chats", json=change, headers=POST).status_code == 404
    assert echo.turns == []


@pytest.mark.parametrize("chat", [1, None, ["x"], {"a": 1}])
def test_id_that_is_no_text_is_refused(browser, chat: object):
    """The page never sends one."""
    assert (
        browser.post(
            "/hooks/web", json={"id": "e", "text": "x", "chat": chat}, headers=POST
        ).status_code
        == 400
    )


@pytest.mark.parametrize(
    "change", [{}, {"new": False}, {"rename": "x"}, {"delete": 1}, [], "new", None]
)
def test_malformed_change_of_the_list_is_refused(browser, change: object):
    """It changes nothing."""
    assert browser.post("/console/web/chats", json=change, headers=POST).status_code == 400


def test_list_is_changed_by_the_page_alone(browser):
    """A form of another site has neither the header nor the origin."""
    assert browser.post("/console/web/chats", json={"new": True}).status_code == 403
    foreign = {**POST, "Origin": "https://evil.example"}
    assert (
        browser.post("/console/web/chats", json={"new": True}, headers=foreign).status_code == 403
    )


def test_unused_conversation_is_used_before_another_begins(browser):
    """Pressing New chat often makes no list of empty conversations."""
    assert new_chat(browser) == new_chat(browser)


def test_oldest_conversation_makes_room_for_a_new_one(channel: ConsoleChannel, feed: HangingFeed):
    """Its entries are deleted with it."""
    ids = []
    for number in range(MAX_CHATS + 1):
        ids.append(channel.new_chat("u1"))
        here = channel.conversation_of("u1", ids[-1])
        feed.append(here.id, {"type": "user", "event": f"e{number}", "text": "hi"})
        channel.chats.note_use(here, f"chat {number}")
    listed = {chat.id for chat in channel.chats.all("web", "u1")}
    assert (len(listed), ids[0] in listed, ids[1] in listed) == (MAX_CHATS, False, True)
    assert feed.read(Conversation("web", "u1", ids[0]).id, "", 0) == []
    with pytest.raises(BadHook):
        channel.conversation_of("u1", ids[0])
