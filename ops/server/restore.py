"""Restore: write a backup of a bot into an empty Redis and an empty data folder.

A restored bot is in the same position as one whose Redis lost data: it knows nothing of what
happened after the backup. A person may have confirmed an action in that time, and it may have run.
So the restore ends with the steps of `sayso redis resume`: the numbers of turns, replies and leases
go on above all that may have been used, open actions are closed, and turns that waited in the
backup are not answered.

Redis stays halted until everything is written, and each halt names the backup. So a restore that
was killed is recognized, and the next run of the command starts from the beginning.
"""

from __future__ import annotations

import errno
import filecmp
import gzip
import os
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from redis import Redis

from sayso.config.wiring.data_folder import KEYS_FILE
from sayso.infra.storage.files import make_private
from sayso.ops.server.backup import (
    DATA_MEMBERS,
    LEDGER_MEMBER,
    MACS_MEMBER,
    MANIFEST_MEMBER,
    REDIS_MEMBER,
    SQLITE_SIDE_FILES,
    BackupError,
    Bot,
    HashingReader,
    Manifest,
    macs_of,
    member_label,
    work_folder,
)
from sayso.ops.server.snapshot import StoredKey, delete_keys, write_keys
from sayso.pending.audit.chain_check import ChainReport
from sayso.pending.audit.collector import UncollectedEntries
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.audit.verify import verify
from sayso.pending.sharded_scripts import SHARDS
from sayso.workers.data_loss.resume import Resumed, halt, is_restoring, resume
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import HaltReason, Watermark, WatermarkFile
from sayso.workers.deployment_name import key_digests
from sayso.workers.recovery import ALIVE, GONE_SECONDS, Heartbeat, WorkerLock

#: The folder of work in progress, in the data folder.
_WORK = ".restore"
_BLOCK_BYTES = 1024 * 1024
#: How the names of the side files end in which SQLite keeps writes. The third, `-shm`, is an index.
_SQLITE_WRITES = ("-wal", "-journal")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    #: What the backup says of itself.
    manifest: Manifest
    #: How many keys of Redis were written: those of the backup that have not expired since.
    keys: int
    #: What was changed before Redis went on; None where the backup has no Redis.
    resumed: Resumed | None
    #: The check of the restored audit log; None where there is no log.
    chain: ChainReport | None


def restore_backup(
    file: IO[bytes], bot: Bot, secret_keys: Sequence[str], *, replace: bool = False
) -> Restored:
    """Restore a backup, and return what was done.

    Nothing is changed before the whole file was checked. If this is killed, run it again.

    `secret_keys` are those that the bot has on this machine, none on an empty machine: then the
    backup must bring them. With `replace`, what the bot already has in Redis and in its data folder
    is deleted or overwritten; without it, such a bot is refused. Raises BackupError,
    redis.RedisError, LedgerUnusable and OSError.
    """
    with work_folder(bot.data / _WORK) as folder:
        # Read everything, and refuse what cannot be restored, before anything is changed.
        manifest = _unpack_and_check(file, folder)
        if manifest.name != bot.settings.name:
            raise BackupError(
                f"this is a backup of the bot {manifest.name!r}, and the configuration is that of "
                f"{bot.settings.name!r}: give that bot's configuration with --config"
            )

        keys = _trusted_keys(folder, manifest, secret_keys, bot.key_file)
        # None: Redis is left alone. Either the backup has none, or the caller gave no client
        # (`--without-redis`).
        client = None
        if (folder / REDIS_MEMBER).exists():
            client = bot.client
        _check_stopped(bot, client)

        # A restore that was killed left a part of a backup. It may be replaced without asking.
        was_killed = client is not None and is_restoring(client, prefix=bot.prefix)
        if not replace and not was_killed:
            _check_target(bot, client, folder)

        # Redis is halted until the files are in their places: no process works on half a bot.
        written = 0
        if client is not None:
            written = _fill_redis(client, bot, folder, manifest)
            _cut_ledger(folder / LEDGER_MEMBER, client, bot.prefix, keys)
        if _replaces_ledger(client, folder):
            _set_aside(bot.ledger, folder / LEDGER_MEMBER)
        _place_files(folder, bot)

        resumed = None
        if client is not None:
            resumed = resume(client, prefix=bot.prefix, restored=True)
        return Restored(manifest, written, resumed, _check_audit_log(bot, client, keys))


