"""The command `sayso worker`: a process that answers turns and sends replies."""

from __future__ import annotations

import click

from sayso.config.wiring.observability import set_up_logs
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, pass_options
from sayso.ops.cli.process_options import (
    count_for_metrics,
    exit_on_signals,
    log_options,
    metrics_option,
    processes_option,
    reload_option,
)
from sayso.ops.server.metrics_port import MetricsAddress


@click.command(
    cls=SaysoCommand, examples=["sayso worker --processes 4", "sayso worker -c bot.yaml --reload"]
)
@processes_option
@metrics_option
@reload_option
@log_options
@pass_options
def worker(
    options: Options, processes: int | None, metrics: MetricsAddress, *, reload: bool
) -> None:
    """Run a worker process: it answers turns and sends replies."""
    # Before the imports below, some of which decide where they count (as in `sayso web`).
    exit_on_signals()
    count_for_metrics(metrics, forks=bool(processes))
    from sayso.config.wiring.bootstrap import bootstrap, check_bucket, check_redis, preload
    from sayso.config.wiring.gauges import metrics_endpoint
    from sayso.config.wiring.rq_entry import install, worker_services
    from sayso.ops.server.metrics_port import listen_for_readers, serve_metrics
    from sayso.ops.server.processes import prefork
    from sayso.workers.rq.process import run_worker

    set_up_logs()
    settings = options.load(prefer_running=False)

    # What forked processes can share is loaded before the fork: libraries, and the socket of
    # the metrics. Connections and threads come after it.
    with clear_errors():
        preload(settings)
        metrics_socket = listen_for_readers(metrics)

    # Everything after this line runs in each of the forked processes.
    if processes:
        prefork(processes)

    with clear_errors():
        services = bootstrap(settings, data=options.data, is_worker=True, reload=reload)
        check_bucket(services)
        check_redis(services)
    serve_metrics(metrics_endpoint(options.data), metrics_socket)
    loop = install(services).loop
    run_worker(worker_services(services), loop)
