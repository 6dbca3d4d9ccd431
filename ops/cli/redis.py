"""The `sayso redis` commands: status, resume.

A Redis that lost writes it had acknowledged is *halted*: all scripts refuse to run until an
operator resumes it. The page "Redis in production" says how a loss is noticed.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.infra.terminal import utc_time
from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoGroup,
    clear_errors,
    fail,
    pass_options,
    resumed_parts,
)

if TYPE_CHECKING:
    from redis import Redis

    from sayso.config.settings.schema import Settings


@click.group(cls=SaysoGroup, examples=["sayso redis status", "sayso redis resume"])
def redis() -> None:
    """See whether Redis lost acknowledged writes, and continue after it did."""


@redis.command(examples=["sayso redis status", "sayso redis status --json"])
@pass_options
def status(options: Options) -> None:
    """Print whether Redis is halted, and what it lost. Exits with 1 when it is."""
    from sayso.infra.manual import manual
    from sayso.pending.sharded_scripts import SHARDS
    from sayso.workers.data_loss.resume import backup_being_restored, halts_of
    from sayso.workers.data_loss.watermarks import HaltReason

    with clear_errors():
        settings = options.load()
        client = _checked_client(settings, options.data)
        halts = halts_of(client, prefix=settings.key_prefix)
        taken_at = backup_being_restored(client, prefix=settings.key_prefix)

    if taken_at:
        says = f"a restore of the backup of {utc_time(taken_at)} UTC has not ended, so a part of it is missing"
        cure = "run `sayso restore` again, with this or another backup. To give up, delete this bot's keys"
        options.print({"redis": says}, [f"redis: halted: {says}", cure])
        sys.exit(FINDING)

    if not halts:
        options.print({"redis": None}, ["redis: whole"])
        return

    # Each shard of the keys is halted by itself. One reason sums up all of them.
    reason = HaltReason.sum(halts.values())
    part = ""
    if len(halts) < SHARDS:
        part = f" ({len(halts)} of {SHARDS} shards)"
    page = manual("how-to/redis-in-production.md", "what-resume-does")
    lines = [
        f"redis: halted{part}: {reason}",
        f"`sayso redis resume` continues without what is missing: {page} says what that means",
    ]
    options.print({"redis": str(reason)}, lines)
    sys.exit(FINDING)


@redis.command(examples=["sayso redis resume"])
@pass_options
def resume(options: Options) -> None:
    """Continue with a Redis that lost writes, without using any number twice.

    It may be killed and run again.
    """
    from sayso.workers.data_loss.resume import is_restoring
    from sayso.workers.data_loss.resume import resume as resume_server

    settings = options.load()
    with clear_errors():
        client = _checked_client(settings, options.data)
        if is_restoring(client, prefix=settings.key_prefix):
            fail(
                "a restore of this Redis has not ended, so it holds a part of a backup: run `sayso restore` again"
            )
        resumed = resume_server(client, prefix=settings.key_prefix)

    if resumed is None:
        options.print({"redis": None}, ["redis: not halted"])
        return
    line = f"redis: goes on; {resumed.halt}. {resumed_parts(resumed)}"
    options.print({"redis": asdict(resumed)}, [line])


def _checked_client(settings: Settings, data: Path) -> Redis:
    """Return a client of the Redis, after comparing it with the watermark of this machine.

    The watermark is the highest count of writes that a process here has seen. After a restart of
    all processes this command may be the first to compare. Raises what `clear_errors` handles.
    """
    from sayso.config.wiring.redis_parts import RedisParts

    parts = RedisParts.find(settings, data)
    parts.guard_against_loss(settings.state_folder(data)).check_server()
    return parts.client