def _unpack_and_check(file: IO[bytes], folder: Path) -> Manifest:
    """Write all members of a backup to a folder, and return its manifest.

    Raises BackupError where the file is no backup, is damaged or was cut short.
    """
    try:
        manifest = _unpack(file, folder)
        if (folder / REDIS_MEMBER).exists():
            with (folder / REDIS_MEMBER).open(encoding="ascii") as lines:
                for line in lines:
                    StoredKey.from_json(line)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as exc:
        raise BackupError(
            f"this is no backup of Sayso, or it is damaged ({exc}): nothing was changed"
        ) from exc
    return manifest


def _unpack(file: IO[bytes], folder: Path) -> Manifest:
    """Write all members to a folder, and compare their checksums with the manifest.

    Raises ValueError for a wrong member or checksum, and the errors of tarfile, gzip and zlib.
    """
    sums: dict[str, str] = {}
    manifest = None
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            _check_member(member, after_manifest=manifest is not None)
            content = archive.extractfile(member)
            if content is None:
                raise ValueError(f"unreadable member {member.name!r}")

            if member.name == MANIFEST_MEMBER:
                text = content.read()
                manifest = Manifest.read(text)
                (folder / MANIFEST_MEMBER).write_bytes(text)
                continue

            target = folder / PurePosixPath(member.name)
            if target.exists():
                raise ValueError(f"it has the member {member.name!r} twice")
            make_private(target.parent)
            hashed = HashingReader(content)
            target.touch(mode=0o600)
            with target.open("wb") as out:
                shutil.copyfileobj(hashed, out, _BLOCK_BYTES)
            os.utime(target, (member.mtime, member.mtime))
            if member.name != MACS_MEMBER:
                sums[member_label(member.name)] = hashed.digest.hexdigest()

    # The MACs are the last member, so a file without them was cut short.
    if manifest is None or not (folder / MACS_MEMBER).exists():
        raise ValueError("it was cut short")
    names = {*manifest.sums, *sums}
    wrong = sorted(name for name in names if manifest.sums.get(name) != sums.get(name))
    if wrong:
        raise ValueError(f"wrong checksum of {wrong[0]!r}")
    return manifest


def _check_member(member: tarfile.TarInfo, *, after_manifest: bool) -> None:
    """Raise ValueError for a member that no backup of ours has.

    A member outside of the folder would overwrite any file of the machine. A member behind the
    manifest has no checksum in it; only the MACs of the manifest stand there.
    """
    path = PurePosixPath(member.name)
    is_outside = path.is_absolute() or ".." in path.parts
    is_unchecked = after_manifest and member.name != MACS_MEMBER
    if not member.isreg() or is_outside or is_unchecked:
        raise ValueError(f"unexpected member {member.name!r}")


def _trusted_keys(
    folder: Path, manifest: Manifest, own_keys: Sequence[str], key_file: Path
) -> Sequence[str]:
    """Return the secret keys by which the backup was signed: those of the machine, else its own.

    `own_keys` are those of this machine, none on an empty one; `key_file` is where they lie. Raises
    BackupError where the keys are those of another bot, where there are none, and where the
    signature of the backup is wrong.
    """
    packed_keys = folder / KEYS_FILE
    keys = own_keys
    if not keys and packed_keys.exists():
        keys = packed_keys.read_text().split()

    has_common_key = bool(set(key_digests(keys)) & set(manifest.keys))
    if not has_common_key and packed_keys.exists():
        raise BackupError(
            f"this bot has other secret keys than the backup, which brings its own: remove {key_file}, or unset "
            "SAYSO_SECRET_KEYS"
        )
    if not has_common_key:
        raise BackupError(
            "the secret keys of this backup are not here, and without them no stored record can be trusted: set "
            "SAYSO_SECRET_KEYS to them, or put the old file secret_keys into the data folder"
        )

    # One MAC by each key that the bot had: one of them is enough, as keys rotate.
    macs = (folder / MACS_MEMBER).read_text(errors="replace").splitlines()
    right_macs = macs_of((folder / MANIFEST_MEMBER).read_bytes(), keys)
    if not set(macs) & set(right_macs):
        raise BackupError(
            "the signature of this backup does not fit it, so the file was changed: use another copy"
        )
    return keys


