"""The `sayso redis` commands: status, resume."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.output import clear_errors, fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from redis import Redis

    from sayso.config.settings.schema import Settings
    from sayso.workers.redis.data_loss import Resumed
    from sayso.workers.sharding.shards import Primary

_config = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    help="The YAML file.  [default: SAYSO_CONFIG, or ./sayso.yaml]",
)
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The data folder: of a running `sayso up`, and where it is noted what Redis had done.",
)  # fmt: skip


@click.group()
def redis() -> None:
    """Whether Redis still knows what it had acknowledged, and going on where it does not."""


@redis.command()
@_config
@_data
def status(config: Path | None, data: Path) -> None:
    """Say of each server whether it is halted, and what it has forgotten. Ends with 1 when one is."""
    from sayso.workers.redis.data_loss import halt_of

    halted = 0
    with clear_errors():
        settings = load(config, data)
        for primary in _opened(settings, data)[1]:
            halt = halt_of(primary.client, prefix=settings.key_prefix)
            click.echo(f"{_name(primary)}: {f'halted: {halt}' if halt else 'whole'}")
            halted += halt is not None
    if halted:
        click.echo(
            "`sayso redis resume` goes on without what is missing: docs/how-to/outages.md says what becomes of it"
        )
    sys.exit(1 if halted else 0)


@redis.command()
@_config
@_data
def resume(config: Path | None, data: Path) -> None:
    """Go on with a Redis that has forgotten something: no number is given out twice. May be killed and run again."""
    from sayso.workers.redis.data_loss import resume as go_on
    from sayso.workers.redis.data_loss import tide_of

    settings = load(config, data)
    with clear_errors():
        shared, primaries = _opened(settings, data)
        if settings.shards:
            _found(settings, shared, primaries)
        prefix = settings.key_prefix
        highest = max(tide_of(primary.client, prefix=prefix) for primary in primaries)
        for primary in primaries:
            done = go_on(primary.client, beyond=highest, gated=bool(settings.shards), prefix=prefix)
            click.echo(f"{_name(primary)}: {_told(done) if done else 'not halted'}")


def _opened(settings: Settings, data: Path) -> tuple[Redis, Sequence[Primary]]:
    """The server that all share, and all that hold conversations, each compared with what is noted of it: after a
    restart of everything nobody else may have done so. Raises what `clear_errors` tells.
    """
    from sayso.config.wiring.redis import find_redis, open_primaries, open_tides
    from sayso.pending.redis.client import connect

    url = find_redis(settings, data)
    shared = connect(url)
    primaries = open_primaries(settings, url, shared)
    for tide in open_tides(settings, primaries, data):
        tide.look()
    return shared, primaries


def _found(settings: Settings, shared: Redis, primaries: Sequence[Primary]) -> None:
    """A server that was emptied gets its name and its shards back. Where a move of shards may be among what was
    forgotten, nobody but an operator knows which copy counts.
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


def _told(done: Resumed) -> str:
    return (
        f"goes on; {done.halt}. {done.lanes:,} conversations have new numbers, {done.replies:,} waiting replies go out "
        f"marked as perhaps repeated, {done.actions:,} open questions are closed: whether they ran is not known"
    )
