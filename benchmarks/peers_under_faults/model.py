"""StrictModel: a server of OpenAI's chat completions that does what a careful model does, and no more.

It refuses a history that OpenAI would refuse: an open call, a result without its call, a second
result. It believes its history: what it does not see done, denied or unclear, it asks for again.

It understands three requests: "Refund order 17.", "Refund order 17, then order 18." (one call after
the other) and "Refund orders 17 and 18 at once." (two calls in one answer).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Literal, Self

#: A message, a call or a request as OpenAI's API has it.
Json = dict[str, Any]
#: What a history says about an order. "" is nothing that ends the matter.
Outcome = Literal["done", "not done", "unclear", "waiting", ""]

#: How the model's own words begin. The bot's own words never begin so.
SIGNATURE = "As you asked"
#: What the model says to anything else.
OPENING_HOURS = f"{SIGNATURE}: we are open from 9 to 5."
#: After so many calls for one order a real model gives up, too.
MOST_CALLS = 6
TOOL = "refund_order"

_REQUEST = re.compile(r"\brefund orders? \d", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_DENIED = re.compile(
    r"denied|reject|declin|not approved|not execute|did not allow|cancel|no longer|expired|not run",
    re.IGNORECASE,
)
_UNCLEAR = re.compile(r"cannot tell|may (already )?have|unknown|interrupted", re.IGNORECASE)
_JSON_OUTCOMES: dict[str, Outcome] = {
    "done": "done",
    "denied": "not done",
    "failed": "not done",
    "expired": "not done",
    "replaced": "not done",
    "dropped": "not done",
    "cancelled": "not done",
    "unknown": "unclear",
    "waiting": "waiting",
}


class BadHistory(Exception):
    """Raised for a history that OpenAI would refuse. The message says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error. Status 0 hangs up without an answer."""

    status: int
    headers: dict[str, str]


#: Called with each request before it is answered. It may wait, kill, or return a failure.
Watcher = Callable[[list[Json]], Failure | None]


def check(messages: list[Json]) -> None:
    """Raise BadHistory unless each call has exactly one result, right after the answer with it."""
    missing: set[str] = set()
    known: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call not in missing:
                rule = "has a second result" if call in known else "is no call before its result"
                raise BadHistory(f"{call!r} {rule}")
            missing.discard(call)
            continue
        if missing:
            raise BadHistory(
                f"An assistant message with 'tool_calls' lacks results: {sorted(missing)}"
            )
        calls = [call["id"] for call in message.get("tool_calls") or []]
        if known & set(calls) or len(set(calls)) < len(calls):
            raise BadHistory(f"A call id is used twice: {calls}")
        missing = set(calls)
        known |= missing
    if missing:
        raise BadHistory(f"An assistant message with 'tool_calls' lacks results: {sorted(missing)}")


def answer(messages: list[Json]) -> Json:
    """Return the model's message: the next calls, or what became of the request. Raise BadHistory."""
    check(messages)
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    requests = [at for at in users if _REQUEST.search(text_of(messages[at]))]
    if not requests or (users[-1] != requests[-1] and "?" in text_of(messages[users[-1]])):
        return {"role": "assistant", "content": OPENING_HOURS}
    since = messages[requests[-1] :]
    lines = []
    for step in _steps(text_of(since[0])):
        results = [(order, *_latest(order, since)) for order in step]
        wanted = [order for order, outcome, _ in results if outcome == ""]
        tired = any(_calls(order, since) >= MOST_CALLS for order in wanted)
        if wanted and not tired:
            return {"role": "assistant", "content": None, "tool_calls": _propose(wanted, messages)}
        lines += [_line(order, outcome, content) for order, outcome, content in results]
        if any(outcome != "done" for _, outcome, _ in results):
            break
    return {"role": "assistant", "content": f"{SIGNATURE}: {' '.join(lines)}"}


