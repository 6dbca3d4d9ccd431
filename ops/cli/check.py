"""The command `sayso check`: read a configuration, and print its problems or what it allows."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

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
    of tools cannot be reached; warnings do not count. What is not well with a workspace
    that installed the app of a channel is a warning.
    """
    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.ops.checks.describe import describe
    from sayso.ops.checks.workspaces import workspace_warnings

    # A file without its option is the likeliest mistake, so its error names the option.
    if files:
        raise click.UsageError(f"the file is an option: write `sayso check -c {files[0]}`")
    with clear_errors():
        file = options.file(prefer_running=False)

    try:
        settings = load_settings(file)
        with log_warnings_except_findings():
            description = describe(settings, offline=offline)
    except ConfigError as exc:
        if not file.is_file():
            fail(str(exc))
        options.print({"file": str(file), "problems": exc.problems}, ())
        if not options.as_json:
            click.echo(f"Error: {exc}", err=True)
        sys.exit(FINDING)

    # Workspaces are asked over the network, and for what Redis stores of them.
    if not offline:
        warnings = (*description.warnings, *workspace_warnings(settings, options.data))
        description = replace(description, warnings=warnings)

    unreachable = description.unreachable
    lines = str(description).splitlines()
    if not unreachable:
        lines.append(f"{file}: ok")
    value = {"file": str(file), "problems": list(unreachable), **asdict(description)}
    options.print(value, lines)
    if unreachable:
        if not options.as_json:
            count = with_noun(len(unreachable), "source of tools", "sources of tools")
            problem = f"{count} cannot be reached; --offline checks the rest"
            click.echo(f"Error: {file}: {problem}", err=True)
        sys.exit(FINDING)
