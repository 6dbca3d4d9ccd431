"""Inbound files: fetched only from the platform, which alone gets the credentials, and never beyond the limit."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from io import BytesIO
from typing import Any

import httpx
import pytest

from sayso.channels.base import Channel, FetchError
from sayso.channels.telegram.adapter import FILE_LIMIT
from sayso.channels.telegram.client import request_type
from sayso.channels.types import Media
from sayso.infra import http as fetch
from sayso.infra.http import DownloadError, SafeDownload
from sayso.infra.public_addresses import is_public
from sayso.testing.platforms.fake_platforms import (
    SLACK_BOT_TOKEN,
    TELEGRAM_TOKEN,
    TWILIO_ACCOUNT_SID,
    FakePlatforms,
)
from sayso.testing.platforms.webhooks import JPEG
from tests.channels.harness import (
    ALL,
    SLACK,
    TELEGRAM,
    WHATSAPP,
    MemoryMedia,
    Platform,
    fetch_bytes,
)

MESSAGES = f"https://api.twilio.com/2010-04-01/Accounts/{TWILIO_ACCOUNT_SID}/Messages"
TWILIO_FILE = f"{MESSAGES}/MM1/Media/ME1"
SLACK_FILE = "https://files.slack.com/files-pri/T1-F1/photo.jpg"

#: Addresses that only look like those of the platform.
FOREIGN = {
    "whatsapp": [
        TWILIO_FILE.replace("https:", "http:"),
        TWILIO_FILE.replace("api.twilio.com", "evil.example"),
        TWILIO_FILE.replace("api.twilio.com", "api.twilio.com.evil.example"),
        TWILIO_FILE.replace("api.twilio.com", "api.twilio.com@evil.example"),
        TWILIO_FILE.replace("api.twilio.com", "api.twilio.com:8443"),
        TWILIO_FILE.replace(TWILIO_ACCOUNT_SID, "AC" + "b" * 32),
        f"{MESSAGES}/../../AC{'b' * 32}/Messages/MM1/Media/ME1",
        f"{MESSAGES}/%2e%2e/%2e%2e/AC{'b' * 32}/Messages/MM1",
        f"{MESSAGES}/MM1/Media/ME1\nx",
        f"https://evil.example/{TWILIO_FILE}",
        "file:///etc/passwd",
        "",
    ],
    "slack": [
        SLACK_FILE.replace("https:", "http:"),
        SLACK_FILE.replace("files.slack.com", "evil.example"),
        SLACK_FILE.replace("files.slack.com", "files.slack.com.evil.example"),
        SLACK_FILE.replace("files.slack.com", "files.slack.com@evil.example"),
        SLACK_FILE.replace("files.slack.com/", "files.slack.com\\@evil.example/"),
        SLACK_FILE.replace("files.slack.com", "filesxslack.com"),
        SLACK_FILE.replace("files.slack.com", "slack.com"),
        "https://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "",
    ],
}
PRIVATE = [
    "127.0.0.1",
    "169.254.169.254",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.100.100.200",
    "0.0.0.0",
    "192.0.0.192",
    "168.63.129.16",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "fe80::1",
    "fec0::1",
    "fd00:ec2::254",
    "ff02::1",
    "3fff::1",  # documentation
    "3fff:fff:ffff::1",
    "2001:db8::1",
    "2001::808:808",  # Teredo
    "2001:1::1",  # protocol assignments, also those that IANA calls global
    "2001:20::1",
    "2001:30::1",
    "64:ff9b::808:808",  # NAT64
    "64:ff9b:1::a00:1",
    "::8.8.8.8",  # IPv4-compatible
    "::ffff:0:8.8.8.8",  # IPv4-translated
    "2606:4700::5efe:10.0.0.1",  # ISATAP
    "2606:4700::200:5efe:8.8.8.8",
    "2606:4700::300:5efe:127.0.0.1",
    "100::1",  # discard-only
    "100:0:0:1::1",
    "5f00::1",  # segment routing
    "4000::1",  # not assigned
    "2620:4f:8000::1",  # AS112
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",  # 6to4 relays
    "192.175.48.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
]

Handler = Callable[[httpx.Request], httpx.Response]


class Wire:
    """A network that notes requests and returns planned answers."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer: Handler = lambda request: httpx.Response(404)

    async def carry(self, request: httpx.Request) -> httpx.Response:
        """Stand in for httpx's own transport."""
        self.requests.append(request)
        return self.answer(request)

    async def do_request(self, url: str, method: str, *_: Any, **__: Any) -> tuple[int, bytes]:
        """Stand in for the calls of Telegram's Bot API."""
        answer = await self.carry(httpx.Request(method, url))
        return answer.status_code, answer.content


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Return a network that no request leaves."""
    wire = Wire()
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", wire.carry)
    monkeypatch.setattr(request_type(), "do_request", wire.do_request)
    return wire


@pytest.fixture(params=ALL, ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> Platform:
    """Return each platform."""
    return request.param


@pytest.fixture
def redirect(platforms: FakePlatforms) -> Iterator[Callable[[str], None]]:
    """Return a function that makes Twilio redirect its files until the test ends."""
    twilio = platforms.fakes["twilio"]
    yield lambda url: setattr(twilio, "redirect", url)
    twilio.redirect = ""


def local(
    platform: Platform, platforms: FakePlatforms, media: MemoryMedia, **extra: str
) -> Channel:
    """Return the platform's adapter, connected to its fake."""
    return platform.build(media, f"{platforms.url}/{platform.fake}", **extra)


