"""Approval of a reviewed call where no channel can ask, and the decision of policy and tool together."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from sayso.agent.config import AgentConfig, ConfirmAction
from sayso.agent.policy import PolicyDecision
from sayso.agent.tools.definition import MEMORY, ToolTag
from sayso.agent.tools.tool import Tool
from sayso.pending.concurrency import contained, in_thread


class ToolCallRefused(Exception):
    """Raised when a call must not run; the text tells the model why."""


async def confirmed(tool: Tool, args: dict[str, Any], reason: str, config: AgentConfig) -> None:
    """Return once a person has said yes; raise RefusedError on anything else, silence and failure included."""
    if config.confirm_action is None:
        raise ToolCallRefused(f"{tool.name!r} needs an approval that nobody can give here: {reason}")
    try:
        async with asyncio.timeout(config.approval_timeout):
            answer = await _ask_person(config.confirm_action, tool.name, args, reason)
    except TimeoutError as exc:
        raise ToolCallRefused(f"{tool.name!r} was not approved within {config.approval_timeout} seconds") from exc
    except Exception as exc:
        raise ToolCallRefused(f"{tool.name!r} was not approved: asking failed with {type(exc).__name__}") from exc
    if answer is not True:
        raise ToolCallRefused(f"{tool.name!r} was rejected by the user")


async def _ask_person(confirm: ConfirmAction, name: str, args: dict[str, Any], reason: str) -> Any:
    if inspect.iscoroutinefunction(confirm):
        return await contained(confirm(name, args, reason))
    answer = await in_thread(lambda: confirm(name, args, reason))
    return await contained(answer) if inspect.isawaitable(answer) else answer


_NO_POLICY = PolicyDecision("allow", "there is no policy", decided_by="no_policy")


def effective_decision(tool: Tool, args: Mapping[str, Any], config: AgentConfig) -> PolicyDecision:
    """Whether a call with these arguments, validated and as JSON values, runs, is asked for, or never runs.

    A tool that requires approval is asked for even where the policy allows it: that is its author's word. One that its
    source calls destructive is asked for where no rule names it; a rule that allows it lets it run. A memory's own tool
    runs where no rule names it: whoever turned that on wants it to be used.
    """
    policy = config.tool_policy
    decision = policy.evaluate(tool.name, {**_defaults(tool), **args}) if policy else _NO_POLICY
    if tool.requires_approval and decision.decision == "allow":
        return PolicyDecision("review", f"{tool.name!r} requires approval", decided_by="requires_approval")
    if decision.rule is None and ToolTag.DESTRUCTIVE in tool.metadata.tags:
        return PolicyDecision("review", f"{tool.name!r} is destructive, and no rule names it", decided_by="destructive")
    if decision.decided_by == "unknown" and tool.metadata.source == MEMORY:
        return PolicyDecision("allow", f"{tool.name!r} is the memory's own, and no rule names it", decided_by="memory")
    return decision


def is_always_denied(tool: Tool, config: AgentConfig) -> bool:
    """Return whether the policy denies the tool whatever it is called with: such a tool is shown to nobody."""
    policy = config.tool_policy
    return policy is not None and policy.unconditional_denial(tool.name) is not None


def _defaults(tool: Tool) -> Mapping[str, Any]:
    """What a tool that was described by a JSON Schema runs with where nothing is given: its source fills it in."""
    if tool.input_schema is None:
        return {}
    return {each.name: each.default for each in tool.parameters if each.default is not None}
