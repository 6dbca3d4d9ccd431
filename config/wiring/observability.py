"""Set up the logs and OpenTelemetry of a process. Secrets are removed from all that is printed.

A log *event* is a stable name such as `reply.sent`, which is the message of a log record. Its
*facts*, such as `delivery=web:12ab#3`, are the `extra` of the record.
"""

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

#: The fields that every log record has. Every other field is a fact that `extra` added.
_STANDARD_FIELDS = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Libraries whose INFO lines are not printed: some hold URLs with tokens in them. The libraries of
#: platforms are named in `channels.registry`.
_VERBOSE_LIBRARIES = ("httpx", "httpcore", "urllib3", "rq.worker", "rq", "matplotlib")
#: The variable that chooses how log lines look.
FORMAT_VARIABLE = "SAYSO_LOG_FORMAT"
#: The variable that chooses from which level on lines are printed.
LEVEL_VARIABLE = "SAYSO_LOG_LEVEL"
#: The values of FORMAT_VARIABLE. The first one is the default.
FORMATS = ("pretty", "json")
#: The values of LEVEL_VARIABLE.
LEVELS = ("debug", "info", "warning", "error")
#: A message with its facts in one text, such as `model.cut_off run=a3f2 model=gpt-5-mini`.
_EVENT_LINE = re.compile(r"([a-z_]+\.[a-z_]+)((?: [a-z_]+=\S*)+)")
#: The most characters of one fact or traceback. A longer one loses its middle: log stores split or
#: refuse long lines.
MAX_CHARS = 10_000
#: The color of each level in a terminal, as a parameter of an ANSI escape sequence.
_COLORS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


