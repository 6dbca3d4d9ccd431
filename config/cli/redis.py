"""The `sayso redis` commands: status, resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.output import clear_errors, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from redis import Redis

    from sayso.config.settings.schema import Settings
    from sayso.workers.redis.data_loss import Resumed

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
    """Say whether Redis is halted, and what it has forgotten. Ends with 1 when it is."""
    from sayso.workers.redis.data_loss import halt_of

    with clear_errors():
        settings = load(config, data)
        halt = halt_of(_open(settings, data), prefix=settings.key_prefix)
    click.echo(f"redis: {f'halted: {halt}' if halt else 'whole'}")
    if halt:
        click.echo(
            "`sayso redis resume` goes on without what is missing: docs/how-to/outages.md says what becomes of it"
        )
    sys.exit(1 if halt else 0)


@redis.command()
@_config
@_data
def resume(config: Path | None, data: Path) -> None:
    """Go on with a Redis that has forgotten something: no number is given out twice. May be killed and run again."""
    from sayso.workers.redis.data_loss import resume as go_on

    settings = load(config, data)
    with clear_errors():
        done = go_on(_open(settings, data), prefix=settings.key_prefix)
    click.echo(f"redis: {_told(done) if done else 'not halted'}")


def _open(settings: Settings, data: Path) -> Redis:
    """Return a client of the Redis, after comparing it with what the data folder remembers of it.

    After a restart of everything no other process may have compared it yet. Raises what `clear_errors` catches.
    """
    from sayso.config.wiring.redis import find_redis, guard_against_loss
    from sayso.pending.redis.client import connect

    url = find_redis(settings, data)
    client = connect(url)
    guard_against_loss(settings, url, client, data).look()
    return client


def _told(done: Resumed) -> str:
    return (
        f"goes on; {done.halt}. {done.lanes:,} conversations have new numbers, {done.replies:,} waiting replies go out "
        f"marked as perhaps repeated, {done.actions:,} open questions are closed: whether they ran is not known"
    )
