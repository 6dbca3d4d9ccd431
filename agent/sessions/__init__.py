"""Sessions: conversations that outlive their process."""

from agent.sessions.json_file import JsonFileSessionStore
from agent.sessions.memory import InMemorySessionStore
from agent.sessions.redis import RedisSessionStore
from agent.sessions.sqlite import SQLiteSessionStore
from agent.sessions.store import BrokenSession, SessionError, SessionMetadata, SessionStore, SessionStoreUnavailable

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
