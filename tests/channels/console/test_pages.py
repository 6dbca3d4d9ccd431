"""The console's pages: who may open them, and how they show the feed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.storage.media import LocalMediaStore
from sayso.channels.types import Turn
from sayso.testing.stores import MemoryFeed
from tests.channels.parts import console_channel

from .echo import KEYS, DownFeed, EchoApp, QuietFeed

POST = {"X-Sayso-Console": "1"}


def stepping_clock() -> Callable[[], float]:
    """A clock that is five seconds later each time somebody looks."""
    return itertools.count(0.0, 5.0).__next__


def streaming(media: LocalMediaStore, **options: Any) -> Any:
    """A client of a console whose streams end without waiting; it has opened the page and said hello."""
    channel = console_channel("web", feed=QuietFeed(), media=media, keys=KEYS)
    client = EchoApp(channel, media=media, clock=stepping_clock(), **options).app.test_client()
    client.get("/console")
    client.post("/hooks/web", json={"id": "e1", "text": "hello"}, headers=POST)
    return client


def events(lines: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, with their ids."""
    for block in lines.split("\n\n"):
        if block.startswith("id: "):
            entry_id, data = block.split("\n")
            yield entry_id.removeprefix("id: "), json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize("path", ["/console", "/console/web", "/console/events", "/console/web/poll"])
@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("203.0.113.9", "localhost"),
        ("127.0.0.1", "evil.example"),
        ("127.0.0.1", "localhost.evil.example"),
        ("192.168.1.5", "192.168.1.4:8000"),
        ("", "localhost"),
    ],
)
def test_without_a_password_only_this_machine_is_served(echo: EchoApp, path: str, peer: str, host: str):
    """Neither another machine nor a name that was pointed at this one gets in."""
    answer = echo.app.test_client().get(path, headers={"Host": host}, environ_overrides={"REMOTE_ADDR": peer})
    assert answer.status_code == 403
    assert "password: ${CONSOLE_PASSWORD}" in answer.text
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
def test_a_proxied_visitor_does_not_count_as_local(echo: EchoApp, header: str):
    """Behind a tunnel every peer looks like this machine."""
    assert echo.app.test_client().get("/console", headers={header: "203.0.113.9"}).status_code == 403


@pytest.mark.parametrize(
    ("peer", "host"), [("127.0.0.1", "localhost:8000"), ("::1", "[::1]:8000"), ("127.0.0.1", "127.0.0.1")]
)
def test_this_machine_is_served_under_each_of_its_names(echo: EchoApp, peer: str, host: str):
    """The three spellings of here all work."""
    answer = echo.app.test_client().get("/console", headers={"Host": host}, environ_overrides={"REMOTE_ADDR": peer})
    assert answer.status_code == 200


def test_the_feed_is_closed_without_a_session(echo: EchoApp):
    """Being on this machine is not enough: the cookie says whose conversation it is."""
    client = echo.app.test_client()
    assert client.get("/console/poll").status_code == 403
    assert client.get("/console/events").status_code == 403


def test_two_browsers_have_two_conversations(echo: EchoApp, browser):
    """Nobody reads what another browser was told."""
    browser.post("/hooks/web", json={"id": "e1", "text": "secret"}, headers=POST)
    other = echo.app.test_client()
    other.get("/console")
    assert other.get("/console/poll").json == {"entries": []}


def test_the_cookie_is_out_of_reach(echo: EchoApp):
    """No script reads it and no other site sends it."""
    cookie = echo.app.test_client().get("/console").headers["Set-Cookie"]
    assert cookie.startswith("sayso_console_web=")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie


def test_over_https_the_cookie_is_secure(echo: EchoApp):
    """Once the page came encrypted, the cookie never travels in the clear."""
    assert "Secure" in echo.app.test_client().get("/console", base_url="https://localhost").headers["Set-Cookie"]


def test_a_reload_keeps_the_user(echo: EchoApp, browser, channel: ConsoleChannel):
    """The cookie that is there is kept."""
    before = channel.user_of(browser.get_cookie(channel.cookie).value)
    browser.get("/console")
    assert channel.user_of(browser.get_cookie(channel.cookie).value) == before


def test_a_forged_cookie_is_replaced(echo: EchoApp, channel: ConsoleChannel):
    """Who comes with nonsense becomes somebody new."""
    client = echo.app.test_client()
    client.set_cookie(channel.cookie, "admin")
    client.get("/console")
    assert channel.user_of(client.get_cookie(channel.cookie).value)


