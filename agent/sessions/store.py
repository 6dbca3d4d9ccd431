"""SessionStore: where conversations are kept by name between runs and restarts.

SessionError
├── BrokenSession              what is kept there, or was to be kept, is no conversation
└── SessionStoreUnavailable    the disk, database or server refused, or gave no answer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sayso.agent.memory import ConversationMemory


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
