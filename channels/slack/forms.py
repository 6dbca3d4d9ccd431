"""The form of a question as a modal of Slack: its blocks, and how it is opened.

A question may have a form, in which people change the values of the call before they agree. A modal
is Slack's dialog. It is made of blocks and opened with the trigger of a tap, a token that works for
three seconds.
"""

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
from sayso.channels.edit_form import EditForm, FormField, value_text
from sayso.channels.i18n.texts import Texts, brief, texts_for
from sayso.channels.markdown.convert import slack_mrkdwn
from sayso.channels.slack.address import split_place
from sayso.channels.slack.client import translated
from sayso.channels.slack.outgoing import Block
from sayso.channels.slack.submissions import CHANGE_FORM, CHECKED, FormPlace
from sayso.channels.types import Turn
from sayso.infra.records import OtherVersion

if TYPE_CHECKING:
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

# Slack's limits:
#: Characters of the title of a modal, and of each of its buttons.
TITLE_LIMIT = 24
#: Characters of the label of a field, and of its hint.
LABEL_LIMIT = 2000
#: Characters of an option's text, which a menu shows.
OPTION_TEXT_LIMIT = 75
#: Characters of an option's value, which Slack sends back.
OPTION_VALUE_LIMIT = 150
#: Characters of the text in a field.
INPUT_LIMIT = 3000
#: Characters of the metadata of a modal.
METADATA_LIMIT = 3000
#: Characters of the id of a block.
ID_LIMIT = 255
#: Blocks of a modal.
BLOCK_LIMIT = 100
#: Options of a menu.
OPTION_LIMIT = 100

