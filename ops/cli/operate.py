"""The commands of an operator: `sayso deliveries` list, show and retry,
`sayso redis` status and resume.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from sayso.ops.cli.command import (
    FINDING,
    Options,
    SaysoCommand,
    SaysoGroup,
    clear_errors,
    fail,
    one_line,
    pass_options,
    resumed_parts,
    utc_time,
)

if TYPE_CHECKING:
    from redis import Redis

    from sayso.config.settings.schema import Settings
    from sayso.workers.alerts import Alert
    from sayso.workers.deliveries import DeliveryStatus, RedisDeliveries, UndeliveredState

#: Characters of a reason, and of a reply's text, in one line of `list` and of `show`.
WIDTH = 60
SHOW_WIDTH = 300
#: Characters of an alert.
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
    with _opened(options) as (stored, alerts):
        states = cast("Sequence[UndeliveredState]", [state] if state else ["dead", "failed"])
        undelivered = [status for each in states for status in stored.undelivered(each)]
        current_alerts = alerts()
    chosen = [
        status for status in undelivered if not channel or status.id.startswith(f"{channel}:")
    ]
    newest = sorted(chosen, key=lambda status: -status.at)[:last]
    lines = [
        f"{utc_time(each.at)}  channel {each.channel}: {one_line(each.text, ALERT_WIDTH)}"
        for each in current_alerts
    ]
    lines += [_row(status) for status in newest] or ["nothing was put aside"]
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
    """Show what became of DELIVERY, or of the last deliveries of a conversation,
    and the text of dead ones.
    """
    conversation, _, number = delivery.partition("#")
    with _opened(options) as (stored, _):
        latest, closed = stored.statuses(conversation)
        dead = [
            status
            for status in stored.undelivered("dead")
            if status.id.startswith(f"{conversation}#")
        ]
    by_id = {status.id: status for status in (*latest, *dead)}  # a dead one also has its text
    rows = [status for name, status in by_id.items() if not number or name == delivery]
    if not rows:
        fail(
            f"nothing is stored about {delivery!r}: it is more than a week or 50 replies ago, or no delivery at all"
        )
    lines = [_row(status, SHOW_WIDTH) for status in rows]
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
    with _opened(options) as (stored, _):
        new_id = stored.retry(delivery)
    options.print(
        {"delivery": delivery, "new_id": new_id}, [f"{delivery} waits again, as {new_id}"]
    )


@contextmanager
def _opened(options: Options) -> Iterator[tuple[RedisDeliveries, Callable[[], list[Alert]]]]:
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


def _row(status: DeliveryStatus, width: int = WIDTH) -> str:
    notes = [status.reason, f"“{status.text}”" if status.text else ""]
    notes += [
        "(asked for a yes)" if status.asks else "",
        "(may have arrived)" if status.doubtful else "",
    ]
    notes += [f"as #{status.receipt}" if status.state == "retried" else ""]
    text = "  ".join(one_line(note, width) for note in notes if note)
    return f"{utc_time(status.at)}  {status.id:34}  {status.state:9}  {status.tries:2} tries  {text}".rstrip()


@click.group(cls=SaysoGroup, examples=["sayso redis status", "sayso redis resume"])
def redis() -> None:
    """See whether Redis lost acknowledged writes, and continue after it did."""


@redis.command(examples=["sayso redis status", "sayso redis status --json"])
@pass_options
def status(options: Options) -> None:
    """Print whether Redis is halted, and what it lost. Exits with 1 when it is."""
    from sayso.infra.manual import manual
    from sayso.infra.redis.scripts import SHARDS
    from sayso.workers.data_loss.resume import backup_being_restored, halts_of
    from sayso.workers.data_loss.watermarks import HaltReason

    with clear_errors():
        settings = options.load()
        client = _checked_client(settings, options.data)
        halts = halts_of(client, prefix=settings.key_prefix)
        taken_at = backup_being_restored(client, prefix=settings.key_prefix)
    if taken_at:
        says = f"a restore of the backup of {utc_time(taken_at)} UTC has not ended, so a part of it is missing"
        cure = "run `sayso restore` again, with this or another backup. To give up, delete this bot's keys"
        options.print({"redis": says}, [f"redis: halted: {says}", cure])
        sys.exit(FINDING)
    if halts:
        halt = HaltReason.sum(halts.values())
    else:
        halt = None
    if 0 < len(halts) < SHARDS:
        part = f" ({len(halts)} of {SHARDS} shards)"
    else:
        part = ""
    lines = [f"redis: {f'halted{part}: {halt}' if halt else 'whole'}"]
    if halt:
        page = manual("how-to/redis-in-production.md", "what-resume-does")
        lines.append(
            f"`sayso redis resume` continues without what is missing: {page} says what that means"
        )
    options.print({"redis": str(halt) if halt else None}, lines)
    sys.exit(FINDING if halt else 0)


@redis.command(examples=["sayso redis resume"])
@pass_options
def resume(options: Options) -> None:
    """Continue with a Redis that lost writes, without using any number twice.

    It may be killed and run again.
    """
    from sayso.workers.data_loss.resume import is_restoring
    from sayso.workers.data_loss.resume import resume as resume_server

    settings = options.load()
    with clear_errors():
        client = _checked_client(settings, options.data)
        if is_restoring(client, prefix=settings.key_prefix):
            fail(
                "a restore of this Redis has not ended, so it holds a part of a backup: run `sayso restore` again"
            )
        result = resume_server(client, prefix=settings.key_prefix)
    options.print(
        {"redis": asdict(result) if result else None},
        [
            f"redis: goes on; {result.halt}. {resumed_parts(result)}"
            if result
            else "redis: not halted"
        ],
    )


def _checked_client(settings: Settings, data: Path) -> Redis:
    """Return a client of the Redis, compared with the watermark noted on this machine.

    After a restart of all processes no other may have compared it.
    Raises what `clear_errors` handles.
    """
    from sayso.config.wiring.redis_parts import RedisParts

    parts = RedisParts.find(settings, data)
    parts.guard_against_loss(settings.state_folder(data)).check_server()
    return parts.client


@click.command(cls=SaysoCommand, examples=["sayso migrate", "sayso migrate --apply"])
@click.option(
    "--apply", "is_real", is_flag=True, help="Do it. Without this option nothing is changed."
)
@pass_options
def migrate(options: Options, *, is_real: bool) -> None:
    """Show what an upgrade still has to change in stored data,
    and which versions of processes and records there are.

    Upgrade all processes first. After --apply older versions cannot be started on this Redis. It is
    refused while processes of another version run, and may be killed and run again.
    """
    from sayso.config.wiring.redis_parts import RedisParts
    from sayso.ops.server import migration

    settings = options.load()
    with clear_errors():
        client = RedisParts.find(settings, options.data).client
        try:
            state = (migration.migrate if is_real else migration.inspect)(
                client, settings.name, prefix=settings.key_prefix
            )
        except migration.OtherProcesses as exc:
            fail(str(exc))
    done = "done" if is_real else "would"
    steps = [f"{done}: {step}" for step in state.steps] or ["nothing to do"]
    if state.steps and not is_real:
        if state.layout == 1:
            unseen = "stop web processes of layout 1, which are not seen here, then "
        else:
            unseen = ""
        steps.append(f"nothing was changed: {unseen}add --apply")
    records = [
        {"kind": kind, "version": number, "count": n}
        for (kind, number), n in sorted(state.records.items())
    ]
    value = {"layout": state.layout, "steps": state.steps, "applied": is_real, "records": records}
    value |= {"workers": dict(state.workers), "ingress": dict(state.ingress)}
    options.print(value, [*migration.describe(state), *steps])
