"""Connections: redis-py's connections kept at hand, so that a command costs its round trip and little else."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from hiredis import pack_command
from redis import Redis
from redis.connection import AbstractConnection
from redis.exceptions import ResponseError


class Connections:
    """Open connections of one client, as many as there are calls at once. They live as long as this does.

    A client takes a connection from its pool for each command, looks whether its socket is still good, and keeps
    count for its metrics: about as much work as a script. Here a connection that has gone stale shows when it is
    used, and the client's own retry opens it again: what is sent must bear being sent twice, as our scripts do.
    """

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._idle: deque[AbstractConnection] = deque()
        self._pid = os.getpid()

    def ask(self, *command: str | int | float) -> Any:
        """The server's answer to a command. Raises redis.RedisError."""
        connection = self._take()
        try:
            return connection.retry.call_with_retry(lambda: _ask(connection, command), lambda _: _close(connection))
        except ResponseError:  # an answer, read to its end
            raise
        except BaseException:  # nobody may read the rest of this answer as his own
            _close(connection)
            raise
        finally:
            self._idle.append(connection)

    def _take(self) -> AbstractConnection:
        if self._pid != os.getpid():  # forked: these are the parent's
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()


def _ask(connection: AbstractConnection, command: tuple[str | int | float, ...]) -> Any:
    packed = pack_command(command)  # type: ignore[arg-type]  # its stub names a tuple of one
    connection.send_packed_command([packed])  # type: ignore[no-untyped-call]  # redis-py's own
    return connection.read_response()


def _close(connection: AbstractConnection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own
