"""What `sayso check` prints of a valid configuration: its channels, and warnings.

A channel is described by who may talk there, the parts of its agent, and what becomes of a call of
each of its tools. Warnings are about patterns that name no tool, and models of unknown price.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sayso.agent import Tool, ToolPolicy
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
from sayso.config.settings.tools import YamlPath
from sayso.config.wiring.agents import (
    AgentDeps,
    channel_after,
    load_bot_tools,
    own_tools,
    tool_policy,
)
from sayso.config.wiring.deciders import DecidersOfYaml
from sayso.config.wiring.libraries import library_problems
from sayso.config.wiring.tools import OpenTools, build_selector, names_of_remote
from sayso.infra.spelling import nearest
from sayso.ops.checks.approvals import ExpectedApproval, approval_summary, expected_approval
from sayso.ops.checks.standing import standing_summary, standing_warnings
from sayso.pending.action import After

#: How long a check waits for remote sources of tools, in seconds. It is longer than a connection
#: may take: a source that had no time to answer would count as unreachable.
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
#: What is said of a channel by its `access.groups`; "" for the default.
_GROUPS = {"mention": "", "always": "answers every message of a group", "never": "not in groups"}


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """What one channel answers with and may do."""

    name: str
    platform: str
    is_polled: bool
    #: How long a yes is good for, in seconds.
    confirm_seconds: float
    #: Who may talk there, as one line.
    access: str
    #: The parts of its agent that are not the default, each in words, by name.
    agent: Mapping[str, str]
    #: What becomes of a call of each tool, in words.
    tools: Mapping[str, str]
    #: The approval of other people that the calls of a tool need, by the name of the tool.
    approvals: Mapping[str, ExpectedApproval]
    #: What chooses from the tools for a message or a user, in words; "" where nothing does.
    narrowed_by: str
    #: What follows the outcome of a confirmed action, if neither policy nor tool say.
    after: After
    #: Whether a question stays open when its person writes something else.
    keeps_questions: bool

    def lines(self) -> Iterator[str]:
        """Yield the description as text."""
        platform = self.platform
        if self.is_polled:
            platform = f"{self.platform}, polled"
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
    """What a bot answers with and may do. `str()` is what `sayso check` prints."""

    channels: tuple[ChannelDescription, ...]
    #: A line for each source of tools that did not answer.
    unreachable: tuple[str, ...]
    warnings: tuple[str, ...]
    #: The names of the remote sources of tools, where the check is offline and asks none of them.
    not_asked: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines: list[str] = []
        for channel in self.channels:
            lines += channel.lines()
        not_asked = [f"tools of {name!r}: not asked" for name in self.not_asked]
        return "\n".join([*lines, *not_asked, *self.unreachable, *self.warnings])


def describe(
    settings: Settings,
    *,
    seconds: float = CHECK_SECONDS,
    offline: bool = False,
) -> BotDescription:
    """Return what each channel of a bot answers with and may do.

    The libraries of all configured features are imported, and remote sources of tools are asked:
    they have `seconds` to answer. With `offline` no source is asked, and its tools are unknown. No
    model is asked. Raises ConfigError for settings that no process could start with.
    """
    deciders = DecidersOfYaml(settings)
    problems = [*library_problems(settings), *deciders.problems()]
    if problems:
        raise ConfigError(problems)

    deps = AgentDeps.open(settings, Path())
    opened = load_bot_tools(settings, remote=not offline, strict=True, seconds=seconds)
    opened.close()
    not_asked: tuple[str, ...] = ()
    if offline:
        not_asked = tuple(names_of_remote(settings))
    channels = tuple(
        _describe_channel(settings, name, deps, opened, deciders) for name in settings.channels
    )

    # A pattern that names no tool is only a warning, since a rule may be older than its tool. But a
    # misspelled pattern restricts nothing, so it is worth one.
    warnings = [*opened.left_out, *_pattern_warnings_of_sources(settings, opened.own_names)]
    knows_all_tools = not opened.problems and not not_asked
    if knows_all_tools:
        warnings += _pattern_warnings_of_policies(settings, opened)
    for name, channel in settings.channels.items():
        policy = tool_policy(channel.policy)
        for tool in opened.select(channel.tools).all():
            warnings += [f"channels.{name}: {each}" for each in standing_warnings(tool, policy)]
    warnings += deciders.warnings()
    warnings += unknown_prices(settings)
    return BotDescription(channels, opened.problems, tuple(warnings), not_asked)


def _describe_channel(
    settings: Settings, name: str, deps: AgentDeps, opened: OpenTools, deciders: DecidersOfYaml
) -> ChannelDescription:
    """Return the description of one channel.

    Raises ConfigError for a selector that cannot be built, and a model that cannot be asked.
    """
    # Built only to learn whether they can be.
    build_selector(settings, name)
    deps.provider_of(name)
    deps.config_of(name)

    channel = settings.channels[name]
    policy = tool_policy(channel.policy)
    after = channel_after(settings, name)
    outcomes = {}
    approvals = {}
    for tool in (*opened.select(channel.tools).all(), *own_tools(settings)):
        approval = _approval_of_call(tool, policy, deciders)
        if approval:
            approvals[tool.name] = approval
        outcomes[tool.name] = _outcome_of_call(tool, policy, approval, after)

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
        approvals=approvals,
        narrowed_by=narrowed_by,
        after=after,
        keeps_questions=channel.other_message == "keep",
    )


def _approval_of_call(
    tool: Tool, policy: ToolPolicy | None, deciders: DecidersOfYaml
) -> ExpectedApproval | None:
    """Return the approval of other people that the calls of a tool need, None if they need none."""
    if policy is None:
        return None
    decision = effective_decision(tool, {}, policy).decision
    is_asked = decision == "review" or (tool.proposes and decision == "allow")
    if not is_asked:
        return None
    return expected_approval(policy.approval_rule(tool.name), deciders)


def _outcome_of_call(
    tool: Tool, policy: ToolPolicy | None, approval: ExpectedApproval | None, after: After
) -> str:
    """Return in words what becomes of a call of a tool, before its arguments are known.

    `approval` is what the call needs of other people, None for nothing; `after` is what follows an
    outcome on the channel.
    """
    decision = effective_decision(tool, {}, policy).decision
    outcome = DECISIONS[decision]
    if approval:
        outcome = f"asks {approval_summary(approval)}"
    # A tool that `proposes` asks its own question while it runs.
    if tool.proposes and decision == "allow" and approval:
        outcome = f"asks by itself: {approval_summary(approval)}"
    elif tool.proposes and decision == "allow":
        outcome = "asks by itself"
    elif tool.proposes and decision == "review":
        outcome = "asks by itself, and should be under allow: after a yes to the call it would only ask again"

    is_asked = tool.proposes or decision == "review"
    standing = standing_summary(tool, policy)
    if standing and decision == "review":
        outcome += f", a yes may stand: {standing}"
    after_tool = effective_after(tool.name, tool, policy) or after
    if is_asked and after_tool != after:
        outcome += f", then {AFTER_TEXTS[after_tool]}"
    return outcome


def describe_access(channel: AnyChannel) -> str:
    """Return who may talk on a channel, as one line for an operator."""
    access = channel.access
    if access is None:
        return "talks to: everybody"
    people = "everybody"
    if access.allow is not None or access.pairing:
        people = "those an operator approves"
        if access.allow:
            people = f"{len(access.allow)} named and {people}"
        if access.pairing:
            people += ", by code"
    return f"talks to: {'; '.join([people, *_limits(access)])}"


def _limits(access: AccessSettings) -> Iterator[str]:
    """Yield what else limits who may talk on a channel, and how much."""
    if access.block:
        yield f"never to {len(access.block)}"
    if _GROUPS[access.groups]:
        yield _GROUPS[access.groups]
    if access.chats is not None:
        noun = "chat" if len(access.chats) == 1 else "chats"
        yield f"only in {len(access.chats)} {noun}"
    if access.per_minute:
        yield f"{access.per_minute} turns a minute each"
    if access.roles:
        yield f"as {', '.join(access.roles.allowed)}"


def describe_agent(settings: Settings, channel: str) -> dict[str, str]:
    """Return the parts of a channel's agent in words, by name.

    They are its model, and those of memory, cache, budget and guards that are not the default.
    """
    agent = settings.agent_of(channel)
    cache = ""
    if agent.cache:
        cache = f"answers for {agent.cache.ttl:g} s, in {agent.cache.store}"
    parts = {
        "model": ", then ".join(_models(agent)),
        "memory": ", ".join(_memory(agent.memory)),
        "cache": cache,
        "budget": ", ".join(_budget(agent.budget)),
        "guards": ", ".join(_guards(agent.guards)),
    }
    return {name: text for name, text in parts.items() if text}


def _models(agent: AgentSettings) -> list[str]:
    """Return the model and its fallbacks. The offline model has none."""
    if agent.model == OFFLINE:
        return [OFFLINE]
    return [agent.model, *(each.model for each in agent.fallback)]


def _memory(memory: MemorySettings) -> Iterator[str]:
    """Yield what is remembered; nothing where all is the default."""
    side_tasks = {
        "summarize": memory.summarize,
        "entities": memory.entities,
        "relationships": memory.relationships,
    }
    configured = {name: side for name, side in side_tasks.items() if side is not None}
    if not memory.model_fields_set and not configured:
        return

    tokens = ""
    if memory.max_tokens:
        tokens = f" of {memory.max_tokens} tokens"
    yield f"{memory.max_messages} messages{tokens}"
    for name, side in configured.items():
        yield f"{name}{_by_model(side)}"
    if memory.knowledge:
        yield "knowledge"


def _budget(budget: BudgetSettings) -> Iterator[str]:
    """Yield what may be spent in each period that has a limit."""
    periods = {
        "run": (budget.run_tokens, budget.run_usd),
        "conversation and day": (budget.conversation_tokens, budget.conversation_usd),
        "day": (budget.day_tokens, budget.day_usd),
    }
    for period, (tokens, usd) in periods.items():
        limits = []
        if tokens:
            limits.append(f"{tokens:,} tokens")
        if usd:
            limits.append(f"{usd:g} USD")
        if limits:
            yield f"{' and '.join(limits)} a {period}"


def _guards(guards: GuardSettings) -> Iterator[str]:
    """Yield the configured checks of texts and calls, and the loop detector if it is off."""
    for stage in ("input", "output"):
        guardrails = [_guardrail(each) for each in getattr(guards, stage)]
        if guardrails:
            yield f"{stage} {' + '.join(guardrails)}"
    if guards.coherence is not None:
        yield f"coherence{_by_model(guards.coherence)}"
    if guards.loop is None:
        yield "loop off"


def _guardrail(guardrail: GuardrailSettings) -> str:
    """Return a guardrail in words: its kind with its action, or the class of a plugin."""
    if guardrail.plugin is not None:
        return guardrail.plugin
    kinds = [kind for kind in GUARDRAILS if getattr(guardrail, kind) is not None]
    return f"{kinds[0]} ({guardrail.action or 'block'})"


def _by_model(side: SideSettings) -> str:
    """Return by which model a side task is done, "" for that of the conversation."""
    if side.model:
        return f" by {side.model}"
    return ""


def unknown_prices(settings: Settings) -> Iterator[str]:
    """Yield a warning for each model whose price is unknown.

    A budget in dollars does not hold for such a model. Without one there are no warnings.
    """
    if not settings.agent.budget.in_dollars:
        return
    where = settings.origin.at("agent", "budget")
    models: list[str] = []
    for channel in settings.channels:
        models += _models(settings.agent_of(channel))

    for model in dict.fromkeys(models):
        if model == OFFLINE:
            continue
        name = name_of(model)
        any_usage = UsageStats(1, 1, 2)
        cost = cost_usd(name, any_usage, vendor_of(model), prices=settings.agent.prices)
        if cost is None:
            cure = f"add prices: {{{name!r}: [1.0, 2.0]}}, dollars for a million tokens of input and output"
            yield f"{where}warning: agent.budget: the price of {model!r} is unknown, so no limit in USD holds: {cure}"


def _pattern_warnings_of_sources(
    settings: Settings, own_names: Mapping[int, Sequence[str]]
) -> Iterator[str]:
    """Yield a warning for each pattern of a source of tools that names none of its tools.

    `own_names` has what each source calls its tools, by the position of the source in the YAML. A
    source whose tools are unknown has no entry, and no warnings.
    """
    for index, source in enumerate(settings.tools):
        if isinstance(source, str) or index not in own_names:
            continue
        names = list(own_names[index])
        path: YamlPath = ("tools", index)
        yield from _list_warnings(settings, (*path, "include"), source.include or [], names)
        yield from _list_warnings(settings, (*path, "exclude"), source.exclude, names)
        # `confirm` may name a tool with or without its namespace.
        if isinstance(source.confirm, list):
            prefixed_names = []
            if source.namespace:
                prefixed_names = [f"{source.namespace}-{name}" for name in names]
            all_names = [*names, *prefixed_names]
            yield from _list_warnings(settings, (*path, "confirm"), source.confirm, all_names)


def _pattern_warnings_of_policies(settings: Settings, opened: OpenTools) -> Iterator[str]:
    """Yield a warning for each pattern of a policy that names no tool of the bot.

    The channel of the policy need not have the tool.
    """
    names = [tool.name for tool in [*opened.tools, *own_tools(settings)]]
    for channel_name, channel in settings.channels.items():
        policy = channel.policy
        if policy is None:
            continue
        path: YamlPath = ("channels", channel_name, "policy")
        for index, rule in enumerate(policy.deny_when):
            yield from _warning(settings, (*path, "deny_when", index, "tool"), rule.tool, names)
        yield from _list_warnings(settings, (*path, "allow"), policy.allow, names)
        yield from _list_warnings(settings, (*path, "review"), policy.review, names)
        yield from _list_warnings(settings, (*path, "deny"), policy.deny, names)
        for pattern in policy.approval:
            yield from _warning(settings, (*path, "approval", pattern), pattern, names)
        for pattern in policy.standing:
            yield from _warning(settings, (*path, "standing", pattern), pattern, names)
        for pattern in policy.after:
            yield from _warning(settings, (*path, "after", pattern), pattern, names)
        for pattern in policy.editable:
            yield from _warning(settings, (*path, "editable", pattern), pattern, names)


def _list_warnings(
    settings: Settings, path: YamlPath, patterns: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    """Yield a warning for each pattern of the list at `path` that matches none of the names."""
    for index, pattern in enumerate(patterns):
        yield from _warning(settings, (*path, index), pattern, names)


def _warning(
    settings: Settings, path: YamlPath, pattern: str, names: Sequence[str]
) -> Iterator[str]:
    """Yield a warning, with a suggestion if there is one, unless the pattern matches a name.

    `path` is that of the pattern in the YAML.
    """
    if _matches(pattern, names):
        return
    # Rules that restrict ignore case. `allow` and the patterns of sources do not.
    ignores_case = path[0] == "channels" and "allow" not in path
    folded_names = [name.casefold() for name in names]
    if ignores_case and _matches(pattern.casefold(), folded_names):
        return

    hint = ""
    suggestion = _suggestion(pattern, names)
    if suggestion:
        hint = f", did you mean {suggestion!r}?"
    where = settings.origin.at(*path)
    dotted_path = ".".join(map(str, path))
    yield f"{where}warning: {dotted_path}: {pattern!r} names no tool{hint}"


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    """Return a similar pattern that matches a name, "" without one.

    It is the pattern with any namespace before it, the nearest name, or the pattern with its
    beginning corrected.
    """
    beginning = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    candidates = [f"*-{pattern}"]
    if beginning == pattern:
        candidates.append(nearest(pattern, names))
    beginnings_of_names = dict.fromkeys(name[: len(beginning)] for name in names)
    nearest_beginning = nearest(beginning, beginnings_of_names)
    if nearest_beginning:
        candidates.append(nearest_beginning + pattern[len(beginning) :])

    for candidate in candidates:
        if _matches(candidate, names):
            return candidate
    return ""


def _matches(pattern: str, names: Sequence[str]) -> bool:
    """Return whether a pattern, as in file names, matches one of the names."""
    return any(fnmatchcase(name, pattern) for name in names)
