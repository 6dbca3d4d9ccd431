"""SessionStore, record, memory."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, Protocol, Self

from sayso.agent.memory.conversation import ConversationMemory


class SessionError(Exception):
    """Base of why a session cannot be read or kept."""


class BrokenSession(SessionError):
    """Raised when what is kept under a name is no conversation of ours. It stays there until somebody deletes it."""


class SessionStoreUnavailable(SessionError):
    """Raised when what keeps the sessions cannot be used just now."""


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """A kept session, without what was said. Times are in Unix seconds."""

    session_id: str
    message_count: int
    created_at: float
    updated_at: float


#: For annotations of classes whose own `list` hides the type's name.
Sessions = list[SessionMetadata]


class SessionStore(Protocol):
    """Keeps each conversation whole under an id, which may be any text. Blocks; safe from any thread and process.

    A namespace is a room of its own, as for one person or one bot: the same id in two of them is two sessions. What has
    expired is not there. Each method raises SessionError.
    """

    def save(self, session_id: str, memory: ConversationMemory, *, namespace: str | None = None) -> None:
        """Keep the conversation in place of what was there; of two at once the last one wins, whole."""

    def load(self, session_id: str, *, namespace: str | None = None) -> ConversationMemory | None:
        """The conversation, the caller's own; None where there is none."""

    def list(self, *, namespace: str | None = None) -> Sessions:
        """What is kept in the namespace, latest change first. What is broken is left out, and logged."""

    def delete(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Remove what is kept, also if it is broken. Whether there was a session."""

    def exists(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Whether there is a session."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What a session is found by, in hex digits only: `shelf` is its namespace, `name` the session in it.

    No id is a part of a path or a pattern, and no phone number in it shows in a listing.
    """

    session_id: str
    namespace: str | None = None

    @property
    def shelf(self) -> str:
        """The namespace as 32 hex digits."""
        return _digest([self.namespace])[:32]

    @property
    def name(self) -> str:
        """Namespace and id as 64 hex digits."""
        return _digest([self.namespace, self.session_id])


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One kept session. Times are in Unix seconds; `expires_at` is None for one that stays."""

    session_id: str
    namespace: str | None
    created_at: float
    updated_at: float
    expires_at: float | None
    memory: Mapping[str, Any]

    @property
    def key(self) -> SessionKey:
        """What it is found by."""
        return SessionKey(self.session_id, self.namespace)

    @property
    def metadata(self) -> SessionMetadata:
        """What a listing shows of it."""
        return SessionMetadata(self.session_id, len(self.memory["messages"]), self.created_at, self.updated_at)

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and self.expires_at <= now

    def to_json(self) -> str:
        """The record as ASCII, in which half surrogates survive. Raises BrokenSession for what JSON cannot hold."""
        try:
            return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})
        except (TypeError, ValueError, RecursionError) as exc:
            raise BrokenSession(
                f"session {self.session_id!r} cannot be kept: {exc}; leave only JSON-ready data in its notes and calls"
            ) from exc

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record that `to_json` wrote. Raises KeyError, ValueError, TypeError or RecursionError for all else."""
        record = cls(**json.loads(text))
        _check(record)
        return record

    def recalled(self) -> ConversationMemory:
        """The conversation. Raises KeyError, ValueError, TypeError or AttributeError if it is none."""
        return ConversationMemory.from_dict(self.memory)


def _check(record: SessionRecord) -> None:
    times = (record.created_at, record.updated_at, record.expires_at or 0.0)
    if not all(isinstance(at, int | float) for at in times):
        raise TypeError("its times are no numbers")
    if not isinstance(record.memory, dict) or not isinstance(record.memory["messages"], list):
        raise TypeError("it has no messages")


def _digest(names: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


log = logging.getLogger(__name__)


#: What reading something foreign as a record or a conversation may raise.
_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, RecursionError)


class KeyValueSessions(ABC):
    """A session store; who inherits keeps the texts. Each text is replaced as a whole, and read as a whole.

    `default_ttl` is in seconds from the last save, None for sessions that stay; `clock` tells Unix seconds.
    """

    def __init__(self, default_ttl: float | None = None, *, clock: Callable[[], float] = time.time) -> None:
        if default_ttl is not None and default_ttl <= 0:
            raise ValueError(
                f"default_ttl={default_ttl!r} keeps nothing: use seconds above 0, or None to keep for ever"
            )
        self._ttl = default_ttl
        self._clock = clock

    def save(self, session_id: str, memory: ConversationMemory, *, namespace: str | None = None) -> None:
        """Keep the conversation in place of what was there; of two at once the last one wins, whole.

        Raises SessionError, also where something broken is kept: it is not written over.
        """
        key, now = SessionKey(session_id, namespace), self._clock()
        before = self._record(key)
        expires_at = None if self._ttl is None else now + self._ttl
        created_at = before.created_at if before else now
        record = SessionRecord(session_id, namespace, created_at, now, expires_at, memory.to_dict())
        text = record.to_json()
        with self._guarded(key):
            self._put(key, text, self._ttl)

    def load(self, session_id: str, *, namespace: str | None = None) -> ConversationMemory | None:
        """The conversation, the caller's own; None where there is none. Raises SessionError."""
        key = SessionKey(session_id, namespace)
        record = self._record(key)
        if record is None:
            return None
        try:
            return record.recalled()
        except _UNREADABLE as exc:
            raise _broken(key) from exc

    def list(self, *, namespace: str | None = None) -> Sessions:
        """What is kept in the namespace, latest change first. What is broken is left out, and logged.

        Raises SessionError.
        """
        shelf = SessionKey("", namespace).shelf
        with self._guarded(None):
            texts = [*self._texts(shelf)]
        found = [data for name, text in texts if (data := self._listed(shelf, name, text))]
        return sorted(found, key=lambda data: data.updated_at, reverse=True)

    def delete(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Remove what is kept, also if it is broken. Whether there was a session. Raises SessionError."""
        key = SessionKey(session_id, namespace)
        try:
            is_there = self._record(key) is not None
        except BrokenSession:
            is_there = True
        with self._guarded(key):
            return self._remove(key) and is_there

    def exists(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Whether there is a session. Raises SessionError."""
        return self._record(SessionKey(session_id, namespace)) is not None

    @abstractmethod
    def _get(self, key: SessionKey) -> str | None:
        """The text, None if there is none. Raises ValueError if it is no text."""

    @abstractmethod
    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        """Keep the text in place of what was there; it may vanish after `ttl` seconds."""

    @abstractmethod
    def _remove(self, key: SessionKey) -> bool:
        """Remove whatever is there. Whether there was anything."""

    @abstractmethod
    def _remove_if(self, key: SessionKey, text: str) -> None:
        """Remove the text, unless another one has taken its place."""

    @abstractmethod
    def _texts(self, shelf: str) -> Iterable[tuple[str, str]]:
        """All names of a shelf with their texts, "" for what is no text."""

    def _guarded(self, key: SessionKey | None) -> AbstractContextManager[None]:
        """Turns what the medium raises into SessionStoreUnavailable; the key is None for a whole shelf."""
        return nullcontext()

    def _record(self, key: SessionKey) -> SessionRecord | None:
        """What is kept, if it has not expired; else it goes. Raises SessionError."""
        try:
            with self._guarded(key):
                text = self._get(key)
            record = None if text is None else SessionRecord.from_json(text)
        except _UNREADABLE as exc:
            raise _broken(key) from exc
        if record is None or text is None:
            return None
        if record.key != key:
            raise _broken(key)
        return self._unexpired(record, text)

    def _listed(self, shelf: str, name: str, text: str) -> SessionMetadata | None:
        try:
            record = SessionRecord.from_json(text)
            if (record.key.shelf, record.key.name) != (shelf, name):
                raise ValueError("it is another session's")
        except _UNREADABLE as exc:
            log.warning("sessions.broken name=%s reason=%s", name, type(exc).__name__)
            return None
        live = self._unexpired(record, text)
        return live.metadata if live else None

    def _unexpired(self, record: SessionRecord, text: str) -> SessionRecord | None:
        if not record.is_over(self._clock()):
            return record
        with self._guarded(record.key):
            self._remove_if(record.key, text)
        return None


def _broken(key: SessionKey) -> BrokenSession:
    where = f" of namespace {key.namespace!r}" if key.namespace is not None else ""
    return BrokenSession(
        f"what is kept as session {key.session_id!r}{where} is no conversation of ours, and stays as it is: restore it "
        "from a backup, or delete the session to begin anew"
    )


class InMemorySessionStore(KeyValueSessions):
    """For tests, and for one process whose conversations may end with it. It keeps texts, as the others do."""

    def __init__(self, default_ttl: float | None = None, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(default_ttl, clock=clock)
        self._shelves: dict[str, dict[str, str]] = {}
        self._lock = Lock()

    def _get(self, key: SessionKey) -> str | None:
        with self._lock:
            return self._shelves.get(key.shelf, {}).get(key.name)

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        with self._lock:
            self._shelves.setdefault(key.shelf, {})[key.name] = text

    def _remove(self, key: SessionKey) -> bool:
        with self._lock:
            return self._shelves.get(key.shelf, {}).pop(key.name, None) is not None

    def _remove_if(self, key: SessionKey, text: str) -> None:
        with self._lock:
            shelf = self._shelves.get(key.shelf, {})
            if shelf.get(key.name) == text:
                del shelf[key.name]

    def _texts(self, shelf: str) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._shelves.get(shelf, {}).items())