def fetched(channel: Channel, ref: str, mime_type: str = "image/jpeg", **fields: int) -> bytes:
    """Return the bytes of an inbound file."""
    return fetch_bytes(channel, Media(ref, mime_type, **fields))


def refusal(channel: Channel, ref: str, mime_type: str = "image/jpeg", **fields: int) -> str:
    """Return the text of the error of a download."""
    with pytest.raises(FetchError) as caught:
        fetched(channel, ref, mime_type, **fields)
    return str(caught.value)


def resolving(*addresses: str):
    """Return a resolver with one answer."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


def sent(data: bytes, content_type: str = "image/jpeg") -> httpx.Response:
    """Return an unread answer."""
    return httpx.Response(
        200, headers={"Content-Type": content_type}, stream=httpx.ByteStream(data)
    )


def redirecting(*locations: str) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """Return a network that answers with these redirects and then a file, and the list of its requests."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if len(asked) <= len(locations):
            return httpx.Response(302, headers={"Location": locations[len(asked) - 1]})
        return sent(JPEG)

    return httpx.MockTransport(answer), asked


@pytest.mark.parametrize(
    ("platform", "ref"), [(p, ref) for p in (WHATSAPP, SLACK) for ref in FOREIGN[p.name]]
)
@pytest.mark.parametrize("api_url", [None, "http://127.0.0.1:1"])
def test_foreign_address_is_refused_without_a_request(
    platform: Platform, ref: str, api_url: str | None, media: MemoryMedia, wire: Wire
):
    """platforms.md 1.2: another host, scheme, port or account gets no request and no credentials."""
    refusal(platform.build(media, api_url), ref)
    assert wire.requests == []


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_public(address: str):
    """Loopback, private, link-local and metadata addresses count, and all of them as IPv6."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "52.216.0.1",
        "192.0.1.1",
        "223.255.255.1",
        "2606:4700::1111",
        "2a00:1450::5efd:0:1",
    ],
)
def test_public_addresses_are_public(address: str):
    """The addresses belong to content networks."""
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]", "2130706433", "0x7f.1", "[::1]"]
)
def test_redirect_to_a_private_address_is_refused(
    host: str, platforms: FakePlatforms, media: MemoryMedia, redirect: Callable[[str], None]
):
    """The system's resolver interprets every spelling of an address."""
    redirect(f"https://{host}/latest/meta-data")
    ref = platforms.host("twilio", JPEG)
    assert "not public" in refusal(local(WHATSAPP, platforms, media), ref)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["169.254.169.254"], ["::ffff:10.0.0.1"], ["8.8.8.8", "10.0.0.1"]]
)
def test_redirect_to_a_name_of_a_private_address_is_refused(addresses: list[str]):
    """A public name may point inside, and one private address among several is enough."""
    transport, asked = redirecting("https://cdn.example/f")
    download = SafeDownload(100_000, 2, resolve=resolving(*addresses), transport=transport)
    with pytest.raises(DownloadError, match="not public"):
        asyncio.run(download.save(TWILIO_FILE, BytesIO(), {}))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "to",
    [
        "http://8.8.8.8/f",
        "ftp://8.8.8.8/f",
        "file:///etc/passwd",
        "http://[::1/",
        "https://xn--a.example/f",
    ],
)
def test_redirect_away_from_https_is_refused(to: str):
    """Plain http, other schemes, and invalid addresses or names are refused."""
    transport, asked = redirecting(to)
    with pytest.raises(DownloadError):
        asyncio.run(
            SafeDownload(100_000, 2, resolve=resolving("8.8.8.8"), transport=transport).save(
                TWILIO_FILE, BytesIO(), {}
            )
        )
    assert len(asked) == 1


