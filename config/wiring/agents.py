"""Agents of all channels and what they share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis

from sayso.agent import (
    Agent,
    AgentConfig,
    BudgetLimits,
    ChannelAgent,
    ConversationMemory,
    EntityMemory,
    InMemoryCache,
    KnowledgeGraphMemory,
    KnowledgeMemory,
    LoggingObserver,
    LoopDetector,
    MemoryBudget,
    MemoryResultCache,
    OfflineProvider,
    OpenTelemetryObserver,
    RedisBudget,
    RedisCache,
    Tool,
    ToolConfig,
    ToolPolicy,
)
from sayso.agent.channel.files import ArtifactStore
from sayso.agent.channel.long_texts import TextStore
from sayso.agent.channel.prompts import Escalation
from sayso.agent.channel.turn_journal import Journals
from sayso.agent.config import Cache
from sayso.agent.guards.budget import Budget
from sayso.agent.guards.builtin import InjectionGuardrail, LengthGuardrail, PatternGuardrail, TopicGuardrail
from sayso.agent.guards.pipeline import Guardrail, GuardrailAction, GuardrailsPipeline
from sayso.agent.observability.dispatcher import wait_for_observers
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.providers.base import Provider
from sayso.agent.tools.loading import LoadedTools, ToolReloader
from sayso.channels.media import LocalMediaStore
from sayso.channels.types import Conversation
from sayso.config.settings.agent import AgentSettings, CacheSettings, GuardrailSettings, name_of
from sayso.config.settings.base import Path_
from sayso.config.settings.channels import AnyChannel, PolicySettings
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.secrets import open_data
from sayso.config.wiring.models import Models
from sayso.config.wiring.observability import TracingError, set_up_tracing
from sayso.config.wiring.tools import OPEN_SECONDS, OpenTools, build_selector, is_remote, misnamed, open_tools
from sayso.pending import InMemoryPendingStore, RedisPendingStore, RegexConfirmParser
from sayso.pending.concurrency import run_sync
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.store import BasePendingStore

T = TypeVar("T")


def made(settings: Settings, name: str, kind: type[T], at: Path_) -> T:
    """An instance of the class, made without arguments. Raises ConfigError, which says where it stands.

    Modules are found beside the configuration, too.
    """
    try:
        return _instance(name, kind, settings.origin.folder)
    except (Exception, SystemExit) as exc:
        where, dotted = settings.origin.at(*at), ".".join(map(str, at))
        raise ConfigError([f"{where}{dotted}: cannot make {name!r}: {type(exc).__name__}: {exc}"]) from exc


def _instance(name: str, kind: type[T], folder: Path) -> T:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError("write it as module:Class")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    made: Any = getattr(import_module(module), attribute)()
    if not isinstance(made, kind):
        raise TypeError(f"it is no {kind.__name__}")
    return made


_PATH: Path_ = ("agent", "guards")


def guardrails_of(settings: Settings) -> GuardrailsPipeline | None:
    """Those of both stages; None where there are none. Raises ConfigError, which says which of them cannot be."""
    guards = settings.agent.guards
    if not guards.input and not guards.output:
        return None
    return GuardrailsPipeline(_stage(settings, "input", guards.input), _stage(settings, "output", guards.output))


def _stage(settings: Settings, stage: str, given: Sequence[GuardrailSettings]) -> list[Guardrail]:
    return [_guardrail(settings, each, (*_PATH, stage, at)) for at, each in enumerate(given)]


def _guardrail(settings: Settings, given: GuardrailSettings, at: Path_) -> Guardrail:
    if given.plugin is not None:
        return made(settings, given.plugin, Guardrail, (*at, "plugin"))
    try:
        return _ready(given, GuardrailAction(given.action or "block"))
    except (ValueError, re.error) as exc:
        raise ConfigError([f"{settings.origin.at(*at)}{'.'.join(map(str, at))}: {exc}"]) from exc


def _ready(given: GuardrailSettings, action: GuardrailAction) -> Guardrail:
    if given.topic is not None:
        return TopicGuardrail(given.topic, action=action)
    if given.pattern is not None:
        return PatternGuardrail(given.pattern, action)
    if given.length is not None:
        return LengthGuardrail(given.length.max, given.length.min, action=action)
    return InjectionGuardrail(action=action)


#: Seconds that observers have at a worker's end, of the three that its farewell may take.
OBSERVER_SECONDS = 1.5


#: Where a data folder has what `agent.memory` keeps beyond conversations.
KNOWLEDGE, RELATIONSHIPS = "knowledge", "relationships.db"


@dataclass(frozen=True, slots=True)
class AgentDeps:
    """What the agents of one process share. `provider` answers in place of the configured models."""

    settings: Settings
    models: Models
    data: Path
    provider: Provider | None = None
    observers: tuple[AgentObserver, ...] = ()
    guardrails: GuardrailsPipeline | None = None
    budget: Budget | None = None
    cache: Cache | None = None
    results: MemoryResultCache = field(default_factory=MemoryResultCache)

    def provider_of(self, channel: str) -> Provider:
        """Who answers on a channel. Raises ConfigError."""
        return self.provider or self.models.of(channel)

    def config_of(self, channel: str) -> AgentConfig:
        """How the agent of a channel runs, but for its policy. Raises ConfigError for a model that cannot be asked."""
        if self.provider is not None:  # what is scripted answers to what it was scripted for
            return _plain_config(self.settings.agent_of(channel), channel)
        return _Fitting(self, channel).config()

    async def aclose(self) -> None:
        """Let observers finish what nobody waited for, then close the running event loop's connections to vendors."""
        await wait_for_observers(OBSERVER_SECONDS)
        await self.models.aclose()


