"""AgentConfig: how an agent runs, with AgentResult, what a run comes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.messages import Message, ToolCall, UsageStats
from agent.policy import ToolPolicy
from agent.providers.base import Provider
from agent.result_cache import ResultCache
from agent.tools.artifacts import Artifact

#: Asked before a reviewed call runs, with tool name, arguments and reason. Only `True` lets it run.
ConfirmAction = Callable[[str, dict[str, Any], str], bool | Awaitable[bool]]
#: Ends the run when it is true of a tool's name and result.
StopCondition = Callable[[str, str], bool]

#: Why a run ended: the model answered, a proposal waits for a yes, a terminal tool or stop condition, or a limit.
StopReason = Literal["answer", "pending", "terminal", "max_iterations", "provider_error"]

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
    """The settings of one agent, fixed for its life. Times are in seconds."""

    name: str = "agent"
    model: str = "gpt-5-mini"
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    temperature: float = 0.0
    max_tokens: int = 1000
    max_iterations: int = 6
    max_retries: int = 2
    retry_backoff_seconds: float = 1.0
    rate_limit_cooldown_seconds: float = 5.0
    request_timeout: float | None = 30.0
    tool_timeout_seconds: float | None = None
    parallel_tool_execution: bool = True
    tool_policy: ToolPolicy | None = None
    confirm_action: ConfirmAction | None = None
    approval_timeout: float = 60.0
    stop_condition: StopCondition | None = None
    tool: ToolConfig = field(default_factory=ToolConfig)

    def __post_init__(self) -> None:
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations={self.max_iterations!r} never asks the model: use 1 or more")
        if self.max_retries < 0:
            raise ValueError(f"max_retries={self.max_retries!r} never asks the model: use 0 or more")


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The reply, and what was made and spent on the way to it.

    `messages` is the transcript of this run alone, the user's words included: what a conversation's history grows by.
    `unclear` are the calls of which nobody knows how they ended: a killed attempt at this run had begun them, or who
    was asked never answered. `beside` is what terminal tools said in the same answer as a proposal, which ends the run.
    """

    content: str
    artifacts: tuple[Artifact, ...] = ()
    iterations: int = 0
    usage: UsageStats = field(default_factory=UsageStats)
    tool_calls: tuple[ToolCall, ...] = ()
    messages: tuple[Message, ...] = ()
    stop_reason: StopReason = "answer"
    unclear: tuple[ToolCall, ...] = ()
    beside: tuple[str, ...] = ()
