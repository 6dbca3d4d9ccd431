"""Pieces: a reply as the messages that WhatsApp takes through Twilio, and in words where it takes nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sayso.channels.markdown import utf16_len, whatsapp_text
from sayso.channels.markdown.split import fits, split
from sayso.channels.types import Button, Media, Reply
from sayso.channels.whatsapp.templates import MAX_BUTTONS
from sayso.channels.whatsapp.templates import is_shown as are_shown

#: Characters Twilio takes in a message, and in one that carries buttons or is a caption.
TEXT_LIMIT, BUTTONS_LIMIT = 1600, 1024
#: Bytes of a picture, and of any other file.
PICTURE_BYTES, FILE_BYTES = 5 * 1024 * 1024, 16 * 1024 * 1024

_PICTURES = frozenset({"image/jpeg", "image/png"})
_OFFICE = "application/vnd.openxmlformats-officedocument."
#: Other files that WhatsApp shows: sound, video, documents, contacts.
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
    """Only a picture carries words, and only without buttons; otherwise text and file are messages of their own.

    WhatsApp edits nothing: what replaces a message is left out if it is optional, else it is a message of its own.
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


def words_of(reply: Reply) -> str:
    """The words of a reply whose buttons cannot be shown, as Markdown: choices are numbered below them.

    A question says by itself what to type.
    """
    return _listed(reply.text, reply.buttons) if _are_choices(reply.buttons) else reply.text


def is_shown(file: Media) -> bool:
    """Whether WhatsApp takes the file: by its type, and by its size where that is known."""
    return _is_picture(file) or (file.mime_type in _FILES and file.size <= FILE_BYTES)


def link_text(file: Media, url: str) -> str:
    """What stands for a file that WhatsApp does not take: its name, its size and where it is."""
    size = f" ({_size(file.size)})" if file.size else ""
    return f"{file.filename or 'file'}{size}\n{url}"


def length(md: str) -> int:
    """Characters of a text as Twilio may count them: it says that an emoji can be more than one."""
    return utf16_len(whatsapp_text(md))


def _are_choices(buttons: Sequence[Button]) -> bool:
    """Whether they say what one may answer, which no word above them does."""
    return len(buttons) > MAX_BUTTONS or (len(buttons) > 1 and all(button.style == "default" for button in buttons))


def _with_buttons(reply: Reply, bare: Reply) -> Sequence[Reply]:
    """The last piece has the buttons. With a list's items in words instead it is not too long either."""
    if not are_shown(reply.buttons):
        return [replace(bare, text=text) for text in _texts(_listed(reply.text, reply.buttons), TEXT_LIMIT)]

    def measure(md: str) -> int:
        words = words_of(replace(reply, text=md))
        return length(md) if words == md else max(length(md), length(words) - (TEXT_LIMIT - BUTTONS_LIMIT))

    texts = [text for text in split(reply.text, BUTTONS_LIMIT, measure) if text.strip()]
    *firsts, last = texts or [" / ".join(button.label for button in reply.buttons)[:BUTTONS_LIMIT]]
    return (*(replace(bare, text=text) for text in firsts), replace(bare, text=last, buttons=reply.buttons))


def _texts(md: str, limit: int) -> list[str]:
    return [text for text in split(md, limit, length) if text.strip()]


def _listed(md: str, buttons: Sequence[Button]) -> str:
    lines = [f"{number}\\. {_literal(button.label)}" for number, button in enumerate(buttons, 1)]
    return "\n\n".join(part for part in (md, "\n".join(lines)) if part)


def _literal(label: str) -> str:
    """Markdown that shows the label as it is."""
    return _PUNCTUATION.sub(r"\\\1", " ".join(label.split()))


def _is_picture(file: Media) -> bool:
    return file.mime_type in _PICTURES and file.size <= PICTURE_BYTES


def _size(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MB" if size >= 1024 * 1024 else f"{max(1, size // 1024)} KB"
