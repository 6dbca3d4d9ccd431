"""Reason: why a model calls a tool, asked beside the tool's own arguments (seed: Tool, `toolcall_reason`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sayso.agent.tools.parameter import ToolParameter

#: The argument that a tool with `think_augment` has besides its own.
REASON = "toolcall_reason"
_SCHEMA = {"type": "string", "description": "Why you call this tool, and what you expect of it."}


def with_reason(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the reason first: a model that has to say why decides better after it."""
    if REASON in schema["properties"]:
        return dict(schema)
    return {**schema, "properties": {REASON: _SCHEMA, **schema["properties"]}}


def without_reason(params: Mapping[str, Any], parameters: Iterable[ToolParameter]) -> Mapping[str, Any]:
    """The arguments without the reason for the call, unless the tool has a parameter of that name itself."""
    if not isinstance(params, Mapping) or REASON not in params or any(each.name == REASON for each in parameters):
        return params
    return {name: value for name, value in params.items() if name != REASON}
