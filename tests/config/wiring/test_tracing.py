"""Tracing: OTEL_* variables direct the spans, and a setup that would lose them is refused before the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sayso.config.wiring.observability import TracingError, set_up_tracing

ROOT = Path(__file__).parents[3]
#: A process sets its tracer once, so each of these tests uses a new process.
SPAN = """
from sayso.config.wiring.observability import set_up_tracing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
{before}
set_up_tracing()
trace.get_tracer("t").start_span("hello").end()
print(type(trace.get_tracer_provider()).__name__, trace.get_tracer_provider().resource.attributes["service.name"])
"""


def run(before: str = "", **environ: str) -> str:
    """Return the output of a process that makes a span."""
    command = [sys.executable, "-c", SPAN.format(before=before)]
    return subprocess.run(
        command, env=environ, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("name", ["otlp", "jaeger"])
def test_missing_exporter_is_refused_with_its_fix(name: str, monkeypatch: pytest.MonkeyPatch):
    """Without the check, the spans would be lost silently."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", name)
    with pytest.raises(
        TracingError,
        match=f"'{name}' of spans is not installed: pip install opentelemetry-exporter",
    ):
        set_up_tracing()


def test_missing_library_is_refused_with_its_fix(monkeypatch: pytest.MonkeyPatch):
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        TracingError, match=r"pip install 'opentelemetry-exporter-otlp-proto-http>=.*-sdk>="
    ):
        set_up_tracing()


def test_spans_go_where_the_environment_says():
    """Spans go to the console here; the service is named "sayso" unless the environment names it."""
    said = run(OTEL_TRACES_EXPORTER="console")
    assert '"name": "hello"' in said
    assert "TracerProvider sayso" in said
    assert "TracerProvider desk" in run(OTEL_TRACES_EXPORTER="none", OTEL_SERVICE_NAME="desk")


def test_existing_tracer_is_kept():
    """The bot keeps a tracer of the library's own start-up."""
    before = "from opentelemetry.sdk.resources import Resource\n"
    before += "trace.set_tracer_provider(TracerProvider(resource=Resource.create({'service.name': 'theirs'})))"
    assert run(before, OTEL_TRACES_EXPORTER="jaeger") == "TracerProvider theirs\n"


def test_metrics_go_where_the_environment_says():
    """Metrics follow the spans to a collector, unless their own variable names the console or nothing."""
    count = "from opentelemetry import metrics; print(type(metrics.get_meter_provider()).__name__)"
    lines = (
        f"from sayso.config.wiring.observability import set_up_tracing; set_up_tracing(); {count}"
    )
    for exporter, kind in (("console", "MeterProvider"), ("none", "_ProxyMeterProvider")):
        environ = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": exporter}
        ran = subprocess.run(
            [sys.executable, "-c", lines],
            env=environ,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        assert ran.stdout.splitlines()[0] == kind
