"""What all fake platforms share: requests, responses, and the log of what arrived.

A fake answers one HTTP request at a time: it gets a `RecordedRequest`, checks it as the platform
would, stores what it accepts in the `RequestLog` that all fakes share, and returns a
`FakeResponse`. A test scripts failures in the same log, and reads the log afterwards.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

#: The body of an answer that has nothing to tell but success.
ACCEPTED = {"ok": True}


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One HTTP request to a fake platform."""

    method: str
    #: Path and query, without the prefix of the platform: `/v1/Content`, not `/twilio/v1/Content`.
    path: str
    #: The headers, with names in lower case.
    headers: dict[str, str]
    body: bytes

    def at(self, path: str) -> RecordedRequest:
        """Return the same request with another path."""
        return replace(self, path=path)

    @property
    def route(self) -> str:
        """The path without its query."""
        return urlsplit(self.path).path

    @property
    def form(self) -> dict[str, list[str]]:
        """The query and form fields, with all values of repeated ones."""
        fields: dict[str, list[str]] = {}
        pairs = parse_qsl(urlsplit(self.path).query, keep_blank_values=True)
        if "form-urlencoded" in self.headers.get("content-type", ""):
            pairs += parse_qsl(self.body.decode(), keep_blank_values=True)
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return fields

    @property
    def params(self) -> dict[str, Any]:
        """The parameters from query, form, JSON or multipart. JSON inside a field is not parsed.

        If a field of a query or form is repeated, its last value counts. Files are left out.
        """
        content_type = self.headers.get("content-type", "")
        params: dict[str, Any] = {name: values[-1] for name, values in self.form.items()}
        if "json" in content_type:
            params.update(json.loads(self.body or b"{}"))
        if "multipart" in content_type:
            plain_fields = [part for part in self.parts if not part.filename]
            params.update({part.name: part.body.decode() for part in plain_fields})
        return params

    @property
    def parts(self) -> list[FormPart]:
        """The parts of a multipart body; empty for any other body."""
        boundary = re.search(r'boundary="?([^";]+)', self.headers.get("content-type", ""))
        if boundary is None:
            return []
        # Nothing of ours stands before the first boundary, and only "--" after the last one.
        chunks = self.body.split(b"--" + boundary.group(1).encode())[1:-1]
        return [_read_part(chunk) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a multipart body; `filename` is "" for a plain field."""

    name: str
    filename: str
    mime: str
    body: bytes


def _read_part(chunk: bytes) -> FormPart:
    head, _, body = chunk.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    header = head.decode()
    return FormPart(
        name=_first_group(r'\bname="([^"]*)"', header),
        # As Telegram reads a name: not decoded, and ended by a semicolon.
        filename=_first_group(r'filename="([^";]*)', header),
        mime=_first_group(r"(?i)content-type: (\S+)", header),
        body=body.removesuffix(b"\r\n"),
    )


def _first_group(pattern: str, text: str) -> str:
    """Return what the first group of a pattern matches in a text; "" without a match."""
    match = re.search(pattern, text)
    return match.group(1) if match else ""


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """One HTTP response of a fake platform."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def json_response(value: Any, status: int = 200, **headers: str) -> FakeResponse:
    """Return a JSON response. A header is named with underscores: `Retry_After="7"`."""
    extra_headers = {name.replace("_", "-"): content for name, content in headers.items()}
    return FakeResponse(
        status, json.dumps(value).encode(), {"Content-Type": "application/json", **extra_headers}
    )


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """The failure of one message, which a test has ordered with `FakePlatforms.script`."""

    #: What goes wrong: one of the words that the docstring of `script` lists. Never "".
    error: str
    #: How long the error "slow" waits before it answers; no other error uses it.
    seconds: float = 0.0


class RequestLog:
    """The log of what arrived at all fake platforms, in order. Safe to use from threads.

    One log serves all fakes of a test. It holds five things, and `reset` removes them all:

    * `sent`: the accepted messages, in the form that `append_message` describes. The number of a
      message is its place in this list, from 1. Fakes make the platform's ids from it.
    * `calls`: all other calls of the API: `platform`, `method`, `params`.
    * `blobs`: the bytes of files, by their SHA-256.
    * `state`: what a platform remembers besides messages, such as the URL of a webhook. The
      constants of each fake name its keys, so that a test can read and change them.
    * The failures and rate limits that a test ordered for the next messages.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Remove everything."""
        with self._lock:
            self.sent: list[dict[str, Any]] = []
            self.calls: list[dict[str, Any]] = []
            self.blobs: dict[str, bytes] = {}
            self.state: dict[str, Any] = {}
            #: The number of accepted messages, by platform and whole second of the clock.
            self._sent_in_second: Counter[tuple[str, int]] = Counter()
            self._failures: dict[str, deque[ScriptedFailure]] = {}
            #: The ordered limits in messages per second, and when messages within them came.
            self._rates: dict[str, float] = {}
            self._admitted_at: dict[str, deque[float]] = {}

    def append_message(
        self,
        platform: str,
        chat: str,
        *,
        thread: str = "",
        text: str = "",
        buttons: list[dict[str, str]] | None = None,
        media: dict[str, Any] | None = None,
        raw: Any = None,
    ) -> int:
        """Append an accepted message. Return its number, from 1.

        `thread` is "" outside threads. `buttons` have the keys `label` and `data`. `media` is what
        `save_file` returned. `raw` holds the parameters of the call.
        """
        entry = {
            "platform": platform,
            "chat": chat,
            "thread": thread,
            "text": text,
            "buttons": buttons or [],
            "media": media,
            "raw": raw,
        }
        with self._lock:
            self.sent.append(entry)
            self._sent_in_second[platform, int(self._clock())] += 1
            return len(self.sent)

    def edit_message(
        self, number: int, *, text: str, buttons: list[dict[str, str]], raw: Any
    ) -> None:
        """Edit a message in its place. Its previous content is appended to its `edits`."""
        with self._lock:
            entry = self.sent[number - 1]
            previous = {name: entry[name] for name in ("text", "buttons", "raw")}
            entry.setdefault("edits", []).append(previous)
            entry.update(text=text, buttons=buttons, raw=raw)

    def busiest(self) -> dict[str, int]:
        """Return the most messages that each platform accepted within one second of the clock."""
        busiest: dict[str, int] = {}
        with self._lock:
            for (platform, _), count in self._sent_in_second.items():
                busiest[platform] = max(count, busiest.get(platform, 0))
        return busiest

    def append_call(self, platform: str, method: str, params: Any) -> None:
        """Append a call that sends no message."""
        with self._lock:
            self.calls.append({"platform": platform, "method": method, "params": params})

    def save_file(self, filename: str, mime: str, data: bytes) -> dict[str, Any]:
        """Store a file that a bot sent. Return its description, the `media` of a message."""
        digest = self.save_bytes(data)
        return {"filename": filename, "mime": mime, "size": len(data), "sha256": digest}

    def save_bytes(self, data: bytes) -> str:
        """Store the bytes in `blobs`. Return their SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            self.blobs[digest] = data
        return digest

    def script(self, platform: str, error: str, times: int, seconds: float) -> None:
        """Let the next `times` messages of a platform fail, after those of earlier scripts."""
        with self._lock:
            failures = self._failures.setdefault(platform, deque())
            failures.extend([ScriptedFailure(error, seconds)] * times)

    def next_failure(self, platform: str) -> ScriptedFailure | None:
        """Remove and return the failure of the next message, None if none is scripted."""
        with self._lock:
            waiting = self._failures.get(platform)
            if waiting:
                return waiting.popleft()
            return None

    def limit(self, platform: str, per_second: float) -> None:
        """Limit the messages per second of a platform; 0.1 is one in ten seconds."""
        if per_second <= 0:
            raise ValueError(f"per_second is {per_second!r}: use a number above 0")
        with self._lock:
            self._rates[platform] = per_second
            self._admitted_at[platform] = deque()

    def admits(self, platform: str) -> bool:
        """Return whether a message is within the platform's limit, and count it if so.

        A refused message does not count.
        """
        with self._lock:
            rate = self._rates.get(platform)
            if rate is None:
                return True

            # The limit is a whole number of messages within a window: 0.1 a second is one message
            # in ten seconds, and 2.5 a second are two messages in 0.8 seconds.
            most = max(1, int(rate))
            window_seconds = most / rate
            now = self._clock()
            admitted_at = self._admitted_at[platform]
            while admitted_at and now - admitted_at[0] >= window_seconds:
                admitted_at.popleft()

            if len(admitted_at) >= most:
                return False
            admitted_at.append(now)
            return True


class Fake(Protocol):
    """The fake of one platform. `FakePlatforms` gives it the requests of its path."""

    @property
    def chat_fields(self) -> tuple[str, ...]:
        """The parameters in which a message may name its chat; the first one present counts."""

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends a message.

        Only such calls get the failures that a test has ordered.
        """

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the platform."""

    def failure(self, error: str) -> FakeResponse:
        """Return an error as the platform words it."""

    def host(self, data: bytes) -> str:
        """Store a file that a person sent. Return its name in webhooks: a URL or an id."""
