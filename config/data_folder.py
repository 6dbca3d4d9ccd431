"""Data folder: what a process keeps on its disk, and the keys in it."""

from __future__ import annotations

from pathlib import Path

from config.keys import secret_keys
from config.loader import ConfigError


def open_data(data: Path) -> list[str]:
    """Make the data folder and read the keys in it. Raises ConfigError."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        keys = secret_keys(data)
    except OSError as exc:
        raise ConfigError(
            [f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data"]
        ) from exc
    if not keys:
        raise ConfigError([f"{data / 'secret_keys'} is empty: put the old key back, or delete the file for a new one"])
    return keys
