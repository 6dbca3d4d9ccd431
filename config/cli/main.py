"""The `sayso` command: demo, up, web, worker, poll, chat, check, doctor, webhook, slack, explain, audit, deliveries,
people, redis, simulate.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

# Each command loads only what it needs, and `up` hears signals before it loads anything.
from sayso.config.cli.audit import audit
from sayso.config.cli.checks import doctor, explain
from sayso.config.cli.deliveries import deliveries
from sayso.config.cli.output import clear_errors, fail, load
from sayso.config.cli.people import people
from sayso.config.cli.redis import redis
from sayso.config.cli.slack import slack
from sayso.config.cli.webhook import webhook
from sayso.testing.simulation.cli import simulate

_config = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    help="The YAML file.  [default: SAYSO_CONFIG, or ./sayso.yaml]",
)
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder for everything Sayso keeps.",
)  # fmt: skip
_host = click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
_reload = click.option(
    "--reload", is_flag=True, envvar="SAYSO_RELOAD", help="Load tools anew when their files are saved."
)
_port = click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))


@click.group()
@click.version_option(package_name="sayso")
def main() -> None:
    """Chat bots that act only on the user's say-so."""
    from sayso.config.wiring.observability import redact_uncaught

    redact_uncaught()


main.add_command(audit)
main.add_command(doctor)
main.add_command(explain)
main.add_command(redis)
main.add_command(deliveries)
main.add_command(people)
main.add_command(simulate)
main.add_command(slack)
main.add_command(webhook)


@main.command()
@_config
@_data
@_host
@_port
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Worker processes.")
@_reload
def up(config: Path | None, data: Path, host: str, port: int, workers: int, *, reload: bool) -> None:
    """Run everything on this machine: Redis if none is given, web and workers."""
    _leave_on_signals()
    from sayso.config.settings.loader import default_config

    with clear_errors():
        file = config or default_config()
    _up(file, data, host, port, workers, reload=reload)


@main.command()
@_data
@_host
@_port
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 64), help="Worker processes.")
def demo(data: Path, host: str, port: int, workers: int) -> None:
    """Run the demo, a bot for invoices in your browser. It needs no account and no key. Each start brings back all its
    invoices.
    """
    _leave_on_signals()
    from sayso.config.settings.loader import DEMO
    from sayso.examples.invoices import FILE, reset_invoices

    try:
        reset_invoices(data / FILE)
    except (OSError, sqlite3.Error) as exc:
        fail(f"{str(data / FILE)!r} cannot be reset: {exc}: let this user write to it, or give another --data")
    _up(DEMO, data, host, port, workers)


def _up(config: Path, data: Path, host: str, port: int, workers: int, *, reload: bool = False) -> None:
    from sayso.config.server.embedded_redis import EmbeddedRedisError
    from sayso.config.server.processes import AddressUnusable
    from sayso.config.server.up import Up, UpError
    from sayso.config.settings.loader import ConfigError
    from sayso.config.wiring.observability import set_up_logs

    set_up_logs()
    if reload:
        os.environ["SAYSO_RELOAD"] = "true"
    settings = load(config)
    try:
        Up(settings, config, data, host, port, workers, say=click.echo).run()
    except (ConfigError, UpError, AddressUnusable, EmbeddedRedisError) as exc:
        fail(str(exc))


@main.command()
@_config
@_data
@_host
@_port
@click.option(
    "--threads", default=32, show_default=True, type=click.IntRange(4, 512), help="Requests answered at a time."
)
@click.option(
    "--processes", type=click.IntRange(1, 64), help="Fork so many, and another where one dies.  [default: be one]"
)
def web(config: Path | None, data: Path, host: str, port: int, threads: int, processes: int | None = None) -> None:
    """Run the web process: webhooks in, media out, the console."""
    from sayso.channels.web.app import create_app
    from sayso.channels.web.ingress import Ingress, check_redis_if_there
    from sayso.config.server.http import serve
    from sayso.config.server.processes import listen, local_url, prefork
    from sayso.config.wiring.bootstrap import bootstrap, check_redis
    from sayso.config.wiring.observability import set_up_logs

    set_up_logs()
    settings = load(config)
    url = os.environ.get("SAYSO_PUBLIC_URL") or local_url(host, port)
    with clear_errors():
        listening = listen(host, port)
    if processes:
        prefork(processes)
    with clear_errors():
        services = bootstrap(settings, data=data, public_url=url)
        (check_redis_if_there if services.spool else check_redis)(services)
    Ingress(services).open()
    serve(create_app(services), listening, threads=threads)


