"""Logs: one line a transition on stderr: time, level, stable event name, ids."""

from __future__ import annotations

import logging
import time
from functools import lru_cache

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
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@lru_cache(maxsize=1)
def _second(unix: int) -> str:
    """Spelled once for all lines of it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to stderr; libraries only when something is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter())
    _leave_out_what_no_line_shows()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def _leave_out_what_no_line_shows() -> None:
    """Caller, thread and process of each record, as logging's manual says how: a third of what a line costs."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001  # its documented switch
