"""Harness: one small description per platform, through which the contract suite drives all of them."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import struct
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, BinaryIO
from urllib.parse import quote
from urllib.request import urlopen

from sayso.channels.base import AdapterDeps, Channel
from sayso.channels.console.adapter import MAX_PIECE_CHARS, ConsoleChannel
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.store import Feed
from sayso.channels.markdown.convert import slack_mrkdwn, telegram_length, whatsapp_text
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.telegram.adapter import TelegramChannel
from sayso.channels.telegram.settings import TelegramSettings
from sayso.channels.types import Button, Conversation, Media, WebhookRequest
from sayso.channels.whatsapp.adapter import WhatsAppChannel
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.examples.json_webhook.sayso_json_webhook import MAX_CHARS
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from tests.channels.console.echo import DownFeed
from tests.channels.json_webhook import CHAT, SECRET, json_webhook, json_webhook_hook
from tests.channels.parts import adapter_deps
from tests.memory_stores import MemoryChats, MemoryFeed, MemoryLogins, MemorySharedCache
from tests.scratch_redis import new_identities

NOW = 1795204800.0
WHATSAPP_URL = "https://bots.example.com/hooks/whatsapp?tenant=a%20b"


def png() -> bytes:
    """Return a picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


YES_NO = (Button("Yes", "a:1:yes", "primary"), Button("No", "a:1:no", "danger"))
FILES = {"img": png(), "pdf": b"%PDF-1.4 \r\n\x00\xff--binary\r\n"}
IMAGE = Media("img", "image/png", "red.png", size=len(FILES["img"]), stored=True)
PDF = Media("pdf", "application/pdf", "bill.pdf", stored=True)


class MemoryMedia:
    """A media source with the files above, served on a local port from which Twilio fetches them."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _FileHandler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def open(self, ref: str) -> BinaryIO:
        """Open a file."""
        return BytesIO(FILES[ref])

    def read(self, ref: str) -> bytes:
        """Return the bytes of a file."""
        return FILES[ref]

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return the URL of a file."""
        return f"{self.address}/{ref}/{mime_type.replace('/', '~')}/{quote(filename)}"

    @property
    def address(self) -> str:
        """Return the address of the file server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _FileHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _, ref, mime, filename = self.path.split("/")
        self.send_response(200)
        self.send_header("Content-Type", mime.replace("~", "/"))
        self.send_header("Content-Disposition", f"attachment; filename*=UTF-8''{filename}")
        self.end_headers()
        self.wfile.write(FILES[ref])

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def fetch_bytes(channel: Channel, media: Media) -> bytes:
    """Fetch an inbound file into memory."""
    file = BytesIO()
    asyncio.run(channel.fetch(media, file))
    return file.getvalue()


Seen = list[dict[str, Any]]


def _ledger(_: Any, platforms: fakes.FakePlatforms) -> Seen:
    return platforms.sent


@dataclass(frozen=True)
class Platform:
    """What the contract suite must know of a platform.

    `fake` is the name of its server, "" where it needs none. `proofs` are the headers that prove a hook, none for all
    of them; `is_signed` says that they cover the body. `seen` tells what the person sees, with the buttons that work;
    `edits` says that messages can be changed there, and `gone` looks like the id of one.
    """

    name: str
    fake: str
    conversation: Conversation
    user_id: str
    secrets: tuple[str, ...]
    limit: int
    button_limit: int
    measure: Callable[[str], int]
    build: Callable[[MemoryMedia, str | None], Channel]
    text: Callable[[int, str], WebhookRequest]
    tap: Callable[[int, str], WebhookRequest]
    proofs: tuple[str, ...] = ()
    is_signed: bool = True
    seen: Callable[[Any, fakes.FakePlatforms], Seen] = _ledger
    edits: bool = False
    gone: str = ""

    def __repr__(self) -> str:
        return self.name

    def open(self, media: MemoryMedia, platforms: fakes.FakePlatforms) -> Channel:
        """Return the platform's adapter, connected to its fake where there is one."""
        return self.build(media, f"{platforms.url}/{self.fake}" if self.fake else None)


def hook(
    signed: signing.SignedWebhook, url: str = "https://bots.example.com/hooks/x", now: float = NOW
) -> WebhookRequest:
    """Return a signed request."""
    headers, body = signed
    return WebhookRequest(url=url, headers=headers, body=body, now=now)


def sha256(data: bytes) -> str:
    """Return the digest that the log of the fakes shows."""
    return hashlib.sha256(data).hexdigest()


