"""The memory scope: names the user or conversation that the current run belongs to, and so whose memory it uses."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sayso.agent.tools.context import EnvironmentField, tool_environment


def in_scope(scope: str) -> AbstractContextManager[str]:
    """Set the scope for code in the `with` block, and for tasks and threads that it starts."""
    return EnvironmentField("memory_scope", scope)


def current_scope() -> str | None:
    """Return the scope set by `in_scope`. "" is a memory shared by all runs of an agent; None if no scope was set."""
    return tool_environment().memory_scope


def required_scope(scope: str) -> str:
    """Return the scope. Raise ValueError for an empty one, which would be shared by everybody."""
    if not scope:
        raise ValueError(f"scope={scope!r} is everybody's: name one, such as the id of a user and a conversation")
    return scope
