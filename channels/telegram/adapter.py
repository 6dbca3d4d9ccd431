"""TelegramChannel: parses the updates of one Telegram bot, and sends through the Bot API.

A basic group may become a supergroup. Telegram gives it another id then, and numbers its messages
anew. Its conversation stays under the first id, the address that it began with: `note_moves` learns
of the change, `at_first_address` brings each turn back to the first id, and `send` goes to the
newest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, TypeVar

from sayso.channels.base import (
    PARSE_ERRORS,
    AdapterDeps,
    BadHook,
    FetchError,
    Forbidden,
    RateLimit,
    SendError,
    WebhookConflict,
    fetch_errors,
)
from sayso.channels.markdown.convert import telegram_length
from sayso.channels.markdown.split import fits
from sayso.channels.telegram.client import TELEGRAM, new_bot, reaction, send_error
from sayso.channels.telegram.incoming import ALLOWED_UPDATES, UpdateParser, check_secret
from sayso.channels.telegram.missing_features import MissingFeatures
from sayso.channels.telegram.outgoing import (
    TEXT_LIMIT,
    BotApiCall,
    PartRefused,
    alternative,
    as_new_message,
    beginning,
    is_better_rich,
    pieces_of,
)
from sayso.channels.telegram.settings import TelegramSettings
from sayso.channels.types import (
    AddressChange,
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Turn,
    WebhookRequest,
    digest,
)
from sayso.infra.http import ANSWER_SECONDS, PooledSessions, SafeDownload, tls

T = TypeVar("T")

#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 4.0
#: How long one poll waits for updates, in seconds. Telegram allows 50; with less,
#: a dead connection is noticed sooner.
POLL_SECONDS = 25
#: The largest file that Telegram gives a bot, in bytes.
FILE_LIMIT = 20 * 1024 * 1024
#: How many acknowledged taps a process remembers.
MAX_ACKNOWLEDGED_TAPS = 1000
#: In a private chat Telegram documents about one message a second, with bursts, and 30 a second in
#: all chats. A draft is a message that is edited, so a separate notice makes the sound.
CHAT_RATE = RateLimit(per_second=30, chat_gap=1.0, burst=10, draft_gap=1.0, notice_in_draft=False)
#: The same with Telegram's own drafts: they make no sound, and the message that follows does.
NATIVE_RATE = replace(CHAT_RATE, notice_in_draft=True)
#: In a group Telegram documents 20 messages a minute: five at once and one each 4 seconds make 20
#: in the first minute.
GROUP_RATE = RateLimit(per_second=30, chat_gap=4.0, burst=5, draft_gap=4.0, draft_delay=4.0)

#: Ids of supergroups are below this number. Basic groups have negative ids above it.
_SUPERGROUPS = -1_000_000_000_000
#: The id of a message. The id of its chat stands before it if the conversation began in another
#: chat, and the id of the person if only one person sees the message: "-1001:5", "u7:3".
_MESSAGE_ID = re.compile(r"(?:(-[0-9]{1,20}):)?((?:u[0-9]{1,20}:)?[0-9]{1,20})")
#: The id of a group or supergroup.
_GROUP_ID = re.compile(r"-[0-9]{1,20}")


class TelegramChannel:
    """One bot. One instance per process, used from any thread; one HTTP client per event loop.

    The shared cache holds the new ids of groups that became supergroups, under
    `telegram:moved:<bot id>:<old chat>`, and their first ids, under
    `telegram:first:<bot id>:<new chat>`.
    """

    def __init__(self, name: str, settings: TelegramSettings, deps: AdapterDeps) -> None:
        self.name = name
        self.bot_id = settings.account_id
        self._media = deps.media
        self._cache = deps.cache
        self._has_native_drafts = settings.draft == "native"
        self._sends_rich_messages = settings.rich_messages

        self._secret = settings.webhook_secret
        self._parser = UpdateParser(name, self.bot_id, settings.username.lstrip("@").lower())
        #: The `callback_id`s of taps that this process has acknowledged.
        self._acknowledged_taps: frozenset[str] = frozenset()

        self._token = settings.token.get_secret_value().strip()
        self._api_url = settings.api_url or TELEGRAM
        self._missing = MissingFeatures(name)
        self._bots = PooledSessions(partial(new_bot, self._token, self._api_url), tls_context=tls)

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify a webhook and parse its update. Raises Forbidden or BadHook.

        Unknown kinds of updates are ignored, never refused: Telegram would repeat them for a day.
        """
        if self._secret is None:
            raise Forbidden("this channel polls: it takes no webhooks")
        check_secret(hook, self._secret)
        try:
            update = json.loads(hook.body)
        except (ValueError, RecursionError) as exc:
            raise BadHook("the body is not JSON") from exc
        return self.read(update)

    def read(self, update: Any) -> Received:
        """Parse one update of any kind or shape. Never raises.

        A malformed update is ignored: Telegram would send it again and again.
        """
        try:
            return self._parser.parse(update)
        except PARSE_ERRORS:
            return Received(ignored="malformed update")

    async def updates(self, offset: int | None) -> list[Any]:
        """Return the updates that came in, after at most POLL_SECONDS.

        Telegram forgets all updates whose id is lower than `offset`; none of them if it is None.
        Raises SendError, and WebhookConflict if another receiver gets the updates.
        """
        from telegram.error import Conflict

        await self._learn_name()
        params = {"offset": offset, "timeout": POLL_SECONDS, "allowed_updates": ALLOWED_UPDATES}
        call = self._bots.here().do_api_request(
            "getUpdates", api_kwargs=params, read_timeout=POLL_SECONDS + ANSWER_SECONDS
        )
        try:
            updates = await self._translated(call)
        except SendError as exc:
            if not isinstance(exc.__cause__, Conflict):
                raise
            problem = "another program polls the updates of this bot"
            cure = "stop it, or give it a bot of its own"
            if "webhook" in str(exc.__cause__).lower():
                problem = "a webhook is set, so Telegram gives a poller nothing"
                cure = f"run `sayso channel disconnect {self.name}`"
            raise WebhookConflict(f"{problem}: {cure}") from exc

        # Anything else is no answer of Telegram, such as one of a proxy.
        return updates if isinstance(updates, list) else []

    async def _learn_name(self) -> None:
        """Ask Telegram for the bot's @name, once, if none is configured. Raises SendError."""
        if self._parser.username:
            return
        me = await self._translated(self._bots.here().get_me())
        username = (me.username or "").lower()
        self._parser = replace(self._parser, username=username)

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return Telegram's limits for a private chat or for a group."""
        if not _is_private(conversation):
            return GROUP_RATE
        return NATIVE_RATE if self._has_native_drafts else CHAT_RATE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split text at Telegram's 4,096 UTF-16 units, a caption at 1,024.

        A rich message is one piece.
        """
        if self._is_rich(reply):
            return (reply,)
        return pieces_of(reply)

    def _is_rich(self, reply: Reply) -> bool:
        """Return whether the reply is sent as a rich message. This may parse a long text."""
        is_possible = self._sends_rich_messages and not self._missing.includes("rich messages")
        return is_possible and is_better_rich(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Show "typing", which Telegram removes after 5 seconds, and acknowledge a tap once.

        Until a tap is acknowledged, its button shows a spinner.
        """
        with contextlib.suppress(Exception):
            bot = self._bots.here()
            chat = await self._moved_to(turn.conversation.chat)
            calls = [bot.send_chat_action(chat, "typing", message_thread_id=_thread(turn))]
            if turn.tap and self._is_first(turn.tap.callback_id):
                calls.append(bot.answer_callback_query(turn.tap.callback_id))
            await asyncio.gather(*calls, return_exceptions=True)
        return TYPING_SECONDS

    def _is_first(self, callback_id: str) -> bool:
        """Return whether this process has not acknowledged the tap yet, and remember it."""
        taps = self._acknowledged_taps
        if not callback_id or callback_id in taps:
            return False

        if len(taps) >= MAX_ACKNOWLEDGED_TAPS:
            taps = frozenset()
        # The set is replaced as a whole, so that threads need no lock.
        self._acknowledged_taps = taps | {callback_id}
        return True

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show a draft, cut to one message. Raises SendError.

        It is a message that later drafts and the answer edit. With `draft: native` it is Telegram's
        own draft in a private chat, which disappears by itself and which the person may stop.
        """
        chat = turn.conversation.chat
        text = beginning(text)
        if self._has_native_drafts and _is_private(turn.conversation):
            # The draft's id has 31 bits. It is the same for all drafts of the turn, and never 0.
            draft_id = zlib.crc32(turn.event_id.encode()) % 0x7FFFFFFF + 1
            call = BotApiCall(chat, _thread(turn), Reply(text), draft_id=draft_id)
        elif text.strip():
            call = BotApiCall(chat, _thread(turn), Reply(text, edits=shown_id))
        else:
            # Telegram takes no message without text.
            return shown_id
        receipt = await self._translated(self._deliver(call))
        return receipt.message_id

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Ask Telegram for a link to the file, then download it. Raises FetchError.

        The link holds the bot's token, so no error and no log names it.
        """
        from telegram.error import TelegramError

        _check_size(media.size)
        try:
            telegram_file = await self._bots.here().get_file(media.ref)
        except TelegramError as exc:
            raise FetchError(
                f"Telegram did not say where the file is: {type(exc).__name__}"
            ) from None
        _check_size(telegram_file.file_size or 0)

        link = telegram_file.file_path or ""
        # For a local Bot API server PTB returns the path of a file on this machine.
        if not link.startswith(f"{self._api_url}/file/bot{self._token}/"):
            raise FetchError("Telegram named no link to the file")
        with fetch_errors():
            await SafeDownload(FILE_LIMIT).save(link, file, {})

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece, or edit a message of ours. Raises SendError.

        If Telegram refuses it, it is tried once in another form: as plain text, a document, a link,
        a new message, or to the group's new id.
        """
        reply = delivery.reply
        is_rich = False
        sent_parts = 0
        # A short text is never sent in parts, so most messages need no read of the cache.
        if self._sends_rich_messages or len(reply.text) > TEXT_LIMIT:
            sent_parts = await asyncio.to_thread(self._sent_parts, delivery)
            if not sent_parts:
                is_rich = await asyncio.to_thread(self._is_rich, reply)

        call = BotApiCall(
            delivery.conversation.chat,
            _thread(delivery),
            reply,
            rich=is_rich,
            sent_parts=sent_parts,
        )
        is_impossible_edit = reply.edits and (reply.media or not _MESSAGE_ID.fullmatch(reply.edits))
        if is_impossible_edit:
            return await self._translated(self._deliver(as_new_message(call), delivery))
        return await self._translated(self._deliver(call, delivery))

    def _sent_parts(self, delivery: Delivery) -> int:
        """Return how many parts of a long text earlier attempts have sent.

        A text that is too long for one message is sent in parts where a rich message is refused.
        """
        if fits(delivery.reply.text, TEXT_LIMIT, telegram_length):
            return 0
        return int(self._cache.get(_parts_key(delivery)) or 0)

    async def _translated(self, call: Awaitable[T]) -> T:
        """Return the result of a call. Raises SendError in place of PTB's errors."""
        from telegram.error import TelegramError

        try:
            return await call
        except TelegramError as exc:
            raise send_error(exc) from exc

    async def _deliver(
        self,
        call: BotApiCall | Receipt,
        delivery: Delivery | None = None,
    ) -> Receipt:
        """Send a call, in another form as long as Telegram refuses one.

        `call` is a receipt if there is nothing to send. `delivery` is None for a draft. Raises
        PTB's errors if no form is left.
        """
        from telegram.error import TelegramError

        if isinstance(call, Receipt):
            return call
        first_chat = call.chat
        next_call = _in_chat(call, await self._moved_to(first_chat))
        if isinstance(next_call, Receipt):
            return next_call
        call = next_call
        if self._missing.includes("disabled buttons"):
            call = call.without_decided_buttons()

        while True:
            try:
                receipt = await call.to(self._bots.here(), self._media)
                break
            except (TelegramError, PartRefused) as exc:
                # PartRefused: a part of a long text was refused, after others were sent. Its cause is
                # Telegram's error.
                error: Any = exc
                if isinstance(exc, PartRefused):
                    error = exc.__cause__
                    call = replace(call, sent_parts=exc.sent_parts)
                    await self._note_parts(delivery, exc.sent_parts)
                other = await asyncio.to_thread(alternative, call, error, self._media)
                # None: no other form is left. A receipt: there is nothing more to send, such as an edit
                # that would change nothing.
                if other is None:
                    raise error from None
                self._note_missing_feature(call, error)
                if isinstance(other, Receipt):
                    receipt = other
                    break
                if other.chat != call.chat:
                    await asyncio.to_thread(self._note_move, call.chat, other.chat)
                call = other
        message_id = _full_id(receipt.message_id, call.chat, first_chat)
        return replace(receipt, message_id=message_id)

    async def _note_parts(self, delivery: Delivery | None, sent_parts: int) -> None:
        """Note how many parts of a text have arrived: the next attempt sends the others."""
        if delivery:
            await asyncio.to_thread(self._cache.put, _parts_key(delivery), str(sent_parts))

    def _note_missing_feature(self, call: BotApiCall, exc: Exception) -> None:
        """Note what the Bot API server does not know, so that it is not tried again soon.

        A server that a bot's operator runs (`api_url`) may be older than Telegram's own.
        """
        next_step = reaction(exc)
        if next_step == "buttons":
            self._missing.note_refusal("disabled buttons")
        if not call.rich:
            return
        # An old server has no method for rich messages. For an edit it has one, but does not read
        # the blocks, and misses a text.
        if next_step == "down" or "text is empty" in str(exc).lower():
            self._missing.note_refusal("rich messages")

    async def group_members(self, group: str) -> Sequence[str]:
        """Return the ids of a group's administrators. Raises SendError and redis.RedisError.

        Bots are left out, and so are administrators who stay anonymous in the group.
        """
        from telegram.error import ChatMigrated

        bot = self._bots.here()
        chat = await self._moved_to(group)
        try:
            members = await self._translated(bot.get_chat_administrators(chat))
        except SendError as exc:
            if not isinstance(exc.__cause__, ChatMigrated):
                raise
            # The group has become a supergroup, and no message said so before.
            new_chat = str(exc.__cause__.new_chat_id)
            await asyncio.to_thread(self._note_move, chat, new_chat)
            members = await self._translated(bot.get_chat_administrators(new_chat))
        people = [
            member
            for member in members
            if not (member.user.is_bot or getattr(member, "is_anonymous", False))
        ]
        return [str(member.user.id) for member in people]

    async def _moved_to(self, chat: str) -> str:
        """Return the id of the supergroup that a chat became, or the same chat.

        Only groups that are no supergroups yet can move. Their ids are negative and short.
        """
        is_basic_group = re.fullmatch(r"-\d+", chat) and int(chat) > _SUPERGROUPS
        if not is_basic_group:
            return chat
        new_chat = await asyncio.to_thread(self._cache.get, self._moved_key(chat))
        return new_chat or chat

    def note_moves(self, received: Received) -> Received:
        """Remember that a group became a supergroup.

        Returns `received`, with address changes of the supergroup under the id of the group. A
        change of the bot's membership in the old group is dropped: it says nothing about the
        supergroup.
        """
        move = received.chat_move
        if move and not all(map(_GROUP_ID.fullmatch, move)):
            move = None
        if move:
            old, new = move
            self._note_move(old, new)

        changes = []
        for change in received.addresses:
            if not self._has_moved(change.conversation):
                first = self._first_address(change.conversation)
                changes.append(replace(change, conversation=first))
        if move:
            # Before the report of the move, the old group may have refused messages, and a change
            # of membership may have closed the address. The supergroup takes messages.
            old, _ = move
            changes.append(AddressChange(Conversation(self.name, old), closed=""))
        return replace(received, addresses=tuple(changes))

    def _has_moved(self, conversation: Conversation) -> bool:
        """Return whether the group does not exist any more, because it became a supergroup."""
        is_group = _GROUP_ID.fullmatch(conversation.chat) is not None
        return is_group and self._cache.get(self._moved_key(conversation.chat)) is not None

    def at_first_address(self, turn: Turn) -> Turn:
        """Return a turn in a supergroup as if it were in the group that the supergroup was.

        Any other turn stays unchanged.
        """
        if not turn.in_group:
            return turn
        first = self._first_address(turn.conversation)
        if first == turn.conversation:
            return turn

        chat = turn.conversation.chat
        replied_to = turn.replied_to
        # Not for a message that is elsewhere, or that only one person sees.
        if replied_to.isdecimal():
            replied_to = _full_id(replied_to, chat, first.chat)
        return replace(
            turn,
            conversation=first,
            chat_now=chat,
            message_id=_full_id(turn.message_id, chat, first.chat),
            replied_to=replied_to,
        )

    def _first_address(self, conversation: Conversation) -> Conversation:
        """Return the address that a conversation began with, which for most is the same one."""
        chat = conversation.chat
        if not _GROUP_ID.fullmatch(chat):
            return conversation
        first = self._cache.get(self._first_key(chat))
        if first is None:
            return conversation
        # Entries of the cache expire. Written again, this one stays as long as people write there.
        self._note_move(first, chat)
        return replace(conversation, chat=first)

    def _note_move(self, old: str, new: str) -> None:
        """Remember that a group became a supergroup."""
        self._cache.put(self._moved_key(old), new)
        self._cache.put(self._first_key(new), old)

    def _first_key(self, chat: str) -> str:
        return f"telegram:first:{self.bot_id}:{chat}"

    def _moved_key(self, chat: str) -> str:
        return f"telegram:moved:{self.bot_id}:{chat}"


