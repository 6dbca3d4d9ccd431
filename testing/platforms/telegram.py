"""A fake of Telegram's Bot API: messages, webhooks, updates, commands, files,
and Telegram's own rules.
"""

from __future__ import annotations

import ipaddress
import json
import re
import threading
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from telegram import Update
from telegram.constants import SUPPORTED_WEBHOOK_PORTS, ChatAction

from sayso.testing.platforms.server import FakeResponse, RecordedRequest, RequestLog, json_response
from sayso.testing.platforms.telegram_rich import rich_text
from sayso.testing.platforms.telegram_text import (
    TelegramRefusal,
    buttons,
    check_length,
    disabled_labels,
    json_list,
    plain_text,
)

_LOCAL = ("127.0.0.1", "localhost")
#: The largest photo, and the largest other file, in bytes.
_PHOTO_LIMIT = 10 * 1024 * 1024
_UPLOAD_LIMIT = 50 * 1024 * 1024
#: Media types that Telegram plays or shows; it sends others as documents.
_PLAYED = {
    "audio": ("audio/mpeg", "audio/mp4", "audio/x-m4a", "audio/m4a"),
    "voice": ("audio/ogg", "audio/mpeg", "audio/mp4", "audio/x-m4a"),
    "video": ("video/mp4",),
    "animation": ("image/gif", "video/mp4"),
}
#: The kinds of update that a webhook may ask for: those that the library knows, and two newer ones.
UPDATES = frozenset((*Update.ALL_TYPES, "stopped_message_generation", "subscription"))
#: The stored state of a bot: its webhook as getWebhookInfo shows it (tests may add to it), its
#: commands by language, and the updates that wait for getUpdates.
WEBHOOK = "telegram webhook"
COMMANDS = "telegram commands"
WAITING = "telegram updates"
#: The commands of a bot in groups, by language.
GROUP_COMMANDS = "telegram group commands"
METHODS = (
    "getMe",
    "setWebhook",
    "deleteWebhook",
    "getWebhookInfo",
    "setMyCommands",
    "getMyCommands",
)
_BOT = {
    "is_bot": True,
    "first_name": "Acme",
    "username": "acme_bot",
    "can_join_groups": True,
    "can_read_all_group_messages": False,
    "supports_inline_queries": False,
    "has_topics_enabled": False,
}
_NO_WEBHOOK = {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
_ALLOWED = "telegram allowed updates"
#: The default kinds of update.
_USUAL = UPDATES - {"chat_member", "message_reaction", "message_reaction_count"}
#: The numbers of getUpdates: name, default, smallest and largest. Telegram silently takes the
#: nearest one in range; no caller means that.
_NUMBERS = (("offset", 0, -100, 2**31 - 1), ("limit", 100, 1, 100), ("timeout", 0, 0, 50))
#: Groups that became supergroups, old id to new: stored in the ledger, for tests to add to.
MOVED = "telegram moved"
_TIMES = "telegram times"
#: The version of the Bot API that the server speaks, such as (10, 2): stored in the ledger, for
#: tests to lower. An older server knows no newer methods, and sees a disabled button as one without
#: an action.
SERVER_VERSION = "telegram server version"
#: The newest version that the fake knows, and the methods that older ones lack.
NEWEST = (10, 3)
_SINCE = {
    "sendRichMessage": (10, 2),
    "editEphemeralMessageText": (10, 2),
    "editEphemeralMessageCaption": (10, 2),
}
#: Groups in which the bot is no administrator: stored in the ledger, for tests to add to.
PLAIN_MEMBER = "telegram plain member"
#: The time of all messages of the bot; people write in the seconds after it.
_SECOND = 1795204700
#: The largest file that a bot may download, in bytes.
_FILE_LIMIT = 20 * 1024 * 1024
_PLACE = ("chat_id", "message_thread_id", "parse_mode", "reply_markup")
_EPHEMERAL = ("ephemeral_message_parameters", "reply_parameters")
_EPHEMERAL_PARAMETERS = {
    "receiver_user_id",
    "callback_query_id",
    "replace_callback_query_message",
}
_EDITED_EPHEMERAL = (
    "chat_id",
    "receiver_user_id",
    "ephemeral_message_id",
    "parse_mode",
    "reply_markup",
)
#: Which field an edit replaces. The other method replaces only the buttons.
_EDITED_FIELDS = {
    "editMessageText": "text",
    "editEphemeralMessageText": "text",
    "editMessageCaption": "caption",
    "editEphemeralMessageCaption": "caption",
}
_UPLOADS = {
    "sendPhoto": "photo",
    "sendDocument": "document",
    "sendAudio": "audio",
    "sendVideo": "video",
    "sendVoice": "voice",
    "sendAnimation": "animation",
}
#: The parameters of each method. Telegram silently ignores others; the fake refuses them.
_TAKES = {
    "sendMessage": (*_PLACE, "text", "link_preview_options", *_EPHEMERAL),
    **{method: (*_PLACE, "caption", kind, *_EPHEMERAL) for method, kind in _UPLOADS.items()},
    "sendRichMessage": (
        "chat_id",
        "message_thread_id",
        "reply_markup",
        "rich_message",
        *_EPHEMERAL,
    ),
    "editMessageText": (
        "chat_id",
        "message_id",
        "text",
        "parse_mode",
        "reply_markup",
        "link_preview_options",
        "rich_message",
    ),
    "editMessageCaption": ("chat_id", "message_id", "caption", "parse_mode", "reply_markup"),
    "editMessageReplyMarkup": ("chat_id", "message_id", "reply_markup"),
    "editEphemeralMessageText": (*_EDITED_EPHEMERAL, "text", "link_preview_options"),
    "editEphemeralMessageCaption": (*_EDITED_EPHEMERAL, "caption"),
    "deleteMessage": ("chat_id", "message_id"),
    "sendMessageDraft": (
        "chat_id",
        "message_thread_id",
        "draft_id",
        "text",
        "parse_mode",
        "can_stop",
    ),
}


class ConflictError(Exception):
    """Raised when Telegram would answer 409 with this description."""


class FakeTelegram:
    """The Bot API of one bot."""

    chat_fields = ("chat_id",)

    def __init__(self, ledger: RequestLog, token: str) -> None:
        self._ledger = ledger
        self._token = token
        self.updates = UpdateQueue(ledger)

    @property
    def _version(self) -> tuple[int, int]:
        version: tuple[int, int] = self._ledger.state.get(SERVER_VERSION, NEWEST)
        return version

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends, edits or drafts a message."""
        return call.route.rpartition("/")[2] in _TAKES

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the Bot API."""
        if call.route.startswith("/file/bot"):
            return self._download(call)
        token, _, method = call.route.removeprefix("/bot").partition("/")
        if token != self._token:
            return _error(401, "Unauthorized")
        try:
            if self._version < _SINCE.get(method, (0, 0)):
                return _error(404, "Not Found: method not found")
            if method in _TAKES:
                return self._message(method, call)
            return self._other_method(method, call.params)
        except TelegramRefusal as exc:
            return _error(400, f"Bad Request: {exc}")
        except ConflictError as exc:
            return _error(409, f"Conflict: {exc}")

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status or a description."""
        if error == "429":
            return _error(429, "Too Many Requests: retry after 7", retry_after=7)
        if error == "413":
            return _error(413, "Request Entity Too Large")
        if error.isdecimal():
            return _error(int(error), HTTPStatus(int(error)).phrase)
        status = 403 if error.startswith("Forbidden") else 400
        return _error(status, error)

    def host(self, data: bytes) -> str:
        """Store a file that a person sent. Return its file_id."""
        return self._ledger.host(data)

    def rate(self, chat: str, seconds: float) -> int:
        """Return the most messages in one chat within this many seconds.

        Edits count, as at Telegram.
        """
        times = self._ledger.state.get(_TIMES, {}).get(chat, [])
        return max(
            (sum(start <= later < start + seconds for later in times) for start in times), default=0
        )

    def _other_method(self, method: str, params: dict[str, Any]) -> FakeResponse:
        self._ledger.note("telegram", method, params)
        if method == "getFile":
            return self._file_resource(str(params.get("file_id")))
        if method == "getUpdates":
            return _result(self.updates.ask(params))
        if method in METHODS:
            answer = answer_setup(self._ledger, int(self._token.partition(":")[0]), method, params)
            self.updates.look_again()
            return _result(answer)
        if method == "answerCallbackQuery":
            if not params.get("callback_query_id"):
                raise TelegramRefusal(
                    "query is too old and response timeout expired or query ID is invalid"
                )
            if len(str(params.get("text", ""))) > 200:
                raise TelegramRefusal("MESSAGE_TOO_LONG")
            return _result(True)
        if method == "sendChatAction":
            check_chat_action(params)
            return _result(True)
        return _error(404, "Not Found")

    def _file_resource(self, file_id: str) -> FakeResponse:
        data = self._ledger.blobs.get(file_id)
        if data is None:
            raise TelegramRefusal("wrong file_id or the file is temporarily unavailable")
        if len(data) > _FILE_LIMIT:
            raise TelegramRefusal("file is too big")
        file = {"file_id": file_id, "file_unique_id": file_id[:16], "file_size": len(data)}
        return _result({**file, "file_path": f"photos/{file_id}"})

    def _download(self, call: RecordedRequest) -> FakeResponse:
        token, _, path = call.route.removeprefix("/file/bot").partition("/")
        data = self._ledger.blobs.get(path.removeprefix("photos/"))
        if token != self._token or data is None:
            return _error(404, "Not Found")
        return FakeResponse(200, data, {"Content-Type": "application/octet-stream"})

    def _message(self, method: str, call: RecordedRequest) -> FakeResponse:
        params = call.params
        if unknown := set(params) - set(_TAKES[method]):
            raise TelegramRefusal(f"{method} takes no {sorted(unknown)}")
        if self._version < (10, 3) and '"disabled"' in str(params.get("reply_markup", "")):
            rule = "Text buttons are unallowed in the inline keyboard"
            raise TelegramRefusal(f"can't parse inline keyboard button: {rule}")
        chat = str(chat_id(params.get("chat_id")))
        if moved := self._ledger.state.get(MOVED, {}).get(chat):
            description = "Bad Request: group chat was upgraded to a supergroup chat"
            return _error(400, description, migrate_to_chat_id=int(moved))
        if method == "sendMessageDraft":
            return _result(self._draft(chat, params))
        self._ledger.state.setdefault(_TIMES, {}).setdefault(chat, []).append(time.monotonic())
        if method == "deleteMessage":
            return self._delete(chat, params)
        if method.startswith("edit"):
            return self._edit(method, chat, params)
        return self._send(method, chat, call)

    def _send(self, method: str, chat: str, call: RecordedRequest) -> FakeResponse:
        params = call.params
        media = None
        self._check_ephemeral(chat, params)
        text = _checked_text(params, "caption" if method in _UPLOADS else "text")
        keys = buttons(params.get("reply_markup"))
        if method in _UPLOADS:
            upload = next((part for part in call.parts if part.filename), None)
            if upload is None:
                raise TelegramRefusal("there is no file in the request")
            check_upload(_UPLOADS[method], upload.mime, upload.body)
            media = self._ledger.keep(upload.filename, upload.mime, upload.body)
        thread = str(params.get("message_thread_id", ""))
        raw = {"method": method, **params}
        number = self._ledger.record(
            "telegram", chat, thread=thread, text=text, buttons=keys, media=media, raw=raw
        )
        if not params.get("ephemeral_message_parameters"):
            return _result(_message_resource(number, chat))
        return _result({**_message_resource(0, chat), "ephemeral_message_id": number})

    def _check_ephemeral(self, chat: str, params: dict[str, Any]) -> None:
        """Refuse a message to one person in a private chat, or without an act that allows it."""
        only_for = json.loads(params.get("ephemeral_message_parameters") or "{}")
        replied_to = json.loads(params.get("reply_parameters") or "{}")
        unknown = only_for.keys() - _EPHEMERAL_PARAMETERS
        if unknown:
            raise TelegramRefusal(f"ephemeral_message_parameters takes no {sorted(unknown)}")
        names_message = isinstance(replied_to.get("ephemeral_message_id"), int)
        if replied_to and not (only_for and names_message):
            raise TelegramRefusal("message to be replied not found")
        if not only_for:
            return
        if not chat.startswith("-") or not isinstance(only_for.get("receiver_user_id"), int):
            raise TelegramRefusal("ephemeral messages can be sent only to a member of a group")
        is_answer = bool(only_for.get("callback_query_id") or replied_to)
        if chat in self._ledger.state.get(PLAIN_MEMBER, ()) and not is_answer:
            raise TelegramRefusal("an ephemeral message must answer an act of its receiver")

    def _sent_message(self, number: int, chat: str) -> dict[str, Any] | None:
        """Return the ledger's entry of a message that was sent to a chat, None if there is none."""
        if not 0 < number <= len(self._ledger.sent):
            return None
        entry = self._ledger.sent[number - 1]
        if (entry.get("platform"), entry.get("chat")) != ("telegram", chat):
            return None
        return entry

    def _delete(self, chat: str, params: dict[str, Any]) -> FakeResponse:
        """Empty a message in the ledger, where it keeps its place, and note the call."""
        number = int(params.get("message_id") or 0)
        if self._sent_message(number, chat) is None:
            raise TelegramRefusal("message to delete not found")
        self._ledger.edit(number, text="", buttons=[], raw={"method": "deleteMessage", **params})
        self._ledger.note("telegram", "deleteMessage", params)
        return _result(True)

    def _edit(self, method: str, chat: str, params: dict[str, Any]) -> FakeResponse:
        """Edit a message in the ledger, where it keeps its place, and note the call."""
        is_ephemeral = "Ephemeral" in method
        number = int(params.get("ephemeral_message_id" if is_ephemeral else "message_id") or 0)
        if not number:
            raise TelegramRefusal("message identifier is not specified")
        entry = self._sent_message(number, chat)
        if entry is None:
            raise TelegramRefusal("message to edit not found")
        ephemeral = json.loads(entry["raw"].get("ephemeral_message_parameters") or "{}")
        receiver = entry["raw"].get("receiver_user_id", ephemeral.get("receiver_user_id"))
        if str(receiver or "") != str(params.get("receiver_user_id", "")):
            raise TelegramRefusal("message to edit not found")
        if method.endswith("MessageText") and entry["media"]:
            raise TelegramRefusal("there is no text in the message to edit")
        if method.endswith("MessageCaption") and not entry["media"]:
            raise TelegramRefusal("there is no caption in the message to edit")
        if self._version < (10, 2):
            params.pop("rich_message", None)  # an older server passes over what it does not know
        field = _EDITED_FIELDS.get(method, "")
        if field:
            text = _checked_text(params, field)
        else:
            text = entry["text"]
        markup = params.get("reply_markup")
        keys = buttons(markup)
        before = (
            entry["text"],
            entry["buttons"],
            disabled_labels(entry["raw"].get("reply_markup")),
        )
        if (text, keys, disabled_labels(markup)) == before:
            raise TelegramRefusal(
                "message is not modified: specified new message content and reply markup are the same"
            )
        self._ledger.edit(number, text=text, buttons=keys, raw={"method": method, **params})
        self._ledger.note("telegram", method, params)
        if is_ephemeral:
            return _result(True)
        return _result({**_message_resource(number, chat), "edit_date": _SECOND})

    def _draft(self, chat: str, params: dict[str, Any]) -> bool:
        if chat.startswith("-"):
            raise TelegramRefusal("message drafts can be sent only to private chats")
        if not 0 < abs(int(params.get("draft_id") or 0)) < 2**31:
            raise TelegramRefusal("invalid draft identifier specified")
        if params.get("text"):
            _checked_text(params, "text")
        self._ledger.note("telegram", "sendMessageDraft", params)
        return True


class UpdateQueue:
    """The updates of one bot, stored in the ledger.

    Only the newest caller of getUpdates waits for them.
    """

    def __init__(self, ledger: RequestLog) -> None:
        self._ledger = ledger
        self._changed = threading.Condition()
        self._asked = 0

    def add(self, update: dict[str, Any]) -> None:
        """Add an update. The bot never gets kinds that it did not ask for."""
        with self._changed:
            if update.keys() & set(self._ledger.state.get(_ALLOWED) or _USUAL):
                self._waiting().append(update)
            self._changed.notify_all()

    def ask(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the waiting updates, or wait for one. Raises TelegramRefusal, ConflictError."""
        offset, limit, seconds = (_number(params, *each) for each in _NUMBERS)
        with self._changed:
            self._refuse_beside_a_webhook(
                "can't use getUpdates method while webhook is active; use deleteWebhook"
            )
            if "allowed_updates" in params:
                self._ledger.state[_ALLOWED] = update_kinds(params)
            # Without those before the offset; a negative one counts from the end.
            waiting = self._waiting()
            if offset < 0:
                waiting[:] = waiting[offset:]
            else:
                waiting[:] = [each for each in waiting if each["update_id"] >= offset]
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._waiting() or self._asked != mine or self._has_webhook(), seconds
            )
            if self._asked != mine:
                raise ConflictError(
                    "terminated by other getUpdates request; make sure that only one bot instance is running"
                )
            self._refuse_beside_a_webhook("terminated by setWebhook request")
            return self._waiting()[:limit]

    def look_again(self) -> None:
        """Wake the waiting caller: a webhook may have been set."""
        with self._changed:
            self._changed.notify_all()

    def _waiting(self) -> list[dict[str, Any]]:
        waiting: list[dict[str, Any]] = self._ledger.state.setdefault(WAITING, [])
        return waiting

    def _has_webhook(self) -> bool:
        return bool(self._ledger.state.get(WEBHOOK, {}).get("url"))

    def _refuse_beside_a_webhook(self, reason: str) -> None:
        if self._has_webhook():
            raise ConflictError(reason)


def chat_id(chat: Any) -> int:
    """Return the id of the chat. Raises TelegramRefusal for anything but a number."""
    if not re.fullmatch(r"-?\d+", str(chat)):
        raise TelegramRefusal("chat not found")
    return int(chat)


def check_chat_action(params: dict[str, Any]) -> None:
    """Raise TelegramRefusal for a chat action without a chat, or of an unknown kind."""
    chat_id(params.get("chat_id"))
    if params.get("action") not in set(ChatAction):
        raise TelegramRefusal("wrong parameter action in request")


def check_webhook(url: str, secret_token: str, max_connections: str) -> None:
    """Raise TelegramRefusal for a webhook that Telegram would not call.

    Local addresses are allowed.
    """
    address = urlsplit(url)
    if address.scheme != "https" and not (address.scheme == "http" and address.hostname in _LOCAL):
        raise TelegramRefusal("bad webhook: An HTTPS URL must be provided for webhook")
    if address.hostname not in _LOCAL and (address.port or 443) not in SUPPORTED_WEBHOOK_PORTS:
        raise TelegramRefusal(
            "bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443"
        )
    if address.hostname not in _LOCAL and _reserved(address.hostname or ""):
        raise TelegramRefusal(f"bad webhook: IP address {address.hostname} is reserved")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,256}", secret_token):
        raise TelegramRefusal("secret token contains unallowed characters")
    # Telegram silently takes the nearest number in range; no caller means that.
    if not re.fullmatch(r"\d+", max_connections) or not 1 <= int(max_connections) <= 100:
        raise TelegramRefusal("max_connections must be between 1 and 100")


def _reserved(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return not host


def check_commands(commands: list[Any]) -> None:
    """Raise TelegramRefusal for a menu of commands that Telegram would not show."""
    if len(commands) > 100:
        raise TelegramRefusal("BOT_COMMANDS_TOO_MUCH")
    for command in commands:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", str(command.get("command"))):
            raise TelegramRefusal("BOT_COMMAND_INVALID")
        if not 1 <= len(str(command.get("description", ""))) <= 256:
            raise TelegramRefusal("BOT_COMMAND_DESCRIPTION_INVALID")
        if unknown := command.keys() - {"command", "description", "is_ephemeral"}:
            raise TelegramRefusal(f"a command takes no {sorted(unknown)}")


def check_upload(kind: str, mime: str, data: bytes) -> None:
    """Raise TelegramRefusal for a file that is empty, too large,
    or not of a type that the method shows or plays.
    """
    if not data:
        raise TelegramRefusal("file must be non-empty")
    if len(data) > (_PHOTO_LIMIT if kind == "photo" else _UPLOAD_LIMIT):
        raise TelegramRefusal("file is too big")
    if kind == "photo" and data[:3] != b"\xff\xd8\xff" and data[:4] != b"\x89PNG":
        raise TelegramRefusal("IMAGE_PROCESS_FAILED")
    if kind in _PLAYED and mime not in _PLAYED[kind]:
        raise TelegramRefusal(f"{mime} is no {kind}")


def answer_setup(ledger: RequestLog, bot_id: int, method: str, params: dict[str, Any]) -> Any:
    """Return the result of one of the `METHODS`. Raises TelegramRefusal."""
    if method == "setWebhook":
        return _set(ledger, params)
    if method == "deleteWebhook":
        return _delete(ledger, params)
    if method == "getWebhookInfo":
        webhook = ledger.state.get(WEBHOOK, _NO_WEBHOOK)
        return {
            **webhook,
            "pending_update_count": webhook["pending_update_count"]
            + len(ledger.state.get(WAITING, ())),
        }
    if method == "setMyCommands":
        commands = json_list(params.get("commands"), "commands")
        check_commands(commands)
        stored = GROUP_COMMANDS if _is_for_groups(params) else COMMANDS
        ledger.state[stored] = {**ledger.state.get(stored, {}), _language(params): commands}
        return True
    if method == "getMyCommands":
        stored = GROUP_COMMANDS if _is_for_groups(params) else COMMANDS
        return ledger.state.get(stored, {}).get(_language(params), [])
    return {**_BOT, "id": bot_id}


def _is_for_groups(params: dict[str, Any]) -> bool:
    """Return whether the menu is that of all groups.

    Raises TelegramRefusal for a scope that no bot of ours uses.
    """
    scope = json.loads(params.get("scope") or '{"type": "default"}')
    if scope not in ({"type": "default"}, {"type": "all_group_chats"}):
        raise TelegramRefusal("invalid bot command scope specified")
    return bool(scope["type"] == "all_group_chats")


def _language(params: dict[str, Any]) -> str:
    """Return the language of the menu; "" for all languages without a menu of their own."""
    code = str(params.get("language_code", ""))
    if not re.fullmatch("(?:[a-z]{2})?", code):
        raise TelegramRefusal("invalid language code specified")
    return code


def _set(ledger: RequestLog, params: dict[str, Any]) -> bool:
    url = str(params.get("url", ""))
    if not url:
        return _delete(ledger, params)
    connections = str(params.get("max_connections", "40"))
    check_webhook(url, str(params.get("secret_token", "")), connections)
    before = ledger.state.get(WEBHOOK, _NO_WEBHOOK)
    webhook = {**_NO_WEBHOOK, "url": url, "max_connections": int(connections)}
    if _is_true(params, "drop_pending_updates"):
        webhook["pending_update_count"] = 0
    else:
        webhook["pending_update_count"] = before["pending_update_count"]
    # Without the parameter those asked for before; an empty list stands for the default ones.
    if "allowed_updates" in params:
        updates = update_kinds(params)
    else:
        updates = list(before.get("allowed_updates", []))
    if updates:
        ledger.state[WEBHOOK] = {**webhook, "allowed_updates": updates}
    else:
        ledger.state[WEBHOOK] = webhook
    return True


def update_kinds(params: dict[str, Any]) -> list[str]:
    """Return the kinds of update that are asked for. Raises TelegramRefusal for an unknown one."""
    updates = json_list(params["allowed_updates"], "allowed updates")
    if unknown := set(updates) - UPDATES:  # Telegram passes over them: then the update never comes
        raise TelegramRefusal(f"unknown allowed updates {sorted(unknown)}")
    return updates


def _delete(ledger: RequestLog, params: dict[str, Any]) -> bool:
    before = ledger.state.pop(WEBHOOK, _NO_WEBHOOK)
    dropped = _is_true(params, "drop_pending_updates")
    if dropped:
        waiting = 0
    else:
        waiting = before["pending_update_count"]
    if dropped:
        ledger.state.pop(WAITING, None)
    ledger.state[WEBHOOK] = {**_NO_WEBHOOK, "pending_update_count": waiting}
    return True


def _is_true(params: dict[str, Any], name: str) -> bool:
    return str(params.get(name, "")).lower() in ("true", "1")


def _number(params: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    number = int(params.get(name, default))
    if not least <= number <= most:
        raise TelegramRefusal(f"{name} must be between {least} and {most}")
    return number


def _checked_text(params: dict[str, Any], field: str) -> str:
    if "rich_message" in params and "text" not in params:
        return rich_text(params["rich_message"])
    text = plain_text(str(params.get(field, "")), params.get("parse_mode"))
    check_length(text, 4096 if field == "text" else 1024, field)
    return text


def _message_resource(number: int, chat: str) -> dict[str, Any]:
    place = {"id": int(chat), "type": "supergroup" if chat.startswith("-") else "private"}
    return {"message_id": number, "date": _SECOND, "chat": place}


def _result(value: Any) -> FakeResponse:
    return json_response({"ok": True, "result": value})


def _error(code: int, description: str, **parameters: Any) -> FakeResponse:
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        body["parameters"] = parameters
    return json_response(body, code)
