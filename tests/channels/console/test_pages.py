"""The console's pages: which requests may open them, and how they show the feed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.store import PAGE_ENTRIES
from sayso.channels.console.views import HEARTBEAT
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Turn
from tests.channels.parts import console_channel
from tests.memory_stores import MemoryFeed

from .echo import KEYS, DownFeed, EchoApp, QuietFeed

POST = {"X-Sayso-Console": "1"}


def stepping_clock() -> Callable[[], float]:
    """Return a clock that is five seconds later at each call."""
    return itertools.count(0.0, 5.0).__next__


def streaming(media: LocalMediaStore, **options: Any) -> Any:
    """Return a client of a console whose streams end without waiting. It has opened the page and sent hello."""
    channel = console_channel("web", feed=QuietFeed(), media=media, keys=KEYS)
    client = EchoApp(channel, media=media, clock=stepping_clock(), **options).app.test_client()
    client.get("/console")
    client.post("/hooks/web", json={"id": "e1", "text": "hello"}, headers=POST)
    return client


def events(lines: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a stream, with their ids."""
    for block in lines.split("\n\n"):
        if block.startswith("id: "):
            entry_id, data = block.split("\n")
            yield entry_id.removeprefix("id: "), json.loads(data.removeprefix("data: "))


@pytest.mark.parametrize(
    "path", ["/console", "/console/web", "/console/events", "/console/web/poll"]
)
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
def test_console_without_a_password_serves_only_this_machine(
    echo: EchoApp, path: str, peer: str, host: str
):
    """Another machine is refused, and so is a foreign host name that points at this one."""
    answer = echo.app.test_client().get(
        path, headers={"Host": host}, environ_overrides={"REMOTE_ADDR": peer}
    )
    assert answer.status_code == 403
    assert "password: ${CONSOLE_PASSWORD}" in answer.text
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
def test_proxied_request_is_not_local(echo: EchoApp, header: str):
    """Behind a tunnel every peer has the address of this machine."""
    assert (
        echo.app.test_client().get("/console", headers={header: "203.0.113.9"}).status_code == 403
    )


@pytest.mark.parametrize(
    ("peer", "host"),
    [("127.0.0.1", "localhost:8000"), ("::1", "[::1]:8000"), ("127.0.0.1", "127.0.0.1")],
)
def test_this_machine_is_served_under_each_of_its_names(echo: EchoApp, peer: str, host: str):
    """The page opens under localhost, 127.0.0.1 and ::1."""
    answer = echo.app.test_client().get(
        "/console", headers={"Host": host}, environ_overrides={"REMOTE_ADDR": peer}
    )
    assert answer.status_code == 200


def test_feed_is_forbidden_without_a_session(echo: EchoApp):
    """A local request is not enough: the cookie names the conversation."""
    client = echo.app.test_client()
    assert client.get("/console/poll").status_code == 403
    assert client.get("/console/events").status_code == 403


def test_two_browsers_have_two_conversations(echo: EchoApp, browser):
    """A browser cannot read the conversation of another one."""
    browser.post("/hooks/web", json={"id": "e1", "text": "secret"}, headers=POST)
    other = echo.app.test_client()
    other.get("/console")
    assert other.get("/console/poll").json == {"entries": []}


def test_session_cookie_is_http_only_and_same_site(echo: EchoApp):
    """No script reads it and no other site sends it."""
    cookie = echo.app.test_client().get("/console").headers["Set-Cookie"]
    assert cookie.startswith("sayso_console_web=")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie


def test_cookie_is_secure_over_https(echo: EchoApp):
    """A cookie of an encrypted page never travels in plain text."""
    assert (
        "Secure"
        in echo.app.test_client()
        .get("/console", base_url="https://localhost")
        .headers["Set-Cookie"]
    )


def test_reload_keeps_the_user(echo: EchoApp, browser, channel: ConsoleChannel):
    """The page keeps a valid cookie."""
    before = channel.sessions.user_of(browser.get_cookie(channel.sessions.cookie).value)
    browser.get("/console")
    assert channel.sessions.user_of(browser.get_cookie(channel.sessions.cookie).value) == before


def test_forged_cookie_is_replaced(echo: EchoApp, channel: ConsoleChannel):
    """A client with an invalid cookie becomes a new user."""
    client = echo.app.test_client()
    client.set_cookie(channel.sessions.cookie, "admin")
    client.get("/console")
    assert channel.sessions.user_of(client.get_cookie(channel.sessions.cookie).value)


@pytest.mark.parametrize(
    "path", ["/console", "/console/static/console.js", "/console/poll", "/console/x/poll"]
)
def test_every_answer_has_security_headers(browser, path: str):
    """Pages and errors allow no inline script, no content sniffing and no referrer."""
    headers = browser.get(path).headers
    assert headers["Content-Security-Policy"].startswith(
        "default-src 'self'; img-src 'self' data: blob:;"
    )
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


def test_page_has_nothing_inline_and_nothing_external(browser):
    """The page contains nothing that its Content-Security-Policy forbids."""
    page = browser.get("/console").text
    assert "style=" not in page
    assert "<script>" not in page
    assert "://" not in page.replace("http://www.w3.org", "")


def test_title_and_suggestions_are_escaped(feed: MemoryFeed, media: LocalMediaStore):
    """The page treats values of the YAML as text and never as markup."""
    channel = console_channel(
        "web", feed=feed, media=media, keys=KEYS, title="<b>", suggestions=["<i>x</i>"]
    )
    page = EchoApp(channel, media=media).app.test_client().get("/console").text
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<i>x</i>" not in page


