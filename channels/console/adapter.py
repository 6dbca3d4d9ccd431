"""ConsoleChannel: a chat page in the browser, for this machine only or behind a password."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeSerializer, URLSafeTimedSerializer

from sayso.channels.base import AdapterDeps, BadHook, Forbidden, MediaStore, RateLimit, Unreachable
from sayso.channels.console.feed import CLEAR, MESSAGE_ID, Feed, FeedEntry, FeedError, RedisFeed, time_of
from sayso.channels.console.logins import SESSION_SECONDS, Logins, MemoryLogins, RedisLogins
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.uploads import ConsoleFiles
from sayso.channels.markdown import plain
from sayso.channels.markdown.html import page_html
from sayso.channels.markdown.split import split
from sayso.channels.types import (
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Tap,
    Turn,
    WebhookRequest,
    WebhookResponse,
    random_id,
    storable,
)

#: The longest text a person may send, in characters.
MAX_TEXT_CHARS = 4000
#: The longest text in one bubble, in characters.
MAX_PIECE_CHARS = 16_000
#: The largest body of a request, in bytes: 4,000 characters of JSON escapes fit.
MAX_BODY_BYTES = 64 * 1024
#: The longest button data, in bytes (as in `sayso.channels.types.Button`).
MAX_TAP_BYTES = 64
#: Seconds between two drafts of one answer.
DRAFT_GAP = 0.25
#: The command behind the page's New chat button.
RESET = "/reset"
#: The header that the page's script sets. A form of another site cannot set it.
PAGE_HEADER = "x-sayso-console"
#: How many seconds Redis may take to answer: more than a read of the feed blocks.
FEED_SECONDS = 4.0
#: The prefix of cookies that, over https, only this very host can set (RFC 6265bis, 4.1.3.2).
_HOST = "__Host-"
#: The ids that the page gives to messages and taps.
CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger(__name__)


class ConsoleChannel:
    """One conversation per browser, stored in a feed. One instance serves a whole process, from any thread."""

    def __init__(
        self,
        name: str,
        *,
        feed: Feed,
        media: MediaStore,
        keys: Sequence[str],
        password: str = "",
        title: str = "Sayso",
        suggestions: Sequence[str] = (),
        logins: Logins | None = None,
        commands: bool = True,
    ) -> None:
        if not keys:
            raise ValueError("keys is empty: give at least one secret to sign console sessions with")
        self.name = name
        self.feed = feed
        self.title = title
        self.suggestions = tuple(suggestions)
        #: Whether the bot itself answers /reset, which the page's New chat button sends.
        self.commands = commands
        self._media = media
        self._password = password
        # With the password in the salt, a new password ends every session.
        salt = f"sayso.console.{name}.{hashlib.sha256(password.encode()).hexdigest()}"
        self._identity_cookies = URLSafeSerializer(
            list(reversed(keys)), salt=salt
        )  # itsdangerous signs with the last key
        self._login_cookies = URLSafeTimedSerializer(list(reversed(keys)), salt=f"{salt}.login")
        self.logins = logins or MemoryLogins()
        self.files = ConsoleFiles(name, media, keys, salt)

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse a message or tap that the page posted. Raises Forbidden or BadHook."""
        language = re.split("[,;]", hook.header("accept-language"), maxsplit=1)[0].strip()
        turn = replace(self._turn(self.sender(hook), _json_object(hook.body)), language=language)
        return Received(turns=(turn,), answer=WebhookResponse(200, '{"ok":true}', "application/json"))

    def sender(self, hook: WebhookRequest) -> str:
        """Return the id of the user whose page posted the request. Raises Forbidden."""
        if not hook.header(PAGE_HEADER):
            raise Forbidden(f"header {PAGE_HEADER!r} is missing: only the console page may post here")
        if not is_same_origin(hook):
            raise Forbidden(f"origin {hook.header('origin')!r} is not this server: open the console page itself")
        user_id = self.visitor(hook)
        if not user_id:
            raise Forbidden("no valid console session: reload the page")
        return user_id

    def visitor(self, hook: WebhookRequest) -> str:
        """Return the user id of a browser that may use the page, "" for any other. Raises LoginsDown.

        If there is a password, the browser must be logged in.
        """
        user_id = self.user_of(_cookie(hook, self.cookie_for(hook)))
        return user_id if user_id and (self.is_open or self._session(hook)[1:] == [user_id]) else ""

    def log_in(self, user_id: str) -> str:
        """Return the cookie of a new session of this user."""
        return str(self._login_cookies.dumps([random_id(), user_id]))

    def log_out(self, hook: WebhookRequest) -> None:
        """End the session of a browser, also for copies of its cookie. Raises LoginsDown."""
        session = self._session(hook)
        if session:
            self.logins.end(session[0])

    def _session(self, hook: WebhookRequest) -> list[str]:
        """Return session id and user id of a browser that is logged in, else nothing."""
        try:
            session, user_id = self._login_cookies.loads(
                _cookie(hook, self.login_cookie_for(hook)), max_age=SESSION_SECONDS
            )
        except (BadData, ValueError, TypeError):
            return []
        return [] if self.logins.is_ended(session) else [session, user_id]

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit except for drafts: people cannot read faster than four a second."""
        return RateLimit(draft_gap=DRAFT_GAP)

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Return one bubble, or several for a long text: the file is on the first one, buttons are on the last one."""
        # The page shows the next message right below, so an edited question need not repeat the outcome.
        texts = split(reply.outcome_elsewhere or reply.text, MAX_PIECE_CHARS)
        if not texts and (reply.buttons or reply.media):
            texts = [""]
        bubbles = [Reply(text, language=reply.language, optional=reply.optional) for text in texts]
        if bubbles:
            bubbles[0] = replace(bubbles[0], media=reply.media, edits=reply.edits)
            bubbles[-1] = replace(bubbles[-1], buttons=reply.buttons, answer_seconds=reply.answer_seconds)
        return tuple(bubbles)

    async def show_typing(self, turn: Turn) -> float:
        """Show the message or tap in other tabs and after a reload, and the typing indicator. Never raises."""
        conversation_id = turn.conversation.id
        try:
            await asyncio.to_thread(self.feed.append, conversation_id, self._user_entry(turn))
            await asyncio.to_thread(self.feed.append, conversation_id, {"type": "typing"})
        except FeedError:
            _log.warning("console.typing_failed", extra={"conversation": conversation_id}, exc_info=True)
        return 0.0  # the page shows the indicator until the next bubble

    def _user_entry(self, turn: Turn) -> FeedEntry:
        """Return the entry of a message or tap. The page recognizes its own by the event id."""
        if turn.tap:
            return {"type": "tap", "event": turn.tap.callback_id, "data": turn.tap.data}
        if self.commands and turn.decides and turn.text.casefold().split()[:1] == [RESET]:
            return {"type": CLEAR, "event": turn.message_id}
        files = {"files": [_file_entry(media) for media in turn.media]} if turn.media else {}
        return {"type": "user", "event": turn.message_id, "text": turn.text, **files}

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Show the unfinished answer. It replaces the last draft in the feed. Raises Unreachable."""
        entry = {"type": "draft", "html": page_html(text[:MAX_PIECE_CHARS])}
        return await self._append(turn.conversation.id, entry, shown)

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Copy a file that the page has uploaded before. Raises FetchError."""
        await asyncio.to_thread(self.files.copy, media, file)

    async def send(self, delivery: Delivery) -> Receipt:
        """Append one bubble, or the edit of an earlier one. Raises Unreachable.

        The page shows each delivery id once, so sending again is always safe.
        """
        conversation_id, reply = delivery.conversation.id, delivery.reply
        edited_type = await self._type_of(conversation_id, reply.edits) if reply.edits else ""
        if edited_type == "bubble":
            await self._append(conversation_id, {**_bubble(delivery), "type": "edit", "of": reply.edits})
            return Receipt(reply.edits)
        if reply.edits and reply.optional and edited_type != "draft":
            return Receipt("")
        replaces = reply.edits if edited_type == "draft" else ""
        entry_id = await self._append(conversation_id, _bubble(delivery), replaces)
        return Receipt(entry_id, written_at=time_of(entry_id))

    async def _append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        try:
            return await asyncio.to_thread(self.feed.append, conversation_id, entry, replaces)
        except FeedError as exc:
            raise Unreachable(str(exc)) from exc

    async def _type_of(self, conversation_id: str, entry_id: str) -> str:
        """Return the type of an entry, "" if the feed does not have it any more."""
        try:
            entries = await asyncio.to_thread(self.feed.read, conversation_id, "", 0)
        except FeedError as exc:
            raise Unreachable(str(exc)) from exc
        return next((str(entry["type"]) for each_id, entry in entries if each_id == entry_id), "")

    @property
    def cookie(self) -> str:
        """The name of the cookie that identifies a browser, over plain http."""
        return f"sayso_console_{self.name}"

    def cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that identifies a browser. Over https no other host can set it."""
        return f"{_HOST if is_encrypted(hook) else ''}{self.cookie}"

    def login_cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that proves a log-in."""
        return f"{_HOST if is_encrypted(hook) else ''}sayso_login_{self.name}"

    def new_session(self) -> str:
        """Return a signed cookie for a new browser."""
        return str(self._identity_cookies.dumps(random_id()))

    def user_of(self, cookie: str) -> str:
        """Return the user id in a cookie of `new_session`, "" for any other cookie."""
        try:
            return str(self._identity_cookies.loads(cookie))
        except BadData:
            return ""

    def conversation(self, user_id: str) -> Conversation:
        """Return the conversation of a user."""
        return Conversation(channel=self.name, chat=user_id)

    def event_id(self, user_id: str, client_id: str) -> str:
        """Return the event id of a message or tap with the page's own id."""
        return f"{user_id}:{client_id}"

    def entries(self, user_id: str, after: str, block_ms: int = 0) -> list[tuple[str, FeedEntry]]:
        """Return the feed as the page shows it. Raises FeedError."""
        entries = self.feed.read(self.conversation(user_id).id, after, block_ms)
        return [(entry_id, self._with_links(entry)) for entry_id, entry in entries]

    @property
    def is_open(self) -> bool:
        """Whether there is no password, so that only this machine may open the page."""
        return not self._password

    def is_password(self, password: str) -> bool:
        """Return whether this is the password."""
        return hmac.compare_digest(password.encode(), self._password.encode())

    def _turn(self, user_id: str, body: dict[str, Any]) -> Turn:
        client_id = body.get("id")
        if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
            raise BadHook(f"id is {client_id!r}: send 1 to 64 letters, digits, '-' or '_'")
        seen = _checked_entry_id(body.get("seen", ""), "seen")
        turn = Turn(
            event_id=self.event_id(user_id, client_id),
            conversation=self.conversation(user_id),
            user_id=user_id,
            message_id=client_id,
            # After the last entry that the author saw, so that the message answers no later question.
            written_at=time_of(seen) + 0.001 if seen else 0.0,
        )
        match body:
            case {"text": str(text), **rest} if "tap" not in rest:
                media = self.files.named(user_id, body.get("files", []))
                return replace(turn, text=_checked_text(text, may_be_blank=bool(media)), media=media)
            case {"tap": str(data), **rest} if rest.keys().isdisjoint({"text", "files"}):
                message_id = _checked_entry_id(body.get("message", ""), "message")
                return replace(turn, tap=Tap(_checked_tap(data), callback_id=client_id), message_id=message_id)
        raise BadHook(f"keys {sorted(body)!r}: send 'id' with either 'text' (and 'files') or 'tap'")

    def _with_links(self, entry: FeedEntry) -> FeedEntry:
        """Return the entry with new links to its files: links expire within the hour, the feed lives for days."""
        linked = dict(entry)
        if entry.get("media"):
            linked["media"] = self._linked(entry["media"])
        if entry.get("files"):
            linked["files"] = [self._linked(media) for media in entry["files"]]
        return linked

    def _linked(self, media: dict[str, str]) -> dict[str, str]:
        url = urlsplit(self._media.url(media["ref"], filename=media["filename"], mime_type=media["mime"]))
        return {"url": url.path, "mime": media["mime"], "filename": media["filename"]}


