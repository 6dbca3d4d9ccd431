"""AgentTrace: what one run did, step by step, and how long each step took (seed: Execution Traces)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

#: The seed's fourteen kinds of steps, and three of ours: what ends a run before its answer.
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
    """One thing that a run did. `timestamp` is when it began, in seconds since 1970; None is what it has nothing of.

    A `summary` that nobody gave is worded from the other fields when it is first read.
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
        if not self.summary:  # most are never read: see __getattr__
            del self.summary

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> str:
            if name != "summary":
                raise AttributeError(f"a TraceStep has no {name!r}")
            self.summary = summary = _summary(self)
            return summary

    def to_dict(self) -> dict[str, Any]:
        """The step as plain data, without what it has nothing of; arguments are as the model gave them."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TraceStep:
        """The step that `to_dict` wrote; what a later version added is left out. Raises TypeError without a type."""
        return cls(**{name: data[name] for name in _STEP_FIELDS if name in data})


_STEP_FIELDS = tuple(part.name for part in fields(TraceStep))


def new_run_id() -> str:
    """An id nobody has had: 32 hexadecimal digits, so that it is a trace id of OpenTelemetry too."""
    return os.urandom(16).hex()


@dataclass(slots=True)
class AgentTrace:
    """The steps of one run, in the order in which they ended. `start_time` is in seconds since 1970."""

    run_id: str = field(default_factory=new_run_id)
    parent_run_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    steps: list[TraceStep] = field(default_factory=list)
    start_time: float = field(default_factory=time.time)

    def __iter__(self) -> Iterator[TraceStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __bool__(self) -> bool:
        return True  # a run without steps has a trace all the same

    def add(self, step: TraceStep) -> TraceStep:
        """Append a step, and give it back."""
        self.steps.append(step)
        return step

    def filter(self, type: StepType) -> list[TraceStep]:  # noqa: A002  # the seed's name
        """The steps of one type."""
        return [step for step in self.steps if step.type == type]

    @property
    def total_duration_ms(self) -> float:
        """From the start of the run to the end of its last step."""
        return max((self._offset_ms(step) + step.duration_ms for step in self.steps), default=0.0)

    @property
    def llm_duration_ms(self) -> float:
        """The time spent asking models."""
        return sum(step.duration_ms for step in self.filter("llm_call"))

    @property
    def tool_duration_ms(self) -> float:
        """The time spent in tools, one by one: those that ran at once count each."""
        return sum(step.duration_ms for step in self.filter("tool_execution"))

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
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
        """The trace that `to_dict` wrote. Raises KeyError or TypeError on anything else."""
        steps = [TraceStep.from_dict(step) for step in data["steps"]]
        return cls(data["run_id"], data["parent_run_id"], dict(data["metadata"]), steps, data["start_time"])

    def to_json(self, filepath: str | Path) -> None:
        """Write the trace to a file; what JSON has no word for becomes its `str`. Raises OSError."""
        Path(filepath).write_text(json.dumps(self.to_dict(), indent=2, default=str), encoding="utf-8")

    def timeline(self) -> str:
        """One line a step for people: when it began, what it was, how long it took."""
        head = f"run {self.run_id}: {len(self)} steps in {self.total_duration_ms:.1f} ms"
        return "\n".join([head, *(self._line(step) for step in self.steps)])

    def _line(self, step: TraceStep) -> str:
        summary = " ".join(step.summary.split())
        return f"{self._offset_ms(step):+10.1f} ms  {step.type:<17} {step.duration_ms:9.1f} ms  {summary}".rstrip()

    def _offset_ms(self, step: TraceStep) -> float:
        return max(0.0, (step.timestamp - self.start_time) * 1000)

    def to_otel_spans(self, *, include_content: bool = False) -> list[dict[str, Any]]:
        """The run and its steps as OpenTelemetry spans in plain data, the run first.

        A nested run is in the trace of its parent, below the parent's span. Arguments, results and the words of errors
        are left out unless asked for.
        """
        from sayso.agent.observability.otel import spans_of  # asked for by few

        return spans_of(self, include_content=include_content)


def _summary(step: TraceStep) -> str:
    what = step.error or _WORDED.get(step.type, _plain)(step)
    named = step.tool_name or step.model
    return f"{named}: {what}" if step.error and named else what


def _plain(step: TraceStep) -> str:
    return step.tool_result or step.tool_name or step.model or step.type.replace("_", " ")


def _of_model(step: TraceStep) -> str:
    model = step.model or "model"
    if step.prompt_tokens is None:
        return model
    return f"{model}: {step.prompt_tokens} + {step.completion_tokens or 0} tokens"


def _of_selection(step: TraceStep) -> str:
    return f"{step.tool_name}({', '.join(step.tool_args or ())})"


def _of_execution(step: TraceStep) -> str:
    return f"{step.tool_name}: {step.tool_result}" if step.tool_result is not None else f"{step.tool_name}"


_WORDED = {
    "llm_call": _of_model,
    "cache_hit": _of_model,
    "tool_selection": _of_selection,
    "tool_execution": _of_execution,
}
