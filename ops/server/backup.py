"""Backup: all that one bot stores, in one file.

The file is a `tar.gz`: `redis.jsonl` (one key a line), `ledger.sqlite3`, `secret_keys` if asked
for, the files of the data folder below `data/`, `manifest.json` with the SHA-256 of everything
before, and at last `manifest.macs` with a MAC of the manifest by each secret key. A file without it
was cut short. `restore.py` reads it.
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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError
from redis import Redis

from sayso.config.settings.schema import Settings
from sayso.infra.storage.files import folder_lock, make_private, read_database
from sayso.ops.server.snapshot import (
    count_kinds,
    read_snapshot,
    watermark_of,
)
from sayso.pending.action import derived_keys
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.workers.data_loss.resume import halts_of
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.deployment_name import key_digests

#: The version of the file's layout. Raise it with every change after which older files are refused,
#: so that they are not called damaged. 1: without a MAC of the manifest.
FORMAT = 2
#: The members of the file that are no files of the data folder.
REDIS = "redis.jsonl"
LEDGER_MEMBER = "ledger.sqlite3"
KEYS = "secret_keys"
DATA = "data"
MANIFEST = "manifest.json"
MACS = "manifest.macs"
#: The folder of work in progress, in the data folder. Its name keeps it out of backups,
#: and its lock others out.
_WORK = ".backup"
#: What is of use to this machine or its processes only, below the data folder.
_LEFT_OUT = ("redis", "bots", "media/arriving")
#: What SQLite writes beside its files. A copy that was made by SQLite has all of it inside.
BESIDE_SQLITE = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\0"


class BackupError(Exception):
    """Raised when a backup cannot be made or restored. The message names the cure."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself."""

    name: str
    #: In Unix seconds.
    taken_at: float
    #: Digests of the secret keys.
    keys: Sequence[str]
    #: How many writing scripts Redis had run.
    watermark: int = 0
    #: How many keys, conversations, waiting turns and replies, open actions, people, installations
    #: of apps and files it has.
    counts: dict[str, int] = field(default_factory=dict)
    #: The SHA-256 of each member.
    sums: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT
    sayso: str = field(default_factory=lambda: version("sayso"))

    @classmethod
    def read(cls, text: bytes) -> Manifest:
        """Parse a manifest. Raises BackupError for one of another format, and ValueError."""
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
    made = fields["format"]
    is_newer = isinstance(made, int) and made > FORMAT
    age = "a newer" if is_newer else "an older"
    text = (
        f"this backup is from {age} release of Sayso ({release}): it has the format {made}, and this release ({own}) "
        f"reads {FORMAT}. Nothing was changed. "
    )
    if is_newer:
        return f"{text}Install that release: `pip install sayso=={release}`"
    then = "restore it there, upgrade, and take a new backup"
    if release != own:
        return f"{text}Install that release (`pip install sayso=={release}`), {then}"
    # Between two releases the number is the same: only the sources of that time can be named.
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
    """The bot that is backed up or restored. Without a client its Redis is left out."""

    settings: Settings
    data: Path
    client: Redis | None = None

    @property
    def prefix(self) -> str:
        """The beginning of all its keys."""
        return self.settings.key_prefix

    @property
    def ledger(self) -> Path:
        """The audit ledger of this machine."""
        return self.settings.state_folder(self.data) / LEDGER

    @property
    def key_file(self) -> Path:
        """The file with its secret keys, which may be missing."""
        return self.data / KEYS


