"""Webhook bodies of what people do on each platform, and the functions that sign them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from sayso.channels.slack.incoming import slack_hook as slack_hook
from sayso.channels.telegram.incoming import telegram_hook as telegram_hook
from sayso.channels.types import SignedWebhook as SignedWebhook
from sayso.channels.whatsapp.incoming import whatsapp_hook as whatsapp_hook

#: The body of a Telegram webhook.
Update = dict[str, Any]

#: The beginning of a JPEG, which is enough to recognize one.
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)) * 40 + b"\xff\xd9"


def whatsapp_text(
    sid: str,
    text: str,
    *,
    account_sid: str,
    user: str = "whatsapp:+4915100000042",
    **extra: str,
) -> dict[str, str]:
    """Return the form of a typed message; `extra` adds or replaces fields."""
    form = {
        "MessageSid": sid,
        "AccountSid": account_sid,
        "From": user,
        "To": "whatsapp:+14155238886",
        "Body": text,
        "NumMedia": "0",
        "ProfileName": "Ada Test",
        "ExternalUserId": f"whatsapp:DE.{user[-10:]}",
        "MessageType": "text",
    }
    return {**form, **extra}


def whatsapp_tap(sid: str, data: str, *, label: str = "Yes", **extra: str) -> dict[str, str]:
    """Return the form of a tapped quick-reply button. Its body repeats the label."""
    return whatsapp_text(
        sid, label, ButtonPayload=data, ButtonText=label, MessageType="interactive", **extra
    )


def whatsapp_photo(
    sid: str, url: str, caption: str = "", *, mime: str = "image/jpeg", **extra: str
) -> dict[str, str]:
    """Return the form of a photo that Twilio stores at `url`. Its body is the caption."""
    media = {"NumMedia": "1", "MediaUrl0": url, "MediaContentType0": mime, "MessageType": "image"}
    return whatsapp_text(sid, caption, **{**media, **extra})


def telegram_text(
    update_id: int, text: str, *, user: int = 5123456789, chat: int | None = None, **extra: Any
) -> Update:
    """Return the update of a typed message with its mentions and commands;
    private unless `chat` is negative.
    """
    message = {
        **_telegram_message(update_id, user, chat),
        "text": text,
        **_telegram_entities(text),
        **extra,
    }
    return {"update_id": update_id, "message": message}


def _telegram_entities(text: str) -> dict[str, Any]:
    """Return the mentions and commands of a text, with offsets in UTF-16 code units."""
    entities = [
        {
            "type": "mention" if match.group().startswith("@") else "bot_command",
            "offset": len(text[: match.start()].encode("utf-16-le", "replace")) // 2,
            "length": len(match.group()),
        }
        for match in re.finditer(
            r"(?<![\w/@])(?:@\w{4,32}|/\w{1,32}(?:@\w{4,32})?)(?!\w)", text, re.ASCII
        )
    ]
    if entities:
        return {"entities": entities}
    return {}


def telegram_edit(update_id: int, text: str, *, message_id: int, **extra: Any) -> Update:
    """Return the update of an edited message."""
    message = telegram_text(update_id, text, **extra)["message"]
    return {
        "update_id": update_id,
        "edited_message": {**message, "message_id": message_id, "edit_date": 1795204801},
    }


def telegram_member(update_id: int, status: str, *, chat: int = 5123456789, **extra: Any) -> Update:
    """Return the update of the bot's new status in a chat: blocked, added or removed."""
    message = _telegram_message(update_id, 5123456789, chat)
    member = {
        "user": {"id": 7000000001, "is_bot": True, "first_name": "Acme"},
        "status": status,
        **extra,
    }
    change = {key: message[key] for key in ("from", "chat", "date")}
    old = {**member, "status": "member"}
    return {
        "update_id": update_id,
        "my_chat_member": {**change, "old_chat_member": old, "new_chat_member": member},
    }


