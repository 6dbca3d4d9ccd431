"""The command `sayso up`: run a whole bot on this machine."""

from __future__ import annotations

import os
import sys

import click

from sayso.config.wiring.observability import set_up_logs
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, fail, pass_options
from sayso.ops.cli.process_options import (
    count_for_metrics,
    exit_on_signals,
    host_option,
    log_options,
    metrics_option,
    port_option,
    reload_option,
    workers_option,
)
from sayso.ops.server.metrics_port import MetricsAddress


@click.command(cls=SaysoCommand, examples=["sayso up", "sayso up -c bot.yaml --port 8080 --reload"])
@host_option
@port_option
@workers_option
@metrics_option
@reload_option
@log_options
@pass_options
def up(
    options: Options, host: str, port: int, workers: int, metrics: MetricsAddress, *, reload: bool
) -> None:
    """Run everything on this machine: web, workers, and Redis if none is given."""
    exit_on_signals()
    run_up(options, host, port, workers, metrics, reload=reload)


def run_up(
    options: Options,
    host: str,
    port: int,
    workers: int,
    metrics: MetricsAddress = None,
    *,
    reload: bool = False,
) -> None:
    """Run the web process and the workers until a signal, and a Redis where none is configured.

    `workers` is the number of worker processes; `metrics` is the address of --metrics, None
    without the option. Exits where the parts do not come up.
    """
    count_for_metrics(metrics, forks=True)
    from sayso.ops.server.up import Up, UpError

    set_up_logs()
    if reload:
        os.environ["SAYSO_RELOAD"] = "true"
    settings = options.load(prefer_running=False)
    with clear_errors():
        try:
            file = options.file(prefer_running=False)
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

    # A person pressed Ctrl-C and waits. Python's own end takes half a second and has nothing to do.
    if supervisor.is_interrupted:
        sys.stdout.flush()
        os._exit(0)
