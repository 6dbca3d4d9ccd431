"""A fake of Telegram's Bot API: messages, webhook, updates, commands and files.

The fake refuses what Telegram refuses, with Telegram's own descriptions. It also refuses some
calls that Telegram accepts but silently changes, such as a parameter that a method does not know,
because such a call is always a mistake of the bot.

Telegram's terms: an update is anything that happens in a chat of the bot. A bot gets updates at its
webhook, or fetches them with getUpdates. An ephemeral message is shown to one member of a group. A
draft is a text that people see grow before the message is sent.
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
from sayso.testing.platforms.telegram_rich import checked_rich_text
from sayso.testing.platforms.telegram_text import (
    TelegramRefusal,
    buttons,
    check_length,
    disabled_labels,
    json_list,
    plain_text,
)

#: Hosts that a webhook of a test may have, although Telegram would refuse them.
_LOCAL_HOSTS = ("127.0.0.1", "localhost")
#: The largest photo that a bot may send, in bytes.
_PHOTO_LIMIT = 10 * 1024 * 1024
#: The largest other file that a bot may send, in bytes.
_UPLOAD_LIMIT = 50 * 1024 * 1024
#: The largest file that a bot may download, in bytes.
_DOWNLOAD_LIMIT = 20 * 1024 * 1024
#: The media types that Telegram plays, by the kind of message. It shows any other type as a file
#: to download, so a bot that sends such a file by `sendVideo` is mistaken.
_PLAYED_TYPES = {
    "audio": ("audio/mpeg", "audio/mp4", "audio/x-m4a", "audio/m4a"),
    "voice": ("audio/ogg", "audio/mpeg", "audio/mp4", "audio/x-m4a"),
    "video": ("video/mp4",),
    "animation": ("image/gif", "video/mp4"),
}
#: The kinds of update that a bot may ask for: those that the library knows, and two newer ones.
UPDATE_KINDS = frozenset((*Update.ALL_TYPES, "stopped_message_generation", "subscription"))
#: The kinds that a bot gets if it asks for none: all but the three that Telegram names.
_DEFAULT_KINDS = UPDATE_KINDS - {"chat_member", "message_reaction", "message_reaction_count"}

# Keys of `RequestLog.state`, which holds what a bot's account remembers. Tests may change each.

#: The webhook as getWebhookInfo shows it, with the kinds of update that setWebhook asked for.
WEBHOOK = "telegram webhook"
#: The menu of commands in private chats, by language; "" for all languages without a menu.
COMMANDS = "telegram commands"
#: The menu of commands in groups, by language.
GROUP_COMMANDS = "telegram group commands"
#: The updates that getUpdates has not confirmed yet, oldest first.
WAITING_UPDATES = "telegram updates"
#: The kinds of update that getUpdates asked for last. A webhook has its own list.
_POLLED_KINDS = "telegram allowed updates"
#: Groups that became supergroups: old id to new, both as text.
MOVED_GROUPS = "telegram moved"
#: The ids of groups, as text, in which the bot is not an administrator. In all others it is.
PLAIN_MEMBER_GROUPS = "telegram plain member"
#: The administrators of groups, by the group's id as text: a list of Telegram's users, each with
#: `is_anonymous` if they stay anonymous in the group.
ADMINISTRATORS = "telegram administrators"
#: The version of the Bot API that the server speaks, such as (10, 2). Without it `NEWEST`. An older
#: server knows fewer methods, and sees a disabled button as one without an action.
SERVER_VERSION = "telegram server version"
#: When methods of messages were called (not drafts), by chat, in seconds of the monotonic clock.
_SENT_TIMES = "telegram times"

#: The newest version that the fake knows.
NEWEST = (10, 3)
#: The version that brought each of the newer methods; older servers answer them with 404.
_SINCE = {
    "sendRichMessage": (10, 2),
    "editEphemeralMessageText": (10, 2),
    "editEphemeralMessageCaption": (10, 2),
}
#: The methods that set up a bot, see `answer_setup`.
SETUP_METHODS = (
    "getMe",
    "setWebhook",
    "deleteWebhook",
    "getWebhookInfo",
    "setMyCommands",
    "getMyCommands",
)
#: What getMe tells of the bot, besides its id.
_BOT = {
    "is_bot": True,
    "first_name": "Acme",
    "username": "acme_bot",
    "can_join_groups": True,
    "can_read_all_group_messages": False,
    "supports_inline_queries": False,
    "has_topics_enabled": False,
}
#: What getWebhookInfo shows of a bot without a webhook.
_NO_WEBHOOK = {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
#: The date of all messages of the bot, in Unix seconds. The webhooks in `webhooks.py` have later
#: ones, so that people always write after the bot.
_BOT_MESSAGE_DATE = 1795204700

#: Parameters of every method that sends a text or a file.
_SEND_PARAMETERS = ("chat_id", "message_thread_id", "parse_mode", "reply_markup")
#: Parameters that make a message ephemeral: only one member of the group sees it.
_EPHEMERAL = ("ephemeral_message_parameters", "reply_parameters")
#: The keys of `ephemeral_message_parameters`.
_EPHEMERAL_KEYS = {
    "receiver_user_id",
    "callback_query_id",
    "replace_callback_query_message",
}
#: Parameters of both methods that edit an ephemeral message.
_EDIT_EPHEMERAL_PARAMETERS = (
    "chat_id",
    "receiver_user_id",
    "ephemeral_message_id",
    "parse_mode",
    "reply_markup",
)
#: The field that each edit replaces. editMessageReplyMarkup replaces only the buttons.
_EDITED_FIELDS = {
    "editMessageText": "text",
    "editEphemeralMessageText": "text",
    "editMessageCaption": "caption",
    "editEphemeralMessageCaption": "caption",
}
#: The methods that send a file, and the kind of file, which is also the name of its parameter.
_UPLOADS = {
    "sendPhoto": "photo",
    "sendDocument": "document",
    "sendAudio": "audio",
    "sendVideo": "video",
    "sendVoice": "voice",
    "sendAnimation": "animation",
}
#: The parameters of each method that sends, edits, deletes or drafts a message. Telegram silently
#: ignores others; the fake refuses them.
_MESSAGE_PARAMETERS = {
    "sendMessage": (*_SEND_PARAMETERS, "text", "link_preview_options", *_EPHEMERAL),
    **{
        method: (*_SEND_PARAMETERS, "caption", kind, *_EPHEMERAL)
        for method, kind in _UPLOADS.items()
    },
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
    "editEphemeralMessageText": (*_EDIT_EPHEMERAL_PARAMETERS, "text", "link_preview_options"),
    "editEphemeralMessageCaption": (*_EDIT_EPHEMERAL_PARAMETERS, "caption"),
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
    """Raised when Telegram would answer 409: there is a webhook, or a newer getUpdates."""


class FakeTelegram:
    """The Bot API of one bot, which is known by its token. Implements `server.Fake`.

    All its state is in `log`, so a reset of the log also resets the bot. `updates` are the updates
    that wait for getUpdates.
    """

    chat_fields = ("chat_id",)

    def __init__(self, log: RequestLog, token: str) -> None:
        self._log = log
        self._token = token
        self.updates = UpdateQueue(log)

    @property
    def _server_version(self) -> tuple[int, int]:
        version: tuple[int, int] = self._log.state.get(SERVER_VERSION, NEWEST)
        return version

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends, edits, deletes or drafts a message."""
        method = call.route.rpartition("/")[2]
        return method in _MESSAGE_PARAMETERS

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the Bot API."""
        if call.route.startswith("/file/bot"):
            return self._download(call)
        token, _, method = call.route.removeprefix("/bot").partition("/")
        if token != self._token:
            return _error(401, "Unauthorized")
        try:
            if self._server_version < _SINCE.get(method, (0, 0)):
                return _error(404, "Not Found: method not found")
            if method in _MESSAGE_PARAMETERS:
                return self._answer_message_method(method, call)
            return self._answer_other_method(method, call.params)
        except TelegramRefusal as exc:
            return _error(400, f"Bad Request: {exc}")
        except ConflictError as exc:
            return _error(409, f"Conflict: {exc}")

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status such as "502", or Telegram's description."""
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
        return self._log.save_bytes(data)

    def busiest(self, chat: str, seconds: float) -> int:
        """Return the most messages in one chat within this many seconds; 0 without messages.

        Edits, deletions and refused calls count, too.
        """
        times = self._log.state.get(_SENT_TIMES, {}).get(chat, [])
        # The busiest period begins with a message.
        counts = [sum(start <= at < start + seconds for at in times) for start in times]
        return max(counts, default=0)

    def _answer_other_method(self, method: str, params: dict[str, Any]) -> FakeResponse:
        """Log and answer a method that shows no message. Raises TelegramRefusal, ConflictError."""
        self._log.append_call("telegram", method, params)
        if method == "getFile":
            return self._file_resource(str(params.get("file_id")))
        if method == "getUpdates":
            return _result(self.updates.poll(params))
        if method in SETUP_METHODS:
            bot_id = int(self._token.partition(":")[0])
            answer = answer_setup(self._log, bot_id, method, params)
            # A webhook ends a getUpdates that waits.
            self.updates.wake()
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
        if method == "getChatAdministrators":
            return self._administrators(str(params.get("chat_id")))
        return _error(404, "Not Found")

    def _administrators(self, chat: str) -> FakeResponse:
        """Answer getChatAdministrators. The first administrator is the owner of the group."""
        moved = self._moved(chat)
        if moved:
            return moved
        users = self._log.state.get(ADMINISTRATORS, {}).get(chat)
        if users is None:
            raise TelegramRefusal("chat not found")
        members = [_administrator(user, is_owner=user is users[0]) for user in users]
        return _result(members)

    def _moved(self, chat: str) -> FakeResponse | None:
        """Return the answer to a call about a group that became a supergroup, else None."""
        new_id = self._log.state.get(MOVED_GROUPS, {}).get(chat)
        if not new_id:
            return None
        description = "Bad Request: group chat was upgraded to a supergroup chat"
        return _error(400, description, migrate_to_chat_id=int(new_id))

    def _file_resource(self, file_id: str) -> FakeResponse:
        """Answer getFile: the path below which the file can be downloaded."""
        data = self._log.blobs.get(file_id)
        if data is None:
            raise TelegramRefusal("wrong file_id or the file is temporarily unavailable")
        if len(data) > _DOWNLOAD_LIMIT:
            raise TelegramRefusal("file is too big")
        file = {"file_id": file_id, "file_unique_id": file_id[:16], "file_size": len(data)}
        return _result({**file, "file_path": f"photos/{file_id}"})

    def _download(self, call: RecordedRequest) -> FakeResponse:
        """Return a file by the path that getFile returned."""
        token, _, path = call.route.removeprefix("/file/bot").partition("/")
        data = self._log.blobs.get(path.removeprefix("photos/"))
        if token != self._token or data is None:
            return _error(404, "Not Found")
        return FakeResponse(200, data, {"Content-Type": "application/octet-stream"})

    def _answer_message_method(self, method: str, call: RecordedRequest) -> FakeResponse:
        """Check and log a call that sends, edits, deletes or drafts. Raises TelegramRefusal."""
        params = call.params
        unknown = set(params) - set(_MESSAGE_PARAMETERS[method])
        if unknown:
            raise TelegramRefusal(f"{method} takes no {sorted(unknown)}")
        # An older server does not know the field `disabled`, so such a button has no action for it.
        if self._server_version < (10, 3) and '"disabled"' in str(params.get("reply_markup", "")):
            rule = "Text buttons are unallowed in the inline keyboard"
            raise TelegramRefusal(f"can't parse inline keyboard button: {rule}")

        chat = str(chat_id(params.get("chat_id")))
        moved = self._moved(chat)
        if moved:
            return moved

        # A draft is no message: Telegram does not count it against the limit of the chat.
        if method == "sendMessageDraft":
            return _result(self._draft(chat, params))
        self._log.state.setdefault(_SENT_TIMES, {}).setdefault(chat, []).append(time.monotonic())
        if method == "deleteMessage":
            return self._delete(chat, params)
        if method.startswith("edit"):
            return self._edit(method, chat, params)
        return self._send(method, chat, call)

    def _send(self, method: str, chat: str, call: RecordedRequest) -> FakeResponse:
        """Check and log a new message. Raises TelegramRefusal."""
        params = call.params
        self._check_ephemeral(chat, params)
        text = _checked_text(params, "caption" if method in _UPLOADS else "text")
        shown_buttons = buttons(params.get("reply_markup"))

        media = None
        if method in _UPLOADS:
            upload = next((part for part in call.parts if part.filename), None)
            if upload is None:
                raise TelegramRefusal("there is no file in the request")
            check_upload(_UPLOADS[method], upload.mime, upload.body)
            media = self._log.save_file(upload.filename, upload.mime, upload.body)

        number = self._log.append_message(
            "telegram",
            chat,
            thread=str(params.get("message_thread_id", "")),
            text=text,
            buttons=shown_buttons,
            media=media,
            raw={"method": method, **params},
        )
        if not params.get("ephemeral_message_parameters"):
            return _result(_message_resource(number, chat))
        # The message_id of an ephemeral message is 0: only its ephemeral_message_id names it.
        return _result({**_message_resource(0, chat), "ephemeral_message_id": number})

    def _check_ephemeral(self, chat: str, params: dict[str, Any]) -> None:
        """Raise TelegramRefusal for an ephemeral message that Telegram would not send.

        An ephemeral message is shown to one member of a group:

        * It needs a group and the id of its receiver.
        * A reply must quote an ephemeral message, and must be ephemeral itself.
        * A bot that is not an administrator may only answer: a tap of the receiver, or an
          ephemeral message of the receiver.
        """
        ephemeral = json.loads(params.get("ephemeral_message_parameters") or "{}")
        reply = json.loads(params.get("reply_parameters") or "{}")
        unknown = ephemeral.keys() - _EPHEMERAL_KEYS
        if unknown:
            raise TelegramRefusal(f"ephemeral_message_parameters takes no {sorted(unknown)}")

        quotes_ephemeral = isinstance(reply.get("ephemeral_message_id"), int)
        if reply and not (ephemeral and quotes_ephemeral):
            raise TelegramRefusal("message to be replied not found")
        if not ephemeral:
            return

        if not _is_group(chat) or not isinstance(ephemeral.get("receiver_user_id"), int):
            raise TelegramRefusal("ephemeral messages can be sent only to a member of a group")
        is_answer = bool(ephemeral.get("callback_query_id") or reply)
        if chat in self._log.state.get(PLAIN_MEMBER_GROUPS, ()) and not is_answer:
            raise TelegramRefusal("an ephemeral message must answer an act of its receiver")

    def _sent_message(self, number: int, chat: str) -> dict[str, Any] | None:
        """Return the log's entry of a message in a chat; None if it was never sent or is deleted.

        The number of a message is its position in the log, from 1.
        """
        if not 0 < number <= len(self._log.sent):
            return None
        entry = self._log.sent[number - 1]
        if entry["platform"] != "telegram" or entry["chat"] != chat:
            return None
        if entry["raw"].get("method") == "deleteMessage":
            return None
        return entry

    def _delete(self, chat: str, params: dict[str, Any]) -> FakeResponse:
        """Empty a message in the log, and log the call. Raises TelegramRefusal.

        The message itself stays in the list, because the numbers of later ones depend on it.
        """
        number = int(params.get("message_id") or 0)
        entry = self._sent_message(number, chat)
        # An ephemeral message has no message_id, so this method cannot name it.
        if entry is None or _receiver_of(entry):
            raise TelegramRefusal("message to delete not found")
        raw = {"method": "deleteMessage", **params}
        self._log.edit_message(number, text="", buttons=[], raw=raw)
        self._log.append_call("telegram", "deleteMessage", params)
        return _result(True)

    def _edit(self, method: str, chat: str, params: dict[str, Any]) -> FakeResponse:
        """Edit a message in the log, and log the call. Raises TelegramRefusal."""
        is_ephemeral = "Ephemeral" in method
        id_parameter = "ephemeral_message_id" if is_ephemeral else "message_id"
        number = int(params.get(id_parameter) or 0)
        if not number:
            raise TelegramRefusal("message identifier is not specified")
        entry = self._sent_message(number, chat)
        if entry is None or _receiver_of(entry) != str(params.get("receiver_user_id", "")):
            raise TelegramRefusal("message to edit not found")
        if method.endswith("MessageText") and entry["media"]:
            raise TelegramRefusal("there is no text in the message to edit")
        if method.endswith("MessageCaption") and not entry["media"]:
            raise TelegramRefusal("there is no caption in the message to edit")

        if self._server_version < (10, 2):
            params.pop("rich_message", None)  # an older server ignores what it does not know
        text = entry["text"]
        field = _EDITED_FIELDS.get(method, "")
        if field:
            text = _checked_text(params, field)
        markup = params.get("reply_markup")
        shown_buttons = buttons(markup)

        # Disabled buttons are in no list of buttons, but Telegram compares them too.
        new_content = (text, shown_buttons, disabled_labels(markup))
        old_disabled = disabled_labels(entry["raw"].get("reply_markup"))
        if new_content == (entry["text"], entry["buttons"], old_disabled):
            raise TelegramRefusal(
                "message is not modified: specified new message content and reply markup "
                "are the same"
            )

        raw = {"method": method, **params}
        self._log.edit_message(number, text=text, buttons=shown_buttons, raw=raw)
        self._log.append_call("telegram", method, params)
        if is_ephemeral:
            return _result(True)
        return _result({**_message_resource(number, chat), "edit_date": _BOT_MESSAGE_DATE})

    def _draft(self, chat: str, params: dict[str, Any]) -> bool:
        """Check a draft: a text that people see grow while the bot writes it.

        It is logged as a call, because it is not a message that stays.
        """
        if _is_group(chat):
            raise TelegramRefusal("message drafts can be sent only to private chats")
        if not 0 < abs(int(params.get("draft_id") or 0)) < 2**31:
            raise TelegramRefusal("invalid draft identifier specified")
        if params.get("text"):
            _checked_text(params, "text")
        self._log.append_call("telegram", "sendMessageDraft", params)
        return True


