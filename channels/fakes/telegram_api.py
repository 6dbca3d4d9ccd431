"""FakeTelegram: the Bot API's send methods and files, with its limits, its HTML rules and its envelope."""

from __future__ import annotations

from typing import Any

from channels.fakes import telegram_setup as setup
from channels.fakes.base import Answer, Call, Ledger, json_answer
from channels.fakes.telegram_rules import RefusedError, buttons, chat_id, check_length, parsed

_SENDS = ("sendMessage", "sendPhoto", "sendDocument")
#: Bytes above which a bot gets no file.
_FILE_LIMIT = 20 * 1024 * 1024


class FakeTelegram:
    """One bot's side of the Bot API."""

    def __init__(self, ledger: Ledger, token: str) -> None:
        self._ledger, self._token = ledger, token

    def sends(self, call: Call) -> bool:
        """Whether this call sends a message."""
        return call.route.rpartition("/")[2] in _SENDS

    def answer(self, call: Call) -> Answer:
        """What the Bot API would say."""
        if call.route.startswith("/file/bot"):
            return self._download(call)
        token, _, method = call.route.removeprefix("/bot").partition("/")
        if token != self._token:
            return _error(401, "Unauthorized")
        try:
            if method in _SENDS:
                return self._send(method, call)
            return self._other(method, call.params)
        except RefusedError as exc:
            return _error(400, f"Bad Request: {exc}")

    def failure(self, error: str) -> Answer:
        """A scripted error: an HTTP status or a description."""
        if error == "429":
            return _error(429, "Too Many Requests: retry after 7", retry_after=7)
        if error.isdecimal():
            return _error(int(error), "Internal Server Error")
        status = 403 if error.startswith("Forbidden") else 400
        return _error(status, error)

    def _other(self, method: str, params: dict[str, Any]) -> Answer:
        self._ledger.note("telegram", method, params)
        if method == "getFile":
            return self._where(str(params.get("file_id")))
        if method in setup.METHODS:
            return _result(setup.answered(self._ledger, int(self._token.partition(":")[0]), method, params))
        if method in ("answerCallbackQuery", "sendChatAction"):
            return _result(True)
        return _error(404, "Not Found")

    def host(self, data: bytes) -> str:
        """Keep a file that a person sent. Returns its file_id."""
        return self._ledger.host(data)

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

    def _send(self, method: str, call: Call) -> Answer:
        params = call.params
        field, limit = ("text", 4096) if method == "sendMessage" else ("caption", 1024)
        text = parsed(str(params.get(field, "")), params.get("parse_mode"))
        check_length(text, limit, field)
        media = self._file(method, call) if method != "sendMessage" else None
        number = self._ledger.record(
            "telegram",
            str(params["chat_id"]),
            thread=str(params.get("message_thread_id", "")),
            text=text,
            buttons=buttons(params.get("reply_markup")),
            media=media,
            raw={"method": method, **params},
        )
        chat = {"id": chat_id(params["chat_id"]), "type": "private"}
        return _result({"message_id": number, "date": 1795204800, "chat": chat})

    def _file(self, method: str, call: Call) -> dict[str, Any]:
        upload = next((part for part in call.parts if part.filename), None)
        if upload is None:
            raise RefusedError("there is no file in the request")
        if method == "sendPhoto" and upload.body[:3] != b"\xff\xd8\xff" and upload.body[:4] != b"\x89PNG":
            raise RefusedError("IMAGE_PROCESS_FAILED")
        return self._ledger.keep(upload.filename, upload.mime, upload.body)


def _result(value: Any) -> Answer:
    return json_answer({"ok": True, "result": value})


def _error(code: int, description: str, **parameters: Any) -> Answer:
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        body["parameters"] = parameters
    return json_answer(body, code)
