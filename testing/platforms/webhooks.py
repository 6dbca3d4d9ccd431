"""The bodies of the webhooks of what people do on each platform.

A body has the form that the platform's function for signing takes: `whatsapp_hook`,
`telegram_hook` and `slack_hook`, which return headers and bytes. Slack's bodies are bytes already.

The people and chats are the same in all tests: Ada Test writes to Acme. She does so in a private
chat unless a test names another, but a slash command of Slack comes from a channel. Messages of
Telegram have one date; those of Slack have the date that is their id, `ts`.

`extra` adds fields to a body, or replaces its fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

# Tests import the functions for signing from here: `x as x` tells mypy so.
from sayso.channels.slack.incoming import slack_hook as slack_hook
from sayso.channels.telegram.incoming import telegram_hook as telegram_hook
from sayso.channels.types import SignedWebhook as SignedWebhook
from sayso.channels.whatsapp.incoming import whatsapp_hook as whatsapp_hook

#: The body of a Telegram webhook.
Update = dict[str, Any]
#: What Telegram marks in a text: @name, /command and /command@name.
_MENTION_OR_COMMAND = re.compile(
    r"(?<![\w/@])(?:@\w{4,32}|/\w{1,32}(?:@\w{4,32})?)(?!\w)", re.ASCII
)

#: The person in the webhooks of Telegram.
_TELEGRAM_USER = 5123456789
#: The bot. Its id is the number with which `TELEGRAM_TOKEN` in `fake_platforms.py` begins.
_TELEGRAM_BOT = {"id": 7000000001, "is_bot": True, "first_name": "Acme"}
#: The date of all messages of Telegram, in Unix seconds.
_SENT_AT = 1795204800

#: A file that begins and ends like a JPEG, which is enough to be recognized as one.
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)) * 40 + b"\xff\xd9"


def whatsapp_text(
    sid: str,
    text: str,
    *,
    account_sid: str,
    user: str = "whatsapp:+4915100000042",
    **extra: str,
) -> dict[str, str]:
    """Return the form of a typed message. `sid` is its id, `user` the address of the person."""
    # The id that Meta gives to a person, with a country. Here it is made from the number.
    meta_id = f"whatsapp:DE.{user[-10:]}"
    form = {
        "MessageSid": sid,
        "AccountSid": account_sid,
        "From": user,
        "To": "whatsapp:+14155238886",
        "Body": text,
        "NumMedia": "0",
        "ProfileName": "Ada Test",
        "ExternalUserId": meta_id,
        "MessageType": "text",
    }
    return {**form, **extra}


def whatsapp_tap(sid: str, data: str, *, label: str = "Yes", **extra: str) -> dict[str, str]:
    """Return the form of a tapped quick-reply button. Its body repeats the label.

    `extra` includes the `account_sid`.
    """
    button = {"ButtonPayload": data, "ButtonText": label, "MessageType": "interactive"}
    return whatsapp_text(sid, label, **{**button, **extra})


def whatsapp_photo(
    sid: str, url: str, caption: str = "", *, mime: str = "image/jpeg", **extra: str
) -> dict[str, str]:
    """Return the form of a photo that Twilio stores at `url`. Its body is the caption.

    `extra` includes the `account_sid`.
    """
    media = {"NumMedia": "1", "MediaUrl0": url, "MediaContentType0": mime, "MessageType": "image"}
    return whatsapp_text(sid, caption, **{**media, **extra})


def telegram_text(
    update_id: int, text: str, *, user: int = _TELEGRAM_USER, chat: int | None = None, **extra: Any
) -> Update:
    """Return the update of a typed message, with its mentions and commands.

    The id of the message is `update_id`, too. The message is private unless `chat` is negative;
    None is the chat with `user`.
    """
    message = {
        **_telegram_message(update_id, user, chat),
        "text": text,
        **_telegram_entities(text, "entities"),
        **extra,
    }
    return {"update_id": update_id, "message": message}


def _telegram_entities(text: str, field: str) -> dict[str, Any]:
    """Return a field with the mentions and commands of a text; {} without any.

    Offsets are in UTF-16 code units.
    """
    entities = []
    for match in _MENTION_OR_COMMAND.finditer(text):
        text_before = text[: match.start()]
        is_mention = match.group().startswith("@")
        entities.append(
            {
                "type": "mention" if is_mention else "bot_command",
                "offset": len(text_before.encode("utf-16-le", "replace")) // 2,
                "length": len(match.group()),
            }
        )
    return {field: entities} if entities else {}


def telegram_edit(update_id: int, text: str, *, message_id: int, **extra: Any) -> Update:
    """Return the update of an edited message: `message_id` is edited, and has the new text."""
    own = {"message_id": message_id, "edit_date": _SENT_AT + 1}
    edited = telegram_text(update_id, text, **{**own, **extra})["message"]
    return {"update_id": update_id, "edited_message": edited}


def telegram_member(
    update_id: int, status: str, *, chat: int = _TELEGRAM_USER, **extra: Any
) -> Update:
    """Return the update of the bot's new status in a chat, such as "kicked" or "administrator".

    Before, it was a member. `extra` goes into the bot's new state.
    """
    message = _telegram_message(update_id, _TELEGRAM_USER, chat)
    old_member = {"user": _TELEGRAM_BOT, "status": "member"}
    new_member = {"user": _TELEGRAM_BOT, "status": status, **extra}
    change = {
        "from": message["from"],
        "chat": message["chat"],
        "date": message["date"],
        "old_chat_member": old_member,
        "new_chat_member": new_member,
    }
    return {"update_id": update_id, "my_chat_member": change}


def telegram_photo(
    update_id: int,
    file_id: str,
    caption: str = "",
    *,
    user: int = _TELEGRAM_USER,
    chat: int | None = None,
    **extra: Any,
) -> Update:
    """Return the update of a photo in two sizes; `file_id` is the larger one.

    The photo is private unless `chat` is negative; None is the chat with `user`. "" is no caption.
    """
    sizes = [
        {"file_id": f"small-{file_id}", "width": 90, "height": 90},
        {"file_id": file_id, "width": 1280, "height": 1280},
    ]
    captions: dict[str, Any] = {}
    if caption:
        captions = {"caption": caption, **_telegram_entities(caption, "caption_entities")}
    message = {
        **_telegram_message(update_id, user, chat),
        "photo": sizes,
        **captions,
        **extra,
    }
    return {"update_id": update_id, "message": message}


def telegram_rich(
    update_id: int,
    *blocks: dict[str, Any],
    user: int = _TELEGRAM_USER,
    chat: int | None = None,
    **extra: Any,
) -> Update:
    """Return the update of a rich message; private unless `chat` is negative."""
    message = {
        **_telegram_message(update_id, user, chat),
        "rich_message": {"blocks": list(blocks)},
        **extra,
    }
    return {"update_id": update_id, "message": message}


def telegram_tap(
    update_id: int, data: str, *, user: int = _TELEGRAM_USER, chat: int | None = None, **extra: Any
) -> Update:
    """Return the update of a tapped inline button with this data.

    `extra` goes into the message with the button. The tap is in a private chat unless `chat` is
    negative; None is the chat with `user`.
    """
    # The bot has sent the message with the button.
    message = {
        **_telegram_message(update_id, user, chat),
        "from": _TELEGRAM_BOT,
        "text": "?",
        **extra,
    }
    query = {
        "id": f"cb{update_id}",
        "from": _person(user),
        "message": message,
        "chat_instance": "1",
        "data": data,
    }
    return {"update_id": update_id, "callback_query": query}


def _telegram_message(message_id: int, user: int, chat: int | None) -> dict[str, Any]:
    """Return the fields of every message of a person."""
    chat_id = chat or user
    chat_type = "private" if chat_id > 0 else "supergroup"
    return {
        "message_id": message_id,
        "from": _person(user),
        "chat": {"id": chat_id, "type": chat_type},
        "date": _SENT_AT,
    }


def _person(user: int) -> dict[str, Any]:
    return {"id": user, "is_bot": False, "first_name": "Ada", "last_name": "Test"}


def slack_text(
    ts: str,
    text: str,
    *,
    user: str = "U0ADA",
    channel: str = "D0ADA",
    kind: str = "message",
    **extra: Any,
) -> bytes:
    """Return the body of a message event, or of another `kind`, such as "app_mention".

    `text` is as Slack sends it, with `& < >` escaped. A channel that begins with D is a direct
    message.
    """
    event = {
        "type": kind,
        "user": user,
        "text": text,
        "ts": ts,
        "channel": channel,
        "channel_type": _slack_channel_type(channel),
    }
    # Slack sends one message as two events, of the kinds "message" and "app_mention".
    return slack_event(f"Ev{kind}{ts}", {**event, **extra})


def slack_edit(
    ts: str,
    text: str,
    before: str,
    *,
    user: str = "U0ADA",
    channel: str = "D0ADA",
    at: str = "1795204999.000100",
) -> bytes:
    """Return the body of an edit event: a message `ts` whose text `before` was changed at `at`.

    Two edits of a message need two `at`: the same one is a repeated webhook.
    """
    message = {"type": "message", "user": user, "ts": ts}
    event = {
        "type": "message",
        "subtype": "message_changed",
        "hidden": True,
        "channel": channel,
        "channel_type": _slack_channel_type(channel),
        "ts": at,
        "event_ts": at,
        "message": {**message, "text": text, "edited": {"user": user, "ts": at}},
        "previous_message": {**message, "text": before},
    }
    return slack_event(f"Evedit{ts}-{at}", event)


def _slack_channel_type(channel: str) -> str:
    return "im" if channel.startswith("D") else "channel"


def slack_event(event_id: str, event: Mapping[str, Any], **outer: Any) -> bytes:
    """Return the body of any event; `outer` adds fields to its envelope."""
    body = {
        "type": "event_callback",
        "team_id": "T0ACME",
        "event_id": event_id,
        "event": event,
        "authorizations": [{"team_id": "T0ACME", "user_id": "U0BOT", "is_bot": True}],
    }
    return json.dumps({**body, **outer}).encode()


def slack_interaction(kind: str, **payload: Any) -> bytes:
    """Return the body of an interaction: a button, a menu, a form or a shortcut.

    `payload` adds or replaces fields.
    """
    fields = {
        "type": kind,
        "user": {"id": "U0ADA", "username": "ada", "team_id": "T0ACME"},
        "team": {"id": "T0ACME"},
        **payload,
    }
    return urlencode({"payload": json.dumps(fields)}).encode()


def slack_photo(
    ts: str, url: str, text: str = "", *, name: str = "photo.jpg", size: int = 0, **extra: Any
) -> bytes:
    """Return the body of a message that shares a photo stored at `url`."""
    file = {
        "id": "F0FILE",
        "name": name,
        "mimetype": "image/jpeg",
        "size": size,
        "url_private_download": url,
    }
    share = {"subtype": "file_share", "files": [file]}
    return slack_text(ts, text, **{**share, **extra})


def slack_tap(
    trigger_id: str,
    data: str,
    *,
    user: str = "U0ADA",
    channel: str = "D0ADA",
    message_ts: str = "1795204950.000300",
    thread_ts: str = "",
    block_id: str = "confirm",
) -> bytes:
    """Return the body of a tapped button with this data.

    `message_ts` is the message with the button, `thread_ts` its thread, "" for none. A real tap
    repeats the id of the block with the button, so pass the one that the bot sent as `block_id`.
    """
    message = {"type": "message", "ts": message_ts, "text": "?"}
    if thread_ts:
        message["thread_ts"] = thread_ts
    action = {
        "type": "button",
        "action_id": "button-0",
        "block_id": block_id,
        "value": data,
        "action_ts": "1.2",
    }
    return slack_interaction(
        "block_actions",
        user={"id": user, "username": "ada", "team_id": "T0ACME"},
        trigger_id=trigger_id,
        channel={"id": channel},
        message=message,
        container={"type": "message", "message_ts": message_ts, "channel_id": channel},
        actions=[action],
    )


def slack_command(
    trigger_id: str, text: str, *, user: str = "U0ADA", channel: str = "C0OPS"
) -> bytes:
    """Return the body of the slash command `/acme` with a text."""
    form = {
        "command": "/acme",
        "text": text,
        "user_id": user,
        "user_name": "ada",
        "channel_id": channel,
        "team_id": "T0ACME",
        "trigger_id": trigger_id,
    }
    return urlencode(form).encode()
