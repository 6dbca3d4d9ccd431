"""A model server in this process: it answers as a script says, and records the body of each
request.

It speaks the APIs that `tests.agent.providers.server` speaks, whole and as a stream. Bots reach it
over HTTP with the vendors' own libraries, so what it records is what a vendor would be sent.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, Self

from typing_extensions import override

from tests.agent.providers import server
from tests.agent.providers.api import Api, Called, Refused

#: The API of each vendor below the recorder's URL.
PATHS = {"openai": "/local/v1", "openai-responses": "/v1", "anthropic": "", "gemini": ""}
#: What the model answers beside the conversation, such as a summary.
SIDE_ANSWER: dict[str, Any] = {
    "text": "Ada asked for orders and deliveries. Order 1007 was sent on Tuesday.",
}

#: One answer of the model, as in `tests.agent.providers.server`.
Step = dict[str, Any]


@dataclass(slots=True)
class ModelRecorder:
    """Answers the requests of bots, from `with` to its end. `bodies` are those of the requests, in
    order.

    A request without tools is one beside the conversation: it gets the `side_answer`, and its body
    is also in `side_bodies`. `model` answers when the script has ended.
    """

    bodies: list[dict[str, Any]] = field(default_factory=list)
    side_bodies: list[dict[str, Any]] = field(default_factory=list)
    model: Callable[[dict[str, Any]], Step] | None = None
    side_answer: Step = field(default_factory=lambda: SIDE_ANSWER)
    _steps: deque[Step] = field(default_factory=deque)
    _server: _Server | None = None

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.recorder = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server
        self._server.shutdown()
        self._server.server_close()

    def url(self, vendor: str) -> str:
        """Return the base URL of a vendor's API."""
        assert self._server
        return f"http://127.0.0.1:{self._server.server_port}{PATHS[vendor]}"

    def script(self, *steps: Step) -> None:
        """Add the next answers of the conversation. Each request with tools takes one."""
        self._steps.extend(steps)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Record a request and return its answer. Raises Refused when the script has ended."""
        self.bodies.append(body)
        if not body.get("tools"):
            self.side_bodies.append(body)
            return self.side_answer
        if self._steps:
            return self._steps.popleft()
        if self.model is None:
            raise Refused(400, "the script has ended")
        return self.model(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    recorder: ModelRecorder


class _Handler(server.Handler):
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    @override
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
        headers = {name.lower(): value for name, value in self.headers.items()}
        called = Called(self.path, headers, body)
        api: Api = next(each for path, each in server.APIS.items() if called.path.startswith(path))
        with suppress(ConnectionError):  # the client has stopped waiting
            try:
                api.check(called)
                self._play(api, called, self.server.recorder.answer(body))
            except Refused as refused:
                self._send(refused.status, json.dumps(api.error(refused)))
