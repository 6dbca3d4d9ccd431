"""The `sayso deliveries` commands: list, show, retry.

A delivery is one reply on its way to a platform, with its attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from sayso.infra.terminal import one_line, utc_time
from sayso.ops.cli.command import (
    Options,
    SaysoGroup,
    clear_errors,
    fail,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.workers.alerts import Alert
    from sayso.workers.deliveries import DeliveryStatus, RedisDeliveries, UndeliveredState

#: The most characters of a reason, and of a reply's text, in one line of `list`.
WIDTH = 60
#: The same in one line of `show`.
SHOW_WIDTH = 300
#: The most characters of an alert in one line.
ALERT_WIDTH = 500


@click.group(
    cls=SaysoGroup, examples=["sayso deliveries list", "sayso deliveries retry 'web:12ab#3'"]
)
def deliveries() -> None:
    """See what became of the replies, and send again those that were given up."""


@deliveries.command(
    "list", examples=["sayso deliveries list", "sayso deliveries list shop-wa --state held"]
)
@click.argument("channel", required=False, default="")
@click.option(
    "--state",
    type=click.Choice(["dead", "failed", "ambiguous", "held"]),
    help="Only replies in this state.  [default: dead, failed]",
)
@click.option(
    "--last", default=50, show_default=True, type=click.IntRange(1, 1000), help="At most this many."
)
@pass_options
def list_(options: Options, channel: str, state: str | None, last: int) -> None:
    """List undelivered replies, newest first, of CHANNEL or of all.

    dead: given up after all tries. failed: accepted by the platform and not delivered. ambiguous:
    perhaps sent twice. held: waiting for the user to write again.
    """
    states = cast("Sequence[UndeliveredState]", [state] if state else ["dead", "failed"])
    with _open_stores(options) as (stored, load_alerts):
        undelivered: list[DeliveryStatus] = []
        for each in states:
            undelivered += stored.undelivered(each)
        current_alerts = load_alerts()

    if channel:
        undelivered = [each for each in undelivered if each.id.startswith(f"{channel}:")]
    newest = sorted(undelivered, key=lambda status: -status.at)[:last]

    # An alert concerns a whole channel, such as a token that its platform refuses.
    lines = [
        f"{utc_time(each.at)}  channel {each.channel}: {one_line(each.text, ALERT_WIDTH)}"
        for each in current_alerts
    ]
    lines += [_columns(status) for status in newest] or ["nothing was put aside"]
    value = {
        "alerts": [asdict(each) for each in current_alerts],
        "deliveries": [_as_json(each) for each in newest],
    }
    options.print(value, lines)


@deliveries.command(
    examples=["sayso deliveries show 'web:12ab#3'", "sayso deliveries show web:12ab"]
)
@click.argument("delivery")
@pass_options
def show(options: Options, delivery: str) -> None:
    """Show what became of DELIVERY, or of the last deliveries of a conversation.

    Dead ones are shown with their text.
    """
    conversation, _, number = delivery.partition("#")
    with _open_stores(options) as (stored, _):
        latest, closed = stored.statuses(conversation)
        dead = [
            status
            for status in stored.undelivered("dead")
            if status.id.startswith(f"{conversation}#")
        ]
    # A dead delivery is in both lists. The second one has its text, and replaces the first.
    by_id = {status.id: status for status in (*latest, *dead)}
    rows = [status for name, status in by_id.items() if not number or name == delivery]
    if not rows:
        fail(
            f"nothing is stored about {delivery!r}: it is more than a week or 50 replies ago, or no delivery at all"
        )

    lines = [_columns(status, SHOW_WIDTH) for status in rows]
    if closed:
        lines.append(
            f"the address accepts nothing until its user writes again: {one_line(closed, WIDTH)}"
        )
    options.print({"deliveries": [_as_json(status) for status in rows], "closed": closed}, lines)


@deliveries.command(examples=["sayso deliveries retry 'web:12ab#3'"])
@click.argument("delivery")
@pass_options
def retry(options: Options, delivery: str) -> None:
    """Put a dead DELIVERY back at the end of its conversation's outbox.

    It works once for each delivery.
    """
    with _open_stores(options) as (stored, _):
        new_id = stored.retry(delivery)
    options.print(
        {"delivery": delivery, "new_id": new_id}, [f"{delivery} waits again, as {new_id}"]
    )


@contextmanager
def _open_stores(options: Options) -> Iterator[tuple[RedisDeliveries, Callable[[], list[Alert]]]]:
    """Yield the deliveries, and a function that returns the alerts of all channels."""
    from sayso.config.wiring.redis_parts import open_deliveries

    settings = options.load()
    with clear_errors():
        stored, alerts = open_deliveries(settings, options.data)
        yield stored, lambda: alerts.of(settings.channels)


def _as_json(status: DeliveryStatus) -> dict[str, Any]:
    """Return a delivery without its stored entry, and with its text."""
    fields = asdict(status)
    del fields["entry"]
    return {**fields, "text": status.text}


def _columns(status: DeliveryStatus, width: int = WIDTH) -> str:
    """Return the columns of a delivery as one line of `list` and `show`.

    The last column holds notes: each has at most `width` characters, and empty ones are left out.
    """
    notes = [status.reason]
    if status.text:
        notes.append(f"“{status.text}”")
    if status.asks:
        notes.append("(asked for a yes)")
    if status.doubtful:
        notes.append("(may have arrived)")
    if status.state == "retried":
        notes.append(f"as #{status.receipt}")

    tries = "try  " if status.attempts == 1 else "tries"
    columns = [
        utc_time(status.at),
        f"{status.id:34}",
        f"{status.state:9}",
        f"{status.attempts:2} {tries}",
        "  ".join(one_line(note, width) for note in notes if note),
    ]
    return "  ".join(columns).rstrip()
