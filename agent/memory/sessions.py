"""Sessions: stored conversations of code that calls Agent directly.

An agent with a `session_store` and a `session_id` in its AgentConfig loads its conversation before
each run and saves it after. Conversations on a channel are **not** stored here: the history of a
chat is saved by `workers/lua/commit.lua` with everything else that its turn changes. A bot in YAML
has no sessions.

SessionStore is the interface of all stores. `session_backends.py` has the stores in files, SQLite
and Redis; InMemorySessionStore, here, is for tests. Session is the stored conversation as an agent
uses it.

SessionError
├── BrokenSession            the stored data is not a conversation of ours
└── SessionStoreUnavailable  the storage cannot be used
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, ClassVar, Protocol, Self

from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.observability.run_events import RunEvents
from sayso.infra.concurrency import call_in_thread

log = logging.getLogger(__name__)

#: What reading foreign data as a record or a conversation may raise.
_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, RecursionError)


class SessionError(Exception):
    """Base of the errors of session stores."""


class BrokenSession(SessionError):
    """Raised when the data stored under a session id is no conversation that this version reads.

    The data stays there until it is deleted.
    """


class SessionStoreUnavailable(SessionError):
    """Raised when the storage cannot be read or written at the moment."""


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """A stored session without its messages. Times are in Unix seconds."""

    session_id: str
    message_count: int
    created_at: float
    updated_at: float


#: A list of sessions. In the body of a class with a method `list`, the annotation `list[...]` would
#: mean that method, so these classes use this name.
Sessions = list[SessionMetadata]


class SessionStore(Protocol):
    """Stores each conversation as a whole under a session id, which may be any text.

    A namespace, such as a user or a bot, separates sessions: the same id in two namespaces is two
    sessions. None is a namespace too, and the one that agents use; the others are for programs that
    call a store themselves. A session that has expired counts as deleted. All methods block, are
    safe for threads and processes, and raise SessionError.
    """

    def save(
        self, session_id: str, memory: ConversationMemory, *, namespace: str | None = None
    ) -> None:
        """Replace the session by this conversation.

        Of two concurrent saves the last wins as a whole.
        """

    def load(self, session_id: str, *, namespace: str | None = None) -> ConversationMemory | None:
        """Return a copy of the conversation, or None if there is none."""

    def list(self, *, namespace: str | None = None) -> Sessions:
        """Return the sessions of a namespace, last changed first.

        Broken ones are logged and left out.
        """

    def delete(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Delete a session, also a broken one. Return whether there was one."""

    def exists(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Return whether there is a session."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key that a session is stored under: hex digits made from its namespace and id.

    So a session id never becomes part of a path or of a search pattern, and a phone number in it
    does not show in a listing.
    """

    session_id: str
    namespace: str | None = None

    @property
    def namespace_digest(self) -> str:
        """The namespace as 32 hex digits."""
        return _sha256([self.namespace])[:32]

    @property
    def digest(self) -> str:
        """Namespace and id as 64 hex digits."""
        return _sha256([self.namespace, self.session_id])


def _sha256(names: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One stored session. Times are in Unix seconds.

    `expires_at` is None for a session that does not expire. `memory` is the conversation as
    `ConversationMemory.to_dict` writes it.
    """

    session_id: str
    namespace: str | None
    created_at: float
    updated_at: float
    expires_at: float | None
    memory: Mapping[str, Any]

    @property
    def key(self) -> SessionKey:
        """The key that the record is stored under."""
        return SessionKey(self.session_id, self.namespace)

    @property
    def metadata(self) -> SessionMetadata:
        """The record without its messages."""
        return SessionMetadata(
            self.session_id, len(self.memory["messages"]), self.created_at, self.updated_at
        )

    def to_json(self) -> str:
        """Return the record as ASCII JSON, which preserves lone surrogates.

        Raise BrokenSession if the conversation contains data that JSON cannot hold.
        """
        try:
            return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})
        except (TypeError, ValueError, RecursionError) as exc:
            raise BrokenSession(
                f"session {self.session_id!r} cannot be kept: {exc}; "
                "leave only JSON-ready data in its notes and calls"
            ) from exc

    @classmethod
    def from_json(cls, text: str, digest: str) -> Self:
        """Return the record that `to_json` wrote for the session with this digest.

        Raise KeyError, ValueError, TypeError or RecursionError for anything else.
        """
        record = cls(**json.loads(text))
        times = [record.created_at, record.updated_at]
        if record.expires_at is not None:
            times.append(record.expires_at)
        if not all(isinstance(each, int | float) and abs(each) < math.inf for each in times):
            raise TypeError("its times are no numbers")
        if not isinstance(record.memory, dict) or not isinstance(record.memory["messages"], list):
            raise TypeError("it has no messages")
        if record.key.digest != digest:
            raise ValueError("it is another session's")
        return record


