"""What `sayso check` prints: what each channel answers with and may do,
and warnings about patterns and prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from sayso.agent.guards.policy import PolicyVerdict, effective_after, effective_decision
from sayso.agent.messages import UsageStats
from sayso.agent.providers.pricing import cost_usd
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
from sayso.config.settings.channels import AccessSettings, AnyChannel
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.tools import Path_, SourceSettings
from sayso.config.wiring.agents import (
    AgentDeps,
    channel_after,
    load_bot_tools,
    own_tools,
    tool_policy,
)
from sayso.config.wiring.libraries import library_problems
from sayso.config.wiring.tools import OpenTools, build_selector, names_of_remote
from sayso.infra.spelling import nearest
from sayso.pending.action import After

#: How long a check waits for remote sources, in seconds: longer than a connection may take, since
#: a check that gives up too early fails.
CHECK_SECONDS = 30.0
#: What becomes of a call, by the decision of the policy.
DECISIONS: Mapping[PolicyVerdict, str] = {
    "allow": "runs at once",
    "review": "asks first",
    "deny": "never runs",
}
#: What follows the outcome of a confirmed action.
AFTER_TEXTS: Mapping[After, str] = {
    "continue": "the model goes on",
    "say": "the bot's own text is all",
}
_GROUPS = {"mention": "", "always": "answers every message of a group", "never": "not in groups"}


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """One channel: who may talk there, the parts of its agent,
    and what becomes of a call of each tool.
    """

    name: str
    platform: str
    is_polled: bool
    confirm_seconds: float
    access: str
    agent: Mapping[str, str]
    tools: Mapping[str, str]
    #: Whether and by what the tools are narrowed for a message or a user; "" where they are not.
    narrowed_by: str
    after: After
    #: Whether a question stays open when its person writes something else.
    keeps_questions: bool

    def lines(self) -> Iterator[str]:
        """Yield the description as text."""
        if self.is_polled:
            platform = f"{self.platform}, polled"
        else:
            platform = self.platform
        yield f"{self.name} ({platform}), a yes is good for {self.confirm_seconds:g} s"
        yield f"  {self.access}"
        yield from (f"  {part}: {text}" for part, text in self.agent.items())
        yield f"  after an outcome: {AFTER_TEXTS[self.after]}"
        if self.keeps_questions:
            yield "  another message: is answered, and the open question stays"
        yield from (f"  {tool}: {outcome}" for tool, outcome in self.tools.items())
        if self.narrowed_by:
            yield f"  ({self.narrowed_by})"


@dataclass(frozen=True, slots=True)
class BotDescription:
    """All channels of a bot, sources whose tools are unknown, and warnings.

    `str()` is what `sayso check` prints. `unreachable` has a line for each source that did not
    answer, `not_asked` the names of the sources that were left alone because the check is offline.
    """

    channels: tuple[ChannelDescription, ...]
    unreachable: tuple[str, ...]
    warnings: tuple[str, ...]
    not_asked: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [line for channel in self.channels for line in channel.lines()]
        not_asked = [f"tools of {name!r}: not asked" for name in self.not_asked]
        return "\n".join([*lines, *not_asked, *self.unreachable, *self.warnings])


def describe(
    settings: Settings,
    *,
    seconds: float = CHECK_SECONDS,
    offline: bool = False,
) -> BotDescription:
    """Return what each channel answers with and may do.

    Remote sources have this many seconds to answer.

    The libraries of all configured features are imported. No model is asked; with `offline` no
    remote source either, whose tools are then unknown. Raises ConfigError.
    """
    problems = library_problems(settings)
    if problems:
        raise ConfigError(problems)
    deps = AgentDeps.open(settings, Path())
    opened = load_bot_tools(settings, remote=not offline, strict=True, seconds=seconds)
    opened.close()
    if offline:
        not_asked = tuple(names_of_remote(settings))
    else:
        not_asked = ()
    channels = tuple(_describe_channel(settings, name, deps, opened) for name in settings.channels)
    # A pattern that names no tool is no error, since a rule may be older than its tool. But a
    # misspelled one restricts nothing. While a source does not answer, not all tools are known.
    in_policies: Iterable[str] = ()
    if not (opened.problems or not_asked):
        in_policies = _in_policies(settings, opened)
    in_sources = _in_sources(settings, opened.own_names)
    warnings = (*opened.left_out, *in_sources, *in_policies, *unknown_prices(settings))
    return BotDescription(channels, opened.problems, warnings, not_asked)


def _describe_channel(
    settings: Settings, name: str, deps: AgentDeps, opened: OpenTools
) -> ChannelDescription:
    channel = settings.channels[name]
    build_selector(settings, name)  # raises ConfigError for one that cannot be built
    deps.provider_of(name)  # and for a model that cannot be asked
    config = replace(deps.config_of(name), tool_policy=tool_policy(channel.policy))
    outcomes = {}
    after = channel_after(settings, name)
    for tool in (*opened.select(channel.tools).all(), *own_tools(settings)):
        # Before its arguments are known.
        decision = effective_decision(tool, {}, config.tool_policy).decision
        outcomes[tool.name] = DECISIONS[decision]
        if tool.proposes and decision == "allow":
            outcomes[tool.name] = "asks by itself"
        elif tool.proposes and decision == "review":
            outcomes[tool.name] = (
                "asks by itself, and should be under allow: after a yes to the call it would only ask again"
            )
        own_after = effective_after(tool.name, tool, config.tool_policy) or after
        if own_after != after and (tool.proposes or decision == "review"):
            outcomes[tool.name] += f", then {AFTER_TEXTS[own_after]}"
    narrowed_by = ""
    if channel.selector:
        narrowed_by = "of these its selector shows some"
    elif channel.access and channel.access.roles:
        narrowed_by = "of these each role may use some"
    return ChannelDescription(
        name=name,
        platform=channel.platform,
        is_polled=channel.polls,
        confirm_seconds=channel.confirm_ttl,
        access=describe_access(channel),
        agent=describe_agent(settings, name),
        tools=outcomes,
        narrowed_by=narrowed_by,
        after=after,
        keeps_questions=channel.other_message == "keep",
    )


def describe_access(channel: AnyChannel) -> str:
    """Return who may talk on a channel, as one line for an operator."""
    access = channel.access
    if access is None:
        return "talks to: everybody"
    people = "everybody"
    if access.allow is not None or access.pairing:
        if access.allow:
            named = f"{len(access.allow)} named and "
        else:
            named = ""
        people = f"{named}those an operator approves{', by code' if access.pairing else ''}"
    return f"talks to: {'; '.join([people, *_limits(access)])}"


def _limits(access: AccessSettings) -> Iterator[str]:
    if access.block:
        yield f"never to {len(access.block)}"
    if _GROUPS[access.groups]:
        yield _GROUPS[access.groups]
    if access.chats is not None:
        yield f"only in {len(access.chats)} chat{'s' if len(access.chats) != 1 else ''}"
    if access.per_minute:
        yield f"{access.per_minute} turns a minute each"
    if access.roles:
        yield f"as {', '.join(access.roles.allowed)}"


def describe_agent(settings: Settings, channel: str) -> dict[str, str]:
    """Return the model of a channel's agent, and each of memory, cache,
    budget and guards that is not the default.
    """
    agent = settings.agent_of(channel)
    parts = {
        "model": ", then ".join(_models(agent)),
        "memory": ", ".join(_memory(agent.memory)),
        "cache": f"answers for {agent.cache.ttl:g} s, in {agent.cache.store}"
        if agent.cache
        else "",
        "budget": ", ".join(_budget(agent.budget)),
        "guards": ", ".join(_guards(agent.guards)),
    }
    return {name: text for name, text in parts.items() if text}


def _models(agent: AgentSettings) -> list[str]:
    return [agent.model, *(each.model for each in agent.fallback if agent.model != OFFLINE)]


def _memory(memory: MemorySettings) -> Iterator[str]:
    if memory.max_tokens:
        tokens = f" of {memory.max_tokens} tokens"
    else:
        tokens = ""
    extras = [
        name
        for name in ("summarize", "entities", "relationships")
        if getattr(memory, name) is not None
    ]
    if not (memory.model_fields_set or extras):
        return
    yield f"{memory.max_messages} messages{tokens}"
    for name in extras:
        yield f"{name}{_by_model(getattr(memory, name))}"
    if memory.knowledge:
        yield "knowledge"


def _budget(budget: BudgetSettings) -> Iterator[str]:
    for period in ("run", "conversation", "day"):
        tokens = getattr(budget, f"{period}_tokens")
        usd = getattr(budget, f"{period}_usd")
        limits = [*([f"{tokens:,} tokens"] if tokens else []), *([f"{usd:g} USD"] if usd else [])]
        if limits:
            yield f"{' and '.join(limits)} a {period}{' and day' if period == 'conversation' else ''}"


def _guards(guards: GuardSettings) -> Iterator[str]:
    for stage in ("input", "output"):
        guardrails = [_guardrail(each) for each in getattr(guards, stage)]
        if guardrails:
            yield f"{stage} {' + '.join(guardrails)}"
    if guards.coherence is not None:
        yield f"coherence{_by_model(guards.coherence)}"
    if guards.loop is None:
        yield "loop off"


def _guardrail(guardrail: GuardrailSettings) -> str:
    kind = next(kind for kind in GUARDRAILS if getattr(guardrail, kind) is not None)
    if kind != "plugin":
        return f"{kind} ({guardrail.action or 'block'})"
    return str(guardrail.plugin)


def _by_model(side: SideSettings) -> str:
    if side.model:
        return f" by {side.model}"
    return ""


def unknown_prices(settings: Settings) -> Iterator[str]:
    """Yield a warning for each model whose price is unknown,
    so that no budget in dollars holds for it.
    """
    if not settings.agent.budget.in_dollars:
        return
    where = settings.origin.at("agent", "budget")
    models = (
        model for channel in settings.channels for model in _models(settings.agent_of(channel))
    )
    for model in dict.fromkeys(models):
        usage = UsageStats(1, 1, 2)
        vendor = vendor_of(model)
        prices = settings.agent.prices
        if model != OFFLINE and cost_usd(name_of(model), usage, vendor, prices=prices) is None:
            cure = f"add prices: {{{name_of(model)!r}: [1.0, 2.0]}}, dollars for a million tokens of input and output"
            yield f"{where}warning: agent.budget: the price of {model!r} is unknown, so no limit in USD holds: {cure}"


def _in_sources(settings: Settings, own_names: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Yield a warning for each pattern of a source that names none of its tools.

    `own_names` are those of each source whose tools are known, by its position. `confirm` may name
    a tool with or without its namespace.
    """
    for index, source in enumerate(settings.tools):
        if isinstance(source, str) or index not in own_names:
            continue
        patterns = list(_patterns(source, ("tools", index)))
        names = own_names[index]
        if source.namespace:
            prefixed = [f"{source.namespace}-{name}" for name in names]
        else:
            prefixed = []
        for path, pattern in patterns:
            yield from _warning(
                settings, path, pattern, [*names, *prefixed] if path[2] == "confirm" else names
            )


