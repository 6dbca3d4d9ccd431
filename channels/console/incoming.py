"""What the console page sends: messages, taps and forms, and the files that they name.

A file is uploaded first, in a separate request, and gets a signed name. The message then names it.
Requests are taken only from the page itself (`is_same_origin`).
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
from sayso.channels.console.store import ENTRY_ID, time_of
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

#: The ids that the page gives to messages and taps. A message that is sent twice has the same id.
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Types of text files by their ending, for browsers that do not name the type, or name that of a
#: spreadsheet.
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
    """Parse a message, a tap or a form that a person posted.

    * `find`: returns the person's conversation with this id. Raises UnknownChat.
    * `files`: the person's uploads.
    * `user_name`: what the person is called, "" if unknown.

    Raises BadHook.
    """
    if len(hook.body) > MAX_PAGE_MESSAGE_BYTES:
        raise BadHook(f"the body has {len(hook.body)} bytes: send at most {MAX_PAGE_MESSAGE_BYTES}")
    try:
        post = json.loads(hook.body)
    except (ValueError, RecursionError) as exc:
        raise BadHook("the body is not JSON: send an object with 'id' and 'text' or 'tap'") from exc
    if not isinstance(post, dict):
        raise BadHook(
            f"the body is a {type(post).__name__}: send an object with 'id' and 'text' or 'tap'"
        )
    chat_id = post.pop("chat", "")
    if not isinstance(chat_id, str):
        raise BadHook(f"chat is a {type(chat_id).__name__}: send the id of a conversation")

    turn = _turn(post, find(chat_id), files)
    language = re.split("[,;]", hook.header("accept-language"), maxsplit=1)[0].strip()
    turn = replace(turn, language=language, user_name=user_name)
    return Received(turns=(turn,), answer=WebhookResponse(200, '{"ok":true}', "application/json"))


def _turn(post: dict[str, Any], conversation: Conversation, files: ConsoleFiles) -> Turn:
    """Return the turn of a message, a tap or a form. Raises BadHook."""
    client_id = post.get("id")
    if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
        raise BadHook(f"id is {client_id!r}: send 1 to 64 letters, digits, '-' or '_'")

    # Right after the last entry that the person saw: a yes must not answer a question that the feed
    # got later.
    last_seen_id = _checked_entry_id(post.get("seen", ""), "seen")
    written_at = time_of(last_seen_id) + 0.001 if last_seen_id else 0.0
    turn = Turn(
        event_id=client_id,
        conversation=conversation,
        user_id=conversation.chat,
        message_id=client_id,
        written_at=written_at,
    )
    match post:
        case {"text": str(text), **rest} if "tap" not in rest:
            return _with_text(turn, text, post.get("files", []), files)
        case {"tap": str(data), "form": dict(values), **rest} if _has_no_text(rest):
            form = _checked_values(values)
            return replace(_with_tap(turn, data, post), kind="form", form=form)
        case {"tap": str(data), **rest} if _has_no_text(rest) and "form" not in rest:
            return _with_tap(turn, data, post)
    raise BadHook(
        f"keys {sorted(post)!r}: send 'id' with either 'text' (and 'files') or 'tap' (and 'form')"
    )


def _with_text(turn: Turn, text: str, names: object, files: ConsoleFiles) -> Turn:
    """Return the turn of a message. `names` are the signed names of its files. Raises BadHook."""
    media = files.find(turn.user_id, names)
    if not (text.strip() or media) or len(text) > MAX_PAGE_TEXT_CHARS:
        raise BadHook(
            f"text has {len(text)} characters: send 1 to {MAX_PAGE_TEXT_CHARS}, not only spaces"
        )
    return replace(turn, text=text, media=media)


def _has_no_text(rest: dict[str, Any]) -> bool:
    """Return whether a post has neither a text nor files."""
    return rest.keys().isdisjoint({"text", "files"})


def _with_tap(turn: Turn, data: str, post: dict[str, Any]) -> Turn:
    """Return the turn of a tapped button. `data` is the button's. Raises BadHook."""
    message_id = _checked_entry_id(post.get("message", ""), "message")
    clean = storable(data)
    if not 0 < len(clean.encode()) <= MAX_TAP_BYTES:
        raise BadHook(
            f"tap has {len(data)} characters: "
            f"send the button's own data, 1 to {MAX_TAP_BYTES} bytes"
        )
    return replace(turn, tap=Tap(clean, callback_id=turn.event_id), message_id=message_id)


