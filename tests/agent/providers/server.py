"""The server of the fake APIs. `python -m tests.agent.providers.server` prints its port and runs until its input ends.

POST /_script sets the next answers, GET /_calls returns the requests. A step may have a `status` with `message`,
`code` and `headers`; `raw` as the body; `cut` "before" or "mid"; `delay` in seconds; `events`, after which a stream
ends as if it were complete; `fails`, a refusal as an event inside a stream; `context`, the request's length in
characters above which it is refused as too long; the rest is in tests.agent.providers.api.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.agent.providers.anthropic_api import AnthropicApi
from tests.agent.providers.api import Api, Called, Refused
from tests.agent.providers.gemini_api import CachedContentsApi, GeminiApi
from tests.agent.providers.openai_api import OpenAIApi
from tests.agent.providers.responses_api import ResponsesApi

APIS: dict[str, Api] = {
    "/v1/chat/completions": OpenAIApi(),
    "/local/v1/chat/completions": OpenAIApi(key=False),
    "/v1/responses": ResponsesApi(),
    "/v1/messages": AnthropicApi(),
    "/v1beta/models/": GeminiApi(),
    "/v1beta/cachedContents": CachedContentsApi(),
}
steps: deque[dict[str, Any]] = deque()
calls: list[Called] = []
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Handles one connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with lock:
            self._send(200, json.dumps([asdict(each) for each in calls]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
        if self.path == "/_script":
            with lock:
                calls.clear()
                steps.clear()
                steps.extend(body)
            self._send(200, "{}")
            return
        with suppress(ConnectionError):  # the client has stopped waiting
            self._answer(
                Called(
                    self.path, {name.lower(): value for name, value in self.headers.items()}, body
                )
            )

    def _answer(self, called: Called) -> None:
        api = next(each for path, each in APIS.items() if called.path.startswith(path))
        with lock:
            calls.append(called)
        try:
            api.check(called)
            with lock:
                step = (
                    steps.popleft() if steps else {"status": 500, "message": "the script has ended"}
                )
            self._play(api, called, step)
        except Refused as refused:
            self._send(
                refused.status, json.dumps(api.error(refused)), getattr(refused, "headers", {})
            )

    def _play(self, api: Api, called: Called, step: dict[str, Any]) -> None:
        time.sleep(step.get("delay", 0))
        if len(json.dumps(called.body)) > step.get("context", sys.maxsize):
            with lock:
                steps.appendleft(step)  # for a shorter request
            raise api.too_long(len(json.dumps(called.body)), step["context"])
        if step.get("cut") == "before":
            self._hang_up()
        elif "status" in step:
            refused = Refused(step["status"], step.get("message", "no"), step.get("code", ""))
            self._send(
                step["status"],
                step.get("raw") or json.dumps(api.error(refused)),
                step.get("headers", {}),
            )
        elif "raw" in step:
            self._send(200, step["raw"])
        elif api.streams(called):
            events = list(api.pieces(called, step))[: step.get("events")]
            if "fails" in step:
                events = [*events[: len(events) // 2], api.failure(Refused(**step["fails"]))]
            self._stream(events, cut=step.get("cut") == "mid", pause=step.get("pause", 0))
        else:
            self._send(200, json.dumps(api.whole(called, step)), cut=step.get("cut") == "mid")

    def _send(
        self, status: int, body: str, headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self._hang_up()

    def _stream(self, pieces: list[str], *, cut: bool, pause: float) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces[: len(pieces) // 2] if cut else pieces:
            data = piece.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
            time.sleep(pause)
        if cut:
            self._hang_up()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until standard input is closed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
