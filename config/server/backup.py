"""Backup: all that one bot stores, in one file, and back from it.

The file is a `tar.gz`: `redis.jsonl` (one key a line), `ledger.sqlite3`, `secret_keys` if asked for, the files of the
data folder below `data/`, and at last `manifest.json` with the SHA-256 of everything before. A file without it was cut
short.

A restored bot is one that lost data: what was said and done since the backup is forgotten. So it goes on as after
`sayso redis resume`, and turns that waited in the backup do not run again.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO

from pydantic import TypeAdapter
from redis import Redis

from sayso.channels.storage.files import folder_lock, make_private, read_database, sync_folder
from sayso.config.server.snapshot import (
    StoredKey,
    count_kinds,
    delete_keys,
    read_snapshot,
    watermark_of,
    write_keys,
)
from sayso.config.settings.schema import Settings
from sayso.pending.audit.chain import ChainReport
from sayso.pending.audit.collector import UncollectedEntries, verify
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger, EntrySigner
from sayso.pending.redis.scripts import SHARDS
from sayso.workers.data_loss.resume import Resumed, halt, halts_of, resume
from sayso.workers.data_loss.watermarks import FILE as TIDE
from sayso.workers.data_loss.watermarks import HaltReason, WatermarkFile
from sayso.workers.deployment import key_digests
from sayso.workers.recovery import Heartbeat

#: The version of the file's layout.
FORMAT = 1
#: The members of the file that are no files of the data folder.
REDIS, LEDGER_MEMBER, KEYS, MANIFEST, DATA = "redis.jsonl", "ledger.sqlite3", "secret_keys", "manifest.json", "data"
#: A key that tells a server that is halted by a restore from one that lost data.
RESTORING = "restoring"
#: Folders of work in progress, in the data folder. Their names keep them out of backups.
_BACKUP, _RESTORE = ".backup", ".restore"
#: What is of use to this machine or its processes only, below the data folder.
_LEFT_OUT = ("redis", "bots", "media/arriving")
#: What SQLite writes beside its files. A copy that was made by SQLite has all of it inside.
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\0"
_BLOCK_BYTES = 1024 * 1024


class BackupError(Exception):
    """Raised when a backup cannot be made or restored. The message names the cure."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself.

    `taken_at` is in Unix seconds. `keys` are digests of the secret keys. `watermark`: how many writing scripts Redis
    had run. `counts`: how many keys, conversations, waiting turns and replies, open actions, people and files it has.
    `sums`: the SHA-256 of each member.
    """

    name: str
    taken_at: float
    keys: Sequence[str]
    watermark: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT
    sayso: str = field(default_factory=lambda: version("sayso"))


_MANIFEST = TypeAdapter(Manifest)


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


def write_backup(file: IO[bytes], bot: Bot, keys: Sequence[str], *, with_keys: bool = False) -> Manifest:
    """Write a backup, and return what it says of itself.

    Redis comes first: a file is on disk before Redis names it. Raises BackupError, SnapshotError, redis.RedisError and
    OSError.
    """
    manifest = Manifest(bot.settings.name, time.time(), key_digests(keys))
    packed = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6)
    with packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        if bot.client is not None:
            manifest = _add_redis(archive, bot, bot.client, manifest)
        if bot.ledger.exists():
            _add_file(archive, manifest, bot.ledger, LEDGER_MEMBER)
        if with_keys:
            _add(archive, manifest, KEYS, io.BytesIO("\n".join(keys).encode()))
        manifest.counts["files"] = sum(
            _add_file(archive, manifest, path, f"{DATA}/{path.relative_to(bot.data).as_posix()}")
            for path in _data_files(bot.data)
        )
        _add(archive, manifest, MANIFEST, io.BytesIO(_MANIFEST.dump_json(manifest, indent=2)))
    return manifest


def _add_redis(archive: tarfile.TarFile, bot: Bot, client: Redis, manifest: Manifest) -> Manifest:
    """Add the keys of Redis. Return the manifest with what was counted."""
    if halts_of(client, prefix=bot.prefix):
        raise BackupError("this Redis lost data, or was not restored whole: finish that first (`sayso redis status`)")
    watermark = watermark_of(client, bot.prefix)
    folder = make_private(bot.data / _BACKUP)
    db = client.connection_pool.connection_kwargs.get("db") or 0
    with folder_lock(folder), TemporaryDirectory(dir=folder, prefix="keys-") as temporary:
        path = Path(temporary, REDIS)
        with (
            path.open("w", encoding="ascii") as lines,
            read_snapshot(client, folder / "server", prefix=bot.prefix, db=db) as found,
        ):
            for key in count_kinds(found, manifest.counts):
                lines.write(f"{key.to_json()}\n")
        _add_file(archive, manifest, path, REDIS)
    return replace(manifest, watermark=watermark)


def _data_files(data: Path) -> Iterator[Path]:
    """Yield the files of a data folder that a backup holds."""
    for parent, folders, files in os.walk(data):
        below = Path(parent).relative_to(data)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and (below / name).as_posix() not in _LEFT_OUT
        )
        for name in sorted(files):
            is_state = below == Path() and name.startswith((KEYS, TIDE, LEDGER))
            path = Path(parent, name)
            if not (is_state or name.startswith(".") or name.endswith(_BESIDE_SQLITE)) and path.is_file():
                yield path


def _add_file(archive: tarfile.TarFile, manifest: Manifest, path: Path, member: str) -> bool:
    """Add a file, a SQLite file as one transaction sees it. Return False where it vanished meanwhile."""
    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                file.seek(0)
                _add(archive, manifest, member, file)
                return True
    except FileNotFoundError:  # swept
        return False
    folder = path.parent
    with TemporaryDirectory(dir=folder, prefix=".backup-") as temporary:
        copy = Path(temporary, "copy")
        copy.touch(mode=0o600)
        with read_database(path) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        with copy.open("rb") as file:
            _add(archive, manifest, member, file)
    return True


def _add(archive: tarfile.TarFile, manifest: Manifest, member: str, file: IO[bytes]) -> None:
    """Add a member of as many bytes as the file has now, and note its SHA-256."""
    info = tarfile.TarInfo(member)
    info.mode, info.mtime = 0o600, time.time()
    if isinstance(file, io.BytesIO):
        info.size = len(file.getbuffer())
    else:
        status = os.fstat(file.fileno())
        info.size, info.mtime = status.st_size, status.st_mtime
    hashed = _Hashed(file)
    try:
        archive.addfile(info, hashed)
    except OSError as exc:
        raise BackupError(f"{member} became shorter while it was read: run the backup again") from exc
    manifest.sums[member] = hashed.digest.hexdigest()


class _Hashed(io.RawIOBase):
    """Passes the bytes of a file on, and hashes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: the backup, how many keys were not over yet, what became of them, and the check of the audit
    log.
    """

    manifest: Manifest
    keys: int
    resumed: Resumed | None
    chain: ChainReport | None


def restore_backup(file: IO[bytes], bot: Bot, keys: Sequence[str], *, over: bool = False) -> Restored:
    """Restore a backup. Nothing is changed before the whole file was checked. If it is killed, run it again.

    `keys` are the secret keys that the bot has already. `over`: replace what is there. Raises BackupError,
    redis.RedisError, LedgerUnusable and OSError.
    """
    with folder_lock(bot.data / _RESTORE), _unpacked(file, bot.data / _RESTORE) as (folder, manifest):
        if manifest.name != bot.settings.name:
            raise BackupError(
                f"this is a backup of the bot {manifest.name!r}, and the configuration is that of "
                f"{bot.settings.name!r}: give that bot's configuration with --config"
            )
        keys = _matching_keys(folder, manifest, keys)
        client = bot.client if (folder / REDIS).exists() else None
        is_begun = client is not None and is_restoring(client, prefix=bot.prefix)
        if not is_begun:
            _check_target(bot, client, over=over)
        written, resumed = 0, None
        if client is not None:
            written = _fill_redis(client, bot, folder, manifest)
            _cut_ledger(folder / LEDGER_MEMBER, client, bot.prefix, keys)
        _place_files(folder, bot, keep_ledger=not is_begun)
        if client is not None:
            resumed = resume(client, prefix=bot.prefix, restored=True)
            client.delete(f"{bot.prefix}{RESTORING}")
        return Restored(manifest, written, resumed, _verified(bot, client, keys))


def is_restoring(client: Redis, *, prefix: str) -> bool:
    """Return whether a restore has begun and not ended: Redis is halted, and holds a part of a backup."""
    return bool(client.exists(f"{prefix}{RESTORING}")) and bool(halts_of(client, prefix=prefix))


@contextmanager
def _unpacked(file: IO[bytes], folder: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield a folder with the members of a backup, all of them checked. Raises BackupError."""
    files = folder / "files"
    shutil.rmtree(files, ignore_errors=True)
    try:
        yield make_private(files), _unpack(file, files)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as exc:
        raise BackupError(f"this is no backup of Sayso, or it is damaged ({exc}): nothing was changed") from exc
    finally:
        shutil.rmtree(files, ignore_errors=True)


