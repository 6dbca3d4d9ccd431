"""Observers: the events they receive, and what a log never contains."""

from __future__ import annotations

import inspect
import json
import logging
import warnings

import pytest

from sayso.agent import AgentResult, Message, Role, ToolCall, UsageStats
from sayso.agent.observability.builtin import HOOKS, LoggingObserver, hooks_observer, warn_of_hooks
from sayso.agent.observability.observer import EVENTS, AgentObserver, AsyncAgentObserver, LlmCall
from sayso.agent.observability.run_events import RunEvents
from sayso.infra.concurrency import run_sync

#: The parameters of each event in the seed's table, after the id.
SEED = {
    "run_start": "messages, system_prompt",
    "run_end": "result",
    "error": "error, context",
    "llm_start": "messages, model, system_prompt",
    "llm_end": "response, usage",
    "cache_hit": "model, response",
    "usage": "usage",
    "llm_retry": "attempt, max_retries, error, backoff_seconds",
    "tool_start": "call_id, tool_name, tool_args",
    "tool_end": "call_id, tool_name, result, duration_ms",
    "tool_error": "call_id, tool_name, error, tool_args, duration_ms",
    "tool_chunk": "call_id, tool_name, chunk",
    "iteration_start": "iteration, messages",
    "iteration_end": "iteration, response",
    "batch_start": "prompts_count",
    "batch_end": "results_count, errors_count, total_duration_ms",
    "policy_decision": "tool_name, decision, reason, tool_args",
    "structured_validate": "success, attempt, error",
    "provider_fallback": "failed_provider, next_provider, error",
    "memory_trim": "messages_removed, messages_remaining, reason",
    "session_load": "session_id, message_count",
    "session_save": "session_id, message_count",
    "memory_summarize": "summary, messages_summarized",
    "entity_extraction": "entities, turn_count",
    "kg_extraction": "triples",
    "budget_exceeded": "reason, tokens_used, cost_used",
    "cancelled": "iteration, reason",
    "tool_loop_detected": "detector_name, details",
    "guardrail_triggered": "stage, guardrail_name, action, detail",
    "coherence_check": "tool_name, coherent, explanation",
    "model_switch": "iteration, old_model, new_model",
}

SECRET = "s3cret"
MESSAGES = [Message(Role.USER, SECRET)]
RESULT = AgentResult(
    SECRET, iterations=2, usage=UsageStats(100, 50, 150), tool_calls=(ToolCall("search"),)
)
#: An example of every parameter that is more than an id, a name or a number.
GIVEN = {
    "messages": MESSAGES,
    "result": RESULT,
    "error": ValueError(SECRET),
    "usage": UsageStats(100, 50, 150, 0.25, "m", "p"),
    "context": {"where": SECRET},
    "tool_args": {"to": SECRET},
    "details": {"of": SECRET},
    "entities": [SECRET],
    "triples": [SECRET],
    "success": True,
    "coherent": False,
}
#: Parameters that are names; all other texts are private.
NAMES = "model call_id tool_name decision failed_provider next_provider detector_name stage guardrail_name action "
NAMES = (NAMES + "old_model new_model").split()


def example(event: str) -> list:
    """Return arguments of an event that are full of private text."""
    parameters = SEED[event].split(", ")
    numbers = ("count", "messages_", "attempt", "iteration", "max_", "_ms", "seconds", "_used")
    given = GIVEN | ({"result": SECRET} if event == "tool_end" else {})
    return [
        given.get(
            name, name if name in NAMES else 7 if any(part in name for part in numbers) else SECRET
        )
        for name in parameters
    ]


