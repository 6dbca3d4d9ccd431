"""The grammar of the command line: the options of every command, and the classes that all commands are made of.

`-c/--config`, `--data`, `--json` and `--no-color` stand before or after the name of any command; the last one given
counts. Exit codes: 0 done, 1 a finding or a denial, 2 wrong usage, 3 cannot run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Exit codes. Wrong usage is click's 2.
FINDING, CANNOT_RUN = 1, 3
#: The data folder where neither --data nor SAYSO_DATA names one.
DEFAULT_DATA = Path(".sayso")
#: Other distributions, and our own fault simulation, add commands by entry points of this group.
ENTRY_POINTS = "sayso.commands"


@dataclass(slots=True)
class Options:
    """The options that every command takes. One per invocation."""

    config: Path | None = None
    #: What --data named, None where it was not given.
    data_option: Path | None = None
    as_json: bool = False
    no_color: bool = False

    @property
    def data(self) -> Path:
        """The data folder: of --data, of SAYSO_DATA, or `.sayso`."""
        return self.data_option or Path(os.environ.get("SAYSO_DATA") or DEFAULT_DATA)


pass_options = click.make_pass_decorator(Options, ensure=True)


def _store(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Note an option that was given. Click calls this for the group first and for the command after it."""
    if value and parameter.name is not None:
        options = context.ensure_object(Options)
        setattr(options, parameter.name, value)
        if options.no_color:
            context.find_root().color = False
            os.environ["NO_COLOR"] = "1"  # the processes that a command starts, and the libraries it uses


def _common_options() -> list[click.Parameter]:
    """Return new objects for the options of every command: click keeps state of a command in them."""
    path = click.Path(path_type=Path)
    shared: dict[str, Any] = {"expose_value": False, "callback": _store}
    return [
        click.Option(
            ["-c", "--config"], type=path, metavar="FILE", **shared,
            help="The YAML file.  [default: SAYSO_CONFIG, the bot that runs on the data folder, or ./sayso.yaml]",
        ),
        click.Option(
            ["--data", "data_option"], type=path, metavar="FOLDER", **shared,
            help="The folder for everything Sayso stores.  [default: SAYSO_DATA, or .sayso]",
        ),
        click.Option(["--json", "as_json"], is_flag=True, **shared, help="Print the result as JSON."),
        click.Option(["--no-color"], is_flag=True, **shared, help="Print without colors, like NO_COLOR=1."),
    ]  # fmt: skip


class SaysoCommand(click.Command):
    """A command with the common options and examples in its help."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.params = [*self.params, *_common_options()]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options."""
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


class SaysoGroup(click.Group):
    """A group of commands with the common options. `moved` names invocations that are spelled otherwise now."""

    command_class = SaysoCommand

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), moved: dict[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.moved = moved or {}
        self.params = [*self.params, *_common_options()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        """Find a command. Raises click.UsageError, which names the new spelling of an old invocation."""
        if args and args[0] in self.moved:
            ctx.fail(f"no command `{ctx.command_path} {args[0]}`: write `{self.moved[args[0]]}`")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the commands."""
        _write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


class RootGroup(SaysoGroup):
    """The command `sayso` itself. A command is imported when it is used: ours from `modules`, others by entry point."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*self.modules, *(point.name for point in _entry_points())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None for an unknown name. Our own commands come before those of entry points."""
        if cmd_name in self.modules:
            command: click.Command = getattr(import_module(f"{__package__}.{self.modules[cmd_name]}"), cmd_name)
            return command
        return next((_load(point) for point in _entry_points() if point.name == cmd_name), None)


def _entry_points() -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points  # a quarter of the time of `sayso check --help`

    return tuple(entry_points(group=ENTRY_POINTS))


def _load(point: EntryPoint) -> click.Command:
    """Return the command of an entry point; where it cannot be loaded, one that says so."""
    try:
        command = point.load()
    except Exception as exc:  # noqa: BLE001  # any distribution's code; the other commands must still work
        reason = f"{point.value} cannot be loaded: {type(exc).__name__}: {exc}"
        return click.Command(point.name, callback=lambda: _refuse(reason), help=f"({reason})")
    if not isinstance(command, click.Command):
        return click.Command(point.name, callback=lambda: _refuse(f"{point.value} is no click command"))
    return command


def _refuse(reason: str) -> None:
    click.echo(f"Error: {reason}", err=True)
    raise SystemExit(CANNOT_RUN)


def _write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    if examples:
        with formatter.section("Examples" if len(examples) > 1 else "Example"):
            for example in examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