def telegram_photo(
    update_id: int,
    file_id: str,
    caption: str = "",
    *,
    user: int = 5123456789,
    chat: int | None = None,
    **extra: Any,
) -> Update:
    """Return the update of a photo in two sizes, as Telegram sends it;
    private unless `chat` is negative.
    """
    sizes = [
        {"file_id": f"small-{file_id}", "width": 90, "height": 90},
        {"file_id": file_id, "width": 1, "height": 1},
    ]
    message = {
        **_telegram_message(update_id, user, chat),
        "photo": sizes,
        "caption": caption,
        **extra,
    }
    return {"update_id": update_id, "message": message}


def telegram_rich(
    update_id: int,
    *blocks: dict[str, Any],
    user: int = 5123456789,
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
    update_id: int, data: str, *, user: int = 5123456789, chat: int | None = None, **extra: Any
) -> Update:
    """Return the update of a tapped inline button; `extra` goes into the message with the button."""
    message = {**_telegram_message(update_id, 7000000001, chat or user), "text": "?", **extra}
    message["from"] = {"id": 7000000001, "is_bot": True, "first_name": "Acme"}
    query = {
        "id": f"cb{update_id}",
        "from": _person(user),
        "message": message,
        "chat_instance": "1",
        "data": data,
    }
    return {"update_id": update_id, "callback_query": query}


def _telegram_message(message_id: int, user: int, chat: int | None) -> dict[str, Any]:
    chat_id = chat or user
    kind = "private" if chat_id > 0 else "supergroup"
    place = {"id": chat_id, "type": kind}
    return {"message_id": message_id, "from": _person(user), "chat": place, "date": 1795204800}


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
    """Return the body of a message event, or of an app_mention by `kind`.

    `text` is as Slack sends it, `& < >` escaped. Channels starting with D are direct messages.
    """
    channel_type = "im" if channel.startswith("D") else "channel"
    event = {
        "type": kind,
        "user": user,
        "text": text,
        "ts": ts,
        "channel": channel,
        "channel_type": channel_type,
    }
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
    """Return the body of an edit event: the new message and the previous one."""
    message = {"type": "message", "user": user, "ts": ts}
    edited = {**message, "text": text, "edited": {"user": user, "ts": at}}
    event = {
        "type": "message",
        "subtype": "message_changed",
        "hidden": True,
        "channel": channel,
        "ts": at,
    }
    changed = {"message": edited, "previous_message": {**message, "text": before}, "event_ts": at}
    return slack_event(
        f"Ev{at}",
        {**event, **changed, "channel_type": "im" if channel.startswith("D") else "channel"},
    )


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
    """Return the body of an interaction: a button, a menu, a form or a shortcut."""
    who = {
        "user": {"id": "U0ADA", "username": "ada", "team_id": "T0ACME"},
        "team": {"id": "T0ACME"},
    }
    return urlencode({"payload": json.dumps({"type": kind, **who, **payload})}).encode()


def slack_photo(
    ts: str, url: str, text: str = "", *, name: str = "photo.jpg", size: int = 0, **extra: str
) -> bytes:
    """Return the body of a message that shares a photo stored at `url`."""
    file = {
        "id": "F0FILE",
        "name": name,
        "mimetype": "image/jpeg",
        "size": size,
        "url_private_download": url,
    }
    return slack_text(ts, text, subtype="file_share", files=[file], **extra)


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
    """Return the body of a tapped button.

    A real tap repeats the block id of the message: pass the sent one.
    """
    message = {
        "type": "message",
        "ts": message_ts,
        "text": "?",
        **({"thread_ts": thread_ts} if thread_ts else {}),
    }
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
    """Return the body of a slash command."""
    form = {
        "command": "/acme",
        "text": text,
        "user_id": user,
        "user_name": "ada",
        "channel_id": channel,
    }
    return urlencode({**form, "team_id": "T0ACME", "trigger_id": trigger_id}).encode()
