"""Wire: one connection to Redis that carries the commands of a whole event loop at once, in the order they were asked.

What many coroutines ask in one moment travels in one packet and, with a synchronous append-only file, is on disk after
one fsync.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

from hiredis import HiredisError, PushNotification, Reader
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.connection import DefaultParser
from redis.exceptions import BusyLoadingError, InvalidResponse, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

log = logging.getLogger(__name__)

#: Tries of one command, and of one connect, before those who wait are told that Redis is away.
MAX_TRIES = 8
#: Seconds without any answer after which a connection counts as lost.
ANSWER_SECONDS = 5.0
#: Seconds that opening a connection may take, greetings included: a stopped server lets us in and says nothing.
CONNECT_SECONDS = 2.0
#: The first and the longest pause between two tries to connect, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

_NOT_YET = object()


@dataclass(slots=True, eq=False)
class _Question:
    """A command that somebody waits for, and how often it was sent."""

    packed: bytes
    answer: asyncio.Future[Any]
    tries: int = 0


class Wire:
    """Belongs to the event loop that asks first, until that one is closed, and connects when first asked.

    A command whose answer was lost is sent again, so what is sent must bear being sent twice, as our scripts do.
    """

    def __init__(
        self,
        url: str,
        *,
        chance: Callable[[], float] = random.random,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = ConnectionPool.from_url(url, decode_responses=True, socket_connect_timeout=1)
        #: What is said first on a new connection: it yields commands, is sent the answers, and raises when the
        #: connection must not be used.
        self.greeting: Callable[[], Generator[tuple[str | int, ...], Any, None]] | None = None
        self._chance = chance
        self._rest = rest
        self._owning = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._begin()

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this loop may ask. Another one, of another thread or of a forked parent, goes another way."""
        if self._loop is loop:
            return True
        with self._owning:
            if self._loop is None or self._loop.is_closed():
                self._loop = loop
                self._begin()
            return self._loop is loop

    async def ask(self, packed: bytes) -> Any:
        """The server's answer to a packed command. Raises redis.RedisError, and RuntimeError on another loop."""
        loop = asyncio.get_running_loop()
        if not self.serves(loop):
            raise RuntimeError("this wire belongs to another event loop")
        if self._closed:
            raise RedisConnectionError("closed")
        question = _Question(packed, loop.create_future())
        self._unsent.append(question)
        self._schedule()
        return await question.answer

    async def close(self) -> None:
        """Hang up for good. Who still waits is told that the connection is gone."""
        self._closed = True
        if self._connecting:
            self._connecting.cancel()
        if self._line:
            self._line.hang_up()
        self._fail(RedisConnectionError("closed"))

    def _begin(self) -> None:
        self._unsent: deque[_Question] = deque()
        self._line: _Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._flush_due = False
        #: Connections lost in a row that had answered nothing.
        self._mute = 0

    def _schedule(self) -> None:
        """Send it now, or, where something was sent in this round of the loop, at its end with whatever else is asked
        until then: what tells that a reply is sent has no time to lose.
        """
        loop = asyncio.get_running_loop()
        if self._line is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = loop.create_task(self._connect())
        elif not self._flush_due:
            self._flush_due = True
            loop.call_soon(self._flush)
            self._send()

    def _flush(self) -> None:
        self._flush_due = False
        self._send()

    def _send(self) -> None:
        if self._line is None or not self._unsent:
            return
        # What nobody waits for any more, and was never sent, is not done behind their backs.
        questions = [question for question in self._unsent if not question.answer.done()]
        self._unsent.clear()
        for question in questions:
            if question.tries >= MAX_TRIES:
                _refuse(question, RedisConnectionError(f"no answer in {MAX_TRIES} tries"))
        self._line.send([question for question in questions if question.tries < MAX_TRIES])

    async def _connect(self) -> None:
        """Connect, with growing pauses; when that fails for good, tell all who wait."""
        error: Exception = RedisConnectionError("never tried")
        for number in range(MAX_TRIES):
            if number or self._mute:
                await self._rest(self._pause(max(number, self._mute)))
            try:
                self._line = await self._opened()
            except Exception as exc:  # noqa: BLE001  # whatever it is, those who wait must hear of it
                error = exc
                continue
            self._flush()
            return
        self._fail(RedisConnectionError(f"cannot connect: {error or type(error).__name__}"))

    async def _opened(self) -> _Line:
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's own
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's own
                if self.greeting:
                    await _greet(connection, self.greeting())
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return _Line(connection, self._lost)

    def _pause(self, failures: int) -> float:
        # Past ten doublings it is the longest pause anyway, and a thousand would be no float any more.
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10)) * (0.5 + self._chance() / 2)

    def _lost(self, unanswered: list[_Question], heard: bool) -> None:
        """The connection is gone: what it had not answered is asked again, in the same order."""
        self._line, self._mute = None, 0 if heard else self._mute + 1
        self._unsent.extendleft(reversed([question for question in unanswered if not question.answer.done()]))
        if self._closed:
            self._fail(RedisConnectionError("closed"))
        elif self._unsent:
            self._schedule()

    def _fail(self, error: RedisError) -> None:
        while self._unsent:
            _refuse(self._unsent.popleft(), error)


