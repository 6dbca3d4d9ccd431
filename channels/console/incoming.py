"""What the console page sends: messages, taps, and files that are uploaded before.

Requests come from this page alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeSerializer

from sayso.channels.base import BadHook, FetchError, MediaStore
from sayso.channels.console.store import MESSAGE_ID, time_of
from sayso.channels.inbound_limits import (
    MAX_MESSAGE_FILES,
    MAX_PAGE_FORM_VALUES,
    MAX_PAGE_MESSAGE_BYTES,
    MAX_PAGE_TEXT_CHARS,
    MAX_TAP_BYTES,
    MAX_VALUE_NAME_CHARS,
)
from sayso.channels.media_store import UNKNOWN_TYPE, settle_type
from sayso.channels.types import (
    Conversation,
    Media,
    Received,
    Tap,
    Turn,
    WebhookRequest,
    WebhookResponse,
    owner_of,
    storable,
)

#: The ids that the page gives to messages and taps.
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Types of text files by their ending, for browsers that do not name a
#: type or name that of a spreadsheet.
_ENDINGS = {
    "csv": "text/csv",
    "ics": "text/calendar",
    "json": "application/json",
    "log": "text/plain",
    "md": "text/markdown",
    "txt": "text/plain",
    "vcf": "text/vcard",
}


class UnknownChat(BadHook):
    """Raised for a conversation that the person does not have, or has deleted."""


def parse(
    hook: WebhookRequest,
    find: Callable[[str], Conversation],
    files: ConsoleFiles,
    *,
    user_name: str = "",
) -> Received:
    """Parse a message or tap that a user posted. `find` returns their conversation of an id.

    Raises BadHook.
    """
    if len(hook.body) > MAX_PAGE_MESSAGE_BYTES:
        raise BadHook(f"the body has {len(hook.body)} bytes: send at most {MAX_PAGE_MESSAGE_BYTES}")
    try:
        posted = json.loads(hook.body)
    except (ValueError, RecursionError) as exc:
        raise BadHook("the body is not JSON: send an object with 'id' and 'text' or 'tap'") from exc
    if not isinstance(posted, dict):
        raise BadHook(
            f"the body is a {type(posted).__name__}: send an object with 'id' and 'text' or 'tap'"
        )
    chat_id = posted.pop("chat", "")
    if not isinstance(chat_id, str):
        raise BadHook(f"chat is a {type(chat_id).__name__}: send the id of a conversation")
    turn = _turn(posted, find(chat_id), files)
    language = re.split("[,;]", hook.header("accept-language"), maxsplit=1)[0].strip()
    answer = WebhookResponse(200, '{"ok":true}', "application/json")
    return Received(turns=(replace(turn, language=language, user_name=user_name),), answer=answer)


def _turn(posted: dict[str, Any], conversation: Conversation, files: ConsoleFiles) -> Turn:
    user_id = conversation.chat
    client_id = posted.get("id")
    if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
        raise BadHook(f"id is {client_id!r}: send 1 to 64 letters, digits, '-' or '_'")
    seen = _checked_entry_id(posted.get("seen", ""), "seen")
    turn = Turn(
        event_id=client_id,
        conversation=conversation,
        user_id=user_id,
        message_id=client_id,
        # After the last entry that the author saw, so that the message answers no later question.
        written_at=time_of(seen) + 0.001 if seen else 0.0,
    )
    match posted:
        case {"text": str(text), **rest} if "tap" not in rest:
            media = files.named(user_id, posted.get("files", []))
            if not (text.strip() or media) or len(text) > MAX_PAGE_TEXT_CHARS:
                raise BadHook(
                    f"text has {len(text)} characters: send 1 to {MAX_PAGE_TEXT_CHARS}, not only spaces"
                )
            return replace(turn, text=text, media=media)
        case {"form": dict(values), "tap": str()}:
            form = _checked_values(values)
            tapped = _turn(
                {key: value for key, value in posted.items() if key != "form"}, conversation, files
            )
            return replace(tapped, kind="form", form=form)
        case {"tap": str(data), **rest} if rest.keys().isdisjoint({"text", "files", "form"}):
            message_id = _checked_entry_id(posted.get("message", ""), "message")
            clean = storable(data)
            if not 0 < len(clean.encode()) <= MAX_TAP_BYTES:
                raise BadHook(
                    f"tap has {len(data)} characters: send the button's own data, 1 to {MAX_TAP_BYTES} bytes"
                )
            return replace(turn, tap=Tap(clean, callback_id=client_id), message_id=message_id)
    raise BadHook(
        f"keys {sorted(posted)!r}: send 'id' with either 'text' (and 'files') or 'tap' (and 'form')"
    )


def _checked_values(values: dict[str, Any]) -> dict[str, str]:
    """Return what the page sent as `form`: what was filled in, by the name of the field."""
    are_texts = all(isinstance(value, str) for value in values.values())
    are_named = all(len(name) <= MAX_VALUE_NAME_CHARS for name in values)
    if not (are_texts and are_named) or len(values) > MAX_PAGE_FORM_VALUES:
        raise BadHook(
            f"form must be at most {MAX_PAGE_FORM_VALUES} texts by the names of their fields"
        )
    return values


def _checked_entry_id(given: object, key: str) -> str:
    """Return the entry id that the page sent as `message` or as `seen`.

    The first is the message whose button was tapped, the second the last one seen.
    """
    if not isinstance(given, str) or not (given == "" or MESSAGE_ID.fullmatch(given)):
        raise BadHook(f"{key} is not the id of an entry: send one that came from the feed")
    return given


def is_encrypted(hook: WebhookRequest) -> bool:
    """Return whether the browser came over https, to us or to the proxy before us."""
    address = urlsplit(hook.url)
    if hook.header("x-forwarded-proto").rpartition(",")[2].strip() == "https":
        return True
    return address.scheme == "https" and hook.header("host") == address.netloc


def is_same_origin(hook: WebhookRequest) -> bool:
    """Return whether the request comes from this page.

    Browsers send Origin with every POST; other clients may not.
    """
    origin = hook.header("origin")
    site = origin.partition("://")[2]  # "" for an origin of "null"
    return not origin or (site != "" and site in (hook.header("host"), urlsplit(hook.url).netloc))


def cookie_of(hook: WebhookRequest, name: str) -> str:
    """Return the value of a cookie, "" if there is none or the header is malformed."""
    # Only the web process, which has loaded Flask, receives requests.
    from werkzeug.http import (
        parse_cookie,
    )

    try:
        return parse_cookie(hook.header("cookie")).get(name, "")
    except UnicodeError:
        return ""


class NotTaken(BadHook):
    """Raised for a file of a type that the bot does not accept."""


class ConsoleFiles:
    """The uploaded files of one console.

    A message refers to them by signed names that only their sender can use.
    """

    def __init__(self, channel: str, media: MediaStore, names: URLSafeSerializer) -> None:
        self._channel = channel
        self._media = media
        self._names = names

    def keep(
        self, user_id: str, content: bytes | BinaryIO, mime_type: str, filename: str
    ) -> tuple[str, Media]:
        """Store a file that is not empty. Return its signed name for the message.

        Raises NotTaken, TooLarge, NoRoom, OSError.
        """
        kind = settle_type(content, mime_type)
        if kind == UNKNOWN_TYPE:  # text files have no magic bytes
            kind = settle_type(content, _ENDINGS.get(filename.rpartition(".")[2].lower(), ""))
        if kind == UNKNOWN_TYPE:
            raise NotTaken(
                "the bot does not accept this file: send a picture, sound, video, PDF, Office or text file"
            )
        owner = owner_of(self._channel, user_id)
        media = self._media.put(content, mime_type=kind, filename=filename, owner=owner)
        return str(
            self._names.dumps([user_id, media.ref, media.mime_type, media.filename, media.size])
        ), media

    def named(self, user_id: str, names: object) -> tuple[Media, ...]:
        """Return the files that a user's message names, to be fetched by `copy`. Raises BadHook."""
        if not isinstance(names, list) or len(names) > MAX_MESSAGE_FILES:
            raise BadHook(f"files must be a list of at most {MAX_MESSAGE_FILES} names")
        media = []
        for name in names:
            try:
                owner, ref, mime_type, filename, size = self._names.loads(
                    name if isinstance(name, str) else ""
                )
            except (BadData, UnicodeError) as exc:
                raise BadHook(
                    "files has an unknown name: send the name that the upload returned"
                ) from exc
            if owner != user_id:
                raise BadHook("files has a name that belongs to another user")
            media.append(Media(ref, mime_type, filename, size))
        return tuple(media)

    def copy(self, media: Media, file: BinaryIO) -> None:
        """Copy a stored file into an open file. Raises FetchError and OSError."""
        try:
            stored = self._media.open(media.ref)
        except KeyError:
            raise FetchError("the file is gone from the media store") from None
        with stored:
            shutil.copyfileobj(stored, file)
