"""AgentTrace: the steps of one run, as the caller of the agent reads them.

A trace can be written as JSON, as a timeline of text lines, and as OpenTelemetry spans in plain
data, once the run is over. `observability/otel.py` sends spans to OpenTelemetry while it runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sayso.agent import otel_conventions as gen_ai
from sayso.agent.tools.names import loggable_name
from sayso.infra.ids import random_id

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
#: The class name that an error's text begins with.
_ERROR_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*(?=:)")
#: What a step of a run is. The last three say why a run ends before its answer.
StepType = Literal[
    "llm_call",
    "tool_selection",
    "tool_execution",
    "cache_hit",
    "error",
    "structured_retry",
    "guardrail",
    "coherence_check",
    "output_screening",
    "session_load",
    "session_save",
    "memory_summarize",
    "entity_extraction",
    "kg_extraction",
    "budget",
    "loop_detected",
    "cancelled",
]


@dataclass(slots=True)
class TraceStep:
    """One step of a run. A field that does not apply to the step is None."""

    type: StepType
    #: When the step began, in Unix seconds.
    timestamp: float = field(default_factory=time.time)
    #: In milliseconds.
    duration_ms: float = 0.0
    #: The step as text; "" for a text that `summary` makes of the other fields.
    given_summary: str = ""
    tool_name: str | None = None
    tool_args: Mapping[str, Any] | None = None
    tool_result: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    reasoning: str | None = None
    error: str | None = None
    provider: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None

    @property
    def summary(self) -> str:
        """The step as text."""
        if self.given_summary:
            return self.given_summary
        name = self.tool_name or self.model
        if self.error:
            if name:
                return f"{name}: {self.error}"
            return self.error
        match self.type:
            case "llm_call" | "cache_hit":
                model = self.model or "model"
                if self.prompt_tokens is None:
                    return model
                return f"{model}: {self.prompt_tokens} + {self.completion_tokens or 0} tokens"
            case "tool_selection":
                return f"{self.tool_name}({', '.join(self.tool_args or ())})"
            case "tool_execution":
                if self.tool_result is not None:
                    return f"{self.tool_name}: {self.tool_result}"
                return f"{self.tool_name}"
            case _:
                return self.tool_result or name or self.type.replace("_", " ")

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data, without the fields that are None.

        Arguments are as the model wrote them.
        """
        data = {name: getattr(self, name) for name in self.__slots__ if name != "given_summary"}
        data["summary"] = self.summary
        return {name: value for name, value in data.items() if value is not None}


