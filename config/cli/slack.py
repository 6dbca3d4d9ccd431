"""The `sayso slack` commands: manifest."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from sayso.config.cli.output import fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.channels.slack.settings import SlackSettings
    from sayso.config.settings.schema import Settings


@click.group()
def slack() -> None:
    """What Slack wants to know of an app."""


@slack.command()
@click.argument("channel", default="")
@click.option("--config", type=click.Path(path_type=Path), help="The YAML file.")
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@click.option("--name", default="Sayso", show_default=True, help="What the app is called in Slack.")
@click.option("--command", default="/sayso", show_default=True, help="What its slash command is called.")
@click.option(
    "--view", type=click.Choice(["assistant", "agent"]), default="assistant", show_default=True,
    help="How Slack shows it beside other windows: agent is newer, and not in every workspace yet.",
)  # fmt: skip
@click.option("--validate", is_flag=True, help="Ask Slack whether it takes the manifest.")
@click.option("--create", is_flag=True, help="Have Slack make an app of it.")
@click.option("--update", "app_id", metavar="APP_ID", help="Put it in the place of all settings of this app.")
def manifest(
    channel: str,
    config: Path | None,
    form: str,
    name: str,
    command: str,
    view: Literal["assistant", "agent"],
    app_id: str | None,
    *,
    validate: bool,
    create: bool,
) -> None:
    """Print the manifest of CHANNEL's app, by default the first Slack channel's: paste it at api.slack.com/apps.

    With --validate, --create or --update it is given to Slack instead, with the app configuration token in
    SLACK_CONFIG_TOKEN. The bot's own token and secret need not be there yet.
    """
    from sayso.channels.setup import SetupError
    from sayso.channels.slack.app_manifest import manifest as made
    from sayso.config.wiring.bootstrap import find_public_url

    wishes = [validate, create, app_id is not None]
    if sum(wishes) > 1:
        fail("--validate, --create and --update are different things: give one of them")
    settings = load(config, without_secrets=True)
    channel = _channel(settings, channel)
    try:
        found = made(channel, find_public_url(settings), name=name, command=command, view=view)
        if any(wishes):
            what = "validate" if validate else "create" if create else "update"
            click.echo("\n".join(asyncio.run(_given(found, settings, channel, what, app_id or ""))))
            return
    except SetupError as exc:
        fail(str(exc))
    click.echo(json.dumps(found, indent=2) if form == "json" else _yaml(found), nl=form == "json")


async def _given(manifest: dict[str, Any], settings: Settings, channel: str, what: str, app_id: str) -> list[str]:
    """What Slack says to a manifest: whether it takes it, or of the app that it makes or changes."""
    from sayso.channels.setup import check_outside
    from sayso.channels.slack.app_manifest import VARIABLE, SlackApps
    from sayso.config.wiring.bootstrap import find_public_url

    slack = cast("SlackSettings", settings.channels[channel])  # `_channel` chose it among Slack's
    if not slack.api_url:
        check_outside(find_public_url(settings))
    apps = SlackApps(os.environ.get(VARIABLE, ""), slack.api_url)
    match what:
        case "validate":
            return await apps.validate(manifest)
        case "create":
            return await apps.create(manifest, channel)
        case _:
            return await apps.update(app_id, manifest)


def _channel(settings: Settings, name: str) -> str:
    known = [each for each, channel in settings.channels.items() if channel.platform == "slack"]
    if not known:
        fail("no Slack channel is configured: add one with platform: slack")
    if name and name not in known:
        fail(f"{name!r} is no Slack channel: name one of {', '.join(known)}")
    return name or known[0]


def _yaml(found: dict[str, object]) -> str:
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120))
