"""The console's web pages: the chat page, its live feed, file uploads, and logging in."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import flask
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_date

from sayso.channels.base import Forbidden
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.incoming import (
    CLIENT_ID,
    NotTaken,
    UnknownChat,
    is_encrypted,
    is_same_origin,
)
from sayso.channels.console.store import (
    MAX_FAILURES,
    MAX_NAME_CHARS,
    MAX_TITLE_CHARS,
    SESSION_SECONDS,
    StoreDown,
    title_of,
)
from sayso.channels.inbound_limits import (
    MAX_CHAT_REQUEST_BYTES,
    MAX_FILE_BYTES,
    MAX_LOGIN_BYTES,
    MAX_MESSAGE_FILES,
    MAX_PAGE_TEXT_CHARS,
)
from sayso.channels.media_store import NoRoom, QuotaExceeded, TooLarge
from sayso.channels.types import Conversation, Turn, WebhookRequest, storable
from sayso.channels.web.local import is_local
from sayso.channels.web.pages import ICON, small_page

#: How long a browser keeps its identity, in seconds.
COOKIE_SECONDS = 30 * 24 * 3600
#: Event streams per process. Each holds a thread,
#: and the web server needs threads for webhooks too.
MAX_STREAMS = 12
#: Uploads per process at once. Each holds a thread and up to MAX_FILE_BYTES
#: of the disk for temporary files.
MAX_UPLOADS = 4
#: Bytes of an upload that are held in memory; what is longer goes to a temporary file.
BODY_IN_MEMORY = 256 * 1024
#: For how many messages a page may ask the state at once.
MAX_WAITING = 20
#: The path of an upload. The server allows it a larger body and more time than other requests.
UPLOADS = re.compile(r".*/console/[^/]+/files")
#: How long an event stream lasts, in seconds, so that an open page does not delay a restart.
STREAM_SECONDS = 60.0
#: Seconds after which a heartbeat is sent on a silent stream. The page takes a stream without one
#: for broken, and proxies keep the connection open. Each read of the feed may take BLOCK_MS more.
HEARTBEAT_SECONDS = 4.0
#: What a heartbeat is: an event of its own type, because the page's script does not see comments.
HEARTBEAT = "event: alive\ndata:\n\n"
#: How long one read of the feed waits, in milliseconds.
BLOCK_MS = 1000
#: The header with the name of an uploaded file. In the URL it would be in the logs of every proxy.
FILENAME_HEADER = "X-Sayso-Filename"

_CSP = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_LOCAL_ONLY = (
    "This console has no password, so it answers only on this machine: open http://localhost:<port>/console here. "
    "To open it from elsewhere, set `password: ${{CONSOLE_PASSWORD}}` on channel {name!r} in the YAML."
)

_log = logging.getLogger(__name__)


def console_pages(*channels: ConsoleChannel, **parts: Any) -> flask.Blueprint:
    """Return the pages of all console channels.

    /console is the first channel, /console/<name> is each of them.

    On the bot's own machine, / redirects to /console. `parts` are fields of Views.
    """
    views = Views(
        channels={"": channels[0], **{channel.name: channel for channel in channels}}, **parts
    )
    pages = flask.Blueprint(
        "console",
        __name__,
        static_folder="static",
        static_url_path="/console/static",
        template_folder="templates",
    )
    for rules, view in (
        (("/",), views.root),
        (("/console", "/console/<name>"), views.page),
        (("/console/poll", "/console/<name>/poll"), views.poll),
        (("/console/events", "/console/<name>/events"), views.events),
        (("/console/<name>/older",), views.older),
        (("/console/<name>/chats",), views.chats),
        (("/console/<name>/waiting",), views.waiting),
    ):
        for rule in rules:
            pages.add_url_rule(rule, view_func=view)
    pages.add_url_rule("/console/<name>/chats", view_func=views.edit_chats, methods=["POST"])
    for view in (views.files, views.name, views.login, views.logout):
        pages.add_url_rule(f"/console/<name>/{view.__name__}", view_func=view, methods=["POST"])
    for error, status in ((Forbidden, 403), (UnknownChat, 404), (NotTaken, 415), (TooLarge, 413)):
        pages.register_error_handler(error, lambda exc, status=status: _plain(status, f"{exc}\n"))
    pages.register_error_handler(StoreDown, _storage_down)
    pages.before_request(_drop_impossible_dates)
    pages.after_request(_harden)
    return pages


@dataclass(kw_only=True)
class Views:
    """The views of all console channels. One per process."""

    #: By name; the first one is also "".
    channels: Mapping[str, ConsoleChannel]
    public_url: str = ""
    clock: Callable[[], float] = time.monotonic
    max_streams: int = MAX_STREAMS
    max_uploads: int = MAX_UPLOADS
    #: `admit` raises an error if the person may not upload a file now.
    admit: Callable[[Turn], None] = lambda _: None
    #: `stage` returns the state of a turn: "waits", "done" or "unknown".
    stage: Callable[[Turn], str] = lambda _: "done"
    #: `why_waiting` returns why no worker answers, "" if no reason is known.
    why_waiting: Callable[[], str] = lambda: ""

    def __post_init__(self) -> None:
        self._streams = threading.BoundedSemaphore(self.max_streams)
        self._uploads = threading.BoundedSemaphore(self.max_uploads)

    def root(self) -> flask.Response:
        """Redirect to the console on this machine."""
        if not is_local(flask.request):
            flask.abort(404)
        return flask.make_response(flask.redirect(flask.url_for("console.page")))

    def page(self, name: str = "") -> flask.Response:
        """Return the chat page, or the log-in page."""
        channel = self._channel(name)
        hook = self._hook()
        if not channel.is_open and not channel.visitor(hook):
            return _login_page(channel, 200)
        identity = _identity(channel, hook)
        user_id = channel.user_of(identity)
        try:
            chat = self._shown_chat(channel, user_id)
        except UnknownChat:
            return _to_page(channel)
        limits = {
            "max_chars": MAX_PAGE_TEXT_CHARS,
            "max_files": MAX_MESSAGE_FILES,
            "max_bytes": MAX_FILE_BYTES,
            "max_title": MAX_TITLE_CHARS,
        }
        limits["now_ms"] = round(time.time() * 1000)
        limits["max_name"] = MAX_NAME_CHARS
        person = channel.name_of(hook, user_id)
        response = flask.make_response(
            flask.render_template(
                "console.html", channel=channel, chat=chat, person=person, icon=ICON, **limits
            )
        )
        _set_cookie(response, hook, channel.cookie_for(hook), identity, COOKIE_SECONDS)
        if person:
            _set_name_cookie(response, hook, channel, user_id, person)
        return response

    def poll(self, name: str = "") -> flask.Response:
        """Return the entries of the feed after the given one."""
        channel = self._channel(name)
        entries = channel.entries(self._conversation(channel), flask.request.args.get("after", ""))
        return flask.jsonify(entries=[{"at": entry_id, **entry} for entry_id, entry in entries])

    def older(self, name: str) -> flask.Response:
        """Return a page of entries before the given one, and whether there are older ones."""
        channel = self._channel(name)
        before = flask.request.args.get("before", "")
        entries, has_more = channel.older_entries(self._conversation(channel), before)
        shown = [{"at": entry_id, **entry} for entry_id, entry in entries]
        return flask.jsonify(entries=shown, more=has_more)

    def events(self, name: str = "") -> flask.Response:
        """Stream the entries of the feed after the given one."""
        channel = self._channel(name)
        conversation = self._conversation(channel)
        if not self._streams.acquire(blocking=False):
            return _plain(503, "Too many open pages on this server process: poll instead.\n")
        # On a reconnect the header is current, and the query is not.
        after = flask.request.headers.get("Last-Event-ID") or flask.request.args.get("after", "")
        lines = _lines(channel, conversation, after, self.clock)
        response = flask.Response(
            lines, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )
        # The `finally` of a generator that never started would not run.
        response.call_on_close(self._streams.release)
        return response

    def waiting(self, name: str) -> flask.Response:
        """Return the states of messages, and why no worker answers them."""
        channel = self._channel(name)
        conversation = self._conversation(channel)
        ids = [
            each
            for each in flask.request.args.getlist("id")[:MAX_WAITING]
            if CLIENT_ID.fullmatch(each)
        ]
        stages = {each: self.stage(Turn(each, conversation, conversation.chat)) for each in ids}
        return flask.jsonify(
            stages=stages, cause=self.why_waiting() if "waits" in stages.values() else ""
        )

    def chats(self, name: str) -> flask.Response:
        """Return the conversations of the person, the one that was used last first."""
        channel = self._channel(name)
        listed = channel.chats.all(channel.name, self._visitor(channel))
        chats = [{"id": chat.id, "title": chat.title, "at": chat.at} for chat in listed]
        return flask.jsonify(chats=chats)

    def edit_chats(self, name: str) -> flask.Response:
        """Begin, rename or delete a conversation of the person. Returns the id of a new one."""
        channel = self._channel(name)
        user_id = channel.sender(self._hook())
        flask.request.max_content_length = MAX_CHAT_REQUEST_BYTES
        match flask.request.get_json(silent=True):
            case {"new": True}:
                return flask.jsonify(id=channel.new_chat(user_id))
            case {"rename": str(chat_id), "title": str(title)}:
                channel.rename_chat(user_id, chat_id, storable(title))
            case {"delete": str(chat_id)}:
                channel.delete_chat(user_id, chat_id)
            case _:
                return _plain(400, "Send new, or rename with title, or delete.\n")
        return flask.jsonify(ok=True)

    def name(self, name: str) -> flask.Response:
        """Store the name that the person chose in a cookie, and return the name that is shown.

        "" removes it.
        """
        channel = self._channel(name)
        hook = self._hook()
        user_id = channel.sender(hook)
        flask.request.max_content_length = MAX_CHAT_REQUEST_BYTES
        posted = flask.request.get_json(silent=True)
        if not isinstance(posted, dict) or not isinstance(posted.get("name"), str):
            return _plain(400, "Send a name.\n")
        person = title_of(storable(posted["name"]), MAX_NAME_CHARS)
        response = flask.jsonify(name=person)
        _set_name_cookie(response, hook, channel, user_id, person)
        return response

    def files(self, name: str) -> flask.Response:
        """Store an upload. Raises NotTaken, TooLarge, and what `admit` raises."""
        channel = self._channel(name)
        hook = self._hook()
        self._visitor(channel)
        user_id = channel.sender(hook)
        self.admit(Turn("", channel.conversation_of(user_id, ""), user_id))
        if not self._uploads.acquire(blocking=False):
            return _plain(503, "Too many files are being sent at once: try again shortly.\n")
        filename = unquote(flask.request.headers.get(FILENAME_HEADER, ""), errors="replace")
        try:
            with _body(flask.request) as file:
                name, media = channel.files.keep(
                    user_id, file, flask.request.content_type or "", filename
                )
        except QuotaExceeded:
            _log.warning("console.file_over_quota")
            return _plain(
                429, "Your files use all the space of one person: send this one next week.\n"
            )
        except (NoRoom, OSError) as exc:
            _log.error("console.file_not_kept", extra={"reason": exc})
            return _plain(503, "The bot cannot store files now: try again later.\n")
        finally:
            self._uploads.release()
        return flask.make_response(
            {"file": name, "mime": media.mime_type, "filename": media.filename}, 201
        )

    def login(self, name: str) -> flask.Response:
        """Check a password and log in. An address that sends wrong ones must wait longer each time.

        While it waits, its passwords are not checked.
        """
        channel = self._channel(name)
        hook = self._hook()
        if channel.is_open or not is_same_origin(hook):
            return _plain(403, "Log in on the console's own page.\n")
        forwarded_for = flask.request.headers.get("X-Forwarded-For", "")
        address = channel.client_address(flask.request.remote_addr or "", forwarded_for)
        wait = channel.logins.failures(channel.name, address).wait(time.time())
        if wait:
            if wait < 60:
                duration = f"{math.ceil(wait)} seconds"
            else:
                duration = f"{math.ceil(wait / 60)} minutes"
            return _login_page(
                channel, 429, f"Too many wrong passwords. Try again in {duration}.", wait
            )
        flask.request.max_content_length = MAX_LOGIN_BYTES
        if not channel.is_password(flask.request.form.get("password", "")):
            failures = channel.logins.fail(channel.name, address)
            if failures.count >= MAX_FAILURES:
                level = logging.ERROR
            else:
                level = logging.WARNING
            extra = {"channel": channel.name, "address": address, "failures": failures.count}
            _log.log(level, "console.login_failed", extra=extra)
            return _login_page(channel, 401, "Wrong password.", failures.wait(time.time()))
        channel.logins.succeed(channel.name, address)
        response = _to_page(channel)
        identity = _identity(channel, hook)
        session = channel.log_in(channel.user_of(identity))
        _set_cookie(response, hook, channel.cookie_for(hook), identity, COOKIE_SECONDS)
        _set_cookie(response, hook, channel.login_cookie_for(hook), session, SESSION_SECONDS)
        return response

    def logout(self, name: str) -> flask.Response:
        """End the browser's session."""
        channel = self._channel(name)
        hook = self._hook()
        if not is_same_origin(hook):
            return _plain(403, "Log out on the console's own page.\n")
        channel.log_out(hook)
        response = _to_page(channel)
        response.delete_cookie(
            channel.login_cookie_for(hook), secure=is_encrypted(hook), httponly=True
        )
        return response

    def _channel(self, name: str) -> ConsoleChannel:
        """Return the channel, if this client may reach it."""
        channel = self.channels.get(name)
        if channel is None:
            flask.abort(_refusal(404, "There is no console of this name."))
        if channel.is_open and not is_local(flask.request):
            flask.abort(_refusal(403, _LOCAL_ONLY.format(name=channel.name)))
        return channel

    def _visitor(self, channel: ConsoleChannel) -> str:
        """Return the user id of the browser."""
        user_id = channel.visitor(self._hook())
        if not user_id:
            flask.abort(
                _plain(
                    403 if channel.is_open else 401, "Your session has ended: reload the page.\n"
                )
            )
        return user_id

    def _conversation(self, channel: ConsoleChannel) -> Conversation:
        """Return the conversation of the browser that the query names."""
        return channel.conversation_of(self._visitor(channel), flask.request.args.get("chat", ""))

    def _shown_chat(self, channel: ConsoleChannel, user_id: str) -> str:
        """Return the id of the conversation that the page opens with.

        It is the named one, else that of the last message. Without storage it is the first one: the
        page says itself that it cannot read. Raises UnknownChat.
        """
        named = flask.request.args.get("chat")
        try:
            if named is not None:
                return channel.conversation_of(user_id, named).thread
            chats = channel.chats.all(channel.name, user_id)
            return next((chat.id for chat in chats if chat.at), "")
        except StoreDown:
            return ""

    def _hook(self) -> WebhookRequest:
        """Return the request without its body, which is not read before its sender is known."""
        headers = {name.lower(): value for name, value in flask.request.headers.items()}
        base = self.public_url or flask.request.host_url.rstrip("/")
        return WebhookRequest(base + flask.request.path, headers, b"")


