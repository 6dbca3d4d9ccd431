"""Answer: what a provider gave for one, as a run can use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sayso.agent.messages import NOT_JSON, AnswerDetails, Message, Role, ToolCall
from sayso.agent.tools.typed_arguments import quoted

#: Characters of such arguments that are kept.
MAX_NOT_JSON_CHARS = 500

#: What JSON holds without a look inside.
_PLAIN = frozenset((str, bool, type(None)))
#: So many bits have few enough digits to be written out.
_SHORT_BITS = 64


def usable(message: Message) -> Message:
    """The assistant's message, and nobody else's, with calls that can be told, answered and kept.

    Raises TypeError for calls that are none.
    """
    if not message.tool_calls:
        is_plain = message.role is Role.ASSISTANT and message.tool_calls == () and not message.tool_call_id
        return message if is_plain else Message(Role.ASSISTANT, message.content, details=_details(message))
    if not isinstance(message.tool_calls, Sequence):
        raise TypeError(f"{type(message.tool_calls).__name__!r} for tool calls")
    calls = tuple(map(_usable_call, message.tool_calls))
    is_ours = message.role is Role.ASSISTANT and message.tool_calls == calls and not message.tool_call_id
    return message if is_ours else Message(Role.ASSISTANT, message.content, calls, details=_details(message))


def _details(message: Message) -> AnswerDetails | None:
    return message.details if isinstance(message.details, AnswerDetails) else None


def arguments(given: object) -> dict[str, Any]:
    """A call's arguments; in their place what says so, where they are no JSON object."""
    if given is None:
        return {}
    if isinstance(given, dict) and _is_named(given) and (all(map(_is_plain, given.values())) or _is_json(given)):
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


def _is_plain(value: object) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is int and value.bit_length() <= _SHORT_BITS)  # type: ignore[attr-defined]  # an int


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
