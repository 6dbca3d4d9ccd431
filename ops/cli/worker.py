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

    # `log_options` has put --log-level and --log-format into environment variables, which this reads.
    set_up_logs()
    # Without --config, other commands take the configuration of the bot that runs on the data
    # folder. This one starts a bot, so it takes the default file. `load` exits with one clear
    # message for a file that is unusable, as `clear_errors` does for the errors below.
    settings = options.load(prefer_running=False)

    # What forked processes can share is loaded before the fork: libraries, and the socket on which
    # Prometheus reads the metrics (None without --metrics). Connections and threads come after it.
    with clear_errors():
        preload(settings)
        metrics_socket = listen_for_readers(metrics)

    # With --processes, everything after this line runs in each of the forked processes, also in the
    # only one of `--processes 1`. The parent stays inside `prefork` until the end. It replaces a
    # process that crashed. If one exits with an error, as the checks below do, all of them stop.
    if processes:
        prefork(processes)

    with clear_errors():
        services = bootstrap(settings, data=options.data, is_worker=True, reload=reload)
        check_bucket(services)
        check_redis(services)

    # Each of the processes accepts connections on the shared socket, and can answer for all: they
    # count in common files. Without a socket this does nothing.
    serve_metrics(metrics_endpoint(options.data), metrics_socket)

    # RQ runs in this thread. The jobs that it takes run on an event loop in a second thread. RQ calls
    # a job by the name of its function, so the function finds the services in a global variable,
    # which `install` sets. RQ's side needs only a part of them: `worker_services`.
    job_loop = install(services).loop
    run_worker(worker_services(services), job_loop)
