"""Restore: a bot from its backup, on an empty machine.

A restored bot is one that lost data: what was said and done since the backup is forgotten. So it
goes on as after `sayso redis resume`, and turns that waited in the backup do not run again.
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
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from redis import Redis

from sayso.infra.redis.scripts import SHARDS
from sayso.infra.storage.files import make_private
from sayso.ops.server.backup import (
    BESIDE_SQLITE,
    DATA,
    KEYS,
    LEDGER_MEMBER,
    MACS,
    MANIFEST,
    REDIS,
    BackupError,
    Bot,
    HashingReader,
    Manifest,
    macs_of,
    member_label,
    work_folder,
)
from sayso.ops.server.snapshot import StoredKey, delete_keys, write_keys
from sayso.pending.audit.chain import ChainReport
from sayso.pending.audit.collector import UncollectedEntries, verify
from sayso.pending.audit.ledger import AuditLedger, EntrySigner
from sayso.workers.data_loss.resume import RESTORING, Resumed, halt, is_restoring, resume
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import HaltReason, WatermarkFile
from sayso.workers.deployment_name import key_digests
from sayso.workers.recovery import GONE_SECONDS, Heartbeat

#: The folder of work in progress, in the data folder.
_WORK = ".restore"
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: the backup, how many keys were not over yet, what became of them,
    and the check of the audit log.
    """

    manifest: Manifest
    keys: int
    resumed: Resumed | None
    chain: ChainReport | None


def restore_backup(
    file: IO[bytes], bot: Bot, keys: Sequence[str], *, over: bool = False
) -> Restored:
    """Restore a backup.

    Nothing is changed before the whole file was checked. If it is killed, run it again.

    `keys` are the secret keys that the bot has already. `over`: replace what is there. Raises
    BackupError, redis.RedisError, LedgerUnusable and OSError.
    """
    with work_folder(bot.data / _WORK) as folder:
        manifest = _checked(file, folder)
        if manifest.name != bot.settings.name:
            raise BackupError(
                f"this is a backup of the bot {manifest.name!r}, and the configuration is that of "
                f"{bot.settings.name!r}: give that bot's configuration with --config"
            )
        keys = _matching_keys(folder, manifest, keys, bot.key_file)
        client = bot.client if (folder / REDIS).exists() else None
        _check_stopped(bot, client)
        if not over and not (client is not None and is_restoring(client, prefix=bot.prefix)):
            _check_target(bot, client, folder)
        written = 0
        resumed = None
        if client is not None:
            written = _fill_redis(client, bot, folder, manifest)
            _cut_ledger(folder / LEDGER_MEMBER, client, bot.prefix, keys)
        _place_files(folder, bot)
        if client is not None:
            resumed = resume(client, prefix=bot.prefix, restored=True)
            client.delete(f"{bot.prefix}{RESTORING}")
        return Restored(manifest, written, resumed, _verified(bot, client, keys))


def _checked(file: IO[bytes], folder: Path) -> Manifest:
    """Write all members of a backup to a folder, and check them. Raises BackupError."""
    try:
        manifest = _unpack(file, folder)
        if (folder / REDIS).exists():
            with (folder / REDIS).open(encoding="ascii") as lines:
                for line in lines:
                    StoredKey.from_json(line)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as exc:
        raise BackupError(
            f"this is no backup of Sayso, or it is damaged ({exc}): nothing was changed"
        ) from exc
    return manifest


def _unpack(file: IO[bytes], folder: Path) -> Manifest:
    """Write all members to a folder, and compare them with the manifest.

    Raises what `_checked` translates.
    """
    sums = dict[str, str]()
    manifest = None
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            if (
                not member.isreg()
                or place.is_absolute()
                or ".." in place.parts
                or (manifest and member.name != MACS)
            ):
                raise ValueError(f"unexpected member {member.name!r}")
            content = archive.extractfile(member)
            if content is None:
                raise ValueError(f"unreadable member {member.name!r}")
            if member.name == MANIFEST:
                text = content.read()
                manifest = Manifest.read(text)
                (folder / MANIFEST).write_bytes(text)
                continue
            target = folder / place
            make_private(target.parent)
            hashed = HashingReader(content)
            target.touch(mode=0o600, exist_ok=False)
            with target.open("wb") as out:
                shutil.copyfileobj(hashed, out, _BLOCK_BYTES)
            os.utime(target, (member.mtime, member.mtime))
            if member.name != MACS:
                sums[member_label(member.name)] = hashed.digest.hexdigest()
    if manifest is None or not (folder / MACS).exists():
        raise ValueError("it was cut short")
    if manifest.sums != sums:
        wrong = sorted(
            name for name in {*manifest.sums, *sums} if manifest.sums.get(name) != sums.get(name)
        )
        raise ValueError(f"wrong checksum of {wrong[0]!r}")
    return manifest


def _matching_keys(
    folder: Path, manifest: Manifest, keys: Sequence[str], file: Path
) -> Sequence[str]:
    """Return the secret keys, of the bot or of its backup. Raises BackupError where they are of
    another bot, and for a backup whose signature does not fit it.
    """
    found = folder / KEYS
    given = keys or (found.read_text().split() if found.exists() else [])
    if not set(key_digests(given)) & set(manifest.keys):
        if found.exists():
            raise BackupError(
                f"this bot has other secret keys than the backup, which brings its own: remove {file}, or unset "
                "SAYSO_SECRET_KEYS"
            )
        raise BackupError(
            "the secret keys of this backup are not here, and without them no stored record can be trusted: set "
            "SAYSO_SECRET_KEYS to them, or put the old file secret_keys into the data folder"
        )
    macs = (folder / MACS).read_text(errors="replace").splitlines()
    if not set(macs) & set(macs_of((folder / MANIFEST).read_bytes(), given)):
        raise BackupError(
            "the signature of this backup does not fit it, so the file was changed: use another copy"
        )
    return given


