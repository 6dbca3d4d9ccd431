"""The command `sayso doctor`: print the results of all checks of a running bot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sayso.ops.cli.command import Options, SaysoCommand, exit_on_failure, pass_options

if TYPE_CHECKING:
    from sayso.channels.setup import CheckResult


@click.command(cls=SaysoCommand, examples=["sayso doctor", "sayso doctor --model --json"])
@click.option(
    "--model", is_flag=True, help="Also ask each model for one word. This costs a few tokens."
)
@pass_options
def doctor(options: Options, *, model: bool) -> None:
    """Check the bot that runs on the data folder, or that of a file.

    Checks Redis, workers, its public address, and the token, webhook and signature of each
    platform. Changes nothing. Each result that is not ok names its cure. Exits with 1 where anything fails;
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
    verdict = f"{to_look_at} to look at" if to_look_at else "all fine"
    summary = f"{len(results)} checks, {verdict}"
    options.print([{**asdict(result), "see": result.see} for result in results], [summary])
    exit_on_failure(results)


async def _checks(options: Options, *, model: bool) -> AsyncIterator[CheckResult]:
    """Yield the result of each check as soon as it is known.

    A configuration that cannot be read is a result, too, and then the only one.
    """
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
        doctor = Doctor(settings, options.data, web=web, running=running)
        async for result in doctor.results():
            yield result
    if model:
        async for result in check_models(settings):
            yield result
