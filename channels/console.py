"""ConsoleChannel: the bot on a web page of its own, for a laptop or behind a password."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeSerializer
from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.base import BadHook, FetchError, Forbidden, MediaSource, Pace, Unreachable
from channels.feed import Entry, Feed, FeedError
from channels.markup import split
from channels.types import (
    Conversation,
    Delivery,
    Hook,
    HookAnswer,
    Media,
    Receipt,
    Received,
    Reply,
    Tap,
    Turn,
    storable,
)

#: The longest text a person may send, in characters.
MAX_TEXT_CHARS = 4000
#: The longest text in one bubble, in characters.
MAX_PIECE_CHARS = 16_000
#: The largest hook body, in bytes: 4,000 characters of JSON escapes fit.
MAX_BODY_BYTES = 64 * 1024
#: The longest button data, in bytes (as in `channels.types.Button`).
MAX_TAP_BYTES = 64
#: The header that only our page's script can set: another site's form cannot.
PAGE_HEADER = "x-sayso-console"

#: Channel names that are paths of the pages already.
RESERVED_NAMES = frozenset({"events", "poll", "static"})

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LINK_SCHEMES = frozenset({"http", "https", "mailto", "tel"})

_log = logging.getLogger(__name__)


class ConsoleChannel:
    """A conversation per browser, kept in a feed. One instance serves a whole process, from any thread."""

    def __init__(
        self,
        name: str,
        *,
        feed: Feed,
        media: MediaSource,
        keys: Sequence[str],
        password: str = "",
        title: str = "Sayso",
        suggestions: Sequence[str] = (),
    ) -> None:
        if not keys:
            raise ValueError("keys is empty: give at least one secret to sign console sessions with")
        self.name = name
        self.feed = feed
        self.title = title
        self.suggestions = tuple(suggestions)
        self._media = media
        self._password = password
        # The password is in the salt: changing it ends every session.
        salt = f"sayso.console.{name}.{hashlib.sha256(password.encode()).hexdigest()}"
        self._sessions = URLSafeSerializer(list(reversed(keys)), salt=salt)  # itsdangerous signs with the last

    def receive(self, hook: Hook) -> Received:
        """Verify what the page posted, then read it. Raises Forbidden or BadHook."""
        from werkzeug.http import parse_cookie  # only the web hears hooks, and Flask has loaded it there

        if not hook.header(PAGE_HEADER):
            raise Forbidden(f"header {PAGE_HEADER!r} is missing: only the console page may post here")
        if not _same_origin(hook):
            raise Forbidden(f"origin {hook.header('origin')!r} is not this server: open the console page itself")
        try:
            user_id = self.user_of(parse_cookie(hook.header("cookie")).get(self.cookie, ""))
        except UnicodeDecodeError:
            user_id = ""
        if not user_id:
            raise Forbidden("no valid console session: reload the page")
        turn = replace(self._turn(user_id, _json_object(hook.body)), language=_language(hook))
        return Received(turns=(turn,), answer=HookAnswer(200, '{"ok":true}', "application/json"))

    def pace(self, conversation: Conversation) -> Pace:
        """As fast as it goes: the feed is ours."""
        return Pace()

    def pieces(self, reply: Reply) -> Sequence[Reply]:
        """One bubble, or several when the text is too long for one: the file on the first, buttons on the last."""
        texts = split(reply.text, MAX_PIECE_CHARS) or [""]
        bubbles = [Reply(text=text) for text in texts]
        bubbles[0] = replace(bubbles[0], media=reply.media)
        bubbles[-1] = replace(bubbles[-1], buttons=reply.buttons)
        return bubbles

    async def attend(self, turn: Turn) -> float:
        """Show what the user did, for other tabs and for a reload, and that work on it has begun. Never raises."""
        conversation_id = turn.conversation.id
        try:
            await asyncio.to_thread(self.feed.append, conversation_id, _act(turn))
            await asyncio.to_thread(self.feed.append, conversation_id, {"type": "typing"})
        except FeedError:
            _log.warning("console_attend_failed", extra={"conversation": conversation_id}, exc_info=True)
        return 0.0  # the page shows it until the next bubble

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Nothing yet."""
        return ""

    async def fetch(self, media: Media) -> bytes:
        """Always raises FetchError: the page sends words and taps only."""
        raise FetchError("the console has no inbound files")

    async def send(self, delivery: Delivery) -> Receipt:
        """Append one bubble. The page shows a delivery id once, so trying again is always safe."""
        try:
            entry_id = await asyncio.to_thread(self.feed.append, delivery.conversation.id, _bubble(delivery))
        except FeedError as exc:
            raise Unreachable(str(exc)) from exc
        return Receipt(message_id=entry_id)

    @property
    def cookie(self) -> str:
        """The name of the session cookie."""
        return f"sayso_console_{self.name}"

    def new_session(self) -> str:
        """A signed cookie for somebody we have not seen before."""
        return str(self._sessions.dumps(secrets.token_hex(16)))

    def user_of(self, cookie: str) -> str:
        """The user id inside a session cookie, "" unless we signed it."""
        try:
            return str(self._sessions.loads(cookie))
        except BadData:
            return ""

    def conversation(self, user_id: str) -> Conversation:
        """Where this user's replies go."""
        return Conversation(channel=self.name, chat=user_id)

    def entries(self, user_id: str, after: str, block_ms: int = 0) -> list[tuple[str, Entry]]:
        """The feed as the page shows it. Raises FeedError."""
        entries = self.feed.read(self.conversation(user_id).id, after, block_ms)
        return [(entry_id, self._with_link(entry)) for entry_id, entry in entries]

    @property
    def is_open(self) -> bool:
        """Whether there is no password: then only this machine may see the page."""
        return not self._password

    def knows(self, password: str) -> bool:
        """Whether this is the password."""
        return hmac.compare_digest(password.encode(), self._password.encode())

    def _turn(self, user_id: str, body: dict[str, Any]) -> Turn:
        client_id = body.get("id")
        if not isinstance(client_id, str) or not _CLIENT_ID.fullmatch(client_id):
            raise BadHook(f"id is {client_id!r}: send 1 to 64 letters, digits, '-' or '_'")
        turn = Turn(
            event_id=f"{user_id}:{client_id}",
            conversation=self.conversation(user_id),
            user_id=user_id,
            message_id=client_id,
        )
        match body:
            case {"text": str(text), **rest} if "tap" not in rest:
                return replace(turn, text=_checked_text(text))
            case {"tap": str(data), **rest} if "text" not in rest:
                return replace(turn, tap=Tap(_checked_tap(data), callback_id=client_id))
        raise BadHook(f"keys {sorted(body)!r}: send 'id' with either 'text' or 'tap', both strings")

    def _with_link(self, entry: Entry) -> Entry:
        """The entry with a fresh link to its file: links die within the hour, the feed lives for days."""
        media = entry.get("media")
        if not media:
            return entry
        url = urlsplit(self._media.url(media["ref"], filename=media["filename"], mime_type=media["mime"]))
        return {**entry, "media": {"url": url.path, "mime": media["mime"], "filename": media["filename"]}}


