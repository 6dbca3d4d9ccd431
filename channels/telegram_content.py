"""What a message of Telegram carries: its words, its files, and notes of all that is neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sayso.channels.types import Media

Json = Mapping[str, Any]

#: Where a message carries a file, in the order we look, with the MIME type when Telegram names none. An animation comes
#: as a document, too.
_FILES = {
    "animation": "video/mp4",
    "document": "application/octet-stream",
    "voice": "audio/ogg",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "video_note": "video/mp4",
}
#: What people see in a message and no bot can read on.
_CLOSED = {
    "paid_media": "paid media",
    "story": "a story",
    "game": "a game",
    "checklist": "a checklist",
    "rich_message": "a message with rich formatting",
}


def spoken(message: Json) -> str:
    """The words of a message, or those under its file."""
    return str(message.get("text") or message.get("caption") or "")


def files(message: Json) -> tuple[Media, ...]:
    """The file of a message, with Telegram's file_id: it carries one at most."""
    if message.get("photo"):
        largest = message["photo"][-1]
        return (Media(largest["file_id"], "image/jpeg", size=int(largest.get("file_size") or 0)),)
    if _is_picture(message.get("sticker", {})):
        return (_file(message["sticker"], "image/webp"),)
    return next(((_file(message[kind], mime),) for kind, mime in _FILES.items() if kind in message), ())


def _is_picture(sticker: Json) -> bool:
    """Whether a sticker stands still: those that move come in forms that no model reads."""
    return bool(sticker) and not (sticker.get("is_animated") or sticker.get("is_video"))


def _file(file: Json, mime_type: str) -> Media:
    return Media(
        ref=file["file_id"],
        mime_type=file.get("mime_type") or mime_type,
        filename=file.get("file_name") or "",
        size=int(file.get("file_size") or 0),
    )


def notes(message: Json) -> tuple[str, ...]:
    """What came along that is neither words nor a file, a line each, and whose words they are."""
    found = [tell(message[kind]) for kind, tell in _NOTES.items() if kind in message]
    closed = [f"{what}, which cannot be read here" for kind, what in _CLOSED.items() if kind in message]
    # A venue tells its location itself.
    told = [_venue(message["venue"])] if "venue" in message else []
    told += [_location(message["location"])] if "location" in message and not told else []
    return tuple(" ".join(note.split()) for note in (*found, *told, *closed))


def _venue(venue: Json) -> str:
    place = ", ".join(str(venue[part]) for part in ("title", "address") if venue.get(part))
    return f"{_location(venue['location'])} ({place})"


def _location(point: Json) -> str:
    live = " live" if point.get("live_period") else ""
    return f"location{live} {point['latitude']},{point['longitude']}"


def _origin(origin: Json) -> str:
    """Who said it first: a person, one who hides, a group or a channel."""
    chat = origin.get("chat") or origin.get("sender_chat") or {}
    named = full_name(origin.get("sender_user", {})) or origin.get("sender_user_name") or chat.get("title")
    return f"forwarded from {named or 'somebody'}"


def _poll(poll: Json) -> str:
    return f"poll {poll['question']}: {', '.join(option['text'] for option in poll['options'])}"


def full_name(person: Json) -> str:
    """First and last name of a person or of a contact, as far as they are told."""
    return " ".join(str(person[part]) for part in ("first_name", "last_name") if person.get(part))


_NOTES: dict[str, Callable[[Json], str]] = {
    "forward_origin": _origin,
    "via_bot": lambda bot: f"written by the bot @{bot.get('username', '')}",
    # Written when nobody could know what would be asked by then.
    "is_from_offline": lambda _: "sent by itself, at a time that was set before",
    "contact": lambda contact: f"contact {full_name(contact)} {contact['phone_number']}",
    "sticker": lambda sticker: f"sticker {sticker.get('emoji', '')}",
    "dice": lambda dice: f"dice {dice['emoji']} showing {dice['value']}",
    "poll": _poll,
    "web_app_data": lambda data: f"data of a web app: {data['data']}",
}
