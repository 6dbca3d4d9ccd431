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
    # These two come before the imports below: the imports take a second, in which Ctrl-C must
    # already work, and a module that counts decides at its import where it counts.
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
        RunningBot,
        delete_running_bot,
        listen,
        local_url,
        prefork,
        save_running_bot,
    )

    set_up_logs()
    # This command starts a bot, so the file of another one that runs on the data folder does not
    # count.
    settings = options.load(prefer_running=False)
    url = os.environ.get("SAYSO_PUBLIC_URL") or local_url(host, port)

    # The ports are taken before the fork, so that all processes share them.
    with clear_errors():
        web_socket = listen(host, port)
        metrics_socket = listen_for_readers(metrics)

    # Everything after this line runs in each of the forked processes. The parent stays inside
    # `prefork` until the end.
    if processes:
        prefork(processes, web_socket)

    with clear_errors():
        services = bootstrap(settings, data=options.data, public_url=url)
        check_redis_if_reachable(services)
        check_bucket(services)

    # These background threads send heartbeats, watch Redis for lost data, tell people of a loss and
    # empty the spool. They handle their own errors, so `clear_errors` has nothing to explain here.
    start_watching(services)

    # Other commands, such as `sayso doctor`, read here which bot runs. Of forked processes each
    # writes the same: the process id of their parent, which outlives them.
    state_folder = settings.state_folder(options.data)
    pid = os.getppid() if processes else os.getpid()
    config = options.file(prefer_running=False).resolve()
    running_bot = RunningBot(config, local_url(host, port), pid, services.public_url)
    save_running_bot(state_folder, running_bot, WEB_FILE)

    endpoint = metrics_endpoint(options.data, services)
    serve_metrics(endpoint, metrics_socket)
    app = build_app(services, endpoint)
    serve(app, web_socket, threads=threads, is_shared=bool(processes))

    # A signal ends `serve` in the usual way, so this line is reached. It deletes the note only if
    # it has the id of this process: a forked process leaves the note, since the others still serve.
    # A note that stays, also after an error, does no harm: it counts only while its process lives.
    delete_running_bot(state_folder, WEB_FILE)
