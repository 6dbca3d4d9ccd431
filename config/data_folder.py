"""Data folder: what a process keeps on its disk, and the keys in it."""

from __future__ import annotations

import os
from pathlib import Path

from sayso.channels.disk import make_tree_private
from sayso.config.keys import secret_keys
from sayso.config.loader import ConfigError


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
