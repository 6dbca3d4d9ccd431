"""The `sayso webhook` commands: set, status, delete, recover, forget-media."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from sayso.config.cli.output import clear_errors, fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.channels.base import SharedCache
    from sayso.channels.setup import CheckResult, MessageLog, PlatformSetup
    from sayso.channels.whatsapp.message_log import (
        FoundMessage,
        MediaDeletion,
        MessageState,
        MissedMessages,
    )
    from sayso.config.settings.schema import Settings
    from sayso.workers.access.gate import AccessControl

T = TypeVar("T")


class Span(click.ParamType[float]):
    """A span of time as people write it, in seconds."""

    name = "span"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number and its unit."""
        found = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", str(value))
        if not found:
            self.fail(f"{value!r} is no span of time: write a number and s, m, h or d, such as 90m or 2h", param, ctx)
        return float(found[1]) * self._UNITS[found[2]]


SPAN = Span()

#: What missed messages come to, as they are counted.
_STATES: Mapping[MessageState, str] = {
    "before": "taken before", "missed": "missed", "taken": "taken now", "left": "left", "refused": "refused"
}  # fmt: skip

_config = click.option("--config", type=click.Path(path_type=Path), help="The YAML file.")
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The data folder. These commands keep nothing there.", expose_value=False,
)  # fmt: skip
_kept = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder of a running `sayso up`.",
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
    setup = _setup(config, channel, drop_pending=drop_pending, max_connections=max_connections)

    async def both() -> tuple[list[str], list[CheckResult]]:
        return await setup.set_webhook(), await setup.check()

    done, findings = _run(both())
    _say(done)
    _show(findings)


@webhook.command()
@_channel
@_config
@_data
def status(channel: str, config: Path | None) -> None:
    """Show what CHANNEL's platform says of it. Ends with 1 when something fails; mere warnings end with 0."""
    setup = _setup(config, channel)
    _show(_run(setup.check()))


@webhook.command()
@_channel
@_config
@_data
@_drop_pending
def delete(channel: str, config: Path | None, *, drop_pending: bool) -> None:
    """Have CHANNEL's platform send nothing any more. Slack prints what to click."""
    setup = _setup(config, channel, drop_pending=drop_pending)
    _say(_run(setup.delete_webhook()))


@webhook.command()
@_channel
@_config
@_kept
@click.option("--since", type=SPAN, default="2h", show_default=True, help="How far back: 90m, 2h, 3d.")
@click.option("--dry-run", is_flag=True, help="Show what was missed, and take nothing.")
def recover(channel: str, config: Path | None, data: Path, since: float, *, dry_run: bool) -> None:
    """Take what people wrote on CHANNEL and no webhook told us, from Twilio's list of messages, oldest first.

    What was taken before is not run again. Ends with 1 when a message was refused: run it again then.
    """
    with _opened(channel, config, data) as (settings, listed, gate, notebook):
        from sayso.channels.whatsapp.message_log import MissedMessages
        from sayso.config.wiring.access import rules_of
        from sayso.config.wiring.ingress import Recovery

        per_minute = rules_of(settings.channels[channel]).per_minute or 0
        recovery = MissedMessages(channel, listed, Recovery(gate), notebook, per_minute=per_minute)
        states = asyncio.run(_recover(recovery, since, dry_run=dry_run))
    if states["refused"]:
        sys.exit(1)


@webhook.command("forget-media")
@_channel
@_config
@_kept
@click.option("--older", type=SPAN, default="24h", show_default=True, help="Only files older than this: 1h or more.")
@click.option("--back", type=SPAN, default="7d", show_default=True, help="How far back from there: 400d for all.")
@click.option("--dry-run", is_flag=True, help="Count the files, and delete nothing.")
def forget_media(
    channel: str, config: Path | None, data: Path, older: float, back: float, *, dry_run: bool
) -> None:  # fmt: skip
    """Delete at Twilio the files that people sent to CHANNEL, day by day. Files that a turn still needs are kept.

    It may be run again at any time, as by cron. Our own copies are not touched.
    """
    with _opened(channel, config, data) as (_, listed, gate, _):
        from sayso.channels.whatsapp.message_log import MediaDeletion
        from sayso.config.wiring.ingress import Recovery

        asyncio.run(_forget(MediaDeletion(channel, listed, Recovery(gate)), older, back, dry_run=dry_run))


async def _recover(recovery: MissedMessages, since: float, *, dry_run: bool) -> Counter[MessageState]:
    """Say what becomes of each as it does: an error later on does not hide it. Returns how many came to what."""
    states: Counter[MessageState] = Counter()
    async for found in recovery.run(since, take=not dry_run):
        states[found.state] += 1
        if found.state != "before":
            click.echo(_row(found))
    told = ", ".join(f"{states[state]} {word}" for state, word in _STATES.items() if states[state])
    click.echo(f"{states.total()} messages{f': {told}' if told else ''}")
    return states


async def _forget(forgetting: MediaDeletion, older: float, back: float, *, dry_run: bool) -> None:
    deleted = 0
    async for day in forgetting.run(older, back, delete=not dry_run):
        deleted += day.deleted
        kept = [f"{day.waiting} kept for turns that wait"] if day.waiting else []
        kept += [f"{day.missed} kept that `sayso webhook recover` may take"] if day.missed else []
        if day.deleted or kept:
            done = f"{day.deleted} {'to delete' if dry_run else 'deleted'}"
            click.echo(f"from {day.day}: {', '.join([done, *kept])}")
    click.echo(f"{deleted} files {'would be deleted' if dry_run else 'deleted'} at Twilio")


def _row(found: FoundMessage) -> str:
    at = f"{datetime.fromtimestamp(found.sent_at, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{at}  {found.sid}  {found.conversation}  {found.state}{f': {found.why}' if found.why else ''}"


@contextmanager
def _opened(
    channel: str, config: Path | None, data: Path
) -> Iterator[tuple[Settings, MessageLog, AccessControl, SharedCache]]:  # fmt: skip
    """What a platform keeps of a channel, and where turns go in. Ends the program with what an operator can cure."""
    from sayso.channels.setup import SetupError
    from sayso.config.wiring.bootstrap import open_door
    from sayso.config.wiring.platforms import open_message_log

    settings = load(config, data)
    try:
        listed = open_message_log(settings, channel)
        with clear_errors():
            yield settings, listed, *open_door(settings, data)
    except SetupError as exc:
        fail(str(exc))


def _setup(
    config: Path | None, channel: str, *, drop_pending: bool = False, max_connections: int = 40
) -> PlatformSetup:
    from sayso.channels.setup import SetupError, SetupOptions
    from sayso.config.wiring.bootstrap import find_public_url
    from sayso.config.wiring.platforms import open_setup

    settings = load(config)
    try:
        url = find_public_url(settings)
        return open_setup(settings, channel, url, SetupOptions(max_connections, drop_pending))
    except SetupError as exc:
        fail(str(exc))


def _run(asked: Coroutine[Any, Any, T]) -> T:
    from sayso.channels.setup import SetupError

    try:
        return asyncio.run(asked)
    except SetupError as exc:
        fail(str(exc))


def _say(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)


def _show(findings: list[CheckResult]) -> None:
    for finding in findings:
        click.echo(str(finding))
    if any(finding.state == "fail" for finding in findings):
        sys.exit(1)
