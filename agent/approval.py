"""Approval: asks a person, where there is no channel to ask on, before a reviewed call runs."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from sayso.agent.config import AgentConfig, ConfirmAction
from sayso.agent.tools.tool import Tool
from sayso.workers.offload import contained, in_thread


class RefusedError(Exception):
    """Raised when a call must not run; the text tells the model why."""


async def confirmed(tool: Tool, args: dict[str, Any], reason: str, config: AgentConfig) -> None:
    """Return once a person has said yes; raise RefusedError on anything else, silence and failure included."""
    if config.confirm_action is None:
        raise RefusedError(f"{tool.name!r} needs an approval that nobody can give here: {reason}")
    try:
        async with asyncio.timeout(config.approval_timeout):
            answer = await _ask_person(config.confirm_action, tool.name, args, reason)
    except TimeoutError as exc:
        raise RefusedError(f"{tool.name!r} was not approved within {config.approval_timeout} seconds") from exc
    except Exception as exc:
        raise RefusedError(f"{tool.name!r} was not approved: asking failed with {type(exc).__name__}") from exc
    if answer is not True:
        raise RefusedError(f"{tool.name!r} was rejected by the user")


async def _ask_person(confirm: ConfirmAction, name: str, args: dict[str, Any], reason: str) -> Any:
    if inspect.iscoroutinefunction(confirm):
        return await contained(confirm(name, args, reason))
    answer = await in_thread(lambda: confirm(name, args, reason))
    return await contained(answer) if inspect.isawaitable(answer) else answer
