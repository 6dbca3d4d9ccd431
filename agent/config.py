"""AgentConfig: the settings of one agent, and the interfaces of the two caches that it accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from sayso.agent.guards.budget import Budget, RunBudget
from sayso.agent.guards.guardrails import GuardrailsPipeline
from sayso.agent.guards.loop_detection import LoopDetector
from sayso.agent.guards.policy import ConfirmAction, ToolPolicy
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.memory.sessions import SessionStore
from sayso.agent.messages import ToolCall
from sayso.agent.observability.builtin import warn_of_hooks
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.usage import AgentUsage
from sayso.agent.providers.base import DEFAULT_TEMPERATURE, Provider
from sayso.agent.providers.pricing import Price
from sayso.pending.context import ToolContext

#: Ends the run when it returns true for a tool's name and result. It may be async.
StopCondition = Callable[[str, str], bool | Awaitable[bool]]

#: Returns the model of a step, given its number, the calls so far and the agent's usage so far.
ModelSelector = Callable[[int, Sequence[ToolCall], AgentUsage], str]


class UnchosenModel(str):
    """The name of a default model.

    It equals a plain `str`; only its type shows that it was not chosen.
    """

    __slots__ = ()


#: The model where none was chosen (seed: AgentConfig). A provider with a
#: `default_model` is asked for that instead.
DEFAULT_MODEL = UnchosenModel("gpt-5-mini")

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant. Use the tools for facts and actions; never claim to have done what no tool did."

#: Tokens of one tool's result that the model reads in the turn of the call.
DEFAULT_RESULT_TOKENS = 8000

#: What a cache keeps: a pair. For an agent, a model's Message and its UsageStats.
CacheEntry = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How a cache was used since it was created or cleared.

    An eviction removes an entry to make room.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def total_requests(self) -> int:
        """Return the sum of hits and misses."""
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Return the share of hits, from 0 to 1; 0 before the first request."""
        if self.total_requests:
            return self.hits / self.total_requests
        return 0.0

    def __str__(self) -> str:
        counts = f"hits={self.hits}, misses={self.misses}, evictions={self.evictions}"
        return f"CacheStats({counts}, hit_rate={self.hit_rate:.2%})"


@runtime_checkable
class Cache(Protocol):
    """Cache of model answers.

    Called from the event loop, by all runs and threads at the same time.
    """

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of a key, or None if there is none or it has expired."""

    def set(self, key: str, value: CacheEntry, ttl: float | None = None) -> None:
        """Store an entry for `ttl` seconds; None: the cache's default.

        With 0 or less, nothing is stored.
        """

    def delete(self, key: str) -> bool:
        """Delete an entry. Return whether it existed."""
        ...

    def clear(self) -> None:
        """Delete all entries, and reset the counts."""

    @property
    def stats(self) -> CacheStats:
        """Return how this process has used the cache."""
        ...


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A tool's raw result and, if it was compressed, its summary with the mark that says so (seed:
    Cache integration).

    Neither is screened or shortened yet; that happens each time the result is shown to a model.
    """

    raw: str
    compressed: str = ""
    mark: str = ""


class ResultCache(Protocol):
    """Cache of tool results.

    Called from the event loop, by all runs at the same time. It may drop any entry.
    """

    def get(self, key: str) -> CachedResult | None:
        """Return the result of a key, or None if there is none or it has expired."""

    def put(self, key: str, result: CachedResult, ttl_seconds: float) -> None:
        """Store a result for some seconds."""


