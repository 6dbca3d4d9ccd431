"""Update -> Turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.types import AddressChange, Conversation, Media, Received, Tap, Turn, storable

TelegramJson = Mapping[str, Any]
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


def spoken(message: TelegramJson) -> str:
    """The words of a message, or those under its file."""
    return str(message.get("text") or message.get("caption") or "")


def files(message: TelegramJson) -> tuple[Media, ...]:
    """The file of a message, with Telegram's file_id: it carries one at most."""
    if message.get("photo"):
        largest = message["photo"][-1]
        return (Media(largest["file_id"], "image/jpeg", size=int(largest.get("file_size") or 0)),)
    if _is_picture(message.get("sticker", {})):
        return (_file(message["sticker"], "image/webp"),)
    return next(((_file(message[kind], mime),) for kind, mime in _FILES.items() if kind in message), ())


def _is_picture(sticker: TelegramJson) -> bool:
    """Whether a sticker stands still: those that move come in forms that no model reads."""
    return bool(sticker) and not (sticker.get("is_animated") or sticker.get("is_video"))


def _file(file: TelegramJson, mime_type: str) -> Media:
    return Media(
        ref=file["file_id"],
        mime_type=file.get("mime_type") or mime_type,
        filename=file.get("file_name") or "",
        size=int(file.get("file_size") or 0),
    )


def notes(message: TelegramJson) -> tuple[str, ...]:
    """What came along that is neither words nor a file, a line each, and whose words they are."""
    found = [tell(message[kind]) for kind, tell in _NOTES.items() if kind in message]
    closed = [f"{what}, which cannot be read here" for kind, what in _CLOSED.items() if kind in message]
    # A venue tells its location itself.
    told = [_venue(message["venue"])] if "venue" in message else []
    told += [_location(message["location"])] if "location" in message and not told else []
    return tuple(" ".join(note.split()) for note in (*found, *told, *closed))


def _venue(venue: TelegramJson) -> str:
    place = ", ".join(str(venue[part]) for part in ("title", "address") if venue.get(part))
    return f"{_location(venue['location'])} ({place})"


def _location(point: TelegramJson) -> str:
    live = " live" if point.get("live_period") else ""
    return f"location{live} {point['latitude']},{point['longitude']}"


def _origin(origin: TelegramJson) -> str:
    """Who said it first: a person, one who hides, a group or a channel."""
    chat = origin.get("chat") or origin.get("sender_chat") or {}
    named = full_name(origin.get("sender_user", {})) or origin.get("sender_user_name") or chat.get("title")
    return f"forwarded from {named or 'somebody'}"


def _poll(poll: TelegramJson) -> str:
    return f"poll {poll['question']}: {', '.join(option['text'] for option in poll['options'])}"


def full_name(person: TelegramJson) -> str:
    """First and last name of a person or of a contact, as far as they are told."""
    return " ".join(str(person[part]) for part in ("first_name", "last_name") if person.get(part))


_NOTES: dict[str, Callable[[TelegramJson], str]] = {
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
_COMMAND = re.compile(r"^(/\w+)@(\w+)")
#: The kinds of update that a webhook asks for: what is read here, and no other. Left out of `setWebhook`, the setting
#: before it would stay.
ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "my_chat_member", "stopped_message_generation")
#: Where a bot is a member: it may be told there. A `restricted` one is if the update says so.
_INSIDE = ("creator", "administrator", "member")


