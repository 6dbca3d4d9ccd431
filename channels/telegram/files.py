"""The files of a Telegram message, as Media that name Telegram's `file_id`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.channels.types import Media

#: A part of an update, as Telegram sends it.
TelegramJson = Mapping[str, Any]
#: The keys of a message, or of a block of a rich message, that hold a file, with its MIME type if
#: Telegram names none. The first one that is present counts: Telegram repeats an animation as a
#: document. `voice` is the key in messages, `voice_note` in blocks.
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


def files_of(message: TelegramJson) -> tuple[Media, ...]:
    """Return the files of a message: one, or those of paid media that the bot may see.

    Paid media are photos and videos that people must pay for. Of one that was not paid for the bot
    gets only a `preview`, which has no file.
    """
    paid_media = message.get("paid_media") or {}
    files = [*media_of(message)]
    for part in paid_media.get("paid_media") or ():
        if part.get("type") != "preview":
            files.extend(_paid_file(part))
    return tuple(files)


def _paid_file(part: TelegramJson) -> tuple[Media, ...]:
    """Return the file of a part of paid media. Of a live photo it is the still picture."""
    live_photo = part.get("live_photo") or {}
    return media_of({"photo": live_photo.get("photo"), **part})


def media_of(message: TelegramJson) -> tuple[Media, ...]:
    """Return the file of a message, or of a block of a rich message. Both have at most one."""
    if message.get("photo"):
        # Telegram lists the sizes of a photo, the largest one last.
        largest = message["photo"][-1]
        size = int(largest.get("file_size") or 0)
        return (Media(largest["file_id"], "image/jpeg", size=size),)

    # Models cannot read moving stickers.
    sticker = message.get("sticker", {})
    is_moving = sticker.get("is_animated") or sticker.get("is_video")
    if sticker and not is_moving:
        return (_file(sticker, "image/webp"),)

    for key, mime_type in _FILES.items():
        if key in message:
            return (_file(message[key], mime_type),)
    return ()


def _file(file: TelegramJson, mime_type: str) -> Media:
    return Media(
        ref=file["file_id"],
        mime_type=file.get("mime_type") or mime_type,
        filename=file.get("file_name") or "",
        size=int(file.get("file_size") or 0),
    )


def file_ids(message: TelegramJson) -> list[str]:
    """Return ids of the files of a message, or of a block, that stay the same in each edit.

    The `file_id`, which is for downloads, may change while the file stays the same.
    """
    largest_photo = (message.get("photo") or ())[-1:]
    others = [message[key] for key in ("sticker", *_FILES) if key in message]
    files = [*largest_photo, *others]
    return [str(file.get("file_unique_id") or file.get("file_id") or "") for file in files]
