"""Disk: files that are there whole or not at all, whatever fails in between."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile

#: What is mounted where, as Linux tells a process.
MOUNTS = Path("/proc/self/mountinfo")
#: File systems that several machines share, by the names that Linux has for them.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "gfs2",
        "ocfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.juicefs",
    ]
)


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


class NotLocal(Exception):
    """Raised for a folder on a network file system, where it must be on a disk of this machine."""


def check_local(folder: Path, *, mounts: Path | None = None) -> None:
    """Refuse a folder, there yet or not, that lies on a network file system. Raises NotLocal.

    SQLite's write-ahead log is shared memory: machines that share the file do not see each other's. Told on Linux only.
    """
    kind = _file_system_of(folder.resolve(), mounts or MOUNTS)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NotLocal(f"{folder} is on a network file system ({kind!r})")


def _file_system_of(folder: Path, mounts: Path) -> str:
    """The type of the file system that is mounted nearest above a folder, "" where nobody can tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    kinds = dict[Path, str]()
    for line in lines:  # of several mounts at one place the last one counts
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
        kinds[Path(place)] = after.split()[0]
    return next((kinds[each] for each in (folder, *folder.parents) if each in kinds), "")


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
