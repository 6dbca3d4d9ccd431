"""Answer: what a provider gave for one, as a run can use it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from agent.messages import NOT_JSON, Message, Role, ToolCall, UsageStats
from agent.tools.typed_arguments import quoted

#: Characters of such arguments that are kept.
MAX_NOT_JSON_CHARS = 500

#: What JSON holds without a look inside. Not every number: one can have too many digits.
_PLAIN = frozenset((str, bool, type(None)))


def usable(message: Message) -> Message:
    """The assistant's message, and nobody else's, with calls that can be told, answered and kept.

    Raises TypeError for calls that are none.
    """
    if not message.tool_calls:
        is_plain = message.role is Role.ASSISTANT and message.tool_calls == () and not message.tool_call_id
        return message if is_plain else Message(Role.ASSISTANT, message.content)
    if not isinstance(message.tool_calls, Sequence):
        raise TypeError(f"{type(message.tool_calls).__name__!r} for tool calls")
    calls = tuple(map(_usable_call, message.tool_calls))
    is_ours = message.role is Role.ASSISTANT and message.tool_calls == calls and not message.tool_call_id
    return message if is_ours else Message(Role.ASSISTANT, message.content, calls)


def countable(usage: UsageStats) -> UsageStats:
    """The usage; one in which something is no number, or no text, counts nothing: no sum could hold it."""
    # Written out: each answer is asked.
    prompt, completion, total = type(usage.prompt_tokens), type(usage.completion_tokens), type(usage.total_tokens)
    read, written = type(usage.cache_read_tokens), type(usage.cache_write_tokens)
    counts = prompt is completion is total is read is written is int
    costs = isinstance(usage.cost_usd, int | float) and math.isfinite(usage.cost_usd)
    named = isinstance(usage.model, str) and isinstance(usage.provider, str)
    return usage if counts and costs and named else UsageStats()


def arguments(given: object) -> dict[str, Any]:
    """A call's arguments; in their place what says so, where they are no JSON object."""
    if given is None:
        return {}
    if isinstance(given, dict) and _is_named(given) and (_is_plain(given) or _is_json(given)):
        return given
    shown = given[:MAX_NOT_JSON_CHARS] if isinstance(given, str) else quoted(given)
    return {NOT_JSON: shown}


def _usable_call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise TypeError(f"{type(call).__name__!r} for a tool call")
    params, named = arguments(call.parameters), isinstance(call.tool_name, str)
    if named and params is call.parameters and isinstance(call.id, str):
        return call
    return ToolCall(call.tool_name if named else "", params, call.id if isinstance(call.id, str) else "")


def _is_named(given: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in given)


def _is_plain(given: dict[str, Any]) -> bool:
    return _PLAIN.issuperset(map(type, given.values()))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
