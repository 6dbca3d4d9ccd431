"""Reads a submitted form of Slack: which question it changes, and the values in it."""

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


@dataclass(frozen=True, slots=True)
class FormPlace:
    """Where a form belongs: the address of its question, its message, and the token of its button."""

    #: The workspace, "" for an app of one workspace.
    team: str
    chat: str
    thread: str
    #: The ts of the question, "" for one that only its person sees.
    message: str
    token: str

    def to_metadata(self) -> str:
        """Return the `private_metadata` of the modal, which Slack sends back unchanged."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_view(cls, view: Mapping[str, Any]) -> FormPlace | None:
        """Return where a submitted form belongs, None for a form that is not ours.

        Raises TypeError and ValueError if the metadata of ours makes no sense.
        """
        if view.get("callback_id") != CHANGE_FORM:
            return None
        place = cls(**json.loads(view["private_metadata"]))
        if not all(isinstance(value, str) for value in asdict(place).values()):
            raise TypeError("metadata that is no text")
        return place


def entered_values(view: Mapping[str, Any]) -> dict[str, str]:
    """Return what a person has changed in a form, by the name of the field.

    Untouched fields are left out. Slack sends the whole modal back beside the values entered, so
    the values before are known here.
    """
    values = (view.get("state") or {}).get("values") or {}
    changed = {}
    for block in view.get("blocks") or ():
        if block.get("type") != "input":
            continue
        element = block["element"]
        state = (values.get(block["block_id"]) or {}).get(element["action_id"]) or {}
        before = _text_of(element, "initial")
        after = _text_of({**state, "action_id": element["action_id"]}, "selected")
        if before != after:
            changed[block["block_id"]] = after
    return changed


def _text_of(element: Mapping[str, Any], when: str) -> str:
    """Return what stands in an element, as a person would type it.

    `when` is the beginning of the fields' names: `initial` in a block, `selected` in a state.
    """
    match element.get("type"):
        case "checkboxes":
            return CHECKED if element.get(f"{when}_options") else "false"
        case "static_select":
            return str((element.get(f"{when}_option") or {}).get("value") or "")
        case "datepicker":
            return str(element.get(f"{when}_date") or "")
        case "timepicker":
            return str(element.get(f"{when}_time") or "")
        case "datetimepicker":
            at = element.get(f"{when}_date_time")
            # The id is the offset of the time zone, in seconds.
            zone = timezone(timedelta(seconds=int(element["action_id"])))
            if not at:
                return ""
            return datetime.fromtimestamp(at, zone).isoformat()
    value = element.get("initial_value" if when == "initial" else "value")
    return str(value or "")
