"""The Flask app of a web process: webhooks, links to files, health checks, platforms' pages."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import BoundedSemaphore
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from flask import Blueprint, Flask, Response, abort, jsonify, request, send_file
from redis.exceptions import RedisError
from werkzeug.exceptions import NotFound
from werkzeug.http import parse_range_header

from sayso.channels.base import Channel, NotStored, Overloaded, StoreReceived
from sayso.channels.inbound_limits import MAX_WEBHOOK_BYTES
from sayso.channels.media_store import BadToken, LinkedFile, MediaFiles, MediaGone
from sayso.channels.setup import BOT_HEADER
from sayso.channels.web.local import is_local
from sayso.channels.web.pages import add_error_pages
from sayso.channels.web.webhooks import WEBHOOK_ERROR, AnswerForm, WebhookMiddleware
from sayso.infra.records import OtherVersion
from sayso.infra.storage.objects import StoreUnavailable

#: A health check. Returns its JSON, and whether all is well.
HealthCheck = Callable[[], tuple[Mapping[str, Any], bool]]

#: Seconds after which a platform should repeat a webhook that was not stored.
RETRY_AFTER = 5
#: How many files one process reads from a bucket at a time. A bucket that hangs must not occupy the
#: threads that webhooks need.
MAX_DOWNLOADS = 8
_READ_BYTES = 256 * 1024
#: Media types that a browser shows. All others are offered for download: they could run scripts or
#: open programs.
_SHOWN_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

log = logging.getLogger(__name__)


def create_app(
    channels: Mapping[str, Channel],
    store: StoreReceived,
    media: MediaFiles,
    *,
    readiness: HealthCheck,
    health: HealthCheck,
    public_url: str,
    pages: Iterable[Blueprint],
    answer_form: AnswerForm | None = None,
    bot_id: str = "",
    is_operator: Callable[[str], bool] = lambda _: False,
) -> Flask:
    """Return the WSGI app of one process.

    * `channels`: the channels that receive webhooks, by name.
    * `store`: stores what came in, before the platform gets its answer.
    * `media`: the files to which signed links lead.
    * `readiness`, `health`: the checks behind /readyz and /healthz?full.
    * `public_url`: the URL at which platforms and browsers reach the bot.
    * `pages`: the web pages of platforms that have some.
    * `answer_form`: opens and checks forms. Without it a tap that asks for a form is a turn like
      any other.
    * `bot_id`: shown by health checks, so that `sayso doctor` can tell this bot from another.
    * `is_operator`: whether an `Authorization` header is that of an operator. Others see only the
      status of a health check, unless they are on this machine.
    """
    app = Flask("sayso", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_WEBHOOK_BYTES
    # Flask would redirect a path with a doubled slash, and a redirected webhook comes again as GET,
    # without its form.
    app.url_map.merge_slashes = False
    app.register_error_handler(NotStored, _not_stored)
    app.register_error_handler(RedisError, _not_stored)
    app.register_error_handler(OtherVersion, _not_stored)
    app.wsgi_app = WebhookMiddleware(  # type: ignore[method-assign]  # as Flask's manual says
        app.wsgi_app,
        channels,
        store,
        public_url=public_url,
        answer_form=answer_form,
    )
    add_error_pages(app)
    _add_webhooks(app)
    _add_media(app, media)
    _add_health(app, readiness, health, bot_id, is_operator)
    for blueprint in pages:
        app.register_blueprint(blueprint)
    return app


def _not_stored(error: Exception) -> Response:
    """Answer 503: what came in was not stored, so the platform must send it again.

    `error` is NotStored, RedisError or OtherVersion. The last one is raised during an upgrade, for
    a stored record of another release: this process cannot read it, but others can.
    """
    # A NotStored of this kind is no fault of the storage, so it is not logged as one.
    if isinstance(error, Overloaded):
        return _retry_later(str(error))

    detail = str(error)
    if isinstance(error, RedisError):
        # The message of a Redis error may hold its address.
        detail = type(error).__name__
    log.error("web.storage_down", extra={"reason": detail})
    return _retry_later("storage is away")


def _retry_later(reason: str) -> Response:
    """Answer 503 with the reason, and when to try again."""
    headers = {"Retry-After": str(RETRY_AFTER)}
    return Response(f"{reason}, try again\n", 503, headers, content_type="text/plain")


def _add_webhooks(app: Flask) -> None:
    """Add the paths of webhooks.

    WebhookMiddleware answers the webhooks that it has stored. It passes on anything else with its
    error, so that the error handlers of Flask answer.
    """

    @app.post("/hooks/<name>")
    @app.post("/hooks/<name>/<path:path>")
    def webhook(**_: str) -> Response:
        """Raise the error of a webhook that was not stored, NotFound for an unknown channel."""
        error = request.environ.pop(WEBHOOK_ERROR, None)
        if error is None:
            raise NotFound
        raise error


def _add_media(app: Flask, store: MediaFiles) -> None:
    """Add the path of signed links to files."""
    slots = BoundedSemaphore(MAX_DOWNLOADS)

    def answer_from_disk(token: str) -> Response:
        """Answer with a file of this machine."""
        linked = store.open_token(token)
        return _answer(linked, store.open(linked.ref))

    def answer_from_bucket(token: str) -> Response:
        """Answer with a file of the bucket, which holds one of the slots until it is sent."""
        # Taken before the link is opened: that asks the bucket for the size of the file.
        if not slots.acquire(blocking=False):
            return _retry_later("too many files are read at once")
        try:
            linked = store.open_token(token)
            return _answer(linked, _Download(store, linked.ref, slots.release))
        except BaseException:
            # Such as a range beyond the end of the file, which Flask answers.
            slots.release()
            raise

    @app.get("/media/<token>")
    def media(token: str) -> Response:
        try:
            if store.is_remote:
                return answer_from_bucket(token)
            return answer_from_disk(token)
        except (MediaGone, KeyError):
            abort(410)
        except BadToken:
            abort(404)
        except StoreUnavailable as exc:
            log.error("web.files_away", extra={"reason": exc.reason})
            return _retry_later("the store of files is away")


class _Download:
    """The bytes of a file from a bucket, as the body of an answer. One per request.

    The server iterates over it in the thread of the request, so that a slow bucket does not block
    the server's event loop. It has what Flask's `make_conditional` needs of a file to send a part
    of it: `seekable`, `seek` and `tell`. `release` frees the request's slot among MAX_DOWNLOADS.
    """

    def __init__(self, store: MediaFiles, ref: str, release: Callable[[], None]) -> None:
        self._store = store
        self._ref = ref
        #: None once the slot is free.
        self._release: Callable[[], None] | None = release
        self._start = 0
        #: None before the first read.
        self._file: BinaryIO | None = None

    def seekable(self) -> bool:
        """Return True: `seek` works before the first read."""
        return True

    def seek(self, start: int) -> None:
        """Begin at this byte."""
        self._start = start

    def tell(self) -> int:
        """Return where the first read begins."""
        return self._start

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._file is None:
            self._file = self._store.open(self._ref, self._start)
        block = self._file.read(_READ_BYTES)
        if not block:
            raise StopIteration
        return block

    def close(self) -> None:
        """Close the file, and free the slot. A second call does nothing."""
        release = self._release
        self._release = None
        if self._file:
            self._file.close()
        if release:
            release()


def _answer(linked: LinkedFile, content: BinaryIO | _Download) -> Response:
    """Return the file of a link, or the part of it that the request asks for.

    `content` is the file, at its beginning. The answer closes it.
    """
    # A range is for the version of the file that If-Range names.
    tag = f'"{linked.ref}"'
    is_same_version = request.headers.get("If-Range", tag) == tag
    if not (_has_simple_range(linked.size) and is_same_version):
        request.environ.pop("HTTP_RANGE", None)
    # Flask fails on a date whose year is out of range, and neither header is needed any more:
    # If-Range was decided above, and an answer without Last-Modified is never too old for
    # If-Modified-Since.
    for header in ("HTTP_IF_MODIFIED_SINCE", "HTTP_IF_RANGE"):
        request.environ.pop(header, None)

    response = send_file(
        cast("BinaryIO", content),
        linked.mime_type,
        as_attachment=linked.mime_type not in _SHOWN_TYPES,
        download_name=linked.filename or "file",
        conditional=False,  # made conditional below, when the length and the ETag are known
        etag=False,
    )
    if linked.filename and not linked.filename.isascii():
        response.headers.set(
            "Content-Disposition",
            response.headers["Content-Disposition"].partition(";")[0],
            filename=_ascii_name(linked.filename),
            **{"filename*": f"UTF-8''{quote(linked.filename, safe='')}"},
        )
    if isinstance(content, _Download):
        # `send_file` wraps a file so that the server may read it in its event loop.
        response.response = content
    response.content_length = linked.size
    # No Last-Modified: it would show when another person sent the same file.
    response.set_etag(linked.ref)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response.headers["Cache-Control"] = "private, max-age=300"
    response.make_conditional(request.environ, accept_ranges=True, complete_length=linked.size)
    return response


def _has_simple_range(size: int) -> bool:
    """Return whether the request asks for one range of bytes that a file of this size has.

    A server may ignore any range (RFC 9110, 14.2). Flask would refuse several ranges, and more
    bytes from the end than the file has, so it gets only a simple range.
    """
    parsed = parse_range_header(request.headers.get("Range", ""))
    if parsed is None or parsed.units != "bytes" or len(parsed.ranges) != 1:
        return False
    # A negative one counts from the end of the file.
    first_byte, _ = parsed.ranges[0]
    return first_byte >= -size


def _ascii_name(filename: str) -> str:
    """Return the file name for receivers that read only ASCII, "file.pdf" for "Отчёт.pdf".

    Flask's would be ".pdf".
    """
    letters = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    stem, dot, ending = letters.rpartition(".")
    if not dot:
        stem = letters
        ending = ""
    if stem.strip(" ._-"):
        return letters
    return f"file{dot}{ending}"


def _add_health(
    app: Flask,
    readiness: HealthCheck,
    health: HealthCheck,
    bot_id: str,
    is_operator: Callable[[str], bool],
) -> None:
    """Add the paths of health checks. The parameters are those of `create_app`."""

    def answer(check: HealthCheck) -> tuple[Response, int, dict[str, str]]:
        report, is_well = check()
        authorization = request.headers.get("Authorization", "")
        if not (is_local(request) or is_operator(authorization)):
            # The rest has paths, counts and names of channels.
            report = {"status": report["status"]}
        status = 200 if is_well else 503
        return jsonify(report), status, {BOT_HEADER: bot_id}

    def is_alive() -> tuple[Mapping[str, Any], bool]:
        """Say that this process answers. No other check of it is needed."""
        return {"status": "ok"}, True

    @app.get("/healthz")
    def healthz() -> tuple[Response, int, dict[str, str]]:
        if "full" in request.args:
            return answer(health)
        return answer(is_alive)

    @app.get("/readyz")
    def readyz() -> tuple[Response, int, dict[str, str]]:
        return answer(readiness)
