"""The console's login: it protects every page, wrong passwords cost time, and a logout ends the session everywhere."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import redis

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.store import (
    FREE_FAILURES,
    LOCKOUT_SECONDS,
    MAX_FAILURES,
    SESSION_SECONDS,
    Failures,
    Logins,
    StoreDown,
    network,
)
from sayso.channels.media_store import LocalMediaStore
from tests.channels.parts import console_channel
from tests.memory_stores import MemoryFeed, MemoryLogins

from .echo import KEYS, EchoApp

POST = {"X-Sayso-Console": "1"}
HELLO = {"id": "e1", "text": "delete everything"}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the clock of the pages, the logins and the session signer."""
    clock = Clock()
    monkeypatch.setattr("sayso.channels.console.views.time.time", clock)
    return clock


@pytest.fixture
def locked(feed: MemoryFeed, media: LocalMediaStore, clock: Clock) -> ConsoleChannel:
    """Return a console with a password."""
    return console_channel(
        "web", feed=feed, media=media, keys=KEYS, password="sesame ü", logins=MemoryLogins(clock)
    )


@pytest.fixture
def app(locked: ConsoleChannel, media: LocalMediaStore) -> EchoApp:
    """Return the pages of that console."""
    return EchoApp(locked, media=media)


def log_in(client: Any, password: str = "sesame ü", **kwargs: Any) -> Any:
    """Send the form of the page."""
    return client.post("/console/web/login", data={"password": password}, **kwargs)


def test_without_a_login_the_console_shows_and_does_nothing(app: EchoApp):
    """The page is a password form, every other request is refused, and no turn is made."""
    client = app.app.test_client()
    page = client.get("/console", headers={"Host": "bot.example"})
    assert (page.status_code, 'type="password"' in page.text, 'id="composer"' in page.text) == (
        200,
        True,
        False,
    )
    assert "Set-Cookie" not in page.headers
    client.set_cookie("sayso_console_web", next(iter(_channels(app))).sessions.new_identity())
    for path in ("/console/events", "/console/poll", "/console/web/poll"):
        assert client.get(path).status_code == 401
    assert client.post("/hooks/web", json=HELLO, headers=POST).status_code == 403
    assert app.turns == []


def _channels(app: EchoApp) -> list[ConsoleChannel]:
    cells = [cell.cell_contents for cell in app.app.view_functions["hook"].__closure__ or ()]
    return [each for cell in cells if isinstance(cell, dict) for each in cell.values()]


