"""The command `sayso check`: read a configuration, and print its problems or what it allows."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import NoReturn

import click

from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    clear_errors,
    fail,
    log_warnings_except_findings,
    pass_options,
    with_noun,
)

_CHECK_EXAMPLES = ["sayso check", "sayso check -c bot.yaml --json", "sayso check --offline"]


@click.command(cls=SaysoCommand, examples=_CHECK_EXAMPLES)
@click.argument("files", nargs=-1, metavar="")
@click.option("--offline", is_flag=True, help="Ask no MCP server, no URL of tools and no platform.")
@pass_options
def check(options: Options, files: tuple[str, ...], *, offline: bool) -> None:
    """Check a configuration and print what each channel may do.

    Exits with 1 where the file has a problem, each with its line and its cure, and where a source
    of tools cannot be reached. Exits with 3 without a file. Warnings do not count. A problem of a
    workspace, such as one of Slack that installed the app, is a warning: the others still work.
    """
    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.ops.checks.describe import describe
    from sayso.ops.checks.workspaces import workspace_warnings

    # A file without its option is the likeliest mistake, so its error names the option.
    if files:
        raise click.UsageError(f"the file is an option: write `sayso check -c {files[0]}`")
    # The file that a start would read, even while a bot with another one runs.
    with clear_errors():
        file = options.file(prefer_running=False)

    try:
        settings = load_settings(file)
        # The description itself names each tool that is left out.
        with log_warnings_except_findings():
            description = describe(settings, offline=offline)
    except ConfigError as exc:
        if not file.is_file():
            fail(str(exc))  # as in all commands
        options.print({"file": str(file), "problems": exc.problems}, lines=())
        _exit_with_finding(options, str(exc))

    # Workspaces are asked over the network, and for what Redis stores of them.
    if not offline:
        warnings = (*description.warnings, *workspace_warnings(settings, options.data))
        description = replace(description, warnings=warnings)

    unreachable = description.unreachable
    lines = str(description).splitlines()
    if not unreachable:
        lines.append(f"{file}: ok")
    # `problems` are what the command exits with 1 for, as they are for an invalid file.
    value = {"file": str(file), "problems": list(unreachable), **asdict(description)}
    options.print(value, lines)
    if unreachable:  # never with --offline, which asks no source
        count = with_noun(len(unreachable), "source of tools", "sources of tools")
        _exit_with_finding(options, f"{file}: {count} cannot be reached; --offline checks the rest")


def _exit_with_finding(options: Options, error: str) -> NoReturn:
    """Print the error to stderr, and exit with 1. With --json the printed result says it already."""
    if not options.as_json:
        click.echo(f"Error: {error}", err=True)
    sys.exit(FINDING)
