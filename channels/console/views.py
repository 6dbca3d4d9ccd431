"""The console's web pages: the chat page, its live feed, file uploads, and logging in.

Messages and taps do not come here: the page posts them as webhooks, to /hooks/<name>.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from sayso.channels.console.sessions import BrowserSessions
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

#: How long a browser keeps its identity, in seconds: 30 days.
COOKIE_SECONDS = 30 * 24 * 3600
#: The most event streams per process. Each holds a thread, and the web server needs threads for
#: webhooks too.
MAX_STREAMS = 12
#: The most uploads per process at once. Each holds a thread and up to MAX_FILE_BYTES of the disk
#: for temporary files.
MAX_UPLOADS = 4
#: Bytes of an upload that are held in memory; what is longer goes to a temporary file.
BODY_IN_MEMORY = 256 * 1024
#: For how many messages a page may ask the state at once.
MAX_WAITING = 20
#: The path of an upload. The server allows it a larger body and more time than other requests.
UPLOADS = re.compile(r".*/console/[^/]+/files")
#: How long an event stream lasts, in seconds, so that an open page does not delay a restart.
STREAM_SECONDS = 60.0
#: Seconds between two heartbeats of a stream. Each read of the feed may add BLOCK_MS. The page
#: takes a stream without heartbeats for broken, and with them proxies keep the connection open.
HEARTBEAT_SECONDS = 4.0
#: A heartbeat: an event with a type that nothing else has. The page's script would not see a
#: comment.
HEARTBEAT = "event: alive\ndata:\n\n"
#: How long one read of the feed waits, in milliseconds.
BLOCK_MS = 1000
#: The header with the name of an uploaded file. In the URL it would be in the logs of every proxy.
FILENAME_HEADER = "X-Sayso-Filename"

#: What the page may load and show, and who may show it.
_CSP = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_LOCAL_ONLY = (
    "This console has no password, so it answers only on this machine: "
    "open http://localhost:<port>/console here. To open it from elsewhere, "
    "set `password: ${{CONSOLE_PASSWORD}}` on channel {name!r} in the YAML."
)

_log = logging.getLogger(__name__)


def console_pages(*channels: ConsoleChannel, **parts: Any) -> flask.Blueprint:
    """Return the pages of all console channels.

    /console is the first channel, /console/<name> is each of them. On the bot's own machine, /
    redirects to /console. `parts` are fields of Views.
    """
    by_name = {channel.name: channel for channel in channels}
    views = Views(channels={"": channels[0], **by_name}, **parts)
    pages = flask.Blueprint(
        "console",
        __name__,
        static_folder="static",
        static_url_path="/console/static",
        template_folder="templates",
    )
    # No channel is called "poll", "events" or "static": see `ConsoleSettings.reserved_names`.
    for path, view in (
        ("/", views.root),
        ("/console", views.page),
        ("/console/poll", views.poll),
        ("/console/events", views.events),
        ("/console/<name>", views.page),
        ("/console/<name>/poll", views.poll),
        ("/console/<name>/events", views.events),
        ("/console/<name>/older", views.older),
        ("/console/<name>/chats", views.chats),
        ("/console/<name>/waiting", views.waiting),
    ):
        pages.add_url_rule(path, view_func=view)
    for path, view in (
        ("/console/<name>/chats", views.edit_chats),
        ("/console/<name>/files", views.save_file),
        ("/console/<name>/name", views.save_name),
        ("/console/<name>/login", views.login),
        ("/console/<name>/logout", views.logout),
    ):
        pages.add_url_rule(path, view_func=view, methods=["POST"])
    for error, status in ((Forbidden, 403), (UnknownChat, 404), (NotTaken, 415), (TooLarge, 413)):
        pages.register_error_handler(error, partial(_plain_error, status))
    pages.register_error_handler(StoreDown, _storage_down)
    pages.before_request(_drop_impossible_dates)
    pages.after_request(_harden)
    return pages


@dataclass(kw_only=True)
class Views:
    """The views of all console channels. One per process.

    A view returns the answer to a request. Its parameter `name` is the channel's name in the URL.

    * A console is *open* if it has no password. It then answers only on this machine.
    * A *visitor* is the user of a browser that may use the page. If there is a password, the
      browser must be logged in.
    * A *sender* is a visitor whose page posts the request. Each request that changes something must
      have a sender, because another site could make the browser of a visitor send it. The forms to
      log in and out cannot set the header that proves it, so there the origin is checked.
    """

    #: The channels by name. The first one also has the name "".
    channels: Mapping[str, ConsoleChannel]
    #: The URL at which browsers reach the bot, "" for the host of the request.
    public_url: str = ""
    #: Returns seconds from any beginning, for the life of an event stream.
    clock: Callable[[], float] = time.monotonic
    max_streams: int = MAX_STREAMS
    max_uploads: int = MAX_UPLOADS
    #: Raises an error if the person of a turn may not upload a file now.
    admit: Callable[[Turn], None] = lambda _: None
    #: Returns the state of a turn: "waits", "done" or "unknown".
    turn_status: Callable[[Turn], str] = lambda _: "done"
    #: Returns why no worker answers, "" if no reason is known.
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
        sessions = channel.sessions
        hook = self._hook()
        if not sessions.is_open and not sessions.visitor(hook):
            return _login_page(channel, 200)
        identity = _identity(sessions, hook)
        user_id = sessions.user_of(identity)
        try:
            chat = self._shown_chat(channel, user_id)
        except UnknownChat:
            return _to_page(channel)

        person = sessions.name_of(hook, user_id)
        page = flask.render_template(
            "console.html",
            channel=channel,
            chat=chat,
            person=person,
            icon=ICON,
            # With this the page corrects its own clock.
            now_ms=round(time.time() * 1000),
            max_chars=MAX_PAGE_TEXT_CHARS,
            max_files=MAX_MESSAGE_FILES,
            max_bytes=MAX_FILE_BYTES,
            max_title=MAX_TITLE_CHARS,
            max_name=MAX_NAME_CHARS,
        )
        response = flask.make_response(page)
        # Set again, so that the cookies of a person who comes back do not expire.
        _set_cookie(response, hook, sessions.cookie_for(hook), identity, COOKIE_SECONDS)
        if person:
            _set_name_cookie(response, hook, channel, user_id, person)
        return response

    def poll(self, name: str = "") -> flask.Response:
        """Return the entries of the feed after the entry `after` of the query."""
        channel = self._channel(name)
        after = flask.request.args.get("after", "")
        entries = channel.entries(self._conversation(channel), after)
        return flask.jsonify(entries=[{"at": entry_id, **entry} for entry_id, entry in entries])

    def older(self, name: str) -> flask.Response:
        """Return a page of entries before the entry `before` of the query.

        The answer also says whether there are older ones.
        """
        channel = self._channel(name)
        before = flask.request.args.get("before", "")
        entries, has_more = channel.older_entries(self._conversation(channel), before)
        rows = [{"at": entry_id, **entry} for entry_id, entry in entries]
        return flask.jsonify(entries=rows, more=has_more)

    def events(self, name: str = "") -> flask.Response:
        """Stream the entries of the feed after the entry `after` of the query.

        These are server-sent events: the answer stays open, and entries follow as they come.
        """
        channel = self._channel(name)
        conversation = self._conversation(channel)
        if not self._streams.acquire(blocking=False):
            return _plain(503, "Too many open pages on this server process: poll instead.\n")
        # A browser that reconnects repeats the old query, and names the last entry in the header.
        after = flask.request.headers.get("Last-Event-ID") or flask.request.args.get("after", "")
        lines = _lines(channel, conversation, after, self.clock)
        response = flask.Response(
            lines, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )
        # Not in a `finally` of the generator, which would not run if the generator never starts.
        response.call_on_close(self._streams.release)
        return response

    def waiting(self, name: str) -> flask.Response:
        """Return the states of messages, and why no worker answers those that wait."""
        channel = self._channel(name)
        conversation = self._conversation(channel)
        statuses = {}
        user_id = conversation.chat  # the chat of a console's conversation is its user
        for event_id in flask.request.args.getlist("id")[:MAX_WAITING]:
            if CLIENT_ID.fullmatch(event_id):
                turn = Turn(event_id, conversation, user_id)
                statuses[event_id] = self.turn_status(turn)

        cause = ""
        if "waits" in statuses.values():
            cause = self.why_waiting()
        return flask.jsonify(statuses=statuses, cause=cause)

    def chats(self, name: str) -> flask.Response:
        """Return the conversations of the person, the one that was used last first."""
        channel = self._channel(name)
        chats = channel.chats.all(channel.name, self._visitor(channel))
        rows = [{"id": chat.id, "title": chat.title, "at": chat.at} for chat in chats]
        return flask.jsonify(chats=rows)

    def edit_chats(self, name: str) -> flask.Response:
        """Begin, rename or delete a conversation of the person. Returns the id of a new one."""
        channel = self._channel(name)
        user_id = channel.sessions.sender(self._hook())
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

    def save_name(self, name: str) -> flask.Response:
        """Store the name that the person chose in a cookie, and return it as the page shows it.

        The name "" removes it.
        """
        channel = self._channel(name)
        hook = self._hook()
        user_id = channel.sessions.sender(hook)
        flask.request.max_content_length = MAX_CHAT_REQUEST_BYTES
        posted = flask.request.get_json(silent=True)
        if not isinstance(posted, dict) or not isinstance(posted.get("name"), str):
            return _plain(400, "Send a name.\n")
        person = title_of(storable(posted["name"]), MAX_NAME_CHARS)
        response = flask.jsonify(name=person)
        _set_name_cookie(response, hook, channel, user_id, person)
        return response

    def save_file(self, name: str) -> flask.Response:
        """Store an upload. Returns its signed name, its type and its file name.

        Raises NotTaken, TooLarge, and what `admit` raises.
        """
        channel = self._channel(name)
        hook = self._hook()
        # Before `sender`, so that a page whose session has ended gets 401 and says so.
        self._visitor(channel)
        user_id = channel.sessions.sender(hook)
        # An upload is no turn, so it has no id. `admit` reads only whose it is.
        self.admit(Turn("", channel.conversation_of(user_id, ""), user_id))
        filename = unquote(flask.request.headers.get(FILENAME_HEADER, ""), errors="replace")
        mime_type = flask.request.content_type or ""
        if not self._uploads.acquire(blocking=False):
            return _plain(503, "Too many files are being sent at once: try again shortly.\n")

        try:
            with _body(flask.request) as file:
                signed_name, media = channel.files.save(user_id, file, mime_type, filename)
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
        answer = {"file": signed_name, "mime": media.mime_type, "filename": media.filename}
        return flask.make_response(answer, 201)

    def login(self, name: str) -> flask.Response:
        """Check a password and log in.

        An address that sends wrong passwords must wait longer each time. While it waits, its
        passwords are not checked.
        """
        channel = self._channel(name)
        sessions = channel.sessions
        hook = self._hook()
        if sessions.is_open or not is_same_origin(hook):
            return _plain(403, "Log in on the console's own page.\n")

        forwarded_for = flask.request.headers.get("X-Forwarded-For", "")
        address = sessions.client_address(flask.request.remote_addr or "", forwarded_for)
        wait = sessions.logins.failures(channel.name, address).wait(time.time())
        if wait:
            problem = f"Too many wrong passwords. Try again in {_duration(wait)}."
            return _login_page(channel, 429, problem, wait)

        flask.request.max_content_length = MAX_LOGIN_BYTES
        if not sessions.is_password(flask.request.form.get("password", "")):
            failures = sessions.logins.note_failure(channel.name, address)
            is_locked_out = failures.count >= MAX_FAILURES
            level = logging.ERROR if is_locked_out else logging.WARNING
            extra = {"channel": channel.name, "address": address, "failures": failures.count}
            _log.log(level, "console.login_failed", extra=extra)
            return _login_page(channel, 401, "Wrong password.", failures.wait(time.time()))

        sessions.logins.note_success(channel.name, address)
        response = _to_page(channel)
        identity = _identity(sessions, hook)
        session = sessions.log_in(sessions.user_of(identity))
        _set_cookie(response, hook, sessions.cookie_for(hook), identity, COOKIE_SECONDS)
        _set_cookie(response, hook, sessions.login_cookie_for(hook), session, SESSION_SECONDS)
        return response

    def logout(self, name: str) -> flask.Response:
        """End the browser's session, and show the log-in page."""
        channel = self._channel(name)
        sessions = channel.sessions
        hook = self._hook()
        if not is_same_origin(hook):
            return _plain(403, "Log out on the console's own page.\n")
        sessions.log_out(hook)
        response = _to_page(channel)
        response.delete_cookie(
            sessions.login_cookie_for(hook), secure=is_encrypted(hook), httponly=True
        )
        return response

    def _channel(self, name: str) -> ConsoleChannel:
        """Return a channel that this client may reach. Answers 404 or 403 for any other."""
        channel = self.channels.get(name)
        if channel is None:
            flask.abort(_refusal(404, "There is no console of this name."))
        if channel.sessions.is_open and not is_local(flask.request):
            flask.abort(_refusal(403, _LOCAL_ONLY.format(name=channel.name)))
        return channel

    def _visitor(self, channel: ConsoleChannel) -> str:
        """Return the user id of the browser. Answers 401 or 403 for one without a session."""
        user_id = channel.sessions.visitor(self._hook())
        if not user_id:
            status = 403 if channel.sessions.is_open else 401
            flask.abort(_plain(status, "Your session has ended: reload the page.\n"))
        return user_id

    def _conversation(self, channel: ConsoleChannel) -> Conversation:
        """Return the conversation that the query names, one of the visitor's. Raises UnknownChat."""
        return channel.conversation_of(self._visitor(channel), flask.request.args.get("chat", ""))

    def _shown_chat(self, channel: ConsoleChannel, user_id: str) -> str:
        """Return the id of the conversation that the page opens with. Raises UnknownChat.

        It is the one that the query names, else that of the last message, else the first one, "".
        """
        requested = flask.request.args.get("chat")
        try:
            if requested is not None:
                return channel.conversation_of(user_id, requested).thread
            # The conversation that was used last comes first. Those without a message have no time.
            chats = channel.chats.all(channel.name, user_id)
            return next((chat.id for chat in chats if chat.at), "")
        except StoreDown:
            # The page is shown all the same, and says itself that it cannot read its feed.
            return ""

    def _hook(self) -> WebhookRequest:
        """Return the request without its body, which is not read before its sender is known."""
        headers = {name.lower(): value for name, value in flask.request.headers.items()}
        base = self.public_url or flask.request.host_url.rstrip("/")
        return WebhookRequest(base + flask.request.path, headers, b"")


