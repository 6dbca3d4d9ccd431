"""Web: the Flask app: webhooks in, media out, health, and the console's pages."""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flask import Flask, Response, abort, jsonify, request, send_file
from redis.exceptions import RedisError

from channels.base import BadHook, Channel, Forbidden
from channels.console import ConsoleChannel
from channels.console_pages import console_pages
from channels.media import BadToken, MediaGone
from channels.types import Hook, Received, StatusUpdate, Turn
from config.bootstrap import Services, bootstrap, check_redis
from config.loader import ConfigError, default_config, load_settings
from config.logs import set_up_logs
from pending.seal import split_button
from workers.presence import Presence
from workers.redis import RedisUnfit
from workers.spool_file import SpoolUnusable

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

log = logging.getLogger(__name__)

#: Bytes a webhook's body may have. Platforms send far less; files come as links.
MAX_BODY = 1_000_000
#: Seconds a platform should wait before it repeats a webhook we could not keep.
RETRY_AFTER = 5
#: The exit code that tells gunicorn not to start another worker: the mistake is the operator's.
APP_LOAD_ERROR = 4


def create_app(services: Services) -> Flask:
    """The WSGI app of one wired process."""
    app = Flask("sayso", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.register_error_handler(RedisError, _redis_away)
    app.register_error_handler(SpoolUnusable, _spool_unusable)
    _add_hooks(app, services)
    _add_media(app, services)
    _add_health(app, services)
    _add_console(app, services)
    return app


def app() -> Flask:
    """The app for a WSGI server, from SAYSO_CONFIG and SAYSO_DATA."""
    set_up_logs()
    try:
        settings = load_settings(default_config())
        services = bootstrap(settings, data=Path(os.environ.get("SAYSO_DATA", ".sayso")))
        check_redis_if_there(services)
    except (ConfigError, RedisUnfit) as exc:
        log.error("web.unusable: %s", exc)
        sys.exit(APP_LOAD_ERROR)
    begin(services)
    return create_app(services)


def begin(services: Services) -> None:
    """What a web process does besides answering, from its fork on: it empties the spool."""
    if services.spool:
        services.spool.watch()


def check_redis_if_there(services: Services) -> None:
    """Refuse a Redis that would lose what we keep. One that is away is no reason to stop: webhooks hear 503."""
    try:
        check_redis(services)
    except RedisError as exc:
        log.warning("redis.away", extra={"reason": type(exc).__name__})


def _add_hooks(app: Flask, services: Services) -> None:
    @app.post("/hooks/<name>")
    @app.post("/hooks/<name>/<path:path>")
    def hook(name: str, path: str = "") -> Response:
        channel = services.channels.get(name) or abort(404)
        received = _receive(channel, _hook_of(services, path))
        for status in received.statuses:
            _note(services, status)
        if received.ignored:
            log.info("hook.ignored", extra={"channel": name, "reason": received.ignored})
        for turn in filter(_is_storable, received.turns):
            if not _accept(services, turn):
                return _try_later("this conversation has too many messages waiting")
        answer = received.answer
        return Response(answer.body, answer.status, content_type=answer.content_type)


def _note(services: Services, status: StatusUpdate) -> None:
    """Log what a platform says of a reply, and keep it with the delivery."""
    kept, code = "", status.error_code or "-"
    if status.delivery:
        kept = services.deliveries.report(status.delivery, status.message_id, status.status, f"error {code}")
    level = logging.WARNING if status.status in ("failed", "undelivered") else logging.INFO
    extra = {"delivery": status.delivery or "-", "status": status.status, "code": code, "kept": kept or "-"}
    log.log(level, "reply.status", extra=extra)


def _hook_of(services: Services, path: str) -> Hook:
    """The request with the URL that the platform was given: behind a proxy the request's own is another."""
    raw = request.environ.get("RAW_URI") or request.environ.get("REQUEST_URI") or request.full_path.rstrip("?")
    return Hook(
        url=services.public_url + str(raw),
        headers=_headers_of(request.environ),
        body=request.get_data(),
        path=path,
        now=time.time(),
    )


def _headers_of(environ: WSGIEnvironment) -> dict[str, str]:
    """The headers under lower-case names. Flask's own view of them costs as much as a signature."""
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


def _is_storable(turn: Turn) -> bool:
    """Whether every field has its type. A payload that bends one would be bent each time the platform repeats it."""
    try:
        turn.to_json()
    except (ValueError, TypeError) as exc:  # its message would repeat the payload
        log.error("turn.malformed", extra={"reason": type(exc).__name__})
        return False
    return True


def _accept(services: Services, turn: Turn) -> bool:
    parts = split_button(turn.tap.data) if turn.tap else None
    door = services.spool or services.mailbox
    accepted = door.accept(turn, tapped=parts[0] if parts else "")
    log.info("turn.accepted", extra={"conversation": turn.conversation.id, "outcome": accepted.outcome})
    return not accepted.refused


def _redis_away(error: RedisError) -> Response:
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
        except MediaGone:
            abort(410)
        except BadToken:
            abort(404)
        shown = mime_type in ("image/png", "image/jpeg", "image/gif", "image/webp")
        response = send_file(
            path, mimetype=mime_type, as_attachment=not shown, download_name=filename or "file", conditional=True
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
        response.headers["Cache-Control"] = "private, max-age=300"
        return response


def _add_health(app: Flask, services: Services) -> None:
    @app.get("/healthz")
    def healthz() -> Response:
        return jsonify(status="ok")

    @app.get("/readyz")
    def readyz() -> tuple[Response, int]:
        try:
            counts = {primary.name: Presence(primary.client).count() for primary in services.primaries}
        except RedisError as exc:
            return jsonify(status="not ready", redis=type(exc).__name__, **spooled()), 503
        ready, shards = all(counts.values()), {"shards": counts} if "" not in counts else {}
        status, more = "ready" if ready else "not ready", {**shards, **spooled()}
        return jsonify(status=status, redis="ok", workers=sum(counts.values()), **more), 200 if ready else 503

    def spooled() -> dict[str, int]:
        return {"spooled": services.spool.count()} if services.spool else {}


def _add_console(app: Flask, services: Services) -> None:
    consoles = [channel for channel in services.channels.values() if isinstance(channel, ConsoleChannel)]
    if consoles:
        app.register_blueprint(console_pages(*consoles))
