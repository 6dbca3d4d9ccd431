"""Outfit: all that agents have besides their tools, as a configuration says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.agent import (
    AgentConfig,
    BudgetLimits,
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
)
from sayso.agent.budget import Budget
from sayso.agent.cache import Cache
from sayso.agent.chronicle import wait_for_observers
from sayso.agent.guards import GuardrailsPipeline
from sayso.agent.observers import AgentObserver
from sayso.agent.providers import Provider
from sayso.channels.media import LocalMediaStore
from sayso.config.agent_schema import AgentSettings, CacheSettings, name_of
from sayso.config.guardrails import guardrails_of
from sayso.config.loader import ConfigError
from sayso.config.models import Models
from sayso.config.plugins import made
from sayso.config.schema import Settings
from sayso.config.tracing import TracingError, set_up_tracing

#: Seconds that observers have at a worker's end, of the three that its farewell may take.
OBSERVER_SECONDS = 1.5
#: Where a data folder has what `agent.memory` keeps beyond conversations.
KNOWLEDGE, RELATIONSHIPS = "knowledge", "relationships.db"


@dataclass(frozen=True, slots=True)
class Outfit:
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
) -> Outfit:
    """What a worker's agents have; what is counted or cached in Redis they share with others. Raises ConfigError."""
    limits, cache, prefix = _limits(settings), settings.agent.cache, settings.key_prefix
    return Outfit(
        settings,
        Models(settings, lambda file: media.read(file.ref)),
        data,
        provider,
        _observers(settings),
        guardrails_of(settings),
        RedisBudget(redis, limits, prefix=f"{prefix}budget") if limits else None,
        _cache(cache, lambda ttl, url: RedisCache(url or redis_url, prefix=f"{prefix}cache:", default_ttl=ttl)),
    )


def lone_outfit(settings: Settings, data: Path) -> Outfit:
    """What an agent has that runs alone: only what it knows outlives it. Raises ConfigError."""
    limits, cache = _limits(settings), settings.agent.cache
    return Outfit(
        settings,
        Models(settings),
        data,
        None,
        _observers(settings),
        guardrails_of(settings),
        MemoryBudget(limits) if limits else None,
        _cache(cache, lambda ttl, _: InMemoryCache(default_ttl=ttl)),
    )


def idle_outfit(settings: Settings, data: Path, provider: Provider | None = None) -> Outfit:
    """For a process that makes agents and runs none, such as the web: no model, no library, no key."""
    return Outfit(settings, Models(settings), data, provider or OfflineProvider())


def preload_models(settings: Settings) -> None:
    """Import the libraries of all models of all channels. Raises ConfigError for one that cannot be asked."""
    outfit = Outfit(settings, Models(settings), Path())
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

    def __init__(self, outfit: Outfit, channel: str) -> None:
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
