"""The observers that come with Sayso: for logs, for metrics, for hooks and for `verbose=True`.

*Hooks* are the deprecated form of observers: functions that a program gives by name, such as
`on_tool_start`. The observer for OpenTelemetry is in `otel.py`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from sayso.agent.messages import UsageStats
from sayso.agent.observability.observer import AgentObserver, LlmCall, Source, event_reader
from sayso.agent.providers.base import ProviderError
from sayso.agent.result import AgentResult
from sayso.agent.tools.errors import ToolNotFoundError
from sayso.agent.tools.names import loggable_name
from sayso.infra import metrics
from sayso.pending.call_context import call_context, context_field
from sayso.pending.error_texts import error_text


class LoggingObserver(AgentObserver):
    """Logs each event as one line of JSON: ids, names, counts, durations and classes of errors.

    It logs no text of people, models or tools, and no reasons. Session ids are left out too, since
    they often contain a phone number. Durations are in milliseconds.

    `logger` is the logger "agent.events" unless another one is given; it logs at `level`. `clock`
    returns the Unix seconds of the timestamps. The methods for most events are made of the table
    `_LOGGED_VALUES`.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        level: int = logging.INFO,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._logger = logger or logging.getLogger("agent.events")
        self._level = level
        self._clock = clock
        #: How long the last model call of each run took, in seconds, until its `llm_end` is logged.
        self._seconds: dict[str, float] = {}

    def on_llm_call(self, run_id: str, call: LlmCall) -> None:
        """Store the duration of a call for `on_llm_end`, which follows if the call succeeded."""
        if call.error is None:
            self._seconds[run_id] = call.seconds

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """Log the tokens and the duration of the call. An answer from the cache has no duration."""
        seconds = self._seconds.pop(run_id, None)
        duration: dict[str, float] = {}
        if seconds is not None:
            duration["duration_ms"] = round(seconds * 1000, 3)
        tokens = usage.total_tokens if usage else 0
        self._log("llm_end", run_id, tokens=tokens, **duration)

    def _log(self, event: str, run_id: str, **values: Any) -> None:
        """Log one event of a run or a batch, with the log fields of its turn."""
        if not self._logger.isEnabledFor(self._level):
            return
        id_name = "batch_id" if event.startswith("batch") else "run_id"
        turn_fields = dict(call_context().log_fields)
        # In the fields of the turn, `event` is the id of its webhook event. In this line it is the
        # name of the run's event, such as "tool_start".
        if "event" in turn_fields:
            turn_fields["turn_event"] = turn_fields.pop("event")
        timestamp = round(self._clock(), 3)
        line = {"event": event, id_name: run_id, **turn_fields, **values, "timestamp": timestamp}
        with context_field("log_fields", {}):  # the line has them already
            self._logger.log(self._level, "%s", json.dumps(line, default=_class_name))


def _class_name(value: Any) -> str:
    """Return the name of a value's class: an error is logged without its text."""
    return type(value).__name__


#: The values that LoggingObserver logs of each event: their sources (`Source` in observer.py), by
#: their names in the line.
_LOGGED_VALUES: Mapping[str, Mapping[str, Source]] = {
    "run_start": {"messages": ("messages", len)},
    "run_end": {
        "iterations": "result.iterations",
        "tokens": "result.usage.total_tokens",
        "tool_calls": ("result.tool_calls", len),
    },
    "error": {"error": ("error", _class_name)},
    "llm_start": {"model": "model", "messages": ("messages", len)},
    "cache_hit": {"model": "model"},
    "usage": {
        "model": "usage.model",
        "tokens": "usage.total_tokens",
        "cached_tokens": "usage.cache_read_tokens",
        "cost_usd": "usage.cost_usd",
    },
    "llm_retry": {
        "attempt": "attempt",
        "max_retries": "max_retries",
        "error": ("error", _class_name),
        "backoff_seconds": "backoff_seconds",
    },
    "tool_start": {"call_id": "call_id", "tool": "tool_name"},
    "tool_end": {"call_id": "call_id", "tool": "tool_name", "duration_ms": "duration_ms"},
    # This event also reports calls of unknown tools. Their names are made up by the model, possibly
    # of its user's words, so only a name that a tool can have is logged.
    "tool_error": {
        "call_id": "call_id",
        "tool": ("tool_name", loggable_name),
        "error": ("error", _class_name),
        "duration_ms": "duration_ms",
    },
    "tool_chunk": {"call_id": "call_id", "tool": "tool_name", "chars": ("chunk", len)},
    "iteration_start": {"iteration": "iteration", "messages": ("messages", len)},
    "iteration_end": {"iteration": "iteration"},
    "batch_start": {"prompts": "prompts_count"},
    "batch_end": {
        "results": "results_count",
        "errors": "errors_count",
        "duration_ms": "total_duration_ms",
    },
    "policy_decision": {"tool": "tool_name", "decision": "decision"},
    "structured_validate": {"success": "success", "attempt": "attempt"},
    "provider_fallback": {
        "failed_provider": "failed_provider",
        "next_provider": "next_provider",
        "error": ("error", _class_name),
    },
    "memory_trim": {"removed": "messages_removed", "remaining": "messages_remaining"},
    "session_load": {"messages": "message_count"},
    "session_save": {"messages": "message_count"},
    "memory_summarize": {"messages": "messages_summarized"},
    "entity_extraction": {"entities": ("entities", len), "turns": "turn_count"},
    "kg_extraction": {"triples": ("triples", len)},
    "budget_exceeded": {"tokens": "tokens_used", "cost_usd": "cost_used"},
    "cancelled": {"iteration": "iteration"},
    "tool_loop_detected": {"detector": "detector_name"},
    # Not `action`: in a line of a log, that is the id of an action.
    "guardrail_triggered": {
        "stage": "stage",
        "guardrail": "guardrail_name",
        "guardrail_action": "action",
    },
    "coherence_check": {"tool": "tool_name", "coherent": "coherent"},
    "model_switch": {"iteration": "iteration", "old_model": "old_model", "new_model": "new_model"},
}


