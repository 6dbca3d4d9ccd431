"""The command `sayso web`: the process that takes webhooks and serves files and the console."""

from __future__ import annotations

import os

import click

from sayso.config.wiring.observability import set_up_logs
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, pass_options
from sayso.ops.cli.process_options import (
    count_for_metrics,
    exit_on_signals,
    host_option,
    log_options,
    metrics_option,
    port_option,
    processes_option,
)
from sayso.ops.server.metrics_port import MetricsAddress


@click.command(
    cls=SaysoCommand,
    examples=["sayso web --host 0.0.0.0 --port 8000 --processes 2", "sayso web -c bot.yaml"],
)
@host_option
@port_option
@click.option(
    "--threads",
    default=32,
    show_default=True,
    type=click.IntRange(4, 512),
    help="Requests answered at the same time.",
)
@processes_option
@metrics_option
@log_options
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
    exit_on_signals()
    count_for_metrics(metrics, forks=bool(processes))
    from sayso.config.wiring.bootstrap import bootstrap, check_bucket
    from sayso.config.wiring.gauges import metrics_endpoint
    from sayso.config.wiring.ingress import check_redis_if_reachable, start_watching
    from sayso.config.wiring.wsgi import build_app
    from sayso.ops.server.http import serve
    from sayso.ops.server.metrics_port import listen_for_readers, serve_metrics
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

    # The port is taken before the fork, so that all processes share it.
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

    # The note tells other commands which bot runs here: with forks it names the parent.
    pid = os.getppid() if processes else os.getpid()
    config = options.file(running=False).resolve()
    running = Running(config, local_url(host, port), pid, services.public_url)
    leave_note(settings.state_folder(options.data), running, WEB_FILE)

    endpoint = metrics_endpoint(options.data, services)
    serve_metrics(endpoint, readers)
    serve(build_app(services, endpoint), listening, threads=threads, is_shared=bool(processes))
    take_note_back(settings.state_folder(options.data), WEB_FILE)
