"""The command `sayso`: it finds the command that was named, and runs it.

Each command is a module of its name in this folder. It is imported when it is used, so that
`sayso --help` stays fast. `ops.cli.command` has what all commands share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sayso.ops.cli.command import SaysoGroup, fail

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Other distributions, and our own fault simulation, add commands by entry points of this group.
ENTRY_POINTS = "sayso.commands"

#: Our own commands. Each is in the module of its name.
_COMMANDS = (
    "audit",
    "backup",
    "channel",
    "chat",
    "check",
    "deliveries",
    "demo",
    "doctor",
    "explain",
    "init",
    "migrate",
    "people",
    "poll",
    "redis",
    "restore",
    "schema",
    "trace",
    "up",
    "web",
    "worker",
)
#: The commands that run a part of a bot, and so count for its metrics.
_SERVERS = ("demo", "poll", "up", "web", "worker")


class RootGroup(SaysoGroup):
    """The command `sayso` itself. It imports a command when it is used.

    `commands` are the names of our own, each in a module of this package. Commands of other
    distributions are found by the entry points of `ENTRY_POINTS`.
    """

    def __init__(self, *args: Any, commands: Sequence[str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.own_commands = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        added_commands = [point.name for point in _entry_points()]
        return sorted({*self.own_commands, *added_commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, None for an unknown name.

        An entry point cannot replace one of our own commands.
        """
        if cmd_name in self.own_commands:
            module = import_module(f"{__package__}.{cmd_name}")
            command: click.Command = getattr(module, cmd_name)
            return command

        for point in _entry_points():
            if point.name == cmd_name:
                return _load(point)
        return None


def _entry_points() -> Sequence[EntryPoint]:
    # Imported here: it takes a quarter of the time of `sayso check --help`.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=ENTRY_POINTS))


def _load(point: EntryPoint) -> click.Command:
    """Return the command of an entry point.

    Where it cannot be loaded, return a command that prints why and exits with 3.
    """
    try:
        command = point.load()
    except Exception as exc:  # noqa: BLE001  # any distribution's code; the other commands must still work
        reason = f"{point.value} cannot be loaded: {type(exc).__name__}: {exc}"
        return click.Command(point.name, callback=partial(fail, reason), help=f"({reason})")

    if not isinstance(command, click.Command):
        reason = f"{point.value} is not a click command"
        return click.Command(point.name, callback=partial(fail, reason))
    return command


@click.group(
    cls=RootGroup,
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    examples=[
        "sayso init mybot && cd mybot && sayso chat",
        "sayso demo",
        "sayso -c sayso.yaml check --json",
    ],
    epilog="""\b
Completion of commands and options: add one of these lines to the file of your shell.
  ~/.bashrc                    eval "$(_SAYSO_COMPLETE=bash_source sayso)"
  ~/.zshrc                     eval "$(_SAYSO_COMPLETE=zsh_source sayso)"
  ~/.config/fish/config.fish   _SAYSO_COMPLETE=fish_source sayso | source

Exit codes: 0 done, 1 a finding or a denial, 2 wrong usage, 3 cannot run.
""",
)
@click.version_option(package_name="sayso")
@click.pass_context
def main(context: click.Context) -> None:
    """Chat bots that act only on the user's say-so."""
    from sayso.config.wiring.observability import redact_uncaught
    from sayso.infra.metrics_folder import FOLDER

    redact_uncaught()

    # The counts of an operator's command would only add files to the folder of the metrics.
    if context.invoked_subcommand not in _SERVERS:
        os.environ.pop(FOLDER, None)

    # A container may run under a random user id, which has neither HOME nor an entry in
    # /etc/passwd. slack-bolt asks for a home when it is imported. Docker sets the same one.
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


if __name__ == "__main__":
    main()
