"""AgentTrace: the steps of one run with their durations, and their export as OpenTelemetry spans (seed)."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sayso.agent.observability import conventions as gen_ai
from sayso.agent.tools.definition import loggable_name
from sayso.channels.types import random_id

#: The seed's fourteen types of steps, and three of ours for a run that ends before its answer.
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
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
#: The class name that an error's text begins with.
_ERROR_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*(?=:)")
#: Steps that are operations in OpenTelemetry: the operation, the kind of span, and the field that names the span.
_OPERATIONS: dict[str, tuple[str, str, str]] = {
    "llm_call": (gen_ai.CHAT, "CLIENT", "model"),
    "tool_execution": (gen_ai.EXECUTE_TOOL, "INTERNAL", "tool_name"),
}


@dataclass(slots=True)
class TraceStep:
    """One step of a run. `timestamp` is its start in Unix seconds. A field that does not apply to the step is None.

    Without a given `summary`, one is written from the other fields when it is first read.
    """

    type: StepType
    timestamp: float = field(default_factory=time.time)
    duration_ms: float = 0.0
    summary: str = ""
    tool_name: str | None = None
    tool_args: Mapping[str, Any] | None = None
    tool_result: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    reasoning: str | None = None
    error: str | None = None
    provider: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None

    def __post_init__(self) -> None:
        if not self.summary:  # most summaries are never read: see __getattr__
            del self.summary

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            if name != "summary":
                raise AttributeError(f"a TraceStep has no {name!r}")
            self.summary = summary = _summary(self)
            return summary

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data, without the fields that are None. Arguments are as the model gave them."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TraceStep:
        """Return the step that `to_dict` wrote; unknown fields are ignored. Raise TypeError without a type."""
        return cls(**{name: data[name] for name in _STEP_FIELDS if name in data})


_STEP_FIELDS = tuple(part.name for part in fields(TraceStep))


def _summary(step: TraceStep) -> str:
    name = step.tool_name or step.model
    if step.error:
        return f"{name}: {step.error}" if name else step.error
    match step.type:
        case "llm_call" | "cache_hit":
            model = step.model or "model"
            tokens = f"{step.prompt_tokens} + {step.completion_tokens or 0} tokens"
            return model if step.prompt_tokens is None else f"{model}: {tokens}"
        case "tool_selection":
            return f"{step.tool_name}({', '.join(step.tool_args or ())})"
        case "tool_execution":
            return f"{step.tool_name}: {step.tool_result}" if step.tool_result is not None else f"{step.tool_name}"
        case _:
            return step.tool_result or name or step.type.replace("_", " ")


@dataclass(slots=True)
class AgentTrace:
    """The steps of one run, in the order in which they ended. `start_time` is in Unix seconds."""

    #: 32 hexadecimal digits, so that it is also a valid trace id of OpenTelemetry.
    run_id: str = field(default_factory=random_id)
    parent_run_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    steps: list[TraceStep] = field(default_factory=list)
    start_time: float = field(default_factory=time.time)

    def __iter__(self) -> Iterator[TraceStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return True  # also without steps

    def add(self, step: TraceStep) -> TraceStep:
        """Append a step and return it."""
        self.steps.append(step)
        return step

    def filter(self, type: StepType) -> list[TraceStep]:
        """Return the steps of one type."""
        return [step for step in self.steps if step.type == type]

    @property
    def total_duration_ms(self) -> float:
        """Milliseconds from the start of the run to the end of its last step."""
        return max((self._offset_ms(step) + step.duration_ms for step in self.steps), default=0.0)

    @property
    def llm_duration_ms(self) -> float:
        """Milliseconds spent in model calls."""
        return sum(step.duration_ms for step in self.filter("llm_call"))

    @property
    def tool_duration_ms(self) -> float:
        """Milliseconds spent in tools; tools that ran in parallel are added up."""
        return sum(step.duration_ms for step in self.filter("tool_execution"))

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentTrace:
        """Return the trace that `to_dict` wrote. Raise KeyError or TypeError for anything else."""
        steps = [TraceStep.from_dict(step) for step in data["steps"]]
        return cls(data["run_id"], data["parent_run_id"], dict(data["metadata"]), steps, data["start_time"])

    def to_json(self, filepath: str | Path) -> None:
        """Write the trace to a JSON file; values that JSON cannot hold are written as their `str`. Raise OSError."""
        Path(filepath).write_text(json.dumps(self.to_dict(), indent=2, default=str), encoding="utf-8")

    def timeline(self) -> str:
        """Return one line of text for each step: its start, type, duration and summary."""
        lines = [f"run {self.run_id}: {len(self)} steps in {self.total_duration_ms:.1f} ms"]
        for step in self.steps:
            summary = " ".join(step.summary.split())
            line = f"{self._offset_ms(step):+10.1f} ms  {step.type:<17} {step.duration_ms:9.1f} ms  {summary}"
            lines.append(line.rstrip())
        return "\n".join(lines)

    def _offset_ms(self, step: TraceStep) -> float:
        return max(0.0, (step.timestamp - self.start_time) * 1000)

    def to_otel_spans(self, *, include_content: bool = False) -> list[dict[str, Any]]:
        """Return the run and its steps as OpenTelemetry spans in plain data, the run first. Times are Unix nanoseconds.

        The span of a nested run has the parent run's trace id and is a child of the parent's span. Arguments, results
        and the texts of errors are included only with `include_content`.
        """
        ids = {"trace_id": _otel_trace_id(self), "parent_span_id": root_span_id(self.run_id)}
        steps = (ids | _step_span(self, number, include_content) for number in range(len(self)))
        return [_run_span(self), *steps]


def _otel_trace_id(trace: AgentTrace) -> str:
    """Return the run id if it is a valid trace id, else a hash of it. A nested run has its parent's."""
    run_id = trace.parent_run_id or trace.run_id
    return run_id if _TRACE_ID.fullmatch(run_id) else hashlib.sha256(run_id.encode()).hexdigest()[:32]


