"""Telegram's updates, parsed into turns and address changes.

An update is what Telegram sends to a bot: a message, an edit, a tap or a change of membership. A
text in it has entities: ranges that say what a part of the text is, such as a mention or a link.
Telegram counts their places in UTF-16 units; here places are counted in characters.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from sayso.channels.base import Forbidden
from sayso.channels.link_addresses import MAX_ADDRESSES, address_note, with_address
from sayso.channels.markdown.convert import utf16_len
from sayso.channels.mentions import without_mentions
from sayso.channels.telegram.files import TelegramJson, file_ids, message_media
from sayso.channels.telegram.rich_incoming import RichContent, read_rich_message
from sayso.channels.types import (
    AddressChange,
    Conversation,
    Received,
    SignedWebhook,
    Tap,
    Turn,
    WebhookRequest,
    content_digest,
)

#: The kinds of updates that Telegram is asked to send: those that are parsed here. `setWebhook`
#: and `getUpdates` get this list. Without it Telegram would use the list of an earlier call.
ALLOWED_UPDATES = (
    "message",
    "edited_message",
    "callback_query",
    "my_chat_member",
    "stopped_message_generation",
)
#: For how long Telegram lets people edit a message, in seconds. A later edit is a reaction,
#: a link preview or the like.
EDIT_SECONDS = 48 * 3600
#: The most characters of a rich message that is quoted: as many as another message may have.
MAX_QUOTED_CHARS = 4096
#: The most @names that are looked for in a text without entities: as many entities as Telegram
#: formats in a message.
MAX_NAMES = 100
#: The most parts of a message that are noted as struck out or quoted.
MAX_MARKED_PARTS = 5
#: The most characters of each such part.
MAX_MARKED_CHARS = 100
#: Marks of a text that say that its author does not say these words.
_MARKS_OF_OTHERS = {
    "strikethrough": "struck out",
    "blockquote": "quoted",
    "expandable_blockquote": "quoted",
}
#: The statuses with which a bot is in a group. With the status `restricted` it may be in or out.
_MEMBER_STATUSES = ("creator", "administrator", "member")
#: The `replied_to` of a message that replies to something outside of its chat, or to a message
#: without an id. No message of the bot has this id, so a yes to it decides nothing.
_ELSEWHERE = "elsewhere"
#: A command with the @name of the bot that it is for.
_COMMAND = re.compile(r"^(/\w+)@(\w+)")


@dataclass(frozen=True, slots=True)
class UpdateParser:
    """Parses the updates of one bot. A value without I/O, used from any thread."""

    #: The channel's name in the YAML.
    channel: str
    #: The bot's id at Telegram.
    bot_id: str
    #: The bot's @name in lower case without the @, "" if unknown.
    username: str = ""

    def parse(self, update: TelegramJson) -> Received:
        """Parse one update. Unknown kinds are ignored.

        Raises KeyError, TypeError, AttributeError, ValueError or IndexError for a malformed update.
        """
        event_id = str(update.get("update_id", ""))
        if not event_id:
            return Received(ignored="malformed update")

        # Besides its id, an update has one key, which names its kind.
        match update:
            case {"message": message}:
                return self._message(event_id, message)
            case {"edited_message": message}:
                return self._edit(event_id, message)
            case {"callback_query": query}:
                return self._tap(event_id, query)
            case {"my_chat_member": change}:
                return self._membership(change)
            case {"stopped_message_generation": stop}:
                return self._stop(event_id, stop)
        kind = next((key for key in update if key != "update_id"), "")
        return Received(ignored=f"update of kind {kind!r}")

    def _message(self, event_id: str, message: TelegramJson) -> Received:
        """Return the turn of a message, or why it has none."""
        if "business_connection_id" in message or "guest_query_id" in message:
            # Its chat belongs to another account: people there do not write to the bot.
            return Received(ignored="sent to a person's own account, or to a guest bot")
        if "migrate_to_chat_id" in message or "migrate_from_chat_id" in message:
            # The old group and the new supergroup each get such a message.
            here = str(message["chat"]["id"])
            old = str(message.get("migrate_from_chat_id", here))
            new = str(message.get("migrate_to_chat_id", here))
            return Received(chat_move=(old, new), ignored="the group became a supergroup")

        rich = None
        if "rich_message" in message:
            rich = read_rich_message(message["rich_message"])
            message = {**message, "text": rich.text}

        if "sender_chat" in message:
            return self._anonymous(event_id, message, rich)
        if "direct_messages_topic" in message:
            # The owners of a channel answer what people write to it.
            return Received(ignored="sent to a channel, which its owners answer")
        if "from" not in message or message["from"].get("is_bot"):
            return Received(ignored="not sent by a person")
        if "forum_topic_reopened" in message:
            # The bot may write there again.
            change = AddressChange(self._conversation(message), closed="")
            return Received(addresses=(change,), ignored="a topic was reopened")

        turn = self._turn(event_id, message, rich)
        if not (_text_of(message) or turn.media or turn.notes):
            return Received(ignored="message without text or a file")
        return Received(turns=(turn,))

    def _anonymous(
        self, event_id: str, message: TelegramJson, rich: RichContent | None
    ) -> Received:
        """Return the turn of a message that an admin sent in the name of the group.

        Nothing says which admin it is, so a yes could confirm another person's action. The only
        answer is a text that says so. A message in the name of another chat has no turn at all.
        """
        text = _text_of(message)
        sender = message["sender_chat"] or {}
        if sender.get("id") != message["chat"]["id"] or not self._addressed(message, text):
            return Received(ignored="sent in the name of a chat, by an unknown person")
        turn = Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(sender["id"]),
            text=text,
            message_id=_message_id(message, sender),
            kind="anonymous",
            in_group=True,
            content=_content_of(message, rich),
        )
        return Received(turns=(turn,))

    def _turn(self, event_id: str, message: TelegramJson, rich: RichContent | None) -> Turn:
        """Return the turn of a person's message.

        `rich` is the content of a rich message, None for any other.
        """
        text = _text_of(message)
        person = message["from"]
        addressed = self._addressed(message, text)
        notes = _notes_of(message)
        if not addressed:
            notes = (*notes, *_other_receiver(message))
        return Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(person["id"]),
            user_name=full_name(person),
            text=self._words(message, text),
            media=rich.media if rich else message_media(message),
            message_id=_message_id(message, person),
            addressed=addressed,
            language=str(person.get("language_code") or ""),
            quoted=_quoted(message),
            notes=notes,
            group=str(message.get("media_group_id", "")),
            in_group=_in_group(message),
            replied_to=_replied_to(message),
            replied_to_button=_first_button(_replied_message(message)),
            ephemeral="ephemeral_message_id" in message,
            content=_content_of(message, rich),
            written_at=float(message.get("date") or 0),
        )

    def _edit(self, event_id: str, message: TelegramJson) -> Received:
        """Return the turn of an edited message, or why it has none.

        Telegram also reports an edit for a reaction, a link preview and the like. These leave the
        turn's `content` as it was.
        """
        if "location" in message:
            return Received(ignored="a live location moved")
        age = int(message.get("edit_date") or 0) - int(message.get("date") or 0)
        if age > EDIT_SECONDS:
            return Received(ignored="a message that is too old to be edited by its author")

        received = self._message(event_id, message)
        turns = []
        for turn in received.turns:
            if turn.kind == "anonymous":
                turns.append(turn)  # its kind says how it is answered
            else:
                turns.append(replace(turn, kind="edit", group=""))
        return replace(received, turns=tuple(turns))

    def _tap(self, event_id: str, query: TelegramJson) -> Received:
        """Return the turn of a tapped button, or why it has none."""
        if "message" not in query or "game_short_name" in query:
            return Received(ignored="tap without a message, or on a game")
        message = query["message"]
        person = query["from"]
        if person.get("is_bot"):
            return Received(ignored="not sent by a person")
        turn = Turn(
            event_id=event_id,
            conversation=self._conversation(message),
            user_id=str(person["id"]),
            user_name=full_name(person),
            # A tap on a disabled button has no data: it is answered like one on an outdated button.
            tap=Tap(data=str(query.get("data") or ""), callback_id=query["id"]),
            message_id=_message_id(message, person),
            language=str(person.get("language_code") or ""),
            in_group=_in_group(message),
            ephemeral="ephemeral_message_id" in message,
        )
        return Received(turns=(turn,))

    def _membership(self, change: TelegramJson) -> Received:
        """Return whether the bot may write in a chat now.

        A person has blocked or unblocked the bot, or it was removed from a group or added again.
        """
        chat = change["chat"]
        if chat.get("type") == "channel":
            return Received(ignored="a change in a channel, in which the bot does not talk")

        member = change["new_chat_member"]
        is_restricted_member = member["status"] == "restricted" and member.get("is_member")
        if member["status"] in _MEMBER_STATUSES or is_restricted_member:
            closed = ""
        elif chat.get("type") == "private":
            closed = "blocked by its person"
        else:
            closed = "removed from the group"
        conversation = Conversation(self.channel, str(chat["id"]))
        return Received(addresses=(AddressChange(conversation, closed),))

    def _stop(self, event_id: str, stop: TelegramJson) -> Received:
        """Return the turn of Telegram's stop button below a draft, as if its person wrote /stop."""
        chat = stop["chat"]
        if chat.get("type") != "private":
            return Received(ignored="an answer stopped outside of a private chat")

        # In a private chat the chat's id is the person's.
        chat_id = str(chat["id"])
        thread = str(stop.get("message_thread_id", ""))
        conversation = Conversation(self.channel, chat_id, thread)
        turn = Turn(event_id, conversation, chat_id, text="/stop", user_name=full_name(chat))
        return Received(turns=(turn,))

    def _conversation(self, message: TelegramJson) -> Conversation:
        """Return the chat of a message, with its topic if the chat has topics."""
        thread = ""
        if message.get("is_topic_message"):
            thread = str(message["message_thread_id"])
        return Conversation(self.channel, str(message["chat"]["id"]), thread)

    def _addressed(self, message: TelegramJson, text: str) -> bool:
        """Return whether a message is meant for the bot.

        In a group it is meant for the bot if it is a command, names the bot, or replies to one of
        the bot's messages.
        """
        if not _in_group(message):
            return True

        original = _replied_message(message)
        author = str(original.get("from", {}).get("id", ""))
        # In a topic that the bot created, each message replies to the creation of the topic.
        if author == self.bot_id and "forum_topic_created" not in original:
            return True

        if text.startswith("/"):
            command = _COMMAND.match(text)
            return command is None or self._is_own_name(command.group(2))
        return any(self._is_mention(text, entity) for entity in _entities(message, text))

    def _words(self, message: TelegramJson, text: str) -> str:
        """Return the text with the addresses of its links, and without the bot's own name.

        "@acme_bot, yes" becomes "yes", "/status@acme_bot x" becomes "/status x". A message that is
        nothing but the name stays as it was written. While the bot's name is not known, a mention
        stays too: it may be that of another bot, and a yes to another bot must not confirm. A
        command loses any bot's name then, because Telegram's menu adds the name in groups.
        """
        mentions = [
            _span(text, entity)
            for entity in _entities(message, text)
            if entity["type"] != "bot_command" and self._is_certain_mention(text, entity)
        ]

        # The addresses move the mentions that stand behind them.
        addresses = _addresses(message, text)
        text = _insert(text, addresses)
        moved_mentions = [_moved(span, addresses) for span in sorted(mentions)]
        words = without_mentions(text, moved_mentions) or text

        command = _COMMAND.match(words)
        if command and self._is_own_name(command[2]):
            return command[1] + words[command.end() :]
        return words

    def _is_certain_mention(self, text: str, entity: TelegramJson) -> bool:
        """Return whether an entity certainly names this bot: by its id or its configured name."""
        if entity["type"] == "mention" and not self.username:
            return False
        return self._is_mention(text, entity)

    def _is_mention(self, text: str, entity: TelegramJson) -> bool:
        """Return whether an entity names this bot, as far as the bot's name is known."""
        if entity["type"] == "text_mention":
            return str(entity["user"]["id"]) == self.bot_id
        if entity["type"] not in ("mention", "bot_command"):
            return False
        start, end = _span(text, entity)
        username = text[start:end].partition("@")[2]
        return self._is_own_name(username)

    def _is_own_name(self, username: str) -> bool:
        """Return whether this is the bot's name.

        Without a configured one it is any bot's: all of them end in "bot".
        """
        name = username.lower()
        if self.username:
            return name == self.username
        return name.endswith("bot")


