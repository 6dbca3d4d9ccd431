"""Set up logs and OpenTelemetry for a process, with secrets removed from what is printed."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from functools import lru_cache
from textwrap import indent
from types import TracebackType
from typing import Any, TextIO

from sayso.infra.redaction import redact
from sayso.infra.tracing import current_trace, start_tracing, trace_id

#: The fields that every log record has: what `extra` adds is printed.
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries whose INFO lines are not printed: some hold URLs with tokens in them.
#: Those of platforms are in their rows.
_VERBOSE = ("httpx", "httpcore", "urllib3", "rq.worker", "rq", "matplotlib")


#: The variables that choose how log lines look, and from which level on they are printed.
FORMAT_VARIABLE = "SAYSO_LOG_FORMAT"
LEVEL_VARIABLE = "SAYSO_LOG_LEVEL"
#: The formats of log lines, and the levels, as these variables name them.
#: The first format is the default.
FORMATS = ("pretty", "json")
LEVELS = ("debug", "info", "warning", "error")
#: An event with its facts in one text, such as `model.cut_off run=a3f2 model=gpt-5-mini`.
_EVENT_LINE = re.compile(r"([a-z_]+\.[a-z_]+)((?: [a-z_]+=\S*)+)")
#: Characters of one fact or traceback. A longer one is cut in its middle:
#: log stores split or refuse long lines.
MAX_CHARS = 10_000
#: What a terminal shows in color: the level.
_COLORS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


class EventFormatter(logging.Formatter):
    """`2026-11-20T21:50:00Z INFO reply.sent delivery=web:12ab#3`.

    With `color`, the level is colored.
    """

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, with its traceback below if it has one."""
        at = _timestamp(int(record.created))
        level = record.levelname
        if self._color:
            level = f"\x1b[{_COLORS.get(level, '0')}m{level}\x1b[0m"
        extras = " ".join(f"{key}={_one_line(value)}" for key, value in _facts(record).items())
        line = f"{at} {level} {_message(record)} {extras}".rstrip()
        # Indented: what an exception quotes must not begin a line that looks like ours, either.
        if record.exc_info:
            line += "\n" + indent(_printable(self.formatException(record.exc_info)), "  ")
        return redact(line)


class JsonFormatter(logging.Formatter):
    """`{"time": "2026-11-20T21:50:00.123Z", "level": "info", "message": "reply.sent", "delivery":
    "web:12ab#3"}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line of JSON. A traceback is in `exception`."""
        message = _message(record)
        facts = _facts(record)
        if run := _event_of_a_run(message):
            message = f"run.{run.pop('event')}"
            facts = {
                "event" if name == "turn_event" else name: value for name, value in run.items()
            } | facts
        elif line := _EVENT_LINE.fullmatch(message):
            message = line[1]
            facts = {**dict(fact.split("=", 1) for fact in line[2].split()), **facts}
        time_ = f"{_timestamp(int(record.created))[:-1]}.{int(record.msecs):03}Z"
        own = {
            "time": time_,
            "level": record.levelname.lower(),
            "message": message,
            "logger": record.name,
        }
        if record.exc_info:
            own["exception"] = self.formatException(record.exc_info)
        return json.dumps(
            {key: _redacted(value) for key, value in (own | facts | own).items()},
            ensure_ascii=False,
        )


def _event_of_a_run(message: str) -> dict[str, Any]:
    """Return the fields of a line about a run (`agent.observe.log`), which is JSON already;
    {} for other lines.
    """
    try:
        if message.startswith('{"event"'):
            run = json.loads(message)
        else:
            run = {}
    except ValueError:
        return {}
    return run if isinstance(run, dict) else {}


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Return what `extra` added to a record, and the filters."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # a library's line with wrong arguments: logging itself would print them
        return str(record.msg)


def _one_line(value: object) -> str:
    """Return a value as text on one line, so that a text from outside cannot forge a log line."""
    text = str(value)
    if len(text) <= MAX_CHARS and text.isprintable():
        return text
    if "\n  File " in text:
        return _printable(text)
    return _printable(text).replace("\t", "\\t").replace("\n", "\\n")


