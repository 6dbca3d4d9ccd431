"""Entries: an answer and its usage as JSON, and never as anything that could run."""

from __future__ import annotations

import json

from agent.cache.base import Entry
from agent.messages import Message, UsageStats


def written(value: Entry) -> str:
    """Raises TypeError or ValueError for what JSON cannot hold."""
    message, usage = value
    data = {"message": message.to_dict(), "usage": usage.to_dict()}
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Entry | None:
    """What was written, as the reader's own; None for anything else, such as an entry of another version."""
    try:
        data = json.loads(text)
        return Message.from_dict(data["message"]), UsageStats(**data["usage"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
