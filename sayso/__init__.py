"""Sayso: chat bots that act only on the user's say-so.

What the author of a bot needs, under one name: `from sayso import tool, Agent`. Everything else is in the packages
below: `sayso.agent`, `sayso.pending`, `sayso.channels`, `sayso.workers`, `sayso.config`. In the repository
each of them is a top-level folder, linked in here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sayso.agent import (
        Agent,
        AgentConfig,
        Ambiguous,
        Approve,
        ChannelAgent,
        Decision,
        DecisionError,
        Deny,
        Edit,
        Markdown,
        NotFound,
        OpenCall,
        RunSnapshot,
        ScriptedProvider,
        ToolError,
        ToolResult,
        as_markdown,
        emit_artifact,
        offer_choices,
        received_file,
        received_files,
        tool,
    )
    from sayso.agent.tools import remind, schedule_reply
    from sayso.pending import (
        Confirmation,
        Person,
        ToolContext,
        current_user,
        executor_factory,
        stash_pending,
    )

__all__ = [
    "Agent",
    "AgentConfig",
    "Ambiguous",
    "Approve",
    "ChannelAgent",
    "Confirmation",
    "Decision",
    "DecisionError",
    "Deny",
    "Edit",
    "Markdown",
    "NotFound",
    "OpenCall",
    "Person",
    "RunSnapshot",
    "ScriptedProvider",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "as_markdown",
    "current_user",
    "emit_artifact",
    "executor_factory",
    "offer_choices",
    "received_file",
    "received_files",
    "remind",
    "schedule_reply",
    "stash_pending",
    "tool",
]

#: The packages that export names besides `sayso.agent`. Imported on first use: `sayso --help` needs none of them.
_PACKAGES = {
    "sayso.agent.tools": ("remind", "schedule_reply"),
    "sayso.pending": (
        "Confirmation",
        "Person",
        "ToolContext",
        "current_user",
        "executor_factory",
        "stash_pending",
    ),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module 'sayso' has no attribute {name!r}")
    package = next(
        (package for package, names in _PACKAGES.items() if name in names), "sayso.agent"
    )
    value = globals()[name] = getattr(importlib.import_module(package), name)
    return value


def __dir__() -> list[str]:
    """Return all public names, imported or not."""
    return sorted({*globals(), *__all__})
