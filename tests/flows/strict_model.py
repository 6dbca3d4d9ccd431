"""StrictModel: a model server that works for its user, and refuses a history that a vendor would refuse."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from sayso.agent import BelievingModel, Message, Role, ToolCall
from sayso.agent.providers.testing import InvalidHistory
from tests.agent.providers.api import Called, Refused
from tests.agent.providers.openai_api import OpenAIApi

_WISH = re.compile(r"do (\w+)")
#: How the server fails, by the word behind the wish: an HTTP status, a connection that is cut, or no answer.
FAILURES = ("400", "429", "500", "cut", "hang")
#: Seconds for which a model that hangs holds a request.
HANG_SECONDS = 30.0
SLOW_SECONDS = 2.0


class StrictModel:
    """An OpenAI server in a `with` block. "do b7" is paid, noted and booked, in this order.

    "do b7 500" fails with this status once the payment is decided; the words are those of FAILURES.
    "do b7 slow" takes SLOW_SECONDS for each answer from then on.
    `refused` are the histories that no vendor would take, and `asked` counts the requests by bill.
    """

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.asked: Counter[str] = Counter()
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | str:
        """Return the step of the answer to a request, or the name of a failure. Raises InvalidHistory."""
        messages = _read(body["messages"])
        text = next(
            each.content
            for each in reversed(messages)
            if each.role is Role.USER and "do b" in each.content
        )
        wish = _WISH.search(text)
        bill = wish[1] if wish else ""
        self.asked[bill] += 1
        failure = text.rpartition(" ")[2]
        if messages[-1].role is Role.TOOL:
            if failure in FAILURES:
                return failure
            if failure == "slow":
                time.sleep(SLOW_SECONDS)
        calls = [ToolCall(name, {"bill": bill}) for name in ("pay", "note", "book")]
        model = BelievingModel({f"do {bill}": calls})
        completion = asyncio.run(
            model.acomplete(model="m", system_prompt="", messages=messages, tools=())
        )
        said = completion[0]
        if said.tool_calls:
            made = [
                {"name": call.tool_name, "arguments": call.parameters, "id": call.id}
                for call in said.tool_calls
            ]
            return {"calls": made}
        return {"text": said.content}


def _read(messages: Sequence[dict[str, Any]]) -> list[Message]:
    """Return the messages of a request. A result has the name of its call."""
    names: dict[str, str] = {}
    read = []
    for each in messages:
        calls = []
        for call in each.get("tool_calls") or ():
            function = call["function"]
            names[call["id"]] = function["name"]
            calls.append(ToolCall(function["name"], json.loads(function["arguments"]), call["id"]))
        role = Role.SYSTEM if each["role"] == "developer" else Role(each["role"])
        content = each.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        id_ = each.get("tool_call_id", "")
        read.append(Message(role, content, tuple(calls), id_, names.get(id_, "")))
    return read


class _Server(ThreadingHTTPServer):
    """Serves in threads. Workers that are killed cut their connections, which is no error here."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Print nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    model: StrictModel
    _api = OpenAIApi()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        called = Called(
            self.path, {name.lower(): value for name, value in self.headers.items()}, body
        )
        try:
            self._api.check(called)
            step = self.model.answer(body)
        except (InvalidHistory, Refused) as exc:
            self.model.refused.append(f"{exc}: {json.dumps(body['messages'])[-1500:]}")
            self._send(
                400, {"error": {"message": str(exc), "type": "invalid_request_error", "code": None}}
            )
            return
        if step == "cut":
            self.close_connection = True
            self.connection.close()
        elif step == "hang":
            time.sleep(HANG_SECONDS)
            self.close_connection = True
        elif isinstance(step, str):
            self._send(int(step), {"error": {"message": "no", "type": "x", "code": "x"}})
        else:
            self._send(200, self._api.whole(called, step))

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the worker was killed
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""
