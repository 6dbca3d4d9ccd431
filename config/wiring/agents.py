"""Build the agents of all channels from the settings.

`AgentDeps` is what the agents of one process share, such as the connections to models and the
budget. `build_agents` makes the agent of each channel, whose pending actions are in Redis.
`terminal_agent` makes the one of `sayso chat`, with everything in memory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

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
    OpenTelemetryObserver,
    RedisBudget,
    RedisCache,
    Tool,
    ToolConfig,
    ToolPolicy,
)
from sayso.agent.channel.behavior import ChannelBehavior, Escalation
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.channel.turn_journal import RedisJournals
from sayso.agent.config import Cache
from sayso.agent.guards.budget import Budget
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.guards.guardrails import (
    Guardrail,
    GuardrailAction,
    GuardrailsPipeline,
    InjectionGuardrail,
    LengthGuardrail,
    PatternGuardrail,
    TopicGuardrail,
)
from sayso.agent.observability.builtin import MetricsObserver
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.run_events import wait_for_observers
from sayso.agent.providers.base import Provider
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.run.conversation_key import conversation_secret
from sayso.agent.tools.loading import LoadedTools, ToolReloader
from sayso.channels.base import MediaStore
from sayso.channels.media_store import MediaFiles
from sayso.channels.types import Conversation, Media
from sayso.config.settings.agent import (
    OFFLINE,
    AgentSettings,
    CoherenceSettings,
    GuardrailSettings,
    SideSettings,
    name_of,
)
from sayso.config.settings.channels import AnyChannel, PolicySettings
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.settings.standing import limit_of
from sayso.config.settings.tools import YamlPath
from sayso.config.wiring.data_folder import open_data
from sayso.config.wiring.models import Models
from sayso.config.wiring.observability import TracingError, set_up_tracing
from sayso.config.wiring.people import people_config
from sayso.config.wiring.redis_parts import RedisParts
from sayso.config.wiring.tools import (
    OPEN_SECONDS,
    OpenTools,
    build_selector,
    is_remote,
    open_tools,
    unknown_names,
)
from sayso.infra.concurrency import run_sync
from sayso.pending import InMemoryPendingStore, RedisPendingStore, RegexConfirmParser
from sayso.pending.action import After
from sayso.pending.approvals.directory import ConfiguredDirectory
from sayso.pending.approvals.people import PeopleDirectory
from sayso.pending.approvals.self_service import SelfService
from sayso.pending.error_texts import error_text
from sayso.pending.repository import NoteEffect
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.store import PendingActionStore

T = TypeVar("T")

#: How long observers may take when a worker stops, in seconds.
#: A worker has three seconds for all of its last tasks.
OBSERVER_SECONDS = 1.5
#: Where a data folder holds what `agent.memory` stores beyond conversations.
KNOWLEDGE = "knowledge"
RELATIONSHIPS = "relationships.db"


@dataclass(frozen=True, slots=True)
class AgentDeps:
    """What the agents of one process share. Lives as long as the process."""

    settings: Settings
    models: Models
    #: The data folder, where memories beyond conversations are stored.
    data: Path
    #: What answers in place of the configured models, such as the script of a benchmark; None for
    #: the configured models. `config_of` says what an agent then goes without.
    provider: Provider | None = None
    #: The observers of all channels. Each channel adds another one for spans.
    observers: tuple[AgentObserver, ...] = ()
    #: The checks of what people and models write; None without any.
    guardrails: GuardrailsPipeline | None = None
    #: What may be spent on a conversation and a day; None without a limit.
    budget: Budget | None = None
    #: Answers of models that are given again; None where `agent.cache` is off.
    cache: Cache | None = None
    #: Results of tools that are used again, where `agent.results.cache` is on.
    result_cache: MemoryResultCache = field(default_factory=MemoryResultCache)

    @classmethod
    def open(
        cls,
        settings: Settings,
        data: Path,
        *,
        media: MediaFiles | None = None,
        redis: RedisParts | None = None,
        provider: Provider | None = None,
    ) -> AgentDeps:
        """Return the dependencies of agents that run. Raises ConfigError.

        `media` has the files that people send; without it models are shown none. Without `redis`
        the budget and the cache are those of a single process, such as `sayso chat`, and end
        with it. `provider` answers in place of the configured models.
        """
        read_file = None
        if media:
            read_file = partial(_read_file, media)
        return cls(
            settings,
            Models(settings, read_file),
            data,
            provider,
            observers=_observers(settings),
            guardrails=_guardrails(settings),
            budget=_budget(settings, redis),
            cache=_cache(settings, redis),
        )

    def provider_of(self, channel: str) -> Provider:
        """Return the provider that answers on a channel. Raises ConfigError."""
        return self.provider or self.models.of(channel)

    def config_of(self, channel: str) -> AgentConfig:
        """Return the configuration of a channel's agent, without its policy.

        With a given `provider` the configuration has only plain values: no summary, check or memory
        by a model, no guardrails, budget, cache, observers and loop detector, and no tool
        `remember`. Raises ConfigError for a model that cannot be asked.
        """
        agent = self.settings.agent_of(channel)
        # A given provider is the script of a benchmark, or stands for a model in the web process,
        # which runs no agent. A script has answers for the conversation alone, and every request
        # must reach it: a cache, a guardrail or a budget would answer or refuse in its place.
        if self.provider is not None:
            return AgentConfig(**_basic_config(agent, channel))
        return _whole_config(self, agent, channel)

    async def aclose(self) -> None:
        """Wait for observers, then close the running event loop's connections to vendors."""
        await wait_for_observers(OBSERVER_SECONDS)
        await self.models.aclose()