class DecisionLog(Protocol):
    """Notes the decisions about calls, so that the first one counts and no call runs twice.

    Called in threads, by all runs.
    """

    def begin(self, key: str) -> str | None:
        """Note a decision before it is carried out, in one atomic step. Return None the first time.

        Later return the text that `end` was given, or "" if there is none:
        how the call ended is unknown.
        """

    def end(self, key: str, outcome: str) -> None:
        """Keep how the call of this key ended."""


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """How tool results are compressed and cached (seed: Tool Result Compression).

    With `compress_results`, a result of more than `compress_threshold` characters is summarized
    before the model reads it, by `compress_model` of `compress_provider` (default: the agent's
    own). `cache` stores results of `cacheable` tools; without a cache, none are stored.
    """

    compress_results: bool = False
    compress_threshold: int = 2000
    compress_provider: Provider | None = None
    compress_model: str | None = None
    cache: ResultCache | None = None

    def __post_init__(self) -> None:
        if self.compress_provider is not None and not self.compress_model:
            raise ValueError(
                f"compress_provider={self.compress_provider!r} needs a compress_model: "
                "the agent's own model is rarely known to another provider"
            )
        if self.compress_threshold < 1:
            raise ValueError(
                f"compress_threshold={self.compress_threshold!r} leaves nothing to read: use 1 or more"
            )


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The settings of one agent, immutable (seed: AgentConfig Dataclass).

    Times are in seconds, costs in US dollars.
    """

    name: str = "agent"
    model: str = DEFAULT_MODEL
    #: `system_prompt` may be a function. It is called for each model call with the ToolContext of
    #: the current user. A text that differs from call to call keeps all that follows it out of the
    #: vendor's cache. With `pause_for_approval` a run ends with `stop_reason` "pending" at a call
    #: that needs an approval, and goes on with `run(paused=..., decisions=...)`.
    system_prompt: str | Callable[[ToolContext], str] = DEFAULT_SYSTEM_PROMPT
    temperature: float | None = DEFAULT_TEMPERATURE
    max_tokens: int = 1000
    #: The context window of the model (None: as the vendor states it).
    context_tokens: int | None = None
    #: How much of one tool's result the model reads in the turn of the call, at most a quarter of
    #: the window. The rest it can read with the tool `read_result`; later turns have the beginning
    #: and the end.
    result_tokens: int = DEFAULT_RESULT_TOKENS
    model_selector: ModelSelector | None = None

    max_iterations: int = 6
    routing_only: bool = False
    parallel_tool_execution: bool = True
    stop_condition: StopCondition | None = None
    #: None: a run that repeats itself ends only at `max_iterations`.
    loop_detector: LoopDetector | None = field(default_factory=LoopDetector)

    max_retries: int = 2
    retry_backoff_seconds: float = 1.0
    rate_limit_cooldown_seconds: float = 5.0
    request_timeout: float | None = 30.0
    tool_timeout_seconds: float | None = None

    #: Print the reply while it arrives, unless a `stream_handler` receives it.
    stream: bool = False
    #: Print the events of each run.
    verbose: bool = False
    cache: Cache | None = None
    tool: ToolConfig = field(default_factory=ToolConfig)

    cost_warning_threshold: float | None = None
    #: `prices` adds models that no price list has: the price of a million prompt tokens and a
    #: million completion tokens, and, if they differ, of a million tokens read from and written to
    #: the vendor's prompt cache. A `temperature` of None is not sent to the vendor.
    prices: Mapping[str, Price] = field(default_factory=dict)
    #: `max_total_tokens` and `max_cost_usd` limit one run; a `budget` limits a conversation and a
    #: day.
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    budget: Budget | None = None

    observers: Sequence[AgentObserver] = ()
    #: Deprecated (seed: Hook System): use an observer.
    hooks: Mapping[str, Callable[..., object]] | None = None
    enable_analytics: bool = False
    parent_run_id: str | None = None
    trace_metadata: Mapping[str, Any] = field(default_factory=dict)
    #: Characters of a tool's result that a trace keeps; None for all.
    trace_tool_result_chars: int | None = 200

    tool_policy: ToolPolicy | None = None
    confirm_action: ConfirmAction | None = None
    approval_timeout: float = 60.0
    pause_for_approval: bool = False
    #: `decision_log` notes each decision before it takes effect (None: in this process).
    decision_log: DecisionLog | None = None
    guardrails: GuardrailsPipeline | None = None
    coherence_check: bool = False
    coherence_provider: Provider | None = None
    coherence_model: str | None = None
    coherence_fail_closed: bool = False

    session_store: SessionStore | None = None
    session_id: str | None = None
    summarize_on_trim: bool = False
    summarize_provider: Provider | None = None
    summarize_model: str | None = None
    summarize_max_tokens: int = 150
    entity_memory: EntityMemory | None = None
    knowledge_graph: KnowledgeGraphMemory | None = None
    knowledge_memory: KnowledgeMemory | None = None
    #: `conversation_secret` makes the keys that tell vendors which requests belong to one
    #: conversation; processes that share conversations need the same (default: made of
    #: SAYSO_SECRET_KEYS of the environment).
    conversation_secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        # Raises for a bad limit now rather than during a run.
        RunBudget(self.max_total_tokens, self.max_cost_usd)
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value!r} is too little: use {least} or more")
        for model, price in self.prices.items():
            if len(price) not in (2, 4):
                raise ValueError(
                    f"prices[{model!r}]={price!r}: give two numbers, or four with those of the prompt cache"
                )
        if self.coherence_provider is not None and not self.coherence_model:
            raise ValueError(
                "coherence_provider needs a coherence_model: another provider rarely knows the agent's own model"
            )
        if (self.session_store is None) != (self.session_id is None):
            raise ValueError("session_store and session_id belong together: give both or neither")
        if self.pause_for_approval and self.confirm_action is not None:
            raise ValueError(
                "confirm_action decides during a run, and pause_for_approval ends it: give one of them"
            )
        if self.hooks is not None:
            warn_of_hooks(stacklevel=4)

    def for_provider(self, provider: Provider) -> AgentConfig:
        """Return these settings for runs with a provider:
        `model` is "" where its own default model is meant.
        """
        if not isinstance(self.model, UnchosenModel) or not getattr(
            provider, "default_model", None
        ):
            return self
        return replace(self, model="", hooks=None)  # the warning of hooks was given

    @property
    def run_budget(self) -> RunBudget | None:
        """Return what one run may spend; None without a limit."""
        is_limited = self.max_total_tokens is not None or self.max_cost_usd is not None
        if is_limited:
            return RunBudget(self.max_total_tokens, self.max_cost_usd)
        return None


#: The smallest valid value of each setting.
_MINIMUM: Mapping[str, float] = {
    "max_iterations": 1,
    "max_retries": 0,
    "max_tokens": 1,
    "retry_backoff_seconds": 0,
    "rate_limit_cooldown_seconds": 0,
    "summarize_max_tokens": 1,
    "approval_timeout": 0,
    "context_tokens": 1000,
    "result_tokens": 100,
}
