"""ConsoleChannel: a chat page in the browser, for this machine only or behind a password.

What a conversation shows is stored in its feed, which the page reads (`store.py`). `sessions.py`
says which browser belongs to which person, and `views.py` has the web pages.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from sayso.channels.base import AdapterDeps, FindForm, RateLimit, Unreachable
from sayso.channels.console.incoming import (
    ConsoleFiles,
    UnknownChat,
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
from sayso.channels.console.sessions import BrowserSessions
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.console.store import (
    CHAT_ID,
    CLEAR,
    MAX_CHATS,
    PAGE_ENTRIES,
    REMOVED,
    Chats,
    Feed,
    FeedEntries,
    FeedEntry,
    Logins,
    StoreDown,
    time_of,
    title_of,
)
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
    without_invisible,
)
from sayso.infra.ids import random_id
from sayso.infra.records import OtherVersion

#: Seconds between two drafts of one answer.
DRAFT_GAP = 0.25
#: The command behind the page's New chat button.
RESET = "/reset"
#: How many seconds Redis may take to answer: more than a read of the feed blocks.
FEED_SECONDS = 4.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ConsoleChannel:
    """The chat page of one channel. One instance serves a whole process, from any thread.

    `receive` to `send` are the methods of every adapter: they read what the page posts, and write
    into the feed of a conversation. The others serve the page: they read the feed back, and edit
    the person's list of conversations. `sessions` says who uses a browser.

    `feed`, `chats` and `logins` are stores in Redis by default. Raises ValueError if `deps` has no
    secret to sign cookies with.
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
        self.name = name
        self.settings = settings
        client = deps.connect(FEED_SECONDS)
        self.feed = feed or Feed(client, deps.key_prefix)
        self.chats = chats or Chats(client, deps.key_prefix)
        self.sessions = BrowserSessions(
            name,
            settings,
            keys=deps.keys,
            logins=logins or Logins(deps.redis, deps.key_prefix),
        )
        self.files = ConsoleFiles(name, deps.media, self.sessions.signer("file"))
        self._media = deps.media

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse a message or tap that the page posted. Raises Forbidden or BadHook."""
        user_id = self.sessions.sender(hook)
        find = partial(self.conversation_of, user_id)
        return parse(hook, find, self.files, user_name=self.sessions.name_of(hook, user_id))

    async def open_form(self, turn: Turn, find: FindForm) -> WebhookResponse | None:
        """Return the form that a tap asks for, which the page shows; None if there is none.

        Never raises.
        """
        try:
            form = await find(turn)
        except (RedisError, OtherVersion):
            return None
        if form is None:
            return None

        # Opening a form gives the person more time for the question. With this entry other tabs,
        # and this page after a reload, show that too.
        more_time = {"type": "open", "of": turn.message_id, "seconds": form.seconds_left}
        with suppress(StoreDown):
            await asyncio.to_thread(self.feed.append, turn.conversation.id, more_time)
        body = json.dumps({"ok": True, "form": form_json(form)})
        return WebhookResponse(200, body, "application/json")

    def form_errors(self, errors: Mapping[str, str]) -> WebhookResponse:
        """Return the answer that shows each error beside its field."""
        return WebhookResponse(422, json.dumps({"errors": dict(errors)}), "application/json")

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit except for drafts: people cannot read more than four a second."""
        return RateLimit(draft_gap=DRAFT_GAP)

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Return one bubble of the page, or several for a long text.

        The file is on the first one, buttons are on the last one.
        """
        return pieces_of(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Show the person's message or tap in other tabs and after a reload. Never raises.

        The page itself shows that the bot works, until the turn is answered.
        """
        # A turn in which the agent goes on has nothing that its person wrote or tapped.
        if not turn.is_of_sender:
            return 0.0
        conversation_id = turn.conversation.id
        try:
            await asyncio.to_thread(self.feed.append, conversation_id, self._entry_of(turn))
            await asyncio.to_thread(self.chats.note_use, turn.conversation, _title_from(turn))
        except StoreDown:
            _log.warning(
                "console.typing_failed", extra={"conversation": conversation_id}, exc_info=True
            )
        return 0.0

    def _entry_of(self, turn: Turn) -> FeedEntry:
        """Return the entry of what a person wrote or tapped.

        By `event` a page recognizes its own message.
        """
        if turn.tap:
            return {"type": "tap", "event": turn.tap.callback_id, "data": turn.tap.data}
        # The page's New chat button sends /reset. Where the commands are off, it is a message like
        # any other.
        is_reset = turn.decides and turn.text.casefold().split()[:1] == [RESET]
        if is_reset and self.settings.commands:
            return {"type": CLEAR, "event": turn.message_id}

        entry: FeedEntry = {"type": "user", "event": turn.message_id, "text": turn.text}
        if turn.media:
            entry["files"] = [file_entry(media) for media in turn.media]
        if turn.user_name:
            entry["name"] = turn.user_name
        return entry

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show the unfinished answer in place of the last draft. Raises Unreachable."""
        entry = {"type": "draft", "html": page_html(text[:MAX_PIECE_CHARS])}
        return await _reach(self.feed.append, turn.conversation.id, entry, shown_id)

    async def show_steps(self, turn: Turn, steps: Sequence[ToolStep], shown_id: str = "") -> str:
        """Show the tool calls of a turn. They replace the entry `shown_id` in the feed.

        Raises Unreachable.
        """
        if not self.settings.steps:
            return ""
        # The page shows the calls below the message or tap with this event. Those of a turn in
        # which the agent goes on stand apart from the call that was confirmed.
        event = turn.message_id
        if not turn.is_of_sender:
            event = turn.event_id
        elif turn.tap:
            event = turn.tap.callback_id

        rows = []
        for step in steps:
            seconds = round(step.seconds, 3)
            rows.append(
                {"name": without_invisible(step.name), "state": step.state, "seconds": seconds}
            )
        entry = {"type": "steps", "event": event, "steps": rows}
        return await _reach(self.feed.append, turn.conversation.id, entry, shown_id)

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Copy a file that the page has uploaded before. Raises FetchError."""
        await asyncio.to_thread(self.files.copy, media, file)

    async def send(self, delivery: Delivery) -> Receipt:
        """Append one bubble, or the edit of an earlier one. Raises Unreachable.

        The page shows each delivery id once, so sending again is always safe.
        """
        conversation_id = delivery.conversation.id
        reply = delivery.reply
        edited_entry = None
        if reply.edits:
            edited_entry = await _reach(self.feed.find, conversation_id, reply.edits)
        edited_type = edited_entry["type"] if edited_entry else ""

        if edited_type == "bubble":
            edit = {**bubble(delivery), "type": "edit", "of": reply.edits}
            await _reach(self.feed.append, conversation_id, edit)
            return Receipt(reply.edits)
        if reply.edits and reply.optional and edited_type != "draft":
            return Receipt("")
        if reply.removes:
            await _reach(self.feed.append, conversation_id, {"type": REMOVED}, reply.edits)
            return Receipt("")

        # The answer takes the place of its draft.
        replaces = reply.edits if edited_type == "draft" else ""
        entry_id = await _reach(self.feed.append, conversation_id, bubble(delivery), replaces)
        # The message is in the feed: sending it again would not help.
        with suppress(StoreDown):
            await asyncio.to_thread(self.chats.note_use, delivery.conversation)
        return Receipt(entry_id, written_at=time_of(entry_id))

    def conversation_of(self, user_id: str, chat_id: str) -> Conversation:
        """Return a conversation of a user, the first one for the id "".

        Raises UnknownChat and StoreDown.
        """
        if not CHAT_ID.fullmatch(chat_id) or not self.chats.has(self.name, user_id, chat_id):
            raise UnknownChat("there is no such conversation: open another one")
        return Conversation(channel=self.name, chat=user_id, thread=chat_id)

    def new_chat(self, user_id: str) -> str:
        """Return the id of a conversation in which nothing was said, a new one if needed.

        If the person has MAX_CHATS already, the oldest one is deleted. Raises StoreDown.
        """
        chats = self.chats.all(self.name, user_id)
        for chat in chats:
            if chat.id and not chat.at:
                return chat.id

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
        """Return the entries after the id `after`, as the page shows them.

        They have new links to files, which expire within the hour. `block_ms` is as in `Feed.read`.
        Raises StoreDown.
        """
        return self._linked_entries(self.feed.read(conversation.id, after, block_ms))

    def older_entries(self, conversation: Conversation, before: str) -> tuple[FeedEntries, bool]:
        """Return a page of entries before the id `before`, and whether there are older ones.

        For "" it is the newest page. Raises StoreDown.
        """
        # One more than a page tells whether there are older ones.
        entries = self.feed.read_back(conversation.id, before, PAGE_ENTRIES + 1)
        has_more = len(entries) > PAGE_ENTRIES
        return self._linked_entries(entries[-PAGE_ENTRIES:]), has_more

    def _linked_entries(self, entries: FeedEntries) -> FeedEntries:
        """Return the entries with new links in place of the ids of files."""
        linked_entries: FeedEntries = []
        for entry_id, entry in entries:
            links: FeedEntry = {}
            if entry.get("media"):
                links["media"] = self._linked(entry["media"])
            if entry.get("files"):
                links["files"] = [self._linked(media) for media in entry["files"]]
            linked_entries.append((entry_id, {**entry, **links}))
        return linked_entries

    def _linked(self, media: dict[str, str]) -> dict[str, str]:
        """Return a file of an entry with a link: a path, since the page is on the same server."""
        filename = media["filename"]
        url = self._media.url(media["ref"], filename=filename, mime_type=media["mime"])
        return {"url": urlsplit(url).path, "mime": media["mime"], "filename": filename}


def _title_from(turn: Turn) -> str:
    """Return the title that a message gives to a new conversation, "" for a tap and a command."""
    if turn.text and not turn.text.startswith("/"):
        return title_of(turn.text)
    if turn.media:
        return title_of(turn.media[0].filename)
    return ""


async def _reach(call: Callable[..., T], *args: object) -> T:
    """Return the result of a call of the feed, made in a thread. Raises Unreachable."""
    try:
        return await asyncio.to_thread(call, *args)
    except StoreDown as exc:
        raise Unreachable(str(exc)) from exc