def _read_file(media: MediaFiles, file: Media) -> bytes:
    """Return the content of a file that a person sent. Raises KeyError and OSError."""
    return media.read(file.ref)


def _budget(settings: Settings, redis: RedisParts | None) -> Budget | None:
    """Return what counts the spending of conversations and days, None without such a limit."""
    budget = settings.agent.budget
    limits = BudgetLimits(
        conversation_tokens=budget.conversation_tokens,
        conversation_usd=budget.conversation_usd,
        day_tokens=budget.day_tokens,
        day_usd=budget.day_usd,
    )
    if limits == BudgetLimits():
        return None
    if redis:
        return RedisBudget(redis.client, limits, prefix=f"{redis.key_prefix}budget")
    return MemoryBudget(limits)


def _cache(settings: Settings, redis: RedisParts | None) -> Cache | None:
    """Return the cache of answers, None where it is off. Without a Redis it is in memory."""
    cache = settings.agent.cache
    if cache is None:
        return None
    if cache.store == "redis" and redis:
        # Answers may be in another Redis than the conversations, so the cache makes its own client.
        url = cache.redis_url or redis.url
        return RedisCache(url, prefix=f"{redis.key_prefix}cache:", default_ttl=cache.ttl)
    return InMemoryCache(cache.max_entries, cache.ttl)


def _observers(settings: Settings) -> tuple[AgentObserver, ...]:
    """Return the observers that all channels share. Raises ConfigError for an unusable plugin."""
    observe = settings.agent.observe
    trace_if_configured(settings)
    observers: list[AgentObserver] = [MetricsObserver()]
    if observe.log:
        observers.append(LoggingObserver())
    for index, name in enumerate(observe.plugin):
        path = ("agent", "observe", "plugin", index)
        observers.append(load_plugin(settings, name, AgentObserver, path))
    return tuple(observers)


def trace_if_configured(settings: Settings) -> None:
    """Record spans in this process from now on, if `agent.observe.otel` says so.

    Raises ConfigError.
    """
    try:
        if settings.agent.observe.otel:
            set_up_tracing()
    except TracingError as exc:
        raise ConfigError([settings.problem(("agent", "observe", "otel"), str(exc))]) from exc


