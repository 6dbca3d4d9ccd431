"""TelegramChannel: parses the updates of one Telegram bot, and sends through the Bot API."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import zlib
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, TypeVar

from sayso.channels.base import (
    AdapterDeps,
    BadHook,
    FetchError,
    Forbidden,
    RateLimit,
    SendError,
    WebhookConflict,
    fetch_errors,
)
from sayso.channels.markdown import telegram_length
from sayso.channels.markdown.split import fits
from sayso.channels.telegram.client import TELEGRAM, new_bot, reaction, send_error
from sayso.channels.telegram.incoming import ALLOWED_UPDATES, UpdateParser
from sayso.channels.telegram.missing import MissingFeatures
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
MAX_ANSWERED = 1000
#: Telegram documents about 30 messages a second in all, about one a second in a private chat
#: (bursts are allowed), and 20 a minute in a group: five at once and one each 4 s make 20 in the
#: first minute.
CHAT_RATE = RateLimit(per_second=30, chat_gap=1.0, burst=10, draft_gap=1.0, notice_in_draft=False)
#: The same with Telegram's own drafts, which make no sound; the answer that follows does.
NATIVE_RATE = replace(CHAT_RATE, notice_in_draft=True)
GROUP_RATE = RateLimit(per_second=30, chat_gap=4.0, burst=5, draft_gap=4.0, draft_delay=4.0)

#: Ids of supergroups are below this number. Basic groups have negative ids above it,
#: and may become supergroups.
_SUPERGROUPS = -1_000_000_000_000
#: The id of a message; with that of its chat if the conversation began in another one, and with
#: that of the only person who sees it.
_MESSAGE_ID = re.compile(r"(?:(-[0-9]{1,20}):)?((?:u[0-9]{1,20}:)?[0-9]{1,20})")
#: The id of a group or supergroup.
_GROUP_ID = re.compile(r"-[0-9]{1,20}")


class TelegramChannel:
    """One bot. One per process; keeps one HTTP client per event loop.

    The cache holds the new ids of groups that became supergroups, `telegram:moved:<bot id>:<old
    chat>`, and their first ids, `telegram:first:<bot id>:<new chat>`.
    """

    def __init__(self, name: str, settings: TelegramSettings, deps: AdapterDeps) -> None:
        self.name = name
        self.bot_id = settings.account_id
        self._media = deps.media
        self._cache = deps.cache
        self._token = settings.token.get_secret_value().strip()
        self._secret = settings.webhook_secret
        self._api_url = settings.api_url or TELEGRAM
        self._parser = UpdateParser(name, self.bot_id, settings.username.lstrip("@").lower())
        self._has_native_drafts = settings.draft == "native"
        self._answered: frozenset[str] = frozenset()
        self._sends_rich_messages = settings.rich_messages
        self._missing = MissingFeatures(name)
        self._bots = PooledSessions(partial(new_bot, self._token, self._api_url), tls=tls)

    def receive(self, hook: WebhookRequest) -> Received:
        """Parse one update.

        Unknown kinds are ignored, never refused: Telegram would repeat them for a day.
        """
        if self._secret is None:
            raise Forbidden("this channel polls: it takes no webhooks")
        secret = hook.header("x-telegram-bot-api-secret-token").encode("utf-8", "replace")
        if not secret:
            raise Forbidden(
                "there is no X-Telegram-Bot-Api-Secret-Token header: set the webhook with its secret_token"
            )
        if not hmac.compare_digest(secret, self._secret.encode()):
            raise Forbidden(
                "the X-Telegram-Bot-Api-Secret-Token header is wrong: set the webhook again"
            )
        try:
            update = json.loads(hook.body)
        except (ValueError, RecursionError) as exc:
            raise BadHook("the body is not JSON") from exc
        return self.read(update)

    def read(self, update: Any) -> Received:
        """Parse one update of any kind or shape. Never raises."""
        try:
            return self._parser.parse(update)
        except (
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            IndexError,
            OverflowError,
            RecursionError,
        ):
            return Received(ignored="malformed update")

    async def updates(self, offset: int | None) -> list[Any]:
        """Return the updates that came in, after at most POLL_SECONDS.

        Telegram forgets all before `offset`.

        Raises SendError, WebhookConflict.
        """
        from telegram.error import Conflict

        await self._learn_name()
        params = {"offset": offset, "timeout": POLL_SECONDS, "allowed_updates": ALLOWED_UPDATES}
        calling = self._bots.here().do_api_request(
            "getUpdates", api_kwargs=params, read_timeout=POLL_SECONDS + ANSWER_SECONDS
        )
        try:
            updates = await self._translated(calling)
        except SendError as exc:
            if not isinstance(exc.__cause__, Conflict):
                raise
            if "webhook" in str(exc.__cause__).lower():
                cure = f"run `sayso channel disconnect {self.name}`"
                raise WebhookConflict(
                    f"a webhook is set, so Telegram gives a poller nothing: {cure}"
                ) from exc
            raise WebhookConflict(
                "another program polls the updates of this bot: stop it, or give it a bot of its own"
            ) from exc
        if isinstance(updates, list):
            return updates
        return []

    async def _learn_name(self) -> None:
        """Ask Telegram for the bot's @name, once, if none is configured. Raises SendError."""
        if not self._parser.username:
            me = await self._translated(self._bots.here().get_me())
            self._parser = replace(self._parser, username=(me.username or "").lower())

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return Telegram's limits for a private chat or for a group."""
        if not _is_private(conversation):
            return GROUP_RATE
        return NATIVE_RATE if self._has_native_drafts else CHAT_RATE

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split text at 4,096 UTF-16 units, or at 1,024 as a caption.

        A rich message is one piece.
        """
        if self._is_rich(reply):
            return (reply,)
        return pieces_of(reply)

    def _is_rich(self, reply: Reply) -> bool:
        is_possible = self._sends_rich_messages and "rich messages" not in self._missing
        return is_possible and is_better_rich(reply)

    async def show_typing(self, turn: Turn) -> float:
        """Stop the tapped button's spinner, once, and show "typing".

        Telegram shows that for 5 seconds.
        """
        with contextlib.suppress(Exception):
            bot = self._bots.here()
            chat = await self._moved_to(turn.conversation.chat)
            steps = [bot.send_chat_action(chat, "typing", message_thread_id=_thread(turn))]
            if turn.tap and self._is_first(turn.tap.callback_id):
                steps.append(bot.answer_callback_query(turn.tap.callback_id))
            await asyncio.gather(*steps, return_exceptions=True)
        return TYPING_SECONDS

    def _is_first(self, callback_id: str) -> bool:
        """Return whether this process has not acknowledged the tap yet, and remember it."""
        if not callback_id or callback_id in self._answered:
            return False
        # Replaced as a whole, so that threads need no lock.
        self._answered = (self._answered if len(self._answered) < MAX_ANSWERED else frozenset()) | {
            callback_id
        }
        return True

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Show a draft, cut to one message, which later drafts edit.

        With `draft: native` it is Telegram's own draft in a private chat. That disappears by
        itself, and the person may stop it.
        """
        chat = turn.conversation.chat
        text = beginning(text)
        if self._has_native_drafts and _is_private(turn.conversation):
            # The same for each step, and never 0.
            draft_id = zlib.crc32(turn.event_id.encode()) % 0x7FFFFFFF + 1
            call = BotApiCall(chat, _thread(turn), Reply(text), draft_id=draft_id)
        elif text.strip():
            call = BotApiCall(chat, _thread(turn), Reply(text, edits=shown_id))
        else:
            return shown_id
        return (await self._translated(self._deliver(call))).message_id

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Ask for a link, then download.

        The link holds the bot's token, so it is never passed on.
        """
        from telegram.error import TelegramError

        _check_size(media.size)
        try:
            found = await self._bots.here().get_file(media.ref)
        except TelegramError as exc:
            raise FetchError(
                f"Telegram did not say where the file is: {type(exc).__name__}"
            ) from None
        _check_size(found.file_size or 0)
        link = found.file_path or ""
        # For a local Bot API server PTB returns the path of a file on this machine.
        if not link.startswith(f"{self._api_url}/file/bot{self._token}/"):
            raise FetchError("Telegram named no link to the file")
        with fetch_errors():
            await SafeDownload(FILE_LIMIT).save(link, file, {})

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece, or edit a message of ours.

        If Telegram refuses it, it is tried once in another form: as plain text, a document, a link,
        a new message, or to the group's new id.
        """
        reply = delivery.reply
        is_rich = False
        sent_parts = 0
        if self._sends_rich_messages or len(reply.text) > TEXT_LIMIT:
            sent_parts = await asyncio.to_thread(self._sent_parts, delivery)
            is_rich = not sent_parts and await asyncio.to_thread(self._is_rich, reply)
        call = BotApiCall(
            delivery.conversation.chat,
            _thread(delivery),
            reply,
            rich=is_rich,
            sent_parts=sent_parts,
        )
        impossible = reply.edits and (reply.media or not _MESSAGE_ID.fullmatch(reply.edits))
        sending = self._deliver(as_new_message(call) if impossible else call, delivery)
        return await self._translated(sending)

    def _sent_parts(self, delivery: Delivery) -> int:
        """Return how many parts of a text that was to be one message earlier attempts have sent."""
        if fits(delivery.reply.text, TEXT_LIMIT, telegram_length):
            return 0
        return int(self._cache.get(_parts_key(delivery)) or 0)

    async def _translated(self, sending: Awaitable[T]) -> T:
        """Return what the call returns. Raises SendError in place of PTB's errors."""
        from telegram.error import TelegramError

        try:
            return await sending
        except TelegramError as exc:
            raise send_error(exc) from exc

    async def _deliver(
        self,
        call: BotApiCall | Receipt,
        delivery: Delivery | None = None,
    ) -> Receipt:
        """Send a call, in another form where Telegram refuses one.

        `delivery` is None for a draft.
        """
        from telegram.error import TelegramError

        home = call.chat if isinstance(call, BotApiCall) else ""
        if isinstance(call, BotApiCall):
            call = _in_chat(call, await self._moved_to(home))
        if isinstance(call, BotApiCall) and "disabled buttons" in self._missing:
            call = call.without_decided_buttons()
        while isinstance(call, BotApiCall):
            try:
                receipt = await call.to(self._bots.here(), self._media)
            except (TelegramError, PartRefused) as exc:
                error: Any = exc
                if isinstance(exc, PartRefused):
                    error = exc.__cause__
                    call = replace(call, sent_parts=exc.sent)
                    await self._note_parts(delivery, exc.sent)
                other = await asyncio.to_thread(alternative, call, error, self._media)
                if other is None:
                    raise error from None
                self._learn(call, error)
                if isinstance(other, BotApiCall) and other.chat != call.chat:
                    await asyncio.to_thread(self._note_move, call.chat, other.chat)
            else:
                other = receipt
            if isinstance(other, Receipt):
                return replace(other, message_id=_full_id(other.message_id, call.chat, home))
            call = other
        return call

    async def _note_parts(self, delivery: Delivery | None, sent: int) -> None:
        """Note how many parts of a text have arrived: the next attempt sends the others."""
        if delivery:
            await asyncio.to_thread(self._cache.put, _parts_key(delivery), str(sent))

    def _learn(self, call: BotApiCall, exc: Exception) -> None:
        """Note what the Bot API server does not know.

        It passes over the blocks of an edit, and misses its text.
        """
        found = reaction(exc)
        if found == "buttons":
            self._missing.note("disabled buttons")
        if call.rich and (found == "down" or "text is empty" in str(exc).lower()):
            self._missing.note("rich messages")

    async def _moved_to(self, chat: str) -> str:
        """Return the chat, or the supergroup that it became."""
        if not re.fullmatch(r"-\d+", chat) or int(chat) < _SUPERGROUPS:
            return chat
        return await asyncio.to_thread(self._cache.get, self._moved_key(chat)) or chat

    def note_moves(self, received: Received) -> Received:
        """Remember that a group became a supergroup.

        Return address changes as of the group that a supergroup was.

        A change of the bot's membership in a group that is no more says nothing of the supergroup.
        One that arrived before the move has closed the address, and the group may have refused
        messages: the supergroup takes them.
        """
        reopened: list[AddressChange] = []
        if received.moved and all(map(_GROUP_ID.fullmatch, received.moved)):
            old, new = received.moved
            self._note_move(old, new)
            reopened.append(AddressChange(Conversation(self.name, old), ""))
        addresses = [
            replace(change, conversation=self._first_address(change.conversation))
            for change in received.addresses
            if not self._has_moved(change.conversation)
        ]
        return replace(received, addresses=(*addresses, *reopened))

    def _has_moved(self, conversation: Conversation) -> bool:
        """Return whether the group is no more, because it became a supergroup."""
        is_group = _GROUP_ID.fullmatch(conversation.chat) is not None
        return is_group and self._cache.get(self._moved_key(conversation.chat)) is not None

    def at_first_address(self, turn: Turn) -> Turn:
        """Return a turn in a supergroup as if it were in the group that the supergroup was."""
        first = turn.conversation
        if turn.in_group:
            first = self._first_address(first)
        if first == turn.conversation:
            return turn
        chat = turn.conversation.chat
        replied_to = turn.replied_to
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
        """Return the address that the conversation of a supergroup began with, as a group."""
        chat = conversation.chat
        if not _GROUP_ID.fullmatch(chat):
            return conversation
        first = self._cache.get(self._first_key(chat))
        if first is None:
            return conversation
        self._note_move(first, chat)  # it is remembered for as long as people write there
        return replace(conversation, chat=first)

    def _note_move(self, old: str, new: str) -> None:
        """Remember that a group became a supergroup."""
        self._cache.put(self._moved_key(old), new)
        self._cache.put(self._first_key(new), old)

    def _first_key(self, chat: str) -> str:
        return f"telegram:first:{self.bot_id}:{chat}"

    def _moved_key(self, chat: str) -> str:
        return f"telegram:moved:{self.bot_id}:{chat}"


