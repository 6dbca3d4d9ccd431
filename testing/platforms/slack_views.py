"""A fake of Slack's modals: what `views.open` takes, what people enter, what an answer shows."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.views import View

#: How long a trigger opens a modal, in seconds.
TRIGGER_SECONDS = 3.0
#: The most bytes of a view as JSON.
MAX_VIEW_BYTES = 250_000
#: The most characters of the text of an option, and of its value.
OPTION_TEXT_LIMIT = 75
OPTION_VALUE_LIMIT = 150
#: The most characters of a text that stands in a field or that a person enters there.
INPUT_LIMIT = 3000
#: The most characters of the text in an empty field.
PLACEHOLDER_LIMIT = 150
_TRIGGER = re.compile(r"(\d{1,15})\.(\d+)\.trigger")
_NUMBERS = itertools.count(1)

SlackView = dict[str, Any]


class NotEntered(Exception):
    """Raised when Slack itself would not let a person send a form. The message names the field."""


def new_trigger(now: float) -> str:
    """Return the trigger of an act at `now`, in Unix seconds.

    It opens one modal, for TRIGGER_SECONDS.
    """
    return f"{round(now * 1000)}.{next(_NUMBERS)}.trigger"


class FakeViews:
    """The open modals of one fake Slack. `clock` returns Unix seconds."""

    def __init__(
        self,
        state: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`state`: what the fake stores besides its messages."""
        self._state = state
        self.clock = clock

    @property
    def opened(self) -> list[SlackView]:
        """All views that were opened, each as it looks now."""
        views: list[SlackView] = self._state().setdefault("slack views", [])
        return views

    def open(self, params: Mapping[str, Any], team: str) -> dict[str, Any]:
        """Answer `views.open` with the token of a workspace."""
        refused = self._trigger_refusal(str(params.get("trigger_id") or ""))
        view = params.get("view")
        refused = refused or view_problem(view)
        if refused or not isinstance(view, dict):
            return {"ok": False, "error": refused or "invalid_arguments"}
        self._used.append(params["trigger_id"])
        number = len(self.opened) + 1
        shown = {**view, "id": f"V{number:06d}", "hash": f"1.{number}", "team_id": team or "T0ACME"}
        self.opened.append(shown)
        return {"ok": True, "view": shown}

    def update(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `views.update`, which replaces an open view."""
        view = params.get("view")
        shown = self.find(str(params.get("view_id") or ""))
        if shown is None:
            return {"ok": False, "error": "not_found"}
        problem = view_problem(view)
        if problem or not isinstance(view, dict):
            return {"ok": False, "error": problem or "invalid_arguments"}
        if params.get("hash") not in (None, shown["hash"]):
            return {"ok": False, "error": "hash_conflict"}
        self._replace(shown, view)
        return {"ok": True, "view": shown}

    def find(self, view_id: str) -> SlackView | None:
        """Return the view with this id, None if there is none."""
        return next((view for view in self.opened if view["id"] == view_id), None)

    def submission(
        self,
        view: SlackView,
        entered: Mapping[str, str],
        *,
        user: str = "U0ADA",
        team: str = "T0ACME",
        **extra: Any,
    ) -> bytes:
        """Return the request that Slack sends when a person enters values and sends the form.

        `entered`: values by block id; other fields keep what stands in them. A choice is entered by
        its label, a check box as "true" or "false". `extra` adds fields to the payload. Raises
        NotEntered.
        """
        state = {}
        for block in view["blocks"]:
            if block["type"] == "input":
                value = _entered(block, entered.get(block["block_id"]))
                state[block["block_id"]] = {block["element"]["action_id"]: value}
        unknown = set(entered) - set(state)
        if unknown:
            raise NotEntered(f"the form has no field {unknown}")
        payload = {
            "type": "view_submission",
            "team": {"id": team},
            "user": {"id": user, "username": user[2:].lower(), "team_id": team},
            "trigger_id": new_trigger(self.clock()),
            "view": {**view, "state": {"values": state}},
            **extra,
        }
        return urlencode({"payload": json.dumps(payload)}).encode()

    def show_answer(self, view: SlackView, status: int, body: str) -> dict[str, str]:
        """Show the answer to a submission: close the modal, replace it, or return its errors.

        Errors are by block id.
        Raises ValueError for an answer that Slack would refuse.
        """
        if status != 200:
            raise ValueError(f"Slack shows that it could not connect: status {status}")
        if body:
            answer = json.loads(body)
        else:
            answer = {"response_action": "clear"}
        match answer:
            case {"response_action": "clear"}:
                self.opened.remove(view)
            case {"response_action": "update", "view": dict(new)} if not view_problem(new):
                self._replace(view, new)
            case {"response_action": "errors", "errors": dict(errors)} if errors:
                inputs = {block["block_id"] for block in view["blocks"] if block["type"] == "input"}
                are_texts = all(isinstance(text, str) and text for text in errors.values())
                if errors.keys() <= inputs and are_texts:
                    return errors
                raise ValueError(f"no input block has the id of each error: {errors!r}")
            case _:
                raise ValueError(f"Slack does not take this answer: {answer!r}")
        return {}

    @property
    def _used(self) -> list[str]:
        """The triggers that have opened a view."""
        used: list[str] = self._state().setdefault("slack used triggers", [])
        return used

    def _trigger_refusal(self, trigger: str) -> str:
        parts = _TRIGGER.fullmatch(trigger)
        if parts is None:
            return "invalid_trigger_id"
        if trigger in self._used:
            return "exchanged_trigger_id"
        age = self.clock() - int(parts[1]) / 1000
        return "expired_trigger_id" if age > TRIGGER_SECONDS else ""

    def _replace(self, shown: SlackView, view: SlackView) -> None:
        kept = {key: shown[key] for key in ("id", "team_id")}
        number = int(shown["hash"].partition(".")[0]) + 1
        shown.clear()
        shown.update({**view, **kept, "hash": f"{number}.1"})


def view_problem(view: object) -> str:
    """Return Slack's error code for a view, "" for one that it shows."""
    if not isinstance(view, dict):
        return "invalid_arguments"
    if len(json.dumps(view).encode()) > MAX_VIEW_BYTES:
        return "view_too_large"
    try:
        is_known = View(**view).to_dict() == view
    except (SlackObjectFormationError, AttributeError, TypeError, KeyError):
        return "invalid_arguments"
    blocks = view.get("blocks") or []
    inputs = [block for block in blocks if block["type"] == "input"]
    ids = [block.get("block_id") for block in inputs]
    are_unique = len(set(ids)) == len(ids)
    are_sized = all(isinstance(each, str) and 0 < len(each) <= 255 for each in ids)
    lacks_submit = bool(inputs) and not view.get("submit")
    is_valid = is_known and are_unique and are_sized and not lacks_submit
    if is_valid and all(map(_is_valid_element, inputs)):
        return ""
    return "invalid_arguments"


def _is_valid_element(block: SlackView) -> bool:
    """Return whether Slack takes the element of an input block, where the SDK checks nothing."""
    element = block["element"]
    options = element.get("options") or []
    for option in options:
        text = option["text"]["text"]
        is_sized = 0 < len(text) <= OPTION_TEXT_LIMIT
        if not is_sized or not 0 < len(option["value"]) <= OPTION_VALUE_LIMIT:
            return False
    chosen = element.get("initial_options") or [element.get("initial_option")]
    if any(option is not None and option not in options for option in chosen):
        return False
    if element["type"] in ("static_select", "checkboxes") and not options:
        return False
    if len(str(element.get("placeholder", {}).get("text", ""))) > PLACEHOLDER_LIMIT:
        return False
    given = element.get("initial_value")
    if element["type"] == "number_input":
        bounds = [element.get(key) for key in ("initial_value", "min_value", "max_value")]
        return all(bound is None or _is_number(element, bound) for bound in bounds)
    most = min(INPUT_LIMIT, element.get("max_length", INPUT_LIMIT))
    return given is None or (isinstance(given, str) and 0 < len(given) <= most)


def _is_number(element: SlackView, text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        number = float(text)
    except ValueError:
        return False
    return element["is_decimal_allowed"] or number.is_integer()


def _entered(block: SlackView, given: str | None) -> SlackView:
    """Return the state of one element in a payload. Raises NotEntered."""
    element = block["element"]
    name = block["block_id"]
    value = _state_of(element, given)
    is_empty = all(not each for key, each in value.items() if key != "type")
    if is_empty and not block.get("optional"):
        raise NotEntered(f"{name} must be filled in")
    text = value.get("value")
    if not text:
        return value
    if element["type"] == "number_input":
        if not _is_number(element, text):
            raise NotEntered(f"{name} takes a number")
        least = float(element.get("min_value", "-inf"))
        most = float(element.get("max_value", "inf"))
        if not least <= float(text) <= most:
            raise NotEntered(f"{name} is out of its bounds")
    elif not element.get("min_length", 0) <= len(text) <= element.get("max_length", INPUT_LIMIT):
        raise NotEntered(f"{name} has a length that the field does not take")
    return value


def _state_of(element: SlackView, given: str | None) -> SlackView:
    """Return the state of an element after `given` was entered; None leaves what is there."""
    kind = element["type"]
    match kind:
        case "static_select":
            option = element.get("initial_option")
            if given is not None:
                option = _option(element, given)
            return {"type": kind, "selected_option": option}
        case "checkboxes":
            options = element.get("initial_options") or []
            if given is not None:
                if given == "true":
                    options = element["options"]
                else:
                    options = []
            return {"type": kind, "selected_options": options}
        case "datepicker" | "timepicker":
            name = kind.removesuffix("picker")
            return {"type": kind, f"selected_{name}": given or element.get(f"initial_{name}")}
        case "datetimepicker":
            at = element.get("initial_date_time")
            if given is not None:
                at = int(given)
            return {"type": kind, "selected_date_time": at}
    text = element.get("initial_value")
    if given is not None:
        text = given
    return {"type": kind, "value": text or None}


def _option(element: SlackView, label: str) -> SlackView | None:
    if not label:
        return None
    for option in element["options"]:
        if option["text"]["text"] == label:
            chosen: SlackView = option
            return chosen
    raise NotEntered(f"there is no option {label!r}")
