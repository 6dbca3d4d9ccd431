"""The command `sayso schema`: print what editors need to check the YAML."""

from __future__ import annotations

from importlib.resources import files

import click

from sayso.ops.cli.command import SaysoCommand

#: The JSON Schema of the YAML: its name in `sayso.config.settings`, and in a new bot.
SCHEMA = "sayso.schema.json"


@click.command(cls=SaysoCommand, examples=["sayso schema > sayso.schema.json"])
def schema() -> None:
    """Print the JSON Schema of the YAML, by which editors complete keys and mark mistakes.

    An editor with the YAML language server reads it where the first line of the YAML is
    `# yaml-language-server: $schema=sayso.schema.json`. Print it anew after an update.
    """
    click.echo(schema_text(), nl=False)


def schema_text() -> str:
    """Return the JSON Schema of the YAML."""
    return files("sayso.config.settings").joinpath(SCHEMA).read_text(encoding="utf-8")