def worker_outfit(
    settings: Settings,
    data: Path,
    *,
    media: LocalMediaStore,
    redis: Redis,
    redis_url: str,
    provider: Provider | None = None,
) -> AgentDeps:
    """What a worker's agents have; what is counted or cached in Redis they share with others. Raises ConfigError."""
    limits, cache, prefix = _limits(settings), settings.agent.cache, settings.key_prefix
    return AgentDeps(
        settings,
        Models(settings, lambda file: media.read(file.ref)),
        data,
        provider,
        _observers(settings),
        guardrails_of(settings),
        RedisBudget(redis, limits, prefix=f"{prefix}budget") if limits else None,
        _cache(cache, lambda ttl, url: RedisCache(url or redis_url, prefix=f"{prefix}cache:", default_ttl=ttl)),
    )


def lone_outfit(settings: Settings, data: Path) -> AgentDeps:
    """What an agent has that runs alone: only what it knows outlives it. Raises ConfigError."""
    limits, cache = _limits(settings), settings.agent.cache
    return AgentDeps(
        settings,
        Models(settings),
        data,
        None,
        _observers(settings),
        guardrails_of(settings),
        MemoryBudget(limits) if limits else None,
        _cache(cache, lambda ttl, _: InMemoryCache(default_ttl=ttl)),
    )


def idle_outfit(settings: Settings, data: Path, provider: Provider | None = None) -> AgentDeps:
    """For a process that makes agents and runs none, such as the web: no model, no library, no key."""
    return AgentDeps(settings, Models(settings), data, provider or OfflineProvider())


def preload_models(settings: Settings) -> None:
    """Import the libraries of all models of all channels. Raises ConfigError for one that cannot be asked."""
    outfit = AgentDeps(settings, Models(settings), Path())
    for channel in settings.channels:
        outfit.provider_of(channel)
        outfit.config_of(channel)
    outfit.models.preload()


def own_tools(settings: Settings) -> list[Tool]:
    """What every agent has besides the tools of its channel."""
    return [KnowledgeMemory().tool()] if settings.agent.memory.knowledge else []


def knowledge_in(data: Path) -> KnowledgeMemory:
    """Facts and notes of all people, below the data folder."""
    return KnowledgeMemory(data / KNOWLEDGE)


def _limits(settings: Settings) -> BudgetLimits | None:
    given = settings.agent.budget
    limits = BudgetLimits(given.conversation_tokens, given.conversation_usd, given.day_tokens, given.day_usd)
    return None if limits == BudgetLimits() else limits


def _cache(given: CacheSettings | None, in_redis: Callable[[float, str | None], Cache]) -> Cache | None:
    if given is None:
        return None
    if given.store == "redis":
        return in_redis(given.ttl, given.redis_url)
    return InMemoryCache(given.max_entries, given.ttl)


def _observers(settings: Settings) -> tuple[AgentObserver, ...]:
    """Those that hear of all channels; spans are made by one for each."""
    given, path = settings.agent.observe, ("agent", "observe")
    try:
        if given.otel:
            set_up_tracing()
    except TracingError as exc:
        raise ConfigError([f"{settings.origin.at(*path, 'otel')}agent.observe.otel: {exc}"]) from exc
    own = [made(settings, name, AgentObserver, (*path, "plugin", at)) for at, name in enumerate(given.plugin)]
    return (*([LoggingObserver()] if given.log else []), *own)