@dataclass(frozen=True, slots=True)
class UpdateParser:
    """Reads the updates of one bot: its channel's name, its id, and its @username where that is known.

    Raises KeyError, TypeError, AttributeError, ValueError or IndexError for what is no update.
    """

    channel: str
    bot_id: str
    username: str = ""

    def read(self, update: TelegramJson) -> Received:
        """What an update holds. Of a kind that nobody waits for, it is ignored."""
        event_id = f"{update.get('update_id', '')}"
        kind = next((key for key in (*ALLOWED_UPDATES, *update) if key in update and key != "update_id"), "")
        if not event_id:
            return Received(ignored="malformed update")
        match kind:
            case "message":
                return self._message(event_id, update[kind])
            case "edited_message":
                return self._edit(event_id, update[kind])
            case "callback_query":
                return self._tap(event_id, update[kind])
            case "my_chat_member":
                return self._member(update[kind])
            case "stopped_message_generation":
                return self._stopped(event_id, update[kind])
        return Received(ignored=f"update of kind {kind!r}")

    def _message(self, event_id: str, message: TelegramJson) -> Received:
        if why := _not_of_a_person(message):
            return self._anonymous(event_id, message) or Received(ignored=why)
        if "migrate_to_chat_id" in message or "migrate_from_chat_id" in message:
            return Received(ignored="the group became a supergroup")
        text, person = spoken(message), message["from"]
        addressed = self._addressed(message, text)
        turn = Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(person["id"]),
            user_name=full_name(person),
            text=self._without_our_name(text),
            media=files(message),
            message_id=_message_id(message),
            addressed=addressed,
            language=_language(person),
            quoted=_quoted(message),
            notes=notes(message) if addressed else (*notes(message), *_aside(message)),
            group=str(message.get("media_group_id", "")),
            in_group=_in_group(message),
            replied_to=_replied_to(message),
            replied_to_button=_first_button(message.get("reply_to_message") or {}),
            ephemeral="ephemeral_message_id" in message,
            written_at=float(message.get("date") or 0),
        )
        if not (text or turn.media or turn.notes):
            return Received(ignored="message without words or a file")
        return Received(turns=(turn,))

    def _anonymous(self, event_id: str, message: TelegramJson) -> Received | None:
        """Return what an anonymous admin says to the bot, so that they hear why nothing follows; else None."""
        sender = message.get("sender_chat") or {}
        if not sender or sender.get("id") != message["chat"]["id"] or not self._addressed(message, spoken(message)):
            return None
        where, text = self._conversation(message), spoken(message)
        turn = Turn(event_id, where, str(sender["id"]), text=text, kind="anonymous", in_group=True)
        return Received(turns=(turn,))

    def _edit(self, event_id: str, message: TelegramJson) -> Received:
        """New words of an old message. A live location is edited with each step its sender takes."""
        if "location" in message:
            return Received(ignored="a live location moved")
        received = self._message(event_id, message)
        return replace(received, turns=tuple(_edited(turn) for turn in received.turns))

    def _tap(self, event_id: str, query: TelegramJson) -> Received:
        if "message" not in query or "data" not in query:
            return Received(ignored="tap without a message or data")
        message, person = query["message"], query["from"]
        if person.get("is_bot"):
            return Received(ignored="sent by a bot or by nobody")
        turn = Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(person["id"]),
            user_name=full_name(person),
            tap=Tap(data=storable(query["data"]), callback_id=query["id"]),
            message_id=_message_id(message),
            language=_language(person),
            in_group=_in_group(message),
            ephemeral="ephemeral_message_id" in message,
        )
        return Received(turns=(turn,))

    def _member(self, change: TelegramJson) -> Received:
        """The bot was blocked or let in again, by a person or in a group."""
        chat, now = change["chat"], change["new_chat_member"]
        if chat.get("type") == "channel":
            return Received(ignored="a change in a channel, which nobody talks in")
        inside = now["status"] in _INSIDE or (now["status"] == "restricted" and now.get("is_member"))
        where = Conversation(self.channel, str(chat["id"]))
        return Received(addresses=(AddressChange(where, "" if inside else _outside(chat)),))

    def _stopped(self, event_id: str, stopped: TelegramJson) -> Received:
        """A person stopped an answer while it was shown as a draft, which happens in private only: as if told so."""
        chat = stopped["chat"]
        if chat.get("type") != "private":
            return Received(ignored="an answer stopped by nobody in particular")
        where = Conversation(self.channel, str(chat["id"]), str(stopped.get("message_thread_id", "")))
        return Received(turns=(Turn(event_id, where, str(chat["id"]), text="/stop", user_name=full_name(chat)),))

    def _conversation(self, message: TelegramJson) -> Conversation:
        thread = str(message["message_thread_id"]) if message.get("is_topic_message") else ""
        return Conversation(self.channel, str(message["chat"]["id"]), thread)

    def _without_our_name(self, text: str) -> str:
        """`/status@acme_bot x` is `/status x` once it reached us."""
        command = _COMMAND.match(text)
        return command.group(1) + text[command.end() :] if command and self._is_us(command.group(2)) else text

    def _addressed(self, message: TelegramJson, text: str) -> bool:
        """In a group the bot is addressed by a command, by its name, or by a reply to it."""
        if not _in_group(message):
            return True
        if self._answers_us(message.get("reply_to_message", {})):
            return True
        command = _COMMAND.match(text)
        if text.startswith("/"):
            return command is None or self._is_us(command.group(2))
        return any(self._names_us(text, entity) for entity in _entities(message, text))

    def _answers_us(self, original: TelegramJson) -> bool:
        """Whether that is a message of ours. All that is said in a topic answers the word that it was created."""
        return str(original.get("from", {}).get("id", "")) == self.bot_id and "forum_topic_created" not in original

    def _names_us(self, text: str, entity: TelegramJson) -> bool:
        if entity["type"] == "text_mention":
            return str(entity["user"]["id"]) == self.bot_id
        # Offsets count UTF-16 code units: two bytes each.
        start = 2 * entity["offset"]
        words = text.encode("utf-16-le")[start : start + 2 * entity["length"]].decode("utf-16-le", "replace")
        return entity["type"] in ("mention", "bot_command") and self._is_us(words.partition("@")[2])

    def _is_us(self, username: str) -> bool:
        """Without a configured username any bot's name counts: every one of them ends in "bot"."""
        lowered = username.lower()
        return lowered == self.username if self.username else lowered.endswith("bot")


