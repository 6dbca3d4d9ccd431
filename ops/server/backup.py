"""Backup: all that one bot stores, in one file.

The file is a `tar.gz` with these members, in this order:

* `redis.jsonl`: the bot's keys in Redis, one a line
* `ledger.sqlite3`: the audit ledger
* `secret_keys`: only with `--with-keys`
* `data/`: the other files of the data folder
* `manifest.json`: what the backup is, and the SHA-256 of each member before it
* `manifest.macs`: a MAC of the manifest by each secret key, which shows that no one has changed
  the file. It is the last member, so a file without it was cut short.

`restore.py` reads it.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import os
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError
from redis import Redis

from sayso.config.settings.schema import Settings
from sayso.config.wiring.data_folder import KEYS_FILE
from sayso.infra.storage.files import folder_lock, make_private, read_database
from sayso.ops.server.snapshot import count_writes, read_snapshot, yield_and_count
from sayso.pending.action import derived_keys
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.workers.data_loss.resume import halts_of
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.deployment_name import key_digests

#: The version of the file's layout. Raise it with every change after which older files cannot be
#: read: they are then refused with their version named, and are not called damaged. Format 1 had no
#: MAC of the manifest.
FORMAT = 2
#: Names of members. The secret keys have the name of their file, `KEYS_FILE`.
REDIS_MEMBER = "redis.jsonl"
LEDGER_MEMBER = "ledger.sqlite3"
MANIFEST_MEMBER = "manifest.json"
MACS_MEMBER = "manifest.macs"
#: The folder in the archive with the files of the data folder.
DATA_MEMBERS = "data"
#: The folder of work in progress, in the data folder. As its name begins with a dot, no backup
#: contains it. A lock on it lets one backup run at a time.
_WORK = ".backup"
#: Folders of the data folder that no backup contains: they are of use to this machine or its
#: processes only.
_LEFT_OUT = ("redis", "bots", "media/arriving")
#: How the names of the further files end that SQLite writes while a database is in use. A backup has
#: none of them: a copy made by SQLite itself has all their content inside.
SQLITE_SIDE_FILES = ("-wal", "-shm", "-journal")
#: How a SQLite file begins.
_SQLITE = b"SQLite format 3\0"


class BackupError(Exception):
    """Raised when a backup cannot be made or restored. The message names the cure."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself: `manifest.json`.

    `counts` and `sums` are filled while the backup is written.
    """

    #: The name of the bot.
    name: str
    #: When the backup began, in Unix seconds.
    taken_at: float
    #: A digest of each secret key, by which a restore knows whether it has the same ones.
    keys: Sequence[str]
    #: How many writing scripts the bot's Redis had run when the backup began; 0 for a backup
    #: without Redis. No restore reads it: it shows an operator which of two backups has more.
    watermark: int = 0
    #: How much of each kind the backup has, by the names that `yield_and_count` gives; `files` are
    #: those of the data folder.
    counts: dict[str, int] = field(default_factory=dict)
    #: The SHA-256 of each member before the manifest, in hex, by its `member_label`.
    sums: dict[str, str] = field(default_factory=dict)
    #: The layout of the file.
    format: int = FORMAT
    #: The release that wrote the backup.
    sayso: str = field(default_factory=lambda: version("sayso"))

    @classmethod
    def read(cls, text: bytes) -> Manifest:
        """Parse a manifest.

        Raises BackupError for one of another format, and ValueError for what is no manifest.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or not {"format", "sayso"} <= fields.keys():
            raise ValueError("its manifest is none")
        if fields["format"] != FORMAT:
            raise BackupError(_other_format(fields))
        try:
            return _MANIFEST.validate_json(text)
        except ValidationError as exc:
            raise ValueError(f"its manifest has a wrong {exc.errors()[0]['loc'][0]}") from exc


_MANIFEST = TypeAdapter(Manifest)


