"""The command `sayso backup`, and what it shares with `sayso restore`."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from sayso.ops.cli.command import (
    Options,
    SaysoCommand,
    clear_errors,
    fail,
    pass_options,
    with_noun,
)

if TYPE_CHECKING:
    from sayso.ops.server.backup import Bot, Manifest

#: The name of a file that stands for standard output, or for standard input.
STREAM = "-"
without_redis_option = click.option(
    "--without-redis",
    is_flag=True,
    help="Only the data folder: on each further machine of the bot, or where Redis has its own snapshots.",
)


@click.command(
    cls=SaysoCommand,
    examples=[
        "sayso backup shop.tar.gz",
        "sayso backup - --with-keys | age -r age1... -o shop.tar.gz.age",
    ],
)
@click.argument("file")
@click.option(
    "--with-keys", is_flag=True, help="Include the secret keys: then the file alone is enough."
)
@without_redis_option
@pass_options
def backup(options: Options, file: str, *, with_keys: bool, without_redis: bool) -> None:
    """Write all that the bot stores into FILE, while it goes on working; `-` is standard output.

    Redis, the audit ledger, and the files of the data folder. Only you may read the file. Without
    --with-keys it holds no secret key.
    """
    from sayso.config.wiring.observability import set_up_logs
    from sayso.ops.server.backup import write_backup

    # Logs go to standard error, so they are never in a backup on standard output.
    with clear_errors():
        set_up_logs()
    keys = find_keys(options)
    if not keys:
        fail(
            "no secret key: set SAYSO_SECRET_KEYS, or name the data folder of the workers with --data"
        )
    place = "standard output" if file == STREAM else file
    with (
        clear_errors(),
        disk_errors(place, str(options.data)),
        open_bot(options, without_redis=without_redis) as bot,
        _new_file(file) as out,
    ):
        manifest = write_backup(out, bot, keys, with_keys=with_keys)

    value = asdict(manifest)
    # The checksum of each file is of no use to a reader.
    del value["sums"]
    if file != STREAM:
        options.print({"file": file, **value}, [f"{file}: {contents_line(manifest)}"])
    if not with_keys:
        click.echo(
            "The secret keys are not in it. Keep them elsewhere: nothing can be restored without them.",
            err=True,
        )
    if bot.settings.media.store:
        click.echo(
            f"Files and long texts are in {bot.settings.media.store}: back up that bucket, too.",
            err=True,
        )


@contextmanager
def open_bot(options: Options, *, without_redis: bool, new: bool = False) -> Iterator[Bot]:
    """Yield the settings, the data folder and the Redis of a bot, as one value.

    Redis is that of the settings or of REDIS_URL, else the one that `sayso up` brings. The latter
    is started for this command if it does not run. If it never ran, there is nothing to back up:
    then only `new` starts it, for a restore. With `without_redis` none is needed or started.

    Exits for a configuration with errors. Raises ConfigError where there is no Redis, and
    EmbeddedRedisError.
    """
    from sayso.config.wiring.data_folder import running_url
    from sayso.config.wiring.redis_parts import RedisParts
    from sayso.infra.redis.client import servers_of
    from sayso.ops.server.backup import Bot
    from sayso.ops.server.embedded_redis import EmbeddedRedis

    settings = options.load()
    data = options.data
    if without_redis:
        yield Bot(settings, data)
        return
    server = EmbeddedRedis(data)
    is_ours = not (settings.redis_url or os.environ.get("REDIS_URL") or running_url(data))
    if is_ours and (new or server.folder.exists()):
        server.start()
    try:
        # Its connections end with the command.
        client = RedisParts.find(settings, data).client
        # Values may hold bytes that are not UTF-8, such as those of an intruder: a backup has
        # them, too. The client of a bot has no such option, so it is set here. The pools of a cluster
        # have connections already, which need it as well.
        for server_client in servers_of(client):
            server_client.connection_pool.connection_kwargs["encoding_errors"] = "surrogateescape"
            server_client.connection_pool.reset()
        yield Bot(settings, data, client)
    finally:
        # Does nothing to a server that this command did not start.
        server.stop()


def find_keys(options: Options) -> list[str]:
    """Return the secret keys of the environment or the data folder, [] where there are none.

    Exits if the file of the keys cannot be read.
    """
    from sayso.config.wiring.data_folder import known_keys

    with disk_errors(str(options.data)):
        return known_keys(options.data)


@contextmanager
def _new_file(name: str) -> Iterator[IO[bytes]]:
    """Yield a new file that only our own user may read. It gets its name when it is whole.

    For STREAM, yield standard output. Exits if the name is taken. Raises OSError.
    """
    if name == STREAM:
        if sys.stdout.isatty():
            fail("a backup is not text: write it to a file, or into a pipe")
        # It is closed here, which writes the last bytes: an error must be reported as one of the
        # backup. Python would write them when the command has ended.
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            yield out
        return
    from sayso.infra.storage.files import sync

    path = Path(name)
    _refuse_existing(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with _locked_file(unfinished, name) as out:
        try:
            yield out
            out.flush()
            os.fsync(out.fileno())
            # A backup may take hours, and renaming would replace what another program wrote.
            _refuse_existing(path)
            unfinished.rename(path)
            sync(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _refuse_existing(path: Path) -> None:
    """Exit if there is a file of the backup's name."""
    if path.exists():
        fail(f"{str(path)!r} exists: give another name, such as one with the date")


@contextmanager
def _locked_file(unfinished: Path, name: str) -> Iterator[IO[bytes]]:
    """Yield the new file of an unfinished backup. It is locked until the end of the block.

    The file of a backup that was killed has no lock, and is removed first. Exits if another backup
    to `name` still runs. Raises OSError.
    """
    from sayso.infra.storage.files import open_private

    busy = f"another backup is writing {name!r}: wait for it, or give another name"
    with suppress(FileNotFoundError), unfinished.open("rb") as old_file:
        if not _lock(old_file):
            fail(busy)
        unfinished.unlink()

    try:
        out = open_private(unfinished, "xb")
    except FileExistsError:
        fail(busy)
    with out:
        # Before the lock, another backup may take the file for that of a killed one and remove it.
        if not (_lock(out) and _is_at(unfinished, out)):
            fail(busy)
        yield out


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Return whether an open file is still the one of this path."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed. Return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def disk_errors(*places: str) -> Iterator[None]:
    """Exit with one clear message where a backup or the data folder cannot be used.

    `places` are what the block reads and writes, as messages call it, the backup first: a file, the
    name of a stream, or the data folder. They are named if an error of the disk names no file.
    """
    from sayso.ops.server.backup import BackupError
    from sayso.ops.server.snapshot import SnapshotError

    try:
        yield
    except (BackupError, SnapshotError) as exc:
        fail(f"{places[0]}: {exc}")
    except OSError as exc:
        place = exc.filename or " or ".join(places)
        fail(f"{place}: {exc.strerror or exc}: nothing was finished")


def contents_line(manifest: Manifest) -> str:
    """Return what a backup holds, such as `912 keys of Redis, 3 files`."""
    counts = manifest.counts
    kinds = {
        "keys": ("key of Redis", "keys of Redis"),
        "conversations": ("conversation", "conversations"),
        "people": ("person approved or blocked", "people approved or blocked"),
        "installations": ("installation of an app", "installations of an app"),
        "open_actions": ("open question", "open questions"),
        "waiting_turns": ("waiting message", "waiting messages"),
        "files": ("file", "files"),
    }
    parts = [with_noun(counts[name], *nouns) for name, nouns in kinds.items() if name in counts]
    return ", ".join(parts)
