"""The `sayso shards` commands: status, rebalance."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.cli.output import clear_errors, fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.config.settings.schema import Settings
    from sayso.workers.sharding.move import Moved, Mover, ShardBusy, Survey
    from sayso.workers.sharding.shards import Primary

_config = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    help="The YAML file.  [default: SAYSO_CONFIG, or ./sayso.yaml]",
)
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder of the workers, for the Redis of a `sayso up`.",
)  # fmt: skip


@click.group()
def shards() -> None:
    """Several Redis primaries: which holds what, and moving shards between them."""


@shards.command()
@_config
@_data
def status(config: Path | None, data: Path) -> None:
    """Say how many of the 64 shards each primary holds, and which moves were interrupted."""
    settings = _settings(config, data)
    with clear_errors():
        survey = _mover(settings, data).survey()
    _tell(settings, survey)


@shards.command()
@_config
@_data
@click.option("--without", multiple=True, help="A primary to empty, before it is taken out of the configuration.")
@click.option(
    "--rest", default=180.0, show_default=True, type=click.FloatRange(1),
    help="Seconds that a shard's conversations may take to come to rest; one that does not is left where it is.",
)  # fmt: skip
def rebalance(config: Path | None, data: Path, without: tuple[str, ...], rest: float) -> None:
    """Move shards, under traffic, until each is where it belongs. May be killed and run again."""
    from sayso.workers.sharding.move import Moved, MoveError

    settings = _settings(config, data)
    names = _remaining(settings, without)
    stayed = 0
    with clear_errors():
        mover = _mover(settings, data, rest, names)
        try:
            for outcome in _patiently(mover, names):
                click.echo(_line(outcome))
                stayed += not isinstance(outcome, Moved)
        except MoveError as exc:
            fail(f"{exc}. What was moved is moved: run it again for the rest")
        _tell(settings, mover.survey())
    sys.exit(1 if stayed else 0)


def _settings(config: Path | None, data: Path) -> Settings:
    settings = load(config, data)
    return settings if settings.shards else fail("the configuration names no `shards`: there is one Redis")


def _remaining(settings: Settings, without: tuple[str, ...]) -> list[str]:
    unknown = sorted(set(without) - settings.shards.keys())
    if unknown:
        fail(f"--without {unknown[0]!r}: the configuration names {', '.join(settings.shards)}")
    return [name for name in settings.shards if name not in without] or fail("no primary would be left")


def _mover(settings: Settings, data: Path, rest: float = 180.0, targets: list[str] | None = None) -> Mover:
    """A mover for the servers of the configuration, which are founded first. Raises what `clear_errors` tells."""
    from redis import Redis

    from sayso.config.wiring.redis import find_redis, open_primaries
    from sayso.pending.redis.client import connect
    from sayso.workers.sharding.founding import found
    from sayso.workers.sharding.move import Mover

    url = find_redis(settings, data)
    shared = connect(url, patient=True)
    primaries = open_primaries(settings, url, shared, patient=True)
    prefix = settings.key_prefix
    found(shared, primaries, prefix=prefix)
    _check_workers(primaries, targets or [], prefix)
    clients = {name: Redis.from_url(url, socket_timeout=30) for name, url in settings.shards.items()}
    return Mover(Redis.from_url(url, socket_timeout=30), clients, rest_seconds=rest, prefix=prefix)


def _check_workers(primaries: Sequence[Primary], targets: list[str], prefix: str) -> None:
    """Nobody would answer what arrives where no worker is."""
    from sayso.workers.recovery import Heartbeat

    for primary in primaries:
        if primary.name in targets and not Heartbeat(primary.client, prefix=prefix).count():
            fail(f"nobody works for {primary.name}: start `sayso worker --shard {primary.name}` first")


def _patiently(mover: Mover, names: list[str]) -> Iterator[Moved | ShardBusy]:
    """All outcomes; a mover that was just killed is waited for."""
    from sayso.workers.sharding.move import LOCK_MS, MoveBusy

    until = time.monotonic() + LOCK_MS / 1000 + 1
    while True:
        try:
            yield from mover.rebalance(names)
            return
        except MoveBusy as exc:
            if time.monotonic() > until:
                raise
            click.echo(f"{exc}: waiting")
            time.sleep(2)


def _line(outcome: Moved | ShardBusy) -> str:
    from sayso.workers.sharding.move import Moved

    if not isinstance(outcome, Moved):
        return f"{outcome}: run it again later"
    return (
        f"shard {outcome.shard}: {outcome.from_} -> {outcome.to}, {outcome.keys:,} keys, "
        f"closed for {outcome.closed_seconds:.3f} s"
    )


def _tell(settings: Settings, survey: Survey) -> None:
    for name in settings.shards:
        click.echo(f"{name}: {survey.count(name)} shards")
    if survey.unfinished:
        numbers = ", ".join(str(shard) for shard in survey.unfinished)
        click.echo(f"a move was interrupted, or is under way: shard {numbers}. `sayso shards rebalance` finishes it")