def whatsapp(media: MemoryMedia, api_url: str | None, **extra: Any) -> WhatsAppChannel:
    """Return a WhatsApp channel with the fakes' credentials."""
    settings = {
        "platform": "whatsapp", "account_sid": fakes.TWILIO_ACCOUNT_SID, "auth_token": fakes.TWILIO_AUTH_TOKEN,
        "from_": "whatsapp:+14155238886", "api_url": api_url,
    }  # fmt: skip
    extra = {"identities": new_identities(), **extra}
    return WhatsAppChannel(
        "wa", WhatsAppSettings(**{**settings, **_without_parts(extra)}), _deps(media, extra)
    )


def telegram(media: MemoryMedia, api_url: str | None, **extra: Any) -> TelegramChannel:
    """Return a Telegram channel with the fakes' credentials."""
    settings = {
        "platform": "telegram", "token": fakes.TELEGRAM_TOKEN, "secret_token": fakes.TELEGRAM_SECRET,
        "api_url": api_url,
    }  # fmt: skip
    return TelegramChannel(
        "tg", TelegramSettings(**{**settings, **_without_parts(extra)}), _deps(media, extra)
    )


def slack(media: MemoryMedia, api_url: str | None, **extra: Any) -> SlackChannel:
    """Return a Slack channel with the fakes' credentials."""
    settings = {
        "platform": "slack", "bot_token": fakes.SLACK_BOT_TOKEN, "signing_secret": fakes.SLACK_SIGNING_SECRET,
        "api_url": api_url,
    }  # fmt: skip
    return SlackChannel(
        "sl", SlackSettings(**{**settings, **_without_parts(extra)}), _deps(media, extra)
    )


#: Keywords for what an adapter may use. All others are settings.
PARTS = ("cache", "identities", "public_url")


def _without_parts(extra: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in extra.items() if key not in PARTS}


def _deps(media: MemoryMedia, extra: dict[str, Any]) -> AdapterDeps:
    return adapter_deps(
        media,
        **{"cache": MemorySharedCache(), **{key: extra[key] for key in PARTS if key in extra}},
    )


def whatsapp_hook(form: dict[str, str], url: str = WHATSAPP_URL) -> WebhookRequest:
    """Return a form that Twilio signed."""
    return hook(signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form), url)


def telegram_hook(update: Mapping[str, Any]) -> WebhookRequest:
    """Return an update with the right secret."""
    return hook(signing.telegram_hook(fakes.TELEGRAM_SECRET, update))


def slack_hook(body: bytes, now: float = NOW) -> WebhookRequest:
    """Return a body that Slack signed at NOW and that arrives at `now`."""
    return hook(signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, NOW), now=now)


def _sid(number: int) -> str:
    return f"SM{number:032x}"


def _whatsapp_text(number: int, text: str) -> WebhookRequest:
    return whatsapp_hook(
        signing.whatsapp_text(_sid(number), text, account_sid=fakes.TWILIO_ACCOUNT_SID)
    )


def _whatsapp_tap(number: int, data: str) -> WebhookRequest:
    return whatsapp_hook(
        signing.whatsapp_tap(_sid(number), data, account_sid=fakes.TWILIO_ACCOUNT_SID)
    )


WHATSAPP = Platform(
    name="whatsapp",
    fake="twilio",
    conversation=Conversation("wa", "whatsapp:DE.5100000042"),
    user_id="whatsapp:DE.5100000042",
    secrets=(fakes.TWILIO_AUTH_TOKEN, "+4915100000042"),
    limit=1600,
    button_limit=1024,
    measure=lambda md: len(whatsapp_text(md)),
    build=whatsapp,
    text=_whatsapp_text,
    tap=_whatsapp_tap,
    gone="SM00000000000000000000000000000063",
)
TELEGRAM = Platform(
    name="telegram",
    fake="telegram",
    conversation=Conversation("tg", "5123456789"),
    user_id="5123456789",
    secrets=(fakes.TELEGRAM_TOKEN, fakes.TELEGRAM_SECRET),
    limit=4096,
    button_limit=4096,
    measure=telegram_length,
    build=telegram,
    proofs=("x-telegram-bot-api-secret-token",),
    is_signed=False,
    text=lambda number, text: telegram_hook(signing.telegram_text(number, text)),
    tap=lambda number, data: telegram_hook(signing.telegram_tap(number, data)),
    edits=True,
    gone="99",
)
#: The thread of a direct message in which the person of the contract writes.
SLACK_THREAD = "1795204799.000100"
SLACK = Platform(
    name="slack",
    fake="slack",
    conversation=Conversation("sl", "D0ADA", SLACK_THREAD),
    user_id="U0ADA",
    secrets=(fakes.SLACK_BOT_TOKEN, fakes.SLACK_SIGNING_SECRET),
    limit=3000,
    button_limit=3000,
    measure=lambda md: len(slack_mrkdwn(md)),
    build=slack,
    text=lambda number, text: slack_hook(
        signing.slack_text(
            f"1795204800.{number:06d}", html.escape(text, quote=False), thread_ts=SLACK_THREAD
        )
    ),
    tap=lambda number, data: slack_hook(
        signing.slack_tap(f"1.2.{number}", data, thread_ts=SLACK_THREAD)
    ),
    edits=True,
    gone="1795204700.000099",
)
JSON_WEBHOOK = Platform(
    name="json_webhook",
    fake="json_webhook",
    conversation=CHAT,
    user_id="ana",
    secrets=(SECRET,),
    limit=MAX_CHARS,
    button_limit=MAX_CHARS,
    measure=len,
    build=json_webhook,
    proofs=("x-signature",),
    text=lambda number, text: json_webhook_hook(number, text=text),
    tap=lambda number, data: json_webhook_hook(number, tap=data),
    edits=True,
    gone="99",
)
#: The platforms with an HTTP API, which can be slow, full or down.
ALL = (WHATSAPP, TELEGRAM, SLACK)


