"""TelegramChannel: one Telegram bot, its webhooks read as plain dicts and its replies sent through the Bot API."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from channels.base import (
    AddressClosed,
    Ambiguous,
    BadHook,
    FetchError,
    Forbidden,
    MediaSource,
    Pace,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from channels.fetch import Download, tls
from channels.http import PerLoop
from channels.markup import plain, split, telegram_html, telegram_length
from channels.types import Button, Conversation, Delivery, Hook, Media, Receipt, Received, Reply, Tap, Turn, storable

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from telegram import Bot, InlineKeyboardMarkup, InputFile

#: Telegram's limits, in UTF-16 code units after formatting is parsed.
TEXT_LIMIT, CAPTION_LIMIT = 4096, 1024
#: Seconds after which "typing" is shown again.
TYPING_SECONDS = 4.0
#: Bytes above which a picture must travel as a document.
PHOTO_LIMIT = 10 * 1024 * 1024
#: Bytes above which Telegram gives a bot no file.
FILE_LIMIT = 20 * 1024 * 1024
#: Telegram's words: about 30 messages a second in all, about one in a private chat (bursts are fine), 20 a minute in a
#: group: five at once and one each 4 s are 20 in the first minute.
CHAT_PACE = Pace(per_second=30, chat_gap=1.0, burst=10)
GROUP_PACE = Pace(per_second=30, chat_gap=4.0, burst=5)

_SECRET_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,256}")
_COMMAND = re.compile(r"^(/\w+)@(\w+)")
_PHOTOS = ("image/jpeg", "image/png")
#: How Telegram says that it will not show a picture.
_NOT_A_PHOTO = ("photo_", "image_process_failed")
#: Where a message carries a file, in the order we look, with the MIME type when Telegram names none.
_FILES = {
    "document": "application/octet-stream",
    "voice": "audio/ogg",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "video_note": "video/mp4",
}
_KNOWN = ("message", "callback_query")
#: The kinds of update that a webhook asks for: what is read here, and no other. Left out of `setWebhook`, the setting
#: before it would stay.
ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "my_chat_member")

Json = Mapping[str, Any]


class TelegramChannel:
    """One bot. Lives as long as the process; it keeps one HTTP client per event loop.

    `api_url` replaces https://api.telegram.org; `username` (without @) sharpens who a group message is addressed to.
    """

    def __init__(
        self,
        name: str,
        *,
        token: str,
        secret_token: str,
        media: MediaSource,
        api_url: str | None = None,
        username: str = "",
    ) -> None:
        if not token.strip():
            raise ValueError("token is empty: take the bot's token from @BotFather")
        if not _SECRET_TOKEN.fullmatch(secret_token):
            raise ValueError("secret_token is empty or malformed: use 1-256 characters of A-Z a-z 0-9 _ -")
        self._name = name
        self._token = token.strip()
        self._secret = secret_token.encode()
        self._media = media
        self._api_url = (api_url or "https://api.telegram.org").rstrip("/")
        self._username = username.lstrip("@").lower()
        self._bots = PerLoop(partial(new_bot, self._token, self._api_url), tls=tls)
        _hush()

    def __repr__(self) -> str:
        return f"TelegramChannel({self._name!r})"

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: Hook) -> Received:
        """Read one update. Updates of other kinds are ignored, never refused: Telegram would send them for a day."""
        secret = hook.header("x-telegram-bot-api-secret-token").encode("utf-8", "replace")
        if not hmac.compare_digest(secret, self._secret):
            raise Forbidden("the secret token header is wrong or missing")
        try:
            update = json.loads(hook.body)
        except (ValueError, RecursionError) as exc:
            raise BadHook("the body is not JSON") from exc
        try:
            return self._read(update)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError):
            return Received(ignored="malformed update")

    def _read(self, update: Json) -> Received:
        kind = next((kind for kind in _KNOWN if kind in update), None)
        if kind is None:
            return Received(ignored=f"update of kind {next((key for key in update if key != 'update_id'), '')!r}")
        event_id, act = f"{update['update_id']}", update[kind]
        if "from" not in act or act["from"].get("is_bot"):
            return Received(ignored="sent by a bot or by nobody")
        turn = self._tap(event_id, act) if kind == "callback_query" else self._message(event_id, act)
        return turn if isinstance(turn, Received) else Received(turns=(turn,))

    def _tap(self, event_id: str, query: Json) -> Turn | Received:
        if "message" not in query or "data" not in query:
            return Received(ignored="tap without a message or data")
        message = query["message"]
        return Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(query["from"]["id"]),
            user_name=_full_name(query["from"]),
            tap=Tap(data=storable(query["data"]), callback_id=query["id"]),
            message_id=str(message["message_id"]),
            language=_language(query["from"]),
        )

    def _message(self, event_id: str, message: Json) -> Turn | Received:
        text = str(message.get("text") or message.get("caption") or "")
        media = tuple(_media(message))
        if not text and not media:
            return Received(ignored="message without text or a file")
        return Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(message["from"]["id"]),
            user_name=_full_name(message["from"]),
            text=self._without_our_name(text),
            media=media,
            message_id=str(message["message_id"]),
            addressed=self._addressed(message, text),
            language=_language(message["from"]),
        )

    def _conversation(self, message: Json) -> Conversation:
        thread = str(message["message_thread_id"]) if message.get("is_topic_message") else ""
        return Conversation(self._name, str(message["chat"]["id"]), thread)

    def _without_our_name(self, text: str) -> str:
        """`/status@acme_bot x` is `/status x` once it reached us."""
        command = _COMMAND.match(text)
        return command.group(1) + text[command.end() :] if command and self._is_us(command.group(2)) else text

    def _addressed(self, message: Json, text: str) -> bool:
        """In a group the bot is addressed by a command, by its name, or by a reply to it."""
        if message["chat"].get("type") == "private":
            return True
        if str(message.get("reply_to_message", {}).get("from", {}).get("id", "")) == self._token.partition(":")[0]:
            return True
        command = _COMMAND.match(text)
        if text.startswith("/"):
            return command is None or self._is_us(command.group(2))
        return any(self._is_us(name) for name in re.findall(r"@(\w+)", text))

    def _is_us(self, username: str) -> bool:
        """Without a configured username any bot's name counts: every one of them ends in "bot"."""
        lowered = username.lower()
        return lowered == self._username if self._username else lowered.endswith("bot")

    def pace(self, conversation: Conversation) -> Pace:
        """Groups are slower: their ids are negative."""
        return GROUP_PACE if conversation.chat.startswith("-") else CHAT_PACE

    def pieces(self, reply: Reply) -> Sequence[Reply]:
        """Captions up to 1024 units stay on their file; longer words follow it. Buttons sit on the last piece."""
        if reply.media and telegram_length(reply.text) <= CAPTION_LIMIT:
            return (reply,)
        texts = [Reply(text) for text in split(reply.text, TEXT_LIMIT, telegram_length) if text.strip()]
        parts = [Reply(media=reply.media), *texts] if reply.media else texts
        if reply.buttons and not parts:
            parts = [Reply(_labels(reply.buttons))]
        return (*parts[:-1], replace(parts[-1], buttons=reply.buttons)) if parts else ()

    async def attend(self, turn: Turn) -> float:
        """Stop the tapped button's spinner and show "typing", which Telegram does for 5 seconds."""
        with contextlib.suppress(Exception):
            bot = self._bots.here()
            steps = [bot.send_chat_action(turn.conversation.chat, "typing", message_thread_id=_thread(turn))]
            if turn.tap and turn.tap.callback_id:
                steps.append(bot.answer_callback_query(turn.tap.callback_id))
            await asyncio.gather(*steps, return_exceptions=True)
        return TYPING_SECONDS

    async def draft(self, turn: Turn, text: str, shown: str = "") -> str:
        """Nothing yet."""
        return ""

    async def fetch(self, media: Media) -> bytes:
        """Ask for a link, then download. The link holds the bot's token: it stays in here."""
        _check_size(media.size)
        link = await self._link(media.ref)
        # PTB passes the path of a file on this machine through, as a local Bot API server would name it.
        if not link.startswith(f"{self._api_url}/file/bot{self._token}/"):
            raise FetchError("Telegram named no link to the file")
        return (await Download(FILE_LIMIT).get(link, {})).data

    async def _link(self, file_id: str) -> str:
        from telegram.error import TelegramError

        try:
            file = await self._bots.here().get_file(file_id)
        except TelegramError as exc:
            raise FetchError(f"Telegram did not say where the file is: {type(exc).__name__}") from None
        _check_size(file.file_size or 0)
        return file.file_path or ""

    async def send(self, delivery: Delivery) -> Receipt:
        """Send one piece; formatting that Telegram cannot parse is sent again as plain text, once."""
        from telegram.error import BadRequest, TelegramError

        try:
            try:
                return await self._post(delivery, telegram_html(delivery.reply.text), "HTML")
            except BadRequest as exc:
                if "parse entities" not in str(exc).lower():
                    raise
                return await self._post(delivery, plain(delivery.reply.text) or delivery.reply.text, None)
        except TelegramError as exc:
            _translate(exc)

    async def _post(self, delivery: Delivery, text: str, parse_mode: str | None) -> Receipt:
        common: dict[str, Any] = {
            "chat_id": delivery.conversation.chat,
            "message_thread_id": _thread(delivery),
            "reply_markup": _keyboard(delivery.reply.buttons),
            "parse_mode": parse_mode,
        }
        if delivery.reply.media:
            return await self._post_file(delivery.reply.media, {**common, "caption": text or None})
        from telegram import LinkPreviewOptions

        sent = await self._bots.here().send_message(text=text, link_preview_options=LinkPreviewOptions(True), **common)
        return Receipt(str(sent.message_id))

    async def _post_file(self, media: Media, common: dict[str, Any]) -> Receipt:
        from telegram import InputFile

        data = await asyncio.to_thread(_read, self._media, media.ref)
        upload = InputFile(data, filename=media.filename or "file")
        if media.mime_type in _PHOTOS and len(data) <= PHOTO_LIMIT:
            with contextlib.suppress(_NotAPhotoError):
                return await self._post_photo(upload, common)
        sent = await self._bots.here().send_document(document=upload, **common)
        return Receipt(str(sent.message_id))

    async def _post_photo(self, upload: InputFile, common: dict[str, Any]) -> Receipt:
        from telegram.error import BadRequest

        try:
            sent = await self._bots.here().send_photo(photo=upload, **common)
        except BadRequest as exc:
            if str(exc).lower().startswith(_NOT_A_PHOTO):
                raise _NotAPhotoError from exc
            raise
        return Receipt(str(sent.message_id))


