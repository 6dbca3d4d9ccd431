"""The command `sayso poll`: the process that asks platforms for new messages."""

from __future__ import annotations

import click

from sayso.config.wiring.observability import set_up_logs
from sayso.ops.cli.command import Options, SaysoCommand, clear_errors, fail, pass_options
from sayso.ops.cli.process_options import (
    count_for_metrics,
    exit_on_signals,
    log_options,
    metrics_option,
)
from sayso.ops.server.metrics_port import MetricsAddress


@click.command(cls=SaysoCommand, examples=["sayso poll"])
@metrics_option
@log_options
@pass_options
def poll(options: Options, metrics: MetricsAddress) -> None:
    """Run the process that fetches messages from platforms, for channels with `polling: true`."""
    # Before the imports below, some of which decide where they count (as in `sayso web`).
    exit_on_signals()
    count_for_metrics(metrics, forks=False)
    from sayso.channels.registry import polled_platforms
    from sayso.config.wiring import ingress
    from sayso.config.wiring.bootstrap import bootstrap
    from sayso.config.wiring.gauges import metrics_endpoint
    from sayso.ops.server.metrics_port import listen_for_readers, serve_metrics

    set_up_logs()
    settings = options.load(prefer_running=False)
    with clear_errors():
        metrics_socket = listen_for_readers(metrics)
        services = bootstrap(settings, data=options.data)
        if not ingress.polled_channels(settings):
            platforms = " or ".join(polled_platforms())
            fail(f"no channel polls: write `polling: true` into a channel of {platforms}")
        ingress.check_redis_if_reachable(services)

    serve_metrics(metrics_endpoint(options.data), metrics_socket)
    ingress.poll(services)