def _replied_to(message: TelegramJson) -> str:
    """Return the id of the message that a person replies to, "" for no reply.

    It is _ELSEWHERE if that message is in another chat, or has no id.
    """
    if "external_reply" in message or "reply_to_story" in message:
        return _ELSEWHERE
    original = _replied_message(message)
    if not _is_chosen(original):
        return ""
    return _message_id(original, message["from"]) or _ELSEWHERE


def _first_button(message: TelegramJson) -> str:
    """Return the data of the first button below a message, "" if it has none with data."""
    for button in _buttons(message):
        if "callback_data" in button:
            return str(button["callback_data"])
    return ""


def _buttons(message: TelegramJson) -> Iterator[TelegramJson]:
    """Yield the buttons below a message."""
    rows = (message.get("reply_markup") or {}).get("inline_keyboard") or []
    yield from chain.from_iterable(rows)


def _other_receiver(message: TelegramJson) -> Iterator[str]:
    """Yield a note if the message replies to another person.

    With the note it cannot confirm: a yes to that person is none to the bot.
    """
    original = _replied_message(message)
    author = original.get("from", {})
    is_reply_to_other = _is_chosen(original) and author.get("id") != message["from"]["id"]
    if "external_reply" in message or is_reply_to_other:
        name = " ".join(full_name(author).split())
        yield f"written in reply to {name or 'somebody else'}"


