"""The data folder of a machine: the secret keys in it, and the socket of the Redis that `sayso up` runs on it."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.redaction import remember
from sayso.channels.storage.files import make_private, make_tree_private
from sayso.config.settings.loader import ConfigError

#: The variable with the secret keys, separated by commas. The first one signs; all are accepted, so that keys rotate.
KEYS_VARIABLE = "SAYSO_SECRET_KEYS"
#: The most bytes of a Unix socket's path, a little below the limit of the systems we run on.
MAX_SOCKET_PATH = 100


def open_data(data: Path) -> list[str]:
    """Create the data folder, readable by our own user alone, and return its secret keys. Raises ConfigError."""
    os.umask(0o077)  # also for what libraries and tools create in it
    try:
        make_tree_private(data)
        keys = secret_keys(data)
    except OSError as exc:
        raise ConfigError(
            [f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data"]
        ) from exc
    if not keys:
        raise ConfigError([f"{data / 'secret_keys'} is empty: put the old key back, or delete the file for a new one"])
    return keys


def secret_keys(data: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the keys of the environment, else those of the data folder, which are created on first use."""
    variable = (os.environ if environ is None else environ).get(KEYS_VARIABLE, "")
    keys = [key.strip() for key in variable.split(",") if key.strip()] or _stored_keys(data / "secret_keys")
    remember(keys)
    return keys


def _stored_keys(file: Path) -> list[str]:
    make_private(file.parent)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_text(secrets.token_hex(32))
    try:
        os.link(fresh, file)  # of several processes at first start, one wins and all read the same keys
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return file.read_text().split()


def running_url(data: Path) -> str | None:
    """Return the URL of the Redis that `sayso up` runs on this data folder now, None without one."""
    if not socket_path(data).exists():
        return None
    url = f"unix://{socket_path(data)}"
    try:
        Redis.from_url(url, socket_connect_timeout=1).ping()
    except RedisError:
        return None
    return url


def socket_path(data: Path) -> Path:
    """Return where the Redis of a data folder listens: in the folder, or in /tmp where that path is too long.

    Raises ConfigError where the folder in /tmp belongs to another user.
    """
    path = data.resolve() / "redis" / "redis.sock"
    if len(str(path).encode()) <= MAX_SOCKET_PATH:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    folder = Path(f"/tmp/sayso-{os.getuid()}-{name}")  # noqa: S108  # checked below: any user can create it
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ConfigError([f"{folder} belongs to another user: remove it, or use a shorter path with --data"])
    return folder / "redis.sock"
