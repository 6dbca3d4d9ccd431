"""WebhookMiddleware: verifies, parses and stores webhooks, before their platforms get an answer.

It stands in front of Flask because Flask's routing alone takes as long as this work. A webhook that
cannot be stored goes on to Flask together with the error, and Flask answers.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from redis.exceptions import RedisError
from werkzeug.exceptions import HTTPException, abort
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_input_stream, get_path_info

from sayso.channels.base import (
    BadHook,
    Channel,
    Forbidden,
    NotStored,
    Overloaded,
    StoreReceived,
    note_moves,
    note_workspace,
)
from sayso.channels.inbound_limits import MAX_WEBHOOK_BYTES
from sayso.channels.types import Received, WebhookRequest
from sayso.infra import tracing
from sayso.infra.metrics import WEBHOOK_SECONDS, WEBHOOKS, of_labels
from sayso.infra.records import OtherVersion

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: The key in the WSGI environment that holds the error of a webhook that was not stored.
WEBHOOK_ERROR = "sayso.webhook_error"

#: For how many seconds after a line about a sender no other one about the same sender is logged.
LOG_SECONDS = 60.0
#: How many senders of bad requests are remembered. The oldest ones are forgotten first.
MAX_SENDERS = 1000
#: How many characters of a reason distinguish it from others. The rest may be text of the sender.
REASON_CHARS = 24

#: The path of a webhook, as the routes in `sayso.channels.web.app`: the channel's name, and the rest
#: behind it, such as "status".
_PATH = re.compile(r"/*hooks/(?P<channel>[^/]+)(?:/(?P<rest>[^/].*?))?/?")

#: Opens the form that a tap asks for, or checks a filled-in form. Returns what is left to store.
AnswerForm = Callable[[Channel, Received], Received]


class WebhookMiddleware:
    """A WSGI app that takes the webhooks of known channels, and passes all other requests on.

    One per process, used from any thread.

    * `app`: the WSGI app that answers all other requests.
    * `channels`: the channels that receive webhooks, by name.
    * `store`: stores what came in, before the platform gets its answer.
    * `public_url`: the URL at which platforms reach the bot. Signatures cover it.
    * `answer_form`: see AnswerForm. None if forms are turns like any other.
    """

    def __init__(
        self,
        app: WSGIApplication,
        channels: Mapping[str, Channel],
        store: StoreReceived,
        *,
        public_url: str,
        answer_form: AnswerForm | None = None,
    ) -> None:
        self._app = app
        self._channels = channels
        self._store = store
        self._public_url = public_url
        self._answer_form = answer_form
        self._log_limit = LogLimit()
        #: The path of `public_url`, "" for none. A proxy may pass it on or remove it.
        self._prefix = urlsplit(public_url).path.rstrip("/")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        self._move_prefix(environ)
        path = None
        if environ["REQUEST_METHOD"] == "POST":
            path = _PATH.fullmatch(get_path_info(environ))
        if path is None:
            return self._app(environ, start_response)
        channel = self._channels.get(path["channel"])
        if channel is None:
            return self._app(environ, start_response)

        started_at = time.perf_counter()
        attributes = {tracing.CHANNEL: channel.name}
        # The webhook begins a new trace, and only links to that of the client. Any client can send
        # a traceparent: it would put spans into a trace of its choice, and decide whether they are
        # recorded.
        with tracing.span(
            f"webhook {channel.name}", parent="", kind="server", attributes=attributes
        ) as span:
            try:
                received = self._receive(channel, environ, path["rest"] or "")
                tracing.add_link(span, str(environ.get("HTTP_TRACEPARENT", "")))
                note_workspace(channel, received)
                if self._answer_form:
                    received = self._answer_form(channel, received)
                self._store(channel.name, note_moves(channel, received))
                outcome = "ignored" if received.ignored else "stored"
            except Exception as exc:  # noqa: BLE001  # Flask answers, as for an error of a view
                environ[WEBHOOK_ERROR] = exc
                outcome = _outcome_of(exc)
            span.set_attribute(tracing.OUTCOME, outcome)

        of_labels(WEBHOOKS, channel.name, outcome).inc()
        if WEBHOOK_ERROR in environ:
            return self._app(environ, start_response)
        of_labels(WEBHOOK_SECONDS, channel.name).observe(time.perf_counter() - started_at)

        answer = received.answer
        body = answer.body.encode()
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
        start_response(f"{answer.status} {HTTP_STATUS_CODES[answer.status]}", headers)
        return [body]

    def _move_prefix(self, environ: WSGIEnvironment) -> None:
        """Move the path of `public_url` from the request's path to the root of the application.

        Then routes need not know the prefix, and links that Flask makes have it.
        """
        if not self._prefix:
            return
        # WSGI has the decoded path in PATH_INFO. Servers add the path as it came under one of the
        # other names.
        environ["SCRIPT_NAME"] = self._prefix
        for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
            path = str(environ.get(name, ""))
            if path.startswith(f"{self._prefix}/"):
                environ[name] = path.removeprefix(self._prefix)

    def _receive(self, channel: Channel, environ: WSGIEnvironment, path: str) -> Received:
        """Verify and parse a webhook. Raises HTTPException with status 403, 400 or 413.

        `path` is what follows the channel's name in the URL, "" for nothing.
        """
        # A signature covers the URL as it was sent, so the path as it came is preferred.
        path_and_query = f"{get_path_info(environ)}?{environ.get('QUERY_STRING', '')}".rstrip("?")
        raw_path = environ.get("RAW_URI") or environ.get("REQUEST_URI") or path_and_query
        headers = {}
        for key, value in environ.items():
            name = _header_name(key)
            if name and value:
                headers[name] = value
        webhook = WebhookRequest(
            # The URL that the platform was given. Behind a proxy the server sees another one.
            url=f"{self._public_url}{raw_path}",
            headers=headers,
            body=get_input_stream(environ, max_content_length=MAX_WEBHOOK_BYTES).read(),
            path=path,
            now=time.time(),
        )
        try:
            return channel.receive(webhook)
        except Forbidden as exc:
            # The URL that the signature covers, without its query, which may hold anything.
            url = webhook.url.partition("?")[0][:200]
            self._warn("hook.forbidden", environ, channel=channel.name, url=url, reason=str(exc))
            abort(403)
        except BadHook as exc:
            self._warn("hook.bad", environ, channel=channel.name, reason=str(exc))
            abort(400)

    def _warn(self, event: str, environ: WSGIEnvironment, **extra: str) -> None:
        """Log a bad request, unless one like it was logged in the last LOG_SECONDS."""
        address = str(environ.get("REMOTE_ADDR", ""))
        # A sender is one that fails in the same way at the same channel: another fault is news.
        sender = (address, event, extra["channel"], extra["reason"][:REASON_CHARS])
        omitted = self._log_limit.omitted(sender)
        if omitted is not None:
            log.warning(event, extra={**extra, "address": address, "others_before": omitted})


def _outcome_of(error: Exception) -> str:
    """Return the outcome of a webhook that was not stored, for its counter."""
    # Overloaded is a NotStored, so it comes first.
    match error:
        case HTTPException(code=403):
            return "forbidden"
        case HTTPException():
            return "bad"
        case Overloaded():
            return "refused"
        case NotStored() | RedisError() | OtherVersion():
            return "not_stored"
    return "failed"


class LogLimit:
    """Limits a log to one line a minute for each sender of bad requests.

    Without it a flood would fill the disk. One per process; used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: When the last line about a sender was logged, by the monotonic clock, and how many were
        #: omitted since. The sender whose line is the oldest comes first.
        self._senders: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def omitted(self, sender: Hashable) -> int | None:
        """Return how many lines about this sender were omitted since the last one.

        None if this one is omitted too.
        """
        now = time.monotonic()
        with self._lock:
            logged_at, omitted = self._senders.get(sender, (-math.inf, 0))
            if now - logged_at < LOG_SECONDS:
                self._senders[sender] = (logged_at, omitted + 1)
                return None

            self._senders[sender] = (now, 0)
            self._senders.move_to_end(sender)
            while len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
            return omitted


@lru_cache(maxsize=256)
def _header_name(key: str) -> str:
    """Return the header's lower-case name for a WSGI key such as HTTP_X_NAME, "" for other keys."""
    name = ""
    if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        name = key
    elif key.startswith("HTTP_"):
        name = key.removeprefix("HTTP_")
    return name.lower().replace("_", "-")
