"""AgentTrace: the steps of a run can be read, stored and exported."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from sayso.agent.trace import AgentTrace, StepType, TraceStep, span_id_of

SEEDS = {
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
}
RUN = "a3" * 16


def trace_of(*steps: TraceStep, **fields) -> AgentTrace:
    """Return the trace of a run that started at 1970-01-01 00:16:40."""
    return AgentTrace(**({"run_id": RUN, "steps": list(steps), "start_time": 1000.0} | fields))


def answered() -> AgentTrace:
    """Return a trace with a model call, a failed tool call and a cached answer."""
    return trace_of(
        TraceStep(
            "llm_call",
            1000.0,
            300.0,
            model="m",
            prompt_tokens=120,
            completion_tokens=30,
            cost_usd=0.5,
        ),
        TraceStep(
            "tool_execution",
            1000.3,
            45.0,
            tool_name="search",
            tool_args={"q": "secret"},
            error="KeyError: 'x'",
        ),
        TraceStep("cache_hit", 1000.4, model="m"),
    )


def test_spans_contain_no_content_by_default():
    """Spans are sent to other companies' servers."""
    plain, full = (
        json.dumps(answered().to_otel_spans(include_content=content), default=str)
        for content in (False, True)
    )
    assert "secret" not in plain
    assert "'x'" not in plain
    assert "secret" in full
    assert "'x'" in full


def test_error_text_is_not_used_as_an_error_type():
    """A word of a user's text is no type."""
    (_, span) = trace_of(TraceStep("error", error="hunter2 was refused")).to_otel_spans()
    assert span["attributes"]["error.type"] == "_OTHER"


def test_invalid_tool_name_is_in_no_span():
    """A model may use a user's text as a name; an invented but valid name is kept."""
    steps = [
        TraceStep("tool_execution", tool_name=name, error="Error: unknown")
        for name in ("my pin is 4711", "find_it")
    ]
    _, said, made_up = trace_of(*steps).to_otel_spans()
    assert (said["name"], made_up["name"]) == ("execute_tool (no name)", "execute_tool find_it")
    assert said["attributes"]["gen_ai.tool.name"] == "(no name)"
    assert made_up["attributes"]["gen_ai.tool.name"] == "find_it"


def test_all_step_types_of_the_seed_exist():
    """Each can be used as a filter."""
    assert set(get_args(StepType)) >= SEEDS


@pytest.mark.parametrize("type_", get_args(StepType))
def test_every_step_type_has_a_summary(type_):
    """A step with only its type has one too."""
    assert TraceStep(type_).summary


@pytest.mark.parametrize(
    ("step", "summary"),
    [
        (TraceStep("llm_call", model="m", prompt_tokens=1, completion_tokens=2), "m: 1 + 2 tokens"),
        (TraceStep("tool_selection", tool_name="f", tool_args={"a": 1, "b": 2}), "f(a, b)"),
        (TraceStep("tool_execution", tool_name="f", tool_result="done"), "f: done"),
        (TraceStep("tool_execution", tool_name="f", error="KeyError: 1"), "f: KeyError: 1"),
        (TraceStep("session_load"), "session load"),
        (TraceStep("error", given_summary="as given", error="no"), "as given"),
    ],
)
def test_summary_describes_the_step(step, summary):
    """It is derived from the other fields unless it was given."""
    assert step.summary == summary


def test_trace_supports_filter_iteration_and_length():
    """The seed's examples use them."""
    trace = answered()
    assert [step.model for step in trace.filter(type="llm_call")] == ["m"]
    assert [step.type for step in trace] == ["llm_call", "tool_execution", "cache_hit"]
    assert len(trace) == 3
    assert AgentTrace()  # a trace without steps is truthy


def test_total_duration_lasts_to_the_end_of_the_last_step():
    """A trace without steps takes no time."""
    assert answered().total_duration_ms == pytest.approx(400)
    assert AgentTrace().total_duration_ms == 0


def test_trace_is_written_to_a_file(tmp_path):
    """The file has its ids, its metadata, and the fields of each step that apply."""
    trace = trace_of(*answered(), parent_run_id="p", metadata={"user": "u1"})
    trace.to_json(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    assert data == trace.to_dict()
    assert (data["run_id"], data["parent_run_id"], data["metadata"]) == (RUN, "p", {"user": "u1"})
    assert data["steps"][2] == {
        "type": "cache_hit", "timestamp": 1000.4, "duration_ms": 0.0, "summary": "m", "model": "m",
    }  # fmt: skip


def test_unserializable_argument_is_written_as_text(tmp_path):
    """A trace must not fail because of an argument."""
    trace_of(TraceStep("tool_selection", tool_args={"x": {1}})).to_json(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["steps"][0]["tool_args"] == {"x": "{1}"}


def test_timeline_has_a_line_for_each_step():
    """A line break in a result is replaced."""
    trace = trace_of(TraceStep("tool_execution", 1000.5, 45.2, tool_name="f", tool_result="a\nb"))
    assert (
        trace.timeline().splitlines()[1] == "    +500.0 ms  tool_execution         45.2 ms  f: a b"
    )


def test_spans_have_valid_ids_parents_and_times():
    """OpenTelemetry requires 32 and 16 hexadecimal digits, and nanoseconds."""
    root, *steps = answered().to_otel_spans()
    assert root["trace_id"] == RUN
    assert {(span["trace_id"], span["parent_span_id"]) for span in steps} == {
        (RUN, root["span_id"])
    }
    assert len({span["span_id"] for span in (root, *steps)}) == 4
    assert all(len(span["span_id"]) == 16 and int(span["span_id"], 16) for span in (root, *steps))
    assert steps[0]["end_time_unix_nano"] - steps[0]["start_time_unix_nano"] == 300_000_000


def test_spans_follow_the_genai_conventions():
    """Names, operations and tokens are where dashboards expect them."""
    root, chat, tool, hit = answered().to_otel_spans()
    assert [span["name"] for span in (root, chat, tool, hit)] == [
        "invoke_agent",
        "chat m",
        "execute_tool search",
        "cache_hit",
    ]
    assert chat["attributes"]["gen_ai.usage.input_tokens"] == 120
    assert chat["kind"] == "CLIENT"
    assert (tool["attributes"]["error.type"], tool["status"]["code"]) == ("KeyError", "ERROR")


def test_nested_run_is_below_its_parent():
    """It is in the parent's trace, for any form of id."""
    (root,) = trace_of(parent_run_id="outer run").to_otel_spans()
    (outer,) = trace_of(run_id="outer run").to_otel_spans()
    assert root["trace_id"] == outer["trace_id"] != "outer run"
    assert root["parent_span_id"] == outer["span_id"] == span_id_of("outer run")
