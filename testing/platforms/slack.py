"""A fake of Slack's Web API: messages, files, statuses and scopes.

Manifests: `slack_manifests`; modals: `slack_views`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

from sayso.testing.platforms.server import (
    ACCEPTED,
    FakeResponse,
    RecordedRequest,
    RequestLog,
    json_response,
)
from sayso.testing.platforms.slack_manifests import CREDENTIALS, METHOD_PARAMETERS, SlackManifests
from sayso.testing.platforms.slack_oauth import FakeGrant, FakeInstallations
from sayso.testing.platforms.slack_views import FakeViews

SlackPayload = dict[str, Any]
#: The scopes of an app with all features of our bots.
SCOPES = frozenset(
    {
        *(
            "app_mentions:read",
            "assistant:write",
            "channels:history",
            "channels:read",
            "chat:write",
            "commands",
        ),
        *(
            "files:read",
            "files:write",
            "groups:history",
            "groups:read",
            "im:history",
            "im:write",
            "mpim:history",
        ),
    }
)
_FILES = "/files-pri/"
_LOGIN = (
    b"<!DOCTYPE html><html><head><title>Sign in | Slack</title></head><body>Sign in</body></html>"
)
_FORM_JSON = ("blocks", "files", "channels", "loading_messages", "view")
#: The time of all messages of the bot; people write in the seconds after it.
_SECOND = 1795204700
_TS = re.compile(rf"{_SECOND}\.(\d{{6,}})")
_MESSAGE_FIELDS = ("channel", "text", "blocks", "parse", "link_names", "markdown_text")
#: The parameters of each method. Slack ignores unknown ones; the fake refuses them,
#: to find our mistakes.
_TAKES = {
    "chat.postMessage": (*_MESSAGE_FIELDS, "thread_ts", "unfurl_links", "unfurl_media"),
    "chat.postEphemeral": (*_MESSAGE_FIELDS, "thread_ts", "user"),
    "chat.update": (*_MESSAGE_FIELDS, "ts"),
    "chat.delete": ("channel", "ts"),
    "files.completeUploadExternal": ("files", "channel_id", "thread_ts", "initial_comment"),
}
_SESSION_FIELDS = frozenset({"channel_id", "thread_ts", "status", "title", "initiator_user_id"})
#: What a session can be.
SESSION_STATES = ("processing", "active", "suspended", "closed")
_STATUS_FIELDS = frozenset({"channel_id", "thread_ts", "status", "loading_messages"})
#: A timestamp that can be one of a message. Slack refuses all others as a place for a status.
_MESSAGE_TS = re.compile(r"[1-9]\d{0,15}\.\d{1,9}")
#: The scope that each method needs.
_NEEDS = {
    "chat.postMessage": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.update": "chat:write",
    "chat.delete": "chat:write",
    "conversations.open": "im:write",
    "files.info": "files:read",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "agents.sessions.setStatus": "chat:write",
    "assistant.threads.setStatus": "chat:write",
}
#: Prefix of the methods that need an app configuration token instead of a bot token.
_MANIFEST_METHODS = "apps.manifest."
#: The most characters of one message: of its text, and of all its blocks together.
_TEXT_LIMIT = 4000
_BLOCKS_LIMIT = 13_200


class FakeSlack:
    """The Web API of one workspace.

    `url` is where files are uploaded to, `scopes` what the app may do, `manifests` where apps are
    made with `config_token`, `upload_status` what its file server answers to uploads,
    `status_error` what refuses every assistant status, `session_error` what refuses every state of
    a session: such as `not_agent_app` for an app without the agent view. `has_stop_button`: it
    subscribes to `agent_session_stopped`.
    """

    chat_fields = ("channel", "channel_id")

    def __init__(
        self,
        log: RequestLog,
        token: str,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        config_token: str = "",
    ) -> None:
        self.scopes = SCOPES
        self.manifests = SlackManifests()
        self.upload_status = 200
        self.status_error = ""
        self.session_error = ""
        #: With which code a title is refused, "" to take each.
        self.title_error = ""
        self.has_stop_button = True
        self._log = log
        self._token = token
        self._url = url
        self._clock = clock
        self._config_token = config_token
        self._uploads: dict[str, dict[str, Any]] = {}
        self._posted: dict[str, list[float]] = defaultdict(list)
        #: The tokens of an app that many workspaces have installed. What they send has a `team` in
        #: the log.
        self.oauth = FakeInstallations(
            CREDENTIALS["client_id"],
            CREDENTIALS["client_secret"],
            SCOPES,
        )
        self.views = FakeViews(lambda: log.state)
        self._calling = threading.local()

    @property
    def statuses(self) -> dict[tuple[str, str], str]:
        """The assistant statuses that are shown, by chat and message."""
        shown: dict[tuple[str, str], str] = self._log.state.setdefault("slack statuses", {})
        return shown

    @property
    def session_titles(self) -> dict[tuple[str, str], str]:
        """The title that each session got when it was created, "" without one, by chat and thread."""
        titles: dict[tuple[str, str], str] = self._log.state.setdefault("slack session titles", {})
        return titles

    @property
    def sessions(self) -> dict[tuple[str, str], str]:
        """The state of each session, by chat and thread. A message changes none."""
        states: dict[tuple[str, str], str] = self._log.state.setdefault("slack sessions", {})
        return states

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends or edits a message.

        The last of its three calls sends a file.
        """
        return call.route.removeprefix("/api/") in _TAKES

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the Web API."""
        if call.route.startswith("/upload/"):
            return self._receive_upload(call)
        if call.route.startswith(_FILES):
            return self._download(call)
        method = call.route.removeprefix("/api/")
        params = _params(call)
        authorization = call.headers.get("authorization", "")
        if method == "oauth.v2.access":
            return json_response(self.oauth.access(authorization, params))
        token = authorization.removeprefix("Bearer ")
        refused = self._refuses(token, method)
        if refused:
            return self.failure(refused)
        grant = self.oauth.grant_of(token)
        self._calling.team = grant.id if grant else ""
        if grant and method in ("auth.test", "auth.revoke"):
            return self._grant_method(method, grant)
        if method.startswith(_MANIFEST_METHODS):
            self._log.append_call("slack", method, params)
            return self.manifests.answer(method, params)
        needed = _NEEDS.get(method)
        if needed and needed not in self.scopes:
            provided = ",".join(sorted(self.scopes))
            return json_response(
                {"ok": False, "error": "missing_scope", "needed": needed, "provided": provided}
            )
        steps = {
            "chat.postMessage": self._post,
            "chat.postEphemeral": self._post_ephemeral,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "files.getUploadURLExternal": self._begin_upload,
            "files.completeUploadExternal": self._complete_upload,
        }
        if method in steps:
            return steps[method](params)
        return self._other_method(method, params)

    def _refuses(self, token: str, method: str) -> str:
        """Return why a token may not call a method.

        Bot and configuration tokens have different methods.
        """
        tokens = {self._token: False, **({self._config_token: True} if self._config_token else {})}
        if token not in tokens:
            if method.startswith(_MANIFEST_METHODS):
                return "not_allowed_token_type"
            return self.oauth.refusal(token)
        if method.startswith(_MANIFEST_METHODS) and method not in METHOD_PARAMETERS:
            return "unknown_method"
        if tokens[token] is method.startswith(_MANIFEST_METHODS):
            return ""
        return "not_allowed_token_type"

    def _grant_method(self, method: str, grant: FakeGrant) -> FakeResponse:
        """Answer about a token of one workspace among many."""
        self._log.append_call("slack", method, {"team": grant.id})
        if method == "auth.test":
            who = {
                "user": "acme",
                "user_id": "U0BOT",
                "bot_id": "B0BOT",
                "team": grant.name,
                "team_id": grant.id,
            }
            return json_response({"ok": True, **who}, X_OAuth_Scopes=",".join(sorted(grant.scopes)))
        self.oauth.revoke(grant.id)
        return json_response({"ok": True, "revoked": True})

    def _record(self, chat: str, **content: Any) -> int:
        """Record an accepted message, with the workspace of its token where there are many."""
        number = self._log.append_message("slack", chat, **content)
        if team := getattr(self._calling, "team", ""):
            self._log.sent[number - 1]["team"] = team
        return number

    def _other_method(self, method: str, params: dict[str, Any]) -> FakeResponse:
        """Return the answer to a call that sends no message."""
        team = getattr(self._calling, "team", "")
        self._log.append_call("slack", method, {**params, "team": team} if team else params)
        if method == "auth.test":
            return auth_test(self.scopes)
        steps = {
            "agents.sessions.setStatus": self._set_session,
            "assistant.threads.setStatus": self._set_status,
            "conversations.open": self._open_conversation,
            "files.info": self._file_info,
        }
        if method == "views.open":
            return json_response(self.views.open(params, team))
        if method == "views.update":
            return json_response(self.views.update(params))
        if method in steps:
            return steps[method](params)
        return self.failure("unknown_method")

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status, or one of Slack's codes with status 200."""
        if error == "429":
            return json_response({"ok": False, "error": "ratelimited"}, 429, Retry_After="7")
        if error.isdecimal():
            return FakeResponse(
                int(error), b"<html>upstream error</html>", {"Content-Type": "text/html"}
            )
        return json_response({"ok": False, "error": error})

    def host(self, data: bytes, team: str = "T0ACME") -> str:
        """Store a file that a person sent.

        Return its url_private_download; its last part goes to `file_id`.
        """
        digest = self._log.save_bytes(data)
        self._log.state.setdefault("slack files", {})[digest] = team
        return f"https://files.slack.com{_FILES}{team}-F0FILE/download/{digest}"

    @staticmethod
    def file_id(url: str) -> str:
        """Return the id of a hosted file. Events of shared channels contain only that."""
        return f"F{url.rpartition('/')[2].upper()[:20]}"

    def busiest(self, channel: str, seconds: float = 1.0) -> int:
        """Return the most messages posted in one channel within this many seconds."""
        times = self._posted[channel]
        return max(
            (sum(start <= at < start + seconds for at in times) for start in times), default=0
        )

    def _download(self, call: RecordedRequest) -> FakeResponse:
        """Return the file; with a wrong token a login page and no error, as Slack does."""
        self._log.append_call("slack", "download", call.route)
        token = call.headers.get("authorization", "").removeprefix("Bearer ")
        if token != self._token and not self._is_team_file(token, call.route):
            return FakeResponse(200, _LOGIN, {"Content-Type": "text/html; charset=utf-8"})
        data = self._log.blobs.get(call.route.rpartition("/")[2])
        if data is None:
            return FakeResponse(404, b"")
        return FakeResponse(200, data, {"Content-Type": "application/octet-stream"})

    def _is_team_file(self, token: str, route: str) -> bool:
        """Return whether a token is that of the file's workspace, or of its organization."""
        grant = self.oauth.grant_of(token)
        if grant is None or self.oauth.refusal(token):
            return False
        return grant.is_organization or route.startswith(f"{_FILES}{grant.id}-")

    def _file_info(self, params: dict[str, Any]) -> FakeResponse:
        digests = [
            digest for digest in self._log.blobs if self.file_id(digest) == params.get("file")
        ]
        team = ""
        if digests:
            team = self._log.state["slack files"][digests[0]]
        if not digests or getattr(self._calling, "team", "") not in ("", team):
            return self.failure("file_not_found")
        url = f"https://files.slack.com{_FILES}{team}-F0FILE/download/{digests[0]}"
        size = len(self._log.blobs[digests[0]])
        return json_response(
            {"ok": True, "file": {"id": params["file"], "size": size, "url_private_download": url}}
        )

    def _open_conversation(self, params: dict[str, Any]) -> FakeResponse:
        """Return the direct message with one person, always the same."""
        user = str(params.get("users", ""))
        if not re.fullmatch(r"[UW]\w+", user):
            return self.failure("user_not_found")
        return json_response({"ok": True, "channel": {"id": f"D{user[1:]}"}})

    def _set_status(self, params: dict[str, Any]) -> FakeResponse:
        """Show a status at a message, in any kind of chat; an empty one removes it."""
        if not set(params) <= _STATUS_FIELDS:
            return self.failure("invalid_arg_name")
        if not params.get("thread_ts") or "status" not in params:
            return self.failure("invalid_arguments")
        if not str(params.get("channel_id", "")).startswith(("C", "D", "G")):
            return self.failure("channel_not_found")
        if not _MESSAGE_TS.fullmatch(params["thread_ts"]):
            return self.failure("invalid_thread_ts")
        if self.status_error:
            return self.failure(self.status_error)
        place = (params["channel_id"], params["thread_ts"])
        if params["status"]:
            self.statuses[place] = params["status"]
        else:
            self.statuses.pop(place, None)
        return json_response(ACCEPTED)

    def _set_session(self, params: dict[str, Any]) -> FakeResponse:
        """Set the state of a thread's session, which it creates.

        A thread is named by its first message.
        """
        if not set(params) <= _SESSION_FIELDS:
            return self.failure("invalid_arg_name")
        thread = str(params.get("thread_ts") or "")
        if params.get("status") not in SESSION_STATES or not thread:
            return self.failure("invalid_arguments")
        if not str(params.get("channel_id", "")).startswith(("C", "D", "G")):
            return self.failure("channel_not_found")
        if not _MESSAGE_TS.fullmatch(thread) or self._is_reply(thread):
            return self.failure("invalid_thread_ts")
        if len(params.get("title", "x")) not in range(1, 201):
            return self.failure("invalid_arguments")
        if self.session_error:
            return self.failure(self.session_error)
        if self.title_error and "title" in params:
            return self.failure(self.title_error)
        self.session_titles.setdefault((params["channel_id"], thread), params.get("title", ""))
        self.sessions[params["channel_id"], thread] = params["status"]
        answer = {"ok": True, "status": params["status"], "agent_status": params["status"]}
        if not self.has_stop_button:
            answer["warning"] = "missing_agent_session_stopped_event_subscription"
        return json_response(answer)

    def _is_reply(self, ts: str) -> bool:
        """Return whether the ts is of a message that the bot posted in a thread: it opens none."""
        match = _TS.fullmatch(ts)
        number = int(match[1]) if match else 0
        if not 0 < number <= len(self._log.sent):
            return False
        return bool(self._log.sent[number - 1]["thread"])

    def _end_status(self, params: dict[str, Any]) -> None:
        """Remove the status of the thread that a message or file was posted in.

        An edit removes none.
        """
        chat = params.get("channel") or params.get("channel_id")
        self.statuses.pop((str(chat), str(params.get("thread_ts"))), None)

    def _post(self, params: dict[str, Any]) -> FakeResponse:
        blocks = params.get("blocks") or []
        error = _message_error("chat.postMessage", params, blocks)
        if error:
            return self.failure(error)
        self._posted[params["channel"]].append(self._clock())
        self._end_status(params)
        number = self._record(
            params["channel"],
            thread=params.get("thread_ts", ""),
            text=_shown_text(params, blocks),
            buttons=_buttons(blocks),
            raw=params,
        )
        return json_response(
            {"ok": True, "channel": params["channel"], "ts": f"{_SECOND}.{number:06d}"}
        )

    def _post_ephemeral(self, params: dict[str, Any]) -> FakeResponse:
        """Post a message that only one member of a channel sees."""
        blocks = params.get("blocks") or []
        error = _message_error("chat.postEphemeral", params, blocks)
        if error or not str(params.get("user", "")).startswith("U"):
            return self.failure(error or "user_not_in_channel")
        content = {
            "thread": params.get("thread_ts", ""),
            "text": _shown_text(params, blocks),
            "buttons": _buttons(blocks),
        }
        number = self._record(params["channel"], **content, raw=params)
        return json_response({"ok": True, "message_ts": f"{_SECOND}.{number:06d}"})

    def _update(self, params: dict[str, Any]) -> FakeResponse:
        """Edit one of our own messages in its channel.

        `blocks` is required: without it Slack keeps the old ones.
        """
        blocks = params.get("blocks")
        error = _message_error("chat.update", params, blocks or [])
        number, entry = self._own_message(params)
        if error or not entry or entry["media"]:
            return self.failure(error or "message_not_found")
        if blocks is None:
            blocks = entry["raw"].get("blocks") or []
        self._log.edit_message(
            number, text=_shown_text(params, blocks), buttons=_buttons(blocks), raw=params
        )
        edited = {"user": "B0ACME", "ts": f"{_SECOND}.999999"}
        message = {"type": "message", "text": params["text"], "edited": edited}
        event = {
            "channel": params["channel"],
            "ts": params["ts"],
            "text": params["text"],
            "message": message,
        }
        return json_response({"ok": True, **event})

    def _own_message(self, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the number and the log's entry of the message with a ts in a channel.

        The entry is empty for another ts or channel, and for a message that was sent with the token
        of another workspace.
        """
        match = _TS.fullmatch(str(params.get("ts", "")))
        number = int(match.group(1)) if match else 0
        if not 0 < number <= len(self._log.sent):
            return number, {}
        entry = self._log.sent[number - 1]
        place = (entry["platform"], entry["chat"], entry.get("team", ""))
        if place != ("slack", params.get("channel"), getattr(self._calling, "team", "")):
            return number, {}
        return number, entry

    def _delete(self, params: dict[str, Any]) -> FakeResponse:
        """Delete one of our own messages: the log keeps its place, without words."""
        number, entry = self._own_message(params)
        if not entry:
            return self.failure("message_not_found")
        self._log.edit_message(number, text="", buttons=[], raw={"method": "chat.delete", **params})
        return json_response({"ok": True, "channel": params["channel"], "ts": params["ts"]})

    def _begin_upload(self, params: dict[str, Any]) -> FakeResponse:
        if not params.get("filename") or int(params.get("length", 0)) < 1:
            return self.failure("invalid_arguments")
        file_id = f"F{len(self._uploads):06d}"
        self._uploads[file_id] = {"filename": params["filename"], "length": int(params["length"])}
        return json_response(
            {"ok": True, "file_id": file_id, "upload_url": f"{self._url}/upload/{file_id}"}
        )

    def _receive_upload(self, call: RecordedRequest) -> FakeResponse:
        if self.upload_status != 200:
            return FakeResponse(self.upload_status, b"", {"Location": f"{self._url}/api/auth.test"})
        upload = self._uploads.get(call.route.rpartition("/")[2])
        if upload is None or len(call.body) != upload["length"] or "authorization" in call.headers:
            return FakeResponse(400, b"length mismatch")
        upload["media"] = self._log.save_file(upload["filename"], "", call.body)
        return FakeResponse(200, f"OK - {len(call.body)}".encode(), {"Content-Type": "text/plain"})

    def _complete_upload(self, params: dict[str, Any]) -> FakeResponse:
        files = params.get("files") or []
        if not set(params) <= set(_TAKES["files.completeUploadExternal"]):
            return self.failure("invalid_arg_name")
        if not files or any("media" not in self._uploads.get(file["id"], {}) for file in files):
            return self.failure("file_not_found")
        if not str(params.get("channel_id", "")).startswith(("C", "D", "G")):
            return self.failure("channel_not_found")
        self._end_status(params)
        for file in files:
            self._record(
                params["channel_id"],
                thread=params.get("thread_ts", ""),
                text=params.get("initial_comment", ""),
                media=self._uploads[file["id"]]["media"],
                raw=params,
            )
        return json_response(
            {
                "ok": True,
                "files": [{"id": file["id"], "title": file.get("title")} for file in files],
            }
        )


def auth_test(scopes: Collection[str]) -> FakeResponse:
    """Return the answer to auth.test, with the scopes in a header."""
    who = {
        "user": "acme",
        "user_id": "U0BOT",
        "bot_id": "B0BOT",
        "team": "Acme",
        "team_id": "T0ACME",
    }
    return json_response({"ok": True, **who}, X_OAuth_Scopes=",".join(sorted(scopes)))


def _params(call: RecordedRequest) -> dict[str, Any]:
    params = call.params
    return {
        name: json.loads(value) if name in _FORM_JSON and isinstance(value, str) else value
        for name, value in params.items()
    }


def _message_error(method: str, params: dict[str, Any], blocks: list[dict[str, Any]]) -> str:
    """Return the error of a message.

    A user id is not a channel: the direct message must have been opened.
    """
    if not set(params) <= set(_TAKES[method]):
        return "invalid_arg_name"
    if not str(params.get("channel", "")).startswith(("C", "D", "G")):
        return "channel_not_found"
    if "markdown_text" in params and (params.get("text") or blocks):
        return "markdown_text_conflict"
    if not params.get("text") and not blocks:
        return "no_text"
    if len(params.get("text", "")) > _TEXT_LIMIT:
        return "msg_too_long"
    if not _valid(blocks):
        return "invalid_blocks"
    if sum(len(_text(block)) for block in blocks) > _BLOCKS_LIMIT:
        return "msg_blocks_too_long"
    return ""


def _valid(blocks: list[dict[str, Any]]) -> bool:
    """Return whether Slack's own models accept every field of the blocks, and no id appears twice."""
    try:
        are_known = [block.to_dict() for block in Block.parse_all(blocks)] == blocks
    except (
        SlackObjectFormationError,
        AttributeError,
        TypeError,
    ):
        # Out of bounds; of no kind; no block at all.
        return False
    if not are_known or len(blocks) > 50:
        return False
    keys = [
        key["action_id"]
        for block in blocks
        for key in block.get("elements", ())
        if "action_id" in key
    ]
    rows = [block["block_id"] for block in blocks if "block_id" in block]
    unique = all(len(set(ids)) == len(ids) for ids in (keys, rows))
    return unique and all(isinstance(row, str) and len(row) <= 255 for row in rows)


def _text(block: dict[str, Any]) -> str:
    text = block.get("text", "")
    return str(text if isinstance(text, str) else text["text"])


def _shown_text(params: dict[str, Any], blocks: list[dict[str, Any]]) -> str:
    sections = [_text(block) for block in blocks if block["type"] == "section"]
    return "\n".join(sections) or str(params.get("text", ""))


def _buttons(blocks: list[dict[str, Any]]) -> list[dict[str, str]]:
    keys = [key for block in blocks if block["type"] == "actions" for key in block["elements"]]
    return [{"label": key["text"]["text"], "data": key["value"]} for key in keys]
