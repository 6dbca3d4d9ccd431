"""AgentConfig: how an agent runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sayso.agent.guards.pipeline import GuardrailsPipeline
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from sayso.agent.memory.sessions import SessionStore
from sayso.agent.messages import ToolCall
from sayso.agent.observability.legacy import warn_of_hooks
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.usage import AgentUsage
from sayso.agent.policy import ToolPolicy
from sayso.agent.providers.base import DEFAULT_TEMPERATURE, Provider
from sayso.agent.run.budget import Budget, RunBudget
from sayso.agent.run.cache import Cache
from sayso.agent.run.loop_detection import LoopDetector
from sayso.agent.run.result_cache import ResultCache
from sayso.pending.context import ToolContext
from sayso.pending.proposals import current_context

#: Asked before a reviewed call runs, with tool name, arguments and reason. Only `True` lets it run.
ConfirmAction = Callable[[str, dict[str, Any], str], bool | Awaitable[bool]]
#: Ends the run when it is true of a tool's name and result.
StopCondition = Callable[[str, str], bool]

#: Chooses the model of a step from its number, the calls so far and what the agent has used so far.
ModelSelector = Callable[[int, Sequence[ToolCall], AgentUsage], str]


class UnchosenModel(str):
    """The name of a model that nobody chose. It equals a plain `str`; only its type tells that it was a default."""

    __slots__ = ()


#: The model where nobody chose one (seed: AgentConfig). A provider that has a `default_model` is asked for that.
DEFAULT_MODEL = UnchosenModel("gpt-5-mini")

#: What a model is told when nobody wrote a system prompt.
DEFAULT_SYSTEM_PROMPT = (
    "You are a helpful assistant. Use the tools for facts and actions; never claim to have done what no tool did."
)


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """What becomes of the results of tools (seed: Tool Result Compression).

    `compress_results`: what is longer than `compress_threshold` characters is summarised before the model reads it, by
    `compress_model` of `compress_provider`; without them, by the agent's own. `cache` keeps the results of tools that
    are `cacheable`; without one, none are kept.
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
            raise ValueError(f"compress_threshold={self.compress_threshold!r} leaves nothing to read: use 1 or more")


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The settings of one agent, fixed for its life (seed: AgentConfig Dataclass). Times are in seconds, costs in USD.

    `prices` are for models that no price list has: what a million prompt and completion tokens cost.
    A `temperature` of None is not sent at all.
    `context_tokens` is what the model can read at once (None: what its vendor says), `result_tokens` what it reads of
    one tool's result (None: a quarter of that).
    `max_total_tokens` and `max_cost_usd` bound one run, a `budget` a conversation and a day.
    `system_prompt` may be a function, which is asked for each answer with the ToolContext of whoever speaks.
    """

    name: str = "agent"
    model: str = DEFAULT_MODEL
    system_prompt: str | Callable[[ToolContext], str] = DEFAULT_SYSTEM_PROMPT
    temperature: float | None = DEFAULT_TEMPERATURE
    max_tokens: int = 1000
    context_tokens: int | None = None
    result_tokens: int | None = None
    model_selector: ModelSelector | None = None

    max_iterations: int = 6
    routing_only: bool = False
    parallel_tool_execution: bool = True
    stop_condition: StopCondition | None = None
    #: None: no loop is noticed before `max_iterations`.
    loop_detector: LoopDetector | None = field(default_factory=LoopDetector)

    max_retries: int = 2
    retry_backoff_seconds: float = 1.0
    rate_limit_cooldown_seconds: float = 5.0
    request_timeout: float | None = 30.0
    tool_timeout_seconds: float | None = None

    #: Print the reply as it comes, where no `stream_handler` takes it.
    stream: bool = False
    #: Print what happens.
    verbose: bool = False
    cache: Cache | None = None
    tool: ToolConfig = field(default_factory=ToolConfig)

    cost_warning_threshold: float | None = None
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    budget: Budget | None = None

    observers: Sequence[AgentObserver] = ()
    #: Deprecated (seed: Hook System): give an observer.
    hooks: Mapping[str, Callable[..., object]] | None = None
    enable_analytics: bool = False
    parent_run_id: str | None = None
    trace_metadata: Mapping[str, Any] = field(default_factory=dict)
    #: Characters of a tool's result that a trace keeps; None for all.
    trace_tool_result_chars: int | None = 200

    tool_policy: ToolPolicy | None = None
    confirm_action: ConfirmAction | None = None
    approval_timeout: float = 60.0
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

    def __post_init__(self) -> None:
        RunBudget(self.max_total_tokens, self.max_cost_usd)  # a limit that is none is an error now, not in a run
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value!r} is too little: use {least} or more")
        for provider, model in _PAIRS:
            if getattr(self, provider) is not None and not getattr(self, model):
                raise ValueError(f"{provider} needs a {model}: another provider rarely knows the agent's own model")
        if (self.session_store is None) != (self.session_id is None):
            raise ValueError("session_store and session_id belong together: give both or neither")
        if self.hooks is not None:
            warn_of_hooks(stacklevel=4)

    @property
    def prompt(self) -> str:
        """The system prompt for whoever speaks now."""
        return self.system_prompt if isinstance(self.system_prompt, str) else self.system_prompt(current_context())

    @property
    def run_budget(self) -> RunBudget | None:
        """What one run may spend; None where nothing bounds it."""
        is_bounded = self.max_total_tokens is not None or self.max_cost_usd is not None
        return RunBudget(self.max_total_tokens, self.max_cost_usd) if is_bounded else None


#: The least that each setting can be.
_LEAST: Mapping[str, float] = {
    "max_iterations": 1, "max_retries": 0, "max_tokens": 1, "retry_backoff_seconds": 0,
    "rate_limit_cooldown_seconds": 0, "summarize_max_tokens": 1, "approval_timeout": 0, "context_tokens": 1000,
    "result_tokens": 100,
}  # fmt: skip

#: Providers for a side task, and the settings that name their models.
_PAIRS = (("coherence_provider", "coherence_model"),)


def model_for(provider: Provider, model: str) -> str:
    """What a provider is asked for where nobody chose a model: "", its own, if it knows one; else the `model`."""
    return "" if isinstance(model, UnchosenModel) and getattr(provider, "default_model", None) else model
