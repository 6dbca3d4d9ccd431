"""AgentConfig: the settings of one agent, and the ports that they take.

A *port* is an interface that a program may implement itself: Cache (of model answers), ResultCache
(of tool results) and DecisionLog. `agent/run/` has ready-made classes for each.
"""

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

    `AgentConfig.model` is documented to be "gpt-5-mini" if none is given. A provider of another
    vendor does not know that model, so its own default is used instead. But a program that has
    chosen "gpt-5-mini" itself must get it. A plain string could not tell the two apart.
    """

    __slots__ = ()


#: The model if none was chosen. A provider with a `default_model` is asked for that instead.
DEFAULT_MODEL = UnchosenModel("gpt-5-mini")

DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant. Use the tools for facts and actions; "
    "never claim to have done what no tool did."
)

#: Tokens of one tool's result that the model reads in the turn of the call.
DEFAULT_RESULT_TOKENS = 8000

#: The value of a cache: a pair, for an agent a model's Message and its UsageStats.
CacheEntry = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How a cache was used since it was created or cleared."""

    #: Requests that found an entry.
    hits: int = 0
    #: Requests that found none.
    misses: int = 0
    #: Entries that were removed to make room for others.
    evictions: int = 0

    @property
    def total_requests(self) -> int:
        """The sum of hits and misses."""
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """The share of hits, from 0 to 1; 0 before the first request."""
        if self.total_requests:
            return self.hits / self.total_requests
        return 0.0

    def __str__(self) -> str:
        counts = f"hits={self.hits}, misses={self.misses}, evictions={self.evictions}"
        return f"CacheStats({counts}, hit_rate={self.hit_rate:.2%})"


@runtime_checkable
class Cache(Protocol):
    """Cache of model answers. Called in threads, by all runs at the same time.

    Its errors are logged, and never break a run.
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
        """How this process has used the cache."""
        ...


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A tool's result in a ResultCache.

    Its texts are not screened or shortened yet: that happens each time the result is shown to a
    model.
    """

    #: The result as the tool returned it.
    raw: str
    #: Its summary; "" if it was not summarized.
    compressed: str = ""
    #: The words before the summary which say that it is one; "" without a summary.
    mark: str = ""


class ResultCache(Protocol):
    """Cache of tool results. Called in threads, by all runs at the same time.

    It may drop any entry. Its errors are logged, and never break a run.
    """

    def get(self, key: str) -> CachedResult | None:
        """Return the result of a key, or None if there is none or it has expired."""

    def put(self, key: str, result: CachedResult, ttl_seconds: float) -> None:
        """Store a result for some seconds."""


