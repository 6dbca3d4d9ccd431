"""Whether a call that is made again from its record is the one that a person was shown.

When a person says yes, the call is rebuilt from the stored record. Between the question and the yes
the tool may have been deployed anew, or the data that its preview shows may have changed. The call
runs only if it is still the same.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from sayso.agent.tools.digests import unordered_digest
from sayso.agent.tools.proposal_draft import ProposalDraft
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import readable
from sayso.pending.action import canonical_json


def is_same_question(tool: Tool, draft: ProposalDraft, preview: str, values_digest: str) -> bool:
    """Return whether a draft asks what a person was shown.

    `draft` is the call, proposed again from its record. The person was shown the text `preview`;
    `values_digest` is the digest of the values in it that count, "" if its whole text counts.

    Raises ToolParameterError if the tool does not take the arguments any more.
    """
    if draft.values_digest or values_digest:
        return draft.values_digest == values_digest
    new_preview = readable(draft.text)
    # White space means nothing to a reader.
    if new_preview.split() == preview.split():
        return True

    # The same values may be shown in another order: the record has the arguments in another order
    # than the model gave them, and a set has no order.
    values = tool.validate(draft.args).values()
    may_be_reordered = tool.preview is None or any(map(_may_be_reordered, values))
    return may_be_reordered and _has_same_words(new_preview, preview)


def is_same_call(tool: Tool, recorded: dict[str, Any]) -> bool:
    """Return whether the tool would run with exactly the recorded arguments.

    The order of a set does not matter. Raises ToolParameterError if the tool does not take the
    arguments any more.
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


def _may_be_reordered(value: Any) -> bool:
    """Return whether a value that is read from its record may be shown in another order.

    That is so if it holds a set, or a dict with several keys.
    """
    if isinstance(value, dict):
        return len(value) > 1 or any(map(_may_be_reordered, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_may_be_reordered, value))
    return _holds_a_set(value)


def _holds_a_set(value: Any) -> bool:
    """Return whether a value is or contains a set, also inside of models and dataclasses."""
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
    """Return whether two texts have the same words, numbers and signs, in any order."""
    if sorted(re.findall(r"\w+", one)) != sorted(re.findall(r"\w+", other)):
        return False
    # All characters are compared as well: without the signs "-5" would be "5". Signs are not
    # compared together with their word, since in another order they stand next to other words.
    return sorted("".join(one.split())) == sorted("".join(other.split()))
