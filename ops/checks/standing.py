"""For which later calls a yes to a tool may stand, in words for operators."""

from __future__ import annotations

from collections.abc import Iterator

from sayso.agent.guards.policy import ToolPolicy, effective_standing
from sayso.agent.tools.tool import Tool


def standing_summary(tool: Tool, policy: ToolPolicy | None) -> str:
    """Return for which later calls a yes may stand, as one line; "" if for none.

    `1h, 10 times, amount <= 50, same customer; free: note`. What is free may be anything.
    """
    rule = effective_standing(tool, policy)
    if rule is None:
        return ""
    free = [name for name in tool.schema()["parameters"]["properties"] if name not in rule.names]
    summary = rule.summary()
    return f"{summary}; free: {', '.join(free)}" if free else summary


def standing_warnings(tool: Tool, policy: ToolPolicy | None) -> Iterator[str]:
    """Yield what an operator should know of the limits of the policy for a tool."""
    pattern = policy.standing_pattern(tool.name) if policy else ""
    limit = policy.standing[pattern] if policy and pattern else None
    if limit is None or effective_standing(tool, policy) is not None:
        return
    rule = tool.standing_rule
    whole = rule.narrowed(limit) if rule else limit.as_rule
    problem = tool.standing_problem(whole)
    if problem:
        yield f"policy.standing {pattern!r} offers nothing for {tool.name!r}: {problem}"
    elif rule is None:
        yield (
            f"policy.standing {pattern!r} offers nothing for {tool.name!r}: "
            "its author allows no standing yes, or it needs for and times"
        )
