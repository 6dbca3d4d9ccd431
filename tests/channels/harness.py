"""Harness: one small description of each platform, so that the contract suite can speak to all of them alike."""

from __future__ import annotations

import asyncio
import hashlib
import html
import struct
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from channels.base import Channel
from channels.fakes import platforms as fakes
from channels.fakes import signing
from channels.markup import slack_mrkdwn, telegram_length, whatsapp_text
from channels.slack import SlackChannel
from channels.telegram import TelegramChannel
from channels.types import Conversation, Hook, Media
from channels.whatsapp import WhatsAppChannel

NOW = 1795204800.0
WHATSAPP_URL = "https://bots.example.com/hooks/whatsapp?tenant=a%20b"


def png() -> bytes:
    """A real picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


FILES = {"img": png(), "pdf": b"%PDF-1.4 \r\n\x00\xff--binary\r\n"}
IMAGE = Media("img", "image/png", "red.png", stored=True)
PDF = Media("pdf", "application/pdf", "bill.pdf", stored=True)


class MemoryMedia:
    """A media source of the files above, served on a local port for Twilio to fetch."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _FileHandler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def read(self, ref: str) -> bytes:
        """The bytes of a file."""
        return FILES[ref]

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Where Twilio may fetch it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{ref}/{mime_type.replace('/', '~')}/{filename}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _FileHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _, ref, mime, filename = self.path.split("/")
        self.send_response(200)
        self.send_header("Content-Type", mime.replace("~", "/"))
        self.send_header("Content-Disposition", f'attachment; filename="{filename}"')
        self.end_headers()
        self.wfile.write(FILES[ref])

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class MemoryNotebook:
    """A notebook of one process."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """The note, if there is one."""
        return self.notes.get(key)

    def put(self, key: str, value: str) -> None:
        """Note a value."""
        self.notes[key] = value


@dataclass(frozen=True)
class Platform:
    """What the contract suite must know of a platform."""

    name: str
    fake: str
    conversation: Conversation
    user_id: str
    secrets: tuple[str, ...]
    limit: int
    button_limit: int
    measure: Callable[[str], int]
    build: Callable[[MemoryMedia, str | None], Channel]
    text: Callable[[int, str], Hook]
    tap: Callable[[int, str], Hook]


def hook(signed: signing.Signed, url: str = "https://bots.example.com/hooks/x", now: float = NOW) -> Hook:
    """A signed request as a Hook."""
    headers, body = signed
    return Hook(url=url, headers=headers, body=body, now=now)


def sha256(data: bytes) -> str:
    """The digest the ledger shows."""
    return hashlib.sha256(data).hexdigest()


def whatsapp(media: MemoryMedia, api_url: str | None, **extra: Any) -> WhatsAppChannel:
    """A WhatsApp channel with the fakes' credentials."""
    settings: dict[str, Any] = {
        "account_sid": fakes.TWILIO_ACCOUNT_SID,
        "auth_token": fakes.TWILIO_AUTH_TOKEN,
        "from_": "whatsapp:+14155238886",
        "notebook": MemoryNotebook(),
    }
    return WhatsAppChannel("wa", media=media, api_url=api_url, **{**settings, **extra})


def telegram(media: MemoryMedia, api_url: str | None, **extra: Any) -> TelegramChannel:
    """A Telegram channel with the fakes' credentials."""
    settings: dict[str, Any] = {
        "token": fakes.TELEGRAM_TOKEN,
        "secret_token": fakes.TELEGRAM_SECRET,
        "notebook": MemoryNotebook(),
    }
    return TelegramChannel("tg", media=media, api_url=api_url, **{**settings, **extra})


def slack(media: MemoryMedia, api_url: str | None, **extra: Any) -> SlackChannel:
    """A Slack channel with the fakes' credentials."""
    settings: dict[str, Any] = {
        "bot_token": fakes.SLACK_BOT_TOKEN,
        "signing_secret": fakes.SLACK_SIGNING_SECRET,
    }
    return SlackChannel("sl", media=media, api_url=api_url, **{**settings, **extra})


def whatsapp_hook(form: dict[str, str], url: str = WHATSAPP_URL) -> Hook:
    """A form signed by Twilio."""
    return hook(signing.whatsapp_hook(url, fakes.TWILIO_AUTH_TOKEN, form), url)


def telegram_hook(update: Mapping[str, Any]) -> Hook:
    """An update with the right secret."""
    return hook(signing.telegram_hook(fakes.TELEGRAM_SECRET, update))


def slack_hook(body: bytes, now: float = NOW) -> Hook:
    """A body signed by Slack at NOW, arriving at `now`."""
    return hook(signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, NOW), now=now)


def _sid(number: int) -> str:
    return f"SM{number:032x}"


def _whatsapp_text(number: int, text: str) -> Hook:
    return whatsapp_hook(signing.whatsapp_text(_sid(number), text, account_sid=fakes.TWILIO_ACCOUNT_SID))


def _whatsapp_tap(number: int, data: str) -> Hook:
    return whatsapp_hook(signing.whatsapp_tap(_sid(number), data, account_sid=fakes.TWILIO_ACCOUNT_SID))


WHATSAPP = Platform(
    name="whatsapp",
    fake="twilio",
    conversation=Conversation("wa", "whatsapp:+4915100000042"),
    user_id="whatsapp:DE.5100000042",
    secrets=(fakes.TWILIO_AUTH_TOKEN, "+4915100000042"),
    limit=1600,
    button_limit=1024,
    measure=lambda md: len(whatsapp_text(md)),
    build=whatsapp,
    text=_whatsapp_text,
    tap=_whatsapp_tap,
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
    text=lambda number, text: telegram_hook(signing.telegram_text(number, text)),
    tap=lambda number, data: telegram_hook(signing.telegram_tap(number, data)),
)
SLACK = Platform(
    name="slack",
    fake="slack",
    conversation=Conversation("sl", "D0ADA"),
    user_id="U0ADA",
    secrets=(fakes.SLACK_BOT_TOKEN, fakes.SLACK_SIGNING_SECRET),
    limit=3000,
    button_limit=3000,
    measure=lambda md: len(slack_mrkdwn(md)),
    build=slack,
    text=lambda number, text: slack_hook(
        signing.slack_text(f"1795204800.{number:06d}", html.escape(text, quote=False))
    ),
    tap=lambda number, data: slack_hook(signing.slack_tap(f"1.2.{number}", data)),
)
ALL = (WHATSAPP, TELEGRAM, SLACK)


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[tuple[str, list[object]]]:
    """Its address, and the connections it was given; each request on one of them is answered so."""
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