def _edited(turn: Turn) -> Turn:
    return turn if turn.kind == "anonymous" else replace(turn, kind="edit", group="")


def _not_of_a_person(message: TelegramJson) -> str:
    """Why nobody in particular said this, "" where a person did."""
    if "sender_chat" in message:
        # An anonymous admin, or a channel: whoever else writes so could confirm for the one who asked.
        return "sent in the name of a chat: behind it may be anybody"
    if "direct_messages_topic" in message:
        return "sent to a channel, whose answers are its own"
    if "from" not in message or message["from"].get("is_bot"):
        return "sent by a bot or by nobody"
    return ""


def _aside(message: TelegramJson) -> Iterator[str]:
    """Whom words answer that are not for us: a yes to somebody else is none to our question.

    All that is said in a topic, or below a channel's post, is a reply by itself.
    """
    original = message.get("reply_to_message") or {}
    other = original.get("from", {})
    if "external_reply" in message or (_is_chosen(original) and other.get("id") != message["from"]["id"]):
        yield f"said in reply to {' '.join(full_name(other).split()) or 'somebody else'}"


def _is_chosen(original: TelegramJson) -> bool:
    """Return whether the person chose the message to reply to; in a topic, or below a post, Telegram fills one in."""
    return bool(original) and not original.keys() & {"forum_topic_created", "is_automatic_forward"}


def _replied_to(message: TelegramJson) -> str:
    """Return the id of the message that this one replies to, which may be in another chat."""
    if "external_reply" in message or "reply_to_story" in message:
        return "elsewhere"
    original = message.get("reply_to_message") or {}
    return str(original.get("message_id") or "elsewhere") if _is_chosen(original) else ""


def _first_button(message: TelegramJson) -> str:
    """Return the data of the first button under a message."""
    rows = (message.get("reply_markup") or {}).get("inline_keyboard") or []
    return next((str(key["callback_data"]) for row in rows for key in row if "callback_data" in key), "")


def _outside(chat: TelegramJson) -> str:
    return "blocked by its person" if chat.get("type") == "private" else "removed from the group"


def _in_group(message: TelegramJson) -> bool:
    return bool(message["chat"].get("type") != "private")


def _message_id(message: TelegramJson) -> str:
    """The message's id; "" for one that is shown to one person only, which has none of its own."""
    return str(message["message_id"] or "")


def _entities(message: TelegramJson, text: str) -> Iterator[TelegramJson]:
    """What Telegram found in the words; where it says nothing of them, every @name."""
    found = message.get("entities") or message.get("caption_entities")
    if found:
        yield from found
        return
    for name in re.finditer(r"(?<!\w)@\w+", text):
        units = [len(part.encode("utf-16-le")) // 2 for part in (text[: name.start()], name.group())]
        yield {"type": "mention", "offset": units[0], "length": units[1]}


def _quoted(message: TelegramJson) -> str:
    """The part of a message that was picked to reply to, else all its words."""
    if "quote" in message:
        return str(message["quote"]["text"])
    return spoken(message.get("reply_to_message", {}))


def _language(person: TelegramJson) -> str:
    """The language of the person's Telegram app. Not every app tells."""
    return str(person.get("language_code") or "")
