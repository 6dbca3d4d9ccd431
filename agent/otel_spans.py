"""OTel spans: a finished trace as the spans of OpenTelemetry, in plain data and without its library."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from sayso.agent import gen_ai
from sayso.agent.tools.names import shown_name
from sayso.agent.trace import AgentTrace, TraceStep

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
#: What an error's text begins with where it names a class.
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*(?=:)")


def spans_of(trace: AgentTrace, *, include_content: bool) -> list[dict[str, Any]]:
    """The run's span and, below it, one for each step. Times are in nanoseconds since 1970."""
    ids = {"trace_id": trace_id(trace.parent_run_id or trace.run_id), "parent_span_id": root_id(trace.run_id)}
    return [_root(trace), *(ids | _step(trace, at, include_content) for at in range(len(trace)))]


def trace_id(run_id: str) -> str:
    """A run's id where it can be one of a trace, else one that is made of it."""
    return run_id if _TRACE_ID.fullmatch(run_id) else hashlib.sha256(run_id.encode()).hexdigest()[:32]


def root_id(run_id: str) -> str:
    """The id of a run's own span: whoever knows the run knows it."""
    return _span_id(run_id, "run")


def _span_id(run_id: str, part: str) -> str:
    digest = hashlib.sha256(f"{run_id}/{part}".encode()).hexdigest()[:16]
    return digest if digest.strip("0") else "1".rjust(16, "0")


def _root(trace: AgentTrace) -> dict[str, Any]:
    failed = [step.error for step in trace.filter("error") if step.error]
    attributes = {gen_ai.OPERATION: gen_ai.INVOKE_AGENT, gen_ai.RUN_ID: trace.run_id} | _totals(trace)
    attributes |= {f"sayso.metadata.{key}": _plain(value) for key, value in trace.metadata.items()}
    return {
        "trace_id": trace_id(trace.parent_run_id or trace.run_id),
        "span_id": root_id(trace.run_id),
        "parent_span_id": root_id(trace.parent_run_id) if trace.parent_run_id else "",
        "name": gen_ai.INVOKE_AGENT,
        "kind": "INTERNAL",
        **_times(trace.start_time, trace.total_duration_ms),
        "attributes": attributes | _error_type(failed[-1] if failed else None),
        "status": {"code": "ERROR" if failed else "OK"},
    }


def _totals(trace: AgentTrace) -> dict[str, Any]:
    return {
        gen_ai.INPUT_TOKENS: sum(step.prompt_tokens or 0 for step in trace),
        gen_ai.OUTPUT_TOKENS: sum(step.completion_tokens or 0 for step in trace),
        gen_ai.COST_USD: sum(step.cost_usd or 0.0 for step in trace),
    }


def _step(trace: AgentTrace, at: int, include_content: bool) -> dict[str, Any]:
    step = trace.steps[at]
    operation, kind, named = _OPERATIONS.get(step.type, (step.type, "INTERNAL", None))
    name = getattr(step, named) if named else None
    status = {"code": "ERROR" if step.error else "OK"}
    if step.error and include_content:
        status["message"] = step.error
    return {
        "span_id": _span_id(trace.run_id, str(at)),
        "name": f"{operation} {name}" if name else operation,
        "kind": kind,
        **_times(step.timestamp, step.duration_ms),
        "attributes": _attributes(step, operation, include_content) | _error_type(step.error),
        "status": status,
    }


#: Operation, kind of span, and the field that names it; steps that are no operation have their type's name.
_OPERATIONS: dict[str, tuple[str, str, str | None]] = {
    "llm_call": (gen_ai.CHAT, "CLIENT", "model"),
    "tool_execution": (gen_ai.EXECUTE_TOOL, "INTERNAL", "tool_name"),
}


def _attributes(step: TraceStep, operation: str, include_content: bool) -> dict[str, Any]:
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
        gen_ai.TOOL_NAME: None if step.tool_name is None else shown_name(step.tool_name),
    }
    if include_content:
        args = None if step.tool_args is None else json.dumps(dict(step.tool_args), default=str)
        attributes |= {gen_ai.TOOL_ARGUMENTS: args, gen_ai.TOOL_RESULT: step.tool_result}
    return {name: value for name, value in attributes.items() if value is not None}


def _error_type(error: str | None) -> dict[str, str]:
    if not error:
        return {}
    named = _CLASS.match(error)
    return {gen_ai.ERROR_TYPE: named.group() if named else gen_ai.OTHER}


def _times(began: float, duration_ms: float) -> dict[str, int]:
    start = int(began * 1e9)
    return {"start_time_unix_nano": start, "end_time_unix_nano": start + int(duration_ms * 1e6)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)