def test_other_ports_of_the_host_of_api_url_are_refused(
    platforms: FakePlatforms, media: MemoryMedia, redirect: Callable[[str], None]
):
    """Another port of the same host is another server."""
    redirect("http://127.0.0.1:1/f")
    assert "not https" in refusal(local(WHATSAPP, platforms, media), platforms.host("twilio", JPEG))


def test_redirected_request_connects_to_the_address_that_was_checked():
    """The name is resolved once, since a second answer could differ. TLS still proves the name."""
    transport, asked = redirecting("https://cdn.example:8443/f?signature=1")
    download = SafeDownload(100_000, 2, resolve=resolving("8.8.8.8"), transport=transport)
    asyncio.run(download.save(TWILIO_FILE, BytesIO(), {"Authorization": "Basic eHg="}))
    pinned = asked[1]
    assert (str(pinned.url), pinned.headers["host"]) == (
        "https://8.8.8.8:8443/f?signature=1",
        "cdn.example:8443",
    )
    assert pinned.extensions["sni_hostname"] == "cdn.example"
    assert "authorization" not in pinned.headers


def test_redirect_to_an_international_name_uses_one_spelling():
    """The resolved, requested and verified names are the same."""
    name = "xn--bcher-kva.example"
    transport, asked = redirecting(f"https://{name}/f")
    asyncio.run(
        SafeDownload(100_000, 2, resolve=resolving("8.8.8.8"), transport=transport).save(
            TWILIO_FILE, BytesIO(), {}
        )
    )
    assert (asked[1].headers["host"], asked[1].extensions["sni_hostname"]) == (name, name)


def test_relative_redirect_is_resolved_against_the_name():
    """The pinned address is only used to connect."""
    transport, asked = redirecting("https://cdn.example/a", "/b")
    asyncio.run(
        SafeDownload(100_000, 2, resolve=resolving("8.8.8.8"), transport=transport).save(
            TWILIO_FILE, BytesIO(), {}
        )
    )
    assert (asked[2].url.path, asked[2].headers["host"]) == ("/b", "cdn.example")


def test_no_more_than_two_redirects():
    """platforms.md 1.2: a third redirect is refused."""
    transport, asked = redirecting(*["https://cdn.example/f"] * 3)
    with pytest.raises(DownloadError, match="more than 2 times"):
        asyncio.run(
            SafeDownload(100_000, 2, resolve=resolving("8.8.8.8"), transport=transport).save(
                TWILIO_FILE, BytesIO(), {}
            )
        )
    assert len(asked) == 3