def _full_id(message_id: str, chat: str, home: str) -> str:
    """Return the id of a message in the conversation that began in the chat `home`.

    "" for no message.

    A supergroup numbers its messages anew, so the id of one names its chat if it is not `home`:
    "-1001:5".
    """
    if not message_id or chat == home:
        return message_id
    return f"{chat}:{message_id}"


def _parts_key(delivery: Delivery) -> str:
    """Return the key of the note on a text's parts.

    A text that is marked as repeated has other parts.
    """
    return f"telegram:parts:{delivery.id}:{digest(delivery.reply.text)}"


def _in_chat(call: BotApiCall, chat: str) -> BotApiCall | Receipt:
    """Return the call for the chat that a group has become.

    A message of another chat cannot be edited there.
    """
    edited = _MESSAGE_ID.fullmatch(call.reply.edits)
    if edited is None:
        return replace(call, chat=chat)
    edited_in, message_id = edited.groups()
    if (edited_in or call.chat) == chat:
        return replace(call, chat=chat, reply=replace(call.reply, edits=message_id))
    return as_new_message(replace(call, chat=chat))


def _check_size(size: int) -> None:
    if size > FILE_LIMIT:
        raise FetchError(f"the file has {size} bytes: Telegram gives bots at most {FILE_LIMIT}")


def _thread(of: Turn | Delivery) -> int | None:
    thread = of.conversation.thread
    if thread.isdecimal():
        return int(thread)
    return None


def _is_private(conversation: Conversation) -> bool:
    """Return whether the chat is private: ids of groups are negative."""
    return not conversation.chat.startswith("-")
