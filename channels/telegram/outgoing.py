"""A reply as calls of the Bot API: how it is split, sent, and changed if Telegram refuses it.

Each `BotApiCall` sends one piece of a reply. If Telegram refuses it, `alternative` returns the next
call to try, such as the same text without formatting, until one is accepted or none is left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sayso.channels.base import MediaStore
from sayso.channels.markdown.convert import button_text, plain, telegram_html, telegram_length
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.split import fits, head, split
from sayso.channels.media_store import file_to_send, open_on_disk, size_of
from sayso.channels.telegram.client import TelegramReaction, reaction
from sayso.channels.telegram.incoming import ephemeral_id
from sayso.channels.telegram.rich_outgoing import has_table, reads_right_to_left, rich_blocks
from sayso.channels.types import Media, Receipt, Reply, joined_labels, readable_size

if TYPE_CHECKING:
    from telegram import Bot, InlineKeyboardMarkup, Message

#: The longest text of a message and of a caption, in UTF-16 code units without formatting.
TEXT_LIMIT = 4096
CAPTION_LIMIT = 1024
#: The largest picture in bytes; a larger one is sent as a document.
PHOTO_LIMIT = 10 * 1024 * 1024
#: The media that Telegram plays or shows, by MIME type. All others are sent as documents.
_METHODS = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/gif": "animation",
    "audio/ogg": "voice",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "audio/x-m4a": "audio",
    "video/mp4": "video",
}
#: How many entities Telegram formats in one message. Further ones arrive as plain text,
#: and links lose their address.
ENTITY_LIMIT = 100
#: How many characters a button that takes a whole row shows on a phone.
EFFECT_LIMIT = 32
#: The longest text that answers a tap, in UTF-16 code units.
ALERT_LIMIT = 200
#: How many characters of Markdown are examined for one message.
_MAX_SOURCE_CHARS = 2 * TEXT_LIMIT
#: How many UTF-16 units are kept free for the ellipsis of a text that is cut.
_ELLIPSIS_UNITS = 16


def is_better_rich(reply: Reply) -> bool:
    """Return whether a rich message shows a reply better: a table, or one message for several.

    A question or an offer with a time limit is never rich: an app that cannot show a rich message
    would show the buttons without what they agree to.
    """
    is_question = bool(reply.preview or reply.answer_seconds or reply.decided_buttons)
    if is_question or reply.media or reply.answers_tap or reply.only_for or not reply.text:
        return False

    is_long = telegram_length(reply.text) > TEXT_LIMIT
    if not (is_long or has_table(reply.text)):
        return False
    return rich_blocks(reply.text) is not None


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return the messages of a reply, none for a reply without content.

    A text of up to CAPTION_LIMIT units is its file's caption; a longer one follows the file.
    Buttons are on the last message. All messages of a question keep its time limit: by it
    `is_better_rich` tells them from answers.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    if reply.media and not reply.edits and fits(reply.text, CAPTION_LIMIT, telegram_length):
        return (reply,)

    texts = split(reply.text, TEXT_LIMIT, telegram_length)
    pieces = [Reply(text) for text in texts if text.strip()]
    if reply.media:
        file = Reply(media=reply.media)
        # An edit cannot change a file, so the file follows the edited text.
        if reply.edits:
            pieces.append(file)
        else:
            pieces.insert(0, file)
    # Telegram takes no buttons without a message.
    if reply.buttons and not pieces:
        pieces = [Reply(as_markdown(joined_labels(reply.buttons)))]
    if not pieces:
        return ()

    pieces[0] = replace(
        pieces[0],
        edits=reply.edits,
        optional=reply.optional,
        removes=reply.removes,
        decided_buttons=reply.decided_buttons,
    )
    pieces[-1] = replace(pieces[-1], buttons=reply.buttons)
    return tuple(replace(piece, answer_seconds=reply.answer_seconds) for piece in pieces)


def format_preview(md: str) -> str:
    """Return how Telegram shows the preview of a question: like the text around it.

    Marks that set it apart, such as those of bold text, would be added here.
    """
    return md


class PartRefused(Exception):
    """Raised when Telegram took the first `sent_parts` parts of a text and not the next one.

    Its cause is PTB's error.
    """

    def __init__(self, sent_parts: int) -> None:
        super().__init__(sent_parts)
        self.sent_parts = sent_parts


@dataclass(frozen=True, slots=True)
class BotApiCall:
    """One piece of a reply to one chat, and the form in which it is sent.

    A value. If Telegram refuses it, `alternative` returns a changed copy.
    """

    #: Telegram's id of the chat.
    chat: str
    #: The number of the topic, None outside of topics.
    thread: int | None
    reply: Reply
    #: Whether the text is sent as HTML, and not as plain text.
    formatted: bool = True
    #: Whether `chat` is the new id that Telegram named in its refusal of another chat.
    is_moved: bool = False
    #: "caption": the text under a file is edited. "document": a file is sent without preview. "":
    #: neither.
    shape: Literal["", "caption", "document"] = ""
    #: The id of the native draft in a private chat that the text replaces, 0 if it is not a draft.
    draft_id: int = 0
    #: Whether the text is sent as a rich message.
    rich: bool = False
    #: How many parts of a text that is too long for one message have arrived.
    sent_parts: int = 0

    async def to(self, bot: Bot, source: MediaStore) -> Receipt:
        """Send the reply or edit the message, with `bot`. `source` has the reply's file.

        Raises PTB's errors, PartRefused, and Refused if the file is gone.
        """
        if self.reply.answers_tap:
            text = head(plain(self.reply.text), ALERT_LIMIT, telegram_length)
            await bot.answer_callback_query(self.reply.answers_tap, text, show_alert=True)
            return Receipt("")
        if self.reply.media:
            return await self._file(bot, self.reply.media, source)
        if self.rich:
            return await self._rich(bot)
        if not self.shape and not fits(self.reply.text, TEXT_LIMIT, telegram_length):
            return await self._in_pieces(bot, source)
        if self.reply.edits:
            return await self._edit(bot)
        if self.draft_id:
            text, parse_mode = self.text_and_mode
            await bot.send_message_draft(
                int(self.chat),
                self.draft_id,
                text,
                self.thread,
                parse_mode,
                api_kwargs={"can_stop": True},
            )
            return Receipt("")
        params = {**self._content_params("text"), **self._place_params()}
        message = await bot.send_message(link_preview_options=_no_preview(), **params)
        return self._receipt(message)

    def _receipt(self, message: Message) -> Receipt:
        """Return the receipt of a message.

        It has no id if Telegram sends the message later: such a message has the id 0 until then.
        """
        message_id = str(message.message_id or "")
        number = message.api_kwargs.get("ephemeral_message_id")
        if number and self.reply.only_for:
            message_id = ephemeral_id(self.reply.only_for, str(number))
        return Receipt(message_id, message.date.timestamp())

    async def _rich(self, bot: Bot) -> Receipt:
        """Send a rich message, or edit a message into one. PTB has no method for it yet."""
        rich_message: dict[str, Any] = {"blocks": rich_blocks(self.reply.text)}
        # Telegram finds out the direction of text by itself, but not the order of columns.
        if reads_right_to_left(self.reply.text):
            rich_message["is_rtl"] = True

        params: dict[str, Any] = {"chat_id": self.chat, "rich_message": rich_message}
        markup = self._content_params("text")["reply_markup"]
        if markup:
            params["reply_markup"] = markup

        if self.reply.edits:
            params["message_id"] = int(self.reply.edits)
            answer: Any = await bot.do_api_request("editMessageText", api_kwargs=params)
            edit_date = 0
            if isinstance(answer, dict):
                edit_date = answer.get("edit_date", 0)
            return Receipt(self.reply.edits, _after_edit(edit_date))

        if self.thread is not None:
            params["message_thread_id"] = self.thread
        message: Any = await bot.do_api_request("sendRichMessage", api_kwargs=params)
        return Receipt(str(message.get("message_id") or ""), float(message.get("date") or 0))

    async def _in_pieces(self, bot: Bot, source: MediaStore) -> Receipt:
        """Send a text as several messages in place of one rich message.

        The buttons are under the last one. Parts that arrived are not sent again. Raises PTB's
        errors for the first part, PartRefused for a later one.
        """
        from telegram.error import TelegramError

        whole = self.reply
        receipt = Receipt("")
        for number, piece in enumerate(pieces_of(whole)):
            if number < self.sent_parts:
                continue
            part = replace(piece, only_for=whole.only_for, only_for_act=whole.only_for_act)
            call = replace(self, reply=part)
            try:
                receipt = await call.formatted_or_plain(bot, source)
            except TelegramError as exc:
                if number == 0:
                    raise
                raise PartRefused(number) from exc
        return receipt

    async def formatted_or_plain(self, bot: Bot, source: MediaStore) -> Receipt:
        """Send the reply, as plain text if Telegram refuses its formatting. Raises PTB's errors."""
        from telegram.error import BadRequest

        try:
            return await self.to(bot, source)
        except BadRequest as exc:
            next_step = reaction(exc)
            # The message shows the text already: an earlier attempt or a draft has edited it.
            if next_step == "done" and self.reply.edits:
                return Receipt(self.reply.edits)
            if next_step != "plain":
                raise
            return await replace(self, formatted=False).to(bot, source)

    def without_decided_buttons(self) -> BotApiCall:
        """Return the call without the disabled buttons of a decided question."""
        return replace(self, reply=replace(self.reply, decided_buttons=()))

    @property
    def text_and_mode(self) -> tuple[str, str | None]:
        """The text and its parse mode: Telegram's HTML, or None for plain text.

        Plain text is used where the HTML would show nothing, such as an empty code block,
        or would lose an address.
        """
        text = self.reply.text
        html = telegram_html(text) if self.formatted else ""
        visible_text = re.sub(r"<[^>]*>", "", html).strip()
        loses_addresses = "<a " in html and html.count("</") > ENTITY_LIMIT
        if visible_text and not loses_addresses:
            return html, "HTML"

        plain_text = plain(text)
        if plain_text.strip():
            return plain_text, None
        return text, None

    def _content_params(self, field: str) -> dict[str, Any]:
        """Return the parameters for the chat, the text and the buttons.

        `field` is the parameter of the text: "text" or "caption".
        """
        text, parse_mode = self.text_and_mode
        return {
            "chat_id": self.chat,
            field: text or None,
            "parse_mode": parse_mode,
            "reply_markup": self._buttons(),
        }

    def _buttons(self) -> InlineKeyboardMarkup | None:
        """Return the buttons, two in a row or one if they are long; None if there are none."""
        from telegram import InlineKeyboardButton, InlineKeyboardMarkup

        keys = []
        row_length = 2
        for button in self.reply.buttons or self.reply.decided_buttons:
            action: dict[str, Any] = {"callback_data": button.data}
            if not self.reply.buttons:
                # PTB has no parameter for a disabled button yet.
                action = {"api_kwargs": {"disabled": {}}}
            style = None if button.style == "default" else button.style
            label = button_text(button, EFFECT_LIMIT)
            if label != button.label:
                # It shows its effect, which is too long for half a row.
                row_length = 1
            keys.append(InlineKeyboardButton(label, style=style, **action))
        if not keys:
            return None

        starts = range(0, len(keys), row_length)
        return InlineKeyboardMarkup([keys[start : start + row_length] for start in starts])

    def _place_params(self) -> dict[str, Any]:
        """Return the parameters for the thread, and for the only person who sees the message.

        Telegram lets an administrator write to one person at any time, and any other bot for 15
        seconds after an act of that person, which the bot must name.
        """
        place: dict[str, Any] = {"message_thread_id": self.thread}
        # A private chat has no other readers.
        is_group = self.chat.startswith("-")
        if not (self.reply.only_for and is_group):
            return place

        # PTB has no parameters for these yet.
        receiver: dict[str, Any] = {"receiver_user_id": int(self.reply.only_for)}
        api_kwargs: dict[str, Any] = {"ephemeral_message_parameters": receiver}
        act = self.reply.only_for_act
        if act.startswith("u"):
            # A message that only this person saw, see `ephemeral_id`.
            number = int(act.rpartition(":")[2])
            api_kwargs["reply_parameters"] = {"ephemeral_message_id": number}
        elif act:
            receiver["callback_query_id"] = act
        return {**place, "api_kwargs": api_kwargs}

    async def _edit(self, bot: Bot) -> Receipt:
        """Edit the text and the buttons, or delete the message if it has no more use.

        Without buttons in the reply the old ones disappear.
        """
        if self.reply.edits.startswith("u"):
            return await self._edit_ephemeral(bot)
        number = int(self.reply.edits)
        if self.reply.removes:
            await bot.delete_message(self.chat, number)
            return Receipt("")
        if self.shape:
            params = {**self._content_params("caption"), "message_id": number}
            answer = await bot.edit_message_caption(**params)
        else:
            params = {**self._content_params("text"), "message_id": number}
            answer = await bot.edit_message_text(link_preview_options=_no_preview(), **params)
        edit_date = getattr(answer, "edit_date", None)
        seconds = edit_date.timestamp() if edit_date else 0.0
        return Receipt(self.reply.edits, _after_edit(seconds))

    async def _edit_ephemeral(self, bot: Bot) -> Receipt:
        """Edit a message that one person sees.

        Telegram has separate methods for it, and does not say when the message was edited.
        """
        # See `ephemeral_id`.
        receiver, _, number = self.reply.edits.removeprefix("u").partition(":")
        ids = {"receiver_user_id": int(receiver), "ephemeral_message_id": int(number)}
        if self.shape:
            method = "editEphemeralMessageCaption"
            params = {**self._content_params("caption"), **ids}
        else:
            method = "editEphemeralMessageText"
            params = {**self._content_params("text"), **ids, "link_preview_options": _no_preview()}
        present = {name: value for name, value in params.items() if value is not None}
        await bot.do_api_request(method, api_kwargs=present)
        return Receipt(self.reply.edits)

    async def _file(self, bot: Bot, media: Media, source: MediaStore) -> Receipt:
        """Send a file, with the text as its caption."""
        from telegram import InputFile

        mime_type = media.mime_type.partition(";")[0].strip().lower()
        kind = _METHODS.get(mime_type, "document")
        params = {**self._content_params("caption"), **self._place_params()}
        open_file = partial(open_on_disk, source)
        with await asyncio.to_thread(file_to_send, open_file, media.ref) as file:
            is_large_photo = kind == "photo" and size_of(file) > PHOTO_LIMIT
            if self.shape == "document" or is_large_photo:
                kind = "document"
            name = media.filename or "file"
            params[kind] = InputFile(file, filename=name, read_file_handle=False)
            send = getattr(bot, f"send_{kind}")
            message = await send(**params)
        return self._receipt(message)