#: How long reading the question may take before a modal opens, in seconds. Then one opens that says
#: that the form is loading, because the trigger does not work much longer.
READ_SECONDS = 1.0
#: How long reading the question may take after that, in seconds.
FILL_SECONDS = 30.0
#: The blocks besides the fields: what was asked, and that nothing is done yet.
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
    """Opens the forms of one channel, on an event loop of the web process.

    Lives as long as that channel.

    * `client_of`: returns a client with the token of a chat's workspace.
    * `language`: the language of what is shown before the question is read.
    * `read_seconds`: see READ_SECONDS.
    """

    def __init__(
        self,
        channel: str,
        client_of: Callable[[str], Awaitable[AsyncWebClient]],
        language: str,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._read_seconds = read_seconds
        self._channel = channel
        self._client_of = client_of
        self._texts = texts_for(language)
        #: The tasks that fill open modals. The loop itself keeps no reference to a task.
        self._filling: set[asyncio.Task[None]] = set()

    async def open(self, turn: Turn, find: FindForm) -> bool:
        """Open the form that a tap asks for. Return whether a modal is shown.

        `find` reads the question by the tap's turn. If that takes long, a modal opens first that
        says so, and is filled later.
        """
        reading = asyncio.ensure_future(find(turn))
        reading.add_done_callback(_take_error)
        try:
            client = await self._client_of(turn.conversation.chat)
            await asyncio.wait({reading}, timeout=self._read_seconds)
            if not reading.done():
                notice = notice_view(self._texts.form_loading(), self._texts)
                open_view = await _open_view(client, turn, notice)
                self._start(self._fill(client, open_view, reading, turn))
                return True

            view = _view_of(reading.result(), turn)
            if view is None:
                return False
            await _open_view(client, turn, view)
            return True
        except (SendError, RedisError, OtherVersion) as exc:
            reading.cancel()
            self._log_failure(turn, exc)
            return False
        except asyncio.CancelledError:
            # Opening took too long for the webhook. The tap is stored, and is answered by a worker.
            reading.cancel()
            raise

    def _start(self, filling: Coroutine[Any, Any, None]) -> None:
        """Fill a modal in the background."""
        task = asyncio.create_task(filling)
        self._filling.add(task)
        task.add_done_callback(self._filling.discard)

    def _log_failure(self, turn: Turn, error: Exception) -> None:
        """Log that a form was not shown."""
        # The text of a broken connection to Redis may hold its address.
        reason = type(error).__name__
        if isinstance(error, SendError):
            reason = str(error)
        extra = {"channel": self._channel, "event": turn.event_hash, "reason": reason}
        log.warning("form.not_opened", extra=extra)

    async def _fill(
        self,
        client: AsyncWebClient,
        open_view: Mapping[str, Any],
        reading: asyncio.Future[EditForm | None],
        turn: Turn,
    ) -> None:
        """Show the form in an open modal, or why there is none.

        `open_view` is Slack's view of the modal, `reading` the question that is still being read.
        """
        problem = self._texts.form_failed()
        view = None
        try:
            form = await asyncio.wait_for(reading, FILL_SECONDS)
            view = _view_of(form, turn)
            if form is None:
                problem = self._texts.stale()
        except (TimeoutError, RedisError, OtherVersion) as exc:
            self._log_failure(turn, exc)

        view = view or notice_view(problem, self._texts)
        try:
            # With the hash, Slack refuses the update if the modal has changed meanwhile.
            with translated(turn.conversation.chat):
                await client.views_update(
                    view_id=open_view["id"], hash=open_view["hash"], view=view
                )
        except SendError as exc:
            # For example, the person has closed the modal.
            self._log_failure(turn, exc)


def _take_error(reading: asyncio.Future[EditForm | None]) -> None:
    """Take the error of a finished reading, which asyncio would log otherwise."""
    if not reading.cancelled():
        reading.exception()


async def _open_view(client: AsyncWebClient, turn: Turn, view: Block) -> Mapping[str, Any]:
    """Open a modal, and return the view that Slack shows. Raises SendError."""
    trigger = turn.tap.callback_id if turn.tap else ""
    with translated(turn.conversation.chat):
        answer = await client.views_open(trigger_id=trigger, view=view)
    open_view = answer.get("view")
    if not isinstance(open_view, Mapping):
        raise Unreachable("Slack named no view")
    return open_view


def _view_of(form: EditForm | None, turn: Turn) -> Block | None:
    """Return the modal of a form, None for no form and for one that Slack cannot show whole."""
    if form is None:
        return None
    return form_view(form, texts_for(form.language), place_of(turn))


def form_view(form: EditForm, texts: Texts, place: FormPlace) -> Block | None:
    """Return the modal of a form, None if a modal of Slack cannot show it whole.

    `texts` are in the language of the question. `place` is where the form belongs, which the modal
    carries with it.
    """
    # A form that leaves a field out would hide a part of what a yes does.
    blocks = [_input_of(field, texts) for field in form.fields]
    inputs = [block for block in blocks if block]
    if not inputs or len(inputs) < len(blocks):
        return None
    metadata = place.to_metadata()
    if len(inputs) > BLOCK_LIMIT - _OTHER_BLOCKS or len(metadata) > METADATA_LIMIT:
        return None

    question = slack_mrkdwn(brief(form.preview))
    section = {"type": "section", "text": {"type": "mrkdwn", "text": question, "verbatim": True}}
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
    # Slack would not take a required check box that is not set, which is a value too.
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
    """Return the element in which a field's value is entered, None if none can show it whole."""
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
    # Any value can be shown and entered as text.
    return _text_input(field)


def _check_box(field: FormField, texts: Texts) -> Block:
    """Return a check box. Its label is that of the button with which people agree."""
    option = {"text": _plain(texts.confirm_label, OPTION_TEXT_LIMIT), "value": CHECKED}
    element: Block = {"type": "checkboxes", "action_id": "value", "options": [option]}
    if field.value is True:
        element["initial_options"] = [option]
    return element


def _menu(field: FormField) -> Block | None:
    """Return a menu of choices, or a text field if there are too many.

    None if the choices are too long, or cannot be told apart.
    """
    choices = field.choice_texts
    have_valid_length = all(0 < len(choice) <= OPTION_VALUE_LIMIT for choice in choices)
    if not have_valid_length or len(set(choices)) < len(choices):
        return None
    if not 0 < len(choices) <= OPTION_LIMIT:
        return _text_input(field)
    # The text may be cut, since the value that comes back is the whole choice.
    options = [{"text": _plain(choice, OPTION_TEXT_LIMIT), "value": choice} for choice in choices]
    element: Block = {"type": "static_select", "action_id": "value", "options": options}
    if field.text in choices:
        element["initial_option"] = options[choices.index(field.text)]
    return element


def _number_input(field: FormField) -> Block | None:
    """Return a field for numbers, or a text field if the present value is not a number."""
    try:
        float(field.text or "0")  # an empty field is a field for numbers, too
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
    # ValueError: the present value is no date or time.
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
    """Return the picker of a date with a time, which each person sees in their own time zone.

    `text` is the present value, "" for none. None for a value without a time zone and for one with
    seconds, which the picker cannot show. Raises ValueError for any other text.
    """
    at = datetime.now(UTC)
    if text:
        at = datetime.fromisoformat(text)
    offset = at.utcoffset()
    if offset is None or (text and (at.second or at.microsecond)):
        return None

    # The id tells `submissions` the time zone of the present value, which the new value gets too.
    element: Block = {"type": "datetimepicker", "action_id": f"{offset.total_seconds():.0f}"}
    if text:
        element["initial_date_time"] = round(at.timestamp())
    return element


def _text_input(field: FormField) -> Block | None:
    """Return a text field, None if the present value is too long for it."""
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