class _Fitting:
    """One channel's part of an outfit."""

    def __init__(self, outfit: AgentDeps, channel: str) -> None:
        self._outfit = outfit
        self._channel = channel
        self._agent = outfit.settings.agent_of(channel)

    def config(self) -> AgentConfig:
        outfit, agent = self._outfit, self._agent
        memory, guards, budget = agent.memory, agent.guards, agent.budget
        summariser, summary_model = self._beside("memory", "summarize")
        judge, judging_model = self._beside("guards", "coherence")
        return AgentConfig(
            **_basics(agent, self._channel),
            cache=outfit.cache,
            tool=self._tool_config(),
            max_total_tokens=budget.run_tokens,
            max_cost_usd=budget.run_usd,
            budget=outfit.budget,
            observers=self._observers(),
            guardrails=outfit.guardrails,
            loop_detector=LoopDetector(guards.loop) if guards.loop is not None else None,
            coherence_check=guards.coherence is not None,
            coherence_provider=judge,
            coherence_model=judging_model,
            coherence_fail_closed=guards.coherence is not None and guards.coherence.fail_closed,
            summarize_on_trim=memory.summarize is not None,
            summarize_provider=summariser,
            summarize_model=summary_model,
            entity_memory=self._entities(),
            knowledge_graph=self._relationships(),
            knowledge_memory=knowledge_in(outfit.data) if memory.knowledge else None,
        )

    def _beside(self, section: str, key: str) -> tuple[Provider | None, str | None]:
        side = getattr(getattr(self._agent, section), key)
        return self._outfit.models.beside(side, self._channel, section, key) if side is not None else (None, None)

    def _tool_config(self) -> ToolConfig:
        given = self._agent.results
        provider, model = (None, None)
        if given.compress:
            provider, model = self._outfit.models.beside(given, self._channel, "results")
        cache = self._outfit.results if given.cache else None
        return ToolConfig(given.compress, given.threshold, provider, model, cache)

    def _observers(self) -> tuple[AgentObserver, ...]:
        spans = [OpenTelemetryObserver(agent_name=self._channel)] if self._agent.observe.otel else []
        return (*self._outfit.observers, *spans)

    def _entities(self) -> EntityMemory | None:
        if self._agent.memory.entities is None:
            return None
        provider, model = self._beside("memory", "entities")
        return EntityMemory(provider or self._outfit.models.of(self._channel), model)

    def _relationships(self) -> KnowledgeGraphMemory | None:
        if self._agent.memory.relationships is None:
            return None
        provider, model = self._beside("memory", "relationships")
        path = self._outfit.data / RELATIONSHIPS
        return KnowledgeGraphMemory(provider or self._outfit.models.of(self._channel), model, "sqlite", path)


def _plain_config(agent: AgentSettings, channel: str) -> AgentConfig:
    return AgentConfig(**_basics(agent, channel))


def _basics(agent: AgentSettings, channel: str) -> dict[str, Any]:
    """What needs no other part."""
    return {
        "name": channel,
        "model": name_of(agent.model),
        "system_prompt": agent.system_prompt,
        **({"temperature": agent.temperature} if "temperature" in agent.model_fields_set else {}),
        "max_tokens": agent.max_tokens,
        "context_tokens": agent.context_tokens,
        "result_tokens": agent.results.max_tokens,
        "max_iterations": agent.max_iterations,
        "max_retries": agent.max_retries,
        "request_timeout": agent.request_timeout,
        "tool_timeout_seconds": agent.tool_timeout,
        "prices": agent.prices,
    }


def load_tools_of(
    settings: Settings, *, remote: bool = False, strict: bool = False, seconds: float = OPEN_SECONDS
) -> OpenTools:
    """As `open_tools`, and looks whether channels name tools that there are. Raises ConfigError."""
    opened = open_tools(settings, remote=remote, strict=strict, seconds=seconds)
    may_change = not strict and any(map(is_remote, settings.tools))
    if opened.problems or may_change:  # names that are not known now may be later
        return opened
    problems = _misnamed(settings, opened)
    if problems:
        opened.close()
        raise ConfigError(problems)
    return opened


