"""Write the generated reference pages: `make reference`. A test fails while a page is out of date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sayso.config.cli.main import main as sayso

REFERENCE = Path(__file__).parent / "reference"
HEAD = """# Commands

Generated from the commands themselves by `make reference`. `sayso COMMAND --help` prints the same.
"""


def main() -> None:
    """Write all pages."""
    (REFERENCE / "cli.md").write_text(cli_page(), encoding="utf-8")


def cli_page() -> str:
    """Return the page of all commands, each under a heading, with the text of its `--help`."""
    return HEAD + "".join(_section(path, command) for path, command in _commands("sayso", sayso))


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            if subcommand := command.get_command(context, name):
                yield from _commands(f"{path} {name}", subcommand)


def _section(path: str, command: click.Command) -> str:
    context = click.Context(
        command, info_name=path, max_content_width=110, terminal_width=110, help_option_names=["-h", "--help"]
    )
    return f"\n## `{path}`\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    main()