class _NotAPhotoError(Exception):
    """Raised when Telegram will not show a picture, for its shape or its bytes, but would take it as a document."""


def _hush() -> None:
    """Telegram's URLs contain the bot's token, and httpx logs URLs at INFO; PTB logs words at DEBUG."""
    for name in ("httpx", "httpcore", "telegram"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))


def new_bot(token: str, api_url: str, session: ClientSession) -> Bot:
    """PTB's bot over a kept session; `api_url` is the Bot API server's address."""
    from telegram import Bot
    from telegram.warnings import PTBDeprecationWarning

    from channels.bot_api import KeptRequest

    # PTB warns about its own attribute whenever Telegram asks us to wait.
    warnings.filterwarnings("ignore", message=r".*retry_after", category=PTBDeprecationWarning)
    request = KeptRequest(session)
    return Bot(token, f"{api_url}/bot", f"{api_url}/file/bot", request=request, get_updates_request=request)


def _translate(exc: Exception) -> NoReturn:
    """Say in our words what PTB raised. Order matters: its BadRequest and TimedOut are NetworkErrors too."""
    from telegram import error

    if isinstance(exc, error.RetryAfter):
        raise RateLimited(_seconds(exc)) from exc
    if isinstance(exc, error.Forbidden) or "chat not found" in str(exc).lower():
        raise AddressClosed(_reason(exc)) from exc
    if isinstance(exc, (error.ChatMigrated, error.InvalidToken, error.BadRequest, error.Conflict)):
        raise Refused(_reason(exc)) from exc
    raise _network_trouble(exc) from exc


