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
    help="Only the data folder: for further machines, or with a snapshot of a vendor.",
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
        disk_errors(place, options.data),
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

    The Redis that `sayso up` brings is started for this command if it does not run; with `new` also
    if it never ran. With `without_redis` none is needed or started.
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
        client = RedisParts.find(settings, data).client
        # Values may hold bytes that are not UTF-8, such as those of an intruder: a backup has
        # them, too. The pools of a cluster have connections already, which need the same option.
        for server_client in servers_of(client):
            server_client.connection_pool.connection_kwargs["encoding_errors"] = "surrogateescape"
            server_client.connection_pool.reset()
        yield Bot(settings, data, client)
    finally:
        server.stop()


def find_keys(options: Options) -> list[str]:
    """Return the secret keys of the environment or the data folder, none where there are none.

    Exits where the file of the keys cannot be read.
    """
    from sayso.config.wiring.data_folder import known_keys

    with disk_errors(str(options.data), options.data):
        return known_keys(options.data)


@contextmanager
def _new_file(name: str) -> Iterator[IO[bytes]]:
    """Yield a new file that only our own user may read. It gets its name when it is whole."""
    if name == STREAM:
        if sys.stdout.isatty():
            fail("a backup is not text: write it to a file, or into a pipe")
        yield sys.stdout.buffer
        return
    from sayso.infra.storage.files import sync

    path = Path(name)
    if path.exists():
        fail(f"{name!r} exists: give another name, such as one with the date")

    # A backup that was killed left an unfinished file. One that still runs holds a lock on it.
    unfinished = path.with_name(f"{path.name}.unfinished")
    with suppress(FileNotFoundError), unfinished.open("rb") as old_file:
        try:
            fcntl.flock(old_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another backup is writing {name!r}: wait for it, or give another name")
        unfinished.unlink()

    unfinished.touch(mode=0o600, exist_ok=False)
    try:
        with unfinished.open("wb") as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            yield out
            out.flush()
            os.fsync(out.fileno())
        unfinished.rename(path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def disk_errors(name: str, data: Path) -> Iterator[None]:
    """Exit with one clear message where a backup or the data folder cannot be used.

    `name` is the backup as messages call it: a file, or the name of a stream.
    """
    from sayso.ops.server.backup import BackupError
    from sayso.ops.server.snapshot import SnapshotError

    try:
        yield
    except (BackupError, SnapshotError) as exc:
        fail(f"{name}: {exc}")
    except OSError as exc:
        fail(f"{exc.filename or f'{name} or {data}'}: {exc.strerror or exc}: nothing was finished")


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
