"""Whether a call, made again from its record, is the one that a person was shown."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from sayso.agent.tools.call_texts import unordered_digest
from sayso.agent.tools.definition import ProposalDraft
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import readable
from sayso.pending.action import canonical_json


def is_same_question(tool: Tool, draft: ProposalDraft, preview: str, values_digest: str) -> bool:
    """Return whether a draft asks what a person was shown.

    That is this preview, with this digest of its values.

    Raises ToolParameterError if the tool does not take the arguments any more.
    """
    if draft.values_digest or values_digest:
        return draft.values_digest == values_digest
    made_again = readable(draft.text)
    if made_again.split() == preview.split():  # white space says nothing else
        return True
    # The record has the arguments in another order than the model gave them, and a set has none.
    values = tool.validate(draft.args).values()
    has_any_order = tool.preview is None or any(map(_has_any_order, values))
    return has_any_order and _has_same_words(made_again, preview)


def is_same_call(tool: Tool, recorded: dict[str, Any]) -> bool:
    """Return whether the tool would run with exactly the recorded arguments.

    The order of a set does not matter.
    """
    written = tool.validate_json(recorded)
    if canonical_json(written) == canonical_json(recorded):
        return True
    values = tool.validate(recorded)
    if written.keys() != recorded.keys():
        return False
    for name in written:
        if canonical_json(written[name]) == canonical_json(recorded[name]):
            continue
        if not _holds_a_set(values.get(name)):
            return False
        if unordered_digest(written[name]) != unordered_digest(recorded[name]):
            return False
    return True


def _has_any_order(value: Any) -> bool:
    """Return whether a value may be shown in another order from its record.

    That is so if it holds a set or an object.
    """
    if isinstance(value, dict):
        return len(value) > 1 or any(map(_has_any_order, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_any_order, value))
    return _holds_a_set(value)


def _holds_a_set(value: Any) -> bool:
    """Return whether a value contains a set, at any depth of collections, models and dataclasses."""
    if isinstance(value, set | frozenset):
        return True
    if is_dataclass(value):
        return any(_holds_a_set(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, BaseModel):
        return any(map(_holds_a_set, value.__dict__.values()))
    if isinstance(value, dict):
        return any(map(_holds_a_set, value.values()))
    return isinstance(value, list | tuple) and any(map(_holds_a_set, value))


def _has_same_words(one: str, other: str) -> bool:
    """Return whether two texts have the same words, numbers and signs, in any order.

    The signs count by themselves: they stand beside other words in another order of a list. Without
    them "-5" would be "5".
    """
    words = sorted(re.findall(r"\w+", one)) == sorted(re.findall(r"\w+", other))
    return words and sorted("".join(one.split())) == sorted("".join(other.split()))