def _to_page(channel: ConsoleChannel) -> flask.Response:
    return flask.make_response(
        flask.redirect(flask.url_for("console.page", name=channel.name), 303)
    )


def _identity(channel: ConsoleChannel, hook: WebhookRequest) -> str:
    """Return the browser's identity cookie, or a new one."""
    cookie = flask.request.cookies.get(channel.cookie_for(hook), "")
    if channel.user_of(cookie):
        return cookie
    return channel.new_session()


def _login_page(
    channel: ConsoleChannel, status: int, problem: str = "", wait: float = 0.0
) -> flask.Response:
    response = flask.make_response(
        flask.render_template("login.html", channel=channel, problem=problem, icon=ICON), status
    )
    if wait:
        response.headers["Retry-After"] = str(math.ceil(wait))
    return response


def _set_cookie(
    response: flask.Response, hook: WebhookRequest, name: str, value: str, seconds: int
) -> None:
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path="/",
        secure=is_encrypted(hook),
        httponly=True,
        samesite="Strict",
    )


def _set_name_cookie(
    response: flask.Response,
    hook: WebhookRequest,
    channel: ConsoleChannel,
    user_id: str,
    person: str,
) -> None:
    """Store a person's name in the signed cookie of their browser."""
    value = channel.name_cookie(user_id, person)
    _set_cookie(response, hook, channel.name_cookie_for(hook), value, COOKIE_SECONDS)


