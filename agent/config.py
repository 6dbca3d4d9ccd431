"""AgentConfig: the settings of one agent, and the ports that they take: two caches, a decision log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from sayso.agent.guards.budget import Budget, RunBudget
from sayso.agent.guards.coherence import CoherenceCheck
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
from sayso.pending.tool_context import ToolContext

#: Ends the run when it returns true for a tool's name and result. It may be async.
StopCondition = Callable[[str, str], bool | Awaitable[bool]]

#: Returns the model of a step, given its number, the calls so far and the agent's usage so far.
ModelSelector = Callable[[int, Sequence[ToolCall], AgentUsage], str]


class UnchosenModel(str):
    """The name of the default model. It equals a plain `str`; its type shows that it is a default.

    `AgentConfig.model` is documented to be "gpt-5-mini" where none is given. A provider of another
    vendor does not know that model, so its own default is used, but not where a program has chosen
    "gpt-5-mini" itself. A plain string could not tell the two apart.
    """

    __slots__ = ()


#: The model where none was chosen. A provider with a `default_model` is asked for that instead.
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
    """A tool's result in a ResultCache: `raw`, and its summary if it was compressed.

    `mark` stands before the summary and says that it is one. Neither text is screened or shortened
    yet: that happens each time the result is shown to a model.
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
    """How tool results are compressed and cached.

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
    """The settings of one agent. Immutable: `dataclasses.replace` makes another.

    Times are in seconds, costs in US dollars. Creating one raises ValueError for a setting that
    cannot work. The names and defaults up to `knowledge_memory` are documented elsewhere, too:
    docs/reference/deviations.md says where they differ.
    """

    # What is asked of the model.

    #: The agent's name in logs, spans and for other agents.
    name: str = "agent"
    #: The model. By default, the provider's own `default_model` is used if it has one.
    model: str = DEFAULT_MODEL
    #: Instructions for the model. A function is called for each model call with the ToolContext of
    #: the current user. A text that differs from call to call keeps all that follows it out of the
    #: vendor's cache.
    system_prompt: str | Callable[[ToolContext], str] = DEFAULT_SYSTEM_PROMPT
    #: How freely the model words its answer, from 0. None is not sent.
    temperature: float | None = DEFAULT_TEMPERATURE
    #: Tokens of one answer at most.
    max_tokens: int = 1000
    #: The context window of the model in tokens. None: what its vendor states.
    context_tokens: int | None = None
    #: Tokens of one tool's result that the model reads in the turn of the call, at most a quarter of
    #: the window. It can read the rest with the tool `read_result`; later turns have the beginning
    #: and the end.
    result_tokens: int = DEFAULT_RESULT_TOKENS
    #: Chooses the model of each iteration. None: always `model`.
    model_selector: ModelSelector | None = None

    # The loop: how a run goes on and ends.

    #: Model calls of one run at most.
    max_iterations: int = 6
    #: Return the calls that the model chose, and run none of them.
    routing_only: bool = False
    #: Run the calls of one answer at the same time.
    parallel_tool_execution: bool = True
    #: Ends the run with the result of a tool. None: only the model ends it.
    stop_condition: StopCondition | None = None
    #: Notices repeated calls. None: a run that repeats itself ends only at `max_iterations`.
    loop_detector: LoopDetector | None = field(default_factory=LoopDetector)

    # Failures and time limits.

    #: Further attempts after a failed model call.
    max_retries: int = 2
    #: The pause before a retry is this, times the number of the attempt.
    retry_backoff_seconds: float = 1.0
    #: Added to the pause after a rate limit, times the number of the attempt.
    rate_limit_cooldown_seconds: float = 5.0
    #: The limit of one attempt; None for no limit.
    request_timeout: float | None = 30.0
    #: The limit of one tool call. The limit of the tool itself applies, too.
    tool_timeout_seconds: float | None = None

    # Output and caches.

    #: Print the reply while it arrives, unless a `stream_handler` receives it.
    stream: bool = False
    #: Print the events of each run.
    verbose: bool = False
    #: Cache of model answers; None for none.
    cache: Cache | None = None
    #: How tool results are compressed and cached.
    tool: ToolConfig = field(default_factory=ToolConfig)

    # Costs.

    #: Log one warning when all runs together cost more.
    cost_warning_threshold: float | None = None
    #: Prices of models that no price list has: of a million prompt tokens and a million completion
    #: tokens, and, if they differ, of a million tokens read from and written to the vendor's prompt
    #: cache.
    prices: Mapping[str, Price] = field(default_factory=dict)
    #: What one run may use; None for no limit.
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    #: What a conversation and a day may use; None for no limit.
    budget: Budget | None = None

    # Observers and traces.

    #: Receive the events of all runs.
    observers: Sequence[AgentObserver] = ()
    #: Functions that receive events, by name. Deprecated: `observers` do the same.
    hooks: Mapping[str, Callable[..., object]] | None = None
    #: Count how tools are used.
    enable_analytics: bool = False
    #: The run to whose trace the runs of this agent belong.
    parent_run_id: str | None = None
    #: Kept with each trace.
    trace_metadata: Mapping[str, Any] = field(default_factory=dict)
    #: Characters of a tool's result that a trace keeps; None for all.
    trace_tool_result_chars: int | None = 200

    # What may run: policy, approvals, guards.

    #: Which calls run, need a yes, or never run. None: the tools say so themselves.
    tool_policy: ToolPolicy | None = None
    #: Asks a person about a call where there is no channel. None: a call that needs a yes is denied.
    confirm_action: ConfirmAction | None = None
    #: How long `confirm_action` may take. Silence is a no.
    approval_timeout: float = 60.0
    #: End a run with `stop_reason` "pending" at a call that needs a yes. It goes on with
    #: `run(paused=..., decisions=...)`.
    pause_for_approval: bool = False
    #: Notes each decision before it takes effect. None: in this process.
    decision_log: DecisionLog | None = None
    #: Checks of what users and models write.
    guardrails: GuardrailsPipeline | None = None
    #: Asks a model whether each call serves the user's request; None: no call is checked.
    coherence: CoherenceCheck | None = None

    # Memory: see `sayso.agent.memory`.

    #: Where the agent's own conversation is stored, and its id there; both or neither.
    session_store: SessionStore | None = None
    session_id: str | None = None
    #: Summarize the messages that the memory drops, by `summarize_model` of `summarize_provider`
    #: (None: the agent's own), in at most `summarize_max_tokens`.
    summarize_on_trim: bool = False
    summarize_provider: Provider | None = None
    summarize_model: str | None = None
    summarize_max_tokens: int = 150
    #: Who and what the conversation is about.
    entity_memory: EntityMemory | None = None
    #: How these are related.
    knowledge_graph: KnowledgeGraphMemory | None = None
    #: Permanent facts; adds the tool `remember`.
    knowledge_memory: KnowledgeMemory | None = None
    #: Makes the keys that tell vendors which requests belong to one conversation. Processes that
    #: share conversations need the same. Empty: made of SAYSO_SECRET_KEYS of the environment.
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
        if (self.session_store is None) != (self.session_id is None):
            raise ValueError("session_store and session_id belong together: give both or neither")
        if self.pause_for_approval and self.confirm_action is not None:
            raise ValueError(
                "confirm_action decides during a run, and pause_for_approval ends it: give one of them"
            )
        if self.hooks is not None:
            warn_of_hooks(stacklevel=4)

    def for_provider(self, provider: Provider) -> AgentConfig:
        """Return these settings for runs with a provider.

        `model` is "" where the provider's own default model is meant.
        """
        is_chosen = not isinstance(self.model, UnchosenModel)
        if is_chosen or not getattr(provider, "default_model", None):
            return self
        # Without hooks, since their warning was given and the agent has made an observer of them.
        return replace(self, model="", hooks=None)

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
