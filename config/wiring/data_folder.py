"""The data folder of a bot: its secret keys, the public id of the bot, the socket of its Redis.

*Secret keys* sign all that Sayso stores and must trust, such as a pending action. They come from
SAYSO_SECRET_KEYS, else from a file in the data folder, which is created at the first start.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import quote

from redis.exceptions import RedisError

from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.infra.redaction import remember
from sayso.infra.redis.client import connect
from sayso.infra.storage.files import make_private, make_tree_private
from sayso.pending.action import derived_keys

#: The variable with the secret keys, separated by commas. The first one signs; all are accepted,
#: so that keys rotate.
KEYS_VARIABLE = "SAYSO_SECRET_KEYS"
#: The file with the secret keys in the data folder, separated by white space.
KEYS_FILE = "secret_keys"
#: The most bytes of a Unix socket's path, a little below the limit of the systems we run on.
MAX_SOCKET_PATH = 100


def open_data(data: Path, state_folder: Path | None = None) -> list[str]:
    """Create the data folder, readable by our own user alone, and return the bot's secret keys.

    `state_folder` is the folder in it that belongs to this bot alone. It need not exist, but must
    be writable, or possible to create. Raises ConfigError.
    """
    os.umask(0o077)  # also for what libraries and tools create in it
    folder = data
    try:
        make_tree_private(data)
        folder = _nearest_existing(state_folder or data)
        # A folder of another user may be readable, and not writable. Only writing shows it.
        with TemporaryFile(dir=folder):
            keys = secret_keys(data)
    except OSError as exc:
        raise ConfigError(
            [f"data folder {str(folder)!r}: {exc.strerror}: give one you may write to with --data"]
        ) from exc
    if not keys:
        raise ConfigError(
            [f"{data / KEYS_FILE} is empty: put the old key back, or delete the file for a new one"]
        )
    return keys


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest of its parents that exists."""
    while not os.access(folder, os.F_OK) and folder != folder.parent:
        folder = folder.parent
    return folder


def secret_keys(data: Path) -> list[str]:
    """Return the keys of the environment, else those of the data folder.

    Where there are none, a key is created in the data folder. Raises OSError.
    """
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    if not keys:
        make_private(data)
        file = data / KEYS_FILE
        fresh = data / f"{KEYS_FILE}.{os.getpid()}"
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_hex(32))
        try:
            # Of several processes at first start, one wins and all read the same keys.
            os.link(fresh, file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        keys = file.read_text().split()
    remember(keys)
    return keys


def known_keys(data: Path) -> list[str]:
    """Return the secret keys as `secret_keys` does, but create none. Raises OSError."""
    has_keys = bool(os.environ.get(KEYS_VARIABLE)) or (data / KEYS_FILE).exists()
    if has_keys:
        return secret_keys(data)
    return []


def bot_ids(settings: Settings, keys: Sequence[str]) -> list[str]:
    """Return the public id of a bot for each of its secret keys. The bot shows the first one.

    The processes of a bot have the same id on all machines; another bot has another name or other
    keys. Without a key there is no id.
    """
    if not keys:
        return []
    name = settings.name.encode()
    return [hmac.digest(key, name, "sha256").hex()[:16] for key in derived_keys(keys, "sayso.bot")]


def running_url(data: Path) -> str | None:
    """Return the URL of the Redis that `sayso up` runs on a data folder now, None without one."""
    if not socket_place(data).exists():
        return None
    url = socket_url(data)
    try:
        connect(url).ping()
    except RedisError:
        return None
    return url


def socket_url(data: Path) -> str:
    """Return the URL of the Redis of a data folder. Raises ConfigError like `socket_path`."""
    # A folder may have a # ? or % in its name.
    return f"unix://{quote(str(socket_path(data)))}"


def socket_path(data: Path) -> Path:
    """Return the Unix socket on which the Redis of a data folder listens.

    It is in the data folder, or in a folder in /tmp, which is created, where that path is too
    long. Raises ConfigError where the folder in /tmp belongs to another user.
    """
    path = socket_place(data)
    folder = path.parent
    if folder == data.resolve() / "redis":
        return path
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ConfigError(
            [f"{folder} belongs to another user: remove it, or use a shorter path with --data"]
        )
    return path


def socket_place(data: Path) -> Path:
    """Return the path of the socket like `socket_path`, but do not create or check its folder."""
    path = data.resolve() / "redis" / "redis.sock"
    if len(str(path).encode()) <= MAX_SOCKET_PATH:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    folder = Path(f"/tmp/sayso-{os.getuid()}-{name}")  # noqa: S108  # socket_path checks it: any user can create it
    return folder / path.name
