"""Reason: why somebody else's code failed, in a line that may be shown and logged."""

from __future__ import annotations

import re

#: Characters of an error's text that are shown.
MAX_REASON_CHARS = 300
#: A secret, with the words that precede it: vendors' errors repeat URLs and headers.
_SECRETS = re.compile(
    r"((?:key|token|secret|password|signature)[\"']?\s{0,3}[=:]\s{0,3}[\"']?|\b(?:bearer|basic)\s{1,3})[^\s&\"',)]+"
    r"|\bsk-[\w-]{8,}",
    re.IGNORECASE,
)


def reason(error: Exception) -> str:
    """The error's type and the first line of its text, without the keys that it may repeat. Never raises."""
    kind = type(error).__name__
    try:
        line = next(iter(str(error).strip().splitlines()), "")
    except Exception:  # noqa: BLE001  # somebody else's __str__
        return kind
    return f"{kind}: {without_secrets(line)}" if line else kind


def without_secrets(line: str) -> str:
    """The beginning of the line, with stars for what looks like a key."""
    return _SECRETS.sub(r"\1***", line[:MAX_REASON_CHARS])