@pytest.mark.parametrize("platform", [SLACK, TELEGRAM], ids=lambda platform: platform.name)
def test_slack_and_telegram_follow_no_redirect(platform: Platform, media: MemoryMedia, wire: Wire):
    """platforms.md 2.2, 3.2: their tokens are in the request, which must not go to another server."""
    file = {"file_id": "f", "file_unique_id": "u", "file_path": "p"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/getFile"):
            return httpx.Response(200, json={"ok": True, "result": file})
        return httpx.Response(302, headers={"Location": "https://8.8.8.8/f"})

    wire.answer = answer
    assert "redirected" in refusal(platform.build(media, None), SLACK_FILE)
    assert {request.url.host for request in wire.requests} <= {
        "files.slack.com",
        "api.telegram.org",
    }


def test_credentials_stay_with_twilio(platforms: FakePlatforms, media: MemoryMedia):
    """platforms.md 1.2: its content network gets no Authorization header, which it would refuse."""
    fetched(local(WHATSAPP, platforms, media), platforms.host("twilio", JPEG))
    (asked,) = [call["params"] for call in platforms.calls if call["method"] == "cdn"]
    assert "authorization" not in asked


class Endless(httpx.AsyncByteStream):
    """An endless body that counts the bytes read."""

    taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.taken += 1024
            yield bytes(1024)


def test_oversized_file_is_refused_in_bounded_memory():
    """platforms.md 1.2: the header says ten bytes and the body never ends; reading stops at the limit."""
    body = Endless()
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, headers={"Content-Length": "10"}, stream=body)
    )
    with pytest.raises(DownloadError, match="more than 10000 bytes"):
        asyncio.run(SafeDownload(10_000, transport=transport).save(TWILIO_FILE, BytesIO(), {}))
    assert body.taken <= 11 * 1024


def test_file_of_exactly_the_limit_is_accepted():
    """The limit is the largest allowed size."""
    transport = httpx.MockTransport(lambda _: sent(bytes(1000)))
    assert (
        asyncio.run(SafeDownload(1000, transport=transport).save(TWILIO_FILE, BytesIO(), {})).size
        == 1000
    )


def test_compressed_answer_is_refused():
    """A small zip bomb would pass a limit on the received bytes."""
    answer = httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Endless())
    transport = httpx.MockTransport(lambda _: answer)
    with pytest.raises(DownloadError, match="compressed"):
        asyncio.run(SafeDownload(1000, transport=transport).save(TWILIO_FILE, BytesIO(), {}))


