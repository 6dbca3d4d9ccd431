"""The `sayso channel` commands: connect, status, disconnect, recover, purge-media.

A platform adds its own (`commands` in `channels/registry.py`), such as those of a Slack app.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from sayso.infra.terminal import utc_time
from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    SaysoGroup,
    check_channel,
    clear_errors,
    exit_on_failure,
    fail,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.channels.setup import (
        BotState,
        CheckResult,
        DeletedFiles,
        FoundMessage,
        MessageLog,
        MessageState,
        PlatformCommand,
        PlatformSetup,
        SetupOptions,
    )
    from sayso.config.settings.schema import Settings

#: What a call to a platform returns.
T = TypeVar("T")


class TimeSpan(click.ParamType[float]):
    """A time span such as `90m` or `2h`, converted to seconds."""

    name = "time span"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds of a number and its unit. Raises click.BadParameter."""
        match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", str(value))
        if not match:
            self.fail(
                f"{value!r} is not a time span: write a number and s, m, h or d, such as 90m or 2h",
                param,
                ctx,
            )
        return float(match[1]) * self._UNITS[match[2]]


TIME_SPAN = TimeSpan()
#: How many updates a platform may send at once, unless --max-connections says otherwise.
_MAX_CONNECTIONS = 40
#: How the summary of `recover` calls what became of the messages in a platform's log.
#: `MessageState` in `channels/setup.py` explains each.
_STATE_LABELS: Mapping[MessageState, str] = {
    "before": "taken before",
    "missed": "missed",
    "taken": "taken now",
    "left": "left",
    "refused": "refused",
}

_channel_argument = click.argument("channel")
_drop_pending = click.option(
    "--drop-pending",
    is_flag=True,
    help="Make the platform delete the updates that wait, where it can.",
)


class ChannelGroup(SaysoGroup):
    """The group `sayso channel`, with the commands that only one platform has.

    These are looked up when they are needed: the platforms' settings import pydantic, which would
    make `sayso --help` slow.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *_commands_of_platforms()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None for an unknown name."""
        return super().get_command(ctx, cmd_name) or _commands_of_platforms().get(cmd_name)


@click.group(
    cls=ChannelGroup, examples=["sayso channel connect shop-wa", "sayso channel status ops-tg"]
)
def channel() -> None:
    """Connect a channel to its platform, and see what the platform knows about it."""


@channel.command(
    examples=["sayso channel connect ops-tg", "sayso channel connect ops-tg --drop-pending"]
)
@_channel_argument
@_drop_pending
@click.option(
    "--max-connections",
    type=click.IntRange(1, 100),
    default=_MAX_CONNECTIONS,
    show_default=True,
    help="Number of updates that the platform may send at once, where that can be set.",
)
@pass_options
def connect(options: Options, channel: str, max_connections: int, *, drop_pending: bool) -> None:
    """Make the platform of CHANNEL send its webhooks to public_url, and check the result.

    Prints the steps to click where a bot may not do it, as at Slack.
    """
    setup = _platform_setup(
        options, channel, drop_pending=drop_pending, max_connections=max_connections
    )

    # In one event loop, since the setup lives as long as its loop.
    async def connect_and_check() -> tuple[list[str], list[CheckResult]]:
        return await setup.set_webhook(), await setup.check()

    steps, results = _run(connect_and_check())
    value = {"steps": steps, "checks": [asdict(result) for result in results]}
    options.print(value, [*steps, *map(str, results)])
    exit_on_failure(results)


@channel.command(examples=["sayso channel status shop-wa", "sayso channel status shop-wa --json"])
@_channel_argument
@pass_options
def status(options: Options, channel: str) -> None:
    """Print what the platform of CHANNEL knows about it.

    Exits with 1 where a check fails; warnings do not count.
    """
    setup = _platform_setup(options, channel)
    results = _run(setup.check())
    options.print([asdict(result) for result in results], map(str, results))
    exit_on_failure(results)


@channel.command(examples=["sayso channel disconnect ops-tg"])
@_channel_argument
@_drop_pending
@pass_options
def disconnect(options: Options, channel: str, *, drop_pending: bool) -> None:
    """Make the platform of CHANNEL stop sending webhooks.

    Prints the steps to click where a bot may not do it, as at Slack.
    """
    setup = _platform_setup(options, channel, drop_pending=drop_pending)
    steps = _run(setup.delete_webhook())
    options.print({"steps": steps}, steps)


def _platform_setup(
    options: Options,
    channel: str,
    *,
    drop_pending: bool = False,
    max_connections: int = _MAX_CONNECTIONS,
) -> PlatformSetup:
    """Return what registers the webhook of a channel. Exits where its platform has none."""
    from sayso.channels.setup import SetupOptions

    # A channel is connected before its bot starts. So the file is the one with which the bot will
    # start, not that of a bot which runs now.
    settings = options.load(prefer_running=False)
    with clear_errors():
        from sayso.config.wiring.bot_state import find_state

        state = find_state(settings, options.data)
        setup_options = SetupOptions(max_connections, drop_pending, state)
        return _open_setup(settings, channel, setup_options, cure_of_page="it needs no webhook")