def _guardrails(settings: Settings) -> GuardrailsPipeline | None:
    """Return the guardrails of both stages, None without any.

    Raises ConfigError for one that cannot be built.
    """
    guards = settings.agent.guards
    if not guards.input and not guards.output:
        return None

    def build_stage(stage: str, configured: Sequence[GuardrailSettings]) -> list[Guardrail]:
        return [
            _guardrail(settings, each, ("agent", "guards", stage, index))
            for index, each in enumerate(configured)
        ]

    return GuardrailsPipeline(
        build_stage("input", guards.input), build_stage("output", guards.output)
    )


def _guardrail(settings: Settings, guardrail: GuardrailSettings, path: YamlPath) -> Guardrail:
    """Return one guardrail. Its section stands at `path`, which errors name."""
    if guardrail.plugin is not None:
        return load_plugin(settings, guardrail.plugin, Guardrail, (*path, "plugin"))
    action = GuardrailAction(guardrail.action or "block")
    try:
        if guardrail.topic is not None:
            return TopicGuardrail(guardrail.topic, action=action)
        if guardrail.pattern is not None:
            return PatternGuardrail(guardrail.pattern, action)
        if guardrail.length is not None:
            return LengthGuardrail(guardrail.length.max, guardrail.length.min, action=action)
        return InjectionGuardrail(action=action)
    except (ValueError, re.error) as exc:
        raise ConfigError([settings.problem(path, str(exc))]) from exc


def load_plugin(settings: Settings, name: str, kind: type[T], path: YamlPath) -> T:
    """Import the class `module:Class` and return an instance, created without arguments.

    Modules in the folder of the YAML are found, too. Raises ConfigError, which names the line at
    `path`, also for an instance that is not a `kind`.
    """
    try:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise ValueError("write it as module:Class")
        if str(settings.origin.folder) not in sys.path:
            sys.path.append(str(settings.origin.folder))
        plugin_class = getattr(import_module(module), attribute)
        instance: Any = plugin_class()
        if not isinstance(instance, kind):
            raise TypeError(f"it is no {kind.__name__}")
    except (Exception, SystemExit) as exc:
        says = f"cannot make {name!r}: {type(exc).__name__}: {error_text(exc)}"
        raise ConfigError([settings.problem(path, says)]) from exc
    return instance


def _whole_config(deps: AgentDeps, agent: AgentSettings, channel: str) -> AgentConfig:
    """Return the configuration of a channel's agent, with everything that the settings ask for.

    Tasks outside of the conversation, such as a summary, may have another model. Where
    `Models.for_side_task` returns None for it, the agent asks the model of the conversation.
    Raises ConfigError for a model that cannot be asked.
    """
    memory = agent.memory
    guards = agent.guards
    summary_provider, summary_model = deps.models.for_side_task(
        memory.summarize, channel, "memory", "summarize"
    )
    loop_detector = None
    if guards.loop is not None:
        loop_detector = LoopDetector(guards.loop)
    observers = deps.observers
    if agent.observe.otel:
        observers = (*observers, OpenTelemetryObserver(agent_name=channel))

    return AgentConfig(
        **_basic_config(agent, channel),
        cache=deps.cache,
        tool=_result_config(deps, agent, channel),
        max_total_tokens=agent.budget.run_tokens,
        max_cost_usd=agent.budget.run_usd,
        budget=deps.budget,
        observers=observers,
        guardrails=deps.guardrails,
        loop_detector=loop_detector,
        coherence=_coherence_check(deps, guards.coherence, channel),
        summarize_on_trim=memory.summarize is not None,
        summarize_provider=summary_provider,
        summarize_model=summary_model,
        entity_memory=_entity_memory(deps, memory.entities, channel),
        knowledge_graph=_knowledge_graph(deps, memory.relationships, channel),
        knowledge_memory=knowledge_memory(deps.data) if memory.knowledge else None,
    )