def _to_page(channel: ConsoleChannel) -> flask.Response:
    """Return a redirect to the page of a channel."""
    url = flask.url_for("console.page", name=channel.name)
    return flask.make_response(flask.redirect(url, 303))


def _identity(sessions: BrowserSessions, hook: WebhookRequest) -> str:
    """Return the browser's identity cookie, or a new one."""
    cookie = flask.request.cookies.get(sessions.cookie_for(hook), "")
    if sessions.user_of(cookie):
        return cookie
    return sessions.new_identity()


def _login_page(
    channel: ConsoleChannel, status: int, problem: str = "", wait: float = 0.0
) -> flask.Response:
    """Return the log-in page.

    `problem` is what went wrong, "" for nothing. `wait` is how many seconds to wait, 0 for none.
    """
    page = flask.render_template("login.html", channel=channel, problem=problem, icon=ICON)
    response = flask.make_response(page, status)
    if wait:
        response.headers["Retry-After"] = str(math.ceil(wait))
    return response


def _duration(seconds: float) -> str:
    """Return a duration in words, such as "1 second" or "15 minutes", rounded up."""
    number = math.ceil(seconds)
    unit = "second"
    if seconds >= 60:
        number = math.ceil(seconds / 60)
        unit = "minute"
    plural = "" if number == 1 else "s"
    return f"{number} {unit}{plural}"