def test_password_opens_the_console_for_its_browser(app: EchoApp, locked: ConsoleChannel):
    """It works from any address; the turn has the user of this browser, also after another login."""
    client = app.app.test_client()
    answer = log_in(client, headers={"Host": "bot.example"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/web")
    client = app.app.test_client()
    log_in(client)
    assert 'id="composer"' in client.get("/console").text
    assert client.post("/hooks/web", json=HELLO, headers=POST).status_code == 200
    log_in(client)
    client.post("/hooks/web", json={**HELLO, "id": "e2"}, headers=POST)
    first, second = app.turns
    assert (
        first.user_id
        == second.user_id
        == locked.sessions.user_of(client.get_cookie(locked.sessions.cookie).value)
    )


def test_session_cookie_of_another_browser_opens_nothing(app: EchoApp):
    """A login belongs to one user, so its cookie is invalid beside another identity."""
    mine, other = app.app.test_client(), app.app.test_client()
    log_in(mine)
    log_in(other)
    mine.set_cookie("sayso_console_web", other.get_cookie("sayso_console_web").value)
    assert mine.get("/console/poll").status_code == 401


def test_logout_ends_the_session_in_every_browser(app: EchoApp):
    """A copy of the cookie is invalid too; other sessions of the bot stay open."""
    client, elsewhere, other = (app.app.test_client() for _ in range(3))
    log_in(client)
    log_in(other)
    for name in ("sayso_console_web", "sayso_login_web"):
        elsewhere.set_cookie(name, client.get_cookie(name).value)
    assert elsewhere.get("/console/poll").status_code == 200
    assert (
        client.post("/console/web/logout", headers={"Origin": "https://evil.example"}).status_code
        == 403
    )
    assert client.post("/console/web/logout").status_code == 303
    assert [each.get("/console/poll").status_code for each in (client, elsewhere, other)] == [
        401,
        401,
        200,
    ]
    assert elsewhere.post("/hooks/web", json=HELLO, headers=POST).status_code == 403


def test_session_expires(app: EchoApp, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """A session lasts twelve hours."""
    monkeypatch.setattr("itsdangerous.timed.time.time", clock)
    client = app.app.test_client()
    log_in(client)
    clock.now += SESSION_SECONDS - 1
    assert client.get("/console/poll").status_code == 200
    clock.now += 2
    assert client.get("/console/poll").status_code == 401
    assert client.post("/hooks/web", json=HELLO, headers=POST).status_code == 403


def test_wrong_passwords_cost_time_and_lock_the_right_one_out(
    app: EchoApp, clock: Clock, caplog: pytest.LogCaptureFixture
):
    """Three are free, each further one doubles the wait, ten lock the address out for a quarter of an hour."""
    client = app.app.test_client()
    waits = []
    for _ in range(MAX_FAILURES):
        answer = log_in(client, "wrong")
        assert answer.status_code == 401
        waits.append(int(answer.headers.get("Retry-After", "0")))
        assert (
            log_in(client, "sesame ü", headers={"X-Forwarded-For": "203.0.113.1"}).status_code
            == 303
        )
        clock.now += waits[-1] - 0.5
        if waits[-1]:
            answer = log_in(client)
            assert answer.status_code == 429
            assert "Try again in 1 second." in answer.text
        clock.now += 0.5
    assert waits == [0, 0, *(2**n for n in range(MAX_FAILURES - FREE_FAILURES)), LOCKOUT_SECONDS]
    failed = [record for record in caplog.records if record.message == "console.login_failed"]
    assert [record.failures for record in failed] == list(range(1, MAX_FAILURES + 1))
    assert [record.levelno for record in failed][-2:] == [logging.WARNING, logging.ERROR]
    assert "wrong" not in caplog.text
    assert log_in(client).status_code == 303


@pytest.mark.parametrize(
    ("peer", "forwarded", "counts_for"),
    [
        ("127.0.0.1", "6.6.6.6, 203.0.113.1", "203.0.113.1"),
        ("172.18.0.1", "6.6.6.6, 203.0.113.1", "203.0.113.1"),
        ("fd00::5", "2001:db8::1", "2001:db8::1"),
        ("172.18.0.1", "", "172.18.0.1"),
        ("172.19.0.1", "203.0.113.1", "172.19.0.1"),
        ("198.51.100.7", "203.0.113.1", "198.51.100.7"),
        ("", "203.0.113.1", ""),
    ],
)
def test_only_trusted_proxies_name_the_client(
    peer: str, forwarded: str, counts_for: str, media: LocalMediaStore
):
    """A client that invents addresses in its headers gets no new attempts. Clients of a trusted proxy are counted
    apart.
    """
    console = console_channel(
        "web",
        feed=MemoryFeed(),
        media=media,
        keys=KEYS,
        trusted_proxies=["172.18.0.0/16", "fd00::/8"],
    )
    assert console.sessions.client_address(peer, forwarded) == counts_for


@pytest.mark.parametrize("proxies", ["172.18.0.1/16", "proxy.example.com", ""])
def test_trusted_proxy_that_is_no_address_is_refused(proxies: str, media: LocalMediaStore):
    """The error shows the value and how to write one."""
    with pytest.raises(ValueError, match=re.escape(f"{proxies!r} is not a network")):
        console_channel("web", feed=MemoryFeed(), media=media, keys=KEYS, trusted_proxies=[proxies])


def test_login_of_another_site_is_forbidden(app: EchoApp):
    """Its form has another origin."""
    client = app.app.test_client()
    for origin in ("https://evil.example", "null"):
        assert log_in(client, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "over", [{"headers": {"X-Forwarded-Proto": "https"}}, {"base_url": "https://localhost"}]
)
def test_cookies_are_host_bound_over_https(app: EchoApp, over: dict[str, Any]):
    """Their names begin with __Host-, and cookies of plain http are invalid there."""
    client = app.app.test_client()
    cookies = log_in(client, **over).headers.getlist("Set-Cookie")
    assert len(cookies) == 2
    for cookie in cookies:
        assert cookie.startswith("__Host-sayso_")
        for part in ("Secure", "HttpOnly", "Path=/", "SameSite=Strict"):
            assert part in cookie
        assert "Domain" not in cookie
    plain = app.app.test_client()
    log_in(plain)
    assert plain.get("/console/poll", **over).status_code == 401


def test_form_larger_than_a_password_is_refused_before_it_is_decoded(app: EchoApp):
    """Decoding a megabyte of escapes takes longer than all else, and anybody can send it."""
    answer = app.app.test_client().post(
        "/console/web/login",
        data="password=" + "%" * 5000,
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.status_code == 413


def test_console_without_a_password_has_no_login(feed: MemoryFeed, media: LocalMediaStore):
    """The login is forbidden, so there is no password to guess."""
    channel = console_channel("web", feed=feed, media=media, keys=KEYS)
    assert log_in(EchoApp(channel, media=media).app.test_client(), "").status_code == 403


@pytest.fixture(params=["memory", "redis"])
def logins(request: pytest.FixtureRequest, clock: Clock) -> Logins:
    """Return each login store."""
    if request.param == "memory":
        return MemoryLogins(clock)
    client = redis.Redis(
        unix_socket_path=request.getfixturevalue("redis_socket"), decode_responses=True
    )
    client.flushdb()
    return Logins(client, "sayso:bot:", clock)


def test_failures_are_counted_by_address_and_channel(logins: Logins, clock: Clock):
    """An IPv6 /64 network is one address, and a successful login resets its count."""
    for address in ("2001:db8::1", "2001:db8::ffff"):
        logins.note_failure("web", address)
    assert logins.failures("web", "2001:db8::2") == Failures(2, clock.now)
    assert (
        logins.failures("web", "2001:db8:0:1::1")
        == logins.failures("ops", "2001:db8::1")
        == Failures()
    )
    logins.note_success("web", "2001:db8::9")
    assert logins.failures("web", "2001:db8::1") == Failures()


def test_ended_sessions_are_remembered(logins: Logins):
    """The store knows an ended session from an open one."""
    logins.end("a")
    assert (logins.is_ended("a"), logins.is_ended("b")) == (True, False)


def test_redis_keys_of_logins_expire(redis_socket: str, clock: Clock):
    """Each key has an expiry, and no key contains an address."""
    client = redis.Redis(unix_socket_path=redis_socket, decode_responses=True)
    client.flushdb()
    store = Logins(client, "sayso:bot:", clock)
    store.note_failure("web", "203.0.113.7")
    store.end("a")
    keys = client.keys()
    assert all(0 < client.ttl(key) <= SESSION_SECONDS for key in keys)
    assert (len(keys), "203.0.113.7" in " ".join(keys)) == (2, False)


def test_login_is_refused_without_redis(media: LocalMediaStore, feed: MemoryFeed):
    """The console cannot know whether the address is locked out."""
    away = redis.Redis(port=1, retry=None)
    with pytest.raises(StoreDown):
        Logins(away, "sayso:bot:").is_ended("a")
    channel = console_channel(
        "web", feed=feed, media=media, keys=KEYS, password="p", logins=Logins(away, "x:")
    )
    assert log_in(EchoApp(channel, media=media).app.test_client(), "p").status_code == 503


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_failures_of_an_ipv6_network_count_together(address: str, counted: str):
    """A value that is not an IP address is counted unchanged."""
    assert network(address) == counted
