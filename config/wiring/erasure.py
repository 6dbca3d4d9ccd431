"""Erase a person from every store of a bot: Redis, the audit ledger, files, texts and memories.

A person may have several ids on one channel, such as a phone number and an id of WhatsApp. What is
stored of them carries a *scope id* instead: a hash of such an id.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.memory.graph import SQLiteTripleStore, TripleStoreError
from sayso.channels.types import Conversation, Scope, owner_of
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import RELATIONSHIPS, knowledge_memory
from sayso.config.wiring.people import PeopleParts
from sayso.config.wiring.redis_parts import RedisParts
from sayso.config.wiring.stores import FileStores, local_texts
from sayso.infra.concurrency import run_without_loop
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.approvals.people import Account, account_name
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger
from sayso.workers.data_loss.notices import FOLDER as ACKNOWLEDGED
from sayso.workers.data_loss.notices import NoteFiles
from sayso.workers.erasure import ErasedPerson, Erasure


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """How much of a person was erased, by the kind of store."""

    #: Keys of Redis, and entries in them.
    redis_entries: int
    #: Personal parts of entries in the audit ledger.
    audit_bodies: int
    #: Long texts.
    texts: int
    #: Facts, notes and relationships that agents remembered.
    memories: int
    #: Files.
    media: int
    #: Whether Redis rewrote its append-only file in time. Before that, the file still has what was
    #: erased.
    is_rewritten: bool


def erase_person(
    settings: Settings, data: Path, keys: list[str], channel: str, user: str
) -> ErasureResult:
    """Erase a person from all stores. It may be run again.

    `keys` are the bot's secret keys. `user` is one id of the person on the channel, as the platform
    or `/whoami` spells it. Raises ErasureBusy, LedgerUnusable, redis.RedisError, and ConfigError
    where a disk or a bucket refuses.
    """
    redis = RedisParts.find(settings, data)
    erasure = Erasure(redis.client, settings.key_prefix)
    identities = redis.identities
    # All ids of the person, spelled as their turns are stored.
    ids = settings.channels[channel].user_ids(channel, user, identities)
    scope_ids = frozenset(_scope_id(each) for each in ids)
    conversations = frozenset(Conversation(channel, each).id for each in ids)
    redis_entries = erasure.erase(ErasedPerson(channel, scope_ids, conversations))
    redis_entries += run_without_loop(_erase_from_people(settings, redis, channel, ids))

    state_folder = settings.state_folder(data)
    ledger = AuditLedger(state_folder / LEDGER, EntrySigner(keys))
    audit_bodies = 0
    if ledger.path.exists():
        now_ms = round(time.time() * 1000)
        audit_bodies = sum(ledger.erase(each, at=now_ms) for each in ids)

    erase_notes(state_folder, ids, channel)
    files = 0
    with _disk_errors(data):
        for media in FileStores.open(settings, data, keys).all_media:
            files += sum(media.erase(owner_of(channel, each)) for each in ids)
    texts = erase_texts(settings, data, ids)
    memories = erase_memories(data, ids, channel)

    # Last: an erasure that failed before and is repeated finds all ids again.
    identities.forget(channel, ids[0])
    is_rewritten = erasure.rewrite_file()
    return ErasureResult(redis_entries, audit_bodies, texts, memories, files, is_rewritten)


async def _erase_from_people(
    settings: Settings, redis: RedisParts, channel: str, ids: Sequence[str]
) -> int:
    """Erase the links and the absence of a person, and return how many entries there were.

    Other accounts of the person stay, without this one. Colleagues who named the person as the one
    who decides for them stay away, and nobody decides for them.
    """
    people = PeopleParts.open(settings, redis, channels={})
    person = await people.directory.person_of(channel, ids)
    accounts = [Account(channel, each) for each in ids]
    names = [account_name(each) for each in accounts]
    erased = 0
    for account in accounts:
        erased += await people.links.erase(account)
    # The person may be away under the name that the YAML gives them.
    erased += await people.absences.end([*person.all_names, *names])
    return erased + await people.absences.forget_stand_in(names)


def erase_texts(settings: Settings | None, data: Path, users: Iterable[str]) -> int:
    """Erase the long texts of a person with these ids, and return how many there were.

    Without `settings` only the data folder is searched: they say whether there is a bucket. Raises
    ConfigError where the disk or the bucket refuses.
    """
    stores: tuple[TextFiles, ...] = (local_texts(data),)
    if settings:
        stores = FileStores.open(settings, data, ["no link is made"]).all_texts
    scope_ids = [_scope_id(user) for user in users]
    erased = 0
    with _disk_errors(data):
        for texts in stores:
            erased += sum(texts.erase(each) for each in scope_ids)
    return erased


def erase_notes(state: Path, users: Iterable[str], channel: str = "") -> int:
    """Erase this machine's notes about turns and actions of a person. Return how many there were.

    They are for the case that Redis loses acknowledged writes (`workers.data_loss.notices`).
    `state` is the bot's state folder. `channel` is "" for all channels. Raises ConfigError where
    the disk refuses.
    """
    with _disk_errors(state):
        return NoteFiles(state / ACKNOWLEDGED).erase(channel, [_scope_id(each) for each in users])


def erase_memories(data: Path, users: Iterable[str], channel: str = "") -> int:
    """Erase what agents remembered of a person, and return how many facts and relationships.

    `channel` is "" for all channels. Raises ConfigError where the disk refuses.
    """
    # Memories are stored by the channel and the scope id of their person, with a colon between.
    endings = tuple(f":{_scope_id(user)}" for user in users)
    beginning = f"{channel}:" if channel else ""

    def is_theirs(scope: str) -> bool:
        return scope.endswith(endings) and scope.startswith(beginning)

    with _disk_errors(data):
        facts = knowledge_memory(data).erase(is_theirs)
        relationships = SQLiteTripleStore(data / RELATIONSHIPS).erase(is_theirs)
    return facts + relationships


def _scope_id(user: str) -> str:
    """Return the id under which things of this user are stored, which hides the user's own id."""
    return Scope(user, Conversation("", "")).id


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Raise ConfigError, with its cure, for errors of a disk or a bucket."""
    try:
        yield
    except StoreUnavailable as exc:
        raise ConfigError([f"{exc.reason}: then run it again"]) from exc
    except (OSError, TripleStoreError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(
            [f"{folder}: {reason}: run it again as a user who may write there"]
        ) from exc