def _patterns(source: SourceSettings, path: Path_) -> Iterator[tuple[Path_, str]]:
    for key in ("include", "exclude", "confirm"):
        value = getattr(source, key)
        yield from (
            ((*path, key, index), each)
            for index, each in enumerate(value if isinstance(value, list) else ())
        )


def _in_policies(settings: Settings, opened: OpenTools) -> Iterator[str]:
    """Yield a warning for each pattern of a policy that names no tool.

    Its channel need not have the tool.
    """
    names = [tool.name for tool in [*opened.tools, *own_tools(settings)]]
    for name, channel in settings.channels.items():
        path: Path_ = ("channels", name, "policy")
        if channel.policy is None:
            continue
        for index, rule in enumerate(channel.policy.deny_when):
            yield from _warning(settings, (*path, "deny_when", index, "tool"), rule.tool, names)
        for kind in ("allow", "review", "deny"):
            for index, pattern in enumerate(getattr(channel.policy, kind)):
                yield from _warning(settings, (*path, kind, index), pattern, names)
        for pattern in channel.policy.after:
            yield from _warning(settings, (*path, "after", pattern), pattern, names)
        for pattern in channel.policy.editable:
            yield from _warning(settings, (*path, "editable", pattern), pattern, names)


def _warning(settings: Settings, path: Path_, pattern: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning unless the pattern matches a name.

    Of all rules only `allow` and those of sources mind case.

    The suggestion is the pattern with any namespace, the nearest name,
    or the pattern with its beginning corrected.
    """
    ignores_case = path[0] == "channels" and "allow" not in path
    if _matches(pattern, names) or (
        ignores_case and _matches(pattern.casefold(), [name.casefold() for name in names])
    ):
        return
    stem = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    start = nearest(stem, dict.fromkeys(name[: len(stem)] for name in names))
    if stem == pattern:
        whole = nearest(pattern, names)
    else:
        whole = ""
    candidates = [f"*-{pattern}", whole, start and start + pattern[len(stem) :]]
    suggestion = next((each for each in candidates if _matches(each, names)), "")
    if suggestion:
        hint = f", did you mean {suggestion!r}?"
    else:
        hint = ""
    where = settings.origin.at(*path)
    dotted = ".".join(map(str, path))
    yield f"{where}warning: {dotted}: {pattern!r} names no tool{hint}"


def _matches(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)
