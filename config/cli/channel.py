"""The `sayso channel` commands: connect, status, disconnect, recover, purge-media, manifest, workspaces, invite."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import click

from sayso.config.cli.command import (
    FINDING,
    Options,
    SaysoGroup,
    check_channel,
    clear_errors,
    exit_on_failure,
    fail,
    one_line,
    pass_options,
    utc_time,
)

if TYPE_CHECKING:
    from sayso.channels.setup import CheckResult, MessageLog, PlatformSetup, SetupOptions
    from sayso.channels.slack.installations import Installation, SlackInstallations
    from sayso.channels.slack.settings import SlackSettings, View
    from sayso.channels.whatsapp.message_log import MediaDeletion, MessageState, MissedMessages
    from sayso.config.settings.schema import Settings

T = TypeVar("T")


class TimeSpan(click.ParamType[float]):
    """A time span such as `90m` or `2h`, converted to seconds."""

    name = "time span"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of a number and its unit. Raises click.BadParameter."""
        match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", str(value))
        if not match:
            self.fail(f"{value!r} is no time span: write a number and s, m, h or d, such as 90m or 2h", param, ctx)
        return float(match[1]) * self._UNITS[match[2]]


TIME_SPAN = TimeSpan()
#: How the states of missed messages are counted in the summary.
_STATE_LABELS: Mapping[MessageState, str] = {
    "before": "taken before", "missed": "missed", "taken": "taken now", "left": "left", "refused": "refused"
}  # fmt: skip

_channel = click.argument("channel")
_drop_pending = click.option("--drop-pending", is_flag=True, help="Make Telegram delete the updates that wait.")


@click.group(cls=SaysoGroup, examples=["sayso channel connect shop-wa", "sayso channel status ops-tg"])
def channel() -> None:
    """Connect a channel to its platform, and see what the platform knows about it."""


@channel.command(examples=["sayso channel connect ops-tg", "sayso channel connect ops-tg --drop-pending"])
@_channel
@_drop_pending
@click.option(
    "--max-connections", type=click.IntRange(1, 100), default=40, show_default=True,
    help="Number of updates that Telegram may send at the same time.",
)  # fmt: skip
@pass_options
def connect(options: Options, channel: str, max_connections: int, *, drop_pending: bool) -> None:
    """Make the platform of CHANNEL send its webhooks to public_url, and check the result. For Slack, prints the steps
    to click.
    """
    setup = _platform_setup(options, channel, drop_pending=drop_pending, max_connections=max_connections)

    async def connect_and_check() -> tuple[list[str], list[CheckResult]]:
        return await setup.set_webhook(), await setup.check()

    steps, results = _run(connect_and_check())
    value = {"steps": steps, "checks": [asdict(result) for result in results]}
    options.print(value, [*steps, *map(str, results)])
    exit_on_failure(results)


@channel.command(examples=["sayso channel status shop-wa", "sayso channel status shop-wa --json"])
@_channel
@pass_options
def status(options: Options, channel: str) -> None:
    """Print what the platform of CHANNEL knows about it. Exits with 1 where a check fails; warnings do not count."""
    setup = _platform_setup(options, channel)
    results = _run(setup.check())
    options.print([asdict(result) for result in results], map(str, results))
    exit_on_failure(results)


@channel.command(examples=["sayso channel disconnect ops-tg"])
@_channel
@_drop_pending
@pass_options
def disconnect(options: Options, channel: str, *, drop_pending: bool) -> None:
    """Make the platform of CHANNEL stop sending webhooks. For Slack, prints the steps to click."""
    setup = _platform_setup(options, channel, drop_pending=drop_pending)
    steps = _run(setup.delete_webhook())
    options.print({"steps": steps}, steps)


def _platform_setup(
    options: Options, channel: str, *, drop_pending: bool = False, max_connections: int = 40
) -> PlatformSetup:
    from sayso.channels.setup import SetupOptions

    settings = options.load(running=False)
    with clear_errors():
        from sayso.config.wiring.bot_state import find_state

        state = find_state(settings, options.data)
        setup_options = SetupOptions(max_connections, drop_pending, state)
        return _open_setup(settings, channel, setup_options, "it needs no webhook")