def _seconds(exc: Any) -> float:
    wait = exc.retry_after
    return float(wait.total_seconds() if hasattr(wait, "total_seconds") else wait)


def _reason(exc: Exception) -> str:
    """The kind of refusal. What follows a colon may quote the message, so it is left out."""
    return f"{type(exc).__name__}: {str(exc).partition(':')[0][:80]}"


def _network_trouble(exc: Exception) -> SendError:
    from channels.bot_api import NeverSent

    if str(exc).startswith("Too Many Requests"):
        return RateLimited(1.0)
    if str(exc).startswith("Request Entity Too Large"):
        return Refused("the file is too large for Telegram")
    if isinstance(exc, NeverSent):
        return Unreachable("no connection to Telegram")
    return Ambiguous("no clear answer from Telegram")


def _check_size(size: int) -> None:
    if size > FILE_LIMIT:
        raise FetchError(f"the file has {size} bytes: Telegram gives bots at most {FILE_LIMIT}")


def _read(source: MediaSource, ref: str) -> bytes:
    try:
        return source.read(ref)
    except KeyError:
        raise Refused("the file to send is gone from the media store") from None


def _thread(of: Turn | Delivery) -> int | None:
    thread = of.conversation.thread
    return int(thread) if thread.isdecimal() else None


def _keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    if not buttons:
        return None
    from telegram import InlineKeyboardButton, InlineKeyboardMarkup

    keys = [
        InlineKeyboardButton(
            button.label,
            callback_data=button.data,
            style=None if button.style == "default" else button.style,
        )
        for button in buttons
    ]
    return InlineKeyboardMarkup([keys[row : row + 2] for row in range(0, len(keys), 2)])


def _labels(buttons: Sequence[Button]) -> str:
    """Telegram refuses buttons without words, so the buttons' own labels stand in."""
    return " / ".join(button.label for button in buttons)


def _language(person: Json) -> str:
    """The language of the person's Telegram app. Not every app tells."""
    return str(person.get("language_code") or "")


def _full_name(user: Json) -> str:
    return " ".join(str(user[part]) for part in ("first_name", "last_name") if user.get(part))


def _media(message: Json) -> list[Media]:
    if message.get("photo"):
        largest = message["photo"][-1]
        return [Media(largest["file_id"], "image/jpeg", size=int(largest.get("file_size") or 0))]
    for kind, mime_type in _FILES.items():
        if kind in message:
            file = message[kind]
            return [
                Media(
                    ref=file["file_id"],
                    mime_type=file.get("mime_type") or mime_type,
                    filename=file.get("file_name") or "",
                    size=int(file.get("file_size") or 0),
                )
            ]
    return []
