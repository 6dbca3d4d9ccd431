"""MetricsEndpoint: serves the metrics of a command's processes to readers such as Prometheus.

Readers must send a token if the environment names one.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sayso.infra.metrics_folder import FOLDER

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

#: The variable with the token that readers must send.
TOKEN = "SAYSO_METRICS_TOKEN"  # noqa: S105  # the name of a variable
#: The variable with the path of a file that holds the token. It comes before TOKEN.
TOKEN_FILE = "SAYSO_METRICS_TOKEN_FILE"  # noqa: S105


class MetricsUnusable(Exception):
    """Raised when the endpoint cannot be served as configured. The message names the cure."""


def read_token() -> str:
    """Return the token that readers must send, "" for none. Raises MetricsUnusable."""
    variable = TOKEN
    token = os.environ.get(TOKEN, "").strip()
    file = os.environ.get(TOKEN_FILE, "")
    if file:
        variable = TOKEN_FILE
        token = _read_token_file(file)
    if not (token.isascii() and token.isprintable()):
        cure = "use letters and digits, such as those of `openssl rand -hex 32`"
        raise MetricsUnusable(
            f"{variable}: the token has characters that no header can hold: {cure}"
        )
    return token


def _read_token_file(file: str) -> str:
    """Return the token in a file. Raises MetricsUnusable."""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        reason = "it is not text in UTF-8"
        if isinstance(exc, OSError):
            reason = str(exc.strerror)
        raise MetricsUnusable(
            f"{TOKEN_FILE}: cannot read {file!r} ({reason}): check the path"
        ) from exc
    if not token:
        raise MetricsUnusable(f"{TOKEN_FILE}: {file!r} is empty: write a token into it")
    return token


class MetricsEndpoint:
    """Serves what all processes of this command have counted, and what `collectors` read.

    One per process. A collector reads values from elsewhere, such as Redis, when it is asked.
    `token` is what readers must send, "" for nothing.
    """

    def __init__(self, *collectors: Collector, token: str = "") -> None:
        from prometheus_client import CollectorRegistry, multiprocess

        from sayso.infra.metrics import REGISTRY

        self._token = token
        self._collected = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self.add(collector)
        #: What all processes of this command have counted together.
        self.counts: CollectorRegistry = REGISTRY
        if os.environ.get(FOLDER):
            self.counts = CollectorRegistry()
            multiprocess.MultiProcessCollector(self.counts)

    def add(self, collector: Collector) -> None:
        """Serve what a collector reads, too."""
        self._collected.register(collector)

    @property
    def has_token(self) -> bool:
        """Return whether readers must send a token."""
        return bool(self._token)

    def is_reader(self, authorization: str) -> bool:
        """Return whether an `Authorization` header has the token. Without a token, all may read."""
        if not self._token:
            return True
        expected = f"Bearer {self._token}".encode()
        return hmac.compare_digest(authorization.encode("utf-8", "replace"), expected)

    def answer(self, authorization: str) -> tuple[str, dict[str, str], bytes]:
        """Return the status, headers and body of an answer.

        `authorization` is the `Authorization` header of the request, "" for none.
        """
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        if not self.is_reader(authorization):
            plain = {"Content-Type": "text/plain; charset=utf-8", "WWW-Authenticate": "Bearer"}
            return "401 Unauthorized", plain, b"send the token of the metrics\n"
        body = generate_latest(self._collected) + generate_latest(self.counts)
        return "200 OK", {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}, body

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, as a WSGI app that serves nothing else."""
        if environ["REQUEST_METHOD"] != "GET" or environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"only /metrics is here\n"]
        status, headers, body = self.answer(str(environ.get("HTTP_AUTHORIZATION", "")))
        start_response(status, [*headers.items(), ("Content-Length", str(len(body)))])
        return [body]