def _open_setup(
    settings: Settings, name: str, options: SetupOptions | None, *, cure_of_page: str
) -> PlatformSetup:
    """Return what registers a channel at its platform and asks the platform about it.

    * `options`: how a webhook is set or deleted, None for a command that does neither.
    * `cure_of_page`: the advice for a channel that is a page in the browser, which no platform has
      to know.

    Raises click.UsageError for an unknown channel, and SetupError for a platform that can be told
    nothing, or that keeps no updates to drop.
    """
    from sayso.channels.registry import open_setup
    from sayso.channels.setup import SetupError, hook_url
    from sayso.config.settings.loader import find_public_url

    check_channel(settings, name)
    channel_settings = settings.channels[name]
    platform = channel_settings.platform
    url = find_public_url(settings)
    if options and options.drop_pending and not channel_settings.can_drop_updates:
        raise SetupError(
            f"{platform} keeps no updates that could be dropped", "leave out --drop-pending"
        )

    setup = open_setup(name, channel_settings, url, options)
    if setup:
        return setup
    if channel_settings.has_page:
        raise SetupError(f"{name} is a page in the browser", cure_of_page)
    says = f"{platform} cannot be told or asked anything"
    raise SetupError(says, f"have it send to {hook_url(url, name)} yourself")


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Return what a call to the platform returns. Exits where the platform refuses."""
    with clear_errors():
        return asyncio.run(call)


@channel.command(
    examples=["sayso channel recover shop-wa --since 3h", "sayso channel recover shop-wa --dry-run"]
)
@_channel_argument
@click.option(
    "--since", type=TIME_SPAN, default="2h", show_default=True, help="How far back: 90m, 2h, 3d."
)
@click.option("--dry-run", is_flag=True, help="Print the missed messages, and take none.")
@pass_options
def recover(options: Options, channel: str, since: float, *, dry_run: bool) -> None:
    """Take the messages to CHANNEL that no webhook delivered.

    They are in the platform's message log, and are taken oldest first. Of the built-in platforms,
    WhatsApp has one.

    A message that was taken before is not taken again. Exits with 1 where a message was refused:
    run it again later.
    """
    cure_of_page = "the page itself asks people to send again what it could not send"
    with _message_log(options, channel, cure_of_page) as (settings, message_log):
        from sayso.config.wiring.ingress import find_missed_messages

        logged_messages = find_missed_messages(
            settings,
            options.data,
            channel,
            message_log,
            since,
            take=not dry_run,
        )
        states = asyncio.run(_print_messages(options, logged_messages))
    if states["refused"]:
        sys.exit(FINDING)


async def _print_messages(
    options: Options, logged_messages: AsyncIterator[FoundMessage]
) -> Counter[MessageState]:
    """Print each message as soon as it is handled, and the sum. Return the number in each state.

    With --json all are printed at the end. An error hides nothing: before it is raised, what was
    handled until then is printed.
    """
    states: Counter[MessageState] = Counter()
    messages: list[dict[str, Any]] = []
    try:
        async for message in logged_messages:
            states[message.state] += 1
            messages.append(asdict(message))
            if not options.as_json and message.state != "before":
                reason = f": {message.why}" if message.why else ""
                place = f"{message.sid}  {message.conversation}"
                click.echo(f"{utc_time(message.sent_at)}  {place}  {message.state}{reason}")
    except Exception:
        if messages:
            _print_sum_of_messages(options, messages, states)
        raise
    _print_sum_of_messages(options, messages, states)
    return states


def _print_sum_of_messages(
    options: Options, messages: list[dict[str, Any]], states: Counter[MessageState]
) -> None:
    """Print how many messages are in each state; with --json also each message."""
    summary = f"{states.total()} messages"
    counts = [f"{states[state]} {label}" for state, label in _STATE_LABELS.items() if states[state]]
    if counts:
        summary += f": {', '.join(counts)}"
    options.print({"messages": messages, "counts": dict(states)}, [summary])


@channel.command("purge-media", examples=["sayso channel purge-media shop-wa --older 24h"])
@_channel_argument
@click.option(
    "--older",
    type=TIME_SPAN,
    default="24h",
    show_default=True,
    help="Delete only files older than this: 1h or more.",
)
# Twilio keeps messages for 13 months.
@click.option(
    "--back",
    type=TIME_SPAN,
    default="7d",
    show_default=True,
    help="How far back from there: 400d for all.",
)
@click.option("--dry-run", is_flag=True, help="Count the files, and delete none.")
@pass_options
def purge_media(
    options: Options, channel: str, older: float, back: float, *, dry_run: bool
) -> None:
    """Delete the files that people sent to CHANNEL from its platform, day by day.

    Files that a turn still needs stay. Of the built-in platforms, WhatsApp keeps files until they
    are deleted.

    It may run again at any time, for example from cron. Our own copies are not deleted.
    """
    cure_of_page = "only the bot itself has its files"
    with _message_log(options, channel, cure_of_page) as (settings, message_log):
        from sayso.config.wiring.ingress import delete_media

        days = delete_media(
            settings,
            options.data,
            channel,
            message_log,
            older,
            back,
            delete=not dry_run,
        )
        asyncio.run(_print_days(options, days, dry_run=dry_run))


async def _print_days(
    options: Options, deleted_files: AsyncIterator[DeletedFiles], *, dry_run: bool
) -> None:
    """Print what was deleted, day by day as it happens, and the sum.

    With --json all is printed at the end. Before an error is raised, the days that were done until
    then are printed.
    """
    verb = "to delete" if dry_run else "deleted"
    days: list[DeletedFiles] = []
    try:
        async for day in deleted_files:
            days.append(day)
            parts = [f"{day.deleted} {verb}"]
            if day.waiting:
                parts.append(f"{day.waiting} kept for turns that wait")
            if day.missed:
                parts.append(f"{day.missed} kept that `sayso channel recover` may take")
            has_files = day.deleted or day.waiting or day.missed
            if has_files and not options.as_json:
                click.echo(f"from {day.day}: {', '.join(parts)}")
    except Exception:
        if days:
            _print_sum_of_days(options, days, dry_run=dry_run)
        raise
    _print_sum_of_days(options, days, dry_run=dry_run)


def _print_sum_of_days(options: Options, days: list[DeletedFiles], *, dry_run: bool) -> None:
    """Print how many files were deleted; with --json also those of each day."""
    total = sum(day.deleted for day in days)
    sum_verb = "would be deleted" if dry_run else "deleted"
    summary = f"{total} files {sum_verb} at the platform"
    per_day = [{**asdict(day), "day": str(day.day)} for day in days]
    options.print({"deleted": total, "dry_run": dry_run, "days": per_day}, [summary])


@contextmanager
def _message_log(
    options: Options, channel: str, cure_of_page: str
) -> Iterator[tuple[Settings, MessageLog]]:
    """Yield the settings and the platform's message log.

    Exits for errors with a cure, also those of the block, and for a platform without a log.
    """
    settings = options.load()
    with clear_errors():
        setup = _open_setup(settings, channel, None, cure_of_page=cure_of_page)
        yield settings, setup.message_log()


@cache
def _commands_of_platforms() -> Mapping[str, SaysoCommand]:
    """Return the commands that only one platform has, by name.

    A platform that does not load has none, and is named on standard error.
    """
    from sayso.channels.registry import PlatformUnusable, platform_commands, platform_names

    commands = {}
    for platform in platform_names():
        try:
            platform_only = platform_commands(platform)
        except PlatformUnusable as exc:
            # The commands of the other platforms must still work.
            click.echo(f"Warning: {exc}", err=True)
            continue
        for command in platform_only:
            commands[command.name] = _platform_command(platform, command)
    return commands


def _platform_command(platform: str, command: PlatformCommand) -> SaysoCommand:
    """Return a command that only channels of one platform have, as a click command.

    All have an optional argument CHANNEL before their own parameters.
    """

    def run(options: Options, channel: str, **parameters: Any) -> None:
        from sayso.channels.setup import CommandTarget
        from sayso.config.settings.loader import find_public_url

        # A command that needs no secrets, such as one that prints a manifest, comes before the
        # first start of the bot: it reads the file with which the bot will start.
        settings = options.load(
            prefer_running=command.needs_secrets, without_secrets=not command.needs_secrets
        )
        name = _channel_of(settings, platform, channel, of_workspaces=command.of_workspaces)

        def open_bot_state() -> BotState:
            from sayso.config.wiring.bot_state import open_state

            return open_state(settings, options.data, name)

        with clear_errors():
            target = CommandTarget(
                name,
                settings.channels[name],
                find_public_url(settings),
                open_bot_state,
            )
            result = command.run(target, **parameters)
        options.print(result.value, result.lines)

    channel_argument = click.Argument(["channel"], required=False, default="")
    return SaysoCommand(
        command.name,
        params=[channel_argument, *command.parameters],
        callback=pass_options(run),
        help=command.run.__doc__,
        examples=command.examples,
    )


def _channel_of(settings: Settings, platform: str, name: str, *, of_workspaces: bool) -> str:
    """Return the name of a channel of the platform: `name`, or the first one for "".

    With `of_workspaces`, "" is the first channel whose app many workspaces install, as they may at
    Slack; the first one of all if there is none. Exits where the platform has no channel. Raises
    click.UsageError for a channel of another one.
    """
    channels = {
        each: channel for each, channel in settings.channels.items() if channel.platform == platform
    }
    if name:
        check_channel(settings, name)
        if name not in channels:
            known = "there is none"
            if channels:
                known = f"name one of {', '.join(channels)}"
            raise click.UsageError(f"{name!r} is not a channel of {platform}: {known}")
        return name
    if not channels:
        fail(f"no channel of {platform} is configured: add one with platform: {platform}")
    if of_workspaces:
        for each, channel in channels.items():
            if channel.has_many_workspaces:
                return each
    return next(iter(channels))
