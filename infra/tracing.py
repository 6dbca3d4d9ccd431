"""Tracing: one trace from a webhook to the receipt of its reply, with OpenTelemetry.

Tracing is off until `start_tracing` is called: nothing is recorded, stored or imported. A trace
goes on in other processes, because its context is stored with each turn in a mailbox, each reply in
an outbox and each pending action. It is stored as a `traceparent`: a text of the W3C with the ids
of the trace and of a span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer, TracerProvider

#: Names of attributes, for what OpenTelemetry's conventions do not cover.
CHANNEL = "sayso.channel"
OUTCOME = "sayso.outcome"
CONVERSATION = "sayso.conversation"
SEQ = "sayso.seq"
ATTEMPT = "sayso.attempt"
DELIVERY = "sayso.delivery"
PENDING = "sayso.pending"
KIND = "sayso.kind"
#: Names that the conventions have.
MESSAGE_ID = "messaging.message.id"
ERROR_TYPE = "error.type"

SpanKind = Literal["internal", "server", "producer", "consumer", "client"]


class AnySpan(Protocol):
    """A span of OpenTelemetry, or `_NoSpan` while tracing is off."""

    def set_attribute(self, name: str, value: Any, /) -> None:
        """Set an attribute."""


class _NoSpan:
    """The span while tracing is off. Records nothing."""

    def set_attribute(self, name: str, value: Any) -> None:
        """Do nothing."""


_NO_SPAN: AbstractContextManager[AnySpan] = nullcontext(_NoSpan())
_tracer: Tracer | None = None


def start_tracing(provider: TracerProvider | None = None) -> None:
    """Record spans from now on, with this tracer provider; None: with the global one.

    Raises ImportError without OpenTelemetry.
    """
    global _tracer  # noqa: PLW0603  # a process traces or does not
    from opentelemetry import trace

    _tracer = trace.get_tracer("sayso", tracer_provider=provider)


def is_tracing() -> bool:
    """Return whether spans are recorded."""
    return _tracer is not None


def stop_tracing() -> None:
    """Record no further spans."""
    global _tracer  # noqa: PLW0603  # see above
    _tracer = None


def span(
    name: str,
    *,
    parent: str | None = None,
    links: Sequence[str] = (),
    kind: SpanKind = "internal",
    attributes: Mapping[str, Any] | None = None,
) -> AbstractContextManager[AnySpan]:
    """Return a context manager that yields the span of its block.

    An exception marks the span as failed; its text, which may be private, is left out. `parent` and
    `links` are traceparents: the span is a child of `parent`, or begins a trace if that is "". If it
    is None, the span is a child of the current one.
    """
    if _tracer is None:
        return _NO_SPAN
    return _span(_tracer, name, parent, links, kind, attributes or {})


@contextmanager
def _span(
    tracer: Tracer,
    name: str,
    parent: str | None,
    links: Sequence[str],
    kind: SpanKind,
    attributes: Mapping[str, Any],
) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind as Kind
    from opentelemetry.trace import StatusCode

    with tracer.start_as_current_span(
        name,
        _context_of(parent),
        kind=Kind[kind.upper()],
        attributes=attributes,
        links=_links(links),
        record_exception=False,
        set_status_on_exception=False,
    ) as one:
        try:
            yield one
        except BaseException as exc:
            one.set_attribute(ERROR_TYPE, type(exc).__name__)
            one.set_status(StatusCode.ERROR)
            raise


def add_link(span: AnySpan, traceparent: str) -> None:
    """Link a span to the one that a traceparent names.

    Do nothing for a malformed traceparent, and while tracing is off.
    """
    if _tracer is not None and traceparent:
        for link in _links([traceparent]):
            cast("Span", span).add_link(link.context)


def record_wait(name: str, seconds: float, *, parent: str, attributes: Mapping[str, Any]) -> None:
    """Record a span that ends now and lasted this many seconds. `parent` is a traceparent."""
    if _tracer is None:
        return
    now = time.time_ns()
    start = now - int(max(0.0, seconds) * 1e9)
    wait = _tracer.start_span(name, _context_of(parent), attributes=attributes, start_time=start)
    wait.end(now)


def current_trace() -> str:
    """Return the traceparent of the current span, "" while tracing is off and outside a span."""
    if _tracer is None:
        return ""
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def trace_id(traceparent: str) -> str:
    """Return the id of the trace that a traceparent names, "" for none."""
    if traceparent.count("-") == 3:
        return traceparent.split("-")[1]
    return ""


def _context_of(traceparent: str | None) -> Any:
    """Return the context of a traceparent for a new span; None for the current context."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return None
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _links(traceparents: Sequence[str]) -> list[Link]:
    from opentelemetry.trace import Link, get_current_span

    links = []
    for traceparent in filter(None, traceparents):
        context = get_current_span(_context_of(traceparent)).get_span_context()
        if context.is_valid:
            links.append(Link(context))
    return links