def _cookie(hook: WebhookRequest, name: str) -> str:
    """Return the value of a cookie, "" if there is none or the header is malformed."""
    from werkzeug.http import parse_cookie  # only the web process, which has loaded Flask, receives requests

    try:
        return parse_cookie(hook.header("cookie")).get(name, "")
    except UnicodeError:
        return ""


def is_encrypted(hook: WebhookRequest) -> bool:
    """Return whether the browser came over https, to us or to the proxy before us."""
    address = urlsplit(hook.url)
    if hook.header("x-forwarded-proto").rpartition(",")[2].strip() == "https":
        return True
    return address.scheme == "https" and hook.header("host") == address.netloc


def is_same_origin(hook: WebhookRequest) -> bool:
    """Return whether the request comes from this page. Browsers send Origin with every POST; other clients may not."""
    origin = hook.header("origin")
    site = origin.partition("://")[2]  # "" for an origin of "null"
    return not origin or (site != "" and site in (hook.header("host"), urlsplit(hook.url).netloc))


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


def _checked_text(text: str, *, may_be_blank: bool) -> str:
    if not (text.strip() or may_be_blank) or len(text) > MAX_TEXT_CHARS:
        raise BadHook(f"text has {len(text)} characters: send 1 to {MAX_TEXT_CHARS}, not only spaces")
    return text