def _set_cookie(
    response: flask.Response, hook: WebhookRequest, name: str, value: str, seconds: int
) -> None:
    """Set a cookie that no script reads, and that no other site sends, for some seconds."""
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
    """Set the signed cookie with a person's name."""
    value = channel.sessions.name_cookie(user_id, person)
    _set_cookie(response, hook, channel.sessions.name_cookie_for(hook), value, COOKIE_SECONDS)


def _lines(
    channel: ConsoleChannel, conversation: Conversation, after: str, clock: Callable[[], float]
) -> Iterator[str]:
    """Yield server-sent events until STREAM_SECONDS are over or the feed is down.

    `after` is the id of the last entry that the browser has, "" for none. The browser reconnects by
    itself.
    """
    yield "retry: 1000\n\n"
    started_at = clock()
    last_heartbeat_at = -math.inf
    # The first read does not wait: the heartbeat that follows it says that the feed can be read.
    block_ms = 0
    while True:
        now = clock()
        if now - started_at >= STREAM_SECONDS:
            return
        try:
            entries = channel.entries(conversation, after, block_ms)
        except StoreDown:
            _log.warning("console.feed_down", exc_info=True)
            return
        for entry_id, entry in entries:
            yield f"id: {entry_id}\ndata: {json.dumps(entry)}\n\n"
            after = entry_id

        if now - last_heartbeat_at >= HEARTBEAT_SECONDS:
            yield HEARTBEAT
            last_heartbeat_at = now
        block_ms = BLOCK_MS