def _open_setup(settings: Settings, name: str, options: SetupOptions | None, cure_of_page: str) -> PlatformSetup:
    """Return what tells the platform about a channel.

    Raises click.UsageError for an unknown channel, and SetupError for a platform that can be told nothing, or that
    keeps no updates to drop.
    """
    from sayso.channels.registry import open_setup
    from sayso.channels.setup import SetupError, hook_url
    from sayso.config.settings.loader import find_public_url

    check_channel(settings, name)
    channel, url = settings.channels[name], find_public_url(settings)
    if options and options.drop_pending and not channel.can_drop_updates:
        raise SetupError(f"{channel.platform} keeps no updates that could be dropped", "leave out --drop-pending")
    if setup := open_setup(name, channel, url, options):
        return setup
    if channel.has_page:
        raise SetupError(f"{name} is a page in the browser", cure_of_page)
    says = f"{channel.platform} cannot be told or asked anything"
    raise SetupError(says, f"have it send to {hook_url(url, name)} yourself")


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Return what a call to the platform returns. Exits where the platform refuses."""
    with clear_errors():
        return asyncio.run(call)


@channel.command(examples=["sayso channel recover shop-wa --since 3h", "sayso channel recover shop-wa --dry-run"])
@_channel
@click.option("--since", type=TIME_SPAN, default="2h", show_default=True, help="How far back: 90m, 2h, 3d.")
@click.option("--dry-run", is_flag=True, help="Print the missed messages, and take none.")
@pass_options
def recover(options: Options, channel: str, since: float, *, dry_run: bool) -> None:
    """Take the messages to CHANNEL that no webhook delivered, from Twilio's message log, oldest first.

    A message that was taken before is not taken again. Exits with 1 where a message was refused: run it again later.
    """
    with _message_log(options, channel) as (settings, message_log):
        from sayso.config.wiring.ingress import open_missed_messages

        missed = open_missed_messages(settings, options.data, channel, message_log)
        states = asyncio.run(_recover(options, missed, since, dry_run=dry_run))
    if states["refused"]:
        sys.exit(FINDING)


async def _recover(
    options: Options, missed: MissedMessages, since: float, *, dry_run: bool
) -> Counter[MessageState]:  # fmt: skip
    """Print each message as it is handled, so that a later error does not hide it. Return the number of messages in
    each state.
    """
    states: Counter[MessageState] = Counter()
    messages = []
    async for message in missed.run(since, take=not dry_run):
        states[message.state] += 1
        if options.as_json:
            messages.append(asdict(message))
        elif message.state != "before":
            reason = f": {message.why}" if message.why else ""
            click.echo(f"{utc_time(message.sent_at)}  {message.sid}  {message.conversation}  {message.state}{reason}")
    counts = ", ".join(f"{states[state]} {label}" for state, label in _STATE_LABELS.items() if states[state])
    summary = f"{states.total()} messages{f': {counts}' if counts else ''}"
    options.print({"messages": messages, "counts": dict(states)}, [summary])
    return states


@channel.command("purge-media", examples=["sayso channel purge-media shop-wa --older 24h"])
@_channel
@click.option(
    "--older", type=TIME_SPAN, default="24h", show_default=True, help="Delete only files older than this: 1h or more."
)
@click.option("--back", type=TIME_SPAN, default="7d", show_default=True, help="How far back from there: 400d for all.")
@click.option("--dry-run", is_flag=True, help="Count the files, and delete none.")
@pass_options
def purge_media(options: Options, channel: str, older: float, back: float, *, dry_run: bool) -> None:
    """Delete the files that people sent to CHANNEL from Twilio, day by day. Files that a turn still needs stay.

    It may run again at any time, for example from cron. Our own copies are not deleted.
    """
    with _message_log(options, channel) as (settings, message_log):
        from sayso.config.wiring.ingress import open_media_deletion

        deletion = open_media_deletion(settings, options.data, channel, message_log)
        asyncio.run(_purge(options, deletion, older, back, dry_run=dry_run))


async def _purge(options: Options, deletion: MediaDeletion, older: float, back: float, *, dry_run: bool) -> None:
    days = []
    async for day in deletion.run(older, back, delete=not dry_run):
        days.append(day)
        remaining = [f"{day.waiting} kept for turns that wait"] if day.waiting else []
        remaining += [f"{day.missed} kept that `sayso channel recover` may take"] if day.missed else []
        if (day.deleted or remaining) and not options.as_json:
            deleted = f"{day.deleted} {'to delete' if dry_run else 'deleted'}"
            click.echo(f"from {day.day}: {', '.join([deleted, *remaining])}")
    total = sum(day.deleted for day in days)
    summary = f"{total} files {'would be deleted' if dry_run else 'deleted'} at Twilio"
    per_day = [{**asdict(day), "day": str(day.day)} for day in days]
    options.print({"deleted": total, "dry_run": dry_run, "days": per_day}, [summary])


@contextmanager
def _message_log(options: Options, channel: str) -> Iterator[tuple[Settings, MessageLog]]:
    """Yield the settings and the platform's message log. Exits for errors with a cure."""
    settings = options.load()
    with clear_errors():
        setup = _open_setup(settings, channel, None, "what it could not send, it asks its person to send again")
        yield settings, setup.message_log()


