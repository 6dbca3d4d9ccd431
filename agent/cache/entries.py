"""Entries: an answer and its usage as JSON, and never as anything that could run."""

from __future__ import annotations

import json

from agent.cache.base import Entry
from agent.messages import Message, Role, UsageStats

#: What a usage is compared with.
_NOTHING = UsageStats()


def written(value: Entry) -> str:
    """Raises TypeError or ValueError for what JSON cannot hold."""
    message, usage = value
    data = {"message": message.to_dict(), "usage": usage.to_dict()}
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Entry | None:
    """What was written, as the reader's own; None for anything else, such as an entry of another version, or one that
    is no answer of a model.
    """
    try:
        data = json.loads(text, parse_constant=_refused)
        message, usage = Message.from_dict(data["message"]), UsageStats(**data["usage"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return (message, usage) if message.role is Role.ASSISTANT and _counts(usage) else None


def _counts(usage: UsageStats) -> bool:
    """Whether each of its fields is of the kind that it has in a new one; a whole number of dollars is one too."""
    kinds = ((type(value), type(getattr(_NOTHING, name))) for name, value in usage.to_dict().items())
    return all(kind is wanted or (kind, wanted) == (int, float) for kind, wanted in kinds)


def _refused(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
