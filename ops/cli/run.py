"""The commands that run a bot: `sayso up`, `demo`, `chat`, `web`, `worker`, `poll`."""

from __future__ import annotations

import io
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

import click

from sayso.config.wiring.observability import (
    FORMAT_VARIABLE,
    FORMATS,
    LEVEL_VARIABLE,
    LEVELS,
    set_up_logs,
)
from sayso.infra.metrics_endpoint import MetricsUnusable
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, fail, pass_options
from sayso.ops.server.metrics import MetricsAddress, share_counts

_host = click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
_port = click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port to listen on.",
)
_workers = click.option(
    "--workers",
    default=2,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of worker processes.",
)
_reload = click.option(
    "--reload",
    is_flag=True,
    envvar="SAYSO_RELOAD",
    help="Load tools again when their files are saved.",
)
_metrics = click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="SAYSO_METRICS",
    callback=lambda _, __, text: _address(text),
    help="Serve /metrics for Prometheus on this port of this machine, or of HOST.  [default: do not]",
)
_processes = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    help="Fork this many processes, and replace each that dies.  [default: run as one process]",
)


def _logs(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the log to a command.

    They become variables, also for the processes that it starts.
    """

    def export(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value and option.name:
            os.environ[f"SAYSO_{option.name.upper()}"] = value

    shared: dict[str, Any] = {"expose_value": False, "callback": export, "show_envvar": True}
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        envvar=LEVEL_VARIABLE,
        **shared,
        help="Print log lines from this level on.  [default: info; of chat: warning]",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(FORMATS, case_sensitive=False),
        envvar=FORMAT_VARIABLE,
        **shared,
        help="Log lines for people, or one JSON object a line.  [default: pretty]",
    )
    return form(level(command))


@click.command(cls=SaysoCommand, examples=["sayso up", "sayso up -c bot.yaml --port 8080 --reload"])
@_host
@_port
@_workers
@_metrics
@_reload
@_logs
@pass_options
def up(
    options: Options, host: str, port: int, workers: int, metrics: MetricsAddress, *, reload: bool
) -> None:
    """Run everything on this machine: web, workers, and Redis if none is given."""
    _exit_on_signals()
    _run_up(options, host, port, workers, metrics, reload=reload)


@click.command(cls=SaysoCommand, examples=["sayso demo"])
@_host
@_port
@_workers
@_logs
@pass_options
def demo(options: Options, host: str, port: int, workers: int) -> None:
    """Run the demo, an invoice bot in your browser.

    It needs no account and no key, and has its own configuration.

    Each start restores all invoices.
    """
    _exit_on_signals()
    from sayso.config.settings.loader import DEMO
    from sayso.examples.invoices import FILE, reset_invoices

    if options.config is not None:
        raise click.UsageError(
            "the demo has its own configuration: write `sayso up -c FILE` to run yours"
        )
    invoices = options.data / FILE
    try:
        reset_invoices(invoices)
    except (OSError, sqlite3.Error) as exc:
        fail(
            f"{str(invoices)!r} cannot be reset: {exc}: let this user write to it, or give another --data"
        )
    options.config = DEMO
    _run_up(options, host, port, workers)


def _run_up(
    options: Options,
    host: str,
    port: int,
    workers: int,
    metrics: MetricsAddress = None,
    *,
    reload: bool = False,
) -> None:
    _share_counts(metrics, forks=True)
    from sayso.ops.server.up import Up, UpError

    set_up_logs()
    if reload:
        os.environ["SAYSO_RELOAD"] = "true"
    settings = options.load(running=False)
    with clear_errors():
        try:
            file = options.file(running=False)
            supervisor = Up(
                settings,
                file,
                options.data,
                host,
                port,
                workers,
                metrics,
                say=click.echo,
            )
            supervisor.run()
        except UpError as exc:
            fail(str(exc))
    if supervisor.is_interrupted:  # Python's own end takes half a second, and nothing is left to do
        sys.stdout.flush()
        os._exit(0)


def _share_counts(metrics: MetricsAddress, *, forks: bool) -> None:
    try:  # `clear_errors` imports modules that count, which is too early
        share_counts(metrics, forks=forks)
    except MetricsUnusable as exc:
        fail(str(exc))


def _address(text: str | None) -> MetricsAddress:
    """Return host and port of `--metrics`."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise click.BadParameter(
            f"{text!r} is no address: write a port, such as 9464, or a host before it: 10.0.0.5:9464"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _exit_on_signals() -> None:
    """Exit at once on SIGINT and SIGTERM, until the command installs its own handlers.

    Nothing runs yet that has to be stopped. The handler raises no exception: a module that is
    being imported could catch or print it.
    """

    from sayso.infra.stop_signals import accept_interrupts  # `sayso --help` imports no package

    def leave(_: int, __: FrameType | None) -> NoReturn:
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    accept_interrupts()


@click.command(cls=SaysoCommand, examples=["sayso chat", "sayso chat shop-wa -c bot.yaml"])
@click.argument("channel", required=False)
@_logs
@pass_options
def chat(options: Options, channel: str | None) -> None:
    """Talk to the bot in this terminal; nothing else has to run.

    CHANNEL is the channel whose tools and policy are used, by default the first one.
    """
    from sayso.channels.console.terminal import Terminal
    from sayso.channels.media_store import LocalMediaStore
    from sayso.config.settings.loader import load_for_terminal
    from sayso.config.wiring.agents import terminal_agent

    set_up_logs("warning")  # INFO lines would stand between the lines of the conversation
    with clear_errors():
        settings = load_for_terminal(options.file(running=False), channel)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="sayso-chat-"))
        files = LocalMediaStore(Path(folder), keys=["no link is made"], public_url="")
        bot = terminal_agent(
            settings,
            data=options.data,
            media=files,
            report_problem=lambda problem: click.echo(problem, err=True),
        )
        with clear_errors():
            agent = stack.enter_context(bot)
        if isinstance(sys.stdin, io.TextIOWrapper):
            # A byte in a pipe that is no UTF-8 must not end the conversation.
            sys.stdin.reconfigure(errors="replace")
        terminal = Terminal(
            folder=options.data / "chat",
            read_file=files.read,
            print_text=click.echo,
            styled=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        )
        terminal.talk(sys.stdin, agent.take)


