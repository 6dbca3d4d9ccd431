"""Disk: files that are there whole or not at all, whatever fails in between."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_atomically(path: Path, data: bytes) -> None:
    """All the bytes or no file, even if the power fails in between; only our own user reads it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on disk when this returns. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_older(files: Iterable[Path], oldest: float) -> int:
    """Remove the files that were last changed before `oldest`, in Unix seconds. Returns how many went."""
    old = [path for path in files if _changed_at(path) < oldest]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _changed_at(path: Path) -> float:
    """When the file was stored last; now, for one that another worker is removing."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf
