"""OpenTelemetryObserver: real spans that all end, without any text of the conversation."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind, StatusCode

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentResult,
    ConversationMemory,
    Message,
    Role,
    ScriptedProvider,
    ToolCall,
    UsageStats,
)
from sayso.agent import otel_conventions as gen_ai
from sayso.agent.observability import otel
from sayso.agent.observability.observer import LlmCall
from sayso.agent.observability.otel import OpenTelemetryObserver

SECRET = "s3cret"
MESSAGES = [
    Message(Role.USER, SECRET),
    Message(Role.ASSISTANT, "", (ToolCall("search", {"q": SECRET}, "c0"),)),
    Message(Role.TOOL, SECRET, tool_call_id="c0", tool_name="search"),
]
USAGE = UsageStats(100, 50, 150, 0.25, "m-2026", "openai", 40, 0)
ANSWERED = LlmCall("openai", "m", 0.5, answer=Message(Role.ASSISTANT, SECRET), usage=USAGE)


class Stage:
    """An observer with the spans that it has ended."""

    def __init__(self, **options) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetryObserver(self.provider, **options)

    @property
    def spans(self):
        """Return the ended spans by name."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def begin(self, run_id="r1"):
        """Start a run and a model call."""
        self.observer.on_run_start(run_id, MESSAGES, SECRET)
        self.observer.on_llm_start(run_id, MESSAGES, "m", SECRET)

    def end(self, run_id="r1", **fields):
        """End the run."""
        result = AgentResult(**({"content": SECRET, "iterations": 2, "usage": USAGE} | fields))
        self.observer.on_run_end(run_id, result)

    def whole(self):
        """Run a model call, a tool that works and one that fails; return the spans."""
        self.begin()
        self.observer.on_llm_call("r1", ANSWERED)
        self.observer.on_tool_start("r1", "c1", "search", {"q": SECRET})
        self.observer.on_tool_start("r1", "c2", "send", {"to": SECRET})
        self.observer.on_tool_error("r1", "c2", "send", KeyError(SECRET), {"to": SECRET}, 1.0)
        self.observer.on_tool_end("r1", "c1", "search", SECRET, 2.0)
        self.observer.on_cache_hit("r1", "m", SECRET)
        self.end()
        return self.spans


def words(spans) -> str:
    """Return everything that would leave the process."""
    return json.dumps([json.loads(span.to_json()) for span in spans.values()])


def test_spans_contain_no_text_of_the_conversation():
    """Arguments, results and error texts are left out too."""
    assert SECRET not in words(Stage().whole())


def test_conversation_is_identified_by_a_digest():
    """Its name may be a phone number."""
    stage = Stage()
    agent = Agent([], ScriptedProvider(["hi", "hi"]), AgentConfig(observers=[stage.observer]))
    for scope in ("+4915112345678", ""):
        agent.run("hello", scope=scope, memory=ConversationMemory())
    chat, named, *unnamed = stage.exporter.get_finished_spans()
    digest = hashlib.sha256(b"+4915112345678").hexdigest()[:32]
    assert [span.attributes["gen_ai.conversation.id"] for span in (chat, named)] == [digest, digest]
    assert all("gen_ai.conversation.id" not in span.attributes for span in unnamed)


def test_attribute_names_are_in_the_installed_conventions():
    """Dashboards would not find a renamed or invented name."""
    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics)
        for value in vars(module).values()
        if is_name(value)
    }
    ours = {
        value
        for value in [*vars(gen_ai).values(), *gen_ai.REQUEST_SETTINGS.values()]
        if is_name(value)
    }
    deprecated = {
        "gen_ai.system",
        "gen_ai.prompt",
        "gen_ai.completion",
        "gen_ai.usage.prompt_tokens",
    }
    assert len(ours) > 20
    assert ours <= known - deprecated


def is_name(value: object) -> bool:
    """Return whether it is the name of an attribute or metric of the conventions."""
    return isinstance(value, str) and value.startswith("gen_ai.")


def test_include_content_adds_all_text():
    """It has the structure of the conventions."""
    spans = Stage(include_content=True).whole()
    chat, tool = spans["chat m"].attributes, spans["execute_tool search"].attributes
    assert [
        message["parts"][0]["type"] for message in json.loads(chat["gen_ai.input.messages"])
    ] == [
        "text",
        "tool_call",
        "tool_call_response",
    ]
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"q": SECRET}
    assert tool["gen_ai.tool.call.result"] == SECRET
    assert SECRET in spans["execute_tool send"].status.description


ENDINGS = {
    "error": lambda observer: observer.on_error("r1", ValueError(SECRET), {}),
    "cancelled": lambda observer: observer.on_cancelled("r1", 1, SECRET),
    "end": lambda observer: observer.on_run_end(
        "r1", AgentResult("", stop_reason="provider_error")
    ),
}