class ShownConsole(ConsoleChannel):
    """A console whose feed is in this process, or unreachable."""

    def __init__(self, media: MemoryMedia, feed: Feed) -> None:
        super().__init__(
            "web",
            ConsoleSettings(platform="console"),
            adapter_deps(media, keys=["console-test-key"]),
            feed=feed,
            chats=MemoryChats(),
            logins=MemoryLogins(),
        )
        self.media = media


def console(media: MemoryMedia, api_url: str | None) -> ShownConsole:
    """Return a console channel; with an address, its feed is unreachable."""
    return ShownConsole(media, DownFeed() if api_url else MemoryFeed())


def shown(channel: ShownConsole, _: fakes.FakePlatforms) -> Seen:
    """Return what the page shows after each entry was applied as console.js does it."""
    bubbles: dict[str, dict[str, Any]] = {}
    for entry_id, entry in channel.entries(CONSOLE.conversation, ""):
        if entry["type"] in ("bubble", "edit", "draft"):
            bubbles[entry.get("of", entry_id)] = entry
    return [_bubble(entry, channel.media) for entry in bubbles.values()]


def _bubble(entry: Mapping[str, Any], source: MemoryMedia) -> dict[str, Any]:
    buttons = [{"label": each["label"], "data": each["data"]} for each in entry.get("buttons", ())]
    media = entry.get("media") and _downloaded(
        source.address + entry["media"]["url"], entry["media"]["filename"]
    )
    text = entry.get("text") or re.sub("<[^>]*>", "", entry["html"]).strip()
    return {"chat": CONSOLE.conversation.chat, "text": text, "buttons": buttons, "media": media}


def _downloaded(url: str, filename: str) -> dict[str, Any]:
    with urlopen(url) as answer:
        return {"sha256": sha256(answer.read()), "filename": filename}


def _console_hook(number: int, **said: str) -> WebhookRequest:
    body = json.dumps({"id": f"e{number}", **said}, ensure_ascii=False).encode()
    return console_hook(body)


def console_hook(body: bytes) -> WebhookRequest:
    """Return a request of the page of one browser."""
    headers = {
        "cookie": f"__Host-sayso_console_web={_SESSION}",
        "x-sayso-console": "1",
        "host": "bots.example.com",
    }
    return WebhookRequest("https://bots.example.com/hooks/web", headers, body, now=NOW)


_BROWSER = ShownConsole(MemoryMedia.__new__(MemoryMedia), MemoryFeed())
_SESSION = _BROWSER.sessions.new_identity()
CONSOLE = Platform(
    name="console",
    fake="",
    conversation=_BROWSER.conversation_of(_BROWSER.sessions.user_of(_SESSION), ""),
    user_id=_BROWSER.sessions.user_of(_SESSION),
    secrets=(),
    limit=MAX_PIECE_CHARS,
    button_limit=MAX_PIECE_CHARS,
    measure=len,
    build=console,
    text=lambda number, text: _console_hook(number, text=text),
    tap=lambda number, data: _console_hook(number, tap=data),
    proofs=("cookie",),
    is_signed=False,
    seen=shown,
    edits=True,
    gone="1-1",
)
EVERY = (*ALL, CONSOLE)


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[str, list[object]]]:
    """Run a server that gives this answer; yield its address and the list of its connections."""
    connections: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if not answer:
                break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", connections
