"""A fake of Slack's modals: forms in a window, which a bot opens and a person fills in and sends.

A view is the content of a modal, as JSON: blocks with a text or an input element. A trigger is the
id of something that a person did, such as a tap; a bot needs a fresh one to open a modal.
"""

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
#: The most characters of the text of an option.
OPTION_TEXT_LIMIT = 75
#: The most characters of the value of an option.
OPTION_VALUE_LIMIT = 150
#: The most characters of a text that stands in a field or that a person enters there.
INPUT_LIMIT = 3000
#: The most characters of the text in an empty field.
PLACEHOLDER_LIMIT = 150
#: A trigger: when it was made, in Unix milliseconds, and its number.
_TRIGGER = re.compile(r"(\d{1,15})\.(\d+)\.trigger")
#: The numbers of triggers, so that none is made twice.
_NUMBERS = itertools.count(1)

SlackView = dict[str, Any]


class InvalidInput(Exception):
    """Raised when Slack itself would not let a person send a form. The message names the field."""


def new_trigger(now: float) -> str:
    """Return the trigger of something that a person did at `now`, in Unix seconds.

    It opens one modal, within TRIGGER_SECONDS.
    """
    return f"{round(now * 1000)}.{next(_NUMBERS)}.trigger"


class FakeViews:
    """The modals of one fake Slack.

    `state` returns what the fake stores besides its messages: the views and the used triggers are
    in it. `clock` returns Unix seconds.
    """

    def __init__(
        self,
        state: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self.clock = clock

    @property
    def opened(self) -> list[SlackView]:
        """All views that are open, each as it looks now."""
        views: list[SlackView] = self._state().setdefault("slack views", [])
        return views

    def open(self, params: Mapping[str, Any], team: str) -> dict[str, Any]:
        """Answer `views.open`. `team` is the workspace of the token, "" for the only one."""
        trigger = str(params.get("trigger_id") or "")
        view = params.get("view")
        error = self._trigger_error(trigger) or view_error(view)
        # `view_error` refuses what is no dict; the second check is for the type checker.
        if error or not isinstance(view, dict):
            return {"ok": False, "error": error or "invalid_arguments"}
        self._used_triggers.append(trigger)
        number = len(self.opened) + 1
        shown = {
            **view,
            "id": f"V{number:06d}",
            # It names this version of the view, and begins with the number of the version.
            "hash": f"1.{number}",
            "team_id": team or "T0ACME",
        }
        self.opened.append(shown)
        return {"ok": True, "view": shown}

    def update(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `views.update`, which replaces an open view."""
        view = params.get("view")
        shown = self.find(str(params.get("view_id") or ""))
        if shown is None:
            return {"ok": False, "error": "not_found"}
        error = view_error(view)
        if error or not isinstance(view, dict):
            return {"ok": False, "error": error or "invalid_arguments"}
        # The hash is that of the version which the bot knows. A call without one always replaces.
        if "hash" in params and params["hash"] != shown["hash"]:
            return {"ok": False, "error": "hash_conflict"}
        self._replace(shown, view)
        return {"ok": True, "view": shown}

    def find(self, view_id: str) -> SlackView | None:
        """Return the open view with this id, None if there is none."""
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

        `entered` are the values by block id; other fields keep what stands in them. A choice is
        entered by its label, a check box as "true" or "false". `extra` adds fields to the payload.
        Raises InvalidInput for what Slack would not let a person send.
        """
        state = {}
        for block in view["blocks"]:
            if block["type"] == "input":
                block_id = block["block_id"]
                value = _checked_state(block, entered.get(block_id))
                state[block_id] = {block["element"]["action_id"]: value}
        unknown = set(entered) - set(state)
        if unknown:
            raise InvalidInput(f"the form has no field {unknown}")
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
        """Do what the bot's answer to a submission says: close the modal, or replace its view.

        `status` and `body` are the HTTP response. Return the errors that the answer shows, by block
        id; empty for none. Raises ValueError for an answer that Slack would refuse.
        """
        if status != 200:
            raise ValueError(f"Slack shows that it could not connect: status {status}")
        # An empty body closes the modal, too.
        answer = json.loads(body) if body else {"response_action": "clear"}
        match answer:
            case {"response_action": "clear"}:
                self.opened.remove(view)
            case {"response_action": "update", "view": dict(new)} if not view_error(new):
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
    def _used_triggers(self) -> list[str]:
        """The triggers that have opened a view."""
        used: list[str] = self._state().setdefault("slack used triggers", [])
        return used

    def _trigger_error(self, trigger: str) -> str:
        """Return the code with which Slack refuses a trigger, "" if it accepts the trigger."""
        parts = _TRIGGER.fullmatch(trigger)
        if parts is None:
            return "invalid_trigger_id"
        if trigger in self._used_triggers:
            return "exchanged_trigger_id"
        age = self.clock() - int(parts[1]) / 1000
        return "expired_trigger_id" if age > TRIGGER_SECONDS else ""

    def _replace(self, shown: SlackView, view: SlackView) -> None:
        """Replace an open view by another one, which keeps its id and gets a new hash."""
        version, _, view_number = shown["hash"].partition(".")
        new_view = {
            **view,
            "id": shown["id"],
            "team_id": shown["team_id"],
            "hash": f"{int(version) + 1}.{view_number}",
        }
        shown.clear()
        shown.update(new_view)


def view_error(view: object) -> str:
    """Return the code with which Slack refuses a view, "" for a view that it shows."""
    if not isinstance(view, dict):
        return "invalid_arguments"
    if len(json.dumps(view).encode()) > MAX_VIEW_BYTES:
        return "view_too_large"
    # The models of Slack's SDK know most rules: which fields there are, and how long texts may be.
    try:
        is_known = View(**view).to_dict() == view
    except (SlackObjectFormationError, AttributeError, TypeError, KeyError):
        return "invalid_arguments"

    blocks = view.get("blocks") or []
    inputs = [block for block in blocks if block["type"] == "input"]
    ids = [block.get("block_id") for block in inputs]
    are_unique = len(set(ids)) == len(ids)
    are_sized = all(isinstance(each, str) and 0 < len(each) <= 255 for each in ids)
    has_submit = bool(view.get("submit")) or not inputs
    is_valid = is_known and are_unique and are_sized and has_submit
    if is_valid and all(_has_valid_element(block) for block in inputs):
        return ""
    return "invalid_arguments"


def _has_valid_element(block: SlackView) -> bool:
    """Return whether Slack accepts the element of an input block.

    Only rules that the SDK does not check are checked here.
    """
    element = block["element"]
    kind = element["type"]
    options = element.get("options") or []
    for option in options:
        if not 0 < len(option["text"]["text"]) <= OPTION_TEXT_LIMIT:
            return False
        if not 0 < len(option["value"]) <= OPTION_VALUE_LIMIT:
            return False
    # Check boxes have a list of what is chosen at first, a menu has one option.
    initial_options = list(element.get("initial_options") or [])
    if "initial_option" in element:
        initial_options.append(element["initial_option"])
    if any(option not in options for option in initial_options):
        return False
    if kind in ("static_select", "checkboxes") and not options:
        return False
    placeholder = str(element.get("placeholder", {}).get("text", ""))
    if len(placeholder) > PLACEHOLDER_LIMIT:
        return False

    if kind == "number_input":
        numbers = [element.get(key) for key in ("initial_value", "min_value", "max_value")]
        return all(number is None or _is_number(element, number) for number in numbers)
    initial_text = element.get("initial_value")
    if initial_text is None:
        return True
    max_length = min(INPUT_LIMIT, element.get("max_length", INPUT_LIMIT))
    return isinstance(initial_text, str) and 0 < len(initial_text) <= max_length


def _is_number(element: SlackView, text: object) -> bool:
    """Return whether a number field accepts a text."""
    if not isinstance(text, str):
        return False
    try:
        number = float(text)
    except ValueError:
        return False
    return element["is_decimal_allowed"] or number.is_integer()


def _checked_state(block: SlackView, entered: str | None) -> SlackView:
    """Return the state of one element in a payload.

    `entered` is what the person entered, None to leave what is there. Raises InvalidInput.
    """
    element = block["element"]
    name = block["block_id"]
    state = _state_of(element, entered)
    is_empty = all(not value for key, value in state.items() if key != "type")
    if is_empty and not block.get("optional"):
        raise InvalidInput(f"{name} must be filled in")
    text = state.get("value")
    if not text:
        return state

    if element["type"] == "number_input":
        if not _is_number(element, text):
            raise InvalidInput(f"{name} takes a number")
        least = float(element.get("min_value", "-inf"))
        most = float(element.get("max_value", "inf"))
        if not least <= float(text) <= most:
            raise InvalidInput(f"{name} is out of its bounds")
    elif not element.get("min_length", 0) <= len(text) <= element.get("max_length", INPUT_LIMIT):
        raise InvalidInput(f"{name} has a length that the field does not take")
    return state


def _state_of(element: SlackView, entered: str | None) -> SlackView:
    """Return the state of an element after something was entered.

    `entered` is None to leave what is there, and "" to empty the element.
    """
    kind = element["type"]
    match kind:
        case "static_select":
            option = element.get("initial_option")
            if entered is not None:
                option = _option(element, entered)
            return {"type": kind, "selected_option": option}
        case "checkboxes":
            options = element.get("initial_options") or []
            if entered is not None:
                options = element["options"] if entered == "true" else []
            return {"type": kind, "selected_options": options}
        case "datepicker" | "timepicker":
            name = kind.removesuffix("picker")
            picked = element.get(f"initial_{name}")
            if entered is not None:
                picked = entered or None
            return {"type": kind, f"selected_{name}": picked}
        case "datetimepicker":
            unix_seconds = element.get("initial_date_time")
            if entered is not None:
                unix_seconds = int(entered) if entered else None
            return {"type": kind, "selected_date_time": unix_seconds}
    text = element.get("initial_value")
    if entered is not None:
        text = entered
    return {"type": kind, "value": text or None}


def _option(element: SlackView, label: str) -> SlackView | None:
    """Return the option with a label; None for "", which chooses nothing. Raises InvalidInput."""
    if not label:
        return None
    for option in element["options"]:
        if option["text"]["text"] == label:
            chosen: SlackView = option
            return chosen
    raise InvalidInput(f"there is no option {label!r}")
