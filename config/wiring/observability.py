"""Logs, OpenTelemetry."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, TextIO

from sayso.agent.extras import install_command
from sayso.channels.redaction import redact

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


#: Libraries whose INFO lines hold URLs with tokens in them.
_TALKATIVE = ("httpx", "httpcore", "telegram", "urllib3", "slack_sdk", "twilio", "rq.worker", "rq", "matplotlib")


class EventFormatter(logging.Formatter):
    """`2026-11-20T21:50:00Z INFO reply.sent delivery=web:12ab#3`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with its traceback below if it has one."""
        at = _second(int(record.created))
        extras = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        line = f"{at} {record.levelname} {record.getMessage()} {extras}".rstrip()
        return redact(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


@lru_cache(maxsize=1)
def _second(unix: int) -> str:
    """Spelled once for all lines of it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to stderr; libraries only when something is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter())
    _leave_out_what_no_line_shows()
    redact_uncaught()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def redact_uncaught() -> None:
    """Print warnings and uncaught exceptions with the secrets in them replaced."""
    sys.excepthook = _print_redacted
    threading.excepthook = _print_thread_redacted
    sys.unraisablehook = _print_unraisable_redacted
    warnings.showwarning = _print_warning_redacted


def _print_thread_redacted(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and args.exc_type is not SystemExit:
        _print_redacted(args.exc_type, args.exc_value, args.exc_traceback)


def _print_unraisable_redacted(args: sys.UnraisableHookArgs) -> None:
    sys.stderr.write(redact(f"{args.err_msg or 'Exception ignored in'} {args.object!r}\n"))
    if args.exc_value is not None:
        _print_redacted(args.exc_type, args.exc_value, args.exc_traceback)


def _print_warning_redacted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    (file or sys.stderr).write(redact(warnings.formatwarning(message, category, filename, lineno, line)))


def _print_redacted(kind: type[BaseException], exc: BaseException, at: TracebackType | None) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, exc, at))))


def _leave_out_what_no_line_shows() -> None:
    """Caller, thread and process of each record, as logging's manual says how: a third of what a line costs."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # its documented switch


#: Exporters are found by these, as the library's own start-up finds them.
_GROUP, _METRICS_GROUP = "opentelemetry_traces_exporter", "opentelemetry_metrics_exporter"


#: What `otlp` may mean, the one that needs less installed first.
_OTLP = ("otlp_proto_http", "otlp_proto_grpc")


class TracingError(Exception):
    """Raised when spans could go nowhere. The message names the cure."""


def set_up_tracing(environ: Mapping[str, str] | None = None) -> None:
    """Send this process's spans and metrics where OTEL_* says, unless somebody has seen to that. Raises TracingError.

    By default that is a collector on this machine. Metrics go there too, unless OTEL_METRICS_EXPORTER says otherwise;
    where spans go elsewhere, there are none. Call it in the process that works: its thread survives no fork.
    """
    environ = os.environ if environ is None else environ
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise TracingError(f"OpenTelemetry is missing: {install_command('otel')}") from exc
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    traces = environ.get("OTEL_TRACES_EXPORTER", "otlp")
    exporters = [_exporter(name.strip(), environ) for name in traces.split(",")]
    readers = _readers(environ.get("OTEL_METRICS_EXPORTER", "otlp" if "otlp" in traces else "none"), environ)
    is_named = "OTEL_SERVICE_NAME" in environ or "service.name" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if is_named else {SERVICE_NAME: "sayso"})
    provider = TracerProvider(resource=resource)
    for exporter in filter(None, exporters):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    if readers:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider

        metrics.set_meter_provider(MeterProvider(readers, resource=resource))


def _readers(names: str, environ: Mapping[str, str]) -> list[Any]:
    """Return what reads the metrics from time to time and exports them."""
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    made = [_exporter(name.strip(), environ, _METRICS_GROUP) for name in names.split(",")]
    return [PeriodicExportingMetricReader(exporter) for exporter in made if exporter is not None]


def _exporter(name: str, environ: Mapping[str, str], group: str = _GROUP) -> Any:
    """The exporter of that name, made with what else the variables say; None for none."""
    from importlib.metadata import entry_points

    if name == "none":
        return None
    points = {point.name: point for point in entry_points(group=group)}
    found = [points[each] for each in _meant(name, environ) if each in points]
    if not found:
        cure = "pip install opentelemetry-exporter-otlp-proto-http, or say otherwise in OTEL_TRACES_EXPORTER"
        raise TracingError(f"the exporter {name!r} of spans is not installed: {cure} (console, none)")
    return found[0].load()()


def _meant(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    if name != "otlp":
        return (name,)
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    return _OTLP[1:] if protocol == "grpc" else _OTLP[:1] if protocol else _OTLP
