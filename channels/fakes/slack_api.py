"""FakeSlack: the Web API methods we call and its files, with Slack's way of saying errors and its block limits."""

from __future__ import annotations

import json
from typing import Any

from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

from channels.fakes.base import ACCEPTED, Answer, Call, Ledger, json_answer
from channels.fakes.slack_setup import SCOPES, auth_test

_FILES = "/files-pri/"
_LOGIN = b"<!DOCTYPE html><html><head><title>Sign in | Slack</title></head><body>Sign in</body></html>"
_FORM_JSON = ("blocks", "files", "channels", "loading_messages")


class FakeSlack:
    """One workspace's side of the Web API. `url` is where files are uploaded to."""

    def __init__(self, ledger: Ledger, token: str, url: str) -> None:
        self._ledger, self._token, self._url = ledger, token, url
        self._uploads: dict[str, dict[str, Any]] = {}
        self.scopes: tuple[str, ...] = SCOPES

    def sends(self, call: Call) -> bool:
        """Whether this call sends a message. A file is sent by the last of its three calls."""
        return call.route in ("/api/chat.postMessage", "/api/files.completeUploadExternal")

    def answer(self, call: Call) -> Answer:
        """What the Web API would say."""
        if call.route.startswith("/upload/"):
            return self._receive(call)
        if call.route.startswith(_FILES):
            return self._download(call)
        if call.headers.get("authorization") != f"Bearer {self._token}":
            return self.failure("invalid_auth")
        params = _params(call)
        method = call.route.removeprefix("/api/")
        steps = {
            "chat.postMessage": self._post,
            "files.getUploadURLExternal": self._offer,
            "files.completeUploadExternal": self._complete,
        }
        if method in steps:
            return steps[method](params)
        self._ledger.note("slack", method, params)
        if method == "auth.test":
            return auth_test(self.scopes)
        return json_answer(ACCEPTED) if method == "assistant.threads.setStatus" else self.failure("unknown_method")

    def failure(self, error: str) -> Answer:
        """A scripted error: an HTTP status, or one of Slack's codes in a 200."""
        if error == "429":
            return json_answer({"ok": False, "error": "ratelimited"}, 429, Retry_After="7")
        if error.isdecimal():
            return Answer(int(error), b"<html>upstream error</html>", {"Content-Type": "text/html"})
        return json_answer({"ok": False, "error": error})

    def host(self, data: bytes) -> str:
        """Keep a file that a person sent. Returns its url_private_download."""
        return f"https://files.slack.com{_FILES}T0ACME-F0FILE/download/{self._ledger.host(data)}"

    def _download(self, call: Call) -> Answer:
        """With a wrong token, a page to log in and no error."""
        self._ledger.note("slack", "download", call.route)
        if call.headers.get("authorization") != f"Bearer {self._token}":
            return Answer(200, _LOGIN, {"Content-Type": "text/html; charset=utf-8"})
        data = self._ledger.blobs.get(call.route.rpartition("/")[2])
        return Answer(404, b"") if data is None else Answer(200, data, {"Content-Type": "application/octet-stream"})

    def _post(self, params: dict[str, Any]) -> Answer:
        blocks = params.get("blocks") or []
        error = _message_error(params, blocks)
        if error:
            return self.failure(error)
        sections = [block["text"]["text"] for block in blocks if block["type"] == "section"]
        number = self._ledger.record(
            "slack",
            params["channel"],
            thread=params.get("thread_ts", ""),
            text="\n".join(sections) or params["text"],
            buttons=_buttons(blocks),
            raw=params,
        )
        return json_answer({"ok": True, "channel": params["channel"], "ts": f"1795300000.{number:06d}"})

    def _offer(self, params: dict[str, Any]) -> Answer:
        if not params.get("filename") or int(params.get("length", 0)) < 1:
            return self.failure("invalid_arguments")
        file_id = f"F{len(self._uploads):06d}"
        self._uploads[file_id] = {"filename": params["filename"], "length": int(params["length"])}
        return json_answer({"ok": True, "file_id": file_id, "upload_url": f"{self._url}/upload/{file_id}"})

    def _receive(self, call: Call) -> Answer:
        upload = self._uploads.get(call.route.rpartition("/")[2])
        if upload is None or len(call.body) != upload["length"]:
            return Answer(400, b"length mismatch")
        upload["media"] = self._ledger.keep(upload["filename"], "", call.body)
        return Answer(200, f"OK - {len(call.body)}".encode(), {"Content-Type": "text/plain"})

    def _complete(self, params: dict[str, Any]) -> Answer:
        files = params.get("files") or []
        if not files or any("media" not in self._uploads.get(file["id"], {}) for file in files):
            return self.failure("file_not_found")
        for file in files:
            self._ledger.record(
                "slack",
                params.get("channel_id", ""),
                thread=params.get("thread_ts", ""),
                text=params.get("initial_comment", ""),
                media=self._uploads[file["id"]]["media"],
                raw=params,
            )
        return json_answer({"ok": True, "files": [{"id": file["id"], "title": file.get("title")} for file in files]})


def _params(call: Call) -> dict[str, Any]:
    params = call.params
    return {
        name: json.loads(value) if name in _FORM_JSON and isinstance(value, str) else value
        for name, value in params.items()
    }


def _message_error(params: dict[str, Any], blocks: list[dict[str, Any]]) -> str:
    if not str(params.get("channel", "")).startswith(("C", "D", "G", "U")):
        return "channel_not_found"
    if not params.get("text") and not blocks:
        return "no_text"
    if len(params.get("text", "")) > 4000:
        return "msg_too_long"
    return "" if _valid(blocks) else "invalid_blocks"


def _valid(blocks: list[dict[str, Any]]) -> bool:
    """Whether Slack's own models take the blocks, every field of them, and no action id appears twice."""
    try:
        parsed = [block.to_dict() for block in Block.parse_all(blocks)]
    except SlackObjectFormationError:
        return False
    ids = [key["action_id"] for block in blocks for key in block.get("elements", ())]
    long = any(len(block.get("block_id", "")) > 255 for block in blocks)
    return parsed == blocks and len(blocks) <= 50 and len(set(ids)) == len(ids) and not long


def _buttons(blocks: list[dict[str, Any]]) -> list[dict[str, str]]:
    keys = [key for block in blocks if block["type"] == "actions" for key in block["elements"]]
    return [{"label": key["text"]["text"], "data": key["value"]} for key in keys]