def _replied_message(message: TelegramJson) -> TelegramJson:
    """Return the message that this one replies to, {} if it replies to none."""
    original: TelegramJson = message.get("reply_to_message") or {}
    return original


def _is_chosen(original: TelegramJson) -> bool:
    """Return whether the person chose to reply to a message. `original` is {} for no reply.

    In a topic each message replies to the topic's first one, and below a channel's post to the
    post, without that a person chose so.
    """
    return bool(original) and not original.keys() & {"forum_topic_created", "is_automatic_forward"}


def _in_group(message: TelegramJson) -> bool:
    """Return whether other people read the message."""
    return bool(message["chat"].get("type") != "private")


def _message_id(message: TelegramJson, person: TelegramJson) -> str:
    """Return the id of a message, "" for a message without one.

    The id of a message that only one person sees names this `person`: "u5123456789:3".
    """
    if message.get("ephemeral_message_id"):
        return ephemeral_id(str(person["id"]), str(message["ephemeral_message_id"]))
    return str(message.get("message_id") or "")


def ephemeral_id(user_id: str, number: str) -> str:
    """Return the id of a message that only this person sees.

    Telegram numbers such messages separately for each person.
    """
    return f"u{user_id}:{number}"


def full_name(person: TelegramJson) -> str:
    """Return the first and last name of a person or a contact, as far as Telegram names them."""
    return " ".join(str(person[part]) for part in ("first_name", "last_name") if person.get(part))


