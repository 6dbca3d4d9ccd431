"""SlackLoad: people who write signed Slack messages, and a Slack that gets the answers,
timed on one event loop.
"""

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

_SENT = json.dumps({"ok": True, "ts": "1795300000.000001"}).encode()
_RESPONSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(_SENT)
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message: the status of its webhook, and the seconds until it was
    accepted and until the answer was sent.

    The status is 0 where the connection broke.
    `reply_seconds` is 0 for a message that was not accepted.
    """

    status: int
    accept_seconds: float
    reply_seconds: float = 0.0


@dataclass(slots=True)
class SlackLoad:
    """Sends and receives messages inside `async with`, on the loop that runs it.

    `url` is the bot's URL of Slack.

    Chats are direct messages: the name of a chat begins with D. The strict fakes of
    `sayso.testing.platforms` would cost more than what is measured.
    """

    url: str = ""
    #: The answers of each chat with their times, in order.
    answers: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[str, asyncio.Future[float]] = field(default_factory=dict)
    _connections: dict[tuple[int, int], Connection] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Platform(self._take), "127.0.0.1", 0, backlog=1024
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        if self._server:
            self._server.close()

    async def say(self, port: int, text: str, *, line: int = 0) -> float:
        """Send a message to the web at a port and wait for the answer. Return the seconds between.

        Each message is from another chat, because a chat's rate limit is too low. `line` is the
        kept-alive connection to send on, for people who write at once. Raises AssertionError unless
        the message was accepted.
        """
        exchange = await self.exchange(port, text, line=line)
        assert exchange.status == 200, exchange.status  # noqa: S101  # nothing else is expected here
        return exchange.reply_seconds

    async def exchange(self, port: int, text: str, *, line: int = 0) -> Exchange:
        """Send a message as `say` does, and return all times.

        Raises TimeoutError after PATIENCE seconds.
        """
        number = next(self._numbers)
        chat = f"D{number:07}"
        waiting = self._waiting[chat] = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        status = await self._post(port, chat, text, number, line)
        accept_seconds = time.perf_counter() - started
        if status != 200:
            del self._waiting[chat]
            return Exchange(status, accept_seconds)
        async with asyncio.timeout(PATIENCE):
            return Exchange(status, accept_seconds, await waiting - started)

    async def deliver(self, port: int, text: str, *, line: int = 0) -> Exchange:
        """Send a message, and wait for no answer."""
        number = next(self._numbers)
        started = time.perf_counter()
        status = await self._post(port, f"D{number:07}", text, number, line)
        return Exchange(status, time.perf_counter() - started)

    async def until_answered(self, count: int) -> float:
        """Wait until this many answers arrived in all. Return when the last one did."""
        deadline = time.perf_counter() + PATIENCE
        while sum(map(len, self.answers.values())) < count:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{sum(map(len, self.answers.values()))} of {count} answers")
            await asyncio.sleep(0.005)
        return max(answers[-1][0] for answers in self.answers.values())

    async def _post(self, port: int, chat: str, text: str, number: int, line: int) -> int:
        connection = self._connections.get((port, line))
        # A web closes a connection that was idle for long.
        if connection is None or connection.reader.at_eof():
            connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
            self._connections[port, line] = connection
        try:
            return await connection.post(request(port, chat, text, number))
        except (asyncio.IncompleteReadError, ConnectionError):
            del self._connections[port, line]
            return 0

    def _take(self, chat: str, text: str) -> None:
        at = time.perf_counter()
        self.answers[chat].append((at, text))
        waiting = self._waiting.pop(chat, None)
        if waiting and not waiting.done():
            waiting.set_result(at)


@dataclass(frozen=True, slots=True)
class Connection:
    """One kept-alive connection to a web process."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, packed: bytes) -> int:
        """Send a request and read its answer. Return the status."""
        self.writer.write(packed)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self.reader.readexactly(int(length))
        return int(head[9:12])

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class _Platform(asyncio.Protocol):
    """A minimal Slack: one connection, and one answer to each request."""

    _transport: asyncio.Transport

    def __init__(self, take: Callable[[str, str], None]) -> None:
        self._take = take
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        lowered = head.lower()
        if not found or len(rest) < (
            length := int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])
        ):
            return
        self._read = rest[length:]
        message = json.loads(rest[:length])
        closing = b"connection: close" in lowered
        self._transport.write(
            _RESPONSE_HEAD + (b"Connection: close\r\n\r\n" if closing else b"\r\n") + _SENT
        )
        if closing:
            self._transport.close()
        if "text" in message:  # "is thinking…" has none
            self._take(message["channel"], message["text"])


def request(port: int, chat: str, text: str, number: int) -> bytes:
    """Return a signed message as one HTTP request, ready to be sent."""
    headers, body = slack_hook(SLACK_SIGNING_SECRET, event(chat, text, number), time.time())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /hooks/desk HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def event(chat: str, text: str, number: int) -> bytes:
    """Return the body of a message, different for each number, in the one thread of its chat."""
    ts = f"{1795204800 + number // 1_000_000}.{number % 1_000_000:06}"
    thread = {"thread_ts": "1795204799.000100", "parent_user_id": f"U{chat}"}
    return slack_text(ts, text, user=f"U{chat}", channel=chat, **thread)
