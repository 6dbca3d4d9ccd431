"""Street: people who write signed Slack messages, and the platform that gets the answers, timed on one event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, cast

from sayso.channels.slack.incoming import slack_hook
from sayso.testing.platforms.fake_platforms import SLACK_SIGNING_SECRET
from sayso.testing.platforms.webhooks import slack_text

#: Seconds to wait for an answer before the run is given up.
PATIENCE = 60.0

_HEARD = json.dumps({"ok": True, "ts": "1795300000.000001"}).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(_HEARD)


@dataclass(slots=True)
class Street:
    """Sends and receives messages inside `async with`, on the loop that runs it. `url` is the bot's URL of Slack.

    Chats are direct messages: the name of a chat begins with D.
    """

    url: str = ""
    #: The answers of each chat with their times, in order.
    heard: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[str, asyncio.Future[float]] = field(default_factory=dict)
    _doors: dict[tuple[int, int], Door] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Platform(self._hear), "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for door in self._doors.values():
            door.close()
        if self._server:
            self._server.close()

    async def say(self, port: int, text: str, *, line: int = 0) -> float:
        """Send a message to the web at a port and wait for the answer. Return the seconds between.

        Each message is from another chat, because a chat's rate limit is too low. `line` is the kept-alive connection
        to send on, for people who write at once.
        """
        number = next(self._numbers)
        chat = f"D{number:07}"
        waiting = self._waiting[chat] = asyncio.get_running_loop().create_future()
        door = await self._door(port, line)
        started = time.perf_counter()
        await door.post(request(port, chat, text, number))
        async with asyncio.timeout(PATIENCE):
            return await waiting - started

    async def until_heard(self, count: int) -> float:
        """Wait until this many answers arrived in all. Return when the last one did."""
        deadline = time.perf_counter() + PATIENCE
        while sum(map(len, self.heard.values())) < count:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{sum(map(len, self.heard.values()))} of {count} answers")
            await asyncio.sleep(0.005)
        return max(answers[-1][0] for answers in self.heard.values())

    async def _door(self, port: int, line: int) -> Door:
        door = self._doors.get((port, line))
        if door is None or door.reader.at_eof():  # a web closes a connection that was idle for long
            self._doors[port, line] = Door(*await asyncio.open_connection("127.0.0.1", port))
        return self._doors[port, line]

    def _hear(self, chat: str, text: str) -> None:
        at = time.perf_counter()
        self.heard[chat].append((at, text))
        waiting = self._waiting.pop(chat, None)
        if waiting and not waiting.done():
            waiting.set_result(at)


@dataclass(frozen=True, slots=True)
class Door:
    """One kept-alive connection to a web process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, packed: bytes) -> None:
        """Send a request and read its answer. Raises AssertionError unless it is 200."""
        self.writer.write(packed)
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.partition(b"\r\n")[0], head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self.reader.readexactly(int(length))

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class _Platform(asyncio.Protocol):
    """A minimal Slack: one connection, and one answer to each request."""

    _transport: asyncio.Transport

    def __init__(self, hear: Callable[[str, str], None]) -> None:
        self._hear = hear
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        lowered = head.lower()
        if not found or len(rest) < (length := int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])):
            return
        self._read = rest[length:]
        message = json.loads(rest[:length])
        closing = b"connection: close" in lowered
        self._transport.write(_ANSWER + (b"Connection: close\r\n\r\n" if closing else b"\r\n") + _HEARD)
        if closing:
            self._transport.close()
        self._hear(message["channel"], message["text"])


def request(port: int, chat: str, text: str, number: int) -> bytes:
    """Return a signed message as one HTTP request, ready to be sent."""
    headers, body = slack_hook(SLACK_SIGNING_SECRET, event(chat, text, number), time.time())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /hooks/desk HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def event(chat: str, text: str, number: int) -> bytes:
    """Return the body of a message, different for each number."""
    return slack_text(
        f"{1795204800 + number // 1_000_000}.{number % 1_000_000:06}", text, user=f"U{chat}", channel=chat
    )