@click.command(
    cls=SaysoCommand,
    examples=["sayso web --host 0.0.0.0 --port 8000 --processes 2", "sayso web -c bot.yaml"],
)
@_host
@_port
@click.option(
    "--threads",
    default=32,
    show_default=True,
    type=click.IntRange(4, 512),
    help="Requests answered at the same time.",
)
@_processes
@_metrics
@_logs
@pass_options
def web(
    options: Options,
    host: str,
    port: int,
    threads: int,
    processes: int | None,
    metrics: MetricsAddress,
) -> None:
    """Run the web process: it accepts webhooks, serves media and the console."""
    _exit_on_signals()
    _share_counts(metrics, forks=bool(processes))
    from sayso.config.wiring.bootstrap import bootstrap, check_bucket
    from sayso.config.wiring.ingress import check_redis_if_reachable, start_watching
    from sayso.config.wiring.metrics import metrics_endpoint
    from sayso.config.wiring.wsgi import build_app
    from sayso.ops.server.http import serve
    from sayso.ops.server.metrics import listen_for_readers, serve_metrics
    from sayso.ops.server.processes import (
        WEB_FILE,
        Running,
        leave_note,
        listen,
        local_url,
        prefork,
        take_note_back,
    )

    set_up_logs()
    settings = options.load(running=False)
    url = os.environ.get("SAYSO_PUBLIC_URL") or local_url(host, port)
    with clear_errors():
        listening = listen(host, port)
        readers = listen_for_readers(metrics)
    if processes:
        prefork(processes, listening)
    with clear_errors():
        services = bootstrap(settings, data=options.data, public_url=url)
        check_redis_if_reachable(services)
        check_bucket(services)
    start_watching(services)
    pid = os.getppid() if processes else os.getpid()
    running = Running(
        options.file(running=False).resolve(), local_url(host, port), pid, services.public_url
    )
    leave_note(settings.state_folder(options.data), running, WEB_FILE)
    endpoint = metrics_endpoint(options.data, services)
    serve_metrics(endpoint, readers)
    serve(build_app(services, endpoint), listening, threads=threads, is_shared=bool(processes))
    take_note_back(settings.state_folder(options.data), WEB_FILE)


@click.command(
    cls=SaysoCommand, examples=["sayso worker --processes 4", "sayso worker -c bot.yaml --reload"]
)
@_processes
@_metrics
@_reload
@_logs
@pass_options
def worker(
    options: Options, processes: int | None, metrics: MetricsAddress, *, reload: bool
) -> None:
    """Run a worker process: it answers turns and sends replies."""
    _exit_on_signals()
    _share_counts(metrics, forks=bool(processes))
    from sayso.config.wiring.bootstrap import bootstrap, check_bucket, check_redis, preload
    from sayso.config.wiring.metrics import metrics_endpoint
    from sayso.config.wiring.rq_entry import install, worker_services
    from sayso.ops.server.metrics import listen_for_readers, serve_metrics
    from sayso.ops.server.processes import prefork
    from sayso.workers.rq.process import run_worker

    set_up_logs()
    settings = options.load(running=False)
    with clear_errors():
        preload(settings)
        readers = listen_for_readers(metrics)
    if processes:
        prefork(processes)
    with clear_errors():
        services = bootstrap(settings, data=options.data, is_worker=True, reload=reload)
        check_bucket(services)
        check_redis(services)
    serve_metrics(metrics_endpoint(options.data), readers)
    run_worker(worker_services(services), install(services).loop)


@click.command(cls=SaysoCommand, examples=["sayso poll"])
@_metrics
@_logs
@pass_options
def poll(options: Options, metrics: MetricsAddress) -> None:
    """Run the process that fetches messages from Telegram, for channels with `polling: true`."""
    _exit_on_signals()
    _share_counts(metrics, forks=False)
    from sayso.config.wiring import ingress
    from sayso.config.wiring.bootstrap import bootstrap
    from sayso.config.wiring.metrics import metrics_endpoint
    from sayso.ops.server.metrics import listen_for_readers, serve_metrics

    set_up_logs()
    settings = options.load(running=False)
    with clear_errors():
        readers = listen_for_readers(metrics)
        services = bootstrap(settings, data=options.data)
        if not ingress.polled_channels(settings):
            fail("no channel polls: write `polling: true` into a Telegram channel")
        ingress.check_redis_if_reachable(services)
    serve_metrics(metrics_endpoint(options.data), readers)
    ingress.poll(services)