def _check_stopped(bot: Bot, client: Redis | None) -> None:
    """Raise BackupError while processes of the bot run.

    Redis knows all of them. Without Redis only the workers of this machine are seen.
    """
    if client is None:
        living = WorkerLock(bot.settings.state_folder(bot.data) / ALIVE).count_living()
        if living:
            raise BackupError(
                f"workers of this bot run on this machine ({living}): stop all its processes, then "
                "run this again"
            )
        return

    workers = Heartbeat(client, prefix=bot.prefix).count()
    ingress = Heartbeat(client, kind="ingress", prefix=bot.prefix).count()
    if workers or ingress:
        raise BackupError(
            f"this bot runs (workers: {workers}, web and poll processes: {ingress}): stop all its processes, then run "
            f"this again. One that ended may count for {GONE_SECONDS} seconds"
        )


def _check_target(bot: Bot, client: Redis | None, folder: Path) -> None:
    """Raise BackupError if the restore would delete or overwrite what the bot has here.

    Files that are the same as in the backup may be there: a killed restore has placed them.
    """
    if client is not None and _has_keys(client, bot.prefix):
        raise BackupError(
            f"this Redis already has keys of {bot.settings.name!r}: add --replace to delete them first"
        )
    has_other_ledger = bot.ledger.exists() and not _is_same(bot.ledger, folder / LEDGER_MEMBER)
    if has_other_ledger and _replaces_ledger(client, folder):
        raise BackupError(
            f"there is an audit ledger at {bot.ledger}: add --replace to set it aside"
        )
    for path, target in _data_pairs(folder, bot):
        if target.exists() and not _is_same(target, path):
            raise BackupError(f"there is another {target}: add --replace to overwrite such files")


def _has_keys(client: Redis, prefix: str) -> bool:
    """Return whether Redis has data of the bot.

    The identities that `sayso redis status` gives to the shards of an empty server do not count.
    """
    for key in client.scan_iter(match=f"{prefix}*", count=1000):
        if not str(key).endswith("}:identities"):
            return True
    return False


def _replaces_ledger(client: Redis | None, folder: Path) -> bool:
    """Return whether the ledger of this machine gives way to that of the backup, which may be none.

    A restored Redis continues the audit log of its backup, and no other one.
    """
    return client is not None or (folder / LEDGER_MEMBER).exists()


def _is_same(present: Path, restored: Path) -> bool:
    """Return whether a file of this machine equals an unpacked one, which may be missing.

    A SQLite database with writes beside it has other content than its file alone.
    """
    for side_file in _side_files(present, _SQLITE_WRITES):
        if side_file.exists() and side_file.stat().st_size:
            return False
    return restored.exists() and filecmp.cmp(present, restored, shallow=False)