def _quoted(message: TelegramJson) -> str:
    """Return the text of the message that this one replies to, "" if it replies to none.

    If the person chose a part of that message, such as one task of a checklist, it is this part.
    """
    if "quote" in message:
        return _readable(message["quote"])

    original = _replied_message(message)
    if "rich_message" in original:
        text = read_rich_message(original["rich_message"]).text
        if len(text) <= MAX_QUOTED_CHARS:
            return text
        return f"{text[:MAX_QUOTED_CHARS]}…"
    if "checklist" in original:
        number = message.get("reply_to_checklist_task_id")
        checklist = original["checklist"]
        tasks = checklist.get("tasks") or ()
        for task in tasks:
            if task.get("id") == number:
                return str(task.get("text", ""))
        return _checklist(checklist)
    return _readable(original)


def _content_of(message: TelegramJson, rich: RichContent | None) -> str:
    """Return a digest of the text, its marks, the files and all else that the author may edit.

    `rich` is the content of a rich message, None for any other. Buttons and the marks of a
    checklist are left out: the bot through which a message was sent may change its buttons, and
    anyone may mark a task as done, so neither is an edit by the author.
    """
    ids = rich.file_ids if rich else file_ids(message)
    if "checklist" in message:
        message = {**message, "checklist": _without_marks(message["checklist"])}
    marks = [f"{mark}: {words}" for mark, words in _marked_words(message)]
    return content_digest(_readable(message), *ids, *_content_notes(message), *marks)


def _without_marks(checklist: TelegramJson) -> TelegramJson:
    """Return a checklist as its author wrote it, without the marks of what is done."""
    tasks = [{"text": task.get("text", "")} for task in checklist.get("tasks") or ()]
    return {"title": checklist.get("title", ""), "tasks": tasks}


