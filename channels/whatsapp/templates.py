"""Contents: buttons and lists as Twilio wants them, each shape made once and kept for good."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sayso.channels.base import DeliveryUncertain, SharedCache, Unreachable
from sayso.channels.http import PooledSessions
from sayso.channels.markdown import utf16_len
from sayso.channels.types import Button
from sayso.channels.whatsapp.client import JSON
from sayso.channels.whatsapp.errors import translated

#: Buttons a message may carry without an approved template, and characters on each.
MAX_BUTTONS, LABEL_LIMIT = 3, 20
#: Items of a list, characters of an item's title, of what stands below it, and of its id.
MAX_ITEMS, ITEM_LIMIT, DESCRIPTION_LIMIT, ID_LIMIT = 10, 24, 72, 200
#: What opens a list. It is in no language.
LIST_BUTTON = "☰"
#: Shapes of which a process knows the Content by heart.
MAX_CONTENTS = 1000

_CONTENT_URL = "https://content.twilio.com/v1/Content"


@dataclass(frozen=True, slots=True)
class Content:
    """A message of a shape that Twilio is told once: all words and ids are variables, but for labels of buttons."""

    types: dict[str, Any]
    values: tuple[str, ...]

    @property
    def shape(self) -> str:
        """A name that all Contents share which differ only in their values."""
        return hashlib.sha256(json.dumps(self.types).encode()).hexdigest()[:20]

    @property
    def variables(self) -> str:
        """The values as JSON, by the numbers that the shape gives them."""
        return json.dumps({str(number): value for number, value in enumerate(self.values, 1)}, ensure_ascii=False)


def content_of(text: str, buttons: Sequence[Button]) -> Content | None:
    """The Content for a text, as WhatsApp formats it, with buttons. None where they only go in words."""
    if _are_told_apart(buttons, MAX_BUTTONS, LABEL_LIMIT):
        return _quick_reply(text, buttons)
    return _list_picker(text, buttons) if is_shown(buttons) else None


def is_shown(buttons: Sequence[Button]) -> bool:
    """Whether they can be buttons, or a list, in which all of each label is shown."""
    is_list = _are_told_apart(buttons, MAX_ITEMS, ITEM_LIMIT) and all(map(_is_item, buttons))
    return is_list or _are_told_apart(buttons, MAX_BUTTONS, LABEL_LIMIT)


def template_content(words: str, buttons: Sequence[Button] = ()) -> Content:
    """The values for a template that somebody else made and WhatsApp approved."""
    return Content({}, (words, *(button.data for button in buttons)))


class ContentTemplates:
    """The Contents of one account. Lives as long as the process; the cache knows them in all others.

    `client` is Twilio's, for each loop.
    """

    def __init__(self, account_sid: str, cache: SharedCache, client: PooledSessions[Any]) -> None:
        self._account_sid, self._cache, self._client = account_sid, cache, client
        #: Those made or looked up so far, by their key.
        self._known: dict[str, str] = {}

    async def sid(self, content: Content) -> str | None:
        """Twilio's id of the shape, which is made if need be. None when Twilio refuses it. Raises SendError."""
        key = self._key(content)
        sid = self._known.get(key)
        if not sid:
            sid = await asyncio.to_thread(self._cache.get, key) or await self._create(content)
            if sid:
                await self._remember(key, sid)
        return sid

    async def forget(self, content: Content) -> None:
        """Twilio does not know this shape any more."""
        await self._remember(self._key(content), "")

    async def _remember(self, key: str, sid: str) -> None:
        self._known = {**self._known, key: sid} if len(self._known) < MAX_CONTENTS else {key: sid}
        await asyncio.to_thread(self._cache.put, key, sid)

    def _key(self, content: Content) -> str:
        return f"twilio:content:{self._account_sid}:{content.shape}"

    async def _create(self, content: Content) -> str | None:
        """Create the Content. None when Twilio refuses: the words go out alone."""
        try:
            with translated():
                answer = await self._client.here().request_async(
                    "POST", _CONTENT_URL, headers={"Content-Type": JSON}, data=_resource(content)
                )
        except DeliveryUncertain as exc:
            raise Unreachable("no answer from Twilio's Content API, nothing was sent") from exc
        if answer.status_code >= 500:
            raise Unreachable(f"Twilio's Content API answered {answer.status_code}, nothing was sent")
        return str(json.loads(answer.text)["sid"]) if answer.status_code in (200, 201) else None


class _Variables:
    """Numbers the values of a Content as they are put in."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def put(self, value: str) -> str:
        """What stands for the value in the shape."""
        self.values.append(value)
        return f"{{{{{len(self.values)}}}}}"


def _quick_reply(text: str, buttons: Sequence[Button]) -> Content:
    variables = _Variables()
    body = variables.put(text)
    actions = [{"title": _cut(button.label, LABEL_LIMIT), "id": variables.put(button.data)} for button in buttons]
    return Content({"twilio/quick-reply": {"body": body, "actions": actions}}, tuple(variables.values))


def _list_picker(text: str, buttons: Sequence[Button]) -> Content:
    variables = _Variables()
    body = variables.put(text)
    items = [_item(button, variables) for button in buttons]
    types = {"twilio/list-picker": {"body": body, "button": LIST_BUTTON, "items": items}}
    return Content(types, tuple(variables.values))


def _item(button: Button, variables: _Variables) -> dict[str, str]:
    item = {"item": variables.put(_cut(button.label, ITEM_LIMIT)), "id": variables.put(button.data)}
    return {**item, "description": variables.put(button.label)} if utf16_len(button.label) > ITEM_LIMIT else item


def _are_told_apart(buttons: Sequence[Button], most: int, limit: int) -> bool:
    """Whether each has a title of its own once it is cut: two of the same are refused, or taken for each other."""
    titles = {_cut(button.label, limit) for button in buttons if button.label.strip()}
    return 1 <= len(buttons) == len(titles) <= most


def _is_item(button: Button) -> bool:
    return utf16_len(button.label) <= DESCRIPTION_LIMIT and len(button.data) <= ID_LIMIT


def _cut(label: str, limit: int) -> str:
    if utf16_len(label) <= limit:
        return label
    kept = label[: limit - 1]
    while utf16_len(kept) >= limit:
        kept = kept[:-1]
    return f"{kept}…"


def _resource(content: Content) -> dict[str, Any]:
    """What is created. Twilio wants an example of every variable."""
    samples = {str(number): f"sample{number}" for number in range(1, len(content.values) + 1)}
    return {
        "friendly_name": f"sayso_{content.shape[:12]}",
        "language": "en",
        "variables": samples,
        "types": content.types,
    }
