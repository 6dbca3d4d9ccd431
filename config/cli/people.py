"""People."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sayso.agent.channel.long_texts import FOLDER as TEXTS
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.memory.graph import SQLiteTripleStore, TripleStoreError
from sayso.channels.media import LocalMediaStore
from sayso.channels.types import Conversation, Scope, owner_of
from sayso.config.cli.output import clear_errors, fail, load, plain
from sayso.config.settings.channels import WhatsAppSettings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import rules_of
from sayso.config.wiring.agents import RELATIONSHIPS, knowledge_in
from sayso.config.wiring.redis import find_redis
from sayso.pending.audit.entry import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.redis.client import connect
from sayso.workers.alerts import RedisSharedCache
from sayso.workers.erasure import ErasedPerson, Erasure

if TYPE_CHECKING:
    from sayso.config.settings.schema import Settings
    from sayso.workers.access.people import AccessList, ListedPerson, Register, Waiting
    from sayso.workers.access.rules import AccessRules
    from sayso.workers.outbox import Outbox


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

    from sayso.config.settings.secrets import open_data
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

    rules: AccessRules
    book: AccessList
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
        from sayso.workers.access.people import looks_like_a_code

        name = who if looks_like_a_code(who) else self.rules.spelled(who)
        if not name:
            fail("give a code or an id, as `sayso people list` shows them")
        return name

    def tell(self, waited: Waiting) -> bool:
        """Say that they are let in, once for their code. Returns whether it will be said."""
        from sayso.channels.i18n.texts import texts_for
        from sayso.channels.types import Delivery, Reply

        reply = Reply(texts_for(waited.language).approved(), language=waited.language)
        return bool(self.outbox.forward(Delivery(f"people:{waited.code}", waited.conversation, reply)))


@contextmanager
def _opened(channel: str, config: Path | None, data: Path) -> Iterator[_Desk]:
    from redis.exceptions import RedisError

    from sayso.config.wiring.access import rules_of
    from sayso.config.wiring.bootstrap import open_people
    from sayso.pending.redis.scripts import Halted
    from sayso.workers.access.people import Register, TooManyPeople, UnknownPerson

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


def _row(state: str, who: ListedPerson | Waiting, code: str = "") -> str:
    words = plain(f"{who.name}  {' '.join(who.ids)}" if who.name else " ".join(who.ids), 2 * WIDTH)
    return f"{state:8}  {code:8}  {_age(time.time() - who.at):>5}  {words}"


def _age(seconds: float) -> str:
    """How long ago, in the largest unit of which there are two."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


#: What stays, and until when, for whoever asked for the erasure.
REMAINS = (
    "that actions took place, when and how they ended, without who and what: in the audit ledger, for ever",
    "ids of their messages: 72 hours; digests of their ids: counters in lanes for 30 days, of spent tokens for 2 days",
    "what others of a group were answered or said of them: 30 days after the last message there",
    "cached answers of models, where `agent.cache` is on: until their ttl",
    "whether they may talk (`access`): until `sayso people forget {channel} {user}`; that they wait for it: 1 hour",
    "files they sent that another person sent too: 7 days after those were sent",
    "what the spool holds, where it is on: until Redis took it",
    "what your own tools and code, logs, replicas, RDB files, backups and the platform keep: see there",
)


@dataclass(frozen=True, slots=True)
class Erased:
    """How much was erased of a person, and whether Redis rewrote its append-only file in time."""

    in_redis: int
    audited: int
    texts: int
    memories: int
    media: int
    rewritten: bool


def erase_person(settings: Settings, data: Path, keys: list[str], channel: str, user: str) -> Erased:
    """Erase a person. Raises ErasureBusy, LedgerUnusable and redis.RedisError; exits where a disk refuses."""
    url = find_redis(settings, data)
    client = connect(url)
    erasure = Erasure(client, settings.key_prefix)
    names = _names_of(settings, channel, user, RedisSharedCache(client, prefix=settings.key_prefix))
    scopes = frozenset(_scope_of(name) for name in names)
    in_redis = erasure.erase(ErasedPerson(channel, scopes, frozenset(Conversation(channel, name).id for name in names)))
    ledger = AuditLedger(settings.state_folder(data) / LEDGER, EntrySigner(keys))
    at = round(time.time() * 1000)
    audited = sum(ledger.erase(name, at=at) for name in names) if ledger.path.exists() else 0
    media = LocalMediaStore(data / "media", keys=keys, public_url="")
    with _disk(data):
        files = sum(media.erase(owner_of(channel, name)) for name in names)
    texts, memories = erase_texts(data, names), erase_memories(data, names, channel)
    return Erased(in_redis, audited, texts, memories, files, erasure.rewrite_file())


def erase_texts(data: Path, users: Iterable[str]) -> int:
    """Remove long texts of a person who is known by these ids. Returns how many."""
    with _disk(data / TEXTS):
        return sum(TextFiles(data / TEXTS).erase(_scope_of(user)) for user in users)


def erase_memories(data: Path, users: Iterable[str], channel: str = "") -> int:
    """Remove facts, notes and relationships of a person, of one channel where it is named. Returns how many."""
    owners = tuple(f":{_scope_of(user)}" for user in users)
    begins = f"{channel}:" if channel else ""

    def is_theirs(scope: str) -> bool:
        return scope.endswith(owners) and scope.startswith(begins)

    with _disk(data):
        return knowledge_in(data).erase(is_theirs) + SQLiteTripleStore(data / RELATIONSHIPS).erase(is_theirs)


def _names_of(settings: Settings, channel: str, user: str, notes: RedisSharedCache) -> tuple[str, ...]:
    """The ids that turns of a person carry: on WhatsApp with and without `whatsapp:`, and the one noted of a number."""
    given = settings.channels[channel]
    if not isinstance(given, WhatsAppSettings):
        return (user,)
    number = rules_of(given).spelled(user)
    address = f"whatsapp:{number}"
    noted = notes.get(f"person:{Conversation(channel, address).id}") or ""
    return tuple(dict.fromkeys(name for name in (user, address, number, noted) if name))


def _scope_of(user: str) -> str:
    return Scope(user, Conversation("", "")).id


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, TripleStoreError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        fail(f"{folder}: {reason}: run it again as who may write there")