def text_of(message: Json) -> str:
    """Return the text of a message, which may have parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


def _steps(request: str) -> list[list[int]]:
    """Return the orders of a request, step by step."""
    found = _REQUEST.search(request)
    numbers = [int(number) for number in _NUMBER.findall(request[found.start() :] if found else "")]
    if "at once" in request:
        return [numbers]
    return [[number] for number in numbers]


def _propose(orders: list[int], messages: list[Json]) -> list[Json]:
    """Return a call for each order, with ids that this history does not have.

    The ids do not hold the order: otherwise a changed order in a store would also change the id.
    """
    made = sum(len(message.get("tool_calls") or []) for message in messages)
    return [
        {
            "id": f"call_{made + number}",
            "type": "function",
            "function": {"name": TOOL, "arguments": json.dumps({"order": order})},
        }
        for number, order in enumerate(orders)
    ]


def _made(order: int, messages: list[Json]) -> Iterator[str]:
    """Yield the ids of the calls for an order."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            if json.loads(call["function"]["arguments"] or "{}").get("order") == order:
                yield call["id"]


def _calls(order: int, messages: list[Json]) -> int:
    return len(list(_made(order, messages)))


def _latest(order: int, messages: list[Json]) -> tuple[Outcome, str]:
    """Return what the latest result for an order says, and its text."""
    results = {
        message["tool_call_id"]: text_of(message)
        for message in messages
        if message["role"] == "tool"
    }
    said = [results[call] for call in _made(order, messages) if call in results]
    if not said:
        return "", ""
    return outcome_of(said[-1], order), said[-1]


def outcome_of(content: str, order: int) -> Outcome:
    """Return what the result of a call says about its order."""
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if isinstance(value, dict) and str(value.get("outcome")) in _JSON_OUTCOMES:
        return _JSON_OUTCOMES[str(value["outcome"])]
    if f"Refunded order {order}." in content:
        return "done"
    if _UNCLEAR.search(content):
        return "unclear"
    return "not done" if _DENIED.search(content) else ""


def _line(order: int, outcome: Outcome, content: str) -> str:
    if outcome == "done":
        return f"order {order} is refunded."
    if outcome == "unclear":
        return f"I cannot tell whether order {order} is refunded."
    if outcome == "waiting":
        return f"order {order} waits for an answer."
    return f"order {order} is not refunded ({content[:300]})."


class StrictModel:
    """The server, from `with` to its end. `watch` is called before each answer; `requests` holds all histories."""

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch
        self.requests: list[list[Json]] = []
        self.refused: list[str] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    model: StrictModel

    def handle_error(self, *_: object) -> None:
        """Ignore a client that is gone: the harness kills clients."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = json.loads(body)
        model = self.server.model
        messages = request["messages"]
        model.requests.append(messages)
        failure = model.watch(messages)
        if failure is not None:
            self._fail(failure)
            return
        try:
            message = answer(messages)
        except BadHistory as exc:
            model.refused.append(str(exc))
            self._send(400, json.dumps({"error": _error(400, str(exc))}))
            return
        if request.get("stream"):
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in _chunks(message))
            self._send(200, f"{events}data: [DONE]\n\n", "text/event-stream")
        else:
            self._send(200, json.dumps(_completion(message)))

    def _fail(self, failure: Failure) -> None:
        if not failure.status:
            self.close_connection = True
            return
        error = {"error": _error(failure.status, "the model is not available")}
        self._send(failure.status, json.dumps(error), **failure.headers)

    def _send(
        self, status: int, body: str, content_type: str = "application/json", **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body.encode())))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _error(status: int, message: str) -> Json:
    return {"message": message, "type": "invalid_request_error", "code": str(status)}


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": int(time.time()), "model": "strict"}


_USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


def _completion(message: Json) -> Json:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {**_head("chat.completion"), "choices": [choice], "usage": _USAGE}


def _chunks(message: Json) -> Iterator[Json]:
    """Yield the same answer as a stream."""
    delta = dict(message)
    if message.get("tool_calls"):
        numbered = enumerate(message["tool_calls"])
        delta["tool_calls"] = [{**call, "index": number} for number, call in numbered]
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    head = _head("chat.completion.chunk")
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    yield {**head, "choices": [], "usage": _USAGE}
