"""TelegramChannel: one Telegram bot, its webhooks read as plain dicts and its replies sent through the Bot API."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import warnings
import zlib
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from sayso.channels.base import (
    BadHook,
    FetchError,
    Forbidden,
    MediaSource,
    RateLimit,
    SendError,
    SharedCache,
    WebhookConflict,
)
from sayso.channels.http import ANSWER_SECONDS, PooledSessions, SafeDownload, tls
from sayso.channels.markdown import telegram_length
from sayso.channels.markdown.split import fits, split
from sayso.channels.telegram.errors import reaction, send_error
from sayso.channels.telegram.outgoing import CAPTION_LIMIT, TEXT_LIMIT, BotApiCall, anew, beginning, instead
from sayso.channels.telegram.updates import ALLOWED_UPDATES, UpdateParser
from sayso.channels.types import Button, Conversation, Delivery, Media, Receipt, Received, Reply, Turn, WebhookRequest

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from telegram import Bot
    from telegram.error import TelegramError

T = TypeVar("T")

#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 4.0
#: Seconds for which Telegram may have no answer to a question for updates. It would take 50; a connection that broke
#: without a sign is noticed sooner.
POLL_SECONDS = 25
#: Bytes above which Telegram gives a bot no file.
FILE_LIMIT = 20 * 1024 * 1024
#: Taps that a process remembers to have acknowledged.
MAX_ANSWERED = 1000
#: Telegram's words: about 30 messages a second in all, about one in a private chat (bursts are fine), 20 a minute in a
#: group: five at once and one each 4 s are 20 in the first minute.
CHAT_PACE = RateLimit(per_second=30, chat_gap=1.0, burst=10, draft_gap=1.0)
GROUP_PACE = RateLimit(per_second=30, chat_gap=4.0, burst=5, draft_gap=4.0)

_SECRET_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,256}")
#: Ids of supergroups are below this one. Basic groups, whose ids are negative and above, become supergroups.
_SUPERGROUPS = -1_000_000_000_000


class TelegramChannel:
    """One bot. Lives as long as the process; it keeps one HTTP client per event loop.

    `api_url` replaces https://api.telegram.org. `username` says which @name is the bot's in a group; without it any
    that ends in "bot" is. The notebook keeps where groups moved: `telegram:moved:<bot id>:<old chat>`. Without a
    secret it takes no webhooks: it is to be asked for its updates. Raises ValueError for a token or a secret that
    cannot be one.
    """

    def __init__(
        self,
        name: str,
        *,
        token: str,
        secret_token: str | None,
        media: MediaSource,
        notebook: SharedCache,
        api_url: str | None = None,
        username: str = "",
    ) -> None:
        if not token.strip():
            raise ValueError("token is empty: take the bot's token from @BotFather")
        if secret_token is not None and not _SECRET_TOKEN.fullmatch(secret_token):
            raise ValueError("secret_token is empty or malformed: use 1-256 characters of A-Z a-z 0-9 _ -")
        self._name = name
        self._token = token.strip()
        self._secret = None if secret_token is None else secret_token.encode()
        self._media, self._notebook = media, notebook
        self._api_url = (api_url or "https://api.telegram.org").rstrip("/")
        self.bot_id = self._token.partition(":")[0]
        self._reader = UpdateParser(name, self.bot_id, username.lstrip("@").lower())
        self._answered: frozenset[str] = frozenset()
        self._bots = PooledSessions(partial(new_bot, self._token, self._api_url), tls=tls)

    def __repr__(self) -> str:
        return f"TelegramChannel({self._name!r})"

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    @property
    def polls(self) -> bool:
        """Whether its updates are asked for, and no webhook brings them."""
        return self._secret is None

    def receive(self, hook: WebhookRequest) -> Received:
        """Read one update. Updates of other kinds are ignored, never refused: Telegram would send them for a day."""
        if self._secret is None:
            raise Forbidden("this channel polls: nothing is sent to it")
        secret = hook.header("x-telegram-bot-api-secret-token").encode("utf-8", "replace")
        if not secret:
            raise Forbidden("there is no X-Telegram-Bot-Api-Secret-Token header: set the webhook with its secret_token")
        if not hmac.compare_digest(secret, self._secret):
            raise Forbidden("the X-Telegram-Bot-Api-Secret-Token header is wrong: set the webhook again")
        try:
            update = json.loads(hook.body)
        except (ValueError, RecursionError) as exc:
            raise BadHook("the body is not JSON") from exc
        return self.read(update)

    def read(self, update: Any) -> Received:
        """What one update holds, of whatever kind or shape it is."""
        try:
            return self._reader.read(update)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError):
            return Received(ignored="malformed update")

    async def updates(self, offset: int | None) -> list[Any]:
        """What came in, as webhooks would bring it; while there is nothing it waits for POLL_SECONDS. What is before
        `offset` Telegram forgets. Raises SendError, Elsewhere.
        """
        from telegram.error import Conflict

        asked = {"offset": offset, "timeout": POLL_SECONDS, "allowed_updates": ALLOWED_UPDATES}
        calling = self._bots.here().do_api_request(
            "getUpdates", api_kwargs=asked, read_timeout=POLL_SECONDS + ANSWER_SECONDS
        )
        try:
            found = await self._told(calling)
        except SendError as exc:
            if not isinstance(exc.__cause__, Conflict):
                raise
            raise WebhookConflict(_taken(str(exc.__cause__), self._name)) from exc
        return found if isinstance(found, list) else []

    def pace(self, conversation: Conversation) -> RateLimit:
        """Groups are slower: their ids are negative."""
        return CHAT_PACE if _is_private(conversation) else GROUP_PACE

    def pieces(self, reply: Reply) -> Sequence[Reply]:
        """Captions up to 1024 units stay on their file; longer words follow it. Buttons sit on the last piece.

        What an edit cannot change, which is a file, follows the words.
        """
        if reply.media and not reply.edits and fits(reply.text, CAPTION_LIMIT, telegram_length):
            return (reply,)
        texts = [Reply(text) for text in split(reply.text, TEXT_LIMIT, telegram_length) if text.strip()]
        file = [Reply(media=reply.media)] if reply.media else []
        parts = [*texts, *file] if reply.edits else [*file, *texts]
        if reply.buttons and not parts:
            parts = [Reply(_labels(reply.buttons))]
        if not parts:
            return ()
        parts[0] = replace(parts[0], edits=reply.edits, optional=reply.optional)
        return (*parts[:-1], replace(parts[-1], buttons=reply.buttons))

    async def attend(self, turn: Turn) -> float:
        """Stop the tapped button's spinner, once, and show "typing", which Telegram does for 5 seconds."""
        with contextlib.suppress(Exception):
            bot, chat = self._bots.here(), await self._moved_to(turn.conversation.chat)
            steps = [bot.send_chat_action(chat, "typing", message_thread_id=_thread(turn))]
            if turn.tap and self._is_first(turn.tap.callback_id):
                steps.append(bot.answer_callback_query(turn.tap.callback_id))
            await asyncio.gather(*steps, return_exceptions=True)
        return TYPING_SECONDS

    def _is_first(self, callback_id: str) -> bool:
        """Whether this process did not answer that tap yet. Replaced as a whole, so that threads need no lock."""
        if not callback_id or callback_id in self._answered:
            return False
        self._answered = (self._answered if len(self._answered) < MAX_ANSWERED else frozenset()) | {callback_id}
        return True

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """In private the platform's own draft, which goes by itself and which its person may stop; in a group a message
        that is edited. Of a text too long for one message its beginning is shown.
        """
        text = beginning(text)
        if _is_private(turn.conversation):
            return await self._told(self._sketch(turn, text))
        if not text.strip():
            return shown
        post = BotApiCall(turn.conversation.chat, _thread(turn), Reply(text, edits=shown))
        return (await self._told(self._deliver(post))).message_id

    async def _sketch(self, turn: Turn, text: str) -> str:
        from telegram.error import BadRequest

        post = BotApiCall(turn.conversation.chat, _thread(turn), Reply(text))
        try:
            await self._show(turn, post)
        except BadRequest as exc:
            if reaction(exc) != "plain":
                raise
            await self._show(turn, replace(post, formatted=False))
        return ""

    async def _show(self, turn: Turn, post: BotApiCall) -> None:
        words, parse_mode = post.words
        await self._bots.here().send_message_draft(
            chat_id=int(post.chat),
            draft_id=_draft_id(turn),
            text=words,
            message_thread_id=post.thread,
            parse_mode=parse_mode,
            api_kwargs={"can_stop": True},
        )

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Ask for a link, then download. The link holds the bot's token: it stays in here."""
        _check_size(media.size)
        link = await self._link(media.ref)
        # PTB passes the path of a file on this machine through, as a local Bot API server would name it.
        if not link.startswith(f"{self._api_url}/file/bot{self._token}/"):
            raise FetchError("Telegram named no link to the file")
        await SafeDownload(FILE_LIMIT).save(link, {}, file)

    async def _link(self, file_id: str) -> str:
        from telegram.error import TelegramError

        try:
            file = await self._bots.here().get_file(file_id)
        except TelegramError as exc:
            raise FetchError(f"Telegram did not say where the file is: {type(exc).__name__}") from None
        _check_size(file.file_size or 0)
        return file.file_path or ""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece, or edit a message of ours. What Telegram refuses as it is goes otherwise, once: plain words,
        a document, a link, a message of its own, to the group's new id.
        """
        reply = delivery.reply
        post = BotApiCall(delivery.conversation.chat, _thread(delivery), reply)
        impossible = reply.edits and (reply.media or not reply.edits.isdecimal())
        return await self._told(self._deliver(anew(post) if impossible else post))

    async def _told(self, sending: Awaitable[T]) -> T:
        """What came of it. Raises SendError in place of PTB's errors."""
        from telegram.error import TelegramError

        try:
            return await sending
        except TelegramError as exc:
            raise send_error(exc) from exc

    async def _deliver(self, post: BotApiCall | Receipt) -> Receipt:
        from telegram.error import TelegramError

        if isinstance(post, BotApiCall):
            post = replace(post, chat=await self._moved_to(post.chat))
        while isinstance(post, BotApiCall):
            try:
                return await post.to(self._bots.here(), self._media)
            except TelegramError as exc:
                post = await self._other(post, exc)
        return post

    async def _other(self, post: BotApiCall, exc: TelegramError) -> BotApiCall | Receipt:
        other = await asyncio.to_thread(instead, post, exc, self._media)
        if other is None:
            raise exc
        if isinstance(other, BotApiCall) and other.chat != post.chat:
            await asyncio.to_thread(self._notebook.put, self._moved_key(post.chat), other.chat)
        return other

    async def _moved_to(self, chat: str) -> str:
        """The chat, or the supergroup that it became."""
        if not re.fullmatch(r"-\d+", chat) or int(chat) < _SUPERGROUPS:
            return chat
        return await asyncio.to_thread(self._notebook.get, self._moved_key(chat)) or chat

    def _moved_key(self, chat: str) -> str:
        return f"telegram:moved:{self.bot_id}:{chat}"


