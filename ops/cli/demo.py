"""The command `sayso demo`: a bot in the browser that needs no account."""

from __future__ import annotations

import sqlite3

import click

from sayso.ops.cli.command import Options, SaysoCommand, fail, pass_options
from sayso.ops.cli.process_options import (
    exit_on_signals,
    host_option,
    log_options,
    port_option,
    workers_option,
)
from sayso.ops.cli.up import run_up


@click.command(cls=SaysoCommand, examples=["sayso demo"])
@host_option
@port_option
@workers_option
@log_options
@pass_options
def demo(options: Options, host: str, port: int, workers: int) -> None:
    """Run the demo, an invoice bot in your browser.

    It needs no account and no key, and has its own configuration.

    Each start restores all invoices.
    """
    exit_on_signals()
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
    run_up(options, host, port, workers)
