"""Reads a submitted form of a question: which question it changes, and the values in it.

A modal, Slack's dialog, has a callback id, which names its kind, and private metadata, a text that
Slack sends back unchanged when the modal is submitted. Sayso writes a FormPlace there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

#: The callback id of our own modals. Forms that other code of the app opens have another one.
CHANGE_FORM = "sayso:change"
#: The value of a check box that is set.
CHECKED = "true"
#: The value of a check box that is not set.
UNCHECKED = "false"


@dataclass(frozen=True, slots=True)
class FormPlace:
    """Where a form belongs."""

    #: The workspace, "" for an app of one workspace.
    team: str
    #: The chat of the question.
    chat: str
    #: The thread of the question, "" for none.
    thread: str
    #: Slack's id of the question's message (its `ts`), "" for one that only its person sees.
    message: str
    #: The token of the button that opened the form. It names the question.
    token: str

    def to_metadata(self) -> str:
        """Return the `private_metadata` of the modal, which Slack sends back unchanged."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_view(cls, view: Mapping[str, Any]) -> FormPlace | None:
        """Return where a submitted form belongs, None for a form that is not ours.

        Raises TypeError and ValueError for one of ours whose metadata makes no sense.
        """
        if view.get("callback_id") != CHANGE_FORM:
            return None
        place = cls(**json.loads(view["private_metadata"]))
        if not all(isinstance(value, str) for value in asdict(place).values()):
            raise TypeError("metadata that is no text")
        return place


def changed_values(view: Mapping[str, Any]) -> dict[str, str]:
    """Return what a person has changed in a form, by the name of the field.

    Untouched fields are left out: Slack sends the whole modal back together with the values
    entered, so it is known here what stood in each field before. Our forms give each block the name
    of its field as its id.
    """
    values = (view.get("state") or {}).get("values") or {}
    changes = {}
    for block in view.get("blocks") or ():
        if block.get("type") != "input":
            continue
        element = block["element"]
        state = (values.get(block["block_id"]) or {}).get(element["action_id"]) or {}
        before = _text_of(element, "initial")
        # Slack leaves the id out of what it sends of an entered value. `_text_of` needs it.
        after = _text_of({**state, "action_id": element["action_id"]}, "selected")
        if before != after:
            changes[block["block_id"]] = after
    return changes


def _text_of(element: Mapping[str, Any], prefix: str) -> str:
    """Return what stands in an element, as a person would type it.

    `prefix` is how Slack's names of its values begin: "initial" for those that stood there before,
    "selected" for those entered.
    """
    match element.get("type"):
        case "checkboxes":
            return CHECKED if element.get(f"{prefix}_options") else UNCHECKED
        case "static_select":
            return str((element.get(f"{prefix}_option") or {}).get("value") or "")
        case "datepicker":
            return str(element.get(f"{prefix}_date") or "")
        case "timepicker":
            return str(element.get(f"{prefix}_time") or "")
        case "datetimepicker":
            # The form wrote the offset of the time zone into the id, in seconds.
            zone = timezone(timedelta(seconds=int(element["action_id"])))
            at = element.get(f"{prefix}_date_time")
            if not at:
                return ""
            return datetime.fromtimestamp(at, zone).isoformat()
    # A field for text. Slack's name of an entered text has no prefix.
    value = element.get("initial_value" if prefix == "initial" else "value")
    return str(value or "")
