"""The `sayso webhook` commands: set, status, delete."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from config.refusals import fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from config.setup.desk import Desk
    from config.setup.finding import Finding

T = TypeVar("T")

_config = click.option("--config", type=click.Path(path_type=Path), help="The YAML file.")
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The data folder. These commands keep nothing there.", expose_value=False,
)  # fmt: skip
_channel = click.argument("channel")
_drop_pending = click.option("--drop-pending", is_flag=True, help="Have Telegram forget the updates that wait.")


@click.group()
def webhook() -> None:
    """Tell a platform where a channel's webhooks go, and ask what it knows of them."""


@webhook.command("set")
@_channel
@_config
@_data
@_drop_pending
@click.option(
    "--max-connections", type=click.IntRange(1, 100), default=40, show_default=True,
    help="Updates that Telegram may send at once.",
)  # fmt: skip
def set_(channel: str, config: Path | None, max_connections: int, *, drop_pending: bool) -> None:
    """Have CHANNEL's platform send to public_url, and show what it says then. Slack prints what to click."""
    desk = _desk(config, channel, drop_pending=drop_pending, max_connections=max_connections)

    async def both() -> tuple[list[str], list[Finding]]:
        return await desk.point(), await desk.look()

    done, findings = _run(both())
    _say(done)
    _show(findings)


@webhook.command()
@_channel
@_config
@_data
def status(channel: str, config: Path | None) -> None:
    """Show what CHANNEL's platform says of it. Ends with 1 when something fails; mere warnings end with 0."""
    desk = _desk(config, channel)
    _show(_run(desk.look()))


@webhook.command()
@_channel
@_config
@_data
@_drop_pending
def delete(channel: str, config: Path | None, *, drop_pending: bool) -> None:
    """Have CHANNEL's platform send nothing any more. Slack prints what to click."""
    desk = _desk(config, channel, drop_pending=drop_pending)
    _say(_run(desk.leave()))


def _desk(config: Path | None, channel: str, *, drop_pending: bool = False, max_connections: int = 40) -> Desk:
    from config.bootstrap import find_public_url
    from config.setup.desk import SetupError
    from config.setup.desks import desk_of

    settings = load(config)
    try:
        url = find_public_url(settings)
        return desk_of(settings, channel, url, max_connections=max_connections, drop_pending=drop_pending)
    except SetupError as exc:
        fail(str(exc))


def _run(asked: Coroutine[Any, Any, T]) -> T:
    from config.setup.desk import SetupError

    try:
        return asyncio.run(asked)
    except SetupError as exc:
        fail(str(exc))


def _say(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


def _show(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(str(finding))
    if any(finding.state == "fail" for finding in findings):
        sys.exit(1)