class DecisionLog(Protocol):
    """Log of the decisions about calls: the first one about a call counts, and no call runs twice.

    Called in threads, by all runs. If several processes may be given the same paused run, they need
    one log.
    """

    def begin(self, key: str) -> str | None:
        """Log that a decision is carried out now, in one atomic step.

        `key` names the call. Return None the first time. Later, return the text that `end` was
        given, or "" if `end` was not called: it is unknown how the call ended.
        """

    def end(self, key: str, outcome: str) -> None:
        """Store how the call of this key ended, as text for a later `begin`."""


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """How tool results are compressed and cached. Raises ValueError for what cannot work."""

    #: Whether a long result is summarized by a model before the agent's model reads it.
    compress_results: bool = False
    #: The characters of a result from which on it is summarized.
    compress_threshold: int = 2000
    #: The provider of the summarizing model; None for the agent's own.
    compress_provider: Provider | None = None
    #: The summarizing model; None for the agent's own. Needed with a `compress_provider`.
    compress_model: str | None = None
    #: Stores the results of `cacheable` tools; None: they are not stored.
    cache: ResultCache | None = None

    def __post_init__(self) -> None:
        if self.compress_provider is not None and not self.compress_model:
            raise ValueError(
                f"compress_provider={self.compress_provider!r} needs a compress_model: "
                "the agent's own model is rarely known to another provider"
            )
        if self.compress_threshold < 1:
            raise ValueError(
                f"compress_threshold={self.compress_threshold!r} leaves nothing to read:"
                " use 1 or more"
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
    #: Instructions for the model: a text, or a function that returns it. The function is called for
    #: each model call, with the ToolContext of the current user. If its text changes from call to
    #: call, the vendor's cache knows nothing of what follows the change.
    system_prompt: str | Callable[[ToolContext], str] = DEFAULT_SYSTEM_PROMPT
    #: How freely the model words its answer, from 0. None: the vendor's default.
    temperature: float | None = DEFAULT_TEMPERATURE
    #: Tokens of one answer at most.
    max_tokens: int = 1000
    #: The context window of the model in tokens. None: what its vendor states.
    context_tokens: int | None = None
    #: Tokens of one tool's result that the model reads in the turn of the call, at most a quarter
    #: of the window. It can read the rest with the tool `read_result`; later turns have the
    #: beginning and the end.
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
    #: Detects repeated calls. None: a run that repeats itself ends only at `max_iterations`.
    loop_detector: LoopDetector | None = field(default_factory=LoopDetector)

    # Failures and time limits.

    #: Further attempts after a failed model call.
    max_retries: int = 2
    #: The pause before a retry is this number, times the number of the failed attempt.
    retry_backoff_seconds: float = 1.0
    #: After a rate limit, this number is added before the multiplication.
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

    #: Log one warning when all runs together have cost this much; None: never.
    cost_warning_threshold: float | None = None
    #: Prices of models that the built-in price list does not have: of a million prompt tokens and
    #: of a million completion tokens, and, if they differ, of a million tokens read from and
    #: written to the vendor's prompt cache.
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

    #: Says which calls run, which need a yes, and which never run. None: the tools say it.
    tool_policy: ToolPolicy | None = None
    #: Asks a person about a call outside of channels. None: a call that needs a yes is denied.
    confirm_action: ConfirmAction | None = None
    #: How long `confirm_action` may take. Silence is a no.
    approval_timeout: float = 60.0
    #: End a run with `stop_reason` "pending" at a call that needs a yes. It goes on with
    #: `run(paused=..., decisions=...)`.
    pause_for_approval: bool = False
    #: Logs each decision before it takes effect. None: a log in the memory of this process.
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
    #: Remembers who and what the conversation is about; None: nothing does.
    entity_memory: EntityMemory | None = None
    #: Remembers how these people and things are related; None: nothing does.
    knowledge_graph: KnowledgeGraphMemory | None = None
    #: Permanent facts, which the model saves with the tool `remember`; None: there is no such tool.
    knowledge_memory: KnowledgeMemory | None = None
    #: The secret of the keys by which vendors see which requests belong to one conversation.
    #: Processes that share conversations need the same. Empty: it is derived from SAYSO_SECRET_KEYS
    #: of the environment.
    conversation_secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        # Raises ValueError for a bad limit now, rather than during a run.
        RunBudget(self.max_total_tokens, self.max_cost_usd)
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value!r} is too little: use {least} or more")
        for model, price in self.prices.items():
            if len(price) not in (2, 4):
                raise ValueError(
                    f"prices[{model!r}]={price!r}: give two numbers,"
                    " or four with those of the prompt cache"
                )
        if (self.session_store is None) != (self.session_id is None):
            raise ValueError("session_store and session_id belong together: give both or neither")
        if self.pause_for_approval and self.confirm_action is not None:
            raise ValueError(
                "confirm_action decides during a run, and pause_for_approval ends it:"
                " give one of them"
            )
        if self.hooks is not None:
            warn_of_hooks(stacklevel=4)

    def for_provider(self, provider: Provider) -> AgentConfig:
        """Return these settings for runs with a provider.

        If no model was chosen and the provider has a default one, `model` becomes "", which means
        that default.
        """
        is_chosen = not isinstance(self.model, UnchosenModel)
        if is_chosen or not getattr(provider, "default_model", None):
            return self
        # A copy with hooks would warn of them once more. The agent has made an observer of them.
        return replace(self, model="", hooks=None)

    @property
    def run_budget(self) -> RunBudget | None:
        """What one run may spend; None without a limit."""
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