def _unpack(file: IO[bytes], folder: Path) -> Manifest:
    """Write all members to a folder, and compare them with the manifest. Raises what `_unpacked` translates."""
    sums = dict[str, str]()
    manifest = None
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            if not member.isreg() or place.is_absolute() or ".." in place.parts or manifest:
                raise ValueError(f"unexpected member {member.name!r}")
            content = archive.extractfile(member)
            if content is None:
                raise ValueError(f"unreadable member {member.name!r}")
            if member.name == MANIFEST:
                manifest = _MANIFEST.validate_json(content.read())
                continue
            target = folder / place
            make_private(target.parent)
            hashed = _Hashed(content)
            target.touch(mode=0o600, exist_ok=False)
            with target.open("wb") as out:
                shutil.copyfileobj(hashed, out, _BLOCK_BYTES)
            os.utime(target, (member.mtime, member.mtime))
            sums[member.name] = hashed.digest.hexdigest()
    if manifest is None:
        raise ValueError("it was cut short")
    if manifest.format != FORMAT:
        raise BackupError(
            f"this backup has the format {manifest.format}, made by sayso {manifest.sayso}, and this version reads "
            f"{FORMAT}: restore it with `pip install sayso=={manifest.sayso}`, then upgrade"
        )
    if manifest.sums != sums:
        wrong = sorted(name for name in {*manifest.sums, *sums} if manifest.sums.get(name) != sums.get(name))
        raise ValueError(f"wrong checksum of {wrong[0]!r}")
    return manifest