def _lines(
    channel: ConsoleChannel, conversation: Conversation, after: str, clock: Callable[[], float]
) -> Iterator[str]:
    """Yield server-sent events until STREAM_SECONDS are over or the feed is down.

    The browser reconnects by itself. The first heartbeat follows the first read: only then is it
    known that the feed can be read.
    """
    yield "retry: 1000\n\n"
    started_at = clock()
    beat_at = -math.inf
    block_ms = 0
    while (now := clock()) - started_at < STREAM_SECONDS:
        try:
            entries = channel.entries(conversation, after, block_ms)
        except StoreDown:
            _log.warning("console.feed_down", exc_info=True)
            return
        for after, entry in entries:  # the next read starts after the last one
            yield f"id: {after}\ndata: {json.dumps(entry)}\n\n"
        if now - beat_at >= HEARTBEAT_SECONDS:
            yield HEARTBEAT
            beat_at = now
        block_ms = BLOCK_MS


@contextmanager
def _body(request: flask.Request) -> Iterator[BinaryIO]:
    """Yield the whole body of an upload as a file. Raises TooLarge, and NotTaken for an empty body.

    It is a file because each thread of the server would keep the memory that it once needed.
    """
    # A body without an announced length is cut there, without an error.
    request.max_content_length = MAX_FILE_BYTES + 1
    with SpooledTemporaryFile(BODY_IN_MEMORY) as file:
        size = MAX_FILE_BYTES + 1
        with suppress(RequestEntityTooLarge):
            shutil.copyfileobj(request.stream, file)
            size = file.tell()
        if size > MAX_FILE_BYTES:
            raise TooLarge(f"the file is too large: send at most {MAX_FILE_BYTES} bytes")
        if not size:
            raise NotTaken("the file is empty")
        yield cast("BinaryIO", file)


def _storage_down(error: Exception) -> flask.Response:
    _log.warning("console.feed_down", exc_info=error)
    return _plain(503, "The console cannot reach its storage: try again shortly.\n")


def _refusal(status: int, text: str) -> flask.Response:
    """Return a page where a person opens the console; a plain text for the page's own requests."""
    if flask.request.endpoint == "console.page":
        return small_page("No console here", [text], status=status)
    return _plain(status, f"{text}\n")


def _drop_impossible_dates() -> None:
    """Remove headers whose date has an impossible year, for which Flask would raise an error."""
    for name in ("HTTP_IF_MODIFIED_SINCE", "HTTP_IF_RANGE"):
        try:
            parse_date(flask.request.environ.get(name))
        except OverflowError:
            del flask.request.environ[name]


def _harden(response: flask.Response) -> flask.Response:
    response.headers.setdefault("Content-Security-Policy", _CSP)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = (
        "same-origin"  # `no-referrer` would hide the origin of our own forms too
    )
    if flask.request.endpoint != "console.static":
        response.headers["Cache-Control"] = "no-store"
    return response


def _plain(status: int, text: str) -> flask.Response:
    return flask.Response(text, status=status, mimetype="text/plain")
