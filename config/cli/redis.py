"""The `sayso redis` commands: status, resume."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.options import FINDING, Options, SaysoGroup, pass_options
from sayso.config.cli.output import clear_errors, fail, load, print_result

if TYPE_CHECKING:
    from redis import Redis

    from sayso.config.settings.schema import Settings
    from sayso.workers.redis.data_loss import Resumed
    from sayso.workers.sharding.shards import Primary


@click.group(cls=SaysoGroup, examples=["sayso redis status", "sayso redis resume"])
def redis() -> None:
    """See whether Redis lost acknowledged writes, and continue after it did."""


@redis.command(examples=["sayso redis status", "sayso redis status --json"])
@pass_options
def status(options: Options) -> None:
    """Print for each server whether it is halted, and what it lost. Exits with 1 where one is halted."""
    from sayso.workers.redis.data_loss import halt_of

    with clear_errors():
        settings = load(options.config, options.data)
        servers = _opened(settings, options.data)[1]
        halts = {_name(each): halt_of(each.client, prefix=settings.key_prefix) for each in servers}
    lines = [f"{name}: {f'halted: {halt}' if halt else 'whole'}" for name, halt in halts.items()]
    is_halted = any(halts.values())
    if is_halted:
        lines.append("`sayso redis resume` continues without what is missing: docs/outages.md says what that means")
    print_result(options, {name: str(halt) if halt else None for name, halt in halts.items()}, lines)
    sys.exit(FINDING if is_halted else 0)


@redis.command(examples=["sayso redis resume"])
@pass_options
def resume(options: Options) -> None:
    """Continue with a Redis that lost writes, without using any number twice.

    It may be killed and run again.
    """
    from sayso.workers.redis.data_loss import resume as resume_server
    from sayso.workers.redis.data_loss import tide_of

    settings = load(options.config, options.data)
    with clear_errors():
        shared, primaries = _opened(settings, options.data)
        if settings.shards:
            _found(settings, shared, primaries)
        prefix = settings.key_prefix
        highest = max(tide_of(primary.client, prefix=prefix) for primary in primaries)
        results = {
            _name(each): resume_server(each.client, beyond=highest, gated=bool(settings.shards), prefix=prefix)
            for each in primaries
        }
    lines = [f"{name}: {_summary(result) if result else 'not halted'}" for name, result in results.items()]
    print_result(options, {name: asdict(result) if result else None for name, result in results.items()}, lines)


def _opened(settings: Settings, data: Path) -> tuple[Redis, Sequence[Primary]]:
    """Return the server that all share, and the servers that hold conversations.

    Each is compared with the watermark noted on this machine: after a restart of all processes no other may have done
    so. Raises what `clear_errors` handles.
    """
    from sayso.config.wiring.redis import find_redis, open_data_loss_guards, open_primaries
    from sayso.pending.redis.client import connect

    url = find_redis(settings, data)
    shared = connect(url)
    primaries = open_primaries(settings, url, shared)
    for guard in open_data_loss_guards(settings, primaries, data):
        guard.look()
    return shared, primaries


def _found(settings: Settings, shared: Redis, primaries: Sequence[Primary]) -> None:
    """Give an emptied server its name and its shards back.

    Exits where a move of shards may be among the lost writes: only an operator knows which copy counts.
    """
    from sayso.workers.sharding.founding import found
    from sayso.workers.sharding.move import Mover, ShardsAtOdds

    found(shared, primaries, prefix=settings.key_prefix)
    clients = {primary.name: primary.client for primary in primaries}
    try:
        Mover(shared, clients, prefix=settings.key_prefix).survey().check()
    except ShardsAtOdds as exc:
        fail(str(exc))


def _name(primary: Primary) -> str:
    return primary.name or "redis"


def _summary(result: Resumed) -> str:
    return (
        f"goes on; {result.halt}. {result.lanes:,} conversations have new numbers, {result.replies:,} waiting replies "
        f"go out marked as perhaps repeated, {result.actions:,} open questions are closed: nobody knows if they ran"
    )
