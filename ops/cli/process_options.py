"""Options of the commands that run a bot or a part of it.

These are `up`, `demo`, `chat`, `web`, `worker` and `poll`. The module of a command says which of the
options it has.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import click

from sayso.config.wiring.observability import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, LEVELS
from sayso.infra.metrics_endpoint import MetricsUnusable
from sayso.infra.stop_signals import accept_interrupts
from sayso.ops.cli.command import fail
from sayso.ops.server.metrics_port import MetricsAddress, share_counts

#: The value of --metrics: a port, and a host before it or none. An IPv6 address is in brackets:
#: without them its last part would be taken for the port.
_METRICS_ADDRESS = re.compile(r"(?:(?P<host>\[[^\[\]]+\]|[^\[\]:]*):)?(?P<port>[0-9]{1,5})")


def _metrics_address(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> MetricsAddress:
    """Return host and port of `--metrics`, None without the option."""
    if not text:
        return None
    address = _METRICS_ADDRESS.fullmatch(text)
    if not address or not 0 < int(address["port"]) < 65536:
        raise click.BadParameter(
            f"{text!r} is not an address: write a port, such as 9464, or a host before it: "
            "10.0.0.5:9464 or [::1]:9464"
        )
    host = (address["host"] or "").strip("[]")
    return host or "127.0.0.1", int(address["port"])


host_option = click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
port_option = click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The port to listen on.",
)
# Of `up` and `demo`, which start worker processes as commands of their own.
workers_option = click.option(
    "--workers",
    default=2,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of worker processes.",
)
reload_option = click.option(
    "--reload",
    is_flag=True,
    envvar="SAYSO_RELOAD",
    help="Load tools again when their files are saved.",
)
metrics_option = click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="SAYSO_METRICS",
    callback=_metrics_address,
    help="Serve /metrics for Prometheus on this port of this machine, or of HOST.  [default: do not]",
)
# Of `web` and `worker`, which fork themselves.
processes_option = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    help="Fork this many processes, and replace each that dies.  [default: run as one process]",
)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --log-level and --log-format to a command.

    Their values become environment variables, so that the processes it starts have them, too.
    """

    def export(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value and isinstance(option.envvar, str):
            os.environ[option.envvar] = value

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


def count_for_metrics(metrics: MetricsAddress, *, forks: bool) -> None:
    """Prepare this process to count for `/metrics`.

    `metrics` is the address of --metrics, None without the option. `forks` says whether the command
    forks or starts processes, which count together with it. Call it before `sayso.infra.metrics` is
    imported, which chooses then where it counts: before the imports of the command's function.
    Exits where the folder of the counts is unusable.
    """
    # `clear_errors` cannot be used here, because it imports modules that count.
    try:
        share_counts(metrics, forks=forks)
    except MetricsUnusable as exc:
        fail(str(exc))


def exit_on_signals() -> None:
    """Exit at once on SIGINT and SIGTERM, until the command installs its own handlers.

    Nothing runs yet that has to be stopped, so the status is 0, as after a stop of the running
    command. The handler raises no exception, because a module that is being imported could catch or
    print it.
    """

    def leave(_: int, __: FrameType | None) -> NoReturn:
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    # The process that started this one may have blocked SIGINT until there is a handler.
    accept_interrupts()