def _after_edit(edit_date: float) -> float:
    """Return a time in Unix seconds that is certainly after an edit, 0.0 for an unknown time.

    Telegram's dates have whole seconds, so that is the next second.
    """
    if edit_date:
        return edit_date + 1.0
    return 0.0


def alternative(call: BotApiCall, exc: Any, source: MediaStore) -> BotApiCall | Receipt | None:
    """Return what to send after Telegram refused a call with this error of PTB.

    It is a receipt if nothing remains to be sent, None if nothing helps. Each alternative is tried
    once: a form that Telegram refused is not tried again.

    | the error says                 | next                                              |
    |--------------------------------|---------------------------------------------------|
    | the message shows it already   | a receipt                                         |
    | the act of one person is old   | without the act                                   |
    | no rich messages here          | as usual messages                                 |
    | no message for one person here | an edit of one as a new message                   |
    | it cannot be deleted           | its text as an edit                               |
    | no disabled buttons here       | without them                                      |
    | the group has another id       | to that id, an edit as a new message              |
    | the topic is gone              | to the chat                                       |
    | the formatting is wrong        | as plain text                                     |
    | the message has no text        | the caption of its file, else as a new message    |
    | it cannot be edited            | as a new message                                  |
    | the file is no such picture    | as a document, then as a link                     |
    | the file is too large          | as a link                                         |
    """
    next_step = reaction(exc)
    simpler = _simpler(call, next_step)
    if simpler:
        return simpler
    return _other_form(call, exc, next_step, source)


