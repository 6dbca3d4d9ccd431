"""The memory scope: names the user or conversation that the current run belongs to, and so whose memory it uses."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from contextvars import ContextVar

from sayso.pending.concurrency import installed

#: The scope set by `in_scope`. "" is a memory shared by all runs of an agent; None means that no scope was set.
memory_scope: ContextVar[str | None] = ContextVar("sayso_memory_scope", default=None)


def in_scope(scope: str) -> AbstractContextManager[str]:
    """Set the scope for code in the `with` block, and for tasks and threads that it starts."""
    return installed(memory_scope, scope)


def required_scope(scope: str) -> str:
    """Return the scope. Raise ValueError for an empty one, which would be shared by everybody."""
    if not scope:
        raise ValueError(f"scope={scope!r} is everybody's: name one, such as the id of a user and a conversation")
    return scope


def digest_of(scope: str) -> str:
    """Return a hash of the scope for keys, logs and spans: 32 hex digits."""
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:32]