def _result_config(deps: AgentDeps, agent: AgentSettings, channel: str) -> ToolConfig:
    """Return how the results of tools are compressed and cached."""
    results = agent.results
    provider, model = deps.models.for_side_task(
        results if results.compress else None, channel, "results"
    )
    return ToolConfig(
        compress_results=results.compress,
        compress_threshold=results.threshold,
        compress_provider=provider,
        compress_model=model,
        cache=deps.result_cache if results.cache else None,
    )


def _coherence_check(
    deps: AgentDeps, settings: CoherenceSettings | None, channel: str
) -> CoherenceCheck | None:
    """Return the check of calls by a model, None where it is off."""
    if settings is None:
        return None
    provider, model = deps.models.for_side_task(settings, channel, "guards", "coherence")
    return CoherenceCheck(provider=provider, model=model, fail_closed=settings.fail_closed)


def _entity_memory(
    deps: AgentDeps, settings: SideSettings | None, channel: str
) -> EntityMemory | None:
    """Return the memory of entities, None where it is off.

    It is a template: the entities of each conversation are stored with its history.
    """
    if settings is None:
        return None
    provider, model = deps.models.for_side_task(settings, channel, "memory", "entities")
    return EntityMemory(provider or deps.models.of(channel), model)


def _knowledge_graph(
    deps: AgentDeps, settings: SideSettings | None, channel: str
) -> KnowledgeGraphMemory | None:
    """Return the memory of relationships, stored in the data folder; None where it is off."""
    if settings is None:
        return None
    provider, model = deps.models.for_side_task(settings, channel, "memory", "relationships")
    return KnowledgeGraphMemory(
        provider or deps.models.of(channel),
        model,
        storage="sqlite",
        path=deps.data / RELATIONSHIPS,
    )


def _basic_config(agent: AgentSettings, channel: str) -> dict[str, Any]:
    """Return the arguments of AgentConfig that are plain values."""
    values = {
        "name": channel,
        "model": name_of(agent.model),
        "system_prompt": agent.system_prompt,
        "max_tokens": agent.max_tokens,
        "context_tokens": agent.context_tokens,
        "result_tokens": agent.results.max_tokens,
        "max_iterations": agent.max_iterations,
        "max_retries": agent.max_retries,
        "request_timeout": agent.request_timeout,
        "tool_timeout_seconds": agent.tool_timeout,
        "prices": agent.prices,
    }
    # A model that no price list knows is sent only a temperature that was chosen, since it may
    # refuse every other one. So the default must not look chosen.
    if "temperature" in agent.model_fields_set:
        values["temperature"] = agent.temperature
    return values


def own_tools(settings: Settings) -> list[Tool]:
    """Return the tools that every agent has besides those of its channel, to be read, not called.

    It is the tool `remember`, where `agent.memory.knowledge` is on. Checks and descriptions read
    its name, arguments and hints.
    """
    if settings.agent.memory.knowledge:
        # Without a folder: the tool that agents call is that of `knowledge_memory`.
        return [KnowledgeMemory().tool()]
    return []


def knowledge_memory(data: Path) -> KnowledgeMemory:
    """Return the facts and notes of all people, stored in the data folder."""
    return KnowledgeMemory(data / KNOWLEDGE)


