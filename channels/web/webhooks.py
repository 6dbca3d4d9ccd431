"""WebhookMiddleware: verifies, parses and stores webhooks, before their platforms get an answer.

It stands in front of Flask because Flask's routing takes as long as all of that together. What it
cannot take goes on to Flask together with the error, and Flask answers.
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

#: The key in the WSGI environment that holds the error of a webhook that was not taken.
WEBHOOK_ERROR = "sayso.webhook_error"

#: A bad request is logged once in this many seconds for each sender;
#: this many senders are remembered.
LOG_SECONDS = 60.0
MAX_SENDERS = 1000
#: How many characters of a reason distinguish it from others. The rest may be text of the sender.
REASON_CHARS = 24

#: The path of a webhook, as the routes in `sayso.channels.web.app`: the channel's name,
#: and what follows it.
_PATH = re.compile(r"/*hooks/([^/]+)(?:/([^/].*?))?/?")


#: Opens the form that a tap asks for, or checks a filled-in form. Returns what is left to store.
AnswerForm = Callable[[Channel, Received], Received]


class WebhookMiddleware:
    """A WSGI app that takes the webhooks of known channels and passes all other requests to `app`.

    One per process.
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
        if self._prefix:  # links that Flask makes get it back
            environ["SCRIPT_NAME"] = self._prefix
            for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
                if str(environ.get(name, "")).startswith(f"{self._prefix}/"):
                    environ[name] = str(environ[name]).removeprefix(self._prefix)
        if environ["REQUEST_METHOD"] == "POST":
            path = _PATH.fullmatch(get_path_info(environ))
        else:
            path = None
        if path:
            channel = self._channels.get(path[1])
        else:
            channel = None
        if not path or not channel:
            return self._app(environ, start_response)
        began = time.perf_counter()
        attributes = {tracing.CHANNEL: channel.name}
        # A trace of its own: any client can send a traceparent. It would put spans into a trace of
        # its choice, and decide whether they are recorded.
        with tracing.span(
            f"webhook {channel.name}", parent="", kind="server", attributes=attributes
        ) as span:
            try:
                received = self._receive(channel, environ, path[2] or "")
                tracing.add_link(span, str(environ.get("HTTP_TRACEPARENT", "")))
                note_workspace(channel, received)
                if self._answer_form:
                    received = self._answer_form(channel, received)
                self._store(channel.name, note_moves(channel, received))
                outcome = "ignored" if received.ignored else "stored"
            except Exception as exc:  # noqa: BLE001  # Flask answers for it, as for an error raised by a view
                environ[WEBHOOK_ERROR], outcome = exc, _outcome_of(exc)
            span.set_attribute(tracing.OUTCOME, outcome)
        of_labels(WEBHOOKS, channel.name, outcome).inc()
        if WEBHOOK_ERROR in environ:
            return self._app(environ, start_response)
        of_labels(WEBHOOK_SECONDS, channel.name).observe(time.perf_counter() - began)
        answer = received.answer
        body = received.answer.body.encode()
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
        start_response(f"{answer.status} {HTTP_STATUS_CODES[answer.status]}", headers)
        return [body]

    def _receive(self, channel: Channel, environ: WSGIEnvironment, path: str) -> Received:
        path_and_query = f"{get_path_info(environ)}?{environ.get('QUERY_STRING', '')}".rstrip("?")
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or path_and_query
        webhook = WebhookRequest(
            url=self._public_url
            + str(raw),  # the URL that the platform was given; behind a proxy ours is another
            headers={
                name: value
                for key, value in environ.items()
                if (name := _header_name(key)) and value
            },
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
        address = str(environ.get("REMOTE_ADDR", ""))
        omitted = self._log_limit.omitted(
            (address, event, extra["channel"], extra["reason"][:REASON_CHARS])
        )
        if omitted is not None:
            log.warning(event, extra={**extra, "address": address, "others_before": omitted})


def _outcome_of(error: Exception) -> str:
    """Return the outcome of a webhook that was not taken, for its counter."""
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

    A flood must not fill the disk.

    One per process; used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def omitted(self, sender: Hashable) -> int | None:
        """Return how many lines of this sender were omitted since the last one.

        None: omit this one, too.
        """
        now = time.monotonic()
        with self._lock:
            at, omitted = self._senders.get(sender, (-math.inf, 0))
            if now - at < LOG_SECONDS:
                self._senders[sender] = at, omitted + 1
                return None
            self._senders[sender] = now, 0
            self._senders.move_to_end(sender)
            while len(self._senders) > MAX_SENDERS:
                self._senders.popitem(last=False)
            return omitted


@lru_cache(maxsize=256)
def _header_name(key: str) -> str:
    """Return the header's lower-case name for a WSGI key such as HTTP_X_NAME, "" for other keys."""
    if key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        name = key
    elif key.startswith("HTTP_"):
        name = key[5:]
    else:
        name = ""
    return name.lower().replace("_", "-")
