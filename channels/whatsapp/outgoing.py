"""A reply as WhatsApp messages: how it is split, and its buttons as Twilio Contents.

At Twilio a message with buttons is made of a Content: a stored resource with a shape, such as two
buttons with these labels, and variables, which each message fills in. A template is a Content that
Meta has approved. What Twilio or WhatsApp refuses is written as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.base import (
    DeliveryUncertain,
    MediaStore,
    Unreachable,
    WindowClosed,
)
from sayso.channels.markdown.convert import utf16_len, whatsapp_text
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.split import fits, split
from sayso.channels.types import (
    Button,
    Media,
    PriceClass,
    Reply,
    content_digest,
    joined_labels,
    readable_size,
)
from sayso.channels.whatsapp.client import JSON, translated
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.infra.http import PooledSessions
from sayso.infra.redis.shared_cache import SharedCache

#: The most characters of a message at Twilio.
TEXT_LIMIT = 1600
#: The most characters of a text with buttons, and of a caption.
BUTTONS_LIMIT = 1024
#: The most characters of the text in a template.
TEMPLATE_LIMIT = BUTTONS_LIMIT
#: The most bytes of a picture, and of any other file.
PICTURE_BYTES = 5 * 1024 * 1024
FILE_BYTES = 16 * 1024 * 1024

#: Pictures that WhatsApp accepts.
_PICTURES = frozenset({"image/jpeg", "image/png"})
_OFFICE = "application/vnd.openxmlformats-officedocument."
#: Other files that WhatsApp accepts: audio, video, documents, contacts.
_FILES = frozenset(
    {
        "audio/ogg",
        "audio/opus",
        "audio/amr",
        "audio/3gpp",
        "audio/aac",
        "audio/mpeg",
        "video/mp4",
        "application/pdf",
        "application/msword",
        "application/vnd.ms-powerpoint",
        "application/vnd.ms-excel",
        f"{_OFFICE}wordprocessingml.document",
        f"{_OFFICE}presentationml.presentation",
        f"{_OFFICE}spreadsheetml.sheet",
        "text/vcard",
        "text/x-vcard",
    }
)
#: The most buttons of a message without an approved template, and the most characters on each.
MAX_BUTTONS = 3
LABEL_LIMIT = 20
#: The most items of a list, which a button opens.
MAX_ITEMS = 10
#: The most characters of an item's title, description and id.
ITEM_LIMIT = 24
DESCRIPTION_LIMIT = 72
ID_LIMIT = 200
#: The label of the button that opens a list, in no language.
LIST_BUTTON = "☰"
#: How Meta names the categories of templates.
_CATEGORIES: dict[str, PriceClass] = {
    "UTILITY": "utility",
    "MARKETING": "marketing",
    "AUTHENTICATION": "authentication",
}
#: How long Twilio may take to name the category of a template, in seconds.
CATEGORY_SECONDS = 5.0
#: How long a category is used before Twilio is asked again, in seconds: a day.
KEEP_CATEGORY_SECONDS = 86_400.0
#: After how many seconds Twilio is asked again for a category that it did not name.
ASK_AGAIN_SECONDS = 300.0
#: Characters that are kept free for a link: it may be longer when it is sent than when its message
#: is planned, and an empty line stands before it.
LINK_LEEWAY = 20
_CONTENT_URL = "https://content.twilio.com/v1/Content"


def pieces_of(reply: Reply, media: MediaStore) -> Sequence[Reply]:
    """Return the messages of a reply, as few as possible: each is paid for.

    A picture without buttons has the text as its caption, and a file that is sent as a link stands
    below the text. Other files are separate messages. WhatsApp cannot edit: an optional edit is
    left out, any other is a new message. `media` gives links to files.
    """
    if reply.edits and reply.optional:
        return ()
    if reply.preview:
        reply = reply.with_preview(format_preview)
    reply = replace(reply, edits="", optional=False)
    if reply.media and not reply.buttons and _fit_together(reply.text, reply.media, media):
        return (reply,)

    empty = replace(reply, text="", buttons=(), media=None, collapse="")
    files = []
    if reply.media:
        files.append(replace(empty, media=reply.media))
    if reply.buttons:
        # The buttons come last, where people look for them.
        return (*files, *_with_buttons(reply, empty))
    texts = [replace(empty, text=text) for text in _texts(reply.text)]
    return (*texts, *files)


def _fit_together(md: str, file: Media, media: MediaStore) -> bool:
    """Return whether one message has room for a text and a file."""
    if _is_picture(file):
        return fits(md, BUTTONS_LIMIT, length)
    if is_shown(file):
        return False
    link = plain_fields(Reply(media=file), media)["body"]
    room = TEXT_LIMIT - utf16_len(link) - LINK_LEEWAY
    return fits(md, room, length)


def format_preview(md: str) -> str:
    """Return how WhatsApp shows the preview of a question: like the text around it.

    Marks that set it apart, such as those of bold text, would be added here.
    """
    return md


def text_of(reply: Reply) -> str:
    """Return the Markdown of a reply whose buttons cannot be shown.

    Choices are numbered below the text. A question for a yes stays unchanged: it says itself what
    to type. It is recognized by its time limit, which choices do not have.
    """
    buttons = reply.buttons
    has_equal_buttons = len(buttons) > 1 and all(button.style == "default" for button in buttons)
    is_choice = has_equal_buttons and not reply.answer_seconds
    if is_choice or len(buttons) > MAX_BUTTONS:
        return _listed(reply.text, buttons)
    return reply.text


def plain_fields(reply: Reply, media: MediaStore) -> dict[str, Any]:
    """Return the fields of a message without buttons, as Twilio's API takes them.

    They are its text, and its file or a link to a file that WhatsApp refuses. `media` gives the
    link.
    """
    text = ""
    if reply.text or reply.buttons:
        text = whatsapp_text(text_of(reply))
    file = reply.media
    if file is None:
        return {"body": text}

    url = media.url(file.ref, filename=file.filename, mime_type=file.mime_type)
    if is_shown(file):
        fields: dict[str, Any] = {"media_url": [url]}
        if text:
            fields["body"] = text
        return fields

    name = whatsapp_text(as_markdown(file.filename or "file"))
    if file.size:
        name = f"{name} ({readable_size(file.size)})"
    link = f"{name}\n{url}"
    return {"body": f"{text}\n\n{link}" if text else link}


def is_shown(file: Media) -> bool:
    """Return whether WhatsApp accepts the file, by its type and by its size if that is known."""
    if _is_picture(file):
        return True
    return file.mime_type in _FILES and file.size <= FILE_BYTES


def template_fields(reply: Reply, settings: WhatsAppSettings) -> dict[str, str]:
    """Return the fields of a message that is made of an approved template.

    Raises WindowClosed if the reply fits into no template of the settings.
    """
    if reply.media:
        raise WindowClosed("no template takes a file")
    # The template has the buttons for yes and no. A third one, to change values, is left out: the
    # text says that values can be changed.
    yes_and_no = reply.buttons[:2]
    is_question = [button.style for button in yes_and_no] == ["danger", "default"]
    ids: tuple[str, ...] = ()
    if is_question and settings.confirm_template:
        sid = settings.confirm_template
        md = reply.text
        ids = tuple(button.data for button in yes_and_no)
    elif settings.template:
        sid = settings.template
        md = text_of(reply)
    else:
        raise WindowClosed(
            "more than 24 hours since the person last wrote, and no template is configured"
        )
    # WhatsApp takes no line ends and no wide gaps in a variable of a template.
    text = " ".join(whatsapp_text(md).split())
    if utf16_len(text) > TEMPLATE_LIMIT:
        raise WindowClosed(f"more than the {TEMPLATE_LIMIT} characters of a template")
    return Content({}, (text, *ids)).fields(sid)


def length(md: str) -> int:
    """Return the length of a text as Twilio may count it. An emoji can be several characters."""
    return utf16_len(whatsapp_text(md))


def _with_buttons(reply: Reply, empty: Reply) -> Sequence[Reply]:
    """Return the messages of a reply with buttons. The last one has the buttons.

    Twilio may refuse the buttons when they are sent, so the last message has room for a numbered
    list in their place. `empty` is the reply without its content.
    """
    if not are_shown(reply.buttons):
        whole = _listed(reply.text, reply.buttons)
        return [replace(empty, text=text) for text in _texts(whole)]

    def measure(md: str) -> int:
        """Return the length that counts against BUTTONS_LIMIT: with buttons, or with the list."""
        # A text with the list may be as long as TEXT_LIMIT.
        with_list = text_of(replace(reply, text=md))
        if with_list == md:
            return length(md)
        return max(length(md), length(with_list) - (TEXT_LIMIT - BUTTONS_LIMIT))

    texts = [text for text in split(reply.text, BUTTONS_LIMIT, measure) if text.strip()]
    if not texts:
        texts = [as_markdown(joined_labels(reply.buttons)[:BUTTONS_LIMIT])]
    pieces = [replace(empty, text=text) for text in texts]
    pieces[-1] = replace(pieces[-1], buttons=reply.buttons)
    return pieces


def _texts(md: str) -> list[str]:
    """Return a text as the texts of messages without buttons."""
    return [text for text in split(md, TEXT_LIMIT, length) if text.strip()]


def _listed(md: str, buttons: Sequence[Button]) -> str:
    """Return the text with the labels as a numbered list, in Markdown that shows them unchanged."""
    labels = (as_markdown(" ".join(button.label.split())) for button in buttons)
    lines = [f"{number}\\. {label}" for number, label in enumerate(labels, 1)]
    return "\n\n".join(part for part in (md, "\n".join(lines)) if part)


def _is_picture(file: Media) -> bool:
    """Return whether WhatsApp shows a file as a picture, which may have a caption."""
    return file.mime_type in _PICTURES and file.size <= PICTURE_BYTES


@dataclass(frozen=True, slots=True)
class Content:
    """A message as a shape and the values of its variables.

    All texts and ids are values, except the labels of buttons. So few shapes are needed, each of
    which is created at Twilio once.
    """

    #: The shape, as Twilio's API takes it, with variables such as {{1}}.
    types: dict[str, Any]
    #: The values of the variables, in the order of their numbers.
    values: tuple[str, ...]

    @property
    def shape(self) -> str:
        """A name of the shape: the same for all Contents that differ only in their values."""
        return content_digest(json.dumps(self.types))

    def fields(self, sid: str) -> dict[str, str]:
        """Return the fields of a message with this Content, as Twilio's API takes them.

        `sid` is Twilio's id of its shape.
        """
        variables = {str(number): value for number, value in enumerate(self.values, 1)}
        return {"content_sid": sid, "content_variables": json.dumps(variables, ensure_ascii=False)}


def content_of(text: str, buttons: Sequence[Button]) -> Content | None:
    """Return the Content for a WhatsApp text with buttons.

    None if the buttons can only be listed in the text. `text` is in WhatsApp's markup.
    """
    values: list[str] = []

    def variable(value: str) -> str:
        """Return the variable that stands for a value, such as {{1}} for the first one."""
        values.append(value)
        return f"{{{{{len(values)}}}}}"

    body = variable(text)
    if _have_distinct_titles(buttons, MAX_BUTTONS, LABEL_LIMIT):
        actions = [
            {"title": _cut(button.label, LABEL_LIMIT), "id": variable(button.data)}
            for button in buttons
        ]
        return Content({"twilio/quick-reply": {"body": body, "actions": actions}}, tuple(values))
    if not are_shown(buttons):
        return None

    items = []
    for button in buttons:
        item = {"item": variable(_cut(button.label, ITEM_LIMIT)), "id": variable(button.data)}
        if utf16_len(button.label) > ITEM_LIMIT:
            item["description"] = variable(button.label)
        items.append(item)
    types = {"twilio/list-picker": {"body": body, "button": LIST_BUTTON, "items": items}}
    return Content(types, tuple(values))


def are_shown(buttons: Sequence[Button]) -> bool:
    """Return whether the buttons can be shown as buttons, or as a list with whole labels."""
    are_items = all(
        utf16_len(each.label) <= DESCRIPTION_LIMIT and len(each.data) <= ID_LIMIT
        for each in buttons
    )
    is_list = are_items and _have_distinct_titles(buttons, MAX_ITEMS, ITEM_LIMIT)
    return is_list or _have_distinct_titles(buttons, MAX_BUTTONS, LABEL_LIMIT)


class ContentTemplates:
    """The ids and the categories of one account's Contents. Lives as long as its channel.

    Ids are stored in the shared cache, and outlive the process. `clock` returns seconds from any
    beginning.
    """

    def __init__(
        self,
        account_sid: str,
        cache: SharedCache,
        client: PooledSessions[Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._account_sid = account_sid
        self._cache = cache
        self._client = client
        self._clock = clock
        #: The category of a template, and when Twilio is asked for it again by `clock`, by the
        #: template's id.
        self._categories: dict[str, tuple[PriceClass, float]] = {}

    async def sid(self, content: Content) -> str | None:
        """Return Twilio's id of a Content's shape, which is created if needed.

        None if Twilio refuses it. Raises SendError.
        """
        key = self._key(content)
        sid = await asyncio.to_thread(self._cache.get, key)
        if sid:
            return sid

        sid = await self._create(content)
        if sid:
            await asyncio.to_thread(self._cache.put, key, sid)
        return sid

    async def category(self, sid: str) -> PriceClass:
        """Return the category of an approved template, "template" while Twilio does not say.

        Meta may change a category, so each process asks once a day, and sooner after a failure.
        Never raises.
        """
        category, ask_again_at = self._categories.get(sid, ("template", 0.0))
        if self._clock() < ask_again_at:
            return category

        category = "template"
        # The category is for statistics only. A message must be sent without it, too.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CATEGORY_SECONDS):
                url = f"{_CONTENT_URL}/{sid}/ApprovalRequests"
                answer = await self._client.here().request_async("GET", url)
            category = _CATEGORIES.get(json.loads(answer.text)["whatsapp"]["category"], "template")

        pause = KEEP_CATEGORY_SECONDS
        if category == "template":
            pause = ASK_AGAIN_SECONDS
        self._categories[sid] = (category, self._clock() + pause)
        return category

    async def forget(self, content: Content) -> None:
        """Forget the id of a Content that Twilio does not have any more, so that it is created."""
        await asyncio.to_thread(self._cache.put, self._key(content), "")

    def _key(self, content: Content) -> str:
        return f"twilio:content:{self._account_sid}:{content.shape}"

    async def _create(self, content: Content) -> str | None:
        """Create a Content and return its id, None if Twilio refuses it.

        Raises Unreachable: creating it again does no harm, since nothing was sent.
        """
        # Twilio requires a sample of each variable.
        numbers = range(1, len(content.values) + 1)
        samples = {str(number): f"sample{number}" for number in numbers}
        resource = {
            "friendly_name": f"sayso_{content.shape[:12]}",
            "language": "en",
            "variables": samples,
            "types": content.types,
        }
        try:
            with translated():
                answer = await self._client.here().request_async(
                    "POST", _CONTENT_URL, headers={"Content-Type": JSON}, data=resource
                )
        except DeliveryUncertain as exc:
            raise Unreachable("no answer from Twilio's Content API, nothing was sent") from exc
        if answer.status_code >= 500:
            raise Unreachable(
                f"Twilio's Content API answered {answer.status_code}, nothing was sent"
            )
        if answer.status_code in (200, 201):
            return str(json.loads(answer.text)["sid"])
        return None


def _have_distinct_titles(buttons: Sequence[Button], most: int, limit: int) -> bool:
    """Return whether 1 to `most` buttons have labels that differ once they are cut to `limit`.

    Twilio refuses two equal titles, and people would confuse them.
    """
    titles = {_cut(button.label, limit) for button in buttons if button.label.strip()}
    return 1 <= len(buttons) == len(titles) <= most


def _cut(label: str, limit: int) -> str:
    """Return a label with at most `limit` UTF-16 units. A longer one ends in an ellipsis."""
    if utf16_len(label) <= limit:
        return label
    cut = label[: limit - 1]
    while utf16_len(cut) >= limit:
        cut = cut[:-1]
    return f"{cut}…"