class _Line(asyncio.Protocol):
    """One open connection: commands out, answers back in the same order."""

    def __init__(self, connection: AbstractConnection, lost: Callable[[list[_Question], bool], None]) -> None:
        self._connection = connection  # it closes its socket when it is collected
        self._lost = lost
        self._reader = Reader(
            encoding="utf-8", errors="strict", replyError=DefaultParser.parse_error, notEnoughData=_NOT_YET
        )
        self._asked: deque[_Question] = deque()
        # redis-py has no door to its socket.
        self._transport: Any = cast("asyncio.StreamWriter", connection._writer).transport  # noqa: SLF001
        self._transport.set_protocol(self)
        self._heard_at = asyncio.get_running_loop().time()
        self._heard = False
        self._watch: asyncio.TimerHandle | None = None

    def send(self, questions: list[_Question]) -> None:
        """Send these commands in one write."""
        for question in questions:
            question.tries += 1
        if not self._asked:
            self._heard_at = asyncio.get_running_loop().time()
        self._asked.extend(questions)
        self._transport.write(b"".join([question.packed for question in questions]))
        if self._watch is None and self._asked:
            self._look_later()

    def hang_up(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand each answer to who asked."""
        self._heard_at = asyncio.get_running_loop().time()
        self._reader.feed(data)
        while (answer := self._next()) is not _NOT_YET:
            if isinstance(answer, PushNotification):  # news of the server's own, nobody's answer
                continue
            if isinstance(answer, BusyLoadingError):  # it is starting: as good as away
                self.hang_up()
                return
            if not self._asked:  # each answer from here on would go to the wrong one
                log.error("redis.out_of_step")
                self.hang_up()
                return
            self._heard = True
            _give(self._asked.popleft(), answer)

    def _next(self) -> Any:
        try:
            return self._reader.gets()
        except UnicodeDecodeError as exc:  # an answer, read to its end
            return InvalidResponse(f"an answer that is no text: {exc.reason}")
        except HiredisError as exc:
            log.error("redis.out_of_step", extra={"reason": type(exc).__name__})
            self.hang_up()
            return _NOT_YET

    def connection_lost(self, _: Exception | None) -> None:
        """Give back what was not answered."""
        if self._watch:
            self._watch.cancel()
        unanswered, self._asked = list(self._asked), deque()
        self._lost(unanswered, self._heard)

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(ANSWER_SECONDS / 5, self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._asked:
            return
        if asyncio.get_running_loop().time() - self._heard_at > ANSWER_SECONDS:
            log.warning("redis.silent", extra={"seconds": ANSWER_SECONDS})
            self.hang_up()
            return
        self._look_later()


async def _greet(connection: AbstractConnection, talk: Generator[tuple[str | int, ...], Any, None]) -> None:
    try:
        command = next(talk)
        while True:
            try:
                await connection.send_command(*command)
                answer = await connection.read_response()
            except RedisError as exc:
                command = talk.throw(exc)
            else:
                command = talk.send(answer)
    except StopIteration:
        return


def _give(question: _Question, answer: Any) -> None:
    if question.answer.done():  # who asked was cancelled meanwhile
        return
    if isinstance(answer, Exception):
        question.answer.set_exception(answer)
    else:
        question.answer.set_result(answer)


def _refuse(question: _Question, error: RedisError) -> None:
    if not question.answer.done():
        question.answer.set_exception(error)