def test_slow_server_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """A server that never answers costs a turn at most the time limit."""
    monkeypatch.setattr(fetch, "TIMEOUT", 0.02)

    async def never(_request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(DownloadError, match="took longer"):
        asyncio.run(
            SafeDownload(1000, transport=httpx.MockTransport(never)).save(
                TWILIO_FILE, BytesIO(), {}
            )
        )


def test_too_large_for_telegram_is_refused_without_a_request(media: MemoryMedia, wire: Wire):
    """platforms.md 2.2: the update has the size."""
    assert "at most" in refusal(TELEGRAM.build(media, None), "f", size=FILE_LIMIT + 1)
    assert wire.requests == []


def test_telegram_file_that_grew_is_refused_before_its_download(media: MemoryMedia, wire: Wire):
    """platforms.md 2.2: the size of getFile counts when the update has none."""
    file = {"file_id": "f", "file_unique_id": "u", "file_path": "p", "file_size": FILE_LIMIT + 1}
    wire.answer = lambda _: httpx.Response(200, json={"ok": True, "result": file})
    assert "at most" in refusal(TELEGRAM.build(media, None), "f")
    assert len(wire.requests) == 1


@pytest.mark.parametrize("path", ["/etc/hostname", None])
def test_telegram_path_on_this_machine_is_never_opened(
    path: str | None, media: MemoryMedia, wire: Wire
):
    """platforms.md 2.2: a Bot API server in local mode returns paths on a disk; only links are downloaded."""
    file = {"file_id": "f", "file_unique_id": "u", "file_path": path}
    wire.answer = lambda _: httpx.Response(200, json={"ok": True, "result": file})
    assert "no link" in refusal(TELEGRAM.build(media, None), "f")


def test_slack_log_in_page_is_refused(platforms: FakePlatforms, media: MemoryMedia):
    """platforms.md 3.2: a wrong token gets a login page with 200, which is not the file."""
    channel, ref = (
        local(SLACK, platforms, media, bot_token="xoxb-wrong"),
        platforms.host("slack", JPEG),
    )
    for mime_type in ("image/jpeg", "text/html", "application/octet-stream"):
        assert "bot_token" in refusal(channel, ref, mime_type, size=len(JPEG))


def test_html_file_is_accepted(media: MemoryMedia, wire: Wire):
    """platforms.md 3.2: an HTML file is accepted if it is the one that Slack announced."""
    wire.answer = lambda _: sent(b"<p>hi</p>", "text/html")
    assert fetched(SLACK.build(media, None), SLACK_FILE, "text/html", size=9) == b"<p>hi</p>"


@pytest.mark.parametrize(("world", "other"), [("slack", "slack-gov"), ("slack-gov", "slack")])
def test_files_of_slack_and_govslack_are_at_their_own_hosts(
    media: MemoryMedia, wire: Wire, world: str, other: str
):
    """platforms.md 3.2, 3.3: GovSlack is slack-gov.com; neither host gets the other's token."""
    wire.answer = lambda _: sent(JPEG, "image/jpeg")
    channel = SLACK.build(media, f"https://{world}.com")
    assert fetched(channel, f"https://files.{world}.com/x.jpg") == JPEG
    assert "not on" in refusal(channel, f"https://files.{other}.com/x.jpg")
    assert [str(request.url) for request in wire.requests] == [f"https://files.{world}.com/x.jpg"]


@pytest.mark.parametrize("ref", ["gone", "dead server", "forged token"])
def test_no_secret_in_errors_or_logs(
    platform: Platform,
    ref: str,
    platforms: FakePlatforms,
    media: MemoryMedia,
    caplog: pytest.LogCaptureFixture,
):
    """pains.md 15: no message, traceback or DEBUG log holds a token or the address of the file."""
    caplog.set_level(logging.DEBUG)
    channel = local(platform, platforms, media)
    handle = {"whatsapp": TWILIO_FILE, "slack": SLACK_FILE, "telegram": "some-file-id"}[
        platform.name
    ]
    if ref == "dead server":
        channel = platform.build(media, "http://127.0.0.1:1")
    if ref == "forged token":
        field = {"whatsapp": "auth_token", "telegram": "token", "slack": "bot_token"}[platform.name]
        channel = local(platform, platforms, media, **{field: "7:forged-token"})
        handle = platforms.host(platform.fake, JPEG)
    with pytest.raises(FetchError) as caught:
        fetched(channel, handle)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    secrets = (
        *platform.secrets,
        "7:forged-token",
        TELEGRAM_TOKEN,
        SLACK_BOT_TOKEN,
        handle,
        "/Messages/",
        "files-pri",
    )
    assert not [secret for secret in secrets if secret in told]


def test_no_token_in_the_error_of_a_failed_telegram_download(
    media: MemoryMedia, wire: Wire, caplog: pytest.LogCaptureFixture
):
    """platforms.md 2.2: the link itself holds the token, which the second step must not show."""
    caplog.set_level(logging.DEBUG)
    file = {"file_id": "f", "file_unique_id": "u", "file_path": "photos/p.jpg"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/getFile"):
            return httpx.Response(200, json={"ok": True, "result": file})
        raise httpx.ConnectError(f"cannot reach {request.url}")

    wire.answer = answer
    with pytest.raises(FetchError) as caught:
        fetched(TELEGRAM.build(media, None), "f")
    assert wire.requests[-1].url.path == f"/file/bot{TELEGRAM_TOKEN}/photos/p.jpg"
    assert TELEGRAM_TOKEN not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_file_arrives(platform: Platform, platforms: FakePlatforms, media: MemoryMedia):
    """The bytes are those that the person sent, found by the reference of the webhook."""
    ref = platforms.host(platform.fake, JPEG)
    assert fetched(local(platform, platforms, media), ref, size=len(JPEG)) == JPEG


def test_without_api_url_the_platforms_own_servers_are_asked(media: MemoryMedia, wire: Wire):
    """The request goes to the address in the webhook, with that platform's credentials."""
    wire.answer = lambda _: sent(JPEG)
    assert (
        fetched(WHATSAPP.build(media, None), TWILIO_FILE)
        == fetched(SLACK.build(media, None), SLACK_FILE)
        == JPEG
    )
    twilio, slack = wire.requests
    assert (str(twilio.url), str(slack.url)) == (TWILIO_FILE, SLACK_FILE)
    assert twilio.headers["authorization"].startswith("Basic ")
    assert slack.headers["authorization"] == f"Bearer {SLACK_BOT_TOKEN}"