def _printable(text: str) -> str:
    """Return a text without secrets, with escapes for control characters,
    which could steer a terminal.

    Line ends and tabs stay.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape").decode()
        for letter in _cut(redact(text))
    )


def _cut(text: str) -> str:
    """Return the beginning and the end of a long text.

    Its secrets must have been replaced: one could be cut in two.
    """
    half = MAX_CHARS // 2
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:half]} … {text[-half:]}"


def _redacted(value: object) -> Any:
    if isinstance(value, bool | int | None) or (isinstance(value, float) and math.isfinite(value)):
        return value  # JSON has no NaN
    return _cut(redact(str(value)))


@lru_cache(maxsize=1)
def _timestamp(unix: int) -> str:
    """Return a time as text, cached: many lines have the same second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def set_up_logs(default: str = "info") -> None:
    """Log to stderr as SAYSO_LOG_FORMAT and SAYSO_LOG_LEVEL say: our own events,
    and warnings of libraries.

    `default` is the level where none is set. Raises ConfigError.
    """
    # Here, since `sayso --help` uses this module too and needs no pydantic.
    from sayso.channels.registry import BUILT_IN
    from sayso.pending.call_context import add_log_fields

    level = logging.getLevelNamesMapping()[_choice(LEVEL_VARIABLE, LEVELS, default).upper()]
    handler = logging.StreamHandler()
    if _choice(FORMAT_VARIABLE, FORMATS, FORMATS[0]) == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(
            EventFormatter(color=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
        )
    handler.addFilter(add_log_fields)
    handler.addFilter(add_trace_id)
    handler.addFilter(name_lines_of_rq)
    # Do not look up caller, thread and process of each record, as logging's manual describes:
    # a third of the cost.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # its documented switch
    redact_uncaught()
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    # Debug lines of libraries may hold messages and tokens.
    logging.getLogger("sayso").setLevel(level if level < logging.INFO else logging.NOTSET)
    sdks = {
        module.partition(".")[0]
        for platform in BUILT_IN.values()
        for module in platform.sdk_modules
    }
    for name in sdks.union(_VERBOSE):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def name_lines_of_rq(record: logging.LogRecord) -> bool:
    """Make a line of RQ the event `rq.reported`, with RQ's words in `says`:
    a filter for log handlers.

    RQ logs sentences, such as those of a Redis without memory that it cannot clean up. A failure of
    Redis is named without its traceback, as in our own lines.
    """
    if record.name.partition(".")[0] != "rq" or record.msg == "rq.reported":
        return True
    record.says = _message(record)
    record.msg = "rq.reported"
    record.args = ()
    if record.exc_info:
        error = record.exc_info[1]
    else:
        error = None
    if error is not None and any(
        each.__module__.startswith("redis.") for each in type(error).__mro__
    ):
        record.reason = type(error).__name__
        record.exc_info = None
    return True


def add_trace_id(record: logging.LogRecord) -> bool:
    """Add the id of the current trace to a log record, while this process traces:
    a filter for log handlers.
    """
    if trace := trace_id(current_trace()):
        record.trace_id = trace
    return True


def _choice(variable: str, known: tuple[str, ...], default: str) -> str:
    """Return the value of a variable of the environment.

    Raises ConfigError if it is not one of the choices.
    """
    given = os.environ.get(variable, "").strip().lower() or default
    if given not in known:
        from sayso.config.settings.loader import ConfigError

        raise ConfigError(
            [f"{variable} is {given!r}: write {', '.join(known[:-1])} or {known[-1]}"]
        )
    return given


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
    (file or sys.stderr).write(
        redact(warnings.formatwarning(message, category, filename, lineno, line))
    )


def _print_redacted(
    kind: type[BaseException], exc: BaseException, at: TracebackType | None
) -> None:
    sys.stderr.write(redact("".join(traceback.format_exception(kind, exc, at))))


#: The entry-point groups of exporters, which the library's own start-up uses too.
_GROUP = "opentelemetry_traces_exporter"
_METRICS_GROUP = "opentelemetry_metrics_exporter"
#: The exporters that `otlp` may stand for. The first one needs fewer packages.
_OTLP = ("otlp_proto_http", "otlp_proto_grpc")


class TracingError(Exception):
    """Raised when there is no exporter for spans. The message names the cure."""


def set_up_tracing() -> None:
    """Export this process's spans and metrics as the OTEL_ variables say,
    unless a tracer provider is already set.

    By default they go to an OTLP collector on this machine. Where OTEL_TRACES_EXPORTER names other
    exporters only, metrics are not exported unless OTEL_METRICS_EXPORTER says so. Call it after a
    fork: its threads survive none. Raises TracingError.
    """
    import_tracing()
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        start_tracing()
        return
    span_exporters, metric_exporters = find_exporters()
    readers = [PeriodicExportingMetricReader(exporter()) for exporter in metric_exporters]
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if is_named else {SERVICE_NAME: "sayso"})
    provider = TracerProvider(resource=resource)
    for exporter in span_exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    start_tracing()
    if readers:
        metrics.set_meter_provider(MeterProvider(readers, resource=resource))


def import_tracing() -> None:
    """Import the modules of OpenTelemetry that tracing needs. Raises TracingError."""
    from sayso.agent.extras import LibraryError, import_libraries

    try:
        import_libraries(
            "otel",
            "opentelemetry",
            "opentelemetry.sdk.trace.export",
            "opentelemetry.sdk.metrics.export",
        )
    except LibraryError as exc:
        raise TracingError(str(exc)) from exc


def find_exporters() -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]]:
    """Return the exporters of spans and those of metrics that the OTEL_ variables name,
    not started yet.

    Raises TracingError.
    """
    traces = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    metrics = os.environ.get("OTEL_METRICS_EXPORTER", "otlp" if "otlp" in traces else "none")
    return _exporters(traces, _GROUP), _exporters(metrics, _METRICS_GROUP)


def _exporters(names: str, group: str) -> list[Callable[[], Any]]:
    stripped = [name.strip() for name in names.split(",")]
    return [_exporter(name, group) for name in stripped if name != "none"]


def _exporter(name: str, group: str) -> Callable[[], Any]:
    """Return the exporter of a name, which reads the OTEL_ variables itself when it is called.

    Raises TracingError.
    """
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=group)}
    names: tuple[str, ...] = (name,)
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(os.environ.get, variables)), "")
        if protocol == "grpc":
            names = _OTLP[1:]
        elif protocol:
            names = _OTLP[:1]
        else:
            names = _OTLP
    installed = [points[each] for each in names if each in points]
    if not installed:
        cure = "pip install opentelemetry-exporter-otlp-proto-http, or say otherwise in OTEL_TRACES_EXPORTER"
        raise TracingError(
            f"the exporter {name!r} of spans is not installed: {cure} (console, none)"
        )
    try:
        exporter: Callable[[], Any] = installed[0].load()
    except Exception as exc:  # a broken library raises anything
        package = installed[0].dist.name if installed[0].dist else name
        says = f"the exporter {name!r} is installed and cannot be imported ({type(exc).__name__}: {exc})"
        raise TracingError(
            f"{says}: install it again: pip install --force-reinstall {package}"
        ) from exc
    return exporter