class KeyValueSessions(ABC):
    """Base of session stores on a key-value storage.

    A subclass reads and writes texts, each as a whole. This class makes records of them, lets
    sessions expire, and translates errors.

    `default_ttl` is how long a session lives after its last save, in seconds above 0, or None for
    sessions that do not expire. Raises ValueError for other values. `clock` returns Unix seconds.
    """

    #: The errors which mean that the storage cannot be used at the moment.
    storage_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(
        self, default_ttl: float | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        if default_ttl is not None and not 0 < default_ttl < math.inf:
            raise ValueError(
                f"default_ttl={default_ttl!r} is no time to live: "
                "use seconds above 0, or None to keep for ever"
            )
        self._ttl = default_ttl
        self._clock = clock

    def save(
        self, session_id: str, memory: ConversationMemory, *, namespace: str | None = None
    ) -> None:
        """Replace the session by this conversation.

        Of two concurrent saves the last wins as a whole. Raise SessionError, also for a broken
        session, which is not overwritten.
        """
        key = SessionKey(session_id, namespace)
        now = self._clock()
        previous = self._load_record(key)
        expires_at = None
        if self._ttl is not None:
            expires_at = now + self._ttl
        record = SessionRecord(
            session_id=session_id,
            namespace=namespace,
            created_at=previous.created_at if previous else now,
            updated_at=now,
            expires_at=expires_at,
            memory=memory.to_dict(),
        )
        text = record.to_json()
        with self._translated_errors(key):
            self._save_text(key, text, self._ttl)

    def load(self, session_id: str, *, namespace: str | None = None) -> ConversationMemory | None:
        """Return a copy of the conversation, or None if there is none. Raise SessionError."""
        key = SessionKey(session_id, namespace)
        record = self._load_record(key)
        if record is None:
            return None
        try:
            return ConversationMemory.from_dict(record.memory)
        except _UNREADABLE as exc:
            raise _broken(key) from exc

    def list(self, *, namespace: str | None = None) -> Sessions:
        """Return the sessions of a namespace, last changed first.

        Broken ones are logged and left out. Raise SessionError.
        """
        namespace_digest = SessionKey("", namespace).namespace_digest
        with self._translated_errors(None):
            texts = [*self._list_texts(namespace_digest)]

        sessions = []
        for digest, text in texts:
            try:
                record = SessionRecord.from_json(text, digest)
            except _UNREADABLE as exc:
                log.warning("sessions.broken name=%s reason=%s", digest, type(exc).__name__)
                continue
            if self._unless_expired(record, text):
                sessions.append(record.metadata)
        return sorted(sessions, key=lambda data: data.updated_at, reverse=True)

    def delete(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Delete a session, also a broken one. Return whether there was one. Raise SessionError."""
        key = SessionKey(session_id, namespace)
        try:
            exists = self._load_record(key) is not None
        except BrokenSession:
            exists = True
        # Also if there was none: another process may have saved one since.
        with self._translated_errors(key):
            is_deleted = self._delete_text(key)
        return exists and is_deleted

    def exists(self, session_id: str, *, namespace: str | None = None) -> bool:
        """Return whether there is a session. Raise SessionError."""
        return self._load_record(SessionKey(session_id, namespace)) is not None

    @abstractmethod
    def _load_text(self, key: SessionKey) -> str | None:
        """Return the stored text, or None if there is none.

        Raise ValueError or TypeError if the stored data is no text: the session is broken then.
        """

    @abstractmethod
    def _save_text(self, key: SessionKey, text: str, ttl: float | None) -> None:
        """Write the text. It may be removed after `ttl` seconds."""

    @abstractmethod
    def _delete_text(self, key: SessionKey) -> bool:
        """Remove whatever is stored under the key. Return whether there was anything."""

    @abstractmethod
    def _delete_if_unchanged(self, key: SessionKey, text: str) -> None:
        """Remove the stored text if it still is `text`: another process may have replaced it."""

    @abstractmethod
    def _list_texts(self, namespace_digest: str) -> Iterable[tuple[str, str]]:
        """Return the digest and the stored text of each session in a namespace.

        The text is "" where the stored data is no text.
        """

    @contextmanager
    def _translated_errors(self, key: SessionKey | None) -> Iterator[None]:
        """Raise errors of the storage as SessionStoreUnavailable. The key is None while listing."""
        try:
            yield
        except self.storage_errors as exc:
            what = "the list of sessions"
            if key:
                what = f"session {key.session_id!r}"
            raise SessionStoreUnavailable(
                f"{what} cannot be read or written in {self._place_and_cure(exc)}"
            ) from exc

    def _place_and_cure(self, error: Exception) -> str:
        """Return the place of the storage, its error, and what to do about it.

        A subclass that sets `storage_errors` overrides this method.
        """
        return f"this store: {error}"

    def _load_record(self, key: SessionKey) -> SessionRecord | None:
        """Return the stored record, if there is one that has not expired. Raise SessionError."""
        try:
            with self._translated_errors(key):
                text = self._load_text(key)
        except (ValueError, TypeError) as exc:
            raise _broken(key) from exc
        if text is None:
            return None

        try:
            record = SessionRecord.from_json(text, key.digest)
        except _UNREADABLE as exc:
            raise _broken(key) from exc
        return self._unless_expired(record, text)

    def _unless_expired(self, record: SessionRecord, text: str) -> SessionRecord | None:
        """Return the record, or remove it and return None if it has expired.

        `text` is what was read: a newer record that replaced it meanwhile is not removed.
        """
        if record.expires_at is None or self._clock() < record.expires_at:
            return record
        with self._translated_errors(record.key):
            self._delete_if_unchanged(record.key, text)
        return None


def _broken(key: SessionKey) -> BrokenSession:
    namespace = ""
    if key.namespace is not None:
        namespace = f" of namespace {key.namespace!r}"
    return BrokenSession(
        f"what is kept as session {key.session_id!r}{namespace} is no conversation of ours, "
        "and stays as it is: restore it from a backup, or delete the session to begin anew"
    )


class InMemorySessionStore(KeyValueSessions):
    """Keeps sessions in this process: for tests, and for conversations that may end with it."""

    def __init__(
        self, default_ttl: float | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(default_ttl, clock=clock)
        self._sessions: dict[SessionKey, str] = {}
        self._lock = Lock()

    def _load_text(self, key: SessionKey) -> str | None:
        return self._sessions.get(key)

    def _save_text(self, key: SessionKey, text: str, ttl: float | None) -> None:
        with self._lock:
            self._sessions[key] = text

    def _delete_text(self, key: SessionKey) -> bool:
        with self._lock:
            return self._sessions.pop(key, None) is not None

    def _delete_if_unchanged(self, key: SessionKey, text: str) -> None:
        with self._lock:
            if self._sessions.get(key) == text:
                del self._sessions[key]

    def _list_texts(self, namespace_digest: str) -> list[tuple[str, str]]:
        with self._lock:
            sessions = list(self._sessions.items())
        return [
            (key.digest, text) for key, text in sessions if key.namespace_digest == namespace_digest
        ]


class Session:
    """The stored conversation of one agent. Thread-safe. Lives as long as the agent.

    Each run of the agent is a block of `counted_run`. At its beginning it loads the conversation,
    and later it saves it, perhaps several times. Concurrent runs share one conversation, so the
    messages of none are lost. What another process saves during a run is overwritten.
    """

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store = store
        self._id = session_id
        #: How many runs are under way.
        self._runs = 0
        #: The conversation that the current runs share; None until one of them reads it.
        self._shared: ConversationMemory | None = None
        #: The conversation that was last read from the store or written to it. If the agent still
        #: has this object and the store has nothing, the session was deleted or has expired. So
        #: `delete` leaves it as it is.
        self._stored: ConversationMemory | None = None
        #: Guards `_runs`. It is never held during a call to the store, which may block for long.
        self._count_lock = Lock()
        #: Held during calls to the store, in a thread, so that of several runs that begin at once
        #: only one reads the store. Guards `_stored`, and `_shared` while runs are under way.
        self._store_lock = Lock()

    @contextmanager
    def counted_run(self) -> Iterator[None]:
        """Count a run while the block lasts.

        If no other run is under way, the first `load` of the block reads the store. Otherwise it
        returns the conversation of the other runs.
        """
        with self._count_lock:
            if not self._runs:
                self._shared = None
            self._runs += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._runs -= 1

    async def load(
        self, memory: ConversationMemory | None, events: RunEvents
    ) -> ConversationMemory:
        """Return the stored conversation, within the limits of `memory`. Raises SessionError.

        If none is stored, return `memory`, or a new conversation if that is None. But if `memory`
        itself came from the store, it was deleted there or has expired: then return an empty
        conversation with its limits.

        The trace and the observers (`events`) are told if the conversation was read from the store.
        """
        shared, is_read = await call_in_thread(self._read, memory)
        if is_read:
            count = len(shared.get_history())
            events.note("session_load", summary=f"{count} messages")
            await events.tell("session_load", self._id, count)
        return shared

    async def save(self, memory: ConversationMemory, events: RunEvents) -> None:
        """Save the conversation. A failure is logged and traced, but not raised.

        The answer exists and its tools have run; an exception might make the caller ask for the
        same again. But the next run reads the store, so it does not know this conversation's latest
        messages.
        """
        try:
            await call_in_thread(self._write, memory)
        except Exception as exc:  # a store may raise anything
            # The text may contain user ids.
            log.error("session.not_saved", extra={"reason": type(exc).__name__})
            events.note("error", error=f"session not saved: {type(exc).__name__}")
            return
        count = len(memory.get_history())
        events.note("session_save", summary=f"{count} messages")
        await events.tell("session_save", self._id, count)

    def delete(self) -> None:
        """Delete the stored conversation. Blocks. Raises SessionError."""
        with self._store_lock:
            self._store.delete(self._id)
            self._shared = None

    def _read(self, memory: ConversationMemory | None) -> tuple[ConversationMemory, bool]:
        """Return the conversation, and whether it was read from the store."""
        with self._store_lock:
            if self._shared is not None:
                return self._shared, False

            loaded = self._store.load(self._id)
            if loaded is not None:
                if memory:
                    loaded = loaded.with_limits(memory.max_messages, memory.max_tokens)
                self._stored = loaded
                self._shared = loaded
                return loaded, True

            if memory is None:
                self._shared = ConversationMemory()
            elif memory is self._stored:  # it was deleted from the store, or has expired
                self._shared = ConversationMemory(memory.max_messages, memory.max_tokens)
            else:
                self._shared = memory
            return self._shared, False

    def _write(self, memory: ConversationMemory) -> None:
        """Save the conversation under the lock, so that the last writer has seen all runs."""
        with self._store_lock:
            self._store.save(self._id, memory)
            self._stored = memory
