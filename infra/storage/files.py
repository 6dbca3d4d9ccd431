"""Files on this machine's disk: atomic writes, SQLite databases, locks, and private folders.

What is created here may only be read by the user of this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, Literal, cast

#: The mount points of this process, as Linux lists them.
MOUNTS = Path("/proc/self/mountinfo")
#: File systems that several machines share, by their names in Linux.
NETWORK_FILE_SYSTEMS = frozenset(  # one text: twenty quoted words read worse
    """nfs nfs4 cifs smb3 smbfs 9p afs ceph glusterfs lustre beegfs gpfs gfs2 ocfs2 fuse.sshfs
    fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse fuse.rclone fuse.juicefs""".split()
)
#: How long a SQLite connection waits for another process that writes to the same file, in seconds.
LOCK_SECONDS = 5.0


class NotLocal(Exception):
    """Raised for a folder on a network file system that must be on a disk of this machine."""


@contextmanager
def open_database(
    path: Path,
    schema: str,
    *,
    version: int = 1,
    new_columns: Mapping[str, Sequence[str]] | None = None,
    synchronous: Literal["FULL", "EXTRA"] = "FULL",
) -> Iterator[sqlite3.Connection]:
    """Open a SQLite file to read and write, and close it when the block ends.

    A missing folder, the file and the tables of the `schema` are created. `schema` is SQL that may
    be executed again, `version` its version, which the file gets. `new_columns` has, by
    table, the definitions of columns that a file of an earlier version gets at the end of the
    table. What is deleted is overwritten in the file. Each statement is committed at once and on
    disk, unless it is part of a `transaction`. `synchronous` says how carefully SQLite syncs the
    disk.

    A connection lives for one block only, so that threads share none and processes may fork.

    Raises OSError if the folder or the file cannot be created, and sqlite3.Error, also for a file
    with a higher version.
    """
    make_private(path.parent)
    # SQLite itself would make the file readable for others.
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as database:
        database.execute(f"PRAGMA synchronous = {synchronous}")
        database.execute("PRAGMA secure_delete = ON")
        file_version = _checked_version(database, version)
        if file_version != version and new_columns:
            _add_columns(database, new_columns)
        _create_tables(database, schema)
        if file_version != version:
            database.execute(f"PRAGMA user_version = {version}")
        yield database


@contextmanager
def read_database(path: Path, *, version: int | None = None) -> Iterator[sqlite3.Connection]:
    """Open an existing SQLite file for reading only, and close it when the block ends.

    With a `version`, a file of a higher one is refused. Raises sqlite3.Error.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS)) as database:
        if version is not None:
            _checked_version(database, version)
        yield database


def _checked_version(database: sqlite3.Connection, version: int) -> int:
    """Return the version of a file's schema, 0 for a new file.

    Raises sqlite3.DatabaseError if it is higher than `version`.
    """
    (file_version,) = database.execute("PRAGMA user_version").fetchone()
    if file_version > version:
        raise sqlite3.DatabaseError(
            f"its schema has version {file_version}, and this process knows up to {version}: upgrade this process"
        )
    return int(file_version)


def _create_tables(database: sqlite3.Connection, schema: str) -> None:
    """Execute the schema, and retry while another process does the same.

    When two processes switch one new file to WAL, SQLite refuses one of them at once, without
    waiting for its timeout.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            database.executescript(schema)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _add_columns(database: sqlite3.Connection, new_columns: Mapping[str, Sequence[str]]) -> None:
    """Add the columns that a file of an earlier version does not have, all at once."""
    if not _missing_columns(database, new_columns):
        return
    with transaction(database):
        # Another process may have added them since.
        for table, column in _missing_columns(database, new_columns):
            database.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def _missing_columns(
    database: sqlite3.Connection, new_columns: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return the columns that existing tables do not have, each with its table."""
    missing = []
    for table, columns in new_columns.items():
        rows = database.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        names = {name for (name,) in rows}
        if names:
            missing += [(table, each) for each in columns if each.split()[0] not in names]
    return missing


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Make the block one transaction, all or nothing. It is on disk when the block ends."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.rollback()
        raise
    database.execute("COMMIT")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, even if the power fails.

    A missing folder is created. The file is on disk when this returns. Raises OSError.
    """
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
    sync(path.parent)


def sync(path: Path) -> None:
    """Return once the bytes of a file, or the names in a folder, are on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder against other threads and processes, and wait for it if needed.

    Several holders may have a `shared` lock at once. A missing folder is created. Raises OSError.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    handle = os.open(make_private(folder) / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        # This releases the lock, too.
        os.close(handle)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file without waiting, and yield whether this process has the lock.

    The file is created. The lock ends with the block, and with the process. Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_private(path, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def open_private(path: Path, mode: Literal["ab", "wb", "xb"]) -> BinaryIO:
    """Open a file to write bytes. The caller closes it.

    The bytes go to its end ("ab"), take the place of its content ("wb"), or make a new file ("xb",
    which raises FileExistsError for one that exists). If it is created, only the user of this
    process may read it. Raises OSError.
    """
    return cast("BinaryIO", open(path, mode, opener=_open_private))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def remove_older(files: Iterable[Path], oldest: float) -> int:
    """Remove the files that were last changed before `oldest`, in Unix seconds.

    Return how many were removed.
    """
    removed = 0
    for path in list(files):
        # FileNotFoundError: another worker is removing it.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                removed += 1
    return removed


def make_private(folder: Path) -> Path:
    """Create a folder and its missing parents for the user of this process alone.

    Return the folder. Rights of a folder that exists do not change. Raises OSError.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_tree_private(folder: Path) -> None:
    """Create a data folder, and withdraw all rights of other users to what is in it.

    Hidden folders in it do not change, nor does a folder that all users share, such as /tmp.
    Raises OSError.
    """
    make_private(folder)
    if folder.stat().st_mode & stat.S_ISVTX:
        return
    _withdraw_rights(folder)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            _withdraw_rights(Path(parent, name))


def _withdraw_rights(path: Path) -> None:
    # FileNotFoundError: another process removed it. PermissionError: it is another user's.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        mode = path.lstat().st_mode
        if mode & 0o077 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            path.chmod(stat.S_IMODE(mode) & ~0o077)


def check_local(folder: Path, *, mounts: Path | None = None) -> None:
    """Raise NotLocal if a folder, which need not exist, is on a network file system.

    SQLite's write-ahead log is shared memory: machines that share the file do not see each other's.
    Checked on Linux only. `mounts` replaces the system's list in tests.
    """
    try:
        table = (mounts or MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    file_systems = _file_systems(table)
    resolved = folder.resolve()
    for place in (resolved, *resolved.parents):
        if place in file_systems:
            kind = file_systems[place]
            if kind in NETWORK_FILE_SYSTEMS:
                raise NotLocal(f"{folder} is on a network file system ({kind!r})")
            return


def _file_systems(table: str) -> dict[Path, str]:
    """Return the kind of the file system at each mount point in a table of Linux (mountinfo)."""
    kinds: dict[Path, str] = {}
    for line in table.splitlines():
        # "36 35 98:0 / /mount/point rw - ext4 ...": a variable number of fields before the dash.
        before, _, after = line.partition(" - ")
        mount_point = before.split()[4]
        # Spaces and the like are written as octal numbers, as in "\040".
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point)
        # Of several mounts at one place the last one counts.
        kinds[Path(place)] = after.split()[0]
    return kinds