def _same_origin(hook: Hook) -> bool:
    """Whether the page that posts is ours. Browsers send Origin with every POST; other clients may not."""
    origin = hook.header("origin")
    return not origin or origin.partition("://")[2] in (hook.header("host"), urlsplit(hook.url).netloc)


def _language(hook: Hook) -> str:
    """The language the browser asks for first."""
    return re.split("[,;]", hook.header("accept-language"), maxsplit=1)[0].strip()


def _json_object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise BadHook(f"the body has {len(body)} bytes: send at most {MAX_BODY_BYTES}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadHook("the body is not JSON: send an object with 'id' and 'text' or 'tap'") from exc
    if not isinstance(value, dict):
        raise BadHook(f"the body is a {type(value).__name__}: send an object with 'id' and 'text' or 'tap'")
    return value


def _checked_text(text: str) -> str:
    if not text.strip() or len(text) > MAX_TEXT_CHARS:
        raise BadHook(f"text has {len(text)} characters: send 1 to {MAX_TEXT_CHARS}, not only spaces")
    return text


def _checked_tap(data: str) -> str:
    clean = storable(data)
    if not 0 < len(clean.encode()) <= MAX_TAP_BYTES:
        raise BadHook(f"tap has {len(data)} characters: send the button's own data, 1 to {MAX_TAP_BYTES} bytes")
    return clean


def _act(turn: Turn) -> Entry:
    """What the user did, as a feed entry. The page knows its own act by the event id."""
    if turn.tap:
        return {"type": "tap", "event": turn.message_id, "data": turn.tap.data}
    return {"type": "user", "event": turn.message_id, "text": turn.text}


def _bubble(delivery: Delivery) -> Entry:
    reply = delivery.reply
    media = reply.media
    return {
        "type": "bubble",
        "delivery": delivery.id,
        "html": to_html(reply.text),
        "text": reply.text,
        "buttons": [asdict(button) for button in reply.buttons],
        "media": media and {"ref": media.ref, "mime": media.mime_type, "filename": media.filename},
    }


def to_html(markdown: str) -> str:
    """Markdown as HTML that cannot run anything: no raw HTML, no images, links to the web, mail and phones only."""
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    tokens = parser.disable("image").parse(markdown)
    for token in tokens:
        _align_by_class(token)
        for inline in token.children or ():
            _guard_link(inline)
    return str(parser.renderer.render(tokens, parser.options, {}))


def _guard_link(token: Token) -> None:
    if token.type != "link_open":
        return
    if str(token.attrs.get("href", "")).partition(":")[0].lower() in _LINK_SCHEMES:
        token.attrs |= {"rel": "noopener", "target": "_blank"}
    else:
        token.attrs = {}


def _align_by_class(token: Token) -> None:
    """Table cells come with a style attribute, which our Content-Security-Policy forbids."""
    style = token.attrs.pop("style", "")
    if style:
        token.attrs["class"] = str(style).rpartition(":")[2]
