"""Erasing: what is kept of one person, in Redis and in the data folder, removed for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.memories import SQLiteTripleStore, TripleStoreError
from sayso.agent.text_files import FOLDER as TEXTS
from sayso.agent.text_files import TextFiles
from sayso.channels.media import LocalMediaStore
from sayso.channels.types import Conversation, Scope, owner_of
from sayso.config.access import rules_of
from sayso.config.bootstrap import find_redis, open_primaries
from sayso.config.outfit import RELATIONSHIPS, knowledge_in
from sayso.config.refusals import fail
from sayso.config.schema import Settings, WhatsAppSettings
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import Ledger
from sayso.pending.audit.signer import Signer
from sayso.workers.erasure import Erasure, Person
from sayso.workers.notebook import RedisNotebook
from sayso.workers.redis import connect

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
    primaries = open_primaries(settings, url, client)
    erasure = Erasure([client, *(primary.client for primary in primaries)], settings.key_prefix)
    names = _names_of(settings, channel, user, RedisNotebook(client, prefix=settings.key_prefix))
    scopes = frozenset(_scope_of(name) for name in names)
    in_redis = erasure.erase(Person(channel, scopes, frozenset(Conversation(channel, name).id for name in names)))
    ledger = Ledger(settings.state_folder(data) / LEDGER, Signer(keys))
    at = round(time.time() * 1000)
    audited = sum(ledger.erase(name, at=at) for name in names) if ledger.path.exists() else 0
    media = LocalMediaStore(data / "media", keys=keys, public_url="")
    with _disk(data):
        files = sum(media.erase(owner_of(channel, name)) for name in names)
    texts, memories = erase_texts(data, names), erase_memories(data, names, channel)
    return Erased(in_redis, audited, texts, memories, files, erasure.rewrite_files())


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


def _names_of(settings: Settings, channel: str, user: str, notes: RedisNotebook) -> tuple[str, ...]:
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
