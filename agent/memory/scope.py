"""Scope: whose the current run is, and so whose memory it reads and writes."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from contextvars import ContextVar

from sayso.pending.concurrency import installed

#: What `in_scope` was given. "" is a memory that is nobody's in particular; None: nobody has said whose run this is.
memory_scope: ContextVar[str | None] = ContextVar("sayso_memory_scope", default=None)


def in_scope(scope: str) -> AbstractContextManager[str]:
    """What is remembered inside, also in tasks and threads started there, belongs to this scope."""
    return installed(memory_scope, scope)


def named(scope: str) -> str:
    """The scope. Raises ValueError for an empty one, which would be everybody's."""
    if not scope:
        raise ValueError(f"scope={scope!r} is everybody's: name one, such as the id of a user and a conversation")
    return scope


def digest_of(scope: str) -> str:
    """A stable name for keys, logs and spans: 32 hex digits, nothing of the scope in clear."""
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:32]
