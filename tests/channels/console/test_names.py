"""What people of the console call themselves: a name for others to read, which decides nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.types import Conversation, Turn, WebhookRequest

from .echo import EchoApp

POST = {"X-Sayso-Console": "1"}


def named(browser, name: str) -> str:
    """Set a name, and return it as the server took it."""
    return browser.post("/console/web/name", json={"name": name}, headers=POST).json["name"]


def test_name_goes_with_each_message_and_can_be_changed(browser, echo: EchoApp):
    """The bot gets it as `user_name`, the page shows it. The id of the person stays the same."""
    for number, name in enumerate(("Ada", "Ada Lovelace", "")):
        named(browser, name)
        browser.post("/hooks/web", json={"id": f"e{number}", "text": "hello"}, headers=POST)
    assert [turn.user_name for turn in echo.turns] == ["Ada", "Ada Lovelace", ""]
    assert len({turn.user_id for turn in echo.turns}) == 1
    entries = browser.get("/console/web/poll").json["entries"]
    assert [entry.get("name") for entry in entries if entry["type"] == "user"] == [
        "Ada",
        "Ada Lovelace",
        None,
    ]


def test_page_shows_the_name_as_text(browser):
    """Also after a reload."""
    named(browser, '"><script>alert(1)</script>')
    page = browser.get("/console").text
    assert "<script>alert" not in page
    assert 'data-person="&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"' in page


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("  Ada\n Lovelace ", "Ada Lovelace"),
        ("\u202eada\x00\u200b", "ada"),
        ("x" * 99, "x" * 39 + "…"),
        (" ", ""),
    ],
)
def test_name_is_one_short_line(browser, given: str, kept: str):
    """It has no characters that people cannot see."""
    assert named(browser, given) == kept


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"name": None}, [], "Ada"])
def test_malformed_name_is_refused(browser, body: object):
    """The page never sends one."""
    assert browser.post("/console/web/name", json=body, headers=POST).status_code == 400


def test_only_the_page_sets_a_name(browser):
    """Another site cannot put words into the mouth of its visitors."""
    assert browser.post("/console/web/name", json={"name": "x"}).status_code == 403
    foreign = {**POST, "Origin": "https://evil.example"}
    assert browser.post("/console/web/name", json={"name": "x"}, headers=foreign).status_code == 403


@pytest.mark.parametrize("forged", ["Ada", "", "WyJ1MSIsIkFkYSJd.x"])
def test_name_of_another_person_is_not_taken(channel: ConsoleChannel, forged: str):
    """The cookie of a name holds for one id.

    The same name at two browsers makes them no one person.
    """
    session = channel.sessions.new_identity()
    for value in (forged, channel.sessions.name_cookie("someone else", "Ada")):
        cookie = f"{channel.sessions.cookie}={session}; sayso_name_web={value}"
        headers = {"cookie": cookie, "x-sayso-console": "1", "host": "localhost:8000"}
        body = json.dumps({"id": "e1", "text": "yes"}).encode()
        (turn,) = channel.receive(
            WebhookRequest("http://localhost:8000/hooks/web", headers, body)
        ).turns
        assert (turn.user_name, turn.user_id) == ("", channel.sessions.user_of(session))


def test_feed_names_the_writer(channel: ConsoleChannel, conversation: Conversation):
    """Other tabs and a reload show the name that the message had."""
    asyncio.run(
        channel.show_typing(Turn("e", conversation, "u1", "hi", user_name="Ada", message_id="e"))
    )
    ((_, entry),) = channel.feed.read(conversation.id, "", 0)
    assert entry == {"type": "user", "event": "e", "text": "hi", "name": "Ada"}