def _hush() -> None:
    """Telegram's URLs contain the bot's token, and httpx logs URLs at INFO; PTB logs words at DEBUG, and an answer that
    it cannot read at ERROR.
    """
    for name, level in (("httpx", logging.WARNING), ("httpcore", logging.WARNING), ("telegram", logging.CRITICAL)):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, level))


def new_bot(token: str, api_url: str, session: ClientSession) -> Bot:
    """PTB's bot over a kept session; `api_url` is the Bot API server's address."""
    from telegram import Bot
    from telegram.warnings import PTBDeprecationWarning, PTBUserWarning

    from sayso.channels.telegram.client import PooledRequest

    _hush()
    # PTB warns about its own attribute whenever Telegram asks us to wait.
    warnings.filterwarnings("ignore", message=r".*retry_after", category=PTBDeprecationWarning)
    # Its own method makes objects of updates: one of a form that it does not expect would hide all others.
    warnings.filterwarnings("ignore", message=r"Please use 'Bot\.getUpdates'", category=PTBUserWarning)
    request = PooledRequest(session)
    return Bot(token, f"{api_url}/bot", f"{api_url}/file/bot", request=request, get_updates_request=request)


def _taken(said: str, channel: str) -> str:
    """Who has the updates, by Telegram's words."""
    if "webhook" in said.lower():
        return f"a webhook is set, so Telegram tells nothing to who asks: run `sayso channel disconnect {channel}`"
    return "another program asks for the updates of this bot: stop it, or give it a bot of its own"


def _check_size(size: int) -> None:
    if size > FILE_LIMIT:
        raise FetchError(f"the file has {size} bytes: Telegram gives bots at most {FILE_LIMIT}")


def _thread(of: Turn | Delivery) -> int | None:
    thread = of.conversation.thread
    return int(thread) if thread.isdecimal() else None


def _is_private(conversation: Conversation) -> bool:
    """Ids of groups are negative."""
    return not conversation.chat.startswith("-")


def _draft_id(turn: Turn) -> int:
    """The draft of a turn: the same for each step of its answer, never 0."""
    return zlib.crc32(turn.event_id.encode()) % 0x7FFFFFFF + 1


def _labels(buttons: Sequence[Button]) -> str:
    """Telegram refuses buttons without words, so the buttons' own labels stand in."""
    return " / ".join(button.label for button in buttons)
