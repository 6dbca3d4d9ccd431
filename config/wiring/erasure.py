"""The erasure of a person from every store of a bot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.memory.graph import SQLiteTripleStore, TripleStoreError
from sayso.channels.types import Conversation, Scope, owner_of
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import RELATIONSHIPS, knowledge_memory
from sayso.config.wiring.redis_parts import RedisParts
from sayso.config.wiring.stores import FileStores, local_texts
from sayso.infra.storage.objects import StoreUnavailable
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger
from sayso.workers.data_loss.notices import FOLDER as ACKNOWLEDGED
from sayso.workers.data_loss.notices import NoteFiles
from sayso.workers.erasure import ErasedPerson, Erasure


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """The number of things erased of a person, and whether Redis
    rewrote its append-only file in time.
    """

    redis_entries: int
    audit_bodies: int
    texts: int
    memories: int
    media: int
    is_rewritten: bool


def erase_person(
    settings: Settings, data: Path, keys: list[str], channel: str, user: str
) -> ErasureResult:
    """Erase a person from all stores. Running it again is safe.

    Raises ErasureBusy, LedgerUnusable, redis.RedisError, and ConfigError where a disk refuses.
    """
    redis = RedisParts.find(settings, data)
    erasure = Erasure(redis.client, settings.key_prefix)
    identities = redis.identities
    # As turns of the person are stored.
    ids = settings.channels[channel].user_ids(channel, user, identities)
    conversations = frozenset(Conversation(channel, each).id for each in ids)
    redis_entries = erasure.erase(
        ErasedPerson(channel, frozenset(map(_scope_id, ids)), conversations)
    )
    ledger = AuditLedger(settings.state_folder(data) / LEDGER, EntrySigner(keys))
    now_ms = round(time.time() * 1000)
    if ledger.path.exists():
        audit_bodies = sum(ledger.erase(each, at=now_ms) for each in ids)
    else:
        audit_bodies = 0
    erase_notes(settings.state_folder(data), ids, channel)
    stores = FileStores.open(settings, data, keys).all_media
    with _disk_errors(data):
        files = sum(media.erase(owner_of(channel, each)) for media in stores for each in ids)
    texts = erase_texts(settings, data, ids)
    memories = erase_memories(data, ids, channel)
    identities.forget(channel, ids[0])  # last: an erasure that is repeated finds all ids again
    return ErasureResult(
        redis_entries, audit_bodies, texts, memories, files, erasure.rewrite_file()
    )


def erase_texts(settings: Settings | None, data: Path, users: Iterable[str]) -> int:
    """Erase the long texts of a person with these ids, without settings those in the data folder.

    Return how many.

    Raises ConfigError where the disk or the bucket refuses.
    """
    if settings:
        stores = FileStores.open(settings, data, ["no link is made"]).all_texts
    else:
        stores = (local_texts(data),)
    ids = [_scope_id(user) for user in users]
    with _disk_errors(data):
        return sum(texts.erase(each) for texts in stores for each in ids)


def erase_notes(state: Path, users: Iterable[str], channel: str = "") -> int:
    """Erase the notes of this machine about acknowledged turns and actions of a person,
    on one channel if it is given.

    Return how many notes. Raises ConfigError where the disk refuses.
    """
    with _disk_errors(state):
        return NoteFiles(state / ACKNOWLEDGED).erase(channel, [_scope_id(each) for each in users])


def erase_memories(data: Path, users: Iterable[str], channel: str = "") -> int:
    """Erase facts, notes and relationships of a person, on one channel where it is given.

    Return their number.

    Raises ConfigError where the disk refuses.
    """
    endings = tuple(f":{_scope_id(user)}" for user in users)
    beginning = f"{channel}:" if channel else ""

    def is_theirs(scope: str) -> bool:
        return scope.endswith(endings) and scope.startswith(beginning)

    with _disk_errors(data):
        return knowledge_memory(data).erase(is_theirs) + SQLiteTripleStore(
            data / RELATIONSHIPS
        ).erase(is_theirs)


def _scope_id(user: str) -> str:
    return Scope(user, Conversation("", "")).id


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as exc:
        raise ConfigError([f"{exc.reason}: then run it again"]) from exc
    except (OSError, TripleStoreError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(
            [f"{folder}: {reason}: run it again as a user who may write there"]
        ) from exc
