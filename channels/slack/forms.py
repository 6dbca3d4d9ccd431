"""The form of a question as a modal of Slack: its blocks, and how it is opened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from sayso.channels.base import FindForm, SendError, Unreachable
from sayso.channels.forms import EditForm, FormField, value_text
from sayso.channels.i18n.texts import Texts, brief, texts_for
from sayso.channels.markdown import slack_mrkdwn
from sayso.channels.slack.address import split_place
from sayso.channels.slack.client import translated
from sayso.channels.slack.outgoing import Block
from sayso.channels.slack.submissions import CHANGE_FORM, CHECKED, FormPlace
from sayso.channels.types import Turn
from sayso.infra.records import OtherVersion

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

#: The most characters that Slack takes: of the title and of a button of a modal.
TITLE_LIMIT = 24
#: Of the label and of the hint of a field.
LABEL_LIMIT = 2000
#: Of the text of an option, and of its value.
OPTION_TEXT_LIMIT = 75
OPTION_VALUE_LIMIT = 150
#: Of a text that stands in a field.
INPUT_LIMIT = 3000
#: Of the metadata of a modal, and of the id of a block.
METADATA_LIMIT = 3000
ID_LIMIT = 255
#: The most blocks of a modal, and options of a menu.
BLOCK_LIMIT = 100
OPTION_LIMIT = 100
#: How long the record of a question may take to be read, in seconds. After that a modal opens which
#: says that the form is still loading: Slack's trigger works for three seconds after the tap.
READ_SECONDS = 1.0
#: How long reading the record may take after that, in seconds.
FILL_SECONDS = 30.0
#: Blocks beside the fields: what was asked, and that nothing is done yet.
_OTHER_BLOCKS = 2
#: A time that Slack's time picker can show. It knows neither seconds nor time zones.
_CLOCK_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:00)?")


def place_of(turn: Turn) -> FormPlace:
    """Return the place of the form that a tap asks for."""
    team, chat = split_place(turn.conversation.chat)
    return FormPlace(
        team=team,
        chat=chat,
        thread=turn.conversation.thread,
        message=turn.message_id,
        token=turn.tap.data if turn.tap else "",
    )


class SlackForms:
    """Opens the forms of one channel, on a loop of the web process.

    Lives as long as that channel.
    """

    def __init__(
        self,
        channel: str,
        client_of: Callable[[str], Awaitable[AsyncWebClient]],
        language: str,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        """`language`: of what is shown before the question is read."""
        self._read_seconds = read_seconds
        self._channel = channel
        self._client_of = client_of
        self._texts = texts_for(language)
        #: The tasks that fill open modals. The loop itself keeps no reference to a task.
        self._filling: set[asyncio.Task[None]] = set()

    async def open(self, turn: Turn, find: FindForm) -> bool:
        """Open the form that a tap asks for. Return whether a modal is shown.

        If the question takes long to read, a modal says so first: a trigger does not wait.
        """
        reading = asyncio.ensure_future(find(turn))
        reading.add_done_callback(_take_error)
        try:
            client = await self._client_of(turn.conversation.chat)
            await asyncio.wait({reading}, timeout=self._read_seconds)
            if not reading.done():
                waiting = notice_view(self._texts.form_loading(), self._texts)
                shown = await _shown(client, turn, waiting)
                self._start(self._fill(client, shown, reading, turn))
                return True
            view = _view_of(reading.result(), turn)
            if view is None:
                return False
            await _shown(client, turn, view)
            return True
        except (SendError, RedisError, OtherVersion) as exc:
            reading.cancel()
            self._note_failure(turn, exc)
            return False
        except asyncio.CancelledError:  # it took too long, and the tap is stored
            reading.cancel()
            raise

    def _start(self, filling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(filling)
        self._filling.add(task)
        task.add_done_callback(self._filling.discard)

    def _note_failure(self, turn: Turn, error: Exception) -> None:
        # The text of a broken connection to Redis may hold its address.
        reason = type(error).__name__
        if isinstance(error, SendError):
            reason = str(error)
        extra = {"channel": self._channel, "event": turn.event_hash, "reason": reason}
        log.warning("form.not_opened", extra=extra)

    async def _fill(
        self,
        client: AsyncWebClient,
        shown: Mapping[str, Any],
        reading: asyncio.Future[EditForm | None],
        turn: Turn,
    ) -> None:
        """Show the form in an open modal, or why there is none."""
        problem = self._texts.form_failed()
        view = None
        try:
            form = await asyncio.wait_for(reading, FILL_SECONDS)
            view = _view_of(form, turn)
            if form is None:
                problem = self._texts.stale()
        except (TimeoutError, RedisError, OtherVersion) as exc:
            self._note_failure(turn, exc)
        try:
            with translated(turn.conversation.chat):
                new = view or notice_view(problem, self._texts)
                await client.views_update(view_id=shown["id"], hash=shown["hash"], view=new)
        except SendError as exc:  # such as a modal that the person has closed
            self._note_failure(turn, exc)


def _take_error(reading: asyncio.Future[EditForm | None]) -> None:
    """Mark the error of a reading as retrieved: otherwise asyncio logs it."""
    if not reading.cancelled():
        reading.exception()


async def _shown(client: AsyncWebClient, turn: Turn, view: Block) -> Mapping[str, Any]:
    """Open a modal, and return the view that Slack shows. Raises SendError."""
    trigger = turn.tap.callback_id if turn.tap else ""
    with translated(turn.conversation.chat):
        answer = await client.views_open(trigger_id=trigger, view=view)
    shown = answer.get("view")
    if not isinstance(shown, Mapping):
        raise Unreachable("Slack named no view")
    return shown


def _view_of(form: EditForm | None, turn: Turn) -> Block | None:
    if form is None:
        return None
    return form_view(form, texts_for(form.language), place_of(turn))


def form_view(form: EditForm, texts: Texts, place: FormPlace) -> Block | None:
    """Return the modal of a form, None if a modal of Slack cannot show it whole."""
    blocks = [_input_of(field, texts) for field in form.fields]
    inputs = [block for block in blocks if block]
    if not inputs or len(inputs) < len(blocks):
        return None
    metadata = place.to_metadata()
    if len(inputs) > BLOCK_LIMIT - _OTHER_BLOCKS or len(metadata) > METADATA_LIMIT:
        return None
    asked = slack_mrkdwn(brief(form.preview))
    section = {"type": "section", "text": {"type": "mrkdwn", "text": asked, "verbatim": True}}
    note = {"type": "context", "elements": [_plain(texts.form_note(), LABEL_LIMIT)]}
    return {
        "type": "modal",
        "callback_id": CHANGE_FORM,
        "private_metadata": metadata,
        "title": _plain(texts.change_label, TITLE_LIMIT),
        "submit": _plain(texts.form_submit(), TITLE_LIMIT),
        "close": _plain(texts.form_cancel(), TITLE_LIMIT),
        "blocks": [section, *inputs, note],
    }


def notice_view(text: str, texts: Texts) -> Block:
    """Return a modal that says something and has no fields."""
    section = {"type": "section", "text": {"type": "plain_text", "text": text}}
    return {
        "type": "modal",
        "title": _plain(texts.change_label, TITLE_LIMIT),
        "close": _plain(texts.form_cancel(), TITLE_LIMIT),
        "blocks": [section],
    }


def _input_of(field: FormField, texts: Texts) -> Block | None:
    """Return the block of a field, None if Slack has no element that can show it whole."""
    element = _element_of(field, texts)
    if element is None or not 0 < len(field.name) <= ID_LIMIT:
        return None
    # A check box that must be filled in could not be cleared.
    is_optional = field.type == "boolean" or not field.required
    block: Block = {
        "type": "input",
        "block_id": field.name,
        "label": _plain(field.label, LABEL_LIMIT),
        "element": element,
        "optional": is_optional,
    }
    if field.description:
        block["hint"] = _plain(field.description, LABEL_LIMIT)
    return block


def _element_of(field: FormField, texts: Texts) -> Block | None:
    match field.type:
        case "boolean":
            return _check_box(field, texts)
        case "choice":
            return _menu(field)
        case "integer" | "number":
            return _number_input(field)
        case "date" | "time" | "datetime":
            picker = _picker(field)
            if picker is not None:
                return picker
    return _text_input(field)


def _check_box(field: FormField, texts: Texts) -> Block:
    option = {"text": _plain(texts.confirm_label, OPTION_TEXT_LIMIT), "value": CHECKED}
    element: Block = {"type": "checkboxes", "action_id": "value", "options": [option]}
    if field.value is True:
        element["initial_options"] = [option]
    return element


def _menu(field: FormField) -> Block | None:
    choices = field.choice_texts
    are_sized = all(0 < len(choice) <= OPTION_VALUE_LIMIT for choice in choices)
    if not are_sized or len(set(choices)) < len(choices):
        return None
    if not 0 < len(choices) <= OPTION_LIMIT:
        return _text_input(field)
    options = [{"text": _plain(choice, OPTION_TEXT_LIMIT), "value": choice} for choice in choices]
    element: Block = {"type": "static_select", "action_id": "value", "options": options}
    if field.text in choices:
        element["initial_option"] = options[choices.index(field.text)]
    return element


def _number_input(field: FormField) -> Block | None:
    try:
        float(field.text or "0")
    except ValueError:
        return _text_input(field)
    element: Block = {
        "type": "number_input",
        "action_id": "value",
        "is_decimal_allowed": field.type == "number",
    }
    bounds = {"min_value": field.minimum, "max_value": field.maximum}
    element |= {key: value_text(bound) for key, bound in bounds.items() if bound is not None}
    if field.text:
        element["initial_value"] = field.text
    return element


def _picker(field: FormField) -> Block | None:
    """Return the picker of a date or a time, None if it cannot show the present value exactly."""
    text = field.text
    element: Block = {"type": f"{field.type}picker", "action_id": "value"}
    with contextlib.suppress(ValueError):
        match field.type:
            case "date" | "time" if not text:
                return element
            case "date":
                return element | {"initial_date": date.fromisoformat(text).isoformat()}
            case "time" if _CLOCK_TIME.fullmatch(text):
                return element | {"initial_time": time.fromisoformat(text).isoformat("minutes")}
            case "datetime":
                return _instant_picker(text)
    return None


def _instant_picker(text: str) -> Block | None:
    """Return the picker of an instant, which each person sees in their own time zone.

    A time without a zone is no instant.
    """
    if text:
        at = datetime.fromisoformat(text)
    else:
        at = datetime.now(UTC)
    zone = at.utcoffset()
    if zone is None or at.second or at.microsecond:
        return None
    # What is picked gets the zone of the present value: see `submissions`.
    element: Block = {"type": "datetimepicker", "action_id": f"{zone.total_seconds():.0f}"}
    if text:
        element["initial_date_time"] = round(at.timestamp())
    return element


def _text_input(field: FormField) -> Block | None:
    if len(field.text) > INPUT_LIMIT:
        return None
    element: Block = {"type": "plain_text_input", "action_id": "value", "multiline": field.is_long}
    if field.type == "text":
        element["max_length"] = min(field.max_chars, INPUT_LIMIT)
    if field.text:
        element["initial_value"] = field.text
    return element


def _plain(text: str, limit: int) -> Block:
    """Return a text object. What is too long ends in an ellipsis."""
    shown = text.strip() or "…"
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    return {"type": "plain_text", "text": shown}


def errors_answer(errors: Mapping[str, str]) -> str:
    """Return the body that shows errors beside their fields."""
    return json.dumps({"response_action": "errors", "errors": dict(errors)})