def write_backup(
    file: IO[bytes], bot: Bot, keys: Sequence[str], *, with_keys: bool = False
) -> Manifest:
    """Write a backup, and return what it says of itself.

    Redis comes first: a file is on disk before Redis names it. Raises BackupError, SnapshotError,
    redis.RedisError and OSError.
    """
    manifest = Manifest(bot.settings.name, time.time(), key_digests(keys))
    packed = gzip.GzipFile("", fileobj=file, mode="wb", compresslevel=6)
    with (
        work_folder(bot.data / _WORK) as work,
        packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        writer = _Writer(archive, work, manifest.sums)
        if bot.client is not None:
            manifest = replace(manifest, watermark=watermark_of(bot.client, bot.prefix))
            writer.add_redis(bot.client, bot.prefix, manifest.counts)
        if bot.ledger.exists():
            writer.add_file(bot.ledger, LEDGER_MEMBER)
        if with_keys:
            writer.add(KEYS, io.BytesIO("\n".join(keys).encode()))
        manifest.counts["files"] = sum(
            writer.add_file(path, f"{DATA}/{path.relative_to(bot.data).as_posix()}")
            for path in _data_files(bot.data)
        )
        text = _MANIFEST.dump_json(manifest, indent=2)
        writer.add(MANIFEST, io.BytesIO(text))
        writer.add(MACS, io.BytesIO("\n".join(macs_of(text, keys)).encode()))
    return manifest


def macs_of(manifest: bytes, keys: Sequence[str]) -> list[str]:
    """Return the MAC of a manifest by each secret key."""
    return [
        hmac.digest(key, manifest, "sha256").hex() for key in derived_keys(keys, "sayso.backup")
    ]


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder below this one, to one process at a time.

    What a killed one left there is removed.
    """
    with folder_lock(folder):
        work = folder / "files"
        shutil.rmtree(work, ignore_errors=True)
        try:
            yield make_private(work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _data_files(data: Path) -> Iterator[Path]:
    """Yield the files of a data folder that a backup holds, also those behind links to other disks."""
    for parent, folders, files in os.walk(data, followlinks=True):
        below = Path(parent).relative_to(data)
        folders[:] = sorted(
            name
            for name in folders
            if not (
                name.startswith(".")
                or (below / name).as_posix() in _LEFT_OUT
                or _leads_back(Path(parent, name))
            )
        )
        for name in sorted(files):
            is_state = below == Path() and name.startswith((KEYS, WATERMARKS, LEDGER))
            path = Path(parent, name)
            if (
                not (is_state or name.startswith(".") or name.endswith(BESIDE_SQLITE))
                and path.is_file()
            ):
                yield path


def _leads_back(folder: Path) -> bool:
    """Return whether a folder is a link to one that it is in."""
    return folder.is_symlink() and folder.resolve() in [
        parent.resolve() for parent in folder.parents
    ]


@dataclass(frozen=True, slots=True)
class _Writer:
    """Adds members to an archive, and notes their SHA-256 in `sums`.

    `work` is a folder for copies.
    """

    archive: tarfile.TarFile
    work: Path
    sums: dict[str, str]

    def add_redis(self, client: Redis, prefix: str, counts: dict[str, int]) -> None:
        """Add the keys of Redis, and count them."""
        path = self.work / REDIS
        path.touch(mode=0o600)
        with (
            path.open("w", encoding="ascii") as lines,
            read_snapshot(client, self.work / "server", prefix=prefix) as found,
        ):
            if halts_of(client, prefix=prefix):
                raise BackupError(
                    "this Redis lost data, or was not restored whole: finish that first (`sayso redis status`)"
                )
            for key in count_kinds(found, counts):
                lines.write(f"{key.to_json()}\n")
        self.add_file(path, REDIS)
        path.unlink()

    def add_file(self, path: Path, member: str) -> bool:
        """Add a file, a SQLite file as one transaction sees it.

        Return False where it vanished meanwhile.
        """
        try:
            with path.open("rb") as file:
                if file.read(len(_SQLITE)) != _SQLITE:
                    file.seek(0)
                    self.add(member, file)
                    return True
        except FileNotFoundError:  # swept
            return False
        with TemporaryDirectory(dir=self.work) as temporary:
            copy = Path(temporary, "copy")
            copy.touch(mode=0o600)
            try:
                with read_database(path) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                    target.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.Error as exc:
                raise BackupError(
                    f"{path} cannot be copied ({exc}): repair it, or move it out of {path.parent}"
                ) from exc
            with copy.open("rb") as file:
                self.add(member, file)
        return True

    def add(self, member: str, file: IO[bytes]) -> None:
        """Add a member of as many bytes as the file has now."""
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
            if exc.errno:  # of a disk
                raise
            raise BackupError(
                f"{member} became shorter while it was read: run the backup again"
            ) from exc
        self.sums[member_label(member)] = hashed.digest.hexdigest()


def member_label(member: str) -> str:
    """Return the name of a member as JSON can have it: a name of a file may hold any bytes."""
    return member.encode(errors="backslashreplace").decode()


class HashingReader(io.RawIOBase):
    """Passes the bytes of a file on, and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data
