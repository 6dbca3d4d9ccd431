"""What commands print in a terminal: texts from outside on one line, and times."""

from __future__ import annotations

from datetime import UTC, datetime

from sayso.infra.redaction import redact


def one_line(text: str, width: int) -> str:
    """Return a text from outside as one line of at most `width` characters.

    Secrets are replaced. So are control characters, which could command a terminal.
    """
    printable = (letter if letter.isprintable() else " " for letter in redact(text))
    line = " ".join("".join(printable).split())
    if len(line) <= width:
        return line
    return f"{line[: width - 1]}…"


def utc_time(unix: float) -> str:
    """Return a time in Unix seconds as commands print it."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%S")