def _side_files(path: Path, suffixes: Sequence[str] = SQLITE_SIDE_FILES) -> list[Path]:
    """Return the paths of the files that SQLite may have beside a database."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in suffixes]


def _fill_redis(client: Redis, bot: Bot, folder: Path, manifest: Manifest) -> int:
    """Replace the bot's keys by those of the backup, and leave all shards halted.

    Return how many keys were written: those that have not expired since.
    """
    remembered = WatermarkFile(bot.settings.state_folder(bot.data) / WATERMARKS).load()
    reasons = _halt_reasons(remembered.values(), manifest.taken_at)

    # The halts come first: a restore that is killed from here on is recognized by them.
    halts = halt(client, reasons, prefix=bot.prefix)
    delete_keys(client, prefix=bot.prefix, but=halts)
    with (folder / REDIS_MEMBER).open(encoding="ascii") as lines:
        return write_keys(client, map(StoredKey.from_json, lines), prefix=bot.prefix)


def _halt_reasons(
    servers: Collection[Mapping[int, Watermark]], backup_taken_at: float
) -> dict[int, HaltReason]:
    """Return for each shard the highest watermark of any server, as the reason of a halt.

    Processes of this machine saw these writes, some of them after the backup. The resume goes on
    far above them and above the numbers in the backup (by RESUME_STEP), so that no number is used
    twice. A new machine has no watermarks: then only the numbers in the backup count.
    """
    reasons = {}
    for shard in range(SHARDS):
        highest = Watermark(identity="", writes=0)
        for watermarks in servers:
            watermark = watermarks.get(shard, highest)
            if watermark.writes > highest.writes:
                highest = watermark
        reasons[shard] = HaltReason(
            highest.identity,
            remembered=highest.writes,
            found=0,
            backup_taken_at=backup_taken_at,
        )
    return reasons


def _cut_ledger(ledger: Path, client: Redis, prefix: str, keys: Sequence[str]) -> None:
    """Remove the entries that the ledger got after Redis was copied, so both end at the same entry.

    A ledger that is ahead of its Redis would look as if Redis had lost entries. Afterwards all of
    the ledger is in one file, the same after each restore of this backup.
    """
    if not ledger.exists():
        return
    heads = UncollectedEntries(client, prefix=prefix).heads()
    last_numbers = {shard: head.number for shard, head in heads.items()}
    AuditLedger(ledger, EntrySigner(keys)).cut(last_numbers)


def _data_pairs(folder: Path, bot: Bot) -> Iterator[tuple[Path, Path]]:
    """Yield the path of each unpacked file of the data folder, and the path that it gets there."""
    unpacked = folder / DATA_MEMBERS
    for path in unpacked.rglob("*"):
        if path.is_file():
            yield path, bot.data / path.relative_to(unpacked)


def _place_files(folder: Path, bot: Bot) -> None:
    """Move the unpacked files to their places, and wait until they are on disk.

    Secret keys that are there already stay.
    """
    pairs = list(_data_pairs(folder, bot))
    if (folder / KEYS_FILE).exists() and not bot.key_file.exists():
        pairs.append((folder / KEYS_FILE, bot.key_file))
    if (folder / LEDGER_MEMBER).exists():
        pairs.append((folder / LEDGER_MEMBER, bot.ledger))

    for path, target in pairs:
        make_private(target.parent)
        # SQLite would mix the side files of a replaced database into the new one. A backup has no
        # files of such names.
        for side_file in _side_files(target):
            side_file.unlink(missing_ok=True)
        try:
            path.replace(target)
        except OSError as exc:
            if exc.errno != errno.EXDEV:
                raise
            # The target is on another disk. Copied to that disk first, the file can be renamed.
            near = target.with_name(f".{target.name}.restored")
            shutil.copy2(path, near)
            near.replace(target)
    os.sync()


def _set_aside(ledger: Path, restored: Path) -> None:
    """Rename a ledger to `<name>.until-<Unix seconds>`: an audit log is never deleted.

    `restored` is the ledger of the backup, which may be missing. If both are the same, the ledger
    stays: a killed restore has placed it.
    """
    if not ledger.exists():
        return

    # The newest entries may be in the write-ahead log. Afterwards all of the ledger is in one file.
    with suppress(sqlite3.Error), closing(sqlite3.connect(ledger)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if _is_same(ledger, restored):
        return

    new_name = f"{ledger.name}.until-{time.time():.0f}"
    # A ledger that SQLite cannot open still has its side files.
    for suffix in (*SQLITE_SIDE_FILES, ""):
        path = ledger.with_name(f"{ledger.name}{suffix}")
        if path.exists():
            path.rename(path.with_name(f"{new_name}{suffix}"))


def _check_audit_log(bot: Bot, client: Redis | None, keys: Sequence[str]) -> ChainReport | None:
    """Check the audit log after the restore, and return the result; None where there is no log."""
    ledgers = []
    if bot.ledger.exists():
        ledgers.append(bot.ledger)
    uncollected = None
    if client is not None:
        uncollected = UncollectedEntries(client, prefix=bot.prefix)
    if not ledgers and uncollected is None:
        return None
    return verify(ledgers, keys, uncollected=uncollected)
