"""Doctor, explain."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from sayso.agent import Tool
    from sayso.channels.setup import CheckResult
    from sayso.config.checks.explain import ExpectedQuestion, ExplainedReason, Explanation


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="The YAML file.  [default: SAYSO_CONFIG, or ./sayso.yaml]"
)
@click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder of a running `sayso up`.",
)  # fmt: skip
@click.option("--model", is_flag=True, help="Ask each model for one word, too. It costs what that costs.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def doctor(config: Path | None, data: Path, *, model: bool, as_json: bool) -> None:
    """Check the bot that runs on a data folder, or that of a file: Redis, workers, its public address, each platform's
    token, webhook and signature.

    Nothing is changed. Exit status: 1 when anything fails, 0 when all is fine or there are mere warnings, 2 for a wrong
    option. Each finding that is not ok names its cure.
    """
    found = asyncio.run(_findings(config, data, model=model, aloud=not as_json))
    odd = [finding for finding in found if finding.state != "ok"]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=2, ensure_ascii=False))
    else:
        click.echo(f"{len(found)} checks, {len(odd)} to look at" if odd else f"{len(found)} checks, all fine")
    sys.exit(1 if any(finding.state == "fail" for finding in found) else 0)


async def _findings(config: Path | None, data: Path, *, model: bool, aloud: bool) -> list[CheckResult]:
    found = []
    async for finding in _checks(config, data, model=model):
        found.append(finding)
        if aloud:
            click.echo(str(finding))
    return found


async def _checks(config: Path | None, data: Path, *, model: bool) -> AsyncIterator[CheckResult]:
    import httpx

    from sayso.channels.setup import CheckResult
    from sayso.config.checks.doctor import WEB_SECONDS, Doctor, model_findings
    from sayso.config.server.processes import find_config, url_of
    from sayso.config.settings.loader import ConfigError, load_settings

    try:
        file = find_config(config, data)
        settings = load_settings(file)
    except ConfigError as exc:
        for problem in exc.problems:
            yield CheckResult("config", "fail", problem, "mend that line; `sayso check FILE` reads it again")
        return
    async with httpx.AsyncClient(timeout=WEB_SECONDS) as web:
        async for finding in Doctor(settings, data, web=web, url=url_of(file, data)).findings():
            yield finding
    if model:
        async for finding in model_findings(settings):
            yield finding


#: Exit status where there was nothing to explain; 0 and 1 are answers.
BAD_USAGE = 2


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="The YAML file.  [default: SAYSO_CONFIG, or ./sayso.yaml]"
)
@click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder for what the tools' previews look up.",
)  # fmt: skip
@click.option("--channel", help="The channel's name; by default the first one.")
@click.option("--user", default="", help="The user, by the id that their platform gives them; by default nobody known.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
@click.argument("tool")
@click.argument("args", nargs=-1)
def explain(
    config: Path | None, data: Path, channel: str | None, user: str, as_json: bool, tool: str, args: tuple[str, ...]
) -> None:
    """Say what would happen if USER had TOOL called with ARGS (name=value ..., or one JSON object), and why.

    Nothing is run but the tool's preview. Exit status: 0 when it would run or ask, 1 when it never would, 2 when there
    is nothing to explain.
    """
    from sayso.config.checks.explain import BadQuestionError
    from sayso.config.checks.explain import explain as explained
    from sayso.config.settings.loader import ConfigError, default_config, load_settings
    from sayso.config.wiring.agents import load_tools_of

    os.environ.setdefault("SAYSO_DATA", str(data))
    try:
        settings = load_settings(config or default_config())
        opened = load_tools_of(settings, remote=True)
        opened.close()
        for problem in opened.problems:
            click.echo(problem, err=True)
        given = _read(args, next((each for each in opened.tools if each.name == tool), None))
        answer = explained(settings, opened, channel or next(iter(settings.channels)), user, tool, given)
    except (ConfigError, BadQuestionError) as exc:
        _refuse(str(exc))
    _say(json.dumps(asdict(answer), indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(answer)))
    sys.exit(1 if answer.verdict == "never" else 0)


def _say(text: str) -> None:
    """Half a character, which no text can hold but JSON can spell, is shown as JSON spells it."""
    click.echo(text.encode(errors="backslashreplace").decode())


def _refuse(message: str) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(BAD_USAGE)


def _read(args: Sequence[str], tool: Tool | None) -> dict[str, Any] | None:
    """The arguments as a model would give them; None when there are none."""
    if not args:
        return None
    if args[0].lstrip().startswith("{"):
        return _object(" ".join(args))
    given: dict[str, Any] = {}
    for arg in args:
        name, equals, value = arg.partition("=")
        if not equals or not name:
            _refuse(f"{arg!r} is no argument: write name=value, or one JSON object in quotes")
        if name in given:
            _refuse(f"{name} is given twice: keep one of them")
        given[name] = _value(value, tool, name)
    return given


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        _refuse(f"{text!r} is no JSON object: {exc}")
    except RecursionError:
        _refuse("the arguments are nested too deeply to be read")
    return value if isinstance(value, dict) else _refuse(f"{text!r} is no JSON object")


def _value(text: str, tool: Tool | None, name: str) -> Any:
    """Text where the tool wants text; else JSON, if it is any that the tool takes: lists and numbers can be given."""
    properties = tool.schema()["parameters"]["properties"] if tool else {}
    if tool is None or properties.get(name, {"type": "string"}).get("type") == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) or not _is_taken(tool, name, value) else value


def _is_taken(tool: Tool, name: str, value: Any) -> bool:
    """Whether the tool finds no fault with this argument, whatever it says of the others."""
    from sayso.agent.tools.errors import ToolParameterError

    try:
        tool.validate({name: value})
    except ToolParameterError as exc:
        return name not in [path.partition(".")[0] for path in exc.param_name.split(", ")]
    return True


def _lines(answer: Explanation) -> Iterator[str]:
    """The answer in words, a line for each thing that had a say."""
    who = answer.user or "whoever asks"
    called = "" if answer.arguments is None else f" with {json.dumps(answer.arguments, ensure_ascii=False)}"
    yield f"{who} on {answer.channel}: {answer.tool}{called}"
    yield from map("  {}".format, _parts(answer, who))
    condition = ", where its selector shows it" if answer.shown == "depends" else ""
    yield _VERDICTS[answer.verdict].format(condition)


def _parts(answer: Explanation, who: str) -> Iterator[str]:
    if answer.shown is None:
        yield f"channel: does not have it: {_cited(answer.has_tool)}"
        return
    yield f"channel: has it: {_cited(answer.has_tool)}"
    yield f"shown: {_shown(answer, who)}"
    if answer.decision is None:
        yield f"arguments: {answer.problem}"
        return
    yield "arguments: none given; decided by its name alone" if answer.arguments is None else "arguments: valid"
    decision = "asks by itself" if answer.asks_by_itself else _DECISIONS[answer.decision.decision]
    yield f"decision: {decision}: {_cited(answer.decided_by)}"
    yield from (f"decision: may be denied by what it is called with: {_cited(rule)}" for rule in answer.open_rules)
    if answer.problem:
        yield f"question: {answer.problem}"
    if answer.asks_by_itself:
        yield "question: the tool's own: its words are known when it runs"
    if answer.question:
        yield from _asked(answer.question, who)
    if answer.undo_seconds and answer.verdict == "asks":
        yield f"undo: for {answer.undo_seconds:g} s after the outcome"


_VERDICTS: Mapping[str, str] = {
    "runs": "It runs at once{}.",
    "asks": "It asks first{}.",
    "never": "It never runs.",
}


_DECISIONS: Mapping[str, str] = {"allow": "runs at once", "review": "asks first", "deny": "never runs"}


def _cited(reason: ExplainedReason | None) -> str:
    if reason is None:
        return ""
    return f"{reason.words} ({reason.where})" if reason.where else reason.words


def _shown(answer: Explanation, who: str) -> str:
    because = answer.shown_because
    named = f", {because.words}" if because and because.words else ""
    place = f" ({because.where})" if because and because.where else ""
    match answer.shown:
        case "hidden":
            return f"not to {who}{named}{place}"
        case "depends":
            return f"depends on what is said{named}{place}"
    return f"to {who}{named}{place}" if place else "always: the channel has no selector"


def _asked(question: ExpectedQuestion, who: str) -> Iterator[str]:
    first, *others = question.preview.splitlines()
    yield f"preview: {first}"
    yield from (f"         {line}" for line in others)
    code = ", and only with the code that the question shows" if question.typed_code else ""
    yield f"confirm: only {who}, where it was asked, within {question.within_seconds:g} s of its delivery{code}"
