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
    # These two come before the imports below: the imports take a second, in which Ctrl-C must
    # already work, and a module that counts decides at its import where it counts.
    exit_on_signals()
    count_for_metrics(metrics, forks=bool(processes))
    from sayso.config.wiring.bootstrap import bootstrap, check_bucket, check_redis, preload
    from sayso.config.wiring.gauges import metrics_endpoint
    from sayso.config.wiring.rq_entry import install, worker_services
    from sayso.ops.server.metrics_port import listen_for_readers, serve_metrics
    from sayso.ops.server.processes import prefork
    from sayso.workers.rq.process import run_worker

    set_up_logs()  # it reads --log-level and --log-format from the environment
    # This command starts a bot, so the file of another one that runs on the data folder does not
    # count. Like `clear_errors`, `load` exits with one clear message.
    settings = options.load(prefer_running=False)

    # What forked processes can share is loaded before the fork: libraries, and the socket of
    # the metrics. Connections and threads come after it.
    with clear_errors():
        preload(settings)
        metrics_socket = listen_for_readers(metrics)

    # With --processes, everything after this line runs in each of the forked processes. The parent
    # stays inside `prefork` until the end.
    if processes:
        prefork(processes)

    with clear_errors():
        services = bootstrap(settings, data=options.data, is_worker=True, reload=reload)
        check_bucket(services)
        check_redis(services)

    # Each of the processes can answer for all: they count in common files.
    serve_metrics(metrics_endpoint(options.data), metrics_socket)

    # RQ runs in this thread. The jobs that it takes run on the loop of the installed process, in a
    # second thread.
    process = install(services)
    run_worker(worker_services(services), process.loop)
