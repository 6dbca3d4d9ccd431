"""What each channel may do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import Decision, effective_decision
from sayso.agent.messages import UsageStats
from sayso.agent.providers.pricing import cost_usd
from sayso.agent.tools.errors import ToolError, nearest
from sayso.agent.tools.tool import Tool
from sayso.config.settings.agent import (
    GUARDRAILS,
    OFFLINE,
    AgentSettings,
    BudgetSettings,
    GuardrailSettings,
    GuardSettings,
    MemorySettings,
    SideSettings,
    name_of,
    vendor_of,
)
from sayso.config.settings.base import Path_
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import SourceSettings
from sayso.config.wiring.access import welcome
from sayso.config.wiring.agents import load_tools_of, lone_outfit, own_tools, tool_policy
from sayso.config.wiring.tools import OPEN_SECONDS, OpenTools, build_selector, own_names


def stray_patterns(settings: Settings, opened: OpenTools) -> list[str]:
    """A warning for each pattern that names no tool: of sources, and of policies where all tools are known.

    Nothing is wrong with them: a rule may be older than its tool. But one that is misspelt restricts nothing.
    """
    return [*_of_sources(settings), *([] if opened.problems else _of_policies(settings, opened))]


def _of_sources(settings: Settings) -> Iterator[str]:
    """`confirm` may call a tool what its source does, or what it is called here."""
    for index, source in enumerate(settings.tools):
        if isinstance(source, str) or not (patterns := list(_patterns(source, ("tools", index)))):
            continue
        try:
            names = own_names(source, settings.origin.folder)
        except (ToolError, SystemExit):  # who cannot be asked is told elsewhere
            continue
        here = [f"{source.namespace}-{name}" for name in names] if source.namespace else []
        for path, pattern in patterns:
            yield from _stray(settings, path, pattern, [*names, *here] if path[2] == "confirm" else names)


def _patterns(source: SourceSettings, path: Path_) -> Iterator[tuple[Path_, str]]:
    for key in ("include", "exclude", "confirm"):
        given = getattr(source, key)
        yield from (((*path, key, index), each) for index, each in enumerate(given if isinstance(given, list) else ()))


def _of_policies(settings: Settings, opened: OpenTools) -> Iterator[str]:
    """Over all tools: a rule may be about one that its channel does not have. `allow` alone minds the case."""
    names = [tool.name for tool in [*opened.tools, *own_tools(settings)]]
    for channel, settings_of in settings.channels.items():
        path: Path_ = ("channels", channel, "policy")
        if settings_of.policy is None:
            continue
        for index, rule in enumerate(settings_of.policy.deny_when):
            yield from _stray(settings, (*path, "deny_when", index, "tool"), rule.tool, names)
        for kind in ("allow", "review", "deny"):
            for index, pattern in enumerate(getattr(settings_of.policy, kind)):
                yield from _stray(settings, (*path, kind, index), pattern, names)


def _stray(settings: Settings, path: Path_, pattern: str, names: Sequence[str]) -> Iterator[str]:
    takes_any_case = path[0] == "channels" and "allow" not in path
    if _finds(pattern, names) or (takes_any_case and _finds(pattern.casefold(), [name.casefold() for name in names])):
        return
    close = _meant(pattern, names)
    hint = f", did you mean {close!r}?" if close else ""
    where, dotted = settings.origin.at(*path), ".".join(map(str, path))
    yield f"{where}warning: {dotted}: {pattern!r} names no tool{hint}"


def _finds(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _meant(pattern: str, names: Sequence[str]) -> str:
    """The pattern for any namespace, or with its beginning spelled like that of a tool, or the nearest name; or ""."""
    stem = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    start = nearest(stem, dict.fromkeys(name[: len(stem)] for name in names))
    whole = nearest(pattern, names) if stem == pattern else ""
    candidates = [f"*-{pattern}", whole, start and start + pattern[len(stem) :]]
    return next((each for each in candidates if _finds(each, names)), "")


def describe_agent(settings: Settings, channel: str) -> list[str]:
    """A line for the model, and one for each of memory, cache, budget and guards that is not as usual."""
    agent = settings.agent_of(channel)
    parts = {
        "model": ", then ".join(_models(agent)),
        "memory": ", ".join(_memory(agent.memory)),
        "cache": f"answers for {agent.cache.ttl:g} s, in {agent.cache.store}" if agent.cache else "",
        "budget": ", ".join(_budget(agent.budget)),
        "guards": ", ".join(_guards(agent.guards)),
    }
    return [f"{name}: {said}" for name, said in parts.items() if said]


def unknown_prices(settings: Settings) -> Iterator[str]:
    """A warning for each model that a budget in dollars cannot count, as nobody knows what it costs."""
    if not settings.agent.budget.in_dollars:
        return
    where = settings.origin.at("agent", "budget")
    for model in dict.fromkeys(each for channel in settings.channels for each in _unpriced(settings, channel)):
        cure = f"add prices: {{{name_of(model)!r}: [1.0, 2.0]}}, dollars for a million tokens of questions and answers"
        yield f"{where}warning: agent.budget: nobody knows what {model!r} costs, so no limit in USD holds: {cure}"


def _unpriced(settings: Settings, channel: str) -> Iterator[str]:
    agent = settings.agent_of(channel)
    for model in _models(agent):
        usage, vendor = UsageStats(1, 1, 2), vendor_of(model)
        if model != OFFLINE and cost_usd(name_of(model), usage, vendor, prices=agent.prices) is None:
            yield model


def _models(agent: AgentSettings) -> list[str]:
    return [agent.model, *(each.model for each in agent.fallback if agent.model != OFFLINE)]


def _memory(memory: MemorySettings) -> Iterator[str]:
    tokens = f" of {memory.max_tokens} tokens" if memory.max_tokens else ""
    beyond = [name for name in ("summarize", "entities", "relationships") if getattr(memory, name) is not None]
    if not (memory.model_fields_set or beyond):
        return
    yield f"{memory.max_messages} messages{tokens}"
    for name in beyond:
        yield f"{name}{_by(getattr(memory, name))}"
    if memory.knowledge:
        yield "knowledge"


def _budget(budget: BudgetSettings) -> Iterator[str]:
    for whose in ("run", "conversation", "day"):
        tokens, usd = getattr(budget, f"{whose}_tokens"), getattr(budget, f"{whose}_usd")
        limits = [*([f"{tokens:,} tokens"] if tokens else []), *([f"{usd:g} USD"] if usd else [])]
        if limits:
            yield f"{' and '.join(limits)} a {whose}{' and day' if whose == 'conversation' else ''}"


def _guards(guards: GuardSettings) -> Iterator[str]:
    for stage in ("input", "output"):
        kinds = [_kind(each) for each in getattr(guards, stage)]
        if kinds:
            yield f"{stage} {' + '.join(kinds)}"
    if guards.coherence is not None:
        yield f"coherence{_by(guards.coherence)}"
    if guards.loop is None:
        yield "loop off"


def _kind(guardrail: GuardrailSettings) -> str:
    kind = next(kind for kind in GUARDRAILS if getattr(guardrail, kind) is not None)
    return f"{kind} ({guardrail.action or 'block'})" if kind != "plugin" else str(guardrail.plugin)


def _by(side: SideSettings) -> str:
    return f" by {side.model}" if side.model else ""


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
        how = f"{channel.platform}, polled" if channel.polls else channel.platform
        lines.append(f"{name} ({how}), a yes is good for {channel.confirm_ttl:g} s")
        lines += [f"  {welcome(channel)}", *(f"  {line}" for line in describe_agent(settings, name))]
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
    decision = effective_decision(tool, {}, config.tool_policy).decision
    if tool.proposes and decision == "allow":
        return "asks by itself"
    if tool.proposes and decision == "review":
        return "asks by itself, and should be under allow: after a yes to the call it would only ask again"
    return _WORDS[decision]
