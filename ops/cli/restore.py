"""The command `sayso restore`: write a backup into an empty Redis and data folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import click

from sayso.infra.terminal import utc_time
from sayso.ops.cli.audit import chain_lines
from sayso.ops.cli.backup import (
    STREAM,
    contents_line,
    disk_errors,
    find_keys,
    open_bot,
    without_redis_option,
)
from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    clear_errors,
    pass_options,
    resumed_parts,
    with_noun,
)

if TYPE_CHECKING:
    from sayso.ops.server.restore import Restored


@click.command(
    cls=SaysoCommand,
    examples=["sayso restore shop.tar.gz", "age -d -i key.txt shop.tar.gz.age | sayso restore -"],
)
@click.argument("file")
@click.option(
    "--replace",
    is_flag=True,
    help="Delete what this bot has in Redis, set its ledger aside, and overwrite files of the data folder.",
)
@without_redis_option
@pass_options
def restore(options: Options, file: str, *, replace: bool, without_redis: bool) -> None:
    """Restore the bot from FILE, a backup, into an empty Redis and data folder.

    `-` is standard input. What happened since the backup is forgotten. Open questions are closed, and messages that waited
    are not answered. If it is killed, run it again. Exits with 1 if the audit log is not as it was
    written.
    """
    from sayso.ops.server.restore import restore_backup

    keys = find_keys(options)
    place = "standard input" if file == STREAM else file
    with (
        clear_errors(),
        disk_errors(place, str(options.data)),
        _open_backup(file) as content,
        open_bot(options, without_redis=without_redis, new=True) as bot,
    ):
        restored = restore_backup(content, bot, keys, replace=replace)

    value = asdict(restored) | {"chain": _chain(restored)}
    # The checksum of each file is of no use to a reader.
    del value["manifest"]["sums"]
    options.print(value, _report(file, restored))
    is_faulty = restored.chain is not None and bool(restored.chain.faults)
    sys.exit(FINDING if is_faulty else 0)


@contextmanager
def _open_backup(name: str) -> Iterator[IO[bytes]]:
    """Yield the content of a file.

    Standard input is read whole first: a pipe that breaks off restores nothing.
    """
    if name != STREAM:
        with Path(name).open("rb") as file:
            yield file
        return
    with TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, 1024 * 1024)
        copy.seek(0)
        yield copy


def _report(file: str, restored: Restored) -> Iterator[str]:
    """Yield lines about the backup, what Redis has now, and whether the audit log is whole."""
    manifest = restored.manifest
    taken_at = utc_time(manifest.taken_at)
    yield f"{file}: taken {taken_at} UTC by sayso {manifest.sayso}: {contents_line(manifest)}"

    if restored.resumed:
        keys = with_noun(restored.keys, "key that has not expired", "keys that have not expired")
        yield f"redis: {keys}; {resumed_parts(restored.resumed)}"
    else:
        yield "redis: nothing was restored"
    if restored.chain:
        yield from (f"audit: {line}" for line in chain_lines(restored.chain, ()))


def _chain(restored: Restored) -> dict[str, object] | None:
    """Return the check of the audit log for --json, None where no log was restored."""
    chain = restored.chain
    if chain is None:
        return None
    return {
        "entries": chain.entries,
        "shards": chain.shards,
        "faults": [*map(str, chain.faults)],
        "notes": [*chain.notes],
    }
