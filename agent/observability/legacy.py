"""Deprecated ways to watch a run: a dict of hooks, and `verbose=True`, which prints lines (seed)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sayso.agent.messages import UsageStats
from sayso.agent.observability.observer import AgentObserver, Source, event_reader

if TYPE_CHECKING:
    from sayso.agent.result import AgentResult  # which imports this package

Hooks = Mapping[str, Callable[..., Any]]

#: For each hook the event that calls it, and its parameters with their sources.
_HOOK_EVENTS: Mapping[str, tuple[str, Mapping[str, Source]]] = {
    "on_agent_start": ("run_start", {"messages": "messages"}),
    "on_agent_end": ("run_end", {"response": "result", "usage": "result.usage"}),
    "on_iteration_start": ("iteration_start", {"iteration": "iteration", "messages": "messages"}),
    "on_iteration_end": ("iteration_end", {"iteration": "iteration", "response": "response"}),
    "on_tool_start": ("tool_start", {"tool_name": "tool_name", "args": "tool_args"}),
    "on_tool_chunk": ("tool_chunk", {"tool_name": "tool_name", "chunk": "chunk"}),
    "on_tool_end": (
        "tool_end",
        {"tool_name": "tool_name", "result": "result", "duration": ("duration_ms", lambda ms: ms / 1000)},  # in seconds
    ),
    "on_tool_error": ("tool_error", {"tool_name": "tool_name", "error": "error", "args": "tool_args"}),
    "on_llm_start": ("llm_start", {"messages": "messages", "model": "model"}),
    "on_llm_end": ("llm_end", {"response": "response", "usage": "usage"}),
    "on_error": ("error", {"error": "error", "context": "context"}),
}
#: The names of hooks, each with the parameters that it is called with.
HOOKS: Mapping[str, tuple[str, ...]] = {hook: tuple(sources) for hook, (_, sources) in _HOOK_EVENTS.items()}
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
        self.hooks = dict(hooks)


def _hook_method(hook: str, event: str, sources: Mapping[str, Source]) -> Callable[..., None]:
    read = event_reader(event, sources)

    def on_event(self: _Hooks, *args: Any, **kwargs: Any) -> None:
        if hook in self.hooks:
            _, values = read(*args, **kwargs)
            self.hooks[hook](*values.values())

    return on_event


for _hook, (_event, _sources) in _HOOK_EVENTS.items():
    setattr(_Hooks, f"on_{_event}", _hook_method(_hook, _event, _sources))


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