@channel.command(examples=["sayso channel manifest desk", "sayso channel manifest desk --update A0123ABCD"])
@click.argument("channel", required=False, default="")
@click.option("--name", default="Sayso", show_default=True, help="The app's name in Slack.")
@click.option("--command", default="/sayso", show_default=True, help="The name of its slash command.")
@click.option(
    "--view", type=click.Choice(["agent", "assistant", "none"]),
    help="The app's view at Slack, by default that of the channel's view:. assistant and none are for apps that exist.",
)  # fmt: skip
@click.option("--validate", is_flag=True, help="Ask Slack whether the manifest is valid.")
@click.option("--create", is_flag=True, help="Create a Slack app from the manifest.")
@click.option("--update", "app_id", metavar="APP_ID", help="Replace all settings of this app.")
@pass_options
def manifest(
    options: Options,
    channel: str,
    name: str,
    command: str,
    view: View | None,
    app_id: str | None,
    *,
    validate: bool,
    create: bool,
) -> None:
    """Print the manifest of CHANNEL's Slack app, by default the first Slack channel's, as YAML or with --json as JSON.
    Paste it at api.slack.com/apps.

    --validate, --create and --update send it to Slack instead, with the app configuration token in SLACK_CONFIG_TOKEN.
    The bot's own token and secret may still be missing.
    """
    from sayso.channels.slack.setup import manifest as build_manifest
    from sayso.config.settings.loader import find_public_url

    actions = {"validate": validate, "create": create, "update": app_id is not None}
    chosen = [action for action, is_chosen in actions.items() if is_chosen]
    if len(chosen) > 1:
        raise click.UsageError("--validate, --create and --update are different things: give one of them")
    settings = options.load(running=False, without_secrets=True)
    channel = _slack_channel(settings, channel)
    slack = cast("SlackSettings", settings.channels[channel])
    own_view = slack.view
    if view and view != own_view:
        note = f"channels.{channel} has view: {own_view}: write view: {view} there for an app with this manifest"
        click.echo(note, err=True)
    view = view or own_view
    with clear_errors():
        content = build_manifest(
            channel,
            find_public_url(settings),
            name=name,
            command=command,
            view=view,
            install=slack.install_rules,
        )
        if chosen:
            lines = asyncio.run(_send_manifest(content, settings, channel, chosen[0], app_id or ""))
            options.print({"steps": lines}, lines)
            return
    import yaml

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    options.print(content, text.splitlines())


def _slack_channel(settings: Settings, name: str) -> str:
    """Return a Slack channel's name, the first one's where none is given. Exits without any."""
    names = [each for each, channel in settings.channels.items() if channel.platform == "slack"]
    if not names:
        fail("no Slack channel is configured: add one with platform: slack")
    if name and name not in names:
        raise click.UsageError(f"{name!r} is no Slack channel: name one of {', '.join(names)}")
    return name or names[0]


async def _send_manifest(
    manifest: dict[str, Any], settings: Settings, channel: str, action: str, app_id: str
) -> list[str]:  # fmt: skip
    """Send a manifest to Slack and return its answer as lines. Raises SetupError."""
    from sayso.channels.setup import check_outside
    from sayso.channels.slack.setup import VARIABLE, SlackApps, install_url
    from sayso.config.settings.loader import find_public_url

    slack = cast("SlackSettings", settings.channels[channel])  # `_slack_channel` chose it
    if not slack.api_url:
        check_outside(find_public_url(settings))
    apps = SlackApps(os.environ.get(VARIABLE, ""), slack.api_url)
    match action:
        case "validate":
            return await apps.validate(manifest)
        case "create":
            url = ""
            if slack.has_workspaces:
                url = install_url(find_public_url(settings), channel)
            return await apps.create(manifest, channel, installed_at=url)
        case _:
            return await apps.update(app_id, manifest)


