"""Rules of FakeTelegram: what the Bot API refuses in a text, a keyboard, a command or a webhook's address."""

from __future__ import annotations

import html
import ipaddress
import json
import re
from typing import Any
from urllib.parse import urlsplit

_TAGS = frozenset(
    ("b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "a", "code", "pre", "blockquote", "span")
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)((?:\s+[\w-]+(?:=\"[^\"<>]*\")?)*)\s*>")
#: Ports on which Telegram calls webhooks.
_PORTS = (443, 80, 88, 8443)
_LOCAL = ("127.0.0.1", "localhost")
#: Bytes that Telegram takes of a photo, and of any other file.
_PHOTO_LIMIT, _UPLOAD_LIMIT = 10 * 1024 * 1024, 50 * 1024 * 1024
#: What it plays or shows; of other kinds it makes documents.
_PLAYED = {
    "audio": ("audio/mpeg", "audio/mp4", "audio/x-m4a", "audio/m4a"),
    "voice": ("audio/ogg", "audio/mpeg", "audio/mp4", "audio/x-m4a"),
    "video": ("video/mp4",),
    "animation": ("image/gif", "video/mp4"),
}
#: What a button of an inline keyboard may do.
_ACTIONS = frozenset(
    (
        *("url", "callback_data", "web_app", "login_url", "switch_inline_query", "switch_inline_query_current_chat"),
        *("switch_inline_query_chosen_chat", "copy_text", "callback_game", "pay"),
    )
)
#: What a bot may be seen doing.
_DOINGS = frozenset(
    (
        *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice", "upload_document"),
        *("choose_sticker", "find_location", "record_video_note", "upload_video_note"),
    )
)
#: Kinds of update that a webhook may ask for.
UPDATES = frozenset(
    (
        *("message", "edited_message", "channel_post", "edited_channel_post", "business_connection"),
        *("business_message", "edited_business_message", "deleted_business_messages", "guest_message"),
        *("message_reaction", "message_reaction_count", "inline_query", "chosen_inline_result", "callback_query"),
        *("shipping_query", "pre_checkout_query", "purchased_paid_media", "poll", "poll_answer", "my_chat_member"),
        *("chat_member", "chat_join_request", "chat_boost", "removed_chat_boost", "managed_bot", "subscription"),
        "stopped_message_generation",
    )
)


class RefusedError(Exception):
    """Raised when Telegram would answer 400 with this description."""


class ConflictError(Exception):
    """Raised when Telegram would answer 409 with this description."""


def parsed(text: str, parse_mode: str | None) -> str:
    """The text people see. Telegram refuses HTML it cannot parse."""
    if parse_mode is None:
        return text
    if parse_mode != "HTML":
        raise RefusedError("unsupported parse_mode")
    open_tags: list[str] = []
    for closing, name, _ in _TAG.findall(text):
        _step(open_tags, bool(closing), name.lower())
    if open_tags:
        raise RefusedError(f"can't parse entities: Can't find end tag corresponding to start tag \"{open_tags[-1]}\"")
    words = _TAG.sub("", text)
    if "<" in words:
        raise RefusedError("can't parse entities: Unsupported start tag")
    return html.unescape(words)


def _step(open_tags: list[str], closing: bool, name: str) -> None:
    if name not in _TAGS:
        raise RefusedError(f'can\'t parse entities: Unsupported start tag "{name}"')
    if not closing:
        if name == "blockquote" and "blockquote" in open_tags:
            raise RefusedError("can't parse entities: blockquotes can't be nested")
        if name == "a" and "a" in open_tags:  # Telegram keeps one of the addresses: a caller does not mean that
            raise RefusedError("can't parse entities: links can't be nested")
        open_tags.append(name)
    elif not open_tags or open_tags.pop() != name:
        raise RefusedError(f'can\'t parse entities: Unexpected end tag "{name}"')


def check_length(text: str, limit: int, field: str) -> None:
    """Raises RefusedError for more UTF-16 code units than the limit, and for a message without words."""
    if len(text.encode("utf-16-le")) // 2 > limit:
        raise RefusedError("message is too long" if field == "text" else "message caption is too long")
    if field == "text" and not text.strip():
        raise RefusedError("message text is empty")


def buttons(markup: Any) -> list[dict[str, str]]:
    """The keys of an inline keyboard: at most 100, each with words and one action; data has 1 to 64 bytes."""
    keyboard = listed(markup, "inline keyboard", "inline_keyboard") if markup else []
    if not all(isinstance(row, list) for row in keyboard):
        raise RefusedError("can't parse inline keyboard: rows must be arrays")
    keys = [key for row in keyboard for key in row]
    if len(keys) > 100 or any(len(row) > 8 for row in keyboard):
        raise RefusedError("reply markup is too long")
    for key in keys:
        _check_key(key)
    return [{"label": key["text"], "data": key.get("callback_data", "")} for key in keys]


def _check_key(key: Any) -> None:
    if not isinstance(key, dict) or not key.get("text"):
        raise RefusedError("inline keyboard button text must be non-empty")
    actions = _ACTIONS & key.keys()
    if not actions:
        raise RefusedError("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
    if len(actions) > 1:  # Telegram does one of them: a caller does not mean that
        raise RefusedError(f"can't parse inline keyboard button: one action, not {sorted(actions)}")
    if "callback_data" in key and not 1 <= len(str(key["callback_data"]).encode()) <= 64:
        raise RefusedError("BUTTON_DATA_INVALID")
    if key.get("style", "primary") not in ("danger", "success", "primary"):
        raise RefusedError("invalid button style specified")


def listed(value: Any, what: str, key: str = "") -> list[Any]:
    """A list, or the one under a key, which forms carry as JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    found = found.get(key) if key and isinstance(found, dict) else found
    if not isinstance(found, list):
        raise RefusedError(f"can't parse {what} JSON object")
    return found


def chat_id(chat: Any) -> int:
    """The chat's number. Raises RefusedError for what is none."""
    if not re.fullmatch(r"-?\d+", str(chat)):
        raise RefusedError("chat not found")
    return int(chat)


def check_doing(params: dict[str, Any]) -> None:
    """Raises RefusedError for a chat action in no chat, or of no known kind."""
    chat_id(params.get("chat_id"))
    if params.get("action") not in _DOINGS:
        raise RefusedError("wrong parameter action in request")


def check_webhook(url: str, secret_token: str, max_connections: str) -> None:
    """Raises RefusedError for a webhook that Telegram would not call, except one on this machine."""
    address = urlsplit(url)
    if address.scheme != "https" and not (address.scheme == "http" and address.hostname in _LOCAL):
        raise RefusedError("bad webhook: An HTTPS URL must be provided for webhook")
    if address.hostname not in _LOCAL and (address.port or 443) not in _PORTS:
        raise RefusedError("bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443")
    if address.hostname not in _LOCAL and _reserved(address.hostname or ""):
        raise RefusedError(f"bad webhook: IP address {address.hostname} is reserved")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,256}", secret_token):
        raise RefusedError("secret token contains unallowed characters")
    # Telegram takes the nearest number in range: a caller does not mean that.
    if not re.fullmatch(r"\d+", max_connections) or not 1 <= int(max_connections) <= 100:
        raise RefusedError("max_connections must be between 1 and 100")


def _reserved(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return not host


def check_commands(commands: list[Any]) -> None:
    """Raises RefusedError for a menu of commands that Telegram would not show."""
    if len(commands) > 100:
        raise RefusedError("BOT_COMMANDS_TOO_MUCH")
    for command in commands:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", str(command.get("command"))):
            raise RefusedError("BOT_COMMAND_INVALID")
        if not 1 <= len(str(command.get("description", ""))) <= 256:
            raise RefusedError("BOT_COMMAND_DESCRIPTION_INVALID")


def check_upload(kind: str, mime: str, data: bytes) -> None:
    """Raises RefusedError for a file that is not what its method shows or plays, is empty, or is too large for it."""
    if not data:
        raise RefusedError("file must be non-empty")
    if len(data) > (_PHOTO_LIMIT if kind == "photo" else _UPLOAD_LIMIT):
        raise RefusedError("file is too big")
    if kind == "photo" and data[:3] != b"\xff\xd8\xff" and data[:4] != b"\x89PNG":
        raise RefusedError("IMAGE_PROCESS_FAILED")
    if kind in _PLAYED and mime not in _PLAYED[kind]:
        raise RefusedError(f"{mime} is no {kind}")
