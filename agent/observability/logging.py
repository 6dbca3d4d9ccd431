"""LoggingObserver: one line of JSON per event, written with Python's logging (seed: Built-in LoggingObserver)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sayso.agent.messages import Message, UsageStats
from sayso.agent.observability.observer import AgentObserver, Source, event_reader
from sayso.agent.tools.definition import loggable_name

#: How many runs may have an open model call; beyond that, the oldest one's `llm_end` is logged without a duration.
MAX_RUNS = 10_000
#: Events after which a run makes no further model call.
_FINAL_EVENTS = {"run_end", "error", "cancelled"}


class LoggingObserver(AgentObserver):
    """Logs ids, names, counts, durations and classes of errors: no text of people, models or tools, and no reasons.

    Session ids are left out too, as they often contain a phone number. Timestamps are in Unix seconds, durations in
    milliseconds.
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
        #: When the open model call of each run began.
        self._llm_starts: dict[str, float] = {}

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """Log the call and start measuring its duration."""
        if len(self._llm_starts) >= MAX_RUNS:
            self._llm_starts.pop(next(iter(self._llm_starts)), None)
        self._llm_starts[run_id] = self._clock()
        self._log("llm_start", run_id, model=model, messages=len(messages))

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """Log the tokens and the duration of the call."""
        start = self._llm_starts.pop(run_id, None)
        duration = {} if start is None else {"duration_ms": round((self._clock() - start) * 1000, 3)}
        self._log("llm_end", run_id, tokens=usage.total_tokens if usage else 0, **duration)

    def _log(self, event: str, run_id: str, **values: Any) -> None:
        if event in _FINAL_EVENTS:
            self._llm_starts.pop(run_id, None)
        if not self._logger.isEnabledFor(self._level):
            return
        ids = {"batch_id" if event.startswith("batch") else "run_id": run_id}
        line = {"event": event, **ids, **values, "timestamp": round(self._clock(), 3)}
        self._logger.log(self._level, "%s", json.dumps(line, default=_class_name))


def _class_name(value: Any) -> str:
    return type(value).__name__


#: For each event all values that are logged: the name in the log line -> its source.
_LOGGED_VALUES: Mapping[str, Mapping[str, Source]] = {
    "run_start": {"messages": ("messages", len)},
    "run_end": {
        "iterations": "result.iterations",
        "tokens": "result.usage.total_tokens",
        "tool_calls": ("result.tool_calls", len),
    },
    "error": {"error": ("error", _class_name)},
    "cache_hit": {"model": "model"},
    "usage": {"model": "usage.model", "tokens": "usage.total_tokens", "cost_usd": "usage.cost_usd"},
    "llm_retry": {
        "attempt": "attempt",
        "max_retries": "max_retries",
        "error": ("error", _class_name),
        "backoff_seconds": "backoff_seconds",
    },
    "tool_start": {"call_id": "call_id", "tool": "tool_name"},
    "tool_end": {"call_id": "call_id", "tool": "tool_name", "duration_ms": "duration_ms"},
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
    "batch_end": {"results": "results_count", "errors": "errors_count", "duration_ms": "total_duration_ms"},
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
    "guardrail_triggered": {"stage": "stage", "guardrail": "guardrail_name", "action": "action"},
    "coherence_check": {"tool": "tool_name", "coherent": "coherent"},
    "model_switch": {"iteration": "iteration", "old_model": "old_model", "new_model": "new_model"},
}


def _logging_method(event: str, sources: Mapping[str, Source]) -> Callable[..., None]:
    read = event_reader(event, sources)

    def on_event(self: LoggingObserver, *args: Any, **kwargs: Any) -> None:
        run_id, values = read(*args, **kwargs)
        self._log(event, run_id, **values)

    return on_event


for _event, _sources in _LOGGED_VALUES.items():
    setattr(LoggingObserver, f"on_{_event}", _logging_method(_event, _sources))
