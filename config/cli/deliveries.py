"""The `sayso deliveries` commands: list, show, retry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sayso.config.cli.output import clear_errors, fail, load, plain

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.workers.alerts import Alert
    from sayso.workers.outbox import Deliveries, DeliveryStatus, UndeliveredState

#: Characters of a reason and of a reply's words that `list` has room for.
WIDTH = 60
#: Characters of them that `show` has room for.
SHOW_WIDTH = 300

_config = click.option("--config", type=click.Path(path_type=Path), help="The YAML file, for its Redis.")
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder of a running `sayso up`.",
)  # fmt: skip


@click.group()
def deliveries() -> None:
    """What became of the replies, and a second try for those that were given up."""


@deliveries.command("list")
@_config
@_data
@click.option(
    "--state", type=click.Choice(["dead", "failed", "ambiguous", "held"]), help="Only these.  [default: dead, failed]"
)
@click.option("--channel", default="", help="Only this channel's.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(1, 1000), help="How many, at most.")
def list_(config: Path | None, data: Path, state: str | None, channel: str, last: int) -> None:
    """List replies that were given up (dead), taken and not delivered (failed), sent twice (ambiguous), or not sent
    before their person writes (held).
    """
    with _opened(config, data) as (kept, alerts):
        states = cast("Sequence[UndeliveredState]", [state] if state else ["dead", "failed"])
        every = [fate for each in states for fate in kept.undelivered(each)]
        heard = alerts()
    for alert in heard:
        click.echo(f"{_time(alert.at)}  channel {alert.channel}: {plain(alert.words, 500)}")
    found = [fate for fate in every if not channel or fate.id.startswith(f"{channel}:")]
    for fate in sorted(found, key=lambda fate: -fate.at)[:last]:
        click.echo(_row(fate))
    if not found:
        click.echo("nothing was put aside")


@deliveries.command()
@click.argument("delivery")
@_config
@_data
def show(delivery: str, config: Path | None, data: Path) -> None:
    """Show what became of DELIVERY (or of a conversation's last ones), and the words of a dead one."""
    conversation, _, number = delivery.partition("#")
    with _opened(config, data) as (kept, _):
        fates, closed = kept.statuses(conversation)
        dead = {fate.id: fate for fate in kept.undelivered("dead")}
    dead = {name: fate for name, fate in dead.items() if name.startswith(f"{conversation}#")}
    found = {**{fate.id: fate for fate in fates}, **dead}
    rows = [fate for name, fate in found.items() if not number or name == delivery]
    if not rows:
        fail(f"nothing is kept of {delivery!r}: it is more than a week or 50 replies ago, or no delivery at all")
    for fate in rows:
        click.echo(_row(fate, SHOW_WIDTH))
    if closed:
        click.echo(f"the address takes nothing until its person writes again: {plain(closed, WIDTH)}")


@deliveries.command()
@click.argument("delivery")
@_config
@_data
def retry(delivery: str, config: Path | None, data: Path) -> None:
    """Put a dead DELIVERY back at the end of its conversation's outbox, once."""
    from sayso.workers.outbox import NotRepeatable

    with _opened(config, data) as (kept, _):
        try:
            new = kept.retry(delivery)
        except NotRepeatable as exc:
            fail(str(exc))
    click.echo(f"{delivery} waits again, as {new}")


@contextmanager
def _opened(config: Path | None, data: Path) -> Iterator[tuple[Deliveries, Callable[[], list[Alert]]]]:
    """The deliveries, and what was last said of the channels."""
    from redis.exceptions import RedisError

    from sayso.config.wiring.bootstrap import open_alerts, open_deliveries
    from sayso.pending.redis.scripts import Halted

    settings = load(config, data)
    with clear_errors():
        kept, alerts = open_deliveries(settings, data), open_alerts(settings, data)
    try:
        yield kept, lambda: alerts.of(settings.channels)
    except Halted as exc:
        fail(str(exc))
    except RedisError as exc:
        fail(f"Redis does not answer ({type(exc).__name__}): deliveries are kept there")


def _row(fate: DeliveryStatus, width: int = WIDTH) -> str:
    notes: list[Any] = [fate.reason, fate.text and f"“{fate.text}”", fate.asks and "(asked for a yes)"]
    notes.append(fate.doubtful and "(may have arrived)")
    if fate.state == "retried":
        notes.append(f"as #{fate.receipt}")
    words = "  ".join(plain(note, width) for note in notes if note)
    return f"{_time(fate.at)}  {fate.id:34}  {fate.state:9}  {fate.tries:2} tries  {words}".rstrip()


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
