"""Logs: one line a transition on stderr: time, level, stable event name, ids."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import warnings
from functools import lru_cache
from types import TracebackType
from typing import TextIO

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