def _checked_values(values: dict[str, Any]) -> dict[str, str]:
    """Return the values of a form, by the name of the field. Raises BadHook for other types."""
    are_texts = all(isinstance(value, str) for value in values.values())
    are_named = all(len(name) <= MAX_VALUE_NAME_CHARS for name in values)
    if not (are_texts and are_named) or len(values) > MAX_PAGE_FORM_VALUES:
        raise BadHook(
            f"form must be at most {MAX_PAGE_FORM_VALUES} texts by the names of their fields"
        )
    return values


def _checked_entry_id(given: object, key: str) -> str:
    """Return an id of an entry that the page sent, "" for none. Raises BadHook.

    `key` is where it was sent: `message` is the message whose button was tapped, `seen` the last
    entry that the person saw.
    """
    if not isinstance(given, str) or not (given == "" or ENTRY_ID.fullmatch(given)):
        raise BadHook(f"{key} is not the id of an entry: send one that came from the feed")
    return given


def is_encrypted(hook: WebhookRequest) -> bool:
    """Return whether the browser came over https, to us or to the proxy before us."""
    address = urlsplit(hook.url)
    if hook.header("x-forwarded-proto").rpartition(",")[2].strip() == "https":
        return True
    return address.scheme == "https" and hook.header("host") == address.netloc


def is_same_origin(hook: WebhookRequest) -> bool:
    """Return whether the request comes from this page, and not from a page of another site.

    Browsers send Origin with every POST; other clients may not.
    """
    origin = hook.header("origin")
    if not origin:
        return True
    # "" for the origin "null", which a sandboxed page has.
    site = origin.partition("://")[2]
    return site != "" and site in (hook.header("host"), urlsplit(hook.url).netloc)


def cookie_of(hook: WebhookRequest, name: str) -> str:
    """Return the value of a cookie, "" if there is none or the header is malformed."""
    # Here, not above: workers load this module too, and Flask's library takes long to import.
    from werkzeug.http import parse_cookie

    try:
        return parse_cookie(hook.header("cookie")).get(name, "")
    except UnicodeError:
        return ""


class NotTaken(BadHook):
    """Raised for a file of a type that the bot does not accept."""


class ConsoleFiles:
    """The files that people upload on one console. Lives as long as its channel.

    A message refers to a file by a signed name that only its sender can use. `channel` is the
    channel's name, and `names` signs the names.
    """

    def __init__(self, channel: str, media: MediaStore, names: URLSafeSerializer) -> None:
        self._channel = channel
        self._media = media
        self._names = names

    def save(
        self, user_id: str, content: bytes | BinaryIO, mime_type: str, filename: str
    ) -> tuple[str, Media]:
        """Store a file that is not empty. Return its signed name for the message, and the file.

        `mime_type` and `filename` are what the browser says. Raises NotTaken, TooLarge, NoRoom and
        OSError.
        """
        kind = settle_type(content, mime_type)
        # No bytes prove that a file is a text, so its name may say so.
        if kind == UNKNOWN_TYPE:
            ending = filename.rpartition(".")[2].lower()
            kind = settle_type(content, _ENDINGS.get(ending, ""))
        if kind == UNKNOWN_TYPE:
            raise NotTaken(
                "the bot does not accept this file: "
                "send a picture, sound, video, PDF, Office or text file"
            )
        owner = owner_of(self._channel, user_id)
        media = self._media.put(content, mime_type=kind, filename=filename, owner=owner)
        content_of_name = [user_id, media.ref, media.mime_type, media.filename, media.size]
        return str(self._names.dumps(content_of_name)), media

    def find(self, user_id: str, names: object) -> tuple[Media, ...]:
        """Return the files that a person's message names. `copy` gets their contents.

        Raises BadHook for anything else than signed names of this person's files.
        """
        if not isinstance(names, list) or len(names) > MAX_MESSAGE_FILES:
            raise BadHook(f"files must be a list of at most {MAX_MESSAGE_FILES} names")
        media = []
        for name in names:
            text = name if isinstance(name, str) else ""
            try:
                owner, ref, mime_type, filename, size = self._names.loads(text)
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