def test_polling_returns_the_conversation(browser, echo: EchoApp):
    """A poll returns the user's text and the answer; after the last id, it returns nothing."""
    assert browser.post("/hooks/web", json={"id": "e1", "text": "hello"}, headers=POST).json == {
        "ok": True
    }
    entries = browser.get("/console/poll").json["entries"]
    assert [entry["type"] for entry in entries] == ["user", "bubble"]
    assert entries[1]["html"] == "<p>You said <strong>hello</strong></p>\n"
    assert browser.get(f"/console/poll?after={entries[-1]['at']}").json == {"entries": []}


def test_stream_sends_the_conversation_and_ends(media: LocalMediaStore):
    """The stream has entries with ids and a retry time, and ends within a minute."""
    answer = streaming(media).get("/console/events")
    assert answer.mimetype == "text/event-stream"
    assert answer.text.startswith("retry: 1000\n")
    assert [entry["type"] for _, entry in events(answer.text)] == ["user", "bubble"]


def test_idle_stream_sends_heartbeats(media: LocalMediaStore):
    """The page takes a silent stream for broken.

    A heartbeat is an event of its own type, which the page's script sees.
    """
    assert streaming(media).get("/console/events").text.count(HEARTBEAT) == 11


def test_stream_is_alive_only_after_the_feed_was_read(media: LocalMediaStore):
    """A process that is open and cannot read the feed sends no heartbeat."""
    client = EchoApp(
        console_channel("web", feed=DownFeed(), media=media, keys=KEYS), media=media
    ).app.test_client()
    client.get("/console")
    assert client.get("/console/events").text == "retry: 1000\n\n"


def test_older_entries_come_in_pages(browser, echo: EchoApp, feed: MemoryFeed):
    """The newest page comes first.

    Each page says whether there are older entries, and none is lost or doubled.
    """
    browser.post("/hooks/web", json={"id": "e1", "text": "hello"}, headers=POST)
    (turn,) = echo.turns
    for number in range(2 * PAGE_ENTRIES):
        feed.append(
            turn.conversation.id, {"type": "user", "event": f"n{number}", "text": str(number)}
        )
    pages = []
    before = ""
    more = True
    while more:
        page = browser.get(f"/console/web/older?before={before}").json
        pages.append([entry["at"] for entry in page["entries"]])
        before = pages[-1][0]
        more = page["more"]
    assert [len(page) for page in pages] == [PAGE_ENTRIES, PAGE_ENTRIES, 2]
    whole = [at for at, _ in feed.read(turn.conversation.id, "", 0)]
    assert list(chain.from_iterable(reversed(pages))) == whole


def test_stream_resumes_where_the_browser_stopped(media: LocalMediaStore):
    """The header of a reconnect wins over the query of the first connect."""
    client = streaming(media)
    ids = [entry_id for entry_id, _ in events(client.get("/console/events").text)]
    assert len(ids) == 2
    resumed = client.get(f"/console/events?after={ids[0]}", headers={"Last-Event-ID": ids[1]}).text
    assert list(events(resumed)) == []
    assert [
        entry_id for entry_id, _ in events(client.get(f"/console/events?after={ids[0]}").text)
    ] == ids[1:]


def test_stream_above_the_limit_is_refused(media: LocalMediaStore):
    """The page then polls, so open pages never take the threads that webhooks need; a closed page frees its stream."""
    client = streaming(media, max_streams=1)
    first = client.get("/console/events", buffered=False)
    assert client.get("/console/events").status_code == 503
    first.close()
    assert client.get("/console/events").status_code == 200


def test_unavailable_store_is_a_503(media: LocalMediaStore):
    """The poll asks the page to try again; a stream ends, and the browser reconnects."""
    client = EchoApp(
        console_channel("web", feed=DownFeed(), media=media, keys=KEYS), media=media
    ).app.test_client()
    client.get("/console")
    answer = client.get("/console/poll")
    assert (answer.status_code, "try again shortly" in answer.text) == (503, True)
    assert list(events(client.get("/console/events").text)) == []


def test_each_console_has_its_own_page(feed: MemoryFeed, media: LocalMediaStore):
    """/console opens the first; each page posts to its own hook with its own session."""
    first, second = (
        console_channel(name, feed=feed, media=media, keys=KEYS, title=name)
        for name in ("one", "two")
    )
    client = EchoApp(first, second, media=media).app.test_client()
    assert 'data-hook="/hooks/one"' in client.get("/console").text
    assert 'data-hook="/hooks/two"' in client.get("/console/two").text
    assert client.get("/console/three").status_code == 404
    assert client.get_cookie("sayso_console_two")


def test_turn_has_the_user_of_the_page(browser, echo: EchoApp, channel: ConsoleChannel):
    """The cookie of the page names the user of the turn."""
    browser.post("/hooks/web", json={"id": "e1", "tap": "c:1"}, headers=POST)
    (turn,) = echo.turns
    assert isinstance(turn, Turn)
    assert turn.user_id == channel.sessions.user_of(
        browser.get_cookie(channel.sessions.cookie).value
    )


@pytest.mark.parametrize("name", ["If-Modified-Since", "If-Range"])
def test_invalid_date_in_a_condition_is_no_error(browser, name: str):
    """Flask fails at such a date, so the page drops the condition and sends the file."""
    asked = {"Range": "bytes=0-7", name: "Fri, 01 Jan 99999999999999999999 00:00:00 GMT"}
    assert browser.get("/console/static/console.css", headers=asked).status_code in (200, 206)