@pytest.mark.parametrize("path", ["/console", "/console/static/console.js", "/console/poll", "/console/nobody"])
def test_every_answer_is_hardened(browser, path: str):
    """No inline script, no sniffing, no referrer, on errors too."""
    headers = browser.get(path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; img-src 'self' data: blob:;")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


def test_the_page_needs_nothing_inline_and_nothing_from_elsewhere(browser):
    """What the Content-Security-Policy forbids is not in the page."""
    page = browser.get("/console").text
    assert "style=" not in page
    assert "<script>" not in page
    assert "://" not in page.replace("http://www.w3.org", "")


def test_title_and_suggestions_are_escaped(feed: MemoryFeed, media: LocalMediaStore):
    """The YAML is text to the page, never markup."""
    channel = console_channel("web", feed=feed, media=media, keys=KEYS, title="<b>", suggestions=["<i>x</i>"])
    page = EchoApp(channel, media=media).app.test_client().get("/console").text
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<i>x</i>" not in page


def test_polling_shows_the_conversation(browser, echo: EchoApp):
    """The user's words, typing, the answer; and after the last id, nothing."""
    assert browser.post("/hooks/web", json={"id": "e1", "text": "hello"}, headers=POST).json == {"ok": True}
    entries = browser.get("/console/poll").json["entries"]
    assert [entry["type"] for entry in entries] == ["user", "typing", "bubble"]
    assert entries[2]["html"] == "<p>You said <strong>hello</strong></p>\n"
    assert browser.get(f"/console/poll?after={entries[-1]['at']}").json == {"entries": []}


def test_a_stream_shows_the_conversation_and_ends_itself(media: LocalMediaStore):
    """Entries with ids, how soon to come back, and an end within a minute."""
    answer = streaming(media).get("/console/events")
    assert answer.mimetype == "text/event-stream"
    assert answer.text.startswith("retry: 1000\n")
    assert [entry["type"] for _, entry in events(answer.text)] == ["user", "typing", "bubble"]


def test_a_silent_stream_beats(media: LocalMediaStore):
    """A comment every 15 seconds keeps proxies from hanging up."""
    assert streaming(media).get("/console/events").text.count(": still here") == 3


def test_a_stream_resumes_where_the_browser_stopped(media: LocalMediaStore):
    """The header of a reconnect counts more than the query of the first connect."""
    client = streaming(media)
    ids = [entry_id for entry_id, _ in events(client.get("/console/events").text)]
    resumed = client.get(f"/console/events?after={ids[0]}", headers={"Last-Event-ID": ids[1]}).text
    assert [entry_id for entry_id, _ in events(resumed)] == ids[2:]
    assert len(list(events(client.get(f"/console/events?after={ids[0]}").text))) == 2


def test_one_stream_too_many_is_sent_to_polling(media: LocalMediaStore):
    """Open pages never take the threads that webhooks need; a closed page gives its place back."""
    client = streaming(media, max_streams=1)
    first = client.get("/console/events", buffered=False)
    assert client.get("/console/events").status_code == 503
    first.close()
    assert client.get("/console/events").status_code == 200


def test_a_store_that_is_away_is_a_polite_503(media: LocalMediaStore):
    """The page hears to try again; a stream just ends, and the browser comes back."""
    client = EchoApp(console_channel("web", feed=DownFeed(), media=media, keys=KEYS), media=media).app.test_client()
    client.get("/console")
    answer = client.get("/console/poll")
    assert (answer.status_code, "try again shortly" in answer.text) == (503, True)
    assert list(events(client.get("/console/events").text)) == []


def test_each_console_has_its_own_page(feed: MemoryFeed, media: LocalMediaStore):
    """/console is the first; each posts to its own hook with its own session."""
    first, second = (console_channel(name, feed=feed, media=media, keys=KEYS, title=name) for name in ("one", "two"))
    client = EchoApp(first, second, media=media).app.test_client()
    assert 'data-hook="/hooks/one"' in client.get("/console").text
    assert 'data-hook="/hooks/two"' in client.get("/console/two").text
    assert client.get("/console/three").status_code == 404
    assert client.get_cookie("sayso_console_two")


def test_the_hook_hears_who_spoke(browser, echo: EchoApp, channel: ConsoleChannel):
    """From cookie to turn: the user of the page is the user of the turn."""
    browser.post("/hooks/web", json={"id": "e1", "tap": "c:1"}, headers=POST)
    (turn,) = echo.turns
    assert isinstance(turn, Turn)
    assert turn.user_id == channel.user_of(browser.get_cookie(channel.cookie).value)


@pytest.mark.parametrize("name", ["If-Modified-Since", "If-Range"])
def test_a_year_that_is_no_year_is_no_error(browser, name: str):
    """Flask breaks over such a condition: without it the whole file is the answer."""
    asked = {"Range": "bytes=0-7", name: "Fri, 01 Jan 99999999999999999999 00:00:00 GMT"}
    assert browser.get("/console/static/console.css", headers=asked).status_code in (200, 206)