@pytest.mark.parametrize(
    ("how", "kind"),
    [("error", "ValueError"), ("cancelled", "cancelled"), ("end", "provider_error")],
)
def test_spans_of_an_aborted_run_end(how, kind):
    """Its model call and its tools never receive an end event."""
    stage = Stage()
    stage.begin()
    stage.observer.on_tool_start("r1", "c1", "search", {})
    ENDINGS[how](stage.observer)
    assert stage.spans.keys() == {"invoke_agent agent", "chat m", "execute_tool search"}
    assert {span.attributes["error.type"] for span in stage.spans.values()} == {kind}
    assert {span.status.status_code for span in stage.spans.values()} == {StatusCode.ERROR}
    assert stage.observer._runs == {}


def test_late_events_of_an_ended_run_are_ignored():
    """They start no span."""
    stage = Stage()
    stage.whole()
    before = len(stage.spans)
    stage.observer.on_llm_call("r1", ANSWERED)
    stage.observer.on_tool_end("r1", "c1", "search", "", 1.0)
    stage.end()
    assert len(stage.spans) == before


def test_number_of_open_runs_is_bounded(monkeypatch):
    """The oldest run is ended with an error."""
    monkeypatch.setattr(otel, "MAX_RUNS", 2)
    stage = Stage()
    for number in range(5):
        stage.begin(f"r{number}")
    assert len(stage.observer._runs) == 2
    assert len(stage.exporter.get_finished_spans()) == 6


def test_run_is_a_tree_of_spans_of_the_conventions():
    """The model call and the tools are below the run."""
    spans = Stage(agent_name="billing").whole()
    run = spans["invoke_agent billing"]
    assert run.attributes["gen_ai.agent.name"] == "billing"
    for name in ("chat m", "execute_tool search", "execute_tool send"):
        assert spans[name].parent.span_id == run.context.span_id
        assert spans[name].attributes["gen_ai.operation.name"] == name.split()[0]
    assert spans["chat m"].kind is SpanKind.CLIENT
    assert [event.name for event in run.events] == ["sayso.cache_hit"]


def test_usage_is_where_dashboards_expect_it():
    """Both the model call and the run have it."""
    spans = Stage().whole()
    for span in (spans["chat m"], spans["invoke_agent agent"]):
        assert span.attributes["gen_ai.usage.input_tokens"] == 100
        assert span.attributes["gen_ai.usage.output_tokens"] == 50
        assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 40
        assert span.attributes["gen_ai.response.model"] == "m-2026"
        assert span.attributes["gen_ai.provider.name"] == "openai"


def test_parallel_calls_are_distinguished_by_id():
    """They call the same tool."""
    stage = Stage()
    stage.begin()
    for call_id in ("c1", "c2"):
        stage.observer.on_tool_start("r1", call_id, "search", {})
    stage.observer.on_tool_error("r1", "c1", "search", KeyError(), {}, 1.0)
    stage.observer.on_tool_end("r1", "c2", "search", "", 1.0)
    ended = {
        span.attributes["gen_ai.tool.call.id"]: span for span in stage.exporter.get_finished_spans()
    }
    assert ended["c1"].attributes["error.type"] == "KeyError"
    assert ended["c2"].status.status_code is not StatusCode.ERROR


def test_retry_is_an_event_of_the_model_call():
    """It has the attempt and the class of the error."""
    stage = Stage()
    stage.begin()
    stage.observer.on_llm_retry("r1", 1, 2, TimeoutError(SECRET), 1.0)
    stage.observer.on_llm_call("r1", ANSWERED)
    (event,) = stage.spans["chat m"].events
    assert dict(event.attributes) == {"sayso.attempt": 1, "error.type": "TimeoutError"}


def test_run_is_below_the_current_span():
    """The current span may be that of a web request."""
    stage = Stage()
    with stage.provider.get_tracer("web").start_as_current_span("request") as request:
        stage.begin()
        stage.end()
    assert stage.spans["invoke_agent agent"].parent.span_id == request.get_span_context().span_id


def test_agent_inside_a_tool_is_below_the_tool():
    """Its task has the tool's span as the current one."""
    stage = Stage()

    async def call(call_id):
        stage.observer.on_tool_start("r1", call_id, f"tool_{call_id}", {})
        await asyncio.sleep(0)
        stage.begin(f"inner_{call_id}")
        stage.end(f"inner_{call_id}")
        stage.observer.on_tool_end("r1", call_id, f"tool_{call_id}", "", 1.0)

    async def run():
        stage.begin()
        await asyncio.gather(call("c1"), call("c2"))
        stage.end()

    asyncio.run(run())
    spans = stage.exporter.get_finished_spans()
    tools = {span.context.span_id for span in spans if span.name.startswith("execute_tool")}
    inner = [
        span.parent.span_id for span in spans if span.name == "invoke_agent agent" and span.parent
    ]
    assert set(inner) == tools
    assert len(inner) == 2


def test_context_is_restored_after_a_run():
    """It is restored after parallel calls in any order, and after an aborted run."""
    stage = Stage()
    stage.whole()
    stage.begin()
    stage.observer.on_tool_start("r1", "c1", "search", {})
    stage.observer.on_cancelled("r1", 1, "")
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_missing_library_is_named_with_the_install_command(monkeypatch):
    """The library is part of an extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        ImportError, match=r"the extra 'otel' brings: pip install '.*opentelemetry-sdk>="
    ):
        OpenTelemetryObserver()
