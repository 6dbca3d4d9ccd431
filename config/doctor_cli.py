"""The `sayso doctor` command: whether everything that a bot needs is there and fits together."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.config.setup.finding import Finding


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


async def _findings(config: Path | None, data: Path, *, model: bool, aloud: bool) -> list[Finding]:
    found = []
    async for finding in _checks(config, data, model=model):
        found.append(finding)
        if aloud:
            click.echo(str(finding))
    return found


async def _checks(config: Path | None, data: Path, *, model: bool) -> AsyncIterator[Finding]:
    import httpx

    from sayso.config.loader import ConfigError, load_settings
    from sayso.config.running import find_config, url_of
    from sayso.config.setup.doctor import WEB_SECONDS, Doctor, model_findings
    from sayso.config.setup.finding import Finding

    try:
        file = find_config(config, data)
        settings = load_settings(file)
    except ConfigError as exc:
        for problem in exc.problems:
            yield Finding("config", "fail", problem, "mend that line; `sayso check FILE` reads it again")
        return
    async with httpx.AsyncClient(timeout=WEB_SECONDS) as web:
        async for finding in Doctor(settings, data, web=web, url=url_of(file, data)).findings():
            yield finding
    if model:
        async for finding in model_findings(settings):
            yield finding
