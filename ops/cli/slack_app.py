"""The `sayso channel` commands of a Slack app: manifest, workspaces, invite."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from sayso.ops.cli.command import (
    Options,
    SaysoCommand,
    check_channel,
    clear_errors,
    fail,
    one_line,
    pass_options,
    utc_time,
)

if TYPE_CHECKING:
    from sayso.channels.slack.installations import Installation, SlackInstallations
    from sayso.channels.slack.settings import SlackSettings, View
    from sayso.config.settings.schema import Settings


_EXAMPLES = ["sayso channel manifest desk", "sayso channel manifest desk --update A0123ABCD"]


@click.command(cls=SaysoCommand, examples=_EXAMPLES)
@click.argument("channel", required=False, default="")
@click.option("--name", default="Sayso", show_default=True, help="The app's name in Slack.")
@click.option(
    "--command", default="/sayso", show_default=True, help="The name of its slash command."
)
@click.option(
    "--view",
    type=click.Choice(["agent", "assistant", "none"]),
    help="The app's view at Slack, by default that of the channel. New apps can only have agent.",
)
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
    """Print the manifest of CHANNEL's Slack app, by default the first Slack channel's, as YAML or
    with --json as JSON. Paste it at api.slack.com/apps.

    --validate, --create and --update send it to Slack instead, with the app configuration token in
    SLACK_CONFIG_TOKEN. The bot's own token and secret may still be missing.
    """
    from sayso.channels.slack.setup import manifest as build_manifest
    from sayso.config.settings.loader import find_public_url

    actions = {"validate": validate, "create": create, "update": app_id is not None}
    chosen = [action for action, is_chosen in actions.items() if is_chosen]
    if len(chosen) > 1:
        raise click.UsageError(
            "--validate, --create and --update are different things: give one of them"
        )
    settings = options.load(running=False, without_secrets=True)
    channel = _slack_channel(settings, channel)
    slack = cast("SlackSettings", settings.channels[channel])
    own_view = slack.view
    if view and view != own_view:
        cure = f"write view: {view} there for an app with this manifest"
        click.echo(f"channels.{channel} has view: {own_view}: {cure}", err=True)
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
    manifest: dict[str, Any],
    settings: Settings,
    channel: str,
    action: str,
    app_id: str,
) -> list[str]:
    """Send a manifest to Slack and return its answer as lines. Raises SetupError."""
    from sayso.channels.setup import check_outside
    from sayso.channels.slack.setup import VARIABLE, SlackApps, where_to_install
    from sayso.config.settings.loader import find_public_url

    slack = cast("SlackSettings", settings.channels[channel])  # `_slack_channel` chose it
    if not slack.api_url:
        check_outside(find_public_url(settings))
    apps = SlackApps(os.environ.get(VARIABLE, ""), slack.api_url)
    match action:
        case "validate":
            return await apps.validate(manifest)
        case "create":
            installed_at = ""
            if slack.has_workspaces:
                installed_at = where_to_install(slack, find_public_url(settings), channel)
            return await apps.create(manifest, channel, installed_at=installed_at)
        case _:
            return await apps.update(app_id, manifest)


_LIST_EXAMPLES = ["sayso channel workspaces", "sayso channel workspaces desk --json"]


@click.command(cls=SaysoCommand, examples=_LIST_EXAMPLES)
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
    from sayso.channels.slack.installations import TokenUnreadable
    from sayso.infra.records import OtherVersion

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


@click.command(cls=SaysoCommand, examples=["sayso channel invite desk"])
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
    lines = [link, f"works once, until {utc_time(ends_at)}"]
    options.print({"link": link, "expires_at": ends_at}, lines)


def _installed_channel(settings: Settings, name: str) -> str:
    """Return a Slack channel with a client_id, the first one for "". Exits where there is none."""
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