def load_bot_tools(
    settings: Settings, *, remote: bool = False, strict: bool = False, seconds: float = OPEN_SECONDS
) -> OpenTools:
    """Load tools like `open_tools`, and check that the tools named by channels exist.

    Names are not checked while some tools are unknown: a source that was not asked, or that does
    not answer now, may have them. Where a source is remote, only a `strict` call that asks it
    (`remote`) checks names, which is what `sayso check` makes. Raises ConfigError like
    `open_tools`, and for names of no tool.
    """
    opened = open_tools(settings, remote=remote, strict=strict, seconds=seconds)
    if opened.problems:
        return opened

    # A server may rename or remove a tool at any time. A bot that ran yesterday must start today
    # all the same, so only `sayso check` refuses such a name.
    has_remote = any(map(is_remote, settings.tools))
    checks_remote_names = strict and remote
    if has_remote and not checks_remote_names:
        return opened

    own = own_tools(settings)
    own_names = [tool.name for tool in own]
    known = ", ".join([*(tool.name for tool in opened.tools), *own_names]) or "none"
    problems = []
    for name, channel in settings.channels.items():
        for index, pattern in enumerate(channel.tools or ()):
            is_own = any(fnmatchcase(own_name, pattern) for own_name in own_names)
            if not is_own and not opened.select([pattern]).all():
                says = f"{pattern!r} names no tool; known: {known}"
                problems.append(settings.problem(("channels", name, "tools"), says, index))
    for name, channel in settings.channels.items():
        problems += unknown_names(settings, name, [*opened.select(channel.tools).all(), *own])
    if problems:
        opened.close()
        raise ConfigError(problems)
    return opened


def build_agents(
    deps: AgentDeps,
    opened: OpenTools,
    scripts: ShardedScripts,
    media: MediaFiles,
    keys: list[str],
    journals: RedisJournals,
    texts: TextFiles,
    people: PeopleDirectory,
    self_service: SelfService | None,
    note_effect: NoteEffect,
) -> dict[str, ChannelAgent]:
    """Return the agent of each channel by the channel's name. Its pending actions are in Redis.

    `scripts` are those about actions. `keys` are the secret keys, the newest first: they sign
    stored actions. `journals` store the steps of a turn, and `texts` long texts. `people` finds the
    people who decide about actions of others; with `self_service` people may join accounts and say
    that they are away. `note_effect` is called right before the effect of a
    confirmed action and with its result: it notes both outside of Redis.
    Raises ConfigError for a selector or a model that cannot be built.
    """
    agents = {}
    for name, channel in deps.settings.channels.items():
        store = RedisPendingStore(
            parser=confirm_parser(channel),
            scripts=scripts,
            secret_keys=keys,
            note_effect=note_effect,
        )
        agents[name] = _build_agent(
            deps,
            name,
            opened,
            store,
            keys,
            media,
            people,
            self_service=self_service,
            journals=journals,
            texts=texts,
        )
    return agents


def reload_on_edit(
    opened: OpenTools, settings: Settings, agents: Mapping[str, ChannelAgent]
) -> None:
    """Load the files of tools again whenever they are saved, for as long as the process runs.

    Their executor factories, which make the functions that run confirmed actions, are replaced in
    the store of each of the `agents`.
    """

    def replace_tools(source: str, loaded: LoadedTools) -> None:
        opened.replace_source(source, loaded)
        for kind, factory in loaded.executor_factories.items():
            for agent in agents.values():
                agent.store.register_executor_factory(kind, factory)

    ToolReloader(opened.watched, settings.origin.folder, replace_tools).start()


@contextmanager
def terminal_agent(
    settings: Settings,
    *,
    data: Path,
    media: MediaStore | None = None,
    report_problem: Callable[[str], object] = lambda _: None,
) -> Iterator[ChannelAgent]:
    """Yield the agent of the first channel, with everything in memory.

    Files that tools make are stored in `media`. `report_problem` is called for each tool that could
    not be loaded. The connections to models and sources of tools are closed at the end. Raises
    ConfigError.
    """
    os.environ.setdefault("SAYSO_DATA", str(data))  # tools of the user may store files there
    keys = open_data(data)
    name = next(iter(settings.channels))
    deps = AgentDeps.open(settings, data)
    opened = load_bot_tools(settings, remote=True)
    try:
        for problem in opened.problems:
            report_problem(problem)
        store = InMemoryPendingStore(confirm_parser(settings.channels[name]))
        people = ConfiguredDirectory(people_config(settings), channels={})
        agent = _build_agent(deps, name, opened, store, keys, media, people)
        deps.models.preload()  # a missing library is reported before the first question
        yield agent
    finally:
        opened.close()
        run_sync(deps.aclose())


