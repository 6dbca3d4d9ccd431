"""Posts: one reply as a call of the Bot API, and what is sent in its place where Telegram will not have it so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sayso.channels.base import MediaSource, Refused
from sayso.channels.markdown import plain, telegram_html, telegram_length
from sayso.channels.markdown.split import head
from sayso.channels.telegram.errors import reaction
from sayso.channels.types import Button, Media, Receipt, Reply

if TYPE_CHECKING:
    from telegram import Bot, InlineKeyboardMarkup, Message

#: Telegram's limits, in UTF-16 code units after formatting is parsed.
TEXT_LIMIT, CAPTION_LIMIT = 4096, 1024
#: Bytes above which a picture must travel as a document.
PHOTO_LIMIT = 10 * 1024 * 1024
#: What Telegram plays or shows, by MIME type; it takes the rest as documents.
_SHOWN = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/gif": "animation",
    "audio/ogg": "voice",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "audio/x-m4a": "audio",
    "video/mp4": "video",
}
#: Entities that Telegram formats; of those beyond the words arrive, and of a link not its address.
ENTITY_LIMIT = 100
#: Characters of Markdown that are looked at for one message, and units kept for the sign that more is to come.
_WIDEST, _ROOM = 2 * TEXT_LIMIT, 16
_UNITS = ((1024 * 1024, "MB"), (1024, "KB"), (1, "B"))


@dataclass(frozen=True, slots=True)
class BotApiCall:
    """One reply on its way into one chat, as plain words if not `formatted`.

    `moved`: Telegram named this chat in place of another. `shape`: "caption" edits the words under a file, "document"
    sends a file without showing it.
    """

    chat: str
    thread: int | None
    reply: Reply
    formatted: bool = True
    moved: bool = False
    shape: Literal["", "caption", "document"] = ""

    async def to(self, bot: Bot, source: MediaSource) -> Receipt:
        """Send it, or edit what it takes the place of. Raises PTB's errors, and Refused where its file is gone."""
        if self.reply.media:
            return await self._file(bot, self.reply.media, source)
        if self.reply.edits:
            return await self._edit(bot)
        what = {**self._common("text"), **self._place()}
        sent = await bot.send_message(link_preview_options=_no_preview(), **what)
        return _receipt(sent)

    @property
    def words(self) -> tuple[str, str | None]:
        """The text and how it is formatted: as Telegram's HTML, or not at all where that would show nothing, as of an
        empty block of code, or would lose an address.
        """
        text = self.reply.text
        html = telegram_html(text) if self.formatted else ""
        loses = "<a " in html and html.count("</") > ENTITY_LIMIT
        if re.sub(r"<[^>]*>", "", html).strip() and not loses:
            return html, "HTML"
        words = plain(text)
        return words if words.strip() else text, None

    def _common(self, field: str) -> dict[str, Any]:
        words, parse_mode = self.words
        markup = _keyboard(self.reply.buttons)
        return {"chat_id": self.chat, field: words or None, "parse_mode": parse_mode, "reply_markup": markup}

    def _place(self) -> dict[str, Any]:
        """Return what says where a new message is shown, and to whom. The library has no name for the latter yet."""
        place = {"message_thread_id": self.thread}
        if not self.reply.only_for:
            return place
        receiver = {"receiver_user_id": int(self.reply.only_for)}
        return {**place, "api_kwargs": {"ephemeral_message_parameters": receiver}}

    async def _edit(self, bot: Bot) -> Receipt:
        """Without buttons those of the old message go."""
        what = {**self._common("caption" if self.shape else "text"), "message_id": int(self.reply.edits)}
        if self.shape:
            edited = await bot.edit_message_caption(**what)
        else:
            edited = await bot.edit_message_text(link_preview_options=_no_preview(), **what)
        at = getattr(edited, "edit_date", None)
        # The date has whole seconds, and the message is older than the edit: only a later second is certainly after it.
        return Receipt(self.reply.edits, at.timestamp() + 1 if at else 0.0)

    async def _file(self, bot: Bot, media: Media, source: MediaSource) -> Receipt:
        from telegram import InputFile

        data = await asyncio.to_thread(_read, source, media.ref)
        kind = self._kind(media, len(data))
        what = {**self._common("caption"), **self._place()}
        upload = {kind: InputFile(data, filename=media.filename or "file")}
        sent = await getattr(bot, f"send_{kind}")(**upload, **what)
        return _receipt(sent)

    def _kind(self, media: Media, size: int) -> str:
        kind = _SHOWN.get(media.mime_type.partition(";")[0].strip().lower(), "document")
        return "document" if self.shape == "document" or (kind == "photo" and size > PHOTO_LIMIT) else kind


def _receipt(sent: Message) -> Receipt:
    """What Telegram sends later by itself has the id 0 until then, as many others have."""
    return Receipt(str(sent.message_id or ""), sent.date.timestamp())


def instead(post: BotApiCall, exc: Any, source: MediaSource) -> BotApiCall | Receipt | None:
    """What to send after this error of PTB: a receipt where nothing is to be sent, None where nothing helps.

    Each is tried once: what was given up of a post does not come back.
    """
    reply = post.reply
    match reaction(exc):
        case "done":
            return Receipt(reply.edits)
        case "moved" if not post.moved:
            return replace(post, chat=str(exc.new_chat_id), moved=True)
        case "plain" if post.formatted:
            return replace(post, formatted=False)
        case "caption" if not post.shape and telegram_length(reply.text) <= CAPTION_LIMIT:
            return replace(post, shape="caption")
        case "caption" | "anew" if reply.edits:
            return anew(post)
        case "document" | "refused" if reply.media and not post.shape:
            return replace(post, shape="document")
        case "link" | "document" | "refused" if reply.media:
            return replace(post, reply=replace(reply, text=_linked(reply.text, reply.media, source), media=None))
    return None


def anew(post: BotApiCall) -> BotApiCall | Receipt:
    """What cannot be an edit, as a message of its own; an optional one is left out."""
    return Receipt("") if post.reply.optional else replace(post, reply=replace(post.reply, edits=""), shape="")


def beginning(md: str) -> str:
    """The text, or as much of it as one message holds."""
    if len(md) <= _WIDEST and telegram_length(md) <= TEXT_LIMIT:
        return md
    return f"{head(md[:_WIDEST], TEXT_LIMIT - _ROOM, telegram_length)}…"


def _linked(text: str, media: Media, source: MediaSource) -> str:
    """The words, then the file's name, its size and an address to fetch it from."""
    url = source.url(media.ref, filename=media.filename, mime_type=media.mime_type)
    name = re.sub(r"([^\w\s])", r"\\\1", media.filename or "file", flags=re.ASCII)
    return f"{text}\n\n{name} ({_size(len(_read(source, media.ref)))}): {url}".strip()


def _size(size: int) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), _UNITS[-1])
    return f"{size / unit:.3g} {name}"


def _read(source: MediaSource, ref: str) -> bytes:
    try:
        return source.read(ref)
    except KeyError:
        raise Refused("the file to send is gone from the media store") from None


def _no_preview() -> Any:
    from telegram import LinkPreviewOptions

    return LinkPreviewOptions(True)


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
