"""The /metrics endpoint: who may read it, where it listens,
and how the processes of one command count together.

A command that forks processes has one endpoint for all of them:
they count in common files (`sayso.channels.metrics`).
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import hmac
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from flask import Blueprint
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

#: The variable with the folder of the common files, as
#: `sayso.channels.metrics` and prometheus-client call it.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
#: The variable with the token of readers, and the one with the file that holds it.
TOKEN = "SAYSO_METRICS_TOKEN"  # noqa: S105  # the name of a variable
TOKEN_FILE = "SAYSO_METRICS_TOKEN_FILE"  # noqa: S105
#: The variable with the address, where no option gives one.
ADDRESS = "SAYSO_METRICS"
#: Threads that answer readers. One that reads slowly holds none (`sayso.config.server.http`).
READER_THREADS = 2
#: How the folders of common files begin. One that no process used for this many
#: seconds belongs to a killed process.
_PREFIX = "sayso-metrics-"
_LEFT_SECONDS = 60.0


#: Host and port of the endpoint, None for no port of its own.
MetricsAddress = tuple[str, int] | None


class MetricsUnusable(Exception):
    """Raised when the endpoint cannot be served as configured. The message names the cure."""


def read_token() -> str:
    """Return the token that readers must send, "" for none. Raises MetricsUnusable."""
    file = os.environ.get(TOKEN_FILE, "")
    try:
        token = (
            Path(file).read_text(encoding="utf-8") if file else os.environ.get(TOKEN, "")
        ).strip()
    except (OSError, ValueError) as exc:
        if isinstance(exc, OSError):
            reason = exc.strerror
        else:
            reason = "it is not text in UTF-8"
        raise MetricsUnusable(
            f"{TOKEN_FILE}: cannot read {file!r} ({reason}): check the path"
        ) from exc
    if file and not token:
        raise MetricsUnusable(f"{TOKEN_FILE}: {file!r} is empty: write a token into it")
    if not (token.isascii() and token.isprintable()):  # no reader could send it in a header
        cure = "use letters and digits, such as those of `openssl rand -hex 32`"
        raise MetricsUnusable(
            f"{TOKEN_FILE if file else TOKEN}: the token has characters that no header can hold: {cure}"
        )
    return token


def share_counts(address: MetricsAddress, *, forks: bool) -> None:
    """Count in shared files if the parent process does,
    or if this one `forks` and its metrics can be read.

    Call it before `sayso.channels.metrics` is imported, which chooses then where it counts.
    Raises MetricsUnusable.
    """
    is_read = address or os.environ.get(TOKEN) or os.environ.get(TOKEN_FILE)
    if not (os.environ.get(FOLDER) or (forks and is_read)):
        return
    if "sayso.channels.metrics" in sys.modules:
        raise RuntimeError("share_counts must be called before sayso.channels.metrics is imported")
    given = os.environ.get(FOLDER)
    try:
        if not given:
            _remove_left(Path(tempfile.gettempdir()))
            os.environ[FOLDER] = tempfile.mkdtemp(prefix=_PREFIX)
            atexit.register(_remove, os.environ[FOLDER], os.getpid())
        import sayso.channels.metrics  # noqa: F401  # it opens its files
    except OSError as exc:
        if given:
            where = f"{FOLDER}: cannot count in {given!r}"
        else:
            where = "cannot count for --metrics in a temporary folder"
        if given:
            cure = "name a folder that this user may write to"
        else:
            cure = "set TMPDIR to a folder that has room"
        if given and exc.errno == errno.ENOSPC:
            cure = "make room there"
        raise MetricsUnusable(f"{where} ({exc.strerror or exc}): {cure}") from exc


def _remove_left(temporary: Path) -> None:
    """Remove the folders of commands that were killed."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        try:
            info = folder.lstat()
            if (
                info.st_uid == os.getuid()
                and time.time() - info.st_mtime > _LEFT_SECONDS
                and not _is_in_use(folder)
            ):
                shutil.rmtree(folder)
        except OSError:  # another process removes it, too
            continue