def root_span_id(run_id: str) -> str:
    """Return the id of a run's own span. It follows from the run id, so that nested runs can refer to it."""
    return _span_id(run_id, "run")


def _span_id(run_id: str, part: str) -> str:
    digest = hashlib.sha256(f"{run_id}/{part}".encode()).hexdigest()[:16]
    return digest if digest.strip("0") else "1".rjust(16, "0")


def _run_span(trace: AgentTrace) -> dict[str, Any]:
    errors = [step.error for step in trace.filter("error") if step.error]
    attributes = {
        gen_ai.OPERATION: gen_ai.INVOKE_AGENT,
        gen_ai.RUN_ID: trace.run_id,
        gen_ai.INPUT_TOKENS: sum(step.prompt_tokens or 0 for step in trace),
        gen_ai.OUTPUT_TOKENS: sum(step.completion_tokens or 0 for step in trace),
        gen_ai.COST_USD: sum(step.cost_usd or 0.0 for step in trace),
    }
    for key, value in trace.metadata.items():
        is_plain = isinstance(value, str | int | float | bool)
        attributes[f"sayso.metadata.{key}"] = value if is_plain else json.dumps(value, default=str)
    return {
        "trace_id": _otel_trace_id(trace),
        "span_id": root_span_id(trace.run_id),
        "parent_span_id": root_span_id(trace.parent_run_id) if trace.parent_run_id else "",
        "name": gen_ai.INVOKE_AGENT,
        "kind": "INTERNAL",
        **_times(trace.start_time, trace.total_duration_ms),
        "attributes": attributes | _error_type(errors[-1] if errors else None),
        "status": {"code": "ERROR" if errors else "OK"},
    }


def _step_span(trace: AgentTrace, number: int, include_content: bool) -> dict[str, Any]:
    step = trace.steps[number]
    operation, kind, name_field = _OPERATIONS.get(step.type, (step.type, "INTERNAL", ""))
    name = getattr(step, name_field) if name_field else None
    status = {"code": "ERROR" if step.error else "OK"}
    if step.error and include_content:
        status["message"] = step.error
    return {
        "span_id": _span_id(trace.run_id, str(number)),
        "name": f"{operation} {name}" if name else operation,
        "kind": kind,
        **_times(step.timestamp, step.duration_ms),
        "attributes": _step_attributes(step, operation, include_content) | _error_type(step.error),
        "status": status,
    }


def _step_attributes(step: TraceStep, operation: str, include_content: bool) -> dict[str, Any]:
    attributes = {
        gen_ai.STEP: step.type,
        gen_ai.OPERATION: operation if step.type in _OPERATIONS else None,
        gen_ai.REQUEST_MODEL: step.model,
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAMES.get(step.provider, step.provider) if step.provider else None,
        gen_ai.FINISH_REASONS: [step.finish_reason] if step.finish_reason else None,
        gen_ai.RESPONSE_ID: step.response_id,
        gen_ai.INPUT_TOKENS: step.prompt_tokens,
        gen_ai.OUTPUT_TOKENS: step.completion_tokens,
        gen_ai.COST_USD: step.cost_usd,
        gen_ai.TOOL_NAME: None if step.tool_name is None else loggable_name(step.tool_name),
    }
    if include_content:
        args = None if step.tool_args is None else json.dumps(dict(step.tool_args), default=str)
        attributes |= {gen_ai.TOOL_ARGUMENTS: args, gen_ai.TOOL_RESULT: step.tool_result}
    return {name: value for name, value in attributes.items() if value is not None}


def _error_type(error: str | None) -> dict[str, str]:
    if not error:
        return {}
    error_class = _ERROR_CLASS.match(error)
    return {gen_ai.ERROR_TYPE: error_class.group() if error_class else gen_ai.OTHER}


def _times(start: float, duration_ms: float) -> dict[str, int]:
    start_ns = int(start * 1e9)
    return {"start_time_unix_nano": start_ns, "end_time_unix_nano": start_ns + int(duration_ms * 1e6)}