@main.command()
@_config
@_data
@click.option(
    "--processes", type=click.IntRange(1, 64), help="Fork so many, and another where one dies.  [default: be one]"
)
@_reload
def worker(config: Path | None, data: Path, processes: int | None = None, *, reload: bool = False) -> None:
    """Run a worker process: it answers turns and sends replies."""
    from sayso.config.server.processes import prefork
    from sayso.config.wiring.bootstrap import bootstrap, check_redis, preload
    from sayso.config.wiring.observability import set_up_logs
    from sayso.config.wiring.rq_entry import install, worker_services
    from sayso.workers.rq.worker import run_worker

    set_up_logs()
    settings = load(config)
    with clear_errors():
        preload(settings)
    if processes:
        prefork(processes)
    with clear_errors():
        services = bootstrap(settings, data=data, patient=True, reload=reload)
        check_redis(services)
    run_worker(worker_services(services), install(services).loop)


@main.command()
@_config
@_data
def poll(config: Path | None, data: Path) -> None:
    """Run the process that asks Telegram for what people write, for channels with `polling: true`."""
    from sayso.channels.telegram.poller import polling, run_pollers
    from sayso.channels.web.ingress import check_redis_if_there
    from sayso.config.wiring.bootstrap import bootstrap, check_redis
    from sayso.config.wiring.observability import set_up_logs

    set_up_logs()
    settings = load(config)
    with clear_errors():
        services = bootstrap(settings, data=data)
        if not polling(services):
            fail("no channel polls: write `polling: true` into a Telegram channel")
        (check_redis_if_there if services.spool else check_redis)(services)
    run_pollers(services)


@main.command()
@_config
@_data
@click.option("--channel", help="Whose tools and policy to use; by default the first channel's.")
def chat(config: Path | None, data: Path, channel: str | None) -> None:
    """Talk to the bot in this terminal, with nothing else running."""
    from sayso.channels.console.terminal import Terminal, TerminalChannel, new_secret
    from sayso.channels.media import MemoryMediaStore
    from sayso.config.settings.loader import default_config, load_for_terminal
    from sayso.config.wiring.agents import terminal_agent
    from sayso.config.wiring.observability import set_up_logs

    set_up_logs(logging.WARNING)  # between the lines of the conversation only what is wrong
    with clear_errors():
        settings = load_for_terminal(config or default_config(), channel)
    files, secret = MemoryMediaStore(), new_secret()
    bot = terminal_agent(
        settings, data=data, channel=channel, media=files, tell=lambda problem: click.echo(problem, err=True)
    )
    with ExitStack() as until_the_end:
        with clear_errors():
            agent = until_the_end.enter_context(bot)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a stray byte in a pipe is no reason to stop
        styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        here = TerminalChannel(
            "terminal", folder=data / "chat", files=files, say=click.echo, secret=secret, styled=styled
        )
        Terminal(here, secret, agent.take).run(sys.stdin, click.echo)


@main.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
def check(file: Path | None) -> None:
    """Check a configuration FILE and say what each channel may do.  [default: SAYSO_CONFIG, or ./sayso.yaml]"""
    from sayso.config.checks.describe import describe
    from sayso.config.settings.loader import default_config

    with clear_errors():
        file = file or default_config()
    settings = load(file)
    with clear_errors():
        click.echo(describe(settings))
    click.echo(f"{file}: ok")


def _leave_on_signals() -> None:
    """Until Up listens for itself nothing runs that would need stopping: a signal just ends us, without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(_: int, __: FrameType | None) -> NoReturn:
    os._exit(0)  # an exception could end up in a module that is being imported, and be told or swallowed there


if __name__ == "__main__":
    main()
