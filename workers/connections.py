"""Connections: redis-py's connections kept at hand, so that a command costs its round trip and little else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from hiredis import pack_command
from redis import ConnectionPool, Redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.workers.breather import Breather
from sayso.workers.ferry import aboard, wait_for
from sayso.workers.wire import Wire


class Connections:
    """Open connections of one pool, at most half of it, as many as there are calls at once. They live as long as it.

    A client takes a connection from its pool for each command, looks whether its socket is still good, and keeps
    count for its metrics: about as much work as a script. Here a connection that has gone stale shows when it is
    used. What is sent must bear being sent twice, as our scripts do.

    Calls from an event loop (`offload.reach`) go over the `wire`, if there is one for that loop; else each waits in a
    thread.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.wire: Wire | None = None
        #: Called before each command: raises when none may be asked.
        self.before: Callable[[], None] = _nothing
        #: What threads ask through; none where they wait as long as it takes.
        self.breather: Breather | None = None
        self._pool = pool
        self._most = pool.max_connections // 2
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()

    @classmethod
    def of(cls, client: Redis) -> Connections:
        """The connections of a client, the same ones for everybody who asks: its pool is one, too."""
        pool = client.connection_pool
        shared: Connections = vars(pool).setdefault("_sayso_connections", cls(pool))
        return shared

    def ask(self, *command: str | int | float) -> Any:
        """The server's answer to a command, with the client's own patience. Raises redis.RedisError."""
        self.before()
        packed = _packed(command)
        if not aboard():
            return self._ask(packed)
        if self.wire and self.wire.serves(asyncio.get_running_loop()):
            return wait_for(self.wire.ask(packed))
        return wait_for(asyncio.to_thread(self._ask, packed))

    def _ask(self, packed: bytes) -> Any:
        return self.breather.ask(lambda: self._answer(packed)) if self.breather else self._answer(packed)

    def _answer(self, packed: bytes) -> Any:
        connection = self._take()
        try:
            answer = connection.retry.call_with_retry(lambda: _asked(connection, packed), lambda _: _close(connection))
        except ResponseError:  # an answer, read to its end
            self._keep(connection)
            raise
        except BaseException as exc:  # nobody may read the rest of this answer as his own
            self._drop(connection)
            if isinstance(exc, RedisTimeoutError):
                self._drop_idle()
            raise
        self._keep(connection)
        return answer

    def _take(self) -> Connection:
        if self._pid != os.getpid():  # forked: these are the parent's
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def _drop(self, connection: Connection) -> None:
        _close(connection)
        self._pool.release(connection)

    def _drop_idle(self) -> None:
        """Where one got no answer the others may be as dead: each would cost somebody all his patience."""
        with contextlib.suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < self._most and not connection.should_reconnect():  # type: ignore[no-untyped-call]
            self._idle.append(connection)
        else:
            self._pool.release(connection)


def _nothing() -> None:
    """Nothing speaks against it."""


def _packed(command: tuple[str | int | float, ...]) -> bytes:
    try:
        packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub names a tuple of one
    except TypeError as exc:
        raise DataError(f"{command[0]}: {exc}") from exc
    return packed


def _asked(connection: Connection, packed: bytes) -> Any:
    if connection.is_connected:
        try:
            return _exchange(connection, packed)
        except RedisConnectionError:  # stale: no try of the client's is spent on that
            _close(connection)
    connection.connect_check_health(check_health=False, retry_socket_connect=False)
    return _exchange(connection, packed)


def _exchange(connection: Connection, packed: bytes) -> Any:
    connection.send_packed_command([packed])  # type: ignore[no-untyped-call]  # redis-py's own
    return connection.read_response()


def _close(connection: Connection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own
