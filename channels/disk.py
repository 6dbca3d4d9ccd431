"""Disk: files that are there whole or not at all, whatever fails in between."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_atomically(path: Path, data: bytes) -> None:
    """All the bytes or no file, even if the power fails in between; only our own user reads it. Raises OSError."""
    make_private(path.parent)
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


def make_private(folder: Path) -> Path:
    """Create a folder, and those above it that are missing, for our own user alone; return it. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_tree_private(folder: Path) -> None:
    """Create a data folder, and take from all in it what others than our own user may. Raises OSError.

    Hidden folders in it are left alone, as is a folder that everybody shares, such as /tmp.
    """
    make_private(folder)
    if folder.stat().st_mode & stat.S_ISVTX:
        return
    _take_from_others(folder)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            _take_from_others(Path(parent, name))


def _take_from_others(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # removed by another process, or somebody else's
        mode = path.lstat().st_mode
        if mode & 0o077 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            path.chmod(stat.S_IMODE(mode) & ~0o077)


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