def _is_in_use(folder: Path) -> bool:
    for path in folder.glob("*.lock"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forked processes run it, too
        shutil.rmtree(folder, ignore_errors=True)


def listen_for_readers(address: MetricsAddress) -> socket | None:
    """Return a listening socket for the endpoint, None without an address.

    Raises MetricsUnusable and AddressUnusable.
    """
    from sayso.config.server.processes import listen

    token = read_token()
    if address is None:
        return None
    host, port = address
    if not token and not is_loopback(host):
        cure = f"set {TOKEN} or {TOKEN_FILE}, or write --metrics {port} for this machine alone"
        if ":" in host:
            where = f"[{host}]:{port}"
        else:
            where = f"{host}:{port}"
        raise MetricsUnusable(
            f"--metrics {where} can be reached by others, and no token is set: {cure}"
        )
    return listen(host, port, option="--metrics")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class MetricsEndpoint:
    """Serves the counts of all processes of this command, and what `collectors` read.

    One per process.
    """

    def __init__(self, *collectors: Collector, token: str = "") -> None:
        from prometheus_client import CollectorRegistry, multiprocess

        from sayso.channels.metrics import REGISTRY

        self._token = token
        self._registries = [CollectorRegistry(auto_describe=False)]
        for collector in collectors:
            self._registries[0].register(collector)
        if os.environ.get(FOLDER):
            self._registries.append(CollectorRegistry())
            multiprocess.MultiProcessCollector(self._registries[1])
        else:
            self._registries.append(REGISTRY)

    @property
    def counts(self) -> CollectorRegistry:
        """Return what all processes of this command have counted together."""
        return self._registries[1]

    def add(self, collector: Collector) -> None:
        """Report what a collector reads, too."""
        self._registries[0].register(collector)

    @property
    def has_token(self) -> bool:
        """Return whether readers must send a token."""
        return bool(self._token)

    def is_reader(self, authorization: str) -> bool:
        """Return whether this `Authorization` header has the token.

        Without a token every request may read.
        """
        expected = f"Bearer {self._token}".encode()
        return not self._token or hmac.compare_digest(
            authorization.encode("utf-8", "replace"), expected
        )

    def answer(self, authorization: str) -> tuple[str, dict[str, str], bytes]:
        """Return the status, headers and body of the answer to a
        request with this `Authorization` header.
        """
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        if not self.is_reader(authorization):
            plain = {"Content-Type": "text/plain; charset=utf-8", "WWW-Authenticate": "Bearer"}
            return "401 Unauthorized", plain, b"send the token of the metrics\n"
        body = b"".join(map(generate_latest, self._registries))
        return "200 OK", {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}, body

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, as a WSGI app of its own."""
        if environ["REQUEST_METHOD"] != "GET" or environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"only /metrics is here\n"]
        status, headers, body = self.answer(str(environ.get("HTTP_AUTHORIZATION", "")))
        start_response(status, [*headers.items(), ("Content-Length", str(len(body)))])
        return [body]

    def blueprint(self) -> Blueprint:
        """Return /metrics as a page of the Flask app."""
        from flask import Blueprint, Response, request

        blueprint = Blueprint("metrics", __name__)

        @blueprint.get("/metrics")
        def metrics() -> Response:
            status, headers, body = self.answer(request.headers.get("Authorization", ""))
            return Response(body, status, headers)

        return blueprint


def serve_metrics(app: WSGIApplication, listening: socket | None) -> Callable[[], None]:
    """Serve the endpoint on a listening socket in background threads.

    None: do nothing. Call it after a fork.

    Return what ends it. Call that before you close the socket; a process that ends need not.
    """
    if listening is None:
        return lambda: None
    from sayso.config.server.http import WsgiServer

    server = WsgiServer(app, listening, threads=READER_THREADS)
    thread = threading.Thread(target=server.run, name="sayso-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
