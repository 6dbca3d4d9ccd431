"""FakeTelegram: the Bot API's messages, edits, drafts and files, with its limits, its HTML rules and its envelope."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import Any

from sayso.channels.fakes import telegram_setup as setup
from sayso.channels.fakes.base import Answer, Call, Ledger, json_answer
from sayso.channels.fakes.telegram_queue import UpdateQueue
from sayso.channels.fakes.telegram_rules import (
    ConflictError,
    RefusedError,
    buttons,
    chat_id,
    check_doing,
    check_length,
    check_upload,
    parsed,
)

#: Groups that became supergroups, old id to new: kept in the ledger, for tests to add to.
MOVED = "telegram moved"
_TIMES = "telegram times"
#: The second of all that the bot says; people write in the seconds after it.
_SECOND = 1795204700
#: Bytes above which a bot gets no file.
_FILE_LIMIT = 20 * 1024 * 1024
_PLACE = ("chat_id", "message_thread_id", "parse_mode", "reply_markup")
_UPLOADS = {
    "sendPhoto": "photo",
    "sendDocument": "document",
    "sendAudio": "audio",
    "sendVideo": "video",
    "sendVoice": "voice",
    "sendAnimation": "animation",
}
#: The parameters that each method takes: of others Telegram says nothing, and does nothing.
_TAKES = {
    "sendMessage": (*_PLACE, "text", "link_preview_options", "ephemeral_message_parameters"),
    **{method: (*_PLACE, "caption", kind, "ephemeral_message_parameters") for method, kind in _UPLOADS.items()},
    "editMessageText": ("chat_id", "message_id", "text", "parse_mode", "reply_markup", "link_preview_options"),
    "editMessageCaption": ("chat_id", "message_id", "caption", "parse_mode", "reply_markup"),
    "editMessageReplyMarkup": ("chat_id", "message_id", "reply_markup"),
    "sendMessageDraft": ("chat_id", "message_thread_id", "draft_id", "text", "parse_mode", "can_stop"),
}


class FakeTelegram:
    """One bot's side of the Bot API."""

    def __init__(self, ledger: Ledger, token: str) -> None:
        self._ledger, self._token = ledger, token
        self.updates = UpdateQueue(ledger)

    def sends(self, call: Call) -> bool:
        """Whether this call sends, changes or sketches a message."""
        return call.route.rpartition("/")[2] in _TAKES

    def answer(self, call: Call) -> Answer:
        """What the Bot API would say."""
        if call.route.startswith("/file/bot"):
            return self._download(call)
        token, _, method = call.route.removeprefix("/bot").partition("/")
        if token != self._token:
            return _error(401, "Unauthorized")
        try:
            return self._message(method, call) if method in _TAKES else self._other(method, call.params)
        except RefusedError as exc:
            return _error(400, f"Bad Request: {exc}")
        except ConflictError as exc:
            return _error(409, f"Conflict: {exc}")

    def failure(self, error: str) -> Answer:
        """A scripted error: an HTTP status or a description."""
        if error == "429":
            return _error(429, "Too Many Requests: retry after 7", retry_after=7)
        if error == "413":
            return _error(413, "Request Entity Too Large")
        if error.isdecimal():
            return _error(int(error), HTTPStatus(int(error)).phrase)
        status = 403 if error.startswith("Forbidden") else 400
        return _error(status, error)

    def host(self, data: bytes) -> str:
        """Keep a file that a person sent. Returns its file_id."""
        return self._ledger.host(data)

    def rate(self, chat: str, seconds: float) -> int:
        """The most messages that came into a chat in so many seconds; edits count, as they do for Telegram."""
        times = self._ledger.kept.get(_TIMES, {}).get(chat, [])
        return max((sum(start <= later < start + seconds for later in times) for start in times), default=0)

    def _other(self, method: str, params: dict[str, Any]) -> Answer:
        self._ledger.note("telegram", method, params)
        if method == "getFile":
            return self._where(str(params.get("file_id")))
        if method == "getUpdates":
            return _result(self.updates.ask(params))
        if method in setup.METHODS:
            answer = setup.answered(self._ledger, int(self._token.partition(":")[0]), method, params)
            self.updates.look_again()
            return _result(answer)
        if method == "answerCallbackQuery":
            return _result(self._acknowledged(params))
        if method == "sendChatAction":
            check_doing(params)
            return _result(True)
        return _error(404, "Not Found")

    def _acknowledged(self, params: dict[str, Any]) -> bool:
        if not params.get("callback_query_id"):
            raise RefusedError("query is too old and response timeout expired or query ID is invalid")
        if len(str(params.get("text", ""))) > 200:
            raise RefusedError("MESSAGE_TOO_LONG")
        return True

    def _where(self, file_id: str) -> Answer:
        data = self._ledger.blobs.get(file_id)
        if data is None:
            raise RefusedError("wrong file_id or the file is temporarily unavailable")
        if len(data) > _FILE_LIMIT:
            raise RefusedError("file is too big")
        file = {"file_id": file_id, "file_unique_id": file_id[:16], "file_size": len(data)}
        return _result({**file, "file_path": f"photos/{file_id}"})

    def _download(self, call: Call) -> Answer:
        token, _, path = call.route.removeprefix("/file/bot").partition("/")
        data = self._ledger.blobs.get(path.removeprefix("photos/"))
        if token != self._token or data is None:
            return _error(404, "Not Found")
        return Answer(200, data, {"Content-Type": "application/octet-stream"})

    def _message(self, method: str, call: Call) -> Answer:
        params = call.params
        if unknown := set(params) - set(_TAKES[method]):
            raise RefusedError(f"{method} takes no {sorted(unknown)}")
        chat = str(chat_id(params.get("chat_id")))
        if moved := self._ledger.kept.get(MOVED, {}).get(chat):
            words = "Bad Request: group chat was upgraded to a supergroup chat"
            return _error(400, words, migrate_to_chat_id=int(moved))
        if method == "sendMessageDraft":
            return _result(self._sketch(chat, params))
        self._ledger.kept.setdefault(_TIMES, {}).setdefault(chat, []).append(time.monotonic())
        if method.startswith("edit"):
            return self._edit(method, chat, params)
        return self._send(method, chat, call)

    def _send(self, method: str, chat: str, call: Call) -> Answer:
        params = call.params
        number = self._ledger.record(
            "telegram",
            chat,
            thread=str(params.get("message_thread_id", "")),
            text=_words(params, "caption" if method in _UPLOADS else "text"),
            buttons=buttons(params.get("reply_markup")),
            media=self._file(method, call) if method in _UPLOADS else None,
            raw={"method": method, **params},
        )
        only_for = json.loads(params.get("ephemeral_message_parameters") or "{}")
        if not only_for:
            return _result(_told(number, chat))
        if not chat.startswith("-") or not only_for.get("receiver_user_id"):
            raise RefusedError("ephemeral messages can be sent only to a member of a group")
        return _result({**_told(0, chat), "ephemeral_message_id": number})

    def _file(self, method: str, call: Call) -> dict[str, Any]:
        upload = next((part for part in call.parts if part.filename), None)
        if upload is None:
            raise RefusedError("there is no file in the request")
        check_upload(_UPLOADS[method], upload.mime, upload.body)
        return self._ledger.keep(upload.filename, upload.mime, upload.body)

    def _edit(self, method: str, chat: str, params: dict[str, Any]) -> Answer:
        """Change a message in the ledger, where it keeps its place, and note the call."""
        number = int(params.get("message_id") or 0)
        if not number:
            raise RefusedError("message identifier is not specified")
        entry = self._ledger.sent[number - 1] if 0 < number <= len(self._ledger.sent) else {}
        if (entry.get("platform"), entry.get("chat")) != ("telegram", chat):
            raise RefusedError("message to edit not found")
        if method == "editMessageText" and entry["media"]:
            raise RefusedError("there is no text in the message to edit")
        if method == "editMessageCaption" and not entry["media"]:
            raise RefusedError("there is no caption in the message to edit")
        field = {"editMessageText": "text", "editMessageCaption": "caption"}.get(method, "")
        text = _words(params, field) if field else entry["text"]
        keys = buttons(params.get("reply_markup"))
        if (text, keys) == (entry["text"], entry["buttons"]):
            raise RefusedError("message is not modified: specified new message content and reply markup are the same")
        self._ledger.edit(number, text=text, buttons=keys, raw={"method": method, **params})
        self._ledger.note("telegram", method, params)
        return _result({**_told(number, chat), "edit_date": _SECOND})

    def _sketch(self, chat: str, params: dict[str, Any]) -> bool:
        if chat.startswith("-"):
            raise RefusedError("message drafts can be sent only to private chats")
        if not 0 < abs(int(params.get("draft_id") or 0)) < 2**31:
            raise RefusedError("invalid draft identifier specified")
        if params.get("text"):
            _words(params, "text")
        self._ledger.note("telegram", "sendMessageDraft", params)
        return True


def _words(params: dict[str, Any], field: str) -> str:
    text = parsed(str(params.get(field, "")), params.get("parse_mode"))
    check_length(text, 4096 if field == "text" else 1024, field)
    return text


def _told(number: int, chat: str) -> dict[str, Any]:
    place = {"id": int(chat), "type": "supergroup" if chat.startswith("-") else "private"}
    return {"message_id": number, "date": _SECOND, "chat": place}


def _result(value: Any) -> Answer:
    return json_answer({"ok": True, "result": value})


def _error(code: int, description: str, **parameters: Any) -> Answer:
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        body["parameters"] = parameters
    return json_answer(body, code)
