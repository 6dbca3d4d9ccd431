"""The /metrics endpoint: who may read it, where it listens, and how the processes of one command count together.

A command that forks processes has one endpoint for all of them. They count in common files, as prometheus-client's
multiprocess mode does. Each process has its own file, and the successor of a dead process takes over its file, so that
no count falls and the number of files stays that of the processes.
"""

from __future__ import annotations

import atexit
import fcntl
import hmac
import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from flask import Blueprint
    from prometheus_client.registry import Collector

#: The variable with the folder of the common files, as prometheus-client calls it.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
#: The variable with the token of readers, and the one with the file that holds it.
TOKEN, TOKEN_FILE = "SAYSO_METRICS_TOKEN", "SAYSO_METRICS_TOKEN_FILE"
#: The variable with the address, where no option gives one.
ADDRESS = "SAYSO_METRICS"
#: Seconds that a reader may take for its request.
REQUEST_SECONDS = 10.0


#: Host and port of the endpoint, None for no port of its own.
MetricsAddress = tuple[str, int] | None


class MetricsUnusable(Exception):
    """Raised when the endpoint cannot be served as configured. The message names the cure."""


def read_token() -> str:
    """Return the token that readers must send, "" for none. Raises MetricsUnusable."""
    file = os.environ.get(TOKEN_FILE, "")
    try:
        token = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get(TOKEN, "")
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text in UTF-8"
        raise MetricsUnusable(f"{TOKEN_FILE}: cannot read {file!r} ({reason}): check the path") from exc
    if file and not token:
        raise MetricsUnusable(f"{TOKEN_FILE}: {file!r} is empty: write a token into it")
    return token


def share_counts(address: MetricsAddress, *, forks: bool) -> None:
    """Let this process count in common files, if its parent does, or if it `forks` and anybody may read what it counts.

    Call it before `sayso.channels.metrics` is imported: prometheus-client chooses then where it counts.
    """
    is_read = address or os.environ.get(TOKEN) or os.environ.get(TOKEN_FILE)
    if not (os.environ.get(FOLDER) or (forks and is_read)):
        return
    if "sayso.channels.metrics" in sys.modules:
        raise RuntimeError("share_counts must be called before sayso.channels.metrics is imported")
    if not os.environ.get(FOLDER):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="sayso-metrics-")
        atexit.register(_remove, os.environ[FOLDER], os.getpid())
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(_ProcessNumber(Path(os.environ[FOLDER])))


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forked processes run it, too
        shutil.rmtree(folder, ignore_errors=True)


class _ProcessNumber:
    """Returns the number of this process: the lowest that no other live process has, held by a file lock."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pid, self._number = folder, 0, 0

    def __call__(self) -> int:
        if self._pid != os.getpid():
            self._number, self._pid = self._take(), os.getpid()
        return self._number

    def _take(self) -> int:
        for number in itertools.count():
            file = os.open(self._folder / f"{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                return number  # the file stays open for as long as the process lives
        raise AssertionError("unreachable")


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
        raise MetricsUnusable(f"--metrics {host}:{port} can be reached by others, and no token is set: {cure}")
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
    """Answers readers with what all processes of this command count, and what `collectors` read. One per process."""

    def __init__(self, *collectors: Collector, token: str = "") -> None:
        from prometheus_client import CollectorRegistry, multiprocess

        from sayso.channels.metrics import REGISTRY

        self._token, self._registries = token, [CollectorRegistry(auto_describe=False)]
        for collector in collectors:
            self._registries[0].register(collector)
        if os.environ.get(FOLDER):
            self._registries.append(CollectorRegistry())
            multiprocess.MultiProcessCollector(self._registries[1])
        else:
            self._registries.append(REGISTRY)

    @property
    def has_token(self) -> bool:
        """Return whether readers must send a token."""
        return bool(self._token)

    def answer(self, authorization: str) -> tuple[str, dict[str, str], bytes]:
        """Return status, headers and body for a request with this `Authorization` header."""
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        expected = f"Bearer {self._token}".encode()
        if self._token and not hmac.compare_digest(authorization.encode("utf-8", "replace"), expected):
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


class _Handler(WSGIRequestHandler):
    """Logs no request, and waits no longer than REQUEST_SECONDS for one."""

    timeout = REQUEST_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each reader. It ends with the process."""

    daemon_threads = True


def serve_metrics(app: WSGIApplication, listening: socket | None) -> None:
    """Serve the endpoint on a listening socket, if any, in threads, until the process ends. Call it after a fork."""
    if listening is None:
        return
    server = _Server(listening.getsockname()[:2], _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.server_name, server.server_port = listening.getsockname()[:2]
    server.setup_environ()
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name="sayso-metrics", daemon=True).start()