def confirm_parser(channel: AnyChannel) -> RegexConfirmParser:
    """Return the parser that knows a yes and a no in the languages of a channel."""
    return RegexConfirmParser(channel.languages, emoji=channel.confirm_emoji)


def _build_agent(
    deps: AgentDeps,
    name: str,
    opened: OpenTools,
    store: PendingActionStore,
    keys: list[str],
    media: MediaStore | None,
    people: PeopleDirectory,
    *,
    self_service: SelfService | None = None,
    journals: RedisJournals | None = None,
    texts: TextFiles | None = None,
) -> ChannelAgent:
    """Return the agent of one channel, with the channel's tools, policy and behavior.

    Without `journals` no step of a turn is stored, and without `texts` no long text.
    """
    # A stored action names a kind. What runs it is made by the factory of that kind.
    for kind, factory in opened.executor_factories.items():
        store.register_executor_factory(kind, factory)

    settings = deps.settings
    channel = settings.channels[name]
    memory = settings.agent.memory
    config = replace(
        deps.config_of(name),
        tool_policy=tool_policy(channel.policy),
        conversation_secret=conversation_secret(keys),
    )
    agent = Agent(
        opened.select(channel.tools),
        deps.provider_of(name),
        config,
        ConversationMemory(memory.max_messages, memory.max_tokens),
        build_selector(settings, name),
    )

    return ChannelAgent(
        agent,
        store,
        behavior=ChannelBehavior(
            confirm_ttl=channel.confirm_ttl,
            language=channel.default_language,
            languages=channel.languages,
            expiry_notice=channel.expiry_notice,
            escalation=_escalation(settings, channel),
            commands=channel.commands,
            confirm_ok=channel.confirm_ok,
            is_one_message=channel.charges_per_message,
            max_buttons=channel.max_buttons,
            after=channel_after(settings, name, deps.provider),
            other_message=channel.other_message,
        ),
        media=media,
        journals=journals,
        texts=texts,
        people=people,
        self_service=self_service,
    )


def channel_after(settings: Settings, channel: str, provider: Provider | None = None) -> After:
    """Return what follows the outcome of an action on a channel if policy and tool do not say it.

    `provider`: what answers in place of the configured model, None for that model. The offline
    model cannot go on with a request: it reads commands.
    """
    configured = settings.channels[channel].after
    if configured is not None:
        return configured

    if provider is not None:
        is_offline = isinstance(provider, OfflineProvider)
    else:
        is_offline = settings.agent_of(channel).model == OFFLINE
    return "say" if is_offline else "continue"


def _escalation(settings: Settings, channel: AnyChannel) -> Escalation | None:
    """Return after how long, and where, operators are told of an unanswered question.

    They read it in the language of the channel they are on. Return None without `escalate`.
    """
    if channel.escalate is None:
        return None
    to = channel.escalate.to
    operators = Conversation(to.channel, to.chat, to.thread)
    language = settings.channels[to.channel].default_language
    return Escalation(channel.escalate.after, operators, language)


def tool_policy(settings: PolicySettings | None) -> ToolPolicy | None:
    """Return the policy of a channel, None where it has none."""
    if settings is None:
        return None
    deny_when = [rule.model_dump() for rule in settings.deny_when]
    return ToolPolicy(
        allow=settings.allow,
        review=settings.review,
        deny=settings.deny,
        deny_when=deny_when,
        after=settings.after,
        editable=settings.editable,
        approval={pattern: each.rule for pattern, each in settings.approval.items()},
        standing={pattern: limit_of(each) for pattern, each in settings.standing.items()},
    )
