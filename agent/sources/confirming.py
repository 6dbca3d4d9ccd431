"""Confirm: which tools of a source ask first, in its operator's word."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from sayso.agent.sources.names import matches
from sayso.agent.tools.metadata import ToolTag
from sayso.agent.tools.tool import Tool

#: `hints`: those that the source itself calls destructive, where no rule of a policy names them. `always`: all.
#: `never`: none because of a hint. Patterns: those whose names match, besides the hints.
Confirm = Literal["hints", "always", "never"] | Sequence[str]


def asking(tool: Tool, own_name: str, confirm: Confirm) -> Tool:
    """The tool, told whether it asks first. Patterns match its own name or the one it has here."""
    if confirm == "hints":
        return tool
    if confirm == "never":
        tags = tool.metadata.tags - {ToolTag.DESTRUCTIVE}
        return replace(tool, metadata=replace(tool.metadata, tags=tags))
    if confirm == "always" or matches(confirm, own_name, tool.name):
        return replace(tool, requires_approval=True)
    return tool


def idle(confirm: Confirm, names: Collection[str]) -> list[str]:
    """The patterns that match none of these names: whoever wrote them rests on what asks nobody."""
    patterns = () if isinstance(confirm, str) else confirm
    return [pattern for pattern in patterns if not any(matches([pattern], name) for name in names)]