def _other_format(fields: Mapping[str, Any]) -> str:
    """Return why a backup of another format is refused, and which release reads it."""
    own = version("sayso")
    release = fields["sayso"]
    other_format = fields["format"]
    is_newer = isinstance(other_format, int) and other_format > FORMAT
    age = "a newer" if is_newer else "an older"
    text = (
        f"this backup is from {age} release of Sayso ({release}): it has the format "
        f"{other_format}, and this release ({own}) reads {FORMAT}. Nothing was changed. "
    )
    if is_newer:
        return f"{text}Install that release: `pip install sayso=={release}`"

    then = "restore it there, upgrade, and take a new backup"
    if release != own:
        return f"{text}Install that release (`pip install sayso=={release}`), {then}"

    # Both have the same version, so one of them is a checkout between two releases. Only the
    # sources of that time can be named.
    taken_at = fields.get("taken_at")
    day = "DAY"
    if isinstance(taken_at, (int, float)):
        day = _utc(taken_at)
    return (
        f'{text}In a checkout run `git checkout "$(git rev-list -1 --before={day} HEAD)"`, {then}'
    )


def _utc(at: float) -> str:
    """Return a time, in Unix seconds, to the second in UTC, as Git reads it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Bot:
    """The bot that is backed up or restored."""

    settings: Settings
    #: The data folder.
    data: Path
    #: A client of its Redis; None leaves Redis out.
    client: Redis | None = None

    @property
    def prefix(self) -> str:
        """How all its keys in Redis begin."""
        return self.settings.key_prefix

    @property
    def ledger(self) -> Path:
        """The audit ledger of this machine."""
        return self.settings.state_folder(self.data) / LEDGER

    @property
    def key_file(self) -> Path:
        """The file with its secret keys, which may be missing."""
        return self.data / KEYS_FILE


def write_backup(
    file: IO[bytes], bot: Bot, keys: Sequence[str], *, with_keys: bool = False
) -> Manifest:
    """Write a backup to an open file, and return what it says of itself.

    `keys` are all secret keys of the bot, at least one. They sign the backup, and are written into
    it only with `with_keys`. Raises BackupError, SnapshotError, redis.RedisError and OSError.
    """
    taken_at = time.time()
    packed = gzip.GzipFile("", fileobj=file, mode="wb", compresslevel=6)
    with (
        work_folder(bot.data / _WORK) as work,
        packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        # The number is read before the keys, which have at least these writes then.
        watermark = 0
        if bot.client is not None:
            watermark = count_writes(bot.client, bot.prefix)
        manifest = Manifest(bot.settings.name, taken_at, key_digests(keys), watermark)
        writer = _Writer(archive, work, manifest.sums)

        # Redis comes first: a file is on disk before Redis names it. So each file that the keys
        # name is in the backup, too.
        if bot.client is not None:
            writer.add_redis(bot.client, bot.prefix, manifest.counts)
        if bot.ledger.exists():
            writer.add_file(bot.ledger, LEDGER_MEMBER)
        if with_keys:
            writer.add(KEYS_FILE, io.BytesIO("\n".join(keys).encode()))

        files = 0
        for path in _data_files(bot.data):
            member = f"{DATA_MEMBERS}/{path.relative_to(bot.data).as_posix()}"
            if writer.add_file(path, member):
                files += 1
        manifest.counts["files"] = files

        text = _MANIFEST.dump_json(manifest, indent=2)
        macs = "\n".join(macs_of(text, keys))
        writer.add(MANIFEST_MEMBER, io.BytesIO(text))
        writer.add(MACS_MEMBER, io.BytesIO(macs.encode()))
    return manifest


def macs_of(manifest: bytes, keys: Sequence[str]) -> list[str]:
    """Return the MAC of a manifest by each secret key, in hex."""
    return [
        hmac.digest(key, manifest, "sha256").hex() for key in derived_keys(keys, "sayso.backup")
    ]


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder below `folder`, to one process at a time. It is removed afterwards.

    What a killed process left there is removed first. Raises OSError.
    """
    with folder_lock(folder):
        work = folder / "files"
        shutil.rmtree(work, ignore_errors=True)
        try:
            yield make_private(work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _data_files(data: Path) -> Iterator[Path]:
    """Yield the files of a data folder for `data/`, also those behind links to other disks."""
    for parent, folders, files in os.walk(data, followlinks=True):
        below = Path(parent).relative_to(data)
        # Assigned in place: `os.walk` goes on with the folders of this list.
        folders[:] = [name for name in sorted(folders) if _is_saved_folder(data, below / name)]
        for name in sorted(files):
            if _is_saved_file(data, below / name):
                yield Path(parent, name)


def _is_saved_folder(data: Path, path: Path) -> bool:
    """Return whether a backup contains this folder. `path` is relative to the data folder."""
    if path.name.startswith(".") or path.as_posix() in _LEFT_OUT:
        return False
    # A link to a folder that it is in would be walked for ever.
    folder = data / path
    if not folder.is_symlink():
        return True
    return folder.resolve() not in [parent.resolve() for parent in folder.parents]


def _is_saved_file(data: Path, path: Path) -> bool:
    """Return whether `data/` of a backup contains this file. `path` is relative to the data folder.

    The secret keys and the ledger have members of their names. The watermarks are those of this
    machine.
    """
    is_at_top = path.parent == Path()
    if is_at_top and path.name.startswith((KEYS_FILE, WATERMARKS, LEDGER)):
        return False
    if path.name.startswith(".") or path.name.endswith(SQLITE_SIDE_FILES):
        return False
    return (data / path).is_file()


@dataclass(frozen=True, slots=True)
class _Writer:
    """Adds members to the archive of one backup."""

    archive: tarfile.TarFile
    #: An empty folder for copies.
    work: Path
    #: The SHA-256 of each member that was added. It is `sums` of the manifest, filled here.
    sums: dict[str, str]

    def add_redis(self, client: Redis, prefix: str, counts: dict[str, int]) -> None:
        """Add the keys of Redis, and add to `counts` how many of each kind there are.

        Raises BackupError, SnapshotError, redis.RedisError and OSError.
        """
        path = self.work / REDIS_MEMBER
        path.touch(mode=0o600)
        # A temporary Redis server loads the snapshot, and has this folder for its files.
        server_folder = self.work / "server"
        with (
            path.open("w", encoding="ascii") as lines,
            read_snapshot(client, server_folder, prefix=prefix) as keys,
        ):
            # The snapshot is taken when the loop below asks for the first key. So a Redis that is
            # halted already is refused before anything is copied.
            if halts_of(client, prefix=prefix):
                raise BackupError(
                    "this Redis lost data, or was not restored whole: finish that first (`sayso redis status`)"
                )
            for key in yield_and_count(keys, counts):
                lines.write(f"{key.to_json()}\n")
        self.add_file(path, REDIS_MEMBER)
        path.unlink()

    def add_file(self, path: Path, member: str) -> bool:
        """Add a file. Return False where it vanished meanwhile.

        A SQLite file is copied by SQLite first, as one transaction sees it: a plain copy would mix
        pages from before and after a write. Raises BackupError and OSError.
        """
        try:
            with path.open("rb") as file:
                if file.read(len(_SQLITE)) != _SQLITE:
                    file.seek(0)
                    self.add(member, file)
                    return True
        except FileNotFoundError:  # the media store has removed an expired file
            return False

        with TemporaryDirectory(dir=self.work) as temporary:
            copy = Path(temporary, "copy")
            copy.touch(mode=0o600)
            try:
                with read_database(path) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                    # The copy has the journal mode of its source. In WAL mode SQLite needs further
                    # files beside the database, and the archive has none of them. The mode DELETE
                    # makes the copy whole in one file.
                    target.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.Error as exc:
                raise BackupError(
                    f"{path} cannot be copied ({exc}): repair it, or move it out of {path.parent}"
                ) from exc
            with copy.open("rb") as file:
                self.add(member, file)
        return True

    def add(self, member: str, file: IO[bytes]) -> None:
        """Add a member with the content of an open file, of as many bytes as the file has now.

        Raises BackupError where the file became shorter meanwhile, and OSError.
        """
        info = tarfile.TarInfo(member)
        info.mode = 0o600
        info.mtime = time.time()
        if isinstance(file, io.BytesIO):
            info.size = len(file.getbuffer())
        else:
            status = os.fstat(file.fileno())
            info.size = status.st_size
            info.mtime = status.st_mtime
        hashed = HashingReader(file)
        try:
            self.archive.addfile(info, hashed)
        except OSError as exc:
            # An error of the disk has a number. tarfile's own, for a file that ends early, has not.
            if exc.errno:
                raise
            raise BackupError(
                f"{member} became shorter while it was read: run the backup again"
            ) from exc
        self.sums[member_label(member)] = hashed.digest.hexdigest()


def member_label(member: str) -> str:
    """Return the name of a member as the manifest has it.

    The name of a file may hold any bytes. Those that JSON cannot hold are escaped.
    """
    return member.encode(errors="backslashreplace").decode()


class HashingReader(io.RawIOBase):
    """Reads a file, and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        #: The SHA-256 of all bytes that were read so far.
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data
