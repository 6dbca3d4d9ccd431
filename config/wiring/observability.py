"""Set up logs and OpenTelemetry for a process, with secrets removed from what is printed."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import warnings
from functools import lru_cache
from types import TracebackType
from typing import Any, TextIO

from sayso.channels.redaction import redact

#: The fields that every log record has: what `extra` adds is printed.
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries whose INFO lines are not printed: some hold URLs with tokens in them. Those of platforms are in their rows.
_VERBOSE = ("httpx", "httpcore", "urllib3", "rq.worker", "rq", "matplotlib")


class EventFormatter(logging.Formatter):
    """`2026-11-20T21:50:00Z INFO reply.sent delivery=web:12ab#3`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, with its traceback below if it has one."""
        at = _timestamp(int(record.created))
        extras = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        line = f"{at} {record.levelname} {record.getMessage()} {extras}".rstrip()
        return redact(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


@lru_cache(maxsize=1)
def _timestamp(unix: int) -> str:
    """Return a time as text, cached: many lines have the same second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to stderr: our own events from `level` on, and warnings of libraries."""
    # Here, since `sayso --help` uses this module too and needs no pydantic.
    from sayso.channels.registry import BUILT_IN
    from sayso.pending.context import add_log_fields

    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter())
    handler.addFilter(add_log_fields)
    # Do not look up caller, thread and process of each record, as logging's manual describes: a third of the cost.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # its documented switch
    redact_uncaught()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sdks = {module.partition(".")[0] for platform in BUILT_IN.values() for module in platform.sdk_modules}
    for name in sdks.union(_VERBOSE):
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


#: The entry-point groups of exporters, which the library's own start-up uses too.
_GROUP, _METRICS_GROUP = "opentelemetry_traces_exporter", "opentelemetry_metrics_exporter"
#: The exporters that `otlp` may stand for. The first one needs fewer packages.
_OTLP = ("otlp_proto_http", "otlp_proto_grpc")


class TracingError(Exception):
    """Raised when there is no exporter for spans. The message names the cure."""


def set_up_tracing() -> None:
    """Export this process's spans and metrics as the OTEL_ variables say, unless a tracer provider is already set.

    By default they go to an OTLP collector on this machine. Where OTEL_TRACES_EXPORTER names other exporters only,
    metrics are not exported unless OTEL_METRICS_EXPORTER says so. Call it after a fork: its threads survive none.
    Raises TracingError.
    """
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        from sayso.agent.extras import install_command

        raise TracingError(f"OpenTelemetry is missing: {install_command('otel')}") from exc
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    traces = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    exporters = [_exporter(name.strip()) for name in traces.split(",")]
    metrics_exporters = os.environ.get("OTEL_METRICS_EXPORTER", "otlp" if "otlp" in traces else "none")
    metric_exporters = [_exporter(name.strip(), _METRICS_GROUP) for name in metrics_exporters.split(",")]
    readers = [PeriodicExportingMetricReader(exporter) for exporter in filter(None, metric_exporters)]
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if is_named else {SERVICE_NAME: "sayso"})
    provider = TracerProvider(resource=resource)
    for exporter in filter(None, exporters):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    if readers:
        metrics.set_meter_provider(MeterProvider(readers, resource=resource))


def _exporter(name: str, group: str = _GROUP) -> Any:
    """Return the exporter of a name, which reads the OTEL_ variables itself; None for the name `none`."""
    from importlib.metadata import entry_points

    if name == "none":
        return None
    points = {point.name: point for point in entry_points(group=group)}
    names: tuple[str, ...] = (name,)
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(os.environ.get, variables)), "")
        names = _OTLP[1:] if protocol == "grpc" else _OTLP[:1] if protocol else _OTLP
    installed = [points[each] for each in names if each in points]
    if not installed:
        cure = "pip install opentelemetry-exporter-otlp-proto-http, or say otherwise in OTEL_TRACES_EXPORTER"
        raise TracingError(f"the exporter {name!r} of spans is not installed: {cure} (console, none)")
    return installed[0].load()()
