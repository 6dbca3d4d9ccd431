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
#: Media types that a browser shows. All others are offered for download.
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
    """Answer 503: what came in was not stored, so the platform must send it again."""
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
    """Add the paths of webhooks. WebhookMiddleware answers those that it stores."""

    @app.post("/hooks/<name>")
    @app.post("/hooks/<name>/<path:path>")
    def webhook(**_: str) -> Response:
        """Raise the error of a webhook that was not stored, NotFound for an unknown channel."""
        raise request.environ.pop(WEBHOOK_ERROR, None) or NotFound


def _add_media(app: Flask, store: MediaFiles) -> None:
    """Add the path of signed links to files."""
    slots = BoundedSemaphore(MAX_DOWNLOADS)

    @app.get("/media/<token>")
    def media(token: str) -> Response:
        release = None
        if store.is_remote:
            if not slots.acquire(blocking=False):
                return _retry_later("too many files are read at once")
            release = slots.release

        download = _Download(store, release)
        try:
            return _answer(store.open_token(token), download)
        except (MediaGone, KeyError):
            download.close()
            abort(410)
        except BadToken:
            download.close()
            abort(404)
        except StoreUnavailable as exc:
            download.close()
            log.error("web.files_away", extra={"reason": exc.reason})
            return _retry_later("the store of files is away")
        except BaseException:
            # Such as a range beyond the end of the file, which Flask answers.
            download.close()
            raise


class _Download:
    """The bytes of a file from a bucket, as the body of an answer. One per request.

    To Flask it looks like a file. The server iterates over it in the thread of the request, so that
    a slow bucket does not block the server's event loop. `release` frees the request's slot among
    MAX_DOWNLOADS; None for a file of this machine, which needs no slot.
    """

    def __init__(self, store: MediaFiles, release: Callable[[], None] | None) -> None:
        self._store = store
        self._release = release
        self._ref = ""
        self._start = 0
        self._file = cast("BinaryIO | None", None)

    def open(self, ref: str) -> BinaryIO | Iterable[bytes]:
        """Return a file of this machine, or the bytes of one that comes over the network."""
        if not self._store.is_remote:
            return self._store.open(ref)
        self._ref = ref
        return self

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


def _answer(linked: LinkedFile, download: _Download) -> Response:
    """Return the file of a link, or the part of it that the request asks for.

    Raises KeyError if the file is gone, and OSError.
    """
    # A range is for the version of the file that If-Range names.
    tag = f'"{linked.ref}"'
    is_same_version = request.headers.get("If-Range", tag) == tag
    if not (_has_simple_range(linked.size) and is_same_version):
        request.environ.pop("HTTP_RANGE", None)
    # Flask fails on a year that is out of range, and these are decided already.
    for header in ("HTTP_IF_MODIFIED_SINCE", "HTTP_IF_RANGE"):
        request.environ.pop(header, None)

    source = download.open(linked.ref)
    response = send_file(
        cast("BinaryIO", source),
        linked.mime_type,
        as_attachment=linked.mime_type not in _SHOWN_TYPES,
        download_name=linked.filename or "file",
        conditional=False,
        etag=False,
    )
    if linked.filename and not linked.filename.isascii():
        response.headers.set(
            "Content-Disposition",
            response.headers["Content-Disposition"].partition(";")[0],
            filename=_ascii_name(linked.filename),
            **{"filename*": f"UTF-8''{quote(linked.filename, safe='')}"},
        )
    if source is download:
        response.response = download
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
    first_byte, _ = parsed.ranges[0]
    return first_byte >= -size


def _ascii_name(filename: str) -> str:
    """Return the file name for receivers that read only ASCII, "file.pdf" for "Отчёт.pdf".

    Flask's would be ".pdf".
    """
    letters = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    stem, dot, ending = letters.rpartition(".")
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