@contextmanager
def _body(request: flask.Request) -> Iterator[BinaryIO]:
    """Yield the whole body of an upload as a file. Raises TooLarge, and NotTaken for an empty body.

    A large body is written to a file, because the threads of the server would not give back the
    memory for it.
    """
    too_large = TooLarge(f"the file is too large: send at most {MAX_FILE_BYTES} bytes")
    # A body without an announced length is cut at this length, without an error. So the limit is
    # one byte more than a file may have.
    request.max_content_length = MAX_FILE_BYTES + 1
    with SpooledTemporaryFile(BODY_IN_MEMORY) as file:
        try:
            shutil.copyfileobj(request.stream, file)
        except RequestEntityTooLarge:
            raise too_large from None
        size = file.tell()
        if size > MAX_FILE_BYTES:
            raise too_large
        if not size:
            raise NotTaken("the file is empty")
        yield cast("BinaryIO", file)


def _plain_error(status: int, error: Exception) -> flask.Response:
    """Return the text of an error."""
    return _plain(status, f"{error}\n")


def _storage_down(error: Exception) -> flask.Response:
    """Answer 503: the console's storage does not answer."""
    _log.warning("console.feed_down", exc_info=error)
    return _plain(503, "The console cannot reach its storage: try again shortly.\n")


def _refusal(status: int, text: str) -> flask.Response:
    """Return a small page to a person who opens the console, else a plain text."""
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
    """Return the answer with headers that limit what a browser does with it."""
    response.headers.setdefault("Content-Security-Policy", _CSP)
    response.headers["X-Content-Type-Options"] = "nosniff"
    # "no-referrer" would hide the origin of our own forms too.
    response.headers["Referrer-Policy"] = "same-origin"
    if flask.request.endpoint != "console.static":
        response.headers["Cache-Control"] = "no-store"
    return response


def _plain(status: int, text: str) -> flask.Response:
    return flask.Response(text, status=status, mimetype="text/plain")
