"""ConsoleChannel: a chat page in the browser, for this machine only or behind a password."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeSerializer, URLSafeTimedSerializer
from redis.exceptions import RedisError

from sayso.channels.base import AdapterDeps, FindForm, Forbidden, RateLimit, Unreachable
from sayso.channels.console.incoming import (
    ConsoleFiles,
    UnknownChat,
    cookie_of,
    is_encrypted,
    is_same_origin,
    parse,
)
from sayso.channels.console.outgoing import (
    MAX_PIECE_CHARS,
    bubble,
    file_entry,
    form_json,
    page_html,
    pieces_of,
)
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.store import (
    CHAT_ID,
    CLEAR,
    MAX_CHATS,
    MAX_NAME_CHARS,
    PAGE_ENTRIES,
    REMOVED,
    SESSION_SECONDS,
    Chats,
    Feed,
    FeedEntries,
    FeedEntry,
    Logins,
    StoreDown,
    time_of,
    title_of,
)
from sayso.channels.setup import is_loopback
from sayso.channels.types import (
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    ToolStep,
    Turn,
    WebhookRequest,
    WebhookResponse,
    one_line,
)
from sayso.infra.ids import random_id
from sayso.infra.records import OtherVersion

#: Seconds between two drafts of one answer.
DRAFT_GAP = 0.25
#: The command behind the page's New chat button.
RESET = "/reset"
#: The header that the page's script sets. A form of another site cannot set it.
PAGE_HEADER = "x-sayso-console"
#: How many seconds Redis may take to answer: more than a read of the feed blocks.
FEED_SECONDS = 4.0
#: The most characters of an address that a proxy names.
MAX_ADDRESS_CHARS = 60
#: The prefix of cookies that, over https, only this very host can set (RFC 6265bis, 4.1.3.2).
_HOST = "__Host-"

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ConsoleChannel:
    """The conversations of each browser, stored in feeds.

    One instance serves a whole process, from any thread.
    """

    def __init__(
        self,
        name: str,
        settings: ConsoleSettings,
        deps: AdapterDeps,
        *,
        feed: Feed | None = None,
        chats: Chats | None = None,
        logins: Logins | None = None,
    ) -> None:
        if not deps.keys:
            raise ValueError(
                "keys is empty: give at least one secret to sign console sessions with"
            )
        self.name = name
        self.settings = settings
        client = deps.connect(FEED_SECONDS)
        self.feed = feed or Feed(client, deps.key_prefix)
        self.chats = chats or Chats(client, deps.key_prefix)
        self.logins = logins or Logins(deps.redis, deps.key_prefix)
        self._media = deps.media
        self._proxies = [ipaddress.ip_network(each) for each in settings.trusted_proxies]
        if settings.password:
            self._password = settings.password.get_secret_value()
        else:
            self._password = ""
        # With the password in the salt, a new password ends every session.
        salt = f"sayso.console.{name}.{hashlib.sha256(self._password.encode()).hexdigest()}"
        keys = list(reversed(deps.keys))  # itsdangerous signs with the last key
        self._identity_cookies = URLSafeSerializer(keys, salt=salt)
        self._login_cookies = URLSafeTimedSerializer(keys, salt=f"{salt}.login")
        self._name_cookies = URLSafeSerializer(keys, salt=f"{salt}.name")
        self.files = ConsoleFiles(name, deps.media, URLSafeSerializer(keys, salt=f"{salt}.file"))

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse a message or tap that the page posted. Raises Forbidden or BadHook."""
        user_id = self.sender(hook)
        find = partial(self.conversation_of, user_id)
        return parse(hook, find, self.files, user_name=self.name_of(hook, user_id))

    async def open_form(self, turn: Turn, find: FindForm) -> WebhookResponse | None:
        """Return the form that a tap asks for: the page shows it. None if there is none."""
        try:
            form = await find(turn)
        except (RedisError, OtherVersion):
            return None
        if form is None:
            return None
        # Other tabs, and this page after a reload, show that the question is open for longer.
        more_time = {"type": "open", "of": turn.message_id, "seconds": form.seconds_left}
        with suppress(StoreDown):
            await asyncio.to_thread(self.feed.append, turn.conversation.id, more_time)
        return WebhookResponse(
            200, json.dumps({"ok": True, "form": form_json(form)}), "application/json"
        )

    def form_errors(self, errors: Mapping[str, str]) -> WebhookResponse:
        """Return the answer that shows each error beside its field."""
        return WebhookResponse(422, json.dumps({"errors": dict(errors)}), "application/json")

    def sender(self, hook: WebhookRequest) -> str:
        """Return the id of the user whose page posted the request. Raises Forbidden."""
        if not hook.header(PAGE_HEADER):
            raise Forbidden(
                f"header {PAGE_HEADER!r} is missing: only the console page may post here"
            )
        if not is_same_origin(hook):
            raise Forbidden(
                f"origin {hook.header('origin')!r} is not this server: open the console page itself"
            )
        user_id = self.visitor(hook)
        if not user_id:
            raise Forbidden("no valid console session: reload the page")
        return user_id

    def client_address(self, peer: str, forwarded_for: str) -> str:
        """Return the address of a client.

        It is the peer's, or the one that the peer reports if it is a trusted proxy.
        """
        claimed = forwarded_for.rpartition(",")[2].strip()[:MAX_ADDRESS_CHARS]
        try:
            is_proxy = is_loopback(peer) or any(
                ipaddress.ip_address(peer) in each for each in self._proxies
            )
        except ValueError:  # a peer without an address, such as a Unix socket
            is_proxy = False
        return claimed if claimed and is_proxy else peer

    def visitor(self, hook: WebhookRequest) -> str:
        """Return the user id of a browser that may use the page, "" for any other.

        If there is a password, the browser must be logged in. Raises StoreDown.
        """
        user_id = self.user_of(cookie_of(hook, self.cookie_for(hook)))
        if user_id and (self.is_open or self._session(hook)[1:] == [user_id]):
            return user_id
        return ""

    def log_in(self, user_id: str) -> str:
        """Return the cookie of a new session of this user."""
        return str(self._login_cookies.dumps([random_id(), user_id]))

    def log_out(self, hook: WebhookRequest) -> None:
        """End the session of a browser, also for copies of its cookie. Raises StoreDown."""
        session = self._session(hook)
        if session:
            self.logins.end(session[0])

    def _session(self, hook: WebhookRequest) -> list[str]:
        """Return session id and user id of a browser that is logged in, else nothing."""
        try:
            session, user_id = self._login_cookies.loads(
                cookie_of(hook, self.login_cookie_for(hook)), max_age=SESSION_SECONDS
            )
        except (BadData, ValueError, TypeError):
            return []
        if self.logins.is_ended(session):
            return []
        return [session, user_id]

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit except for drafts: people cannot read faster than four a second."""
        return RateLimit(draft_gap=DRAFT_GAP)

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Return one bubble, or several for a long text.

        The file is on the first one, buttons are on the last one.
        """
        return pieces_of(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Show the message or tap in other tabs and after a reload, and the typing indicator.

        Never raises.
        """
        # A turn in which the agent goes on has nothing that its person wrote or tapped.
        if turn.kind == "continuation":
            return 0.0
        conversation_id = turn.conversation.id
        # The page recognizes its own messages and taps by the event id.
        entry: FeedEntry = {"type": "user", "event": turn.message_id, "text": turn.text}
        if turn.tap:
            entry = {"type": "tap", "event": turn.tap.callback_id, "data": turn.tap.data}
        # The page's New chat button sends /reset, which the bot answers
        # itself unless its commands are off.
        elif (
            self.settings.commands and turn.decides and turn.text.casefold().split()[:1] == [RESET]
        ):
            entry = {"type": CLEAR, "event": turn.message_id}
        elif turn.media:
            entry["files"] = [file_entry(media) for media in turn.media]
        if turn.user_name and entry["type"] == "user":
            entry["name"] = turn.user_name
        try:
            await asyncio.to_thread(self.feed.append, conversation_id, entry)
            await asyncio.to_thread(self.chats.use, turn.conversation, _title_from(turn))
        except StoreDown:
            _log.warning(
                "console.typing_failed", extra={"conversation": conversation_id}, exc_info=True
            )
        return 0.0  # the page shows the indicator until the turn is answered

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show the unfinished answer.

        It replaces the last draft in the feed. Raises Unreachable.
        """
        entry = {"type": "draft", "html": page_html(text[:MAX_PIECE_CHARS])}
        return await _reach(self.feed.append, turn.conversation.id, entry, shown_id)

    async def show_steps(self, turn: Turn, steps: Sequence[ToolStep], shown_id: str = "") -> str:
        """Show the tool calls of a turn. They replace the entry `shown_id` in the feed.

        Those of a turn in which the agent goes on stand below the outcome, apart from the call that
        was confirmed. Raises Unreachable.
        """
        if not self.settings.steps:
            return ""
        event = turn.message_id
        if turn.kind == "continuation":
            event = turn.event_id
        elif turn.tap:
            event = turn.tap.callback_id
        rows = []
        for step in steps:
            seconds = round(step.seconds, 3)
            rows.append({"name": one_line(step.name), "state": step.state, "seconds": seconds})
        return await _reach(
            self.feed.append,
            turn.conversation.id,
            {"type": "steps", "event": event, "steps": rows},
            shown_id,
        )

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Copy a file that the page has uploaded before. Raises FetchError."""
        await asyncio.to_thread(self.files.copy, media, file)

    async def send(self, delivery: Delivery) -> Receipt:
        """Append one bubble, or the edit of an earlier one. Raises Unreachable.

        The page shows each delivery id once, so sending again is always safe.
        """
        conversation_id = delivery.conversation.id
        reply = delivery.reply
        edited = None
        if reply.edits:
            edited = await _reach(self.feed.find, conversation_id, reply.edits)
        edited_type = edited["type"] if edited else ""
        if edited_type == "bubble":
            await _reach(
                self.feed.append,
                conversation_id,
                {**bubble(delivery), "type": "edit", "of": reply.edits},
            )
            return Receipt(reply.edits)
        if reply.edits and reply.optional and edited_type != "draft":
            return Receipt("")
        if reply.removes:
            await _reach(self.feed.append, conversation_id, {"type": REMOVED}, reply.edits)
            return Receipt("")
        replaces = reply.edits if edited_type == "draft" else ""
        entry_id = await _reach(self.feed.append, conversation_id, bubble(delivery), replaces)
        with suppress(StoreDown):  # the message is there: sending it again would not help
            await asyncio.to_thread(self.chats.use, delivery.conversation)
        return Receipt(entry_id, written_at=time_of(entry_id))

    @property
    def cookie(self) -> str:
        """The name of the cookie that identifies a browser, over plain http."""
        return f"sayso_console_{self.name}"

    def cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that identifies a browser.

        Over https no other host can set it.
        """
        return f"{_HOST if is_encrypted(hook) else ''}{self.cookie}"

    def login_cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that proves a log-in."""
        return f"{_HOST if is_encrypted(hook) else ''}sayso_login_{self.name}"

    def name_cookie_for(self, hook: WebhookRequest) -> str:
        """Return the name of the cookie that holds what a person calls themselves."""
        return f"{_HOST if is_encrypted(hook) else ''}sayso_name_{self.name}"

    def name_cookie(self, user_id: str, name: str) -> str:
        """Return the cookie of a person's name, cut to one short line."""
        return str(self._name_cookies.dumps([user_id, title_of(name, MAX_NAME_CHARS)]))

    def name_of(self, hook: WebhookRequest, user_id: str) -> str:
        """Return what this person calls themselves; "" for no name.

        The cookie of another person counts as no name.
        """
        try:
            owner, name = self._name_cookies.loads(cookie_of(hook, self.name_cookie_for(hook)))
        except (BadData, ValueError, TypeError):
            return ""
        if owner == user_id:
            return str(name)
        return ""

    def new_session(self) -> str:
        """Return a signed cookie for a new browser."""
        return str(self._identity_cookies.dumps(random_id()))

    def user_of(self, cookie: str) -> str:
        """Return the user id in a cookie of `new_session`, "" for any other cookie."""
        try:
            return str(self._identity_cookies.loads(cookie))
        except BadData:
            return ""

    def conversation_of(self, user_id: str, chat_id: str) -> Conversation:
        """Return a conversation of a user, the first one for "".

        Raises UnknownChat and StoreDown.
        """
        if not CHAT_ID.fullmatch(chat_id) or not self.chats.has(self.name, user_id, chat_id):
            raise UnknownChat("there is no such conversation: open another one")
        return Conversation(channel=self.name, chat=user_id, thread=chat_id)

    def new_chat(self, user_id: str) -> str:
        """Return the id of a conversation in which nothing was said.

        If the person has MAX_CHATS already, the oldest one is deleted. Raises StoreDown.
        """
        chats = self.chats.all(self.name, user_id)
        unused = next((chat.id for chat in chats if not chat.at), "")
        if unused:
            return unused
        for oldest in chats[MAX_CHATS - 1 :]:
            self.delete_chat(user_id, oldest.id)
        chat_id = random_id(8)
        self.chats.add(Conversation(self.name, user_id, chat_id))
        return chat_id

    def delete_chat(self, user_id: str, chat_id: str) -> None:
        """Delete what the page shows of a conversation, and its title.

        Raises UnknownChat and StoreDown.
        """
        self.feed.delete(self.conversation_of(user_id, chat_id).id)
        self.chats.remove(self.name, user_id, chat_id)

    def rename_chat(self, user_id: str, chat_id: str, title: str) -> None:
        """Give a conversation a title, cut to one line. Raises UnknownChat and StoreDown."""
        self.conversation_of(user_id, chat_id)
        self.chats.rename(self.name, user_id, chat_id, title_of(title))

    def entries(self, conversation: Conversation, after: str, block_ms: int = 0) -> FeedEntries:
        """Return the feed as the page shows it, with new links to files.

        The links expire within the hour.

        Raises StoreDown.
        """
        return self._linked_entries(self.feed.read(conversation.id, after, block_ms))

    def older_entries(self, conversation: Conversation, before: str) -> tuple[FeedEntries, bool]:
        """Return a page of entries before an id, and whether there are older ones.

        For "" it is the newest page. Raises StoreDown.
        """
        entries = self.feed.read_back(conversation.id, before, PAGE_ENTRIES + 1)
        return self._linked_entries(entries[-PAGE_ENTRIES:]), len(entries) > PAGE_ENTRIES

    def _linked_entries(self, entries: FeedEntries) -> FeedEntries:
        shown: FeedEntries = []
        for entry_id, entry in entries:
            links: FeedEntry = {}
            if entry.get("media"):
                links["media"] = self._linked(entry["media"])
            if entry.get("files"):
                links["files"] = [self._linked(media) for media in entry["files"]]
            shown.append((entry_id, {**entry, **links}))
        return shown

    @property
    def is_open(self) -> bool:
        """Whether there is no password, so that only this machine may open the page."""
        return not self._password

    def is_password(self, password: str) -> bool:
        """Return whether this is the password."""
        return hmac.compare_digest(password.encode(), self._password.encode())

    def _linked(self, media: dict[str, str]) -> dict[str, str]:
        url = urlsplit(
            self._media.url(media["ref"], filename=media["filename"], mime_type=media["mime"])
        )
        return {"url": url.path, "mime": media["mime"], "filename": media["filename"]}


def _title_from(turn: Turn) -> str:
    """Return what a message makes the title of its conversation; "" for a tap and a command."""
    if turn.text and not turn.text.startswith("/"):
        return title_of(turn.text)
    if turn.media:
        return title_of(turn.media[0].filename)
    return ""


async def _reach(call: Callable[..., T], *args: object) -> T:
    """Call the feed in a thread. Raises Unreachable."""
    try:
        return await asyncio.to_thread(call, *args)
    except StoreDown as exc:
        raise Unreachable(str(exc)) from exc
