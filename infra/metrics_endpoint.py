"""MetricsEndpoint: serves the counts of a command's processes to those who may read them."""

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

#: The variable with the token of readers, and the one with the file that holds it.
TOKEN = "SAYSO_METRICS_TOKEN"  # noqa: S105  # the name of a variable
TOKEN_FILE = "SAYSO_METRICS_TOKEN_FILE"  # noqa: S105


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


class MetricsEndpoint:
    """Serves the counts of all processes of this command, and what `collectors` read.

    One per process.
    """

    def __init__(self, *collectors: Collector, token: str = "") -> None:
        from prometheus_client import CollectorRegistry, multiprocess

        from sayso.infra.metrics import REGISTRY

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
