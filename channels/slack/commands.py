"""The `sayso channel` commands of a Slack app: manifest, workspaces, invite."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from sayso.channels.setup import (
    CommandResult,
    CommandTarget,
    PlatformCommand,
    SetupError,
    check_outside,
)
from sayso.infra.terminal import one_line, utc_time

if TYPE_CHECKING:
    from sayso.channels.slack.installations import Installation, SlackInstallations
    from sayso.channels.slack.settings import SlackSettings, View


def slack_commands() -> Sequence[PlatformCommand]:
    """Return the commands that only channels of Slack have."""
    return (
        PlatformCommand(
            "manifest",
            print_manifest,
            parameters=(
                click.Option(
                    ["--name"], default="Sayso", show_default=True, help="The app's name in Slack."
                ),
                click.Option(
                    ["--command"],
                    default="/sayso",
                    show_default=True,
                    help="The name of its slash command.",
                ),
                click.Option(
                    ["--view"],
                    type=click.Choice(["agent", "assistant", "none"]),
                    help=(
                        "The app's view at Slack, by default that of the channel. "
                        "New apps can only have agent."
                    ),
                ),
                click.Option(
                    ["--validate"], is_flag=True, help="Ask Slack whether the manifest is valid."
                ),
                click.Option(
                    ["--create"], is_flag=True, help="Create a Slack app from the manifest."
                ),
                click.Option(
                    ["--update", "app_id"],
                    metavar="APP_ID",
                    help="Replace all settings of this app.",
                ),
            ),
            examples=(
                "sayso channel manifest desk",
                "sayso channel manifest desk --update A0123ABCD",
            ),
            needs_secrets=False,
        ),
        PlatformCommand(
            "workspaces",
            list_workspaces,
            examples=("sayso channel workspaces", "sayso channel workspaces desk --json"),
            of_workspaces=True,
        ),
        PlatformCommand(
            "invite",
            invite,
            examples=("sayso channel invite desk",),
            of_workspaces=True,
        ),
    )


def print_manifest(
    target: CommandTarget,
    *,
    name: str,
    command: str,
    view: View | None,
    validate: bool,
    create: bool,
    app_id: str | None,
) -> CommandResult:
    """Print the manifest of CHANNEL's Slack app, by default the first Slack channel's, as YAML or
    with --json as JSON. Paste it at api.slack.com/apps.

    --validate, --create and --update send it to Slack instead, with the app configuration token in
    SLACK_CONFIG_TOKEN. The bot's own token and secret may still be missing.
    """
    from sayso.channels.slack.setup import manifest

    if [validate, create, app_id is not None].count(True) > 1:
        raise click.UsageError(
            "--validate, --create and --update are different things: give one of them"
        )
    settings = cast("SlackSettings", target.settings)
    own_view = settings.view
    if view and view != own_view:
        cure = f"write view: {view} there for an app with this manifest"
        click.echo(f"channels.{target.channel} has view: {own_view}: {cure}", err=True)

    content = manifest(
        target.channel,
        target.public_url,
        name=name,
        command=command,
        view=view or own_view,
        install=settings.install_rules,
        reads_groups=bool(settings.role_groups),
    )
    if validate or create or app_id is not None:
        steps = asyncio.run(_send_manifest(target, content, create=create, app_id=app_id))
        return CommandResult({"steps": steps}, steps)

    import yaml

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return CommandResult(content, text.splitlines())


async def _send_manifest(
    target: CommandTarget, content: dict[str, Any], *, create: bool, app_id: str | None
) -> list[str]:
    """Send a manifest to Slack and return its answer as lines. Raises SetupError.

    With neither `create` nor an `app_id`, Slack only checks it.
    """
    from sayso.channels.slack.setup import CONFIG_VARIABLE, SlackApps, where_to_install

    settings = cast("SlackSettings", target.settings)
    if not settings.api_url:
        check_outside(target.public_url)
    apps = SlackApps(os.environ.get(CONFIG_VARIABLE, ""), settings.api_url)
    installed_at = ""
    if settings.has_many_workspaces:
        installed_at = where_to_install(settings, target.public_url, target.channel)
    if create:
        return await apps.create(content, target.channel, installed_at=installed_at)
    if app_id is not None:
        return await apps.update(app_id, content, installed_at=installed_at)
    return await apps.validate(content)


def list_workspaces(target: CommandTarget) -> CommandResult:
    """List the workspaces and organizations that have installed the app of CHANNEL, by default the
    first Slack channel's. `sayso channel status` asks Slack about each.
    """
    from sayso.channels.slack.installations import TokenUnreadable
    from sayso.infra.records import OtherVersion

    installations = _installations(target)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    for installer_id in installations.ids():
        try:
            installation = installations.get(installer_id)
        except (TokenUnreadable, OtherVersion) as exc:
            rows.append({"id": installer_id, "unreadable": str(exc)})
            lines.append(f"{installer_id}  {exc}")
            continue
        # It was removed meanwhile.
        if installation is None:
            continue
        workspaces: list[str] = []
        if installation.is_organization:
            workspaces = installations.workspaces_of(installer_id)
        rows.append(_workspace_row(installation, workspaces))
        lines.append(_workspace_line(installation, workspaces))
    return CommandResult(rows, lines or ["no workspace has installed the app"])


def _workspace_row(installation: Installation, workspaces: list[str]) -> dict[str, Any]:
    """Return an installation for --json, without its tokens.

    `workspaces` are those that use an organization's installation, none for a workspace.
    """
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
    """Return an installation as people read it, without its tokens."""
    rotation = "no rotation"
    if installation.renewal_refused:
        rotation = f"renewal refused ({one_line(installation.renewal_refused, 60)})"
    elif installation.expires_at:
        rotation = f"rotates, until {utc_time(installation.expires_at)}"
    kind = ""
    if installation.is_organization:
        kind = f"organization of {', '.join(workspaces) or 'no known workspace'}"
    columns = [
        f"{installation.id:12}  {one_line(installation.name, 60)}",
        kind,
        f"since {utc_time(installation.installed_at)}",
        f"by {one_line(installation.user, 60) or 'unknown'}",
        f"{len(installation.scopes)} scopes",
        rotation,
    ]
    return "  ".join(column for column in columns if column)


def invite(target: CommandTarget) -> CommandResult:
    """Print a link with which one workspace or organization can install the app of CHANNEL, by
    default the first Slack channel's. It works once, within a week. Needs `install: {invited:
    true}`.
    """
    from sayso.channels.slack.install import INVITATION_SECONDS
    from sayso.channels.slack.installations import INVITATION
    from sayso.channels.slack.setup import install_url

    url = install_url(target.public_url, target.channel)
    # An app of one workspace has no rules: `_installations` refuses it below.
    rules = cast("SlackSettings", target.settings).install_rules
    if rules and not rules.invited:
        raise SetupError(f"{target.channel} needs no invitation", f"install its app at {url}")

    installations = _installations(target)
    # The value "1" is never read: that an invitation exists is enough.
    invitation = installations.issue(INVITATION, "1", INVITATION_SECONDS)
    ends_at = installations.clock() + INVITATION_SECONDS
    link = f"{url}?invitation={invitation}"
    lines = [link, f"works once, until {utc_time(ends_at)}"]
    return CommandResult({"link": link, "expires_at": ends_at}, lines)


def _installations(target: CommandTarget) -> SlackInstallations:
    """Return the stored installations. Raises SetupError for an app of one workspace."""
    from sayso.channels.slack.installations import SlackInstallations

    if not target.settings.has_many_workspaces:
        raise SetupError(
            f"{target.channel} has no client_id",
            "its app is in one workspace, that of its bot_token",
        )
    state = target.open_state()
    return SlackInstallations(target.channel, state.redis, state.keys, state.key_prefix)
