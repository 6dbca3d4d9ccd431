"""Deprecated ways to watch a run: a dict of hooks, and `verbose=True`, which prints lines (seed)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sayso.agent.messages import Message, UsageStats
from sayso.agent.observability.observer import AgentObserver

if TYPE_CHECKING:
    from sayso.agent.result import AgentResult  # which imports this package

Hooks = Mapping[str, Callable[..., Any]]

#: The names of hooks, each with the parameters that it is called with.
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
#: How many characters of an argument or a result `verbose` prints.
MAX_PRINTED_CHARS = 120


def warn_of_hooks(stacklevel: int = 2) -> None:
    """Warn that hooks are deprecated; `stacklevel` as in `warnings.warn`."""
    warnings.warn("hooks are deprecated: use observers=[...]", DeprecationWarning, stacklevel=stacklevel + 1)


def hooks_observer(hooks: Hooks) -> AgentObserver:
    """Return an observer that calls the hooks. Raise ValueError for an unknown name."""
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
        """Call `on_agent_start(messages)`."""
        self._call("on_agent_start", messages)

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """Call `on_agent_end(response, usage)` with the whole result, whose `content` is the reply."""
        self._call("on_agent_end", result, result.usage)

    def on_iteration_start(self, run_id: str, iteration: int, messages: Sequence[Message]) -> None:
        """Call `on_iteration_start(iteration, messages)`."""
        self._call("on_iteration_start", iteration, messages)

    def on_iteration_end(self, run_id: str, iteration: int, response: str) -> None:
        """Call `on_iteration_end(iteration, response)`."""
        self._call("on_iteration_end", iteration, response)

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """Call `on_tool_start(tool_name, args)`."""
        self._call("on_tool_start", tool_name, tool_args)

    def on_tool_chunk(self, run_id: str, call_id: str, tool_name: str, chunk: str) -> None:
        """Call `on_tool_chunk(tool_name, chunk)`."""
        self._call("on_tool_chunk", tool_name, chunk)

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """Call `on_tool_end(tool_name, result, duration)`. Hooks take the duration in seconds."""
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
        """Call `on_tool_error(tool_name, error, args)`."""
        self._call("on_tool_error", tool_name, error, tool_args)

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """Call `on_llm_start(messages, model)`."""
        self._call("on_llm_start", messages, model)

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """Call `on_llm_end(response, usage)`."""
        self._call("on_llm_end", response, usage)

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """Call `on_error(error, context)`."""
        self._call("on_error", error, context)


class VerboseObserver(AgentObserver):
    """Prints lines that begin with `[agent]`. They contain arguments and results, so do not send them to a log."""

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """Print the tokens and the cost of a model call."""
        tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        _print(f"{usage.model or 'model'}: {tokens}, ${usage.cost_usd:.6f}")

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """Print that no provider was called."""
        _print("cache hit -- skipping provider call")

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """Print why a model call failed and when it is retried."""
        _print(f"attempt {attempt} failed ({error}); retry in {backoff_seconds:.1f} s")

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """Print a tool call."""
        _print(f"{tool_name}({', '.join(f'{name}={_shortened(value)}' for name, value in tool_args.items())})")

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """Print a tool's result."""
        _print(f"{tool_name} -> {_shortened(result)} ({duration_ms:.0f} ms)")

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Print why a tool failed."""
        _print(f"{tool_name} failed: {error} ({duration_ms:.0f} ms)")

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """Print why the run ended and what it cost."""
        usage, steps = result.usage, result.iterations
        _print(f"{result.stop_reason} after {steps} steps, {usage.total_tokens} tokens, ${usage.cost_usd:.6f}")


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_PRINTED_CHARS else f"{text[:MAX_PRINTED_CHARS]}…"


def _print(line: str) -> None:
    sys.stdout.write(f"[agent] {line}\n")