def _text_of(message: TelegramJson) -> str:
    """Return the text of a message, or its caption."""
    return str(message.get("text") or message.get("caption") or "")


def _readable(message: TelegramJson) -> str:
    """Return the text or caption of a message, or the text of a quote, as a model reads it.

    The address of a link follows in brackets after its words.
    """
    text = _text_of(message)
    return _insert(text, _addresses(message, text))


def _addresses(message: TelegramJson, text: str) -> list[tuple[int, str]]:
    """Return the addresses of the links in a text, for `_insert`.

    Each is the place where the words of the link end, and the address in brackets. They are in the
    order of the text.
    """
    links = [entity for entity in _entities(message, text) if entity["type"] == "text_link"]
    additions = []
    for link in links[:MAX_ADDRESSES]:
        start, end = _span(text, link)
        address = str(link.get("url") or "")
        additions.append((end, address_note(text[start:end], address)))
    return sorted(additions)


def _insert(text: str, additions: Sequence[tuple[int, str]]) -> str:
    """Return the text with each addition at its place.

    An addition is a place in the text and what is inserted there. They are in the order of the
    text.
    """
    # The last one first, since each addition moves the places behind it.
    for place, addition in reversed(additions):
        text = f"{text[:place]}{addition}{text[place:]}"
    return text


def _moved(span: tuple[int, int], additions: Sequence[tuple[int, str]]) -> tuple[int, int]:
    """Return where a part of a text begins and ends once the additions are inserted."""
    start, end = span
    added_chars = sum(len(addition) for place, addition in additions if place <= start)
    return start + added_chars, end + added_chars


def _entities(message: TelegramJson, text: str) -> Iterator[TelegramJson]:
    """Yield Telegram's entities of a text; if there are none, an entity for each @name."""
    entities = message.get("entities") or message.get("caption_entities")
    if entities:
        yield from entities
        return
    for name in islice(re.finditer(r"(?<!\w)@\w+", text), MAX_NAMES):
        offset = utf16_len(text[: name.start()])
        yield {"type": "mention", "offset": offset, "length": utf16_len(name.group())}


def _span(text: str, entity: TelegramJson) -> tuple[int, int]:
    """Return where an entity begins and ends in a text, in characters."""
    # Each of Telegram's units has two bytes. A wrong place may divide a character: hence "replace".
    units = text.encode("utf-16-le")
    start = 2 * entity["offset"]
    before = units[:start].decode("utf-16-le", "replace")
    inside = units[start : start + 2 * entity["length"]].decode("utf-16-le", "replace")
    return len(before), len(before) + len(inside)


def _notes_of(message: TelegramJson) -> tuple[str, ...]:
    """Return descriptions of what a message holds besides text and files, one line each.

    A message with a note cannot confirm an action. So there is also a note for words that the
    sender did not write, or took back.
    """
    notes = (*_content_notes(message), *_marked_parts(message), *_link_buttons(message))
    return tuple(" ".join(note.split()) for note in notes)


def _content_notes(message: TelegramJson) -> list[str]:
    """Return the descriptions of a message's content and of its author.

    Without its buttons and the marks of its text.
    """
    notes = [describe(message[key]) for key, describe in _NOTES.items() if key in message]

    # A venue repeats the location.
    if "venue" in message:
        venue = message["venue"]
        place = ", ".join(str(venue[part]) for part in ("title", "address") if venue.get(part))
        notes.append(f"{_location(venue['location'])} ({place})")
    elif "location" in message:
        notes.append(_location(message["location"]))
    return notes


def _marked_parts(message: TelegramJson) -> Iterator[str]:
    """Yield a note for each part of a text that its author struck out, or quoted from others.

    Only the entities say so. Without the note a yes that was struck out would be a yes.
    """
    for mark, words in islice(_marked_words(message), MAX_MARKED_PARTS):
        yield f"{mark}: {words[:MAX_MARKED_CHARS]}"


def _marked_words(message: TelegramJson) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text that do not count as its author's words, each after its mark."""
    text = _text_of(message)
    for entity in _entities(message, text):
        mark = _MARKS_OF_OTHERS.get(entity["type"])
        if mark:
            start, end = _span(text, entity)
            yield mark, text[start:end]


