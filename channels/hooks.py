"""Hooks: the door for webhooks, in front of Flask: each is verified, read and kept before it is answered.

Flask's way to a view and back takes as long as all of that together. What the door cannot take goes on to Flask with
its error, and Flask answers for it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from werkzeug.exceptions import abort
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wsgi import get_input_stream, get_path_info

from channels.base import BadHook, Channel, Forbidden
from channels.types import AddressNews, Hook, HookAnswer, Received, StatusUpdate, Turn
from config.bootstrap import Services
from pending.seal import split_button

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

#: Bytes a webhook's body may have. Platforms send far less; files come as links.
MAX_BODY = 1_000_000
#: Where Flask finds, in the WSGI environment, the error of a webhook that the door could not take.
ERROR = "sayso.hook_error"

#: The path of a webhook, as the routes in `channels.web` have it: the channel's name, and what follows it.
_PLACE = re.compile(r"/*hooks/([^/]+)(?:/([^/].*))?")


class TooMany(Exception):
    """Raised when a turn was refused: the platform is to send it again."""


class HookDoor:
    """The WSGI app before `behind`, which gets whatever is no webhook of a channel. Lives as long as the process."""

    def __init__(self, behind: WSGIApplication, services: Services) -> None:
        self._behind = behind
        self._services = services

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        place = _PLACE.fullmatch(get_path_info(environ)) if environ["REQUEST_METHOD"] == "POST" else None
        channel = self._services.channels.get(place[1]) if place else None
        if not place or not channel:
            return self._behind(environ, start_response)
        try:
            answer = self._take(channel, self._hook_of(environ, place[2] or ""))
        except Exception as exc:  # noqa: BLE001  # Flask answers for it, as for anything that a view raises
            environ[ERROR] = exc
            return self._behind(environ, start_response)
        return _say(answer, start_response)

    def _take(self, channel: Channel, hook: Hook) -> HookAnswer:
        """Keep all that it brings. Raises TooMany, redis.RedisError, SpoolUnusable: it must come again."""
        received = _receive(channel, hook)
        for status in received.statuses:
            self._note(status)
        for alert in received.alerts:
            log.error("channel.alert", extra={"channel": channel.name, "reason": alert})
            self._services.alerts.note(channel.name, alert)
        for news in filter(_is_an_address, received.addresses):
            log.info("address.news", extra={"conversation": news.conversation.id, "closed": news.closed or "-"})
            self._services.deliveries.close(news.conversation.id, news.closed, late=news.late)
        if received.ignored:
            log.info("hook.ignored", extra={"channel": channel.name, "reason": received.ignored})
        for turn in filter(_is_storable, received.turns):
            self._accept(turn)
        return received.answer

    def _note(self, status: StatusUpdate) -> None:
        """Log what a platform says of a reply, and keep it with the delivery."""
        kept, code = "", status.error_code or "-"
        if status.delivery:
            reason = f"error {code}"
            kept = self._services.deliveries.report(status.delivery, status.message_id, status.status, reason)
        level = logging.WARNING if status.status in ("failed", "undelivered") else logging.INFO
        extra = {"delivery": status.delivery or "-", "status": status.status, "code": code, "kept": kept or "-"}
        log.log(level, "reply.status", extra=extra)

    def _accept(self, turn: Turn) -> None:
        reason = self._services.gate.ignores(turn)
        if reason:  # not even the spool's disk keeps it
            log.info("turn.ignored", extra={"conversation": turn.conversation.id, "reason": reason})
            return
        parts = split_button(turn.tap.data) if turn.tap else None
        door = self._services.spool or self._services.gate
        accepted = door.accept(turn, tapped=parts[0] if parts else "")
        log.info("turn.accepted", extra={"conversation": turn.conversation.id, "outcome": accepted.outcome})
        if accepted.refused:
            raise TooMany("this conversation has too many messages waiting")

    def _hook_of(self, environ: WSGIEnvironment, path: str) -> Hook:
        """The request with the URL that the platform was given: behind a proxy the request's own is another."""
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or _full_path(environ)
        return Hook(
            url=self._services.public_url + str(raw),
            headers=_headers_of(environ),
            body=get_input_stream(environ, max_content_length=MAX_BODY).read(),
            path=path,
            now=time.time(),
        )


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


def _receive(channel: Channel, hook: Hook) -> Received:
    try:
        return channel.receive(hook)
    except Forbidden as exc:
        log.warning("hook.forbidden", extra={"channel": channel.name, "reason": str(exc)})
        abort(403)
    except BadHook as exc:
        log.warning("hook.bad", extra={"channel": channel.name, "reason": str(exc)})
        abort(400)


def _is_an_address(news: AddressNews) -> bool:
    """Whether anything can be kept under it. As with turns, a repetition would bring the same."""
    try:
        news.conversation.address.encode()
    except UnicodeEncodeError:
        log.error("address.malformed")
        return False
    return True


def _is_storable(turn: Turn) -> bool:
    """Whether a worker can read it. A payload that bends a field would be bent each time the platform repeats it."""
    try:
        Turn.from_json(turn.to_json())  # written alone, nothing passes for a text
    except (ValueError, TypeError) as exc:  # its message would repeat the payload
        log.error("turn.malformed", extra={"reason": type(exc).__name__})
        return False
    return True


def _say(answer: HookAnswer, start_response: StartResponse) -> Iterable[bytes]:
    body = answer.body.encode()
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(body)))]
    start_response(f"{answer.status} {HTTP_STATUS_CODES[answer.status]}", headers)
    return [body]
