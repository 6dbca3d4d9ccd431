"""Sessions: conversations that outlive their process."""

from sayso.agent.sessions.json_file import JsonFileSessionStore
from sayso.agent.sessions.memory import InMemorySessionStore
from sayso.agent.sessions.redis import RedisSessionStore
from sayso.agent.sessions.sqlite import SQLiteSessionStore
from sayso.agent.sessions.store import (
    BrokenSession,
    SessionError,
    SessionMetadata,
    SessionStore,
    SessionStoreUnavailable,
)

__all__ = [
    "BrokenSession",
    "InMemorySessionStore",
    "JsonFileSessionStore",
    "RedisSessionStore",
    "SQLiteSessionStore",
    "SessionError",
    "SessionMetadata",
    "SessionStore",
    "SessionStoreUnavailable",
]