def _checked_tap(data: str) -> str:
    clean = storable(data)
    if not 0 < len(clean.encode()) <= MAX_TAP_BYTES:
        raise BadHook(f"tap has {len(data)} characters: send the button's own data, 1 to {MAX_TAP_BYTES} bytes")
    return clean


def _checked_entry_id(given: object, key: str) -> str:
    """Return the entry id that the page sent as `message`, whose button was tapped, or as `seen`, the last one seen."""
    if not isinstance(given, str) or not (given == "" or MESSAGE_ID.fullmatch(given)):
        raise BadHook(f"{key} is not the id of an entry: send one that came from the feed")
    return given


def _file_entry(media: Media) -> dict[str, str]:
    return {"ref": media.ref, "mime": media.mime_type, "filename": media.filename}


def _bubble(delivery: Delivery) -> FeedEntry:
    reply = delivery.reply
    media = reply.media
    return {
        "type": "bubble",
        "delivery": delivery.id,
        "html": page_html(reply.text),
        "text": reply.text,
        "buttons": [  # labelled with the effect of a tap, if it is known
            {"label": plain(button.effect) or button.label, "data": button.data, "style": button.style}
            for button in reply.buttons
        ],
        "seconds": reply.answer_seconds,
        "media": media and _file_entry(media),
    }


def open_channel(name: str, settings: ConsoleSettings, deps: AdapterDeps) -> ConsoleChannel:
    """Return the adapter of a configured channel."""
    return ConsoleChannel(
        name,
        feed=RedisFeed(deps.connect(FEED_SECONDS), deps.key_prefix),
        media=deps.media,
        keys=deps.keys,
        password=settings.password.get_secret_value() if settings.password else "",
        title=settings.title,
        suggestions=settings.suggestions,
        logins=RedisLogins(deps.redis, deps.key_prefix),
        commands=settings.commands,
    )
