"""Decision: the word on one call, from its channel's policy, its tool's author and its tool's source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.policy import PolicyDecision
from sayso.agent.tools.metadata import MEMORY, ToolTag
from sayso.agent.tools.tool import Tool

_NO_POLICY = PolicyDecision("allow", "there is no policy", decided_by="no_policy")


def decide(tool: Tool, args: Mapping[str, Any], config: AgentConfig) -> PolicyDecision:
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
