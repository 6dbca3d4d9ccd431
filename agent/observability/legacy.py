"""Hooks dict, verbose."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sayso.agent.messages import Message, UsageStats
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.result import AgentResult

if TYPE_CHECKING:
    from sayso.agent.result import AgentResult  # which names observers in turn


Hooks = Mapping[str, Callable[..., Any]]


#: What a hook may be called, and what it is given.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "on_agent_start": ("messages",),
    "on_agent_end": ("response", "usage"),
    "on_iteration_start": ("iteration", "messages"),
    "on_iteration_end": ("iteration", "response"),
    "on_tool_start": ("tool_name", "args"),
    "on_tool_chunk": ("tool_name", "chunk"),
    "on_tool_end": ("tool_name", "result", "duration"),
    "on_tool_error": ("tool_name", "error", "args"),
    "on_llm_start": ("messages", "model"),
    "on_llm_end": ("response", "usage"),
    "on_error": ("error", "context"),
}


def warn_of_hooks(stacklevel: int = 2) -> None:
    """Say that hooks are deprecated, once for each place that uses them; `stacklevel` as of `warnings.warn`."""
    warnings.warn("hooks are deprecated: use observers=[...]", DeprecationWarning, stacklevel=stacklevel + 1)


def hooks_observer(hooks: Hooks) -> AgentObserver:
    """An observer that calls the hooks. Raises ValueError for a name that no hook has."""
    unknown = sorted(set(hooks) - set(HOOKS))
    if unknown:
        raise ValueError(f"unknown hook {unknown[0]!r}; known: {sorted(HOOKS)}")
    return _Hooks(hooks)


class _Hooks(AgentObserver):
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = dict(hooks)

    def _call(self, name: str, *args: Any) -> None:
        if hook := self._hooks.get(name):
            hook(*args)

    def on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """`on_agent_start(messages)`."""
        self._call("on_agent_start", messages)

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """`on_agent_end(response, usage)`: the whole result, whose `content` is the reply."""
        self._call("on_agent_end", result, result.usage)

    def on_iteration_start(self, run_id: str, iteration: int, messages: Sequence[Message]) -> None:
        """`on_iteration_start(iteration, messages)`."""
        self._call("on_iteration_start", iteration, messages)

    def on_iteration_end(self, run_id: str, iteration: int, response: str) -> None:
        """`on_iteration_end(iteration, response)`."""
        self._call("on_iteration_end", iteration, response)

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """`on_tool_start(tool_name, args)`."""
        self._call("on_tool_start", tool_name, tool_args)

    def on_tool_chunk(self, run_id: str, call_id: str, tool_name: str, chunk: str) -> None:
        """`on_tool_chunk(tool_name, chunk)`."""
        self._call("on_tool_chunk", tool_name, chunk)

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """`on_tool_end(tool_name, result, duration)`, the duration in seconds: hooks have always had it so."""
        self._call("on_tool_end", tool_name, result, duration_ms / 1000)

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """`on_tool_error(tool_name, error, args)`."""
        self._call("on_tool_error", tool_name, error, tool_args)

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """`on_llm_start(messages, model)`."""
        self._call("on_llm_start", messages, model)

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """`on_llm_end(response, usage)`."""
        self._call("on_llm_end", response, usage)

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """`on_error(error, context)`."""
        self._call("on_error", error, context)


#: Characters of an argument or a result that are printed.
SHOWN_CHARS = 120


class VerboseObserver(AgentObserver):
    """Writes lines that begin with `[agent]`. They hold what people and tools said: not for a log."""

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """Tokens and cost of one call of the model."""
        counts = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        _say(f"{usage.model or 'model'}: {counts}, ${usage.cost_usd:.6f}")

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """The provider was not asked."""
        _say("cache hit -- skipping provider call")

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """It failed, and is asked again."""
        _say(f"attempt {attempt} failed ({error}); again in {backoff_seconds:.1f} s")

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A call begins."""
        _say(f"{tool_name}({', '.join(f'{name}={_short(value)}' for name, value in tool_args.items())})")

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """Its result."""
        _say(f"{tool_name} -> {_short(result)} ({duration_ms:.0f} ms)")

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Why there is none."""
        _say(f"{tool_name} failed: {error} ({duration_ms:.0f} ms)")

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """What it came to."""
        usage, steps = result.usage, result.iterations
        _say(f"{result.stop_reason} after {steps} steps, {usage.total_tokens} tokens, ${usage.cost_usd:.6f}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _say(line: str) -> None:
    sys.stdout.write(f"[agent] {line}\n")
