"""A fake of Slack's Web API: messages, files, scopes, and what Slack shows while a bot works.

Slack answers most errors with status 200 and `"ok": false`. The fake refuses what Slack refuses,
and also unknown parameters, which Slack ignores, because they are mistakes of the bot.

Parts of their own are the manifests of apps (`slack_manifests`), the tokens of an app in many
workspaces (`slack_oauth`), and modals (`slack_views`).
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

#: The scopes of an app with all features of our bots, apart from those of user groups
#: (`usergroups:read`), which only a bot with such roles asks for.
SCOPES = frozenset(
    {
        "app_mentions:read",
        "assistant:write",
        "channels:history",
        "channels:read",
        "chat:write",
        "commands",
        "files:read",
        "files:write",
        "groups:history",
        "groups:read",
        "im:history",
        "im:write",
        "mpim:history",
    }
)
#: The beginning of the path of a file.
_FILES_PATH = "/files-pri/"
#: What a download with a wrong token gets instead of the file.
_LOGIN_PAGE = (
    b"<!DOCTYPE html><html><head><title>Sign in | Slack</title></head><body>Sign in</body></html>"
)
#: Parameters that are JSON text where a call is a form.
_JSON_PARAMETERS = ("blocks", "files", "channels", "loading_messages", "view")
#: A ts is the id of a message in its channel: the Unix seconds at which it was posted, with
#: decimals. All messages of the bot have these seconds, and the number of the message as decimals.
#: The webhooks in `webhooks.py` have later seconds, so that people always write after the bot.
_BOT_SECONDS = 1795204700
_BOT_TS = re.compile(rf"{_BOT_SECONDS}\.(\d{{6,}})")
_MESSAGE_FIELDS = ("channel", "text", "blocks", "parse", "link_names", "markdown_text")
#: The parameters of each method that sends, edits or deletes a message.
_MESSAGE_PARAMETERS = {
    "chat.postMessage": (*_MESSAGE_FIELDS, "thread_ts", "unfurl_links", "unfurl_media"),
    "chat.postEphemeral": (*_MESSAGE_FIELDS, "thread_ts", "user"),
    "chat.update": (*_MESSAGE_FIELDS, "ts"),
    "chat.delete": ("channel", "ts"),
    "files.completeUploadExternal": ("files", "channel_id", "thread_ts", "initial_comment"),
}
#: The parameters of agents.sessions.setStatus. A session is a thread in which a bot works for a
#: person; Slack lists it with its title and state.
_SESSION_FIELDS = frozenset({"channel_id", "thread_ts", "status", "title", "initiator_user_id"})
#: The states of a session.
SESSION_STATES = ("processing", "active", "suspended", "closed")
#: The parameters of assistant.threads.setStatus: the line "is thinking ..." below a message.
_STATUS_FIELDS = frozenset({"channel_id", "thread_ts", "status", "loading_messages"})
#: A ts that a message can have. Slack refuses all others as a place for a status.
_MESSAGE_TS = re.compile(r"[1-9]\d{0,15}\.\d{1,9}")
#: The scope that each method needs.
_NEEDED_SCOPES = {
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
    "usergroups.users.list": "usergroups:read",
}
#: The parameters of usergroups.users.list. The SDK sends them in the address.
_GROUP_FIELDS = frozenset({"usergroup", "team_id"})
#: Prefix of the methods that need an app configuration token instead of a bot token.
_MANIFEST_METHODS = "apps.manifest."
#: The most characters of the text of a message.
_TEXT_LIMIT = 4000
#: The most characters of all blocks of a message together.
_BLOCKS_LIMIT = 13_200
#: The most blocks of a message.
_MAX_BLOCKS = 50
#: The most characters of the id of a block.
_BLOCK_ID_LIMIT = 255


class FakeSlack:
    """The Web API of one workspace.

    `url` is where files are uploaded to. Apps can be created with the `config_token`, if there is
    one. `clock` returns monotonic seconds. Messages, files, statuses, sessions and modals are in
    `log`, so its reset removes them. The announced uploads, the apps and tokens of other workspaces
    and the settings that tests change stay.
    """

    #: The parameters that name the chat of a message.
    chat_fields = ("channel", "channel_id")

    def __init__(
        self,
        log: RequestLog,
        token: str,
        url: str,
        clock: Callable[[], float] = time.monotonic,
        config_token: str = "",
    ) -> None:
        #: The scopes of the bot's token.
        self.scopes = SCOPES
        #: The HTTP status with which the file server answers uploads.
        self.upload_status = 200
        #: The code with which each status is refused; "" for none.
        self.status_error = ""
        #: The code with which each state of a session is refused; "" for none. An app without the
        #: agent view gets `not_agent_app`.
        self.session_error = ""
        #: The code with which each title of a session is refused; "" for none.
        self.title_error = ""
        #: Whether the app subscribes to `agent_session_stopped`.
        self.has_stop_button = True
        self.manifests = SlackManifests()
        self._log = log
        self._token = token
        self._url = url
        self._clock = clock
        self._config_token = config_token
        #: The files that were announced, by id: name, length, and `media` once it was uploaded.
        self._uploads: dict[str, dict[str, Any]] = {}
        #: When messages were posted, by channel.
        self._posted_at: dict[str, list[float]] = defaultdict(list)
        #: The tokens of an app that many workspaces have installed. Messages sent with one of them
        #: have a `team` in the log.
        self.oauth = FakeInstallations(
            CREDENTIALS["client_id"],
            CREDENTIALS["client_secret"],
            SCOPES,
        )
        self.views = FakeViews(lambda: log.state)
        #: The workspace of the token of the call that a thread answers; "" for the only one.
        self._caller = threading.local()

    @property
    def _calling_team(self) -> str:
        return getattr(self._caller, "team", "")

    @property
    def statuses(self) -> dict[tuple[str, str], str]:
        """The statuses that are shown now, by channel and ts of the message above."""
        shown: dict[tuple[str, str], str] = self._log.state.setdefault("slack statuses", {})
        return shown

    @property
    def session_titles(self) -> dict[tuple[str, str], str]:
        """The title that each session was created with, by channel and thread; "" for none."""
        titles: dict[tuple[str, str], str] = self._log.state.setdefault("slack session titles", {})
        return titles

    @property
    def user_groups(self) -> dict[str, list[str]]:
        """The people in each user group, by the id of the group. Tests fill it."""
        groups: dict[str, list[str]] = self._log.state.setdefault("slack user groups", {})
        return groups

    @property
    def sessions(self) -> dict[tuple[str, str], str]:
        """The state of each session, by channel and thread. Messages do not change it."""
        states: dict[tuple[str, str], str] = self._log.state.setdefault("slack sessions", {})
        return states

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends, edits or deletes a message.

        A file is sent by three calls; only the last one counts.
        """
        return call.route.removeprefix("/api/") in _MESSAGE_PARAMETERS

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the Web API."""
        if call.route.startswith("/upload/"):
            return self._receive_upload(call)
        if call.route.startswith(_FILES_PATH):
            return self._download(call)
        method = call.route.removeprefix("/api/")
        params = _params(call)
        authorization = call.headers.get("authorization", "")
        if method == "oauth.v2.access":
            return json_response(self.oauth.access(authorization, params))
        token = authorization.removeprefix("Bearer ")
        refusal = self._refusal(token, method)
        if refusal:
            return self.failure(refusal)

        grant = self.oauth.grant_of(token)
        self._caller.team = grant.id if grant else ""
        if grant and method in ("auth.test", "auth.revoke"):
            return self._answer_about_grant(method, grant)
        if method.startswith(_MANIFEST_METHODS):
            self._log.append_call("slack", method, params)
            return self.manifests.answer(method, params)

        needed = _NEEDED_SCOPES.get(method)
        if needed and needed not in self.scopes:
            provided = ",".join(sorted(self.scopes))
            return json_response(
                {"ok": False, "error": "missing_scope", "needed": needed, "provided": provided}
            )

        # These calls are not in `calls` of the log: what they send is in `sent`.
        answers = {
            "chat.postMessage": self._post,
            "chat.postEphemeral": self._post_ephemeral,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "files.getUploadURLExternal": self._begin_upload,
            "files.completeUploadExternal": self._complete_upload,
        }
        if method in answers:
            return answers[method](params)
        return self._answer_other_method(method, params)

    def _refusal(self, token: str, method: str) -> str:
        """Return the code with which a token is refused for a method, "" if it is accepted.

        The methods of manifests take only the configuration token, and it is taken by no others.
        """
        is_config_token = bool(self._config_token) and token == self._config_token
        is_about_manifest = method.startswith(_MANIFEST_METHODS)
        if is_config_token != is_about_manifest:
            return "not_allowed_token_type"
        if is_about_manifest:
            return "" if method in METHOD_PARAMETERS else "unknown_method"
        if token == self._token:
            return ""
        return self.oauth.refusal(token)

    def _answer_about_grant(self, method: str, grant: FakeGrant) -> FakeResponse:
        """Answer auth.test or auth.revoke for a token of one workspace among many."""
        self._log.append_call("slack", method, {"team": grant.id})
        if method == "auth.test":
            return _auth_test(grant.scopes, team=grant.name, team_id=grant.id)
        self.oauth.revoke(grant.id)
        return json_response({"ok": True, "revoked": True})

    def _append_message(self, chat: str, **content: Any) -> int:
        """Log an accepted message, with the workspace of its token where there are many."""
        number = self._log.append_message("slack", chat, **content)
        if self._calling_team:
            self._log.sent[number - 1]["team"] = self._calling_team
        return number

    def _answer_other_method(self, method: str, params: dict[str, Any]) -> FakeResponse:
        """Return the answer to a call that sends no message."""
        team = self._calling_team
        logged_params = {**params, "team": team} if team else params
        self._log.append_call("slack", method, logged_params)
        if method == "auth.test":
            return _auth_test(self.scopes, team="Acme", team_id="T0ACME")
        if method == "views.open":
            return json_response(self.views.open(params, team))
        if method == "views.update":
            return json_response(self.views.update(params))
        answers = {
            "agents.sessions.setStatus": self._set_session,
            "assistant.threads.setStatus": self._set_status,
            "conversations.open": self._open_conversation,
            "files.info": self._file_info,
            "usergroups.users.list": self._group_members,
        }
        if method in answers:
            return answers[method](params)
        return self.failure("unknown_method")

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status such as "503", or an error code of Slack."""
        if error == "429":
            return json_response({"ok": False, "error": "ratelimited"}, 429, Retry_After="7")
        if error.isdecimal():
            return FakeResponse(
                int(error), b"<html>upstream error</html>", {"Content-Type": "text/html"}
            )
        return json_response({"ok": False, "error": error})

    def host(self, data: bytes, team: str = "T0ACME") -> str:
        """Store a file that a person sent in a workspace. Return its url_private_download."""
        digest = self._log.save_bytes(data)
        self._log.state.setdefault("slack files", {})[digest] = team
        return f"https://files.slack.com{_FILES_PATH}{team}-F0FILE/download/{digest}"

    @staticmethod
    def file_id(url: str) -> str:
        """Return the id of a file by the URL that `host` returned.

        Events of shared channels contain only the id.
        """
        return f"F{url.rpartition('/')[2].upper()[:20]}"

    def busiest(self, channel: str, seconds: float = 1.0) -> int:
        """Return the most messages posted in one channel within this many seconds."""
        times = self._posted_at[channel]
        # The busiest period begins with a message.
        counts = [sum(start <= at < start + seconds for at in times) for start in times]
        return max(counts, default=0)

    def _download(self, call: RecordedRequest) -> FakeResponse:
        """Return a file. With a wrong token, return a login page and no error, as Slack does."""
        self._log.append_call("slack", "download", call.route)
        token = call.headers.get("authorization", "").removeprefix("Bearer ")
        if token != self._token and not self._is_team_file(token, call.route):
            return FakeResponse(200, _LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"})
        data = self._log.blobs.get(call.route.rpartition("/")[2])
        if data is None:
            return FakeResponse(404, b"")
        return FakeResponse(200, data, {"Content-Type": "application/octet-stream"})

    def _is_team_file(self, token: str, route: str) -> bool:
        """Return whether a token is that of the file's workspace, or of its organization."""
        grant = self.oauth.grant_of(token)
        if grant is None or self.oauth.refusal(token):
            return False
        return grant.is_organization or route.startswith(f"{_FILES_PATH}{grant.id}-")

    def _file_info(self, params: dict[str, Any]) -> FakeResponse:
        """Answer files.info: the size and the URL of a file, by its id."""
        file_id = params.get("file")
        digest = next((each for each in self._log.blobs if self.file_id(each) == file_id), "")
        if not digest:
            return self.failure("file_not_found")
        team = self._log.state["slack files"][digest]
        if self._calling_team not in ("", team):
            return self.failure("file_not_found")
        url = f"https://files.slack.com{_FILES_PATH}{team}-F0FILE/download/{digest}"
        size = len(self._log.blobs[digest])
        file = {"id": file_id, "size": size, "url_private_download": url}
        return json_response({"ok": True, "file": file})

    def _open_conversation(self, params: dict[str, Any]) -> FakeResponse:
        """Answer conversations.open: the direct message with one person, always the same."""
        user = str(params.get("users", ""))
        if not re.fullmatch(r"[UW]\w+", user):
            return self.failure("user_not_found")
        return json_response({"ok": True, "channel": {"id": f"D{user[1:]}"}})

    def _group_members(self, params: dict[str, Any]) -> FakeResponse:
        """Answer usergroups.users.list: the people in a user group."""
        if not set(params) <= _GROUP_FIELDS:
            return self.failure("invalid_arg_name")
        members = self.user_groups.get(str(params.get("usergroup")))
        if members is None:
            return self.failure("no_such_subteam")
        return json_response({"ok": True, "users": members})

    def _set_status(self, params: dict[str, Any]) -> FakeResponse:
        """Show a status below a message, in any kind of chat. An empty one removes it."""
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
        """Set the state of the session of a thread, which is created by this.

        A thread is named by the ts of its first message.
        """
        if not set(params) <= _SESSION_FIELDS:
            return self.failure("invalid_arg_name")
        thread = str(params.get("thread_ts") or "")
        if params.get("status") not in SESSION_STATES or not thread:
            return self.failure("invalid_arguments")
        if not str(params.get("channel_id", "")).startswith(("C", "D", "G")):
            return self.failure("channel_not_found")
        channel = params["channel_id"]
        if not _MESSAGE_TS.fullmatch(thread) or self._is_reply(channel, thread):
            return self.failure("invalid_thread_ts")
        if "title" in params and not 1 <= len(params["title"]) <= 200:
            return self.failure("invalid_arguments")
        if self.session_error:
            return self.failure(self.session_error)
        if self.title_error and "title" in params:
            return self.failure(self.title_error)

        place = (channel, thread)
        self.session_titles.setdefault(place, params.get("title", ""))
        self.sessions[place] = params["status"]
        answer = {"ok": True, "status": params["status"], "agent_status": params["status"]}
        if not self.has_stop_button:
            answer["warning"] = "missing_agent_session_stopped_event_subscription"
        return json_response(answer)

    def _is_reply(self, channel: str, ts: str) -> bool:
        """Return whether a ts is that of a message that the bot posted in a thread.

        Such a message does not open a thread.
        """
        _, entry = self._message_at(channel, ts)
        return bool(entry) and bool(entry["thread"])

    def _end_status(self, params: dict[str, Any]) -> None:
        """Remove the status of the thread that a message or file is posted in.

        Slack does so with each new message, and with no edit.
        """
        chat = params.get("channel") or params.get("channel_id")
        self.statuses.pop((str(chat), str(params.get("thread_ts"))), None)

    def _post(self, params: dict[str, Any]) -> FakeResponse:
        """Post a message."""
        blocks = params.get("blocks") or []
        error = _message_error("chat.postMessage", params, blocks)
        if error:
            return self.failure(error)

        self._posted_at[params["channel"]].append(self._clock())
        self._end_status(params)
        number = self._append_message(
            params["channel"],
            thread=params.get("thread_ts", ""),
            text=_shown_text(params, blocks),
            buttons=_buttons(blocks),
            raw=params,
        )
        return json_response(
            {"ok": True, "channel": params["channel"], "ts": f"{_BOT_SECONDS}.{number:06d}"}
        )

    def _post_ephemeral(self, params: dict[str, Any]) -> FakeResponse:
        """Post a message that only one member of a channel sees.

        It is not in `busiest`: Slack's limit of one message a second does not count it.
        """
        blocks = params.get("blocks") or []
        error = _message_error("chat.postEphemeral", params, blocks)
        if error:
            return self.failure(error)
        if not str(params.get("user", "")).startswith(("U", "W")):
            return self.failure("user_not_in_channel")
        number = self._append_message(
            params["channel"],
            thread=params.get("thread_ts", ""),
            text=_shown_text(params, blocks),
            buttons=_buttons(blocks),
            raw=params,
        )
        return json_response({"ok": True, "message_ts": f"{_BOT_SECONDS}.{number:06d}"})

    def _update(self, params: dict[str, Any]) -> FakeResponse:
        """Edit one of the bot's messages. Without `blocks` it keeps the old ones, as at Slack."""
        error = _message_error("chat.update", params, params.get("blocks") or [])
        if error:
            return self.failure(error)
        number, entry = self._changeable_message(params)
        if not entry or entry["media"]:
            return self.failure("message_not_found")

        blocks = params.get("blocks")
        if blocks is None:
            blocks = entry["raw"].get("blocks") or []
        self._log.edit_message(
            number,
            text=_shown_text(params, blocks),
            buttons=_buttons(blocks),
            raw={**params, "blocks": blocks},
        )
        text = params.get("text", "")
        edited = {"user": "B0ACME", "ts": f"{_BOT_SECONDS}.999999"}
        return json_response(
            {
                "ok": True,
                "channel": params["channel"],
                "ts": params["ts"],
                "text": text,
                "message": {"type": "message", "text": text, "edited": edited},
            }
        )

    def _changeable_message(self, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the number and the log's entry of the message that a call edits or deletes.

        The entry is empty if Slack finds no message that can be changed. One that was deleted is
        gone, and one that a single person sees cannot be changed.
        """
        number, entry = self._message_at(str(params.get("channel", "")), str(params.get("ts", "")))
        if not entry:
            return number, {}
        raw = entry["raw"]
        is_deleted = raw.get("method") == "chat.delete"
        is_ephemeral = "user" in raw
        if is_deleted or is_ephemeral:
            return number, {}
        return number, entry

    def _message_at(self, channel: str, ts: str) -> tuple[int, dict[str, Any]]:
        """Return the number and the log's entry of the bot's message with a ts in a channel.

        The entry is empty for another ts or channel, and for a message that was sent with the token
        of another workspace.
        """
        match = _BOT_TS.fullmatch(ts)
        number = int(match[1]) if match else 0
        if not 0 < number <= len(self._log.sent):
            return number, {}
        entry = self._log.sent[number - 1]
        is_in_channel = entry["platform"] == "slack" and entry["chat"] == channel
        is_of_caller = entry.get("team", "") == self._calling_team
        if is_in_channel and is_of_caller:
            return number, entry
        return number, {}

    def _delete(self, params: dict[str, Any]) -> FakeResponse:
        """Delete one of the bot's messages: the log keeps its place, without text."""
        number, entry = self._changeable_message(params)
        if not entry:
            return self.failure("message_not_found")
        raw = {"method": "chat.delete", **params}
        self._log.edit_message(number, text="", buttons=[], raw=raw)
        return json_response({"ok": True, "channel": params["channel"], "ts": params["ts"]})

    def _begin_upload(self, params: dict[str, Any]) -> FakeResponse:
        """Announce a file: the first of three calls. Return the URL for its bytes."""
        if not params.get("filename") or int(params.get("length", 0)) < 1:
            return self.failure("invalid_arguments")
        file_id = f"F{len(self._uploads):06d}"
        self._uploads[file_id] = {"filename": params["filename"], "length": int(params["length"])}
        return json_response(
            {"ok": True, "file_id": file_id, "upload_url": f"{self._url}/upload/{file_id}"}
        )

    def _receive_upload(self, call: RecordedRequest) -> FakeResponse:
        """Store the bytes of a file: the second of three calls. A bot must send no token here."""
        if self.upload_status != 200:
            # A test with a redirect sees whether the bot sends the file to the Web API.
            return FakeResponse(self.upload_status, b"", {"Location": f"{self._url}/api/auth.test"})
        upload = self._uploads.get(call.route.rpartition("/")[2])
        if upload is None:
            return FakeResponse(400, b"unknown upload")
        if "authorization" in call.headers:
            return FakeResponse(400, b"token sent to the file server")
        if len(call.body) != upload["length"]:
            return FakeResponse(400, b"length mismatch")
        upload["media"] = self._log.save_file(upload["filename"], "", call.body)
        return FakeResponse(200, f"OK - {len(call.body)}".encode(), {"Content-Type": "text/plain"})

    def _complete_upload(self, params: dict[str, Any]) -> FakeResponse:
        """Post uploaded files in a channel: the last of three calls."""
        files = params.get("files") or []
        if not set(params) <= set(_MESSAGE_PARAMETERS["files.completeUploadExternal"]):
            return self.failure("invalid_arg_name")
        if not files or any("media" not in self._uploads.get(file["id"], {}) for file in files):
            return self.failure("file_not_found")
        if not str(params.get("channel_id", "")).startswith(("C", "D", "G")):
            return self.failure("channel_not_found")
        self._end_status(params)
        for file in files:
            self._append_message(
                params["channel_id"],
                thread=params.get("thread_ts", ""),
                text=params.get("initial_comment", ""),
                media=self._uploads[file["id"]]["media"],
                raw=params,
            )
        posted = [{"id": file["id"], "title": file.get("title")} for file in files]
        return json_response({"ok": True, "files": posted})


def _auth_test(scopes: Collection[str], *, team: str, team_id: str) -> FakeResponse:
    """Return the answer to auth.test, with the scopes in a header."""
    who = {
        "user": "acme",
        "user_id": "U0BOT",
        "bot_id": "B0BOT",
        "team": team,
        "team_id": team_id,
    }
    return json_response({"ok": True, **who}, X_OAuth_Scopes=",".join(sorted(scopes)))


def _params(call: RecordedRequest) -> dict[str, Any]:
    """Return the parameters of a call, with those parsed that are JSON text in a form."""
    params = call.params
    for name in _JSON_PARAMETERS:
        if isinstance(params.get(name), str):
            params[name] = json.loads(params[name])
    return params


def _message_error(method: str, params: dict[str, Any], blocks: list[dict[str, Any]]) -> str:
    """Return the code with which Slack refuses a message, "" if it accepts the message.

    The id of a person is not a channel: the bot must open the direct message first.
    """
    if not set(params) <= set(_MESSAGE_PARAMETERS[method]):
        return "invalid_arg_name"
    if not str(params.get("channel", "")).startswith(("C", "D", "G")):
        return "channel_not_found"
    if "markdown_text" in params and (params.get("text") or blocks):
        return "markdown_text_conflict"
    if not (params.get("text") or params.get("markdown_text") or blocks):
        return "no_text"
    if len(params.get("text", "")) > _TEXT_LIMIT:
        return "msg_too_long"
    if not _are_valid(blocks):
        return "invalid_blocks"
    if sum(len(_text(block)) for block in blocks) > _BLOCKS_LIMIT:
        return "msg_blocks_too_long"
    return ""


def _are_valid(blocks: list[dict[str, Any]]) -> bool:
    """Return whether Slack accepts blocks.

    The models of Slack's SDK must know every field of them, and no id may appear twice.
    """
    try:
        are_known = [block.to_dict() for block in Block.parse_all(blocks)] == blocks
    # Raised for a value out of bounds, for an unknown kind, and for what is not a block.
    except (SlackObjectFormationError, AttributeError, TypeError):
        return False
    if not are_known or len(blocks) > _MAX_BLOCKS:
        return False

    action_ids = []
    for block in blocks:
        elements = block.get("elements", ())
        action_ids += [element["action_id"] for element in elements if "action_id" in element]
    block_ids = [block["block_id"] for block in blocks if "block_id" in block]
    if not all(isinstance(each, str) and len(each) <= _BLOCK_ID_LIMIT for each in block_ids):
        return False
    return all(len(set(ids)) == len(ids) for ids in (action_ids, block_ids))


def _text(block: dict[str, Any]) -> str:
    """Return the text of a block; "" for one without."""
    text = block.get("text", "")
    # A section holds its text in an object, a Markdown block as it is.
    if not isinstance(text, str):
        text = text["text"]
    return str(text)


def _shown_text(params: dict[str, Any], blocks: list[dict[str, Any]]) -> str:
    """Return the text that people see: that of the sections, or of a message without any its text.

    Our bots write a text into sections. Blocks of other kinds only stand beside it.
    """
    sections = [_text(block) for block in blocks if block["type"] == "section"]
    text = params.get("text") or params.get("markdown_text") or ""
    return "\n".join(sections) or str(text)


def _buttons(blocks: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the buttons of a message, as `label` and `data`."""
    buttons = []
    for block in blocks:
        if block["type"] == "actions":
            buttons += block["elements"]
    return [{"label": button["text"]["text"], "data": button["value"]} for button in buttons]
