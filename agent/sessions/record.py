"""SessionRecord: a conversation as it is kept, with its name and its times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from sayso.agent.memory import ConversationMemory
from sayso.agent.sessions.store import BrokenSession, SessionMetadata


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