def _link_buttons(message: TelegramJson) -> list[str]:
    """Describe the buttons of a message that open an address.

    A forwarded message may have some, and one that was written by a bot.
    """
    links = [button for button in _buttons(message) if button.get("url")]
    notes = []
    for link in links[:MAX_ADDRESSES]:
        label = str(link.get("text") or "")
        notes.append(f"button {with_address(label, str(link['url']))}")
    return notes


def _origin(origin: TelegramJson) -> str:
    """Describe the author of a forwarded message.

    It is a person, a person who hides the account, a group or a channel.
    """
    chat = origin.get("chat") or origin.get("sender_chat") or {}
    author = full_name(origin.get("sender_user", {})) or origin.get("sender_user_name")
    if not author:
        author = chat.get("title") or "somebody"
    return f"forwarded from {author}"


def _location(point: TelegramJson) -> str:
    """Describe a location."""
    live = " live" if point.get("live_period") else ""
    return f"location{live} {point['latitude']},{point['longitude']}"


def _checklist(checklist: TelegramJson) -> str:
    """Describe a checklist, each task with its mark."""
    tasks = []
    for task in checklist.get("tasks") or ():
        mark = "[x]" if task.get("completion_date") else "[ ]"
        tasks.append(f"{mark} {task.get('text', '')}")
    return f"checklist {checklist.get('title', '')}: {'; '.join(tasks)}"


def _paid_media(paid: TelegramJson) -> str:
    """Describe paid media. Of media that were not paid for, Telegram gives a bot only the price."""
    price = f"paid media for {paid.get('star_count')} Stars"
    media = paid.get("paid_media") or ()
    if any(part.get("type") == "preview" for part in media):
        return f"{price}, which cannot be read here"
    return price


def _giveaway(giveaway: TelegramJson) -> str:
    """Describe a giveaway, or its winners."""
    title = f"giveaway (winners: {giveaway.get('winner_count')})"
    winners = ", ".join(full_name(person) for person in giveaway.get("winners") or ())
    parts = (title, giveaway.get("prize_description"), winners)
    return ": ".join(part for part in parts if part)


def _poll(poll: TelegramJson) -> str:
    """Describe a poll with its answers to choose from."""
    options = ", ".join(option["text"] for option in poll["options"])
    return f"poll {poll['question']}: {options}"


#: How a part of a message is described, by its key in the message: its content, or who wrote it.
_NOTES: dict[str, Callable[[TelegramJson], str]] = {
    "forward_origin": _origin,
    "via_bot": lambda bot: f"written by the bot @{bot.get('username', '')}",
    # A scheduled message was written before the open question was known.
    "is_from_offline": lambda _: "sent automatically, at a time that was set before",
    "contact": lambda contact: f"contact {full_name(contact)} {contact['phone_number']}",
    "story": lambda _: "a story, which cannot be read here",
    "sticker": lambda sticker: f"sticker {sticker.get('emoji', '')}",
    "dice": lambda dice: f"dice {dice['emoji']} showing {dice['value']}",
    "poll": _poll,
    "web_app_data": lambda data: f"data of a web app: {data['data']}",
    "checklist": _checklist,
    "paid_media": _paid_media,
    "giveaway": _giveaway,
    "giveaway_winners": _giveaway,
    "game": lambda game: f"game {game['title']}: {game['description']}",
    "invoice": lambda invoice: f"invoice {invoice['title']}: {invoice['description']}",
    # Its words may be quoted, struck out or folded, so they never confirm an action.
    "rich_message": lambda _: "a message with rich formatting",
}


def check_secret(hook: WebhookRequest, secret: str) -> None:
    """Check that a webhook comes from Telegram. Raises Forbidden.

    Telegram repeats in a header the `secret_token` with which the webhook was set.
    """
    header = hook.header("x-telegram-bot-api-secret-token").encode("utf-8", "replace")
    if not header:
        raise Forbidden(
            "there is no X-Telegram-Bot-Api-Secret-Token header: "
            "set the webhook with its secret_token"
        )
    if not hmac.compare_digest(header, secret.encode()):
        raise Forbidden(
            "the X-Telegram-Bot-Api-Secret-Token header is wrong: set the webhook again"
        )


def telegram_hook(secret: str, update: Mapping[str, Any]) -> SignedWebhook:
    """Return the headers and body of a signed Telegram webhook."""
    headers = {"content-type": "application/json", "x-telegram-bot-api-secret-token": secret}
    return headers, json.dumps(update).encode()
