"""The command `sayso explain`: what would happen to one call of a tool, and why."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    check_channel,
    check_id,
    clear_errors,
    log_warnings_except_findings,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.agent import Tool


@click.command(
    cls=SaysoCommand,
    examples=[
        "sayso explain shop-wa delete_invoice number=INV-42",
        'sayso explain desk send_letter \'{"to": "ana@example.com"}\' --user U0123ABCD --json',
    ],
)
@click.argument("channel")
@click.argument("tool")
@click.argument("args", nargs=-1)
@click.option(
    "--user",
    default="",
    help="The user's id on the platform.  [default: a user who is not in the configuration]",
)
@pass_options
def explain(options: Options, channel: str, tool: str, args: tuple[str, ...], user: str) -> None:
    """Print what would happen if a user of CHANNEL had TOOL called with ARGS, and what decides it.

    ARGS are name=value ..., or one JSON object. Without ARGS a tool that needs some is judged by
    its name alone. Only the tool's preview is run. Exits with 0 where the tool would run or ask
    first, with 1 where it would never run.
    """
    from sayso.config.wiring.agents import load_bot_tools
    from sayso.ops.checks.explain import ToolUnknown, explanation_lines
    from sayso.ops.checks.explain import explain as explain_call

    # Tools of the user may store files there, and their previews may read them.
    os.environ.setdefault("SAYSO_DATA", str(options.data))
    with clear_errors():
        settings = options.load(prefer_running=False)
        check_channel(settings, channel)
        if user:
            check_id(settings, channel, user)
        with log_warnings_except_findings():
            opened = load_bot_tools(settings, remote=True)
        # The tools stay known without the connections. What follows needs their names, schemas and
        # previews, and the preview of a remote tool is made here, without its server.
        opened.close()
        for problem in opened.problems:
            click.echo(problem, err=True)

        tools_by_name = {each.name: each for each in opened.tools}
        arguments = _arguments(args, tools_by_name.get(tool))
        try:
            explanation = explain_call(settings, opened, channel, user, tool, arguments)
        except ToolUnknown as exc:
            # The tool may exist and be left out as unusable. `left_out` has a line with the reason
            # then, which names the tool as its source does: without the namespace.
            own_name = tool.rpartition("-")[2]
            for line in opened.left_out:
                if repr(tool) in line or repr(own_name) in line:
                    click.echo(line, err=True)
            raise click.UsageError(str(exc)) from None
    options.print(asdict(explanation), explanation_lines(explanation))
    sys.exit(FINDING if explanation.verdict == "never" else 0)


def _arguments(args: Sequence[str], tool: Tool | None) -> dict[str, Any] | None:
    """Return the arguments as a model would give them, None when there are none.

    None is not an empty object: a tool that needs arguments refuses `{}`, while None stands for
    arguments that are not known yet, so that the tool's name alone decides.

    `tool` says which type each argument has; None where the tool is unknown. Raises
    click.UsageError.
    """
    if not args:
        return None
    if args[0].lstrip().startswith("{"):
        return _json_arguments(" ".join(args))

    arguments: dict[str, Any] = {}
    for arg in args:
        name, equals, value = arg.partition("=")
        if not equals or not name:
            raise click.UsageError(
                f"{arg!r} is not an argument: write name=value, or one JSON object in quotes"
            )
        if name in arguments:
            raise click.UsageError(f"{name} is given twice: keep one of them")
        arguments[name] = _argument(value, tool, name)
    return arguments


def _json_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"{text!r} is not a JSON object: {exc}") from None
    except RecursionError:
        raise click.UsageError("the arguments are nested too deeply to be read") from None
    if not isinstance(arguments, dict):
        raise click.UsageError(f"{text!r} is not a JSON object")
    return arguments


def _argument(text: str, tool: Tool | None, name: str) -> Any:
    """Return the value of one argument, written as `name=text`.

    It is the text itself where the tool is unknown or wants text, and where the text is not JSON
    that the tool accepts. Otherwise it is the value of the JSON.
    """
    from sayso.agent.tools.errors import ToolParameterError

    if tool is None:
        return text
    properties = tool.schema()["parameters"]["properties"]
    wants_text = properties.get(name, {"type": "string"}).get("type") == "string"
    if wants_text:
        return text

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return text

    # The other arguments are missing in this check, so only an error that names this one counts.
    try:
        tool.validate({name: value})
    except ToolParameterError as exc:
        refused_names = [path.partition(".")[0] for path in exc.param_name.split(", ")]
        if name in refused_names:
            return text
    return value
