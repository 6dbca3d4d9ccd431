"""The `sayso people` commands: list, approve, block, forget, erase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.config.refusals import clear_errors, fail, load
from sayso.config.rows import plain

if TYPE_CHECKING:  # as in config.cli: a command loads only what it needs
    from sayso.channels.admission import Rules
    from sayso.config.schema import Settings
    from sayso.workers.outbox import Outbox
    from sayso.workers.people import Book, Person, Register, Waiting

#: Characters of a name and of somebody's ids that `list` has room for.
WIDTH = 60

_config = click.option("--config", type=click.Path(path_type=Path), help="The YAML file.")
_data = click.option(
    "--data", type=click.Path(path_type=Path), envvar="SAYSO_DATA", default=Path(".sayso"), show_default=True,
    help="The folder of a running `sayso up`.",
)  # fmt: skip
_channel = click.argument("channel")
_who = click.argument("who", metavar="CODE_OR_ID")


@click.group()
def people() -> None:
    """Who may talk to the bot on a channel with `access`, beside those that the YAML names."""


@people.command("list")
@_channel
@_config
@_data
def list_(channel: str, config: Path | None, data: Path) -> None:
    """List whom operators approved or blocked on CHANNEL, and strangers who wait, with their codes."""
    with _opened(channel, config, data) as desk:
        waiting, known = desk.book.waiting(channel), desk.book.people(channel)
    for each in waiting:
        click.echo(_row("waiting", each, each.code))
    for person in known:
        click.echo(_row(person.state, person))
    if not (waiting or known):
        click.echo("nobody was approved or blocked, and nobody waits")


@people.command()
@_channel
@_who
@_config
@_data
def approve(channel: str, who: str, config: Path | None, data: Path) -> None:
    """Let somebody in on CHANNEL, by the CODE they were told or by ID. Who waited is told."""
    with _opened(channel, config, data) as desk:
        waited = desk.register.approve(channel, desk.name_of(who))
        told = bool(waited and desk.tell(waited))
    click.echo(f"{_named(waited, who)} may talk on {channel}{', and is told' if told else ''}")
    for remark in desk.remarks(who, waited):
        click.echo(f"({remark})")


@people.command()
@_channel
@_who
@_config
@_data
def block(channel: str, who: str, config: Path | None, data: Path) -> None:
    """Keep somebody out on CHANNEL, by CODE or ID. They are never told."""
    with _opened(channel, config, data) as desk:
        desk.register.block(channel, desk.name_of(who))
    click.echo(f"{plain(who, WIDTH)} is blocked on {channel}")


@people.command()
@_channel
@_who
@_config
@_data
def forget(channel: str, who: str, config: Path | None, data: Path) -> None:
    """Keep nothing of somebody on CHANNEL, by CODE or ID: neither approved nor blocked, and no code."""
    with _opened(channel, config, data) as desk:
        desk.register.forget(channel, desk.name_of(who))
    click.echo(f"nothing is kept of {plain(who, WIDTH)} on {channel}")


@people.command()
@_channel
@click.argument("user")
@_config
@_data
def erase(channel: str, user: str, config: Path | None, data: Path) -> None:
    """Erase what is kept of USER, as /whoami names them, on CHANNEL: history, actions, files, memories and timers."""
    from redis.exceptions import RedisError

    from sayso.config.data_folder import open_data
    from sayso.config.erasing import REMAINS, erase_person
    from sayso.workers.erasure import ErasureBusy

    settings = load(config, data)
    if channel not in settings.channels:
        fail(f"no channel {channel!r}; known: {', '.join(settings.channels)}")
    with clear_errors():
        try:
            erased = erase_person(settings, data, open_data(data), channel, user)
        except ErasureBusy as exc:
            fail(str(exc))
        except RedisError as exc:
            fail(f"Redis does not answer ({type(exc).__name__}): nothing is certain to be erased: run it again")
    click.echo(f"{plain(user, WIDTH)} is erased on {channel}:")
    click.echo(f"  {erased.in_redis:,} entries of Redis: history, turns, replies, actions, timers")
    click.echo(f"  {erased.audited:,} bodies of the audit ledger; the chain still verifies")
    click.echo(f"  {erased.texts:,} long texts, {erased.media:,} files, {erased.memories:,} notes and memories")
    if not erased.rewritten:
        fail("Redis did not finish rewriting its append-only file, which still holds what is gone: run BGREWRITEAOF")
    click.echo("Redis has rewritten its append-only file. What remains, and until when:")
    for line in REMAINS:
        click.echo(f"  {line}".format(channel=channel, user=plain(user, WIDTH)))


@dataclass(frozen=True, slots=True)
class _Desk:
    """What an operator works with on one channel."""

    rules: Rules
    book: Book
    register: Register
    outbox: Outbox

    def remarks(self, who: str, waited: Waiting | None) -> Iterator[str]:
        """Why letting somebody in changes nothing."""
        ids = waited.ids if waited else (self.name_of(who),)
        if not self.rules.block.isdisjoint(ids):
            yield "but stays out for as long as `block` of the configuration names them"
        elif self.rules.allow is None and not self.rules.pairing:
            yield "everybody may: its `access` has neither allow nor pairing"

    def name_of(self, who: str) -> str:
        """An id as the channel spells it; a code stays one."""
        from sayso.workers.people import looks_like_a_code

        name = who if looks_like_a_code(who) else self.rules.spelled(who)
        if not name:
            fail("give a code or an id, as `sayso people list` shows them")
        return name

    def tell(self, waited: Waiting) -> bool:
        """Say that they are let in, once for their code. Returns whether it will be said."""
        from sayso.channels.types import Delivery, Reply
        from sayso.pending.texts import speak

        reply = Reply(speak(waited.language).approved(), language=waited.language)
        return bool(self.outbox.forward(Delivery(f"people:{waited.code}", waited.conversation, reply)))


@contextmanager
def _opened(channel: str, config: Path | None, data: Path) -> Iterator[_Desk]:
    from redis.exceptions import RedisError

    from sayso.config.access import rules_of
    from sayso.config.bootstrap import open_people
    from sayso.workers.people import Register, TooManyPeople, UnknownPerson
    from sayso.workers.redis import Halted

    settings = load(config, data)
    _check(settings, channel)
    with clear_errors():
        book, outbox = open_people(settings, data)
    try:
        yield _Desk(rules_of(settings.channels[channel]), book, Register(book), outbox)
    except (Halted, UnknownPerson, TooManyPeople) as exc:
        fail(plain(str(exc), 300))
    except RedisError as exc:
        fail(f"Redis does not answer ({type(exc).__name__}): people are kept there")


def _check(settings: Settings, channel: str) -> None:
    """Whether anybody is asked who may talk there."""
    if channel not in settings.channels:
        fail(f"no channel {channel!r}; known: {', '.join(settings.channels)}")
    if settings.channels[channel].access is None:
        fail(f"everybody may talk on {channel}, and nobody is asked: add `access: {{}}` below channels.{channel}")


def _named(waited: Waiting | None, who: str) -> str:
    name = f"{waited.name} ({waited.ids[0]})" if waited and waited.name else waited.ids[0] if waited else who
    return plain(name, WIDTH)


def _row(state: str, who: Person | Waiting, code: str = "") -> str:
    words = plain(f"{who.name}  {' '.join(who.ids)}" if who.name else " ".join(who.ids), 2 * WIDTH)
    return f"{state:8}  {code:8}  {_age(time.time() - who.at):>5}  {words}"


def _age(seconds: float) -> str:
    """How long ago, in the largest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
