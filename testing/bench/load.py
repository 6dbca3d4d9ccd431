"""The load of the benchmark: people who write Slack messages, and a Slack that gets the answers.

Both run on one event loop and do as little as possible, so that this command takes little of the
machine that it measures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self, cast

from sayso.channels.slack.incoming import slack_hook
from sayso.testing.platforms.fake_platforms import SLACK_SIGNING_SECRET
from sayso.testing.platforms.webhooks import slack_text

#: Seconds to wait for an answer before the run is given up.
PATIENCE = 60.0

#: The answer of Slack to every call.
_ACCEPTED = json.dumps({"ok": True, "ts": "1795300000.000001"}).encode()
_RESPONSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(_ACCEPTED)
)
#: The name of the Slack channel in the configuration of the benchmark.
CHANNEL = "desk"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What happened to one message."""

    #: The HTTP status of its webhook; 0 if the connection broke.
    status: int
    #: The seconds until the web answered the webhook.
    accept_seconds: float
    #: The seconds until the bot sent its answer; 0 if it was not accepted, or not waited for.
    reply_seconds: float = 0.0


class Answer(NamedTuple):
    """One answer of the bot."""

    #: When it came, as `time.perf_counter` counts.
    at: float
    text: str


@dataclass(slots=True)
class SlackLoad:
    """Sends and receives messages inside `async with`, on the loop that runs it.

    Each message is from another chat, because the rate limit of one chat is too low. Chats are
    direct messages: their names begin with D. The strict fakes of `sayso.testing.platforms` would
    cost more than what is measured.

    Connections to the web stay open, and each has a number. Messages that are sent at once need
    different connections.
    """

    #: Where the bot reaches this Slack; "" before `async with`.
    url: str = ""
    #: The answers to each chat, in order.
    answers: dict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    #: By chat: gets the time of the answer that a message waits for.
    _waiting: dict[str, asyncio.Future[float]] = field(default_factory=dict)
    #: By port and number of the connection.
    _connections: dict[tuple[int, int], Connection] = field(default_factory=dict)
    _message_numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _MinimalSlack(self._add_answer), "127.0.0.1", 0, backlog=1024
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        if self._server:
            self._server.close()

    async def say(self, port: int, text: str, *, connection: int = 0) -> float:
        """Send a message to the web at a port and wait for the answer. Return the seconds between.

        `connection` is the number of the connection. Raises AssertionError unless the message was
        accepted, and TimeoutError after PATIENCE seconds.
        """
        exchange = await self.exchange(port, text, connection=connection)
        assert exchange.status == 200, exchange.status  # noqa: S101  # for benchmarks only
        return exchange.reply_seconds

    async def exchange(self, port: int, text: str, *, connection: int = 0) -> Exchange:
        """Send a message as `say` does, and return all times.

        Raises TimeoutError after PATIENCE seconds.
        """
        message_number = next(self._message_numbers)
        chat = f"D{message_number:07}"
        answered_at = asyncio.get_running_loop().create_future()
        self._waiting[chat] = answered_at
        started = time.perf_counter()
        packed = request(port, chat, text, message_number)
        status = await self._post(port, connection, packed)
        accept_seconds = time.perf_counter() - started
        if status != 200:
            del self._waiting[chat]
            return Exchange(status, accept_seconds)
        async with asyncio.timeout(PATIENCE):
            reply_seconds = await answered_at - started
        return Exchange(status, accept_seconds, reply_seconds)

    async def deliver(self, port: int, text: str, *, connection: int = 0) -> Exchange:
        """Send a message, and wait for no answer."""
        message_number = next(self._message_numbers)
        started = time.perf_counter()
        packed = request(port, f"D{message_number:07}", text, message_number)
        status = await self._post(port, connection, packed)
        return Exchange(status, time.perf_counter() - started)

    async def until_answered(self, count: int) -> float:
        """Wait until this many answers arrived in all.

        Return when the last one arrived, as `time.perf_counter` counts. Raises TimeoutError after
        PATIENCE seconds.
        """
        deadline = time.perf_counter() + PATIENCE
        while True:
            arrived = sum(len(answers) for answers in self.answers.values())
            if arrived >= count:
                return max(answers[-1].at for answers in self.answers.values())
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{arrived} of {count} answers")
            await asyncio.sleep(0.005)

    async def _post(self, port: int, connection_number: int, packed: bytes) -> int:
        """Send a request on a connection. Return the status, 0 if the connection broke."""
        connection = self._connections.get((port, connection_number))
        # A web closes a connection that was idle for long.
        if connection is None or connection.reader.at_eof():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connection = Connection(reader, writer)
            self._connections[port, connection_number] = connection
        try:
            return await connection.post(packed)
        except (asyncio.IncompleteReadError, ConnectionError):
            del self._connections[port, connection_number]
            return 0

    def _add_answer(self, chat: str, text: str) -> None:
        now = time.perf_counter()
        self.answers[chat].append(Answer(now, text))
        waiting = self._waiting.pop(chat, None)
        # The wait may have been cancelled meanwhile.
        if waiting and not waiting.done():
            waiting.set_result(now)


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection to a web process, which stays open between requests."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, packed: bytes) -> int:
        """Send a request and read its answer. Return the status.

        Raises asyncio.IncompleteReadError and ConnectionError.
        """
        self.writer.write(packed)
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(_content_length(head))
        return int(head[9:12])  # after "HTTP/1.1 "

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


def _content_length(head: bytes) -> int:
    """Return the length of the body that the head of a request or response announces."""
    value = head.lower().partition(b"content-length:")[2]
    return int(value.partition(b"\r\n")[0])


class _MinimalSlack(asyncio.Protocol):
    """Slack on one connection: the same answer to each request, one after the other.

    `add_answer` is called with the channel and the text of each message.
    """

    _transport: asyncio.Transport

    def __init__(self, add_answer: Callable[[str, str], None]) -> None:
        self._add_answer = add_answer
        #: What was received of the next request.
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = _content_length(head)
        if len(rest) < length:
            return
        self._buffer = rest[length:]

        is_last = b"connection: close" in head.lower()
        end_of_head = b"Connection: close\r\n\r\n" if is_last else b"\r\n"
        self._transport.write(_RESPONSE_HEAD + end_of_head + _ACCEPTED)
        if is_last:
            self._transport.close()

        params = json.loads(rest[:length])
        # The call that shows "is thinking..." has no text.
        if "text" in params:
            self._add_answer(params["channel"], params["text"])


def request(port: int, chat: str, text: str, message_number: int) -> bytes:
    """Return a signed message as one HTTP request, ready to be sent."""
    event_body = event(chat, text, message_number)
    headers, body = slack_hook(SLACK_SIGNING_SECRET, event_body, time.time())
    lines = [
        f"POST /hooks/{CHANNEL} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
    ]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode() + body


def event(chat: str, text: str, message_number: int) -> bytes:
    """Return the body of a message, different for each number.

    All messages of a chat are in one thread, because the adapter makes each thread a conversation.
    """
    ts = f"{1795204800 + message_number // 1_000_000}.{message_number % 1_000_000:06}"
    thread = {"thread_ts": "1795204799.000100", "parent_user_id": f"U{chat}"}
    return slack_text(ts, text, user=f"U{chat}", channel=chat, **thread)
