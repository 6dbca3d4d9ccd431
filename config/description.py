"""Description: what each channel of a configuration may do, for whoever checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sayso.agent.config import AgentConfig
from sayso.agent.decision import decide
from sayso.agent.policy import Decision
from sayso.agent.tools.tool import Tool
from sayso.config.access import welcome
from sayso.config.agents import load_tools_of, tool_policy
from sayso.config.outfit import lone_outfit, own_tools
from sayso.config.patterns import stray_patterns
from sayso.config.portrait import portrait, unknown_prices
from sayso.config.schema import Settings, polls
from sayso.config.selection import build_selector
from sayso.config.sources import OPEN_SECONDS

#: What becomes of a call, as `sayso check` says it.
_WORDS: Mapping[Decision, str] = {"allow": "runs at once", "review": "asks first", "deny": "never runs"}


def describe(settings: Settings, *, seconds: float = OPEN_SECONDS) -> str:
    """What each channel answers with and may do, a line a tool, and what is missing or names nothing.

    Remote sources have so many seconds to answer; no model is asked. Raises ConfigError.
    """
    outfit = lone_outfit(settings, Path())
    opened = load_tools_of(settings, remote=True, strict=True, seconds=seconds)
    opened.close()
    lines = []
    for name, channel in settings.channels.items():
        how = f"{channel.platform}, polled" if polls(channel) else channel.platform
        lines.append(f"{name} ({how}), a yes is good for {channel.confirm_ttl:g} s")
        lines += [f"  {welcome(channel)}", *(f"  {line}" for line in portrait(settings, name))]
        build_selector(settings, name)
        outfit.provider_of(name)
        config = replace(outfit.config_of(name), tool_policy=tool_policy(channel.policy))
        tools = [*opened.select(channel.tools).all(), *own_tools(settings)]
        lines += [f"  {tool.name}: {_what_becomes_of(tool, config)}" for tool in tools]
        if channel.selector:
            lines.append("  (of these its selector shows some)")
        elif channel.access and channel.access.roles:
            lines.append("  (of these each role may use some)")
    return "\n".join([*lines, *opened.problems, *stray_patterns(settings, opened), *unknown_prices(settings)])


def _what_becomes_of(tool: Tool, config: AgentConfig) -> str:
    """Return what becomes of a call of this tool, before its arguments are known."""
    decision = decide(tool, {}, config).decision
    if tool.proposes and decision == "allow":
        return "asks by itself"
    if tool.proposes and decision == "review":
        return "asks by itself, and should be under allow: after a yes to the call it would only ask again"
    return _WORDS[decision]