def logged(caplog, event: str, *args) -> list[dict]:
    """Return the lines that a LoggingObserver wrote for an event."""
    with caplog.at_level(logging.INFO):
        getattr(LoggingObserver(clock=lambda: 1000.0), f"on_{event}")("r1", *args)
    return [json.loads(record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("event", EVENTS)
def test_log_contains_no_private_text(event, caplog):
    """Messages, arguments, results, reasons, session ids and error texts are left out."""
    (line,) = logged(caplog, event, *example(event))
    assert SECRET not in json.dumps(line)
    assert (line["event"], line["timestamp"]) == (event, 1000.0)
    assert line["batch_id" if event.startswith("batch") else "run_id"] == "r1"


def test_log_lines_have_the_fields_of_the_seed(caplog):
    """Tokens, tool and duration have the seed's names."""
    observer = LoggingObserver()
    with caplog.at_level(logging.INFO):
        observer.on_llm_call("r1", LlmCall("p", "m", 0.3125))
        observer.on_llm_end("r1", "", UsageStats(100, 50, 150))
    end = json.loads(caplog.records[-1].getMessage())
    assert (end["tokens"], end["duration_ms"]) == (150, 312.5)
    caplog.clear()
    (line,) = logged(caplog, "tool_end", "c1", "search", SECRET, 45.2)
    assert (line["tool"], line["call_id"], line["duration_ms"]) == ("search", "c1", 45.2)


def test_invalid_tool_name_is_not_logged(caplog):
    """A model may use a user's text as a name."""
    (line,) = logged(caplog, "tool_error", "c1", f"my {SECRET}!", ValueError(SECRET), {}, 0.0)
    assert line["tool"] == "(no name)"


def test_durations_of_model_calls_do_not_accumulate(caplog):
    """A duration is logged once; a failed call has no end event, and a cached answer no duration."""
    observer = LoggingObserver()
    observer.on_llm_call("r1", LlmCall("p", "m", 0.5))
    observer.on_llm_call("r2", LlmCall("p", "m", 0.5, error=ValueError()))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            observer.on_llm_end("r1", "", None)
    assert [json.loads(record.getMessage()).get("duration_ms") for record in caplog.records] == [
        500,
        None,
    ]
    assert observer._seconds == {}


def test_disabled_log_level_writes_no_line(caplog):
    """The usual rules of Python's logging apply."""
    with caplog.at_level(logging.WARNING):
        LoggingObserver().on_iteration_end("r1", 1, "x")
    assert caplog.records == []


def test_events_are_those_of_the_seed():
    """They have exactly its parameters after the id."""
    told = {}
    for event in EVENTS:
        _, id_, *rest = inspect.signature(getattr(AgentObserver, f"on_{event}")).parameters
        assert id_ == ("batch_id" if event.startswith("batch") else "run_id")
        told[event] = ", ".join(rest)
    assert told == SEED
    assert len(EVENTS) == 31


def test_every_event_has_an_async_method():
    """It has the same signature including annotations, and is not blocking by default."""
    for event in EVENTS:
        sync, mirror = (
            getattr(AgentObserver, f"on_{event}"),
            getattr(AsyncAgentObserver, f"a_on_{event}"),
        )
        assert inspect.iscoroutinefunction(mirror)
        assert inspect.signature(sync) == inspect.signature(mirror)
    assert AsyncAgentObserver.blocking is False


@pytest.mark.parametrize("event", EVENTS)
def test_observer_without_overrides_does_nothing(event):
    """Each method can be called."""
    getattr(AgentObserver(), f"on_{event}")("r1", *example(event))
    run_sync(getattr(AsyncAgentObserver(), f"a_on_{event}")("r1", *example(event)))


def test_unknown_hook_is_refused():
    """A misspelled hook would never be called."""
    with pytest.raises(ValueError, match=r"unknown hook 'on_tool_ende'; known: \['on_agent_end'"):
        hooks_observer({"on_tool_ende": print})


def test_hooks_receive_the_arguments_of_the_seed():
    """All hooks are called, and a duration is in seconds."""
    heard = {}
    observer = hooks_observer(
        {name: lambda *args, name=name: heard.update({name: args}) for name in HOOKS}
    )
    told = RunEvents([observer])
    for event in EVENTS:
        run_sync(told.tell(event, *example(event)))
    assert heard.keys() == HOOKS.keys()
    assert {name: len(args) for name, args in heard.items()} == {
        name: len(sources) for name, (_, sources) in HOOKS.items()
    }
    assert heard["on_tool_end"] == ("tool_name", SECRET, 0.007)
    assert heard["on_agent_end"] == (RESULT, RESULT.usage)
    assert heard["on_tool_start"] == ("tool_name", {"to": SECRET})


def test_failing_hook_breaks_no_run(caplog):
    """The seed promises it, and the error is logged."""
    told = RunEvents(
        [hooks_observer({"on_llm_start": lambda messages: None})]
    )  # one parameter is missing
    run_sync(told.tell("llm_start", MESSAGES, "m", "s"))
    assert [vars(record)["reason"] for record in caplog.records] == ["TypeError"]


def test_event_without_a_hook_is_ignored():
    """No error occurs."""
    run_sync(RunEvents([hooks_observer({})]).tell("error", ValueError(), {}))


def test_hooks_are_deprecated():
    """The warning names the caller's file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_hooks(stacklevel=1)
    assert [(warning.category, warning.filename) for warning in caught] == [
        (DeprecationWarning, __file__)
    ]
