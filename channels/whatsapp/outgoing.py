"""A reply as WhatsApp messages: how it is split, and text in place of buttons and files that WhatsApp refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sayso.channels.markdown import utf16_len, whatsapp_text
from sayso.channels.markdown.split import fits, split
from sayso.channels.types import Button, Media, Reply, joined_labels, readable_size
from sayso.channels.whatsapp.templates import MAX_BUTTONS
from sayso.channels.whatsapp.templates import is_shown as are_shown

#: Characters of a message at Twilio, and of a text with buttons or a caption.
TEXT_LIMIT, BUTTONS_LIMIT = 1600, 1024
#: Bytes of a picture, and of any other file.
PICTURE_BYTES, FILE_BYTES = 5 * 1024 * 1024, 16 * 1024 * 1024

_PICTURES = frozenset({"image/jpeg", "image/png"})
_OFFICE = "application/vnd.openxmlformats-officedocument."
#: Other files that WhatsApp accepts: audio, video, documents, contacts.
_FILES = frozenset(
    {
        *("audio/ogg", "audio/opus", "audio/amr", "audio/3gpp", "audio/aac", "audio/mpeg", "video/mp4"),
        *("application/pdf", "application/msword", "application/vnd.ms-powerpoint", "application/vnd.ms-excel"),
        f"{_OFFICE}wordprocessingml.document",
        f"{_OFFICE}presentationml.presentation",
        f"{_OFFICE}spreadsheetml.sheet",
        *("text/vcard", "text/x-vcard"),
    }
)
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return the messages of a reply. Only a picture without buttons has a caption; other files are separate messages.

    WhatsApp cannot edit: an optional edit is left out, any other is a new message.
    """
    if reply.edits and reply.optional:
        return ()
    reply = replace(reply, edits="", optional=False)
    if reply.media and not reply.buttons and _is_picture(reply.media) and fits(reply.text, BUTTONS_LIMIT, length):
        return (reply,)
    bare = replace(reply, text="", buttons=(), media=None, collapse="")
    file = (replace(bare, media=reply.media),) if reply.media else ()
    if reply.buttons:
        return (*file, *_with_buttons(reply, bare))
    return (*(replace(bare, text=text) for text in _texts(reply.text, TEXT_LIMIT)), *file)


def text_of(reply: Reply) -> str:
    """Return the Markdown of a reply whose buttons cannot be shown. Choices are numbered below the text.

    A question itself says what to type.
    """
    buttons = reply.buttons
    is_choice = len(buttons) > 1 and all(button.style == "default" for button in buttons)
    return _listed(reply.text, buttons) if is_choice or len(buttons) > MAX_BUTTONS else reply.text


def is_shown(file: Media) -> bool:
    """Return whether WhatsApp accepts the file, by its type and by its size if that is known."""
    return _is_picture(file) or (file.mime_type in _FILES and file.size <= FILE_BYTES)


def link_text(file: Media, url: str) -> str:
    """Return the text for a file that WhatsApp does not accept: its name, its size and its URL."""
    size = f" ({readable_size(file.size)})" if file.size else ""
    return f"{file.filename or 'file'}{size}\n{url}"


def length(md: str) -> int:
    """Return the length of a text as Twilio may count it: an emoji can be more than one character."""
    return utf16_len(whatsapp_text(md))


def _with_buttons(reply: Reply, bare: Reply) -> Sequence[Reply]:
    """Return the messages of a reply with buttons. The last one has them, and would also fit with a numbered list."""
    if not are_shown(reply.buttons):
        return [replace(bare, text=text) for text in _texts(_listed(reply.text, reply.buttons), TEXT_LIMIT)]

    def measure(md: str) -> int:
        with_list = text_of(replace(reply, text=md))
        return length(md) if with_list == md else max(length(md), length(with_list) - (TEXT_LIMIT - BUTTONS_LIMIT))

    texts = [text for text in split(reply.text, BUTTONS_LIMIT, measure) if text.strip()]
    *firsts, last = texts or [joined_labels(reply.buttons)[:BUTTONS_LIMIT]]
    return (*(replace(bare, text=text) for text in firsts), replace(bare, text=last, buttons=reply.buttons))


def _texts(md: str, limit: int) -> list[str]:
    return [text for text in split(md, limit, length) if text.strip()]


def _listed(md: str, buttons: Sequence[Button]) -> str:
    """Return the text with the labels as a numbered list, in Markdown that shows them unchanged."""
    labels = (_PUNCTUATION.sub(r"\\\1", " ".join(button.label.split())) for button in buttons)
    lines = [f"{number}\\. {label}" for number, label in enumerate(labels, 1)]
    return "\n\n".join(part for part in (md, "\n".join(lines)) if part)


def _is_picture(file: Media) -> bool:
    return file.mime_type in _PICTURES and file.size <= PICTURE_BYTES
