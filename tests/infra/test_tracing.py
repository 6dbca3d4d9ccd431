"""Tracing: what a trace stores in turns, replies and actions, and that it costs nothing while it is off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sayso.channels.types import Conversation, Reply, Turn
from sayso.infra import tracing
from sayso.pending.turn_changes import Timer, outbox_entry
from sayso.pending.turns import QueuedReply, ReplyTrace

HERE = Conversation("tg", "42")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Trace into memory."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.start_tracing(provider)
    yield memory
    tracing.stop_tracing()


def test_an_error_marks_its_span_without_its_text(exporter: InMemorySpanExporter) -> None:
    """The text of the error may contain what a person wrote, or a link with a token."""
    with pytest.raises(ValueError, match="s3cret"), tracing.span("send tg"):
        raise ValueError("s3cret")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.attributes["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    assert "s3cret" not in span.to_json()


@pytest.mark.parametrize(
    "given", ["", "nonsense", "00-xyz-1-01", f"00-{'0' * 32}-{'0' * 16}-01", "ff" * 300]
)
def test_a_malformed_traceparent_begins_a_new_trace(
    exporter: InMemorySpanExporter, given: str
) -> None:
    """Any client can send such a header with a webhook."""
    with tracing.span("webhook tg", parent=given, links=[given]):
        pass
    (span,) = exporter.get_finished_spans()
    assert (span.parent, list(span.links)) == (None, [])


def test_a_reply_of_a_turn_is_part_of_its_trace_and_a_timer_only_links_to_it(
    exporter: InMemorySpanExporter,
) -> None:
    """A reminder may come a month later, and a trace must end before that."""
    with tracing.span("turn tg", parent=PARENT):
        here = tracing.current_trace()
        reply = outbox_entry(HERE, Reply("done"))
        timer = json.loads(Timer("t1", 1e9, "stretch").to_dict(HERE)["what"])["reply"]
    assert here.startswith(PARENT[:35])
    assert QueuedReply(1, reply, 1).trace == ReplyTrace(parent=here, link="")
    assert QueuedReply(2, timer, 1).trace == ReplyTrace(parent="", link=here)
    with tracing.span("send tg", parent="", links=[here]):
        pass
    turn, send = exporter.get_finished_spans()
    assert send.context.trace_id != turn.context.trace_id
    assert [link.context.span_id for link in send.links] == [turn.context.span_id]


def test_span_of_the_wait_in_the_mailbox_begins_when_the_turn_was_received(
    exporter: InMemorySpanExporter,
) -> None:
    """Its length is the difference of two times of Redis's clock. A negative difference counts as zero."""
    tracing.record_wait("wait in mailbox", 2.5, parent=PARENT, attributes={})
    tracing.record_wait("wait in mailbox", -1.0, parent=PARENT, attributes={})
    waited, none = exporter.get_finished_spans()
    assert (waited.end_time or 0) - (waited.start_time or 0) == 2_500_000_000
    assert none.end_time == none.start_time


def test_turn_with_a_trace_equals_the_same_turn_without_it() -> None:
    """A worker of an older version ignores the field and can read the turn."""
    turn = Turn("e1", HERE, "42", "hello", trace=PARENT)
    assert Turn.from_json(turn.to_json()).trace == PARENT
    assert turn == Turn("e1", HERE, "42", "hello")
    assert Turn.from_json(turn.to_json().replace('"trace"', '"of_a_later_version"')) == turn


def test_without_tracing_nothing_is_stored_and_no_library_is_needed() -> None:
    """While tracing is off, records have no trace and OpenTelemetry is not imported."""
    assert json.loads(outbox_entry(HERE, Reply("done"))).keys() == {"to", "reply", "v"}
    assert tracing.span("turn tg") is tracing.span("webhook tg", parent=PARENT)
    missing = "import sys; sys.modules['opentelemetry'] = None; import sayso.workers.processor, sayso.channels.web.app"
    used = "from sayso.infra.tracing import current_trace, span\nwith span('turn tg'): print([current_trace()])"
    assert (
        subprocess.check_output([sys.executable, "-c", f"{missing}\n{used}"], text=True) == "['']\n"
    )