def _matching_keys(folder: Path, manifest: Manifest, keys: Sequence[str]) -> Sequence[str]:
    """Return the secret keys, of the bot or of its backup. Raises BackupError where they are of another bot."""
    found = folder / KEYS
    given = keys or (found.read_text().split() if found.exists() else [])
    if not set(key_digests(given)) & set(manifest.keys):
        raise BackupError(
            "the secret keys of this backup are not here, and without them no stored record can be trusted: set "
            "SAYSO_SECRET_KEYS to them, or put the old file secret_keys into the data folder"
        )
    return given


def _check_target(bot: Bot, client: Redis | None, *, over: bool) -> None:
    """Refuse to restore over a running bot, and over data unless told. Raises BackupError."""
    if client is not None and (workers := Heartbeat(client, prefix=bot.prefix).count()):
        raise BackupError(f"{workers} workers of this bot are running: stop its processes first")
    if over:
        return
    if client is not None and _has_keys(client, bot.prefix):
        raise BackupError(f"this Redis already has keys of {bot.settings.name!r}: add --replace to delete them first")
    if bot.ledger.exists():
        raise BackupError(f"there is an audit ledger at {bot.ledger}: add --replace to set it aside")


def _has_keys(client: Redis, prefix: str) -> bool:
    """Return whether there are keys, besides the marker of a restore that wrote nothing or has ended."""
    return any(name != f"{prefix}{RESTORING}" for name in client.scan_iter(match=f"{prefix}*", count=1000))


def _fill_redis(client: Redis, bot: Bot, folder: Path, manifest: Manifest) -> int:
    """Replace the bot's keys by those of the backup, and leave Redis halted. Return how many keys are not over yet."""
    servers = WatermarkFile(bot.settings.state_folder(bot.data) / TIDE).read().values()
    reasons = dict.fromkeys(range(SHARDS), HaltReason("", 0, 0))
    for shard, known in (pair for server in servers for pair in server.items()):
        if known.n > reasons[shard].remembered:  # by processes of this machine, of the lost time
            reasons[shard] = HaltReason(known.id, known.n, 0)
    marker = f"{bot.prefix}{RESTORING}"
    client.set(marker, f"{manifest.taken_at}")
    delete_keys(client, prefix=bot.prefix, but=[marker, *halt(client, reasons, prefix=bot.prefix)])
    with (folder / REDIS).open(encoding="ascii") as lines:
        return write_keys(client, map(StoredKey.from_json, lines), prefix=bot.prefix)


def _cut_ledger(ledger: Path, client: Redis, prefix: str, keys: Sequence[str]) -> None:
    """Remove the entries that the ledger got after Redis was copied, so that both end at the same entry."""
    if ledger.exists():
        tips = UncollectedEntries(client, prefix=prefix).tips()
        AuditLedger(ledger, EntrySigner(keys)).cut({shard: tip.n for shard, tip in tips.items()})


def _place_files(folder: Path, bot: Bot, *, keep_ledger: bool) -> None:
    """Move the files of a backup to their places. A ledger that is there already is set aside."""
    if (folder / LEDGER_MEMBER).exists() and bot.ledger.exists() and keep_ledger:
        for suffix in ("", *_BESIDE_SQLITE):
            path = bot.ledger.with_name(f"{bot.ledger.name}{suffix}")
            if path.exists():
                path.rename(path.with_name(f"{LEDGER}.until-{time.time():.0f}{suffix}"))
    pairs = [(folder / LEDGER_MEMBER, bot.ledger)]
    if not bot.key_file.exists():
        pairs.append((folder / KEYS, bot.key_file))
    staged = folder / DATA
    pairs += [(path, bot.data / path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()]
    for path, target in pairs:
        if not path.exists():
            continue
        make_private(target.parent)
        for suffix in _BESIDE_SQLITE:  # they belong to the file that is replaced
            target.with_name(f"{target.name}{suffix}").unlink(missing_ok=True)
        path.replace(target)
        sync_folder(target.parent)


def _verified(bot: Bot, client: Redis | None, keys: Sequence[str]) -> ChainReport | None:
    """Check the audit log as it is now. None: there is none."""
    files = [bot.ledger] if bot.ledger.exists() else []
    tail = UncollectedEntries(client, prefix=bot.prefix) if client is not None else None
    return verify(files, keys, tail=tail) if files or tail else None
