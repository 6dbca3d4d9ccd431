"""Scope: whose the current run is, and so whose memory it reads and writes."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

from sayso.agent.tools.context import provided, tool_environment


def in_scope(scope: str) -> AbstractContextManager[str]:
    """What is remembered inside, also in tasks and threads started there, belongs to this scope."""
    return provided("memory_scope", scope)


def current_scope() -> str | None:
    """Return what `in_scope` was given. "" is a memory that belongs to nobody in particular; None outside of it."""
    return tool_environment().memory_scope


def named(scope: str) -> str:
    """The scope. Raises ValueError for an empty one, which would be everybody's."""
    if not scope:
        raise ValueError(f"scope={scope!r} is everybody's: name one, such as the id of a user and a conversation")
    return scope


def digest_of(scope: str) -> str:
    """A stable name for keys, logs and spans: 32 hex digits, nothing of the scope in clear."""
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:32]