class UpdateQueue:
    """The updates that wait for getUpdates, which a bot without a webhook calls in a loop.

    Telegram serves one caller at a time: a newer call of getUpdates ends the older one, and
    setWebhook ends both. The updates are in the log, so they live until its reset.
    """

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._changed = threading.Condition()
        #: The number of calls so far. A waiting call ends when its own number is not the newest.
        self._calls = 0

    def add(self, update: dict[str, Any]) -> None:
        """Add an update, unless it is of a kind that the bot did not ask for."""
        with self._changed:
            wanted_kinds = self._log.state.get(_POLLED_KINDS) or _DEFAULT_KINDS
            if update.keys() & set(wanted_kinds):
                self._waiting().append(update)
            self._changed.notify_all()

    def poll(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """Answer getUpdates: return the waiting updates, or wait for the first one.

        Raises TelegramRefusal for a parameter out of range, and ConflictError if there is a webhook
        or a newer call.
        """
        offset = _number(params, "offset", default=0, least=-100, most=2**31 - 1)
        limit = _number(params, "limit", default=100, least=1, most=100)
        seconds = _number(params, "timeout", default=0, least=0, most=50)
        with self._changed:
            self._refuse_if_webhook(
                "can't use getUpdates method while webhook is active; use deleteWebhook"
            )
            if "allowed_updates" in params:
                self._log.state[_POLLED_KINDS] = update_kinds(params)

            # The offset confirms all updates before it. A negative offset counts from the end.
            waiting = self._waiting()
            if offset < 0:
                waiting[:] = waiting[offset:]
            else:
                waiting[:] = [each for each in waiting if each["update_id"] >= offset]

            self._calls += 1
            own_number = self._calls
            self._changed.notify_all()  # ends an older call
            self._changed.wait_for(
                lambda: self._waiting() or self._calls != own_number or self._has_webhook(),
                seconds,
            )
            if self._calls != own_number:
                raise ConflictError(
                    "terminated by other getUpdates request; "
                    "make sure that only one bot instance is running"
                )
            self._refuse_if_webhook("terminated by setWebhook request")
            return self._waiting()[:limit]

    def wake(self) -> None:
        """Let a waiting call look whether a webhook was set."""
        with self._changed:
            self._changed.notify_all()

    def _waiting(self) -> list[dict[str, Any]]:
        waiting: list[dict[str, Any]] = self._log.state.setdefault(WAITING_UPDATES, [])
        return waiting

    def _has_webhook(self) -> bool:
        return bool(self._log.state.get(WEBHOOK, {}).get("url"))

    def _refuse_if_webhook(self, reason: str) -> None:
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

    A local address is allowed, even over HTTP and on any port, because the bots of tests have one.
    """
    address = urlsplit(url)
    is_local = address.hostname in _LOCAL_HOSTS
    if address.scheme != "https" and not (address.scheme == "http" and is_local):
        raise TelegramRefusal("bad webhook: An HTTPS URL must be provided for webhook")
    if not is_local and (address.port or 443) not in SUPPORTED_WEBHOOK_PORTS:
        raise TelegramRefusal(
            "bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443"
        )
    if not is_local and _is_reserved(address.hostname or ""):
        raise TelegramRefusal(f"bad webhook: IP address {address.hostname} is reserved")
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,256}", secret_token):
        raise TelegramRefusal("secret token contains unallowed characters")
    # Telegram silently takes the nearest number in range; no caller means that.
    if not re.fullmatch(r"\d+", max_connections) or not 1 <= int(max_connections) <= 100:
        raise TelegramRefusal("max_connections must be between 1 and 100")


def _is_reserved(host: str) -> bool:
    """Return whether a host is an IP address outside the public internet, or ""."""
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
        unknown = command.keys() - {"command", "description", "is_ephemeral"}
        if unknown:
            raise TelegramRefusal(f"a command takes no {sorted(unknown)}")


def check_upload(kind: str, mime: str, data: bytes) -> None:
    """Raise TelegramRefusal for a file that Telegram would not send as this kind of message.

    `kind` is one of the values of `_UPLOADS`, such as "photo". The file may be empty, too large, or
    of a type that is not shown or played as this kind.
    """
    if not data:
        raise TelegramRefusal("file must be non-empty")
    limit = _PHOTO_LIMIT if kind == "photo" else _UPLOAD_LIMIT
    if len(data) > limit:
        raise TelegramRefusal("file is too big")
    is_picture = data.startswith((b"\xff\xd8\xff", b"\x89PNG"))  # JPEG, PNG
    if kind == "photo" and not is_picture:
        raise TelegramRefusal("IMAGE_PROCESS_FAILED")
    if kind in _PLAYED_TYPES and mime not in _PLAYED_TYPES[kind]:
        raise TelegramRefusal(f"{mime} is no {kind}")


def answer_setup(log: RequestLog, bot_id: int, method: str, params: dict[str, Any]) -> Any:
    """Return the result of one of the `SETUP_METHODS`. Raises TelegramRefusal."""
    if method == "getMe":
        return {**_BOT, "id": bot_id}
    if method == "setWebhook":
        return _set_webhook(log, params)
    if method == "deleteWebhook":
        return _delete_webhook(log, params)
    if method == "getWebhookInfo":
        webhook = log.state.get(WEBHOOK, _NO_WEBHOOK)
        pending = webhook["pending_update_count"] + len(log.state.get(WAITING_UPDATES, ()))
        return {**webhook, "pending_update_count": pending}

    menus_key = GROUP_COMMANDS if _is_for_groups(params) else COMMANDS
    menus = log.state.get(menus_key, {})
    if method == "getMyCommands":
        return menus.get(_language(params), [])
    commands = json_list(params.get("commands"), "commands")
    check_commands(commands)
    log.state[menus_key] = {**menus, _language(params): commands}
    return True


def _is_for_groups(params: dict[str, Any]) -> bool:
    """Return whether a menu of commands is that of all groups.

    Raises TelegramRefusal for any other scope than all groups and the default one: our bots use
    no other.
    """
    scope = json.loads(params.get("scope") or '{"type": "default"}')
    if scope not in ({"type": "default"}, {"type": "all_group_chats"}):
        raise TelegramRefusal("invalid bot command scope specified")
    return bool(scope["type"] == "all_group_chats")


def _language(params: dict[str, Any]) -> str:
    """Return the language of a menu of commands; "" for all languages without a menu.

    Raises TelegramRefusal for anything but two lower-case letters.
    """
    code = str(params.get("language_code", ""))
    if not re.fullmatch("(?:[a-z]{2})?", code):
        raise TelegramRefusal("invalid language code specified")
    return code


def _set_webhook(log: RequestLog, params: dict[str, Any]) -> bool:
    """Answer setWebhook. An empty URL removes the webhook. Raises TelegramRefusal."""
    url = str(params.get("url", ""))
    if not url:
        return _delete_webhook(log, params)
    connections = str(params.get("max_connections", "40"))
    check_webhook(url, str(params.get("secret_token", "")), connections)

    previous = log.state.get(WEBHOOK, _NO_WEBHOOK)
    webhook: dict[str, Any] = {**_NO_WEBHOOK, "url": url, "max_connections": int(connections)}
    if not _is_true(params, "drop_pending_updates"):
        webhook["pending_update_count"] = previous["pending_update_count"]

    # Without the parameter, the kinds of the previous webhook stay. An empty list stands for the
    # default kinds, which getWebhookInfo does not show.
    if "allowed_updates" in params:
        kinds = update_kinds(params)
    else:
        kinds = list(previous.get("allowed_updates", []))
    if kinds:
        webhook["allowed_updates"] = kinds
    log.state[WEBHOOK] = webhook
    return True


def update_kinds(params: dict[str, Any]) -> list[str]:
    """Return the kinds of update in the parameter `allowed_updates`.

    Raises TelegramRefusal for an unknown kind. Telegram ignores it, and then the updates that the
    bot wanted never arrive.
    """
    kinds = json_list(params["allowed_updates"], "allowed updates")
    unknown = set(kinds) - UPDATE_KINDS
    if unknown:
        raise TelegramRefusal(f"unknown allowed updates {sorted(unknown)}")
    return kinds


def _delete_webhook(log: RequestLog, params: dict[str, Any]) -> bool:
    previous = log.state.pop(WEBHOOK, _NO_WEBHOOK)
    pending = previous["pending_update_count"]
    if _is_true(params, "drop_pending_updates"):
        pending = 0
        log.state.pop(WAITING_UPDATES, None)
    log.state[WEBHOOK] = {**_NO_WEBHOOK, "pending_update_count": pending}
    return True


def _is_true(params: dict[str, Any], name: str) -> bool:
    return str(params.get(name, "")).lower() in ("true", "1")


def _number(params: dict[str, Any], name: str, *, default: int, least: int, most: int) -> int:
    """Return a number of a call.

    Raises TelegramRefusal for one out of range. Telegram silently takes the nearest number in
    range, which is never what a bot means.
    """
    number = int(params.get(name, default))
    if not least <= number <= most:
        raise TelegramRefusal(f"{name} must be between {least} and {most}")
    return number


def _checked_text(params: dict[str, Any], field: str) -> str:
    """Return the text of a message as people see it, from `rich_message` or from `field`.

    `field` is "text" or "caption". Raises TelegramRefusal for a text that Telegram refuses.
    """
    if "rich_message" in params and "text" not in params:
        return checked_rich_text(params["rich_message"])
    text = plain_text(str(params.get(field, "")), params.get("parse_mode"))
    limit = 4096 if field == "text" else 1024
    check_length(text, limit, field)
    return text


def _receiver_of(entry: dict[str, Any]) -> str:
    """Return who sees an ephemeral message of the log, as text; "" for any other message."""
    raw = entry["raw"]
    # A sent message names its receiver inside a parameter, an edited one in a parameter of its own.
    ephemeral = json.loads(raw.get("ephemeral_message_parameters") or "{}")
    receiver = raw.get("receiver_user_id", ephemeral.get("receiver_user_id"))
    return str(receiver or "")


def _message_resource(number: int, chat: str) -> dict[str, Any]:
    """Return a message as the Bot API returns it; adapters read no more than its id."""
    chat_type = "supergroup" if _is_group(chat) else "private"
    return {
        "message_id": number,
        "date": _BOT_MESSAGE_DATE,
        "chat": {"id": int(chat), "type": chat_type},
    }


def _administrator(user: dict[str, Any], *, is_owner: bool) -> dict[str, Any]:
    """Return an administrator of a group as getChatAdministrators names it."""
    rights = (
        "can_be_edited",
        "can_manage_chat",
        "can_delete_messages",
        "can_manage_video_chats",
        "can_restrict_members",
        "can_promote_members",
        "can_change_info",
        "can_invite_users",
        "can_post_stories",
        "can_edit_stories",
        "can_delete_stories",
    )
    person = {name: user[name] for name in user if name != "is_anonymous"}
    member = {"user": person, "is_anonymous": user.get("is_anonymous", False)}
    if is_owner:
        return {"status": "creator", **member}
    return {"status": "administrator", **member, **dict.fromkeys(rights, True)}


def _is_group(chat: str) -> bool:
    """Return whether an id is that of a group: those of private chats are positive."""
    return chat.startswith("-")


def _result(value: Any) -> FakeResponse:
    return json_response({"ok": True, "result": value})


def _error(code: int, description: str, **parameters: Any) -> FakeResponse:
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        body["parameters"] = parameters
    return json_response(body, code)
