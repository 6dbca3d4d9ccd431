"""The files of a Telegram message, as Media that name Telegram's `file_id`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.channels.types import Media

#: A part of an update, as Telegram sends it.
TelegramJson = Mapping[str, Any]
#: The keys of a message, or of a block of a rich message, that hold a file, with its MIME type if
#: Telegram names none. The first one that is present counts: Telegram repeats an animation as a
#: document. `voice` is the key in messages, `voice_note` in blocks. A `live_photo` is a video;
#: Telegram sends its still picture as `photo` too, which counts first.
_FILES = {
    "animation": "video/mp4",
    "document": "application/octet-stream",
    "voice": "audio/ogg",
    "voice_note": "audio/ogg",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "video_note": "video/mp4",
    "live_photo": "video/mp4",
}


def message_media(message: TelegramJson) -> tuple[Media, ...]:
    """Return the files of a message: one, or those of its paid media that the bot may see."""
    media = [*media_of_part(message)]
    for part in _paid_parts(message):
        media.extend(media_of_part(part))
    return tuple(media)


def _paid_parts(message: TelegramJson) -> list[TelegramJson]:
    """Return the parts of paid media that the bot may see, each like a message with one file.

    Paid media are photos and videos that people must pay for. Of one that was not paid for the bot
    gets only a `preview`, which has no file.
    """
    paid_media = message.get("paid_media") or {}
    parts: list[TelegramJson] = []
    for part in paid_media.get("paid_media") or ():
        if part.get("type") != "preview":
            # A message has the still picture beside its live photo, paid media have it inside.
            live_photo = part.get("live_photo") or {}
            parts.append({"photo": live_photo.get("photo"), **part})
    return parts


def media_of_part(part: TelegramJson) -> tuple[Media, ...]:
    """Return the file of a part that has at most one; no file if there is none that models read.

    A part is a block of a rich message, a part of paid media, or a message without its paid media.
    """
    if part.get("photo"):
        # Telegram lists the sizes of a photo, the largest one last.
        largest = part["photo"][-1]
        size = int(largest.get("file_size") or 0)
        return (Media(largest["file_id"], "image/jpeg", size=size),)

    # Models cannot read moving stickers.
    sticker = part.get("sticker") or {}
    is_moving = sticker.get("is_animated") or sticker.get("is_video")
    if sticker and not is_moving:
        return (_file(sticker, "image/webp"),)

    for key, mime_type in _FILES.items():
        if part.get(key):
            return (_file(part[key], mime_type),)
    return ()


def _file(file: TelegramJson, mime_type: str) -> Media:
    return Media(
        ref=file["file_id"],
        mime_type=file.get("mime_type") or mime_type,
        filename=file.get("file_name") or "",
        size=int(file.get("file_size") or 0),
    )


def file_ids(message: TelegramJson) -> list[str]:
    """Return ids of the files of a message, or of a block, which show whether an edit changed them.

    All files count, also those that models cannot read, and both forms of an animation. The
    `file_id`, which is for downloads, may change while the file stays the same.
    """
    files: list[TelegramJson] = []
    for part in (message, *_paid_parts(message)):
        files += (part.get("photo") or ())[-1:]  # the largest size
        files += [part[key] for key in ("sticker", *_FILES) if part.get(key)]
    return [str(file.get("file_unique_id") or file.get("file_id") or "") for file in files]