def _full_id(message_id: str, chat: str, first_chat: str) -> str:
    """Return an id of a message that is unique in its conversation, "" for no message.

    The message is in `chat`, and the conversation began in `first_chat`. If these differ, the id
    names the chat too, such as "-1001:5".
    """
    if not message_id or chat == first_chat:
        return message_id
    return f"{chat}:{message_id}"


def _parts_key(delivery: Delivery) -> str:
    """Return the cache key under which the number of a text's sent parts is noted.

    The key depends on the text: a text that is marked as repeated has other parts.
    """
    return f"telegram:parts:{delivery.id}:{digest(delivery.reply.text)}"


def _in_chat(call: BotApiCall, chat: str) -> BotApiCall | Receipt:
    """Return the call for the chat that its group has become.

    An edit of a message that the old group has becomes a new message, or a receipt if the reply is
    optional.
    """
    # The id of the message to edit, with its chat in front if that is not the first one (`_full_id`).
    # No match: the reply edits nothing.
    edit = _MESSAGE_ID.fullmatch(call.reply.edits)
    call_there = replace(call, chat=chat)
    if edit is None:
        return call_there
    chat_of_message, message_id = edit.groups()
    if (chat_of_message or call.chat) != chat:
        return as_new_message(call_there)
    return replace(call_there, reply=replace(call.reply, edits=message_id))


def _check_size(size: int) -> None:
    """Raise FetchError for a file that Telegram does not give to bots; 0 for an unknown size."""
    if size > FILE_LIMIT:
        raise FetchError(f"the file has {size} bytes: Telegram gives bots at most {FILE_LIMIT}")


def _thread(item: Turn | Delivery) -> int | None:
    """Return the number of a topic, None outside of topics."""
    thread = item.conversation.thread
    if thread.isdecimal():
        return int(thread)
    return None


def _is_private(conversation: Conversation) -> bool:
    """Return whether the chat is private: ids of groups are negative."""
    return not conversation.chat.startswith("-")