class EventFormatter(logging.Formatter):
    """Formats records for people: `2026-11-20T21:50:00Z INFO reply.sent delivery=web:12ab#3`.

    With `color`, the level has a color in a terminal.
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
        facts = " ".join(f"{key}={_one_line(value)}" for key, value in _facts(record).items())
        line = f"{at} {level} {_one_line(_message(record))} {facts}".rstrip()
        # Indented, so that a text quoted by an exception cannot begin a line that looks like ours.
        if record.exc_info:
            line += "\n" + indent(_printable(self.formatException(record.exc_info)), "  ")
        return redact(line)


class JsonFormatter(logging.Formatter):
    """Formats records for programs: one JSON object a line.

    An example is `{"time": "2026-11-20T21:50:00.123Z", "level": "info", "message": "reply.sent",
    "delivery": "web:12ab#3"}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line of JSON. A traceback is in `exception`."""
        message = _message(record)
        facts = _facts(record)

        # Two kinds of messages carry facts in their text: the JSON of an event of a run, which
        # LoggingObserver writes, and `event key=value ...`, which providers write. The facts
        # become fields like the others.
        run_event = _event_of_a_run(message)
        event_line = _EVENT_LINE.fullmatch(message)
        if run_event:
            message = f"run.{run_event.pop('event')}"
            # The name `event` means the platform's event in all other lines.
            if "turn_event" in run_event:
                run_event["event"] = run_event.pop("turn_event")
            facts = {**run_event, **facts}
        elif event_line:
            message = event_line[1]
            pairs = [fact.split("=", 1) for fact in event_line[2].split()]
            facts = {**dict(pairs), **facts}

        time_ = f"{_timestamp(int(record.created))[:-1]}.{int(record.msecs):03}Z"
        own_fields = {
            "time": time_,
            "level": record.levelname.lower(),
            "message": message,
            "logger": record.name,
        }
        if record.exc_info:
            own_fields["exception"] = self.formatException(record.exc_info)

        # Our own fields come first, and no fact can replace one of them.
        fields = own_fields | facts | own_fields
        redacted_fields = {key: _json_value(value) for key, value in fields.items()}
        return json.dumps(redacted_fields, ensure_ascii=False)


def _event_of_a_run(message: str) -> dict[str, Any]:
    """Return the fields of a message about a run of the agent (`agent.observe.log`), which is JSON.

    Return {} for another message.
    """
    if not message.startswith('{"event"'):
        return {}
    try:
        fields = json.loads(message)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that `extra` and our filters added to a record."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def _message(record: logging.LogRecord) -> str:
    """Return the message of a record with its arguments.

    Where a library passed wrong arguments, return the message alone.
    """
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # logging itself would print the arguments, secrets and all
        return str(record.msg)


def _one_line(value: object) -> str:
    """Return a value as text on one line, so that a text from outside cannot forge a log line.

    A traceback or the stack of a thread keeps its lines, which a person could not read otherwise.
    Each is indented, also in a text from outside that only looks like a traceback: no line of ours
    begins with a space.
    """
    text = str(value)
    if len(text) <= MAX_CHARS and text.isprintable():
        return text
    if "\n  File " in text:
        return _printable(text).replace("\n", "\n  ")
    return _printable(text).replace("\t", "\\t").replace("\n", "\\n")


def _printable(text: str) -> str:
    """Return a text without secrets, and with escapes in place of control characters.

    Control characters could steer a terminal. Line ends and tabs stay.
    """
    letters = []
    for letter in _cut(redact(text)):
        is_harmless = letter.isprintable() or letter in "\n\t"
        if not is_harmless:
            letters.append(letter.encode("unicode_escape").decode())
            continue
        letters.append(letter)
    return "".join(letters)


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long.

    Call `redact` before it: a secret that is cut in two would not be recognized.
    """
    half = MAX_CHARS // 2
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:half]} … {text[-half:]}"


def _json_value(value: object) -> Any:
    """Return a value for JSON, without secrets: a number, a truth value, None, or else a text."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float) and math.isfinite(value):  # JSON has no NaN and no infinity
        return value
    return _cut(redact(str(value)))


@lru_cache(maxsize=1)
def _timestamp(unix: int) -> str:
    """Return a time, in Unix seconds, as text. The last one is cached: many lines have the same."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def set_up_logs(default: str = "info") -> None:
    """Log our own events and the warnings of libraries to stderr.

    SAYSO_LOG_FORMAT and SAYSO_LOG_LEVEL choose the format and the level; `default` is the level if
    the variable is not set. Raises ConfigError for values of these that do not exist.
    """
    # Imported here: `sayso --help` uses this module too, and must not import pydantic.
    from sayso.channels.registry import BUILT_IN
    from sayso.pending.call_context import add_log_fields

    level_name = _choice(LEVEL_VARIABLE, LEVELS, default)
    level = logging.getLevelNamesMapping()[level_name.upper()]
    has_color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    formatter: logging.Formatter = EventFormatter(color=has_color)
    if _choice(FORMAT_VARIABLE, FORMATS, FORMATS[0]) == "json":
        formatter = JsonFormatter()
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(add_log_fields)
    handler.addFilter(add_trace_id)
    handler.addFilter(name_lines_of_rq)

    # Do not look up caller, thread and process of each record, which takes a third of the time of
    # logging. These are the switches that logging's manual names ("Optimization").
    logging.logThreads = False
    logging.logProcesses = False
    logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # a documented switch

    redact_uncaught()
    # Debug lines of libraries may hold messages and tokens, so only our own have that level.
    logging.basicConfig(level=max(level, logging.INFO), handlers=[handler], force=True)
    if level < logging.INFO:
        logging.getLogger("sayso").setLevel(level)
    else:
        logging.getLogger("sayso").setLevel(logging.NOTSET)

    verbose_libraries = set(_VERBOSE_LIBRARIES)
    for platform in BUILT_IN.values():
        verbose_libraries |= {module.partition(".")[0] for module in platform.sdk_modules}
    for name in verbose_libraries:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def name_lines_of_rq(record: logging.LogRecord) -> bool:
    """Make a line of RQ the event `rq.reported`, with RQ's sentence in the fact `says`.

    A filter for log handlers, so it changes the record and returns True. RQ logs sentences, such as
    that it cannot clean up a Redis without memory. An error of Redis becomes the fact `reason`,
    without its traceback, as in our own lines.
    """
    if record.name.partition(".")[0] != "rq" or record.msg == "rq.reported":
        return True
    record.says = _message(record)
    record.msg = "rq.reported"
    record.args = ()
    error = None
    if record.exc_info:
        error = record.exc_info[1]
    # By the names of its classes: `sayso --help` must not import redis.
    classes = type(error).__mro__
    if any(each.__module__.startswith("redis.") for each in classes):
        record.reason = type(error).__name__
        record.exc_info = None
    return True


def add_trace_id(record: logging.LogRecord) -> bool:
    """Add the id of the current trace to a log record, while this process traces.

    A filter for log handlers, so it changes the record and returns True.
    """
    current_id = trace_id(current_trace())
    if current_id:
        record.trace_id = current_id
    return True


def _choice(variable: str, known: tuple[str, ...], default: str) -> str:
    """Return the value of a variable of the environment, `default` where it is not set.

    Raises ConfigError if it is not one of the `known` values.
    """
    given = os.environ.get(variable, "").strip().lower() or default
    if given not in known:
        from sayso.config.settings.loader import ConfigError

        raise ConfigError(
            [f"{variable} is {given!r}: write {', '.join(known[:-1])} or {known[-1]}"]
        )
    return given


def redact_uncaught() -> None:
    """From now on, replace the secrets in warnings and uncaught exceptions that are printed."""
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


#: The groups of entry points at which exporters of OpenTelemetry are found.
_SPANS_GROUP = "opentelemetry_traces_exporter"
_METRICS_GROUP = "opentelemetry_metrics_exporter"
#: The exporters that `otlp` may stand for. The first one needs fewer packages.
_OTLP = ("otlp_proto_http", "otlp_proto_grpc")


class TracingError(Exception):
    """Raised when there is no exporter for spans. The message names the cure."""


def set_up_tracing() -> None:
    """Export this process's spans and metrics as the OTEL_ variables say.

    By default they go to an OTLP collector on this machine. If OTEL_TRACES_EXPORTER names other
    exporters only, metrics are not exported unless OTEL_METRICS_EXPORTER says so. Where the program
    around Sayso has set a tracer provider, spans go there and nothing else is set up.

    Call it after a fork, which the threads of exporters do not survive. Raises TracingError.
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

    # The OTEL_ variables may name the service. An attribute given here would come before theirs.
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in attributes
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
    """Return the exporters of spans, and those of metrics, that the OTEL_ variables name.

    Each is a function that creates the exporter. Raises TracingError.
    """
    traces = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    metrics = os.environ.get("OTEL_METRICS_EXPORTER", "otlp" if "otlp" in traces else "none")
    return _exporters(traces, _SPANS_GROUP), _exporters(metrics, _METRICS_GROUP)


def _exporters(names: str, group: str) -> list[Callable[[], Any]]:
    """Return the exporters of names with commas between them; `none` stands for no exporter."""
    stripped = [name.strip() for name in names.split(",")]
    return [_exporter(name, group) for name in stripped if name != "none"]


def _exporter(name: str, group: str) -> Callable[[], Any]:
    """Return a function that creates the exporter of a name, as the OTEL_ variables say.

    Raises TracingError where it is not installed or cannot be imported.
    """
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=group)}
    names: tuple[str, ...] = (name,)
    if name == "otlp":
        names = _otlp_exporters()
    installed = [points[each] for each in names if each in points]
    if not installed:
        cure = "pip install opentelemetry-exporter-otlp-proto-http, or say otherwise in OTEL_TRACES_EXPORTER"
        raise TracingError(
            f"the exporter {name!r} of spans is not installed: {cure} (console, none)"
        )
    try:
        exporter: Callable[[], Any] = installed[0].load()
    except Exception as exc:  # a broken library raises anything
        distribution = installed[0].dist
        package = distribution.name if distribution else name
        says = f"the exporter {name!r} is installed and cannot be imported ({type(exc).__name__}: {exc})"
        raise TracingError(
            f"{says}: install it again: pip install --force-reinstall {package}"
        ) from exc
    return exporter


def _otlp_exporters() -> tuple[str, ...]:
    """Return the names of the exporters that `otlp` means, in the order in which they are tried."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "")
    if not protocol:
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    over_http, over_grpc = _OTLP
    if not protocol:
        return (over_http, over_grpc)
    if protocol == "grpc":
        return (over_grpc,)
    # The protocols "http/protobuf" and "http/json": one exporter stands for HTTP.
    return (over_http,)