@dataclass(slots=True)
class AgentTrace:
    """The steps of one run, in the order in which they ended."""

    #: 32 hexadecimal digits, so that it is also a valid trace id of OpenTelemetry.
    run_id: str = field(default_factory=random_id)
    #: The run that this one is a part of; "" for none.
    parent_run_id: str = ""
    #: What the program stores with the trace (`AgentConfig.trace_metadata`).
    metadata: Mapping[str, Any] = field(default_factory=dict)
    steps: list[TraceStep] = field(default_factory=list)
    #: When the run began, in Unix seconds.
    start_time: float = field(default_factory=time.time)

    def __iter__(self) -> Iterator[TraceStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return True  # also without steps

    def add(self, step: TraceStep) -> None:
        """Append a step."""
        self.steps.append(step)

    def filter(self, type: StepType) -> list[TraceStep]:
        """Return the steps of one type."""
        return [step for step in self.steps if step.type == type]

    @property
    def total_duration_ms(self) -> float:
        """Milliseconds from the start of the run to the end of its last step."""
        return max((self._offset_ms(step) + step.duration_ms for step in self.steps), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as plain data."""
        return {
            "run_id": self.run_id,
            "parent_run_id": self.parent_run_id,
            "metadata": dict(self.metadata),
            "start_time": self.start_time,
            "total_duration_ms": self.total_duration_ms,
            "steps": [step.to_dict() for step in self.steps],
        }

    def to_json(self, filepath: str | Path) -> None:
        """Write the trace to a JSON file; values that JSON cannot hold are written as their `str`.

        Raises OSError if the file cannot be written.
        """
        Path(filepath).write_text(
            json.dumps(self.to_dict(), indent=2, default=str), encoding="utf-8"
        )

    def timeline(self) -> str:
        """Return one line of text for each step: its start, type, duration and summary."""
        lines = [f"run {self.run_id}: {len(self)} steps in {self.total_duration_ms:.1f} ms"]
        for step in self.steps:
            summary = " ".join(step.summary.split())
            start = f"{self._offset_ms(step):+10.1f} ms"
            duration = f"{step.duration_ms:9.1f} ms"
            lines.append(f"{start}  {step.type:<17} {duration}  {summary}".rstrip())
        return "\n".join(lines)

    def _offset_ms(self, step: TraceStep) -> float:
        """Return when a step began, in milliseconds since the run began."""
        return max(0.0, (step.timestamp - self.start_time) * 1000)

    def to_otel_spans(self, *, include_content: bool = False) -> list[dict[str, Any]]:
        """Return the run and its steps as OpenTelemetry spans in plain data, the run first.

        Times are in Unix nanoseconds. The span of a nested run has the parent run's trace id and is
        a child of the parent's span. Arguments, results and the texts of errors are included only
        with `include_content`.
        """
        return _trace_spans(self, include_content=include_content)


def _trace_spans(trace: AgentTrace, *, include_content: bool) -> list[dict[str, Any]]:
    """Return a finished run and its steps as spans in plain data, the run first."""
    # A nested run is part of the trace of its parent. A program may have chosen an id that is no
    # valid trace id.
    trace_id = trace.parent_run_id or trace.run_id
    if not _TRACE_ID.fullmatch(trace_id):
        trace_id = hashlib.sha256(trace_id.encode()).hexdigest()[:32]

    errors = [step.error for step in trace.filter("error") if step.error]
    attributes = {
        gen_ai.OPERATION: gen_ai.INVOKE_AGENT,
        gen_ai.RUN_ID: trace.run_id,
        gen_ai.INPUT_TOKENS: sum(step.prompt_tokens or 0 for step in trace),
        gen_ai.OUTPUT_TOKENS: sum(step.completion_tokens or 0 for step in trace),
        gen_ai.COST_USD: sum(step.cost_usd or 0.0 for step in trace),
    }
    if errors:
        attributes[gen_ai.ERROR_TYPE] = _error_type(errors[-1])
    for key, value in trace.metadata.items():
        if isinstance(value, str | int | float | bool):
            attributes[f"sayso.metadata.{key}"] = value
        else:
            attributes[f"sayso.metadata.{key}"] = json.dumps(value, default=str)

    parent_span_id = ""
    if trace.parent_run_id:
        parent_span_id = span_id_of(trace.parent_run_id)
    run_span = {
        "span_id": span_id_of(trace.run_id),
        "parent_span_id": parent_span_id,
        "name": gen_ai.INVOKE_AGENT,
        "kind": "INTERNAL",
        "attributes": attributes,
        "status": {"code": "ERROR" if errors else "OK"},
        **_times(trace.start_time, trace.total_duration_ms),
    }
    step_spans = (
        {
            "span_id": span_id_of(trace.run_id, str(number)),
            "parent_span_id": run_span["span_id"],
            **_step_span(step, include_content=include_content),
        }
        for number, step in enumerate(trace)
    )
    return [{"trace_id": trace_id, **span} for span in (run_span, *step_spans)]


def span_id_of(run_id: str, part: str = "run") -> str:
    """Return the id of the span of a run, or of one of its steps (`part` is the step's number).

    It is computed from the run id, so that a nested run can name its parent's span.
    """
    return hashlib.sha256(f"{run_id}/{part}".encode()).hexdigest()[:16]


def _step_span(step: TraceStep, *, include_content: bool) -> dict[str, Any]:
    """Return the span of a step without its ids.

    Calls of models and tools are operations of the conventions. Any other step has none.
    """
    operation = {"llm_call": gen_ai.CHAT, "tool_execution": gen_ai.EXECUTE_TOOL}.get(step.type)
    provider = None
    if step.provider:
        provider = gen_ai.PROVIDER_NAMES.get(step.provider, step.provider)
    tool_name = None
    if step.tool_name is not None:
        tool_name = loggable_name(step.tool_name)
    attributes = {
        gen_ai.STEP: step.type,
        gen_ai.OPERATION: operation,
        gen_ai.REQUEST_MODEL: step.model,
        gen_ai.PROVIDER: provider,
        gen_ai.FINISH_REASONS: [step.finish_reason] if step.finish_reason else None,
        gen_ai.RESPONSE_ID: step.response_id,
        gen_ai.INPUT_TOKENS: step.prompt_tokens,
        gen_ai.OUTPUT_TOKENS: step.completion_tokens,
        gen_ai.CACHE_READ_TOKENS: step.cache_read_tokens,
        gen_ai.CACHE_WRITE_TOKENS: step.cache_write_tokens,
        gen_ai.COST_USD: step.cost_usd,
        gen_ai.TOOL_NAME: tool_name,
        gen_ai.ERROR_TYPE: _error_type(step.error) if step.error else None,
    }
    status = {"code": "ERROR" if step.error else "OK"}
    if include_content:
        attributes[gen_ai.TOOL_RESULT] = step.tool_result
        if step.tool_args is not None:
            attributes[gen_ai.TOOL_ARGUMENTS] = json.dumps(dict(step.tool_args), default=str)
        if step.error:
            status["message"] = step.error

    # An operation is named with what was called, such as "chat gpt-5-mini".
    span_name = operation or step.type
    called_name = step.model if operation == gen_ai.CHAT else tool_name
    if operation and called_name:
        span_name = f"{operation} {called_name}"
    return {
        "name": span_name,
        "kind": "CLIENT" if operation == gen_ai.CHAT else "INTERNAL",
        "attributes": {name: value for name, value in attributes.items() if value is not None},
        "status": status,
        **_times(step.timestamp, step.duration_ms),
    }


def _error_type(error: str) -> str:
    """Return the class that an error's text begins with, for `error.type`."""
    error_class = _ERROR_CLASS.match(error)
    if error_class:
        return error_class.group()
    return gen_ai.ERROR_OTHER


def _times(start: float, duration_ms: float) -> dict[str, int]:
    """Return the start and the end of a span. `start` is in Unix seconds."""
    start_ns = int(start * 1e9)
    return {
        "start_time_unix_nano": start_ns,
        "end_time_unix_nano": start_ns + int(duration_ms * 1e6),
    }
