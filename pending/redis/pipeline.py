"""AutoPipeline: one connection to Redis that sends the commands of many coroutines together.

`redis.asyncio.Redis` opens a connection for each command that waits. Measured with 24 chats at once (web, worker and
a Redis that syncs each write, rounds alternated), a worker then needs 14 % more processor time for a turn and answers
5 % fewer turns a second; with 16 commands at once each costs 90 microseconds of it instead of 36. So the commands that
wait travel in one packet, over a plain connection of `redis.asyncio`. `valkey-glide` needs 73 microseconds and cannot
check a new connection before it is used (`sayso.workers.data_loss`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection, ConnectCallbackT
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

log = logging.getLogger(__name__)

#: How often commands are sent before their callers are told that Redis is away.
MAX_TRIES = 8
#: Seconds without an answer after which a connection counts as lost.
ANSWER_SECONDS = 5.0
#: Seconds that opening a connection may take, with its checks: a stopped server accepts it and says nothing.
CONNECT_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Command:
    """A packed command, and its answer."""

    packed: bytes
    answer: asyncio.Future[Any]


class AutoPipeline:
    """Sends commands for one event loop, and connects with the first one.

    It belongs to the loop that uses it first, until that loop is closed. A command whose answer was lost is sent again,
    so each command must be safe to repeat, as our scripts are.
    """

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        self._pool = ConnectionPool.from_url(url, decode_responses=True, socket_connect_timeout=1, socket_timeout=None)
        self._retry = retry or Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), MAX_TRIES - 1, (RedisError,))
        self._owner_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def on_connect(self, check: ConnectCallbackT) -> None:
        """From now on await `check` to set up each new connection. If it raises, the connection is not used."""
        self._pool.connection_kwargs["redis_connect_func"] = check

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this loop may use it. The loops of other threads and of forked processes may not."""
        if self._loop is loop:
            return True
        with self._owner_lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = loop
                #: Commands without an answer, in order: first those that were sent, then those that wait.
                self._commands: deque[_Command] = deque()
                self._connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
                self._sender: asyncio.Task[None] | None = None
            return self._loop is loop

    async def execute(self, packed: bytes) -> Any:
        """Send a packed command and return the answer. Raises redis.RedisError, and RuntimeError on another loop."""
        loop = asyncio.get_running_loop()
        if not self.serves(loop):
            raise RuntimeError("this pipeline belongs to another event loop")
        if self._closed:
            raise RedisConnectionError("closed")
        command = _Command(packed, loop.create_future())
        self._commands.append(command)
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all())
        return await command.answer

    async def close(self) -> None:
        """Close the connection for good. Callers that wait get an error."""
        self._closed = True
        if self._loop is None:
            return
        if self._sender:
            self._sender.cancel()
        self._fail("closed")
        await self._connection.disconnect(nowait=True)

    async def _send_all(self) -> None:
        """Send what waits, one packet after the other, until nothing waits."""
        while self._commands:
            try:
                await self._retry.call_with_retry(self._send_waiting, self._disconnect)
            except Exception as exc:  # noqa: BLE001  # callers must get an answer, whatever happened
                self._fail(f"no answer in {MAX_TRIES} tries: {exc or type(exc).__name__}")
                await self._connection.disconnect(nowait=True)

    async def _send_waiting(self) -> None:
        """Send all commands in one packet and read their answers. Raises RedisError when the connection is lost."""
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                if connection.is_connected and await connection.can_read():
                    # It was closed, or there is an answer to no command: the next one would be taken for ours.
                    await connection.disconnect(nowait=True)
                if not connection.is_connected:
                    await connection.connect()  # type: ignore[no-untyped-call]
                # A command that was not sent yet, and whose caller was cancelled, is never sent.
                self._commands = deque(command for command in self._commands if not command.answer.done())
                limit.reschedule(loop.time() + ANSWER_SECONDS)
                packet = [command.packed for command in self._commands]
                if not packet:
                    return
                await connection.send_packed_command(packet, check_health=False)
                for _ in packet:
                    answer = await _read(connection)
                    _settle(self._commands.popleft(), answer)
                    limit.reschedule(loop.time() + ANSWER_SECONDS)
        except TimeoutError:
            raise RedisTimeoutError("Redis does not answer") from None
        except OSError as exc:
            raise RedisConnectionError(str(exc)) from exc

    async def _disconnect(self, error: Exception) -> None:
        if isinstance(error, RedisTimeoutError):
            log.warning("redis.silent")
        elif isinstance(error, InvalidResponse):
            log.error("redis.out_of_step")
        await self._connection.disconnect(nowait=True)

    def _fail(self, reason: str) -> None:
        while self._commands:
            _settle(self._commands.popleft(), RedisConnectionError(reason))


async def _read(connection: AbstractConnection) -> Any:
    """Read an answer; an error reply is returned as an exception. Raises RedisError when the connection is lost."""
    try:
        return await connection.read_response(disconnect_on_error=False)
    except ResponseError as exc:
        return exc
    except UnicodeDecodeError as exc:  # the answer was read completely
        return InvalidResponse(f"an answer that is no text: {exc.reason}")


def _settle(command: _Command, answer: Any) -> None:
    if command.answer.done():  # its caller was cancelled
        return
    if isinstance(answer, Exception):
        command.answer.set_exception(answer)
    else:
        command.answer.set_result(answer)
