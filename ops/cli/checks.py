"""The commands that look and change nothing: `sayso check`, `explain`, `doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    check_channel,
    check_id,
    clear_errors,
    counted,
    exit_on_failure,
    fail,
    logs_beside_findings,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.agent import Tool
    from sayso.channels.setup import CheckResult


_CHECK_EXAMPLES = ["sayso check", "sayso check -c bot.yaml --json", "sayso check --offline"]


@click.command(cls=SaysoCommand, examples=_CHECK_EXAMPLES)
@click.argument("files", nargs=-1, metavar="")
@click.option("--offline", is_flag=True, help="Ask no MCP server, no URL of tools and no Slack.")
@pass_options
def check(options: Options, files: tuple[str, ...], *, offline: bool) -> None:
    """Check a configuration and print what each channel may do.

    Exits with 1 where the file has a problem, each with its line and its cure, and where a source
    of tools cannot be reached; warnings do not count. What is not well with a workspace that
    installed a Slack app is a warning.
    """
    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.ops.checks.describe import describe
    from sayso.ops.checks.workspaces import workspace_warnings

    if files:
        raise click.UsageError(f"the file is an option: write `sayso check -c {files[0]}`")
    with clear_errors():
        file = options.file(running=False)
    try:
        settings = load_settings(file)
        with logs_beside_findings():
            description = describe(settings, offline=offline)
    except ConfigError as exc:
        if not file.is_file():
            fail(str(exc))
        options.print({"file": str(file), "problems": exc.problems}, ())
        if not options.as_json:
            click.echo(f"Error: {exc}", err=True)
        sys.exit(FINDING)
    if not offline:
        in_workspaces = workspace_warnings(settings, options.data)
        description = replace(description, warnings=(*description.warnings, *in_workspaces))
    unreachable = description.unreachable
    lines = str(description).splitlines()
    if not unreachable:
        lines.append(f"{file}: ok")
    options.print({"file": str(file), "problems": list(unreachable), **asdict(description)}, lines)
    if unreachable:
        if not options.as_json:
            count = counted(len(unreachable), "source of tools", "sources of tools")
            problem = f"{count} cannot be reached; --offline checks the rest"
            click.echo(f"Error: {file}: {problem}", err=True)
        sys.exit(FINDING)


@click.command(cls=SaysoCommand, examples=["sayso doctor", "sayso doctor --model --json"])
@click.option(
    "--model", is_flag=True, help="Also ask each model for one word. This costs a few tokens."
)
@pass_options
def doctor(options: Options, *, model: bool) -> None:
    """Check the bot that runs on the data folder, or that of a file: Redis, workers, its public
    address, and the token, webhook and signature of each platform.

    Changes nothing. Each result that is not ok names its cure. Exits with 1 where anything fails;
    warnings do not count.
    """
    results = []

    async def run_checks() -> None:
        async for result in _checks(options, model=model):
            results.append(result)
            if not options.as_json:
                click.echo(str(result))  # as soon as it is known

    asyncio.run(run_checks())
    to_look_at = sum(result.state != "ok" for result in results)
    summary = f"{len(results)} checks, {f'{to_look_at} to look at' if to_look_at else 'all fine'}"
    options.print([{**asdict(result), "see": result.see} for result in results], [summary])
    exit_on_failure(results)


async def _checks(options: Options, *, model: bool) -> AsyncIterator[CheckResult]:
    import httpx

    from sayso.channels.setup import CheckResult
    from sayso.config.settings.loader import ConfigError, load_settings
    from sayso.ops.checks.doctor import WEB_SECONDS, Doctor, check_models
    from sayso.ops.server.processes import running_bot

    try:
        file = options.file()
        settings = load_settings(file)
    except ConfigError as exc:
        for problem in exc.problems:
            yield CheckResult(
                "config", "fail", problem, "mend that line; `sayso check` reads the file again"
            )
        return
    running = running_bot(file, options.data)
    async with httpx.AsyncClient(timeout=WEB_SECONDS) as web:
        async for result in Doctor(settings, options.data, web=web, running=running).results():
            yield result
    if model:
        async for result in check_models(settings):
            yield result


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
    """Print what would happen if a user of CHANNEL had TOOL called with ARGS,
    and which line decides it.

    ARGS are name=value ..., or one JSON object. Only the tool's preview is run. Exits with 0 where
    the tool would run or ask first, with 1 where it would never run.
    """
    from sayso.config.wiring.agents import load_bot_tools
    from sayso.ops.checks.explain import ToolUnknown, explanation_lines
    from sayso.ops.checks.explain import explain as explain_call

    os.environ.setdefault("SAYSO_DATA", str(options.data))
    with clear_errors():
        settings = options.load(running=False)
        check_channel(settings, channel)
        if user:
            check_id(settings, channel, user)
        with logs_beside_findings():
            opened = load_bot_tools(settings, remote=True)
        opened.close()
        for problem in opened.problems:
            click.echo(problem, err=True)
        arguments = _arguments(
            args, next((each for each in opened.tools if each.name == tool), None)
        )
        try:
            explanation = explain_call(settings, opened, channel, user, tool, arguments)
        except ToolUnknown as exc:
            own_name = tool.rpartition("-")[2]  # `left_out` has the names without their namespace
            for line in opened.left_out:
                if repr(tool) in line or repr(own_name) in line:
                    click.echo(line, err=True)
            raise click.UsageError(str(exc)) from None
    options.print(asdict(explanation), explanation_lines(explanation))
    sys.exit(FINDING if explanation.verdict == "never" else 0)


def _arguments(args: Sequence[str], tool: Tool | None) -> dict[str, Any] | None:
    """Return the arguments as a model would give them, None when there are none.

    Raises click.UsageError.
    """
    if not args:
        return None
    arguments: dict[str, Any] = {}
    if args[0].lstrip().startswith("{"):
        text = " ".join(args)
        try:
            arguments = json.loads(text)
        except ValueError as exc:
            raise click.UsageError(f"{text!r} is no JSON object: {exc}") from None
        except RecursionError:
            raise click.UsageError("the arguments are nested too deeply to be read") from None
        if not isinstance(arguments, dict):
            raise click.UsageError(f"{text!r} is no JSON object")
        return arguments
    for arg in args:
        name, equals, value = arg.partition("=")
        if not equals or not name:
            raise click.UsageError(
                f"{arg!r} is no argument: write name=value, or one JSON object in quotes"
            )
        if name in arguments:
            raise click.UsageError(f"{name} is given twice: keep one of them")
        arguments[name] = _argument(value, tool, name)
    return arguments


def _argument(text: str, tool: Tool | None, name: str) -> Any:
    """Return the value of an argument: text where the tool wants text,
    else JSON where the tool accepts its value.
    """
    from sayso.agent.tools.errors import ToolParameterError

    if tool:
        properties = tool.schema()["parameters"]["properties"]
    else:
        properties = {}
    if tool is None or properties.get(name, {"type": "string"}).get("type") == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str):
        return text
    try:
        tool.validate({name: value})
    except ToolParameterError as exc:  # perhaps only the other arguments are wrong
        if name in [path.partition(".")[0] for path in exc.param_name.split(", ")]:
            return text
        return value
    return value
