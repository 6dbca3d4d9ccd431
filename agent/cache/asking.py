"""Asking a cache from a run, which it may save time and must never cost an answer."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sayso.agent.cache.base import Cache, Entry
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.usage import countable
from sayso.workers.offload import reach

log = logging.getLogger(__name__)


async def looked_up(cache: Cache, key: str, *, said: Iterable[Message] = ()) -> Entry | None:
    """What a cache has. One that fails, or has something that is no answer, has nothing.

    `said` is the transcript that the answer joins: ids of calls that it has already are replaced by new ones.
    """
    try:
        entry = await reach(cache.get, key)
        return entry and _answer(entry, said)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)
        return None


async def stored(cache: Cache, key: str, value: Entry, *, max_tokens: int | None = None) -> None:
    """Keep an answer, if the cache can, for its own time. One that says nothing or was cut off is not kept.

    Answers of a run that asked for so many tokens at most and got them were cut off.
    """
    if not is_whole(value, max_tokens):
        return
    try:
        await reach(cache.set, key, value)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)


async def forgotten(cache: Cache, key: str) -> None:
    """Drop an answer that turned out to be of no use, such as one that does not fit its format."""
    try:
        await reach(cache.delete, key)
    except Exception as exc:  # noqa: BLE001  # a cache saves time, and must never cost an answer
        _warn(exc)


def is_whole(value: Entry, max_tokens: int | None = None) -> bool:
    """Whether an answer says something, and to its end: the next one might be better."""
    message, usage = value
    says_something = bool(message.content.strip() or message.tool_calls)
    return says_something and (max_tokens is None or usage.completion_tokens < max_tokens)


def _answer(entry: Any, said: Iterable[Message]) -> Entry:
    """What a run can take in, whoever wrote the cache. Raises TypeError."""
    match entry:
        case (Message(role=Role.ASSISTANT, content=str()) as message, UsageStats() as usage) if is_whole(entry):
            return _with_own_ids(message, said), countable(usage)
    raise TypeError(f"a cache gave {type(entry).__name__!r} for an answer")


def _with_own_ids(answer: Message, said: Iterable[Message]) -> Message:
    taken = {call.id for message in said for call in message.tool_calls if call.id}
    if taken.isdisjoint(call.id for call in answer.tool_calls):
        return answer
    calls = [replace(call, id=f"call_{uuid.uuid4().hex}") if call.id in taken else call for call in answer.tool_calls]
    return replace(answer, tool_calls=tuple(calls))


def _warn(error: Exception) -> None:
    log.warning("cache.failed", extra={"reason": type(error).__name__})
