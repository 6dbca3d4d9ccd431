"""OpenTelemetry over real processes: one trace from webhook to receipt, sent to an OTLP/HTTP receiver."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.flows.system import Person, System, TelegramPerson, WhatsAppPerson, until

#: What a proxy in front of the bot sends along: its trace and its span.
TRACE, PROXY_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it was received. Ids are hexadecimal, "" for no parent; `links` are ids of spans."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    links: Sequence[str]
    attributes: dict[str, Any] = field(compare=False)


class Receiver(ThreadingHTTPServer):
    """Takes spans over OTLP/HTTP as protobuf, as a collector does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, body: bytes) -> None:
        """Decode one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for each in (span for scope in resource.scope_spans for span in scope.spans):
                values = {
                    pair.key: getattr(pair.value, str(pair.value.WhichOneof("value")))
                    for pair in each.attributes
                }
                links = [link.span_id.hex() for link in each.links]
                ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
                self.spans.append(Span(each.name, *ids, each.kind, links, values))

    def in_trace(self, trace: str, *names: str) -> dict[str, Span]:
        """Wait until a trace has these spans, and return all its spans by name."""
        found: dict[str, Span] = {}

        def are_here() -> bool:
            found.update({span.name: span for span in self.spans if span.trace == trace})
            return set(names) <= set(found)

        until(are_here)
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Take spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        self.server.take(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Return a running receiver."""
    with Receiver() as running:
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def traced(receiver: Receiver) -> Iterator[System]:
    """Run a bot that exports traces, with the standard variables of OpenTelemetry."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    with tempfile.TemporaryDirectory(prefix="sayso-trace-") as folder:
        system = System(Path(folder), workers=1, environ=environ)
        text = system.config.read_text().replace(
            "{model: offline}", "{model: offline, observe: {otel: true}}"
        )
        system.config.write_text(text)
        with system as running:
            yield running


def trace_of(receiver: Receiver, number: int, channel: str) -> str:
    """Return the trace of the new message that has this number, among those of a channel."""

    def turns() -> list[Span]:
        return [span for span in receiver.spans if span.name == f"turn {channel}"]

    until(lambda: len(turns()) >= number)
    return turns()[number - 1].trace


def test_one_trace_has_the_webhook_the_turn_and_the_receipt(
    traced: System, receiver: Receiver
) -> None:
    """The webhook begins the trace, and links to the span of the proxy. Each other span has the one that caused it as
    its parent.
    """
    person = TelegramPerson(traced, 821)
    headers = {"traceparent": f"00-{TRACE}-{PROXY_SPAN}-01"}
    path, (signed, body) = person.text(821_500, "find invoice INV-42")
    traced.post(path, ({**signed, **headers}, body))
    (answer,) = person.hears()
    names = ("webhook", "accept", "turn", "invoke_agent", "send")
    spans = receiver.in_trace(
        trace_of(receiver, 1, "ops-tg"),
        *(f"{name} ops-tg" for name in names),
        "wait in mailbox",
        "execute_tool find_invoice",
    )
    parents = {name: span.parent for name, span in spans.items()}
    assert spans["webhook ops-tg"].links == [PROXY_SPAN]
    assert not parents.pop("webhook ops-tg")
    assert parents.pop("accept ops-tg") == spans["webhook ops-tg"].id
    assert parents.pop("wait in mailbox") == parents.pop("turn ops-tg") == spans["accept ops-tg"].id
    assert (
        parents.pop("invoke_agent ops-tg") == parents.pop("send ops-tg") == spans["turn ops-tg"].id
    )
    assert set(parents.values()) == {spans["invoke_agent ops-tg"].id}, (
        "calls of the model and of tools"
    )
    assert spans["send ops-tg"].attributes["messaging.message.id"] == str(
        traced.platforms.sent.index(answer) + 1
    )
    assert spans["turn ops-tg"].attributes["sayso.outcome"] == "answered"


def test_a_yes_links_to_the_turn_that_asked(traced: System, receiver: Receiver) -> None:
    """The yes has a trace of its own with the claim and the run of the action. No span names the person."""
    person = WhatsAppPerson(traced, 822)
    person.say("delete invoice INV-55")
    person.hears()
    person.say("yes")
    until(lambda: traced.effects("delete", "INV-55"))
    asked, confirmed = (trace_of(receiver, number, "shop-wa") for number in (1, 2))
    assert asked != confirmed
    names = (
        "confirm action",
        "claim action",
        "execute action",
        "execute_tool delete_invoice",
        "send shop-wa",
    )
    spans = receiver.in_trace(confirmed, "turn shop-wa", *names)
    confirm = spans["confirm action"]
    assert confirm.links == [receiver.in_trace(asked, "turn shop-wa")["turn shop-wa"].id]
    assert confirm.parent == spans["turn shop-wa"].id
    assert spans["claim action"].parent == spans["execute action"].parent == confirm.id
    assert spans["invoke_agent shop-wa"].parent == spans["execute action"].id
    assert confirm.attributes["sayso.outcome"] == "executed"
    told = str([(span.name, span.attributes) for span in receiver.spans])
    assert not any(word in told for word in ("+49", "49151", "INV-55", "delete invoice"))


def test_a_repeated_webhook_is_traced_as_a_duplicate(traced: System, receiver: Receiver) -> None:
    """It begins no second turn."""
    person: Person = TelegramPerson(traced, 823)
    person.say("find invoice INV-42")
    person.hears()

    def outcomes() -> list[Any]:
        return [
            span.attributes["sayso.outcome"]
            for span in receiver.spans
            if span.name == "accept ops-tg"
        ]

    until(lambda: "duplicate" in outcomes())
    trace_of(receiver, outcomes().count("new"), "ops-tg")
    turns = [span.trace for span in receiver.spans if span.name == "turn ops-tg"]
    assert len(turns) == len(set(turns)) == outcomes().count("new")
