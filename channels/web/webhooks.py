"""Hooks: the door for webhooks, in front of Flask: each is verified, read and kept before it is answered.

Flask's way to a view and back takes as long as all of that together. What the door cannot take goes on to Flask with
its error, and Flask answers for it.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from werkzeug.exceptions import abort
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_input_stream, get_path_info

from sayso.channels.base import BadHook, Channel, Forbidden
from sayso.channels.types import Received, WebhookRequest, WebhookResponse
from sayso.channels.web.ingress import Ingress
from sayso.config.wiring.bootstrap import Services

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: Bytes a webhook's body may have. Platforms send far less; files come as links.
MAX_BODY = 1_000_000
#: Where Flask finds, in the WSGI environment, the error of a webhook that the door could not take.
ERROR = "sayso.hook_error"

#: A bad request is logged once in so many seconds for each sender; so many senders are remembered.
LOG_SECONDS, MAX_SENDERS = 60.0, 1000
#: Characters of a reason that tell it from others. What follows may be a stranger's own words.
REASON_CHARS = 24

#: The path of a webhook, as the routes in `sayso.channels.web.app` have it: the channel's name, and what follows it.
_PLACE = re.compile(r"/*hooks/([^/]+)(?:/([^/].*?))?/?")


class WebhookMiddleware:
    """The WSGI app before `behind`, which gets whatever is no webhook of a channel. Lives as long as the process."""

    def __init__(self, behind: WSGIApplication, services: Services) -> None:
        self._behind = behind
        self._services = services
        self._door = Ingress(services)
        self._refusals = LogLimit()
        #: The path of `public_url`, "" for none. A proxy may pass it on or take it away.
        self._prefix = urlsplit(services.public_url).path.rstrip("/")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        self._take_prefix_off(environ)
        place = _PLACE.fullmatch(get_path_info(environ)) if environ["REQUEST_METHOD"] == "POST" else None
        channel = self._services.channels.get(place[1]) if place else None
        if not place or not channel:
            return self._behind(environ, start_response)
        try:
            received = self._receive(channel, environ, place[2] or "")
            self._door.keep(channel.name, received)
        except Exception as exc:  # noqa: BLE001  # Flask answers for it, as for anything that a view raises
            environ[ERROR] = exc
            return self._behind(environ, start_response)
        return _say(received.answer, start_response)

    def _receive(self, channel: Channel, environ: WSGIEnvironment, path: str) -> Received:
        hook = self._hook_of(environ, path)
        try:
            return channel.receive(hook)
        except Forbidden as exc:
            self._log("hook.forbidden", environ, channel=channel.name, url=_shown(hook.url), reason=str(exc))
            abort(403)
        except BadHook as exc:
            self._log("hook.bad", environ, channel=channel.name, reason=str(exc))
            abort(400)

    def _log(self, event: str, environ: WSGIEnvironment, **extra: str) -> None:
        address = str(environ.get("REMOTE_ADDR", ""))
        others = self._refusals.others((address, event, extra["channel"], extra["reason"][:REASON_CHARS]))
        if others is not None:
            log.warning(event, extra={**extra, "address": address, "others_before": others})

    def _take_prefix_off(self, environ: WSGIEnvironment) -> None:
        """Have the app see its own paths below the path of `public_url`, and links made with that path."""
        if not self._prefix:
            return
        for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI"):
            if str(environ.get(name, "")).startswith(f"{self._prefix}/"):
                environ[name] = str(environ[name]).removeprefix(self._prefix)
        environ["SCRIPT_NAME"] = self._prefix

    def _hook_of(self, environ: WSGIEnvironment, path: str) -> WebhookRequest:
        """The request with the URL that the platform was given: behind a proxy the request's own is another."""
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or _full_path(environ)
        return WebhookRequest(
            url=self._services.public_url + str(raw),
            headers=_headers_of(environ),
            body=get_input_stream(environ, max_content_length=MAX_BODY).read(),
            path=path,
            now=time.time(),
        )


class LogLimit:
    """Limits a log to one line a minute for each sender of bad requests, so that a flood fills no disk.

    Lives as long as the process; used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def others(self, sender: Hashable) -> int | None:
        """Return how many lines of this sender were left out since the last one. None: leave this one out too."""
        now = time.monotonic()
        with self._lock:
            at, others = self._logged.get(sender, (-math.inf, 0))
            if now - at < LOG_SECONDS:
                self._logged[sender] = at, others + 1
                return None
            self._logged[sender] = now, 0
            self._logged.move_to_end(sender)
            while len(self._logged) > MAX_SENDERS:
                self._logged.popitem(last=False)
            return others


def _shown(url: str) -> str:
    """Return the URL that a signature was compared with, without its query, which may hold anything."""
    return url.partition("?")[0][:200]


def _full_path(environ: WSGIEnvironment) -> str:
    return f"{get_path_info(environ)}?{environ.get('QUERY_STRING', '')}".rstrip("?")


def _headers_of(environ: WSGIEnvironment) -> dict[str, str]:
    """The headers under lower-case names."""
    return {name: value for key, value in environ.items() if (name := _header_name(key)) and value}


@lru_cache(maxsize=256)
def _header_name(key: str) -> str:
    """What WSGI calls HTTP_X_NAME; "" for what is no header."""
    name = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else key[5:] if key.startswith("HTTP_") else ""
    return name.lower().replace("_", "-")


def _say(answer: WebhookResponse, start_response: StartResponse) -> Iterable[bytes]:
    body = answer.body.encode()
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
    start_response(f"{answer.status} {HTTP_STATUS_CODES[answer.status]}", headers)
    return [body]
