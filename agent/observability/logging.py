"""LoggingObserver: one line of JSON an event, in Python's logging (seed: Built-in LoggingObserver)."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sayso.agent.messages import Message, UsageStats
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.tools.definition import loggable_name

#: Runs whose model is being asked at a time; of more, the oldest are told without a duration.
MOST_RUNS = 10_000


class LoggingObserver(AgentObserver):
    """Writes ids, names, counts and durations: never what people, models or tools said, nor why, nor session ids, which
    are often somebody's number. Of an error, its class. Times are in seconds since 1970, durations in milliseconds.
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
        self._asked: dict[str, float] = {}

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """A line, and the moment from which `llm_end` counts."""
        if len(self._asked) >= MOST_RUNS:
            self._asked.pop(next(iter(self._asked)), None)
        self._asked[run_id] = self._clock()
        self._line("llm_start", run_id, model=model, messages=len(messages))

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """A line with what it took."""
        tokens = usage.total_tokens if usage else 0
        asked = self._asked.pop(run_id, None)
        took = {} if asked is None else {"duration_ms": round((self._clock() - asked) * 1000, 3)}
        self._line("llm_end", run_id, tokens=tokens, **took)

    def _line(self, event: str, run_id: str, **shown: Any) -> None:
        if event in _LAST:
            self._asked.pop(run_id, None)
        if not self._logger.isEnabledFor(self._level):
            return
        named = {"batch_id" if event.startswith("batch") else "run_id": run_id}
        line = {"event": event, **named, **shown, "timestamp": round(self._clock(), 3)}
        self._logger.log(self._level, "%s", json.dumps(line, default=_class_name))


#: After these, nobody asks for a run any more.
_LAST = {"run_end", "error", "cancelled"}


def _class_name(value: Any) -> str:
    return type(value).__name__


def _same(value: Any) -> Any:
    return value


def _cost(usage: UsageStats) -> float:
    return usage.cost_usd


def _tokens(usage: UsageStats) -> int:
    return usage.total_tokens


def _iterations(result: Any) -> int:
    return int(result.iterations)


def _result_tokens(result: Any) -> int:
    return int(result.usage.total_tokens)


def _calls(result: Any) -> int:
    return len(result.tool_calls)


def _model(usage: UsageStats) -> str:
    return usage.model


#: All that is ever written: by event, what a line calls it, the parameter it is taken from, and how.
_SHOWN: Mapping[str, Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "run_start": {"messages": ("messages", len)},
    "run_end": {
        "iterations": ("result", _iterations),
        "tokens": ("result", _result_tokens),
        "tool_calls": ("result", _calls),
    },
    "error": {"error": ("error", _class_name)},
    "cache_hit": {"model": ("model", _same)},
    "usage": {"model": ("usage", _model), "tokens": ("usage", _tokens), "cost_usd": ("usage", _cost)},
    "llm_retry": {
        "attempt": ("attempt", _same),
        "max_retries": ("max_retries", _same),
        "error": ("error", _class_name),
        "backoff_seconds": ("backoff_seconds", _same),
    },
    "tool_start": {"call_id": ("call_id", _same), "tool": ("tool_name", _same)},
    "tool_end": {
        "call_id": ("call_id", _same),
        "tool": ("tool_name", _same),
        "duration_ms": ("duration_ms", _same),
    },
    "tool_error": {
        "call_id": ("call_id", _same),
        "tool": ("tool_name", loggable_name),
        "error": ("error", _class_name),
        "duration_ms": ("duration_ms", _same),
    },
    "tool_chunk": {"call_id": ("call_id", _same), "tool": ("tool_name", _same), "chars": ("chunk", len)},
    "iteration_start": {"iteration": ("iteration", _same), "messages": ("messages", len)},
    "iteration_end": {"iteration": ("iteration", _same)},
    "batch_start": {"prompts": ("prompts_count", _same)},
    "batch_end": {
        "results": ("results_count", _same),
        "errors": ("errors_count", _same),
        "duration_ms": ("total_duration_ms", _same),
    },
    "policy_decision": {"tool": ("tool_name", _same), "decision": ("decision", _same)},
    "structured_validate": {"success": ("success", _same), "attempt": ("attempt", _same)},
    "provider_fallback": {
        "failed_provider": ("failed_provider", _same),
        "next_provider": ("next_provider", _same),
        "error": ("error", _class_name),
    },
    "memory_trim": {"removed": ("messages_removed", _same), "remaining": ("messages_remaining", _same)},
    "session_load": {"messages": ("message_count", _same)},
    "session_save": {"messages": ("message_count", _same)},
    "memory_summarize": {"messages": ("messages_summarized", _same)},
    "entity_extraction": {"entities": ("entities", len), "turns": ("turn_count", _same)},
    "kg_extraction": {"triples": ("triples", len)},
    "budget_exceeded": {"tokens": ("tokens_used", _same), "cost_usd": ("cost_used", _same)},
    "cancelled": {"iteration": ("iteration", _same)},
    "tool_loop_detected": {"detector": ("detector_name", _same)},
    "guardrail_triggered": {
        "stage": ("stage", _same),
        "guardrail": ("guardrail_name", _same),
        "action": ("action", _same),
    },
    "coherence_check": {"tool": ("tool_name", _same), "coherent": ("coherent", _same)},
    "model_switch": {
        "iteration": ("iteration", _same),
        "old_model": ("old_model", _same),
        "new_model": ("new_model", _same),
    },
}


def _method(event: str, shown: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> Callable[..., None]:
    signature = inspect.signature(getattr(AgentObserver, f"on_{event}"))
    run_id = tuple(signature.parameters)[1]

    def tell(self: LoggingObserver, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        self._line(event, given[run_id], **{name: read(given[of]) for name, (of, read) in shown.items()})

    return tell


for _event, _fields in _SHOWN.items():
    setattr(LoggingObserver, f"on_{_event}", _method(_event, _fields))