def _logging_method(event: str, sources: Mapping[str, Source]) -> Callable[..., None]:
    """Return the method `on_<event>` of LoggingObserver."""
    read = event_reader(event, sources)

    def on_event(self: LoggingObserver, *args: Any, **kwargs: Any) -> None:
        run_id, values = read(*args, **kwargs)
        self._log(event, run_id, **values)

    return on_event


# One method for each event: a run calls an observer only for the events that it has a method for.
for _event, _sources in _LOGGED_VALUES.items():
    setattr(LoggingObserver, f"on_{_event}", _logging_method(_event, _sources))


class MetricsObserver(AgentObserver):
    """Counts what runs do in `sayso.infra.metrics`. Keeps no state."""

    def on_llm_call(self, run_id: str, call: LlmCall) -> None:
        """Count a model call, its tokens and its cost."""
        model = metrics.label_value("model", call.model)
        error = call.error
        if error is None:
            outcome = "ok"
        elif isinstance(error, ProviderError):
            outcome = error.kind
        else:
            outcome = "failed"
        metrics.MODEL_CALLS.labels(model, outcome).inc()
        metrics.MODEL_SECONDS.labels(model).observe(call.seconds)
        if call.usage is not None:
            _count_usage(model, call.usage)

    def on_side_usage(self, run_id: str, usage: UsageStats) -> None:
        """Count the tokens and the cost of a model call outside of the conversation."""
        _count_usage(metrics.label_value("model", usage.model), usage)

    def on_tool_end(
        self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float
    ) -> None:
        """Count a tool call that returned."""
        self._count(metrics.label_value("tool", tool_name), "ok", duration_ms)

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Count a tool call that failed.

        The name of an unknown tool is invented by the model, and may be any text: it counts as
        OTHER.
        """
        tool = metrics.OTHER
        if not isinstance(error, ToolNotFoundError):
            tool = metrics.label_value("tool", tool_name)
        self._count(tool, "failed", duration_ms)

    def _count(self, tool: str, outcome: str, duration_ms: float) -> None:
        """Count a tool call and its duration."""
        metrics.TOOL_CALLS.labels(tool, outcome).inc()
        metrics.TOOL_SECONDS.labels(tool).observe(duration_ms / 1000)


def _count_usage(model: str, usage: UsageStats) -> None:
    """Count the tokens of a model call and their cost.

    The tokens of the prompt are counted by what happened in the vendor's prompt cache: they were
    read from it ("cache_read"), written to it ("cache_write"), or neither ("input").
    """
    read_tokens = max(0, usage.cache_read_tokens)
    written_tokens = max(0, usage.cache_write_tokens)
    tokens = {
        "input": max(0, usage.prompt_tokens - read_tokens - written_tokens),
        "cache_read": read_tokens,
        "cache_write": written_tokens,
        "output": max(0, usage.completion_tokens),
    }
    for type_, number in tokens.items():
        metrics.MODEL_TOKENS.labels(model, type_).inc(number)
    metrics.MODEL_COST.labels(model).inc(max(0.0, usage.cost_usd))


#: Functions by the names of their hooks, which are the keys of HOOKS.
Hooks = Mapping[str, Callable[..., Any]]

#: For each hook the event that calls it, and its parameters with their sources.
HOOKS: Mapping[str, tuple[str, Mapping[str, Source]]] = {
    "on_agent_start": ("run_start", {"messages": "messages"}),
    "on_agent_end": ("run_end", {"response": "result", "usage": "result.usage"}),
    "on_iteration_start": ("iteration_start", {"iteration": "iteration", "messages": "messages"}),
    "on_iteration_end": ("iteration_end", {"iteration": "iteration", "response": "response"}),
    "on_tool_start": ("tool_start", {"tool_name": "tool_name", "args": "tool_args"}),
    "on_tool_chunk": ("tool_chunk", {"tool_name": "tool_name", "chunk": "chunk"}),
    "on_tool_end": (
        "tool_end",
        {
            "tool_name": "tool_name",
            "result": "result",
            "duration": ("duration_ms", lambda ms: ms / 1000),  # hooks get seconds
        },
    ),
    "on_tool_error": (
        "tool_error",
        {"tool_name": "tool_name", "error": "error", "args": "tool_args"},
    ),
    "on_llm_start": ("llm_start", {"messages": "messages", "model": "model"}),
    "on_llm_end": ("llm_end", {"response": "response", "usage": "usage"}),
    "on_error": ("error", {"error": "error", "context": "context"}),
}
#: How many characters of an argument or a result `verbose` prints.
MAX_PRINTED_CHARS = 120


def warn_of_hooks(stacklevel: int = 2) -> None:
    """Warn that hooks are deprecated. `stacklevel` counts the callers, as in `warnings.warn`."""
    warnings.warn(
        "hooks are deprecated: use observers=[...]", DeprecationWarning, stacklevel=stacklevel + 1
    )


def hooks_observer(hooks: Hooks) -> AgentObserver:
    """Return an observer that calls the hooks. Raise ValueError for an unknown name."""
    unknown = sorted(set(hooks) - set(HOOKS))
    if unknown:
        raise ValueError(f"unknown hook {unknown[0]!r}; known: {sorted(HOOKS)}")
    methods = dict[str, Any]()
    for hook, function in hooks.items():
        event, sources = HOOKS[hook]
        methods[f"on_{event}"] = _hook_method(function, event_reader(event, sources))
    observer: AgentObserver = type("HooksObserver", (AgentObserver,), methods)()
    return observer


def _hook_method(
    hook: Callable[..., Any], read: Callable[..., tuple[str, dict[str, Any]]]
) -> Callable[..., None]:
    """Return the method of an observer that calls a hook with the values that `read` finds."""

    def on_event(self: AgentObserver, *args: Any, **kwargs: Any) -> None:
        _, values = read(*args, **kwargs)
        # By position, in the order of HOOKS: the functions of programs name their parameters freely.
        hook(*values.values())

    return on_event


class VerboseObserver(AgentObserver):
    """Prints what a run does, in lines that begin with `[agent]`.

    The lines contain arguments and results, so do not send them to a log.
    """

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """Print the tokens and the cost of a model call."""
        cached_note = ""
        if usage.cache_read_tokens:
            cached_note = f" ({usage.cache_read_tokens} cached)"
        tokens = f"{usage.prompt_tokens}{cached_note} + {usage.completion_tokens} tokens"
        _print(f"{usage.model or 'model'}: {tokens}, ${usage.cost_usd:.6f}")

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """Print that no provider was called."""
        _print("cache hit -- skipping provider call")

    def on_llm_retry(
        self,
        run_id: str,
        attempt: int,
        max_retries: int,
        error: BaseException,
        backoff_seconds: float,
    ) -> None:
        """Print why a model call failed and when it is retried."""
        _print(f"attempt {attempt} failed ({error}); retry in {backoff_seconds:.1f} s")

    def on_tool_start(
        self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]
    ) -> None:
        """Print a tool call."""
        arguments = [f"{name}={_shortened(value)}" for name, value in tool_args.items()]
        _print(f"{tool_name}({', '.join(arguments)})")

    def on_tool_end(
        self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float
    ) -> None:
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
        _print(f"{tool_name} failed: {error_text(error)} ({duration_ms:.0f} ms)")

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """Print why the run ended and what it cost."""
        usage = result.usage
        steps = result.iterations
        used = f"{usage.total_tokens} tokens, ${usage.cost_usd:.6f}"
        _print(f"{result.stop_reason} after {steps} steps, {used}")


def _shortened(value: object) -> str:
    """Return the `repr` of a value, cut to MAX_PRINTED_CHARS."""
    text = repr(value)
    if len(text) <= MAX_PRINTED_CHARS:
        return text
    return f"{text[:MAX_PRINTED_CHARS]}…"


def _print(line: str) -> None:
    sys.stdout.write(f"[agent] {line}\n")
