"""Keys, data folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from sayso.channels.media import make_private, make_tree_private
from sayso.channels.redaction import remember
from sayso.config.settings.loader import ConfigError

#: Comma-separated; the first signs, all are accepted, so that keys can rotate.
VARIABLE = "SAYSO_SECRET_KEYS"


def secret_keys(data: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The keys of the environment, else those of the data folder, made on first use and readable by us alone."""
    found = _found(data, os.environ if environ is None else environ)
    remember(found)
    return found


def _found(data: Path, environ: Mapping[str, str]) -> list[str]:
    given = [key.strip() for key in environ.get(VARIABLE, "").split(",") if key.strip()]
    return given or _stored(data / "secret_keys")


def _stored(file: Path) -> list[str]:
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


def open_data(data: Path) -> list[str]:
    """Make the data folder, for our own user alone, and read the keys in it. Raises ConfigError."""
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