def _misnamed(settings: Settings, opened: OpenTools) -> list[str]:
    """What in the channels names no tool, though all are known."""
    own = own_tools(settings)
    known = ", ".join(tool.name for tool in [*opened.tools, *own]) or "none"
    problems = [
        f"{settings.origin.at('channels', name, 'tools', index)}channels.{name}.tools: {pattern!r} names no tool; "
        f"known: {known}"
        for name, channel in settings.channels.items()
        for index, pattern in enumerate(channel.tools or ())
        if not (opened.select([pattern]).all() or any(fnmatchcase(tool.name, pattern) for tool in own))
    ]
    for name, channel in settings.channels.items():
        problems += misnamed(settings, name, [*opened.select(channel.tools).all(), *own])
    return problems


def agents_of(
    outfit: AgentDeps,
    opened: OpenTools,
    scripts: LuaScripts,
    media: LocalMediaStore,
    keys: list[str],
    journals: Journals,
    texts: TextStore,
) -> dict[str, ChannelAgent]:
    """Each channel's agent, with its store in Redis. Raises ConfigError for a selector or a model that cannot be."""
    return {
        name: _agent(outfit, name, opened, _redis_store(channel, scripts, keys), media, journals, texts)
        for name, channel in outfit.settings.channels.items()
    }


def follow(opened: OpenTools, settings: Settings, agents: Mapping[str, ChannelAgent]) -> None:
    """Take edits of the tools' files up as they are saved."""

    def replaced(source: str, loaded: LoadedTools) -> None:
        opened.replace(source, loaded)
        for kind, factory in loaded.executor_factories.items():
            for agent in agents.values():
                agent.store.register_executor_factory(kind, factory)

    ToolReloader(opened.watched, settings.origin.folder, replaced).start()


@contextmanager
def terminal_agent(
    settings: Settings,
    *,
    data: Path,
    channel: str | None,
    media: ArtifactStore | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[ChannelAgent]:
    """One channel's agent with everything in memory, for `sayso chat`; `tell` hears of tools that are missing.
    What tools make is kept in `media`.

    Its remote sources and its model are left at the end. Raises ConfigError.
    """
    os.environ.setdefault("SAYSO_DATA", str(data))
    open_data(data)
    name = channel or next(iter(settings.channels))
    if name not in settings.channels:
        raise ConfigError([f"no channel {name!r}; known: {', '.join(settings.channels)}"])
    outfit = lone_outfit(settings, data)
    opened = load_tools_of(settings, remote=True)
    try:
        for problem in opened.problems:
            tell(problem)
        yield _agent(outfit, name, opened, InMemoryPendingStore(parser_of(settings.channels[name])), media)
    finally:
        opened.close()
        run_sync(outfit.aclose())


def _redis_store(channel: AnyChannel, scripts: LuaScripts, keys: list[str]) -> RedisPendingStore:
    return RedisPendingStore(parser=parser_of(channel), scripts=scripts, secret_keys=keys)


def parser_of(channel: AnyChannel) -> RegexConfirmParser:
    """What is a yes in the languages of this channel."""
    return RegexConfirmParser(channel.languages, emoji=channel.confirm_emoji)


def _agent(
    outfit: AgentDeps,
    name: str,
    opened: OpenTools,
    store: BasePendingStore,
    media: ArtifactStore | None,
    journals: Journals | None = None,
    texts: TextStore | None = None,
) -> ChannelAgent:
    for kind, factory in opened.executor_factories.items():
        store.register_executor_factory(kind, factory)
    settings = outfit.settings
    channel, memory = settings.channels[name], settings.agent.memory
    agent = Agent(
        opened.select(channel.tools),
        outfit.provider_of(name),
        replace(outfit.config_of(name), tool_policy=tool_policy(channel.policy)),
        ConversationMemory(memory.max_messages, memory.max_tokens),
        build_selector(settings, name),
    )
    return ChannelAgent(
        agent,
        store,
        confirm_ttl=channel.confirm_ttl,
        media=media,
        journals=journals,
        texts=texts,
        language=channel.speaks,
        languages=channel.languages,
        expiry_notice=channel.expiry_notice,
        escalation=_escalation(settings, channel),
        commands=channel.commands,
        confirm_ok=channel.confirm_ok,
    )


def _escalation(settings: Settings, channel: AnyChannel) -> Escalation | None:
    """Operators are told in the language of the channel that they are on."""
    if channel.escalate is None:
        return None
    after, to = channel.escalate.after, channel.escalate.to
    return Escalation(after, Conversation(to.channel, to.chat, to.thread), settings.channels[to.channel].speaks)


def tool_policy(settings: PolicySettings | None) -> ToolPolicy | None:
    """The policy as it is configured."""
    if settings is None:
        return None
    deny_when = [rule.model_dump() for rule in settings.deny_when]
    return ToolPolicy(settings.allow, settings.review, settings.deny, deny_when)
