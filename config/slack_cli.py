"""The `sayso slack` commands: manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from config.refusals import fail, load

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from config.schema import Settings


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
def manifest(
    channel: str, config: Path | None, form: str, name: str, command: str, view: Literal["assistant", "agent"]
) -> None:
    """Print the manifest of CHANNEL's app, by default the first Slack channel's: paste it at api.slack.com/apps."""
    from config.bootstrap import find_public_url
    from config.setup.desk import SetupError
    from config.setup.slack_manifest import manifest as made

    settings = load(config)
    channel = _channel(settings, channel)
    try:
        found = made(channel, find_public_url(settings), name=name, command=command, view=view)
    except SetupError as exc:
        fail(str(exc))
    click.echo(json.dumps(found, indent=2) if form == "json" else _yaml(found), nl=form == "json")


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
