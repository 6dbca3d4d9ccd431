"""Web: the Flask app: webhooks in, media out, health, and the console's pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flask import Flask, Response, abort, jsonify, request, send_file
from redis.exceptions import RedisError
from werkzeug.exceptions import NotFound
from werkzeug.http import parse_range_header

from sayso.channels.base import Forbidden
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.logins import LoginsDown
from sayso.channels.console.views import console_pages
from sayso.channels.media import BadToken, MediaGone
from sayso.channels.types import Turn
from sayso.channels.web.ingress import Overloaded
from sayso.channels.web.webhooks import ERROR as HOOK_ERROR
from sayso.channels.web.webhooks import MAX_BODY, WebhookMiddleware
from sayso.config.server import health
from sayso.config.wiring.bootstrap import Services
from sayso.workers.spool import SpoolUnusable

log = logging.getLogger(__name__)


#: Seconds a platform should wait before it repeats a webhook we could not keep.
RETRY_AFTER = 5


def create_app(services: Services) -> Flask:
    """The WSGI app of one wired process."""
    app = Flask("sayso", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    # A webhook that is redirected comes again as GET, without its form: a path with a slash too many is no path.
    app.url_map.merge_slashes = False
    app.register_error_handler(Overloaded, _too_many)
    app.register_error_handler(RedisError, _redis_away)
    app.register_error_handler(LoginsDown, _redis_away)
    app.register_error_handler(SpoolUnusable, _spool_unusable)
    _add_hooks(app, services)
    _add_media(app, services)
    _add_health(app, services)
    _add_console(app, services)
    return app


def _add_hooks(app: Flask, services: Services) -> None:
    app.wsgi_app = WebhookMiddleware(app.wsgi_app, services)  # type: ignore[method-assign]  # as Flask's manual says

    @app.post("/hooks/<name>")
    @app.post("/hooks/<name>/<path:path>")
    def hook(**_: str) -> Response:
        """What the door could not take, and channels there are none of."""
        raise request.environ.pop(HOOK_ERROR, None) or NotFound


def _too_many(error: Overloaded) -> Response:
    return _try_later(str(error))


def _redis_away(error: Exception) -> Response:
    log.error("redis.away", extra={"reason": type(error).__name__})
    return _try_later("storage is away")


def _spool_unusable(error: SpoolUnusable) -> Response:
    log.error("spool.unusable: %s", error)
    return _try_later("storage is away")


def _try_later(reason: str) -> Response:
    """Nothing was kept: the platform must not believe it was."""
    return Response(f"{reason}, try again\n", 503, {"Retry-After": str(RETRY_AFTER)}, content_type="text/plain")


def _add_media(app: Flask, services: Services) -> None:
    @app.get("/media/<token>")
    def media(token: str) -> Response:
        try:
            path, mime_type, filename = services.media.open_token(token)
            size = path.stat().st_size
        except (MediaGone, FileNotFoundError):
            abort(410)
        except BadToken:
            abort(404)
        shown = mime_type in ("image/png", "image/jpeg", "image/gif", "image/webp")
        tag = f'"{path.name}"'
        if not _is_plain(request.headers.get("Range", ""), size) or request.headers.get("If-Range", tag) != tag:
            request.environ.pop("HTTP_RANGE", None)
        for dated in ("HTTP_IF_MODIFIED_SINCE", "HTTP_IF_RANGE"):  # Flask breaks over a year that is no year
            request.environ.pop(dated, None)
        response = send_file(path, mime_type, as_attachment=not shown, download_name=filename or "file", etag=path.name)
        del response.headers["Last-Modified"]  # it would tell when others stored the same, as would dates asked for
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
        response.headers["Cache-Control"] = "private, max-age=300"
        return response


def _is_plain(asked: str, size: int) -> bool:
    """Whether a range may be served, or refused as one behind the end. Any other is to be ignored (RFC 9110, 14.2), or
    may be: several at once, and more than the file has from its end. Flask would refuse them all.
    """
    found = parse_range_header(asked)
    if found is None:
        return not asked
    begin, _ = found.ranges[0]
    return found.units == "bytes" and len(found.ranges) == 1 and begin >= -size


def _add_health(app: Flask, services: Services) -> None:
    @app.get("/healthz")
    def healthz() -> tuple[Response, int]:
        if "full" not in request.args:
            return jsonify(status="ok"), 200
        return _told(*health.full(services))

    @app.get("/readyz")
    def readyz() -> tuple[Response, int]:
        return _told(*health.readiness(services))


def _told(said: Mapping[str, Any], good: bool) -> tuple[Response, int]:
    return jsonify(said), 200 if good else 503


def _add_console(app: Flask, services: Services) -> None:
    consoles = [channel for channel in services.channels.values() if isinstance(channel, ConsoleChannel)]
    if consoles:
        pages = console_pages(
            *consoles,
            public_url=services.public_url,
            admit=_doorkeeper(services),
            stage=services.gate.turn_status,
            why_waiting=partial(health.why_waiting, services),
        )
        app.register_blueprint(pages)


def _doorkeeper(services: Services) -> Callable[[Turn], None]:
    """Turns away whoever may not talk to the bot, or sends more files in a minute than they may say things."""
    from sayso.workers.access.gate import memory_quota  # it loads its library

    quota, per_minute = memory_quota(), services.settings.limits.per_minute

    def admit(turn: Turn) -> None:
        whose = (turn.conversation.channel, turn.user_id, per_minute)
        if not services.gate.admits(turn):
            raise Forbidden("the bot takes no files of yours")
        if quota.is_used_up(*whose):
            raise Overloaded("too many files in a minute")
        quota.book(*whose)

    return admit