def _check_stopped(bot: Bot, client: Redis | None) -> None:
    """Refuse to restore while processes of the bot run. Raises BackupError."""
    if client is None:
        return
    workers = Heartbeat(client, prefix=bot.prefix).count()
    ingress = Heartbeat(client, kind="ingress", prefix=bot.prefix).count()
    if workers or ingress:
        raise BackupError(
            f"this bot runs (workers: {workers}, web and poll processes: {ingress}): stop all its processes, then run "
            f"this again. One that ended may count for {GONE_SECONDS} seconds"
        )


def _check_target(bot: Bot, client: Redis | None, folder: Path) -> None:
    """Refuse to restore over what is there already. Raises BackupError."""
    if client is not None and _has_keys(client, bot.prefix):
        raise BackupError(
            f"this Redis already has keys of {bot.settings.name!r}: add --replace to delete them first"
        )
    if bot.ledger.exists():
        raise BackupError(
            f"there is an audit ledger at {bot.ledger}: add --replace to set it aside"
        )
    for path, target in _data_pairs(folder, bot):
        if target.exists() and not filecmp.cmp(path, target, shallow=False):
            raise BackupError(f"there is another {target}: add --replace to overwrite such files")


def _has_keys(client: Redis, prefix: str) -> bool:
    """Return whether there are keys, besides the marker of a restore that wrote nothing or has
    ended, and the identities that `sayso redis status` gives to the shards.
    """
    names = (
        str(name).removeprefix(prefix) for name in client.scan_iter(match=f"{prefix}*", count=1000)
    )
    return any(name != RESTORING and not name.endswith("}:identities") for name in names)


def _fill_redis(client: Redis, bot: Bot, folder: Path, manifest: Manifest) -> int:
    """Replace the bot's keys by those of the backup, and leave Redis halted.

    Return how many keys are not over yet.
    """
    servers = WatermarkFile(bot.settings.state_folder(bot.data) / WATERMARKS).load().values()
    reasons = dict.fromkeys(range(SHARDS), HaltReason("", 0, 0))
    for shard, known in (pair for server in servers for pair in server.items()):
        if (
            known.writes > reasons[shard].remembered
        ):  # by processes of this machine, of the lost time
            reasons[shard] = HaltReason(known.identity, known.writes, 0)
    marker = f"{bot.prefix}{RESTORING}"
    client.set(marker, f"{manifest.taken_at}")
    delete_keys(client, prefix=bot.prefix, but=[marker, *halt(client, reasons, prefix=bot.prefix)])
    with (folder / REDIS).open(encoding="ascii") as lines:
        return write_keys(client, map(StoredKey.from_json, lines), prefix=bot.prefix)


def _cut_ledger(ledger: Path, client: Redis, prefix: str, keys: Sequence[str]) -> None:
    """Remove the entries that the ledger got after Redis was copied,
    so that both end at the same entry.
    """
    if ledger.exists():
        tips = UncollectedEntries(client, prefix=prefix).tips()
        AuditLedger(ledger, EntrySigner(keys)).cut({shard: tip.n for shard, tip in tips.items()})


def _data_pairs(folder: Path, bot: Bot) -> Iterator[tuple[Path, Path]]:
    """Yield each unpacked file of the data folder, and its place."""
    staged = folder / DATA
    for path in staged.rglob("*"):
        if path.is_file():
            yield path, bot.data / path.relative_to(staged)


def _place_files(folder: Path, bot: Bot) -> None:
    """Move the files of a backup to their places, on disk.

    A ledger that is there already is set aside.
    """
    pairs = list(_data_pairs(folder, bot))
    if (folder / KEYS).exists() and not bot.key_file.exists():
        pairs.append((folder / KEYS, bot.key_file))
    if (folder / LEDGER_MEMBER).exists():
        _set_aside(bot.ledger, folder / LEDGER_MEMBER)
        pairs.append((folder / LEDGER_MEMBER, bot.ledger))
    for path, target in pairs:
        make_private(target.parent)
        for suffix in BESIDE_SQLITE:  # they belong to the file that is replaced
            target.with_name(f"{target.name}{suffix}").unlink(missing_ok=True)
        try:
            path.replace(target)
        except OSError as exc:
            if exc.errno != errno.EXDEV:
                raise
            # The folder is on a disk of its own.
            near = target.with_name(f".{target.name}.restored")
            shutil.copy2(path, near)
            near.replace(target)
    os.sync()


def _set_aside(ledger: Path, restored: Path) -> None:
    """Give a ledger another name: an audit log is never deleted.

    One that a killed restore has placed may stay.
    """
    if not ledger.exists() or filecmp.cmp(ledger, restored, shallow=False):
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(ledger)) as database:
        # All of it is in one file, whose name changes at once.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in (*BESIDE_SQLITE, ""):
        path = ledger.with_name(f"{ledger.name}{suffix}")
        if path.exists():
            path.rename(path.with_name(f"{ledger.name}.until-{time.time():.0f}{suffix}"))


def _verified(bot: Bot, client: Redis | None, keys: Sequence[str]) -> ChainReport | None:
    """Return the result of checking the audit log as it is now; None if there is no log."""
    files = [bot.ledger] if bot.ledger.exists() else []
    if client is not None:
        tail = UncollectedEntries(client, prefix=bot.prefix)
    else:
        tail = None
    if files or tail:
        return verify(files, keys, tail=tail)
    return None
