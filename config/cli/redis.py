"""The `sayso redis` commands: status, resume."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.options import FINDING, Options, SaysoGroup, pass_options
from sayso.config.cli.output import clear_errors, load, print_result

if TYPE_CHECKING:
    from redis import Redis

    from sayso.config.settings.schema import Settings
    from sayso.workers.redis.resume import Resumed


@click.group(cls=SaysoGroup, examples=["sayso redis status", "sayso redis resume"])
def redis() -> None:
    """See whether Redis lost acknowledged writes, and continue after it did."""


@redis.command(examples=["sayso redis status", "sayso redis status --json"])
@pass_options
def status(options: Options) -> None:
    """Print whether Redis is halted, and what it lost. Exits with 1 when it is."""
    from sayso.workers.redis.resume import halt_of

    with clear_errors():
        settings = load(options.config, options.data)
        halt = halt_of(_opened(settings, options.data), prefix=settings.key_prefix)
    lines = [f"redis: {f'halted: {halt}' if halt else 'whole'}"]
    if halt:
        lines.append(
            "`sayso redis resume` continues without what is missing: docs/how-to/operate.md says what that means"
        )
    print_result(options, {"redis": str(halt) if halt else None}, lines)
    sys.exit(FINDING if halt else 0)


@redis.command(examples=["sayso redis resume"])
@pass_options
def resume(options: Options) -> None:
    """Continue with a Redis that lost writes, without using any number twice.

    It may be killed and run again.
    """
    from sayso.workers.redis.resume import resume as resume_server

    settings = load(options.config, options.data)
    with clear_errors():
        result = resume_server(_opened(settings, options.data), prefix=settings.key_prefix)
    print_result(
        options,
        {"redis": asdict(result) if result else None},
        [f"redis: {_summary(result) if result else 'not halted'}"],
    )


def _opened(settings: Settings, data: Path) -> Redis:
    """Return a client of the Redis, compared with the watermark noted on this machine.

    After a restart of all processes no other may have compared it. Raises what `clear_errors` handles.
    """
    from sayso.config.wiring.stores import find_redis, guard_against_loss
    from sayso.pending.redis.client import connect

    url = find_redis(settings, data)
    client = connect(url)
    guard_against_loss(settings, url, client, data).look()
    return client


def _summary(result: Resumed) -> str:
    return (
        f"goes on; {result.halt}. {result.conversations:,} conversations have new numbers, {result.replies:,} waiting "
        f"replies go out marked as perhaps repeated, {result.actions:,} open questions are closed; they may have run"
    )
