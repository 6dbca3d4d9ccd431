"""Entries: a pair as JSON, such as an answer and its usage, and never as anything that could run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sayso.agent.cache.base import Entry
from sayso.agent.messages import Message, Role, UsageStats

#: What a usage is compared with.
_NOTHING = UsageStats()


def written(value: Entry) -> str:
    """Return the entry as JSON. Raises TypeError or ValueError for a value that JSON would change or cannot hold."""
    match value:
        case (Message(role=Role.ASSISTANT) as message, UsageStats() as usage):
            data: dict[str, Any] = {"message": message.to_dict(), "usage": usage.to_dict()}
        case tuple():
            data = {"values": [_part(each) for each in value]}
        case _:
            raise TypeError(f"a cache keeps tuples, not {type(value).__name__!r}: give (message, usage)")
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Entry | None:
    """What was written, as the reader's own; None for anything else, such as an entry of another version. A Message
    beside a UsageStats is an assistant's.
    """
    try:
        data = json.loads(text, parse_constant=_refused)
        if "values" in data:
            return tuple(_part_read(each) for each in data["values"])
        message, usage = Message.from_dict(data["message"]), UsageStats(**data["usage"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return (message, usage) if message.role is Role.ASSISTANT and _counts(usage) else None


def _part(value: Any) -> dict[str, Any]:
    match value:
        case Message():
            return {"message": value.to_dict()}
        case UsageStats():
            return {"usage": value.to_dict()}
        case tuple():
            return {"values": [_part(each) for each in value]}
    if json.loads(json.dumps(value, allow_nan=False)) != value:
        raise TypeError(f"a cache keeps JSON, and would change {value!r}: use lists, and text for keys")
    return {"json": value}


def _part_read(part: Mapping[str, Any]) -> Any:
    if "message" in part:
        return Message.from_dict(part["message"])
    if "values" in part:
        return tuple(_part_read(each) for each in part["values"])
    return UsageStats(**part["usage"]) if "usage" in part else part["json"]


def _counts(usage: UsageStats) -> bool:
    """Whether each of its fields is of the kind that it has in a new one; a whole number of dollars is one too."""
    kinds = ((type(value), type(getattr(_NOTHING, name))) for name, value in usage.to_dict().items())
    return all(kind is wanted or (kind, wanted) == (int, float) for kind, wanted in kinds)


def _refused(name: str) -> None:
    raise ValueError(f"JSON has no {name}")