@channel.command(examples=["sayso channel workspaces", "sayso channel workspaces desk --json"])
@click.argument("channel", required=False, default="")
@pass_options
def workspaces(options: Options, channel: str) -> None:
    """List the workspaces and organizations that have installed the app of CHANNEL, by default the
    first Slack channel's. `sayso channel status` asks Slack about each.
    """
    from redis.exceptions import RedisError

    settings = options.load()
    channel = _installed_channel(settings, channel)
    with clear_errors():
        from sayso.config.wiring.bot_state import open_installations

        installations = open_installations(settings, options.data, channel)
        try:
            listed = list(_list_workspaces(installations))
        except RedisError as exc:
            fail(f"Redis does not answer ({type(exc).__name__})")
    rows = [row for row, _ in listed]
    lines = [line for _, line in listed]
    options.print(rows, lines or ["no workspace has installed the app"])


def _list_workspaces(installations: SlackInstallations) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each installation for --json and as a line. Raises RedisError."""
    from sayso.channels.records import OtherVersion
    from sayso.channels.slack.installations import TokenUnreadable

    for name in installations.ids():
        try:
            installation = installations.get(name)
        except (TokenUnreadable, OtherVersion) as exc:
            yield {"id": name, "unreadable": str(exc)}, f"{name}  {exc}"
            continue
        if installation is None:  # it was removed meanwhile
            continue
        known: list[str] = []
        if installation.is_organization:
            known = installations.workspaces_of(name)
        yield _workspace_row(installation, known), _workspace_line(installation, known)


def _workspace_row(installation: Installation, workspaces: list[str]) -> dict[str, Any]:
    """Return an installation for --json, without its tokens."""
    organization = installation.organization
    if installation.is_organization:
        organization = installation.id
    return {
        "id": installation.id,
        "name": installation.name,
        "organization": organization,
        "workspaces": workspaces,
        "installed_at": installation.installed_at,
        "installed_by": installation.user,
        "scopes": list(installation.scopes),
        "rotates": bool(installation.expires_at),
        "expires_at": installation.expires_at or None,
        "renewal_refused": installation.renewal_refused,
    }


def _workspace_line(installation: Installation, workspaces: list[str]) -> str:
    rotation = "no rotation"
    if installation.renewal_refused:
        rotation = f"renewal refused ({one_line(installation.renewal_refused, 60)})"
    elif installation.expires_at:
        rotation = f"rotates, until {utc_time(installation.expires_at)}"
    kind = ""
    if installation.is_organization:
        kind = f"organization of {', '.join(workspaces) or 'no known workspace'}"
    parts = [
        f"{installation.id:12}  {one_line(installation.name, 60)}",
        kind,
        f"since {utc_time(installation.installed_at)}",
        f"by {one_line(installation.user, 60) or 'unknown'}",
        f"{len(installation.scopes)} scopes",
        rotation,
    ]
    return "  ".join(part for part in parts if part)


@channel.command(examples=["sayso channel invite desk"])
@click.argument("channel", required=False, default="")
@pass_options
def invite(options: Options, channel: str) -> None:
    """Print a link with which one workspace or organization can install the app of CHANNEL, by
    default the first Slack channel's. It works once, within a week. Needs `install: {invited:
    true}`.
    """
    from redis.exceptions import RedisError

    from sayso.channels.slack.install import INVITATION_SECONDS
    from sayso.channels.slack.installations import INVITATION
    from sayso.channels.slack.setup import install_url
    from sayso.config.settings.loader import find_public_url

    settings = options.load()
    channel = _installed_channel(settings, channel)
    rules = cast("SlackSettings", settings.channels[channel]).install_rules
    if not (rules and rules.invited):
        url = install_url(find_public_url(settings), channel)
        fail(f"{channel} needs no invitation: its app is installed at {url}")
    with clear_errors():
        from sayso.config.wiring.bot_state import open_installations

        installations = open_installations(settings, options.data, channel)
        try:
            invitation = installations.issue(INVITATION, "1", INVITATION_SECONDS)
        except RedisError as exc:
            fail(f"Redis does not answer ({type(exc).__name__}): no link was made")
    link = f"{install_url(find_public_url(settings), channel)}?invitation={invitation}"
    ends_at = installations.clock() + INVITATION_SECONDS
    options.print({"link": link, "expires_at": ends_at}, [link, f"works once, until {utc_time(ends_at)}"])


def _installed_channel(settings: Settings, name: str) -> str:
    """Return a Slack channel with a client_id, the first one where no name is given. Exits without any."""
    slack = {
        each: cast("SlackSettings", channel)
        for each, channel in settings.channels.items()
        if channel.platform == "slack"
    }
    names = [each for each, channel in slack.items() if channel.client_id]
    if name:
        check_channel(settings, name)
    if not names or (name and name not in names):
        where = name or "no Slack channel"
        fail(f"{where} has no client_id: its app is in one workspace, that of its bot_token")
    return name or names[0]