def _simpler(call: BotApiCall, next_step: TelegramReaction) -> BotApiCall | Receipt | None:
    """Return the call without a part that may be the cause of the refusal, None if it has none.

    Such parts are those that an old Bot API server does not know, and those that Telegram allows
    for a while only.
    """
    reply = call.reply
    if reply.only_for_act and not reply.answers_tap and next_step in ("done", "refused", "anew"):
        # The act is too old. An administrator may write without one.
        return replace(call, reply=replace(reply, only_for_act=""))
    if call.rich and next_step in ("plain", "refused", "down"):
        return replace(call, rich=False)
    # "down" too: for a method that the server does not know, PTB says that the token may be wrong.
    # If the token is wrong indeed, the next call says so.
    if reply.edits.startswith("u") and next_step in ("refused", "anew", "down"):
        return as_new_message(call)
    if next_step not in ("buttons", "refused", "anew"):
        return None
    if reply.removes:
        return replace(call, reply=replace(reply, removes=False))
    if reply.decided_buttons and next_step != "anew":
        return call.without_decided_buttons()
    return None


def _other_form(
    call: BotApiCall,
    exc: Any,
    next_step: TelegramReaction,
    source: MediaStore,
) -> BotApiCall | Receipt | None:
    """Return the call in another form, or to another place; None if no other form is left."""
    reply = call.reply
    match next_step:
        case "done":
            return Receipt(reply.edits)
        case "moved" if not call.is_moved:
            call_there = replace(call, chat=str(exc.new_chat_id), is_moved=True)
            if reply.edits:
                return as_new_message(call_there)
            return call_there
        case "chat" if call.thread is not None:
            return replace(call, thread=None)
        case "plain" if call.formatted:
            return replace(call, formatted=False)
        case "caption" if not call.shape and telegram_length(reply.text) <= CAPTION_LIMIT:
            return replace(call, shape="caption")
        case "caption" | "anew" if reply.edits:
            return as_new_message(call)
        case "document" | "refused" if reply.media and not call.shape:
            return replace(call, shape="document")
        case "link" | "document" | "refused" if reply.media:
            media = reply.media
            url = source.url(media.ref, filename=media.filename, mime_type=media.mime_type)
            name = as_markdown(media.filename or "file")
            size = readable_size(media.size)
            text = f"{reply.text}\n\n{name} ({size}): {url}".strip()
            return replace(call, reply=replace(reply, text=text, media=None))
    return None


def as_new_message(call: BotApiCall) -> BotApiCall | Receipt:
    """Return an impossible edit as a new message, or a receipt without id if it is optional."""
    if call.reply.optional:
        return Receipt("")
    return replace(call, reply=replace(call.reply, edits=""), shape="")


def beginning(md: str) -> str:
    """Return the text, cut to one message with an ellipsis at its end."""
    if len(md) <= _MAX_SOURCE_CHARS and telegram_length(md) <= TEXT_LIMIT:
        return md
    limit = TEXT_LIMIT - _ELLIPSIS_UNITS
    return f"{head(md[:_MAX_SOURCE_CHARS], limit, telegram_length)}…"


def _no_preview() -> Any:
    from telegram import LinkPreviewOptions

    return LinkPreviewOptions(True)
