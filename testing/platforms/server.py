"""What all fake platforms share: requests, responses, scripted failures,
and the ledger of accepted messages.
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

ACCEPTED = {"ok": True}


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One HTTP request. `path` is without the prefix of the platform."""

    method: str
    path: str
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
        """The parameters from query, form, JSON or multipart. JSON inside a field is not parsed."""
        kind = self.headers.get("content-type", "")
        fields: dict[str, Any] = {name: values[-1] for name, values in self.form.items()}
        if "json" in kind:
            return {**fields, **json.loads(self.body or b"{}")}
        if "multipart" in kind:
            return {
                **fields,
                **{part.name: part.body.decode() for part in self.parts if not part.filename},
            }
        return fields

    @property
    def parts(self) -> list[FormPart]:
        """The parts of a multipart body."""
        boundary = re.search(r'boundary="?([^";]+)', self.headers.get("content-type", ""))
        if boundary is None:
            return []
        chunks = self.body.split(b"--" + boundary.group(1).encode())[1:-1]
        return [_part(chunk) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class FormPart:
    """One part of a multipart body; `filename` is "" for a plain field."""

    name: str
    filename: str
    mime: str
    body: bytes


def _part(chunk: bytes) -> FormPart:
    head, _, body = chunk.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    header = head.decode()
    return FormPart(
        name=_field(header, r'name="([^"]*)"'),
        # As Telegram reads it: not decoded, and ended by ;.
        filename=_field(header, r'filename="([^";]*)'),
        mime=_field(header, r"(?i)content-type: (\S+)"),
        body=body.removesuffix(b"\r\n"),
    )


def _field(header: str, pattern: str) -> str:
    match = re.search(pattern, header)
    return match.group(1) if match else ""


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """One HTTP response."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def json_response(value: Any, status: int = 200, **headers: str) -> FakeResponse:
    """Return a JSON response."""
    names = {name.replace("_", "-"): content for name, content in headers.items()}
    return FakeResponse(
        status, json.dumps(value).encode(), {"Content-Type": "application/json", **names}
    )


@dataclass(frozen=True, slots=True)
class ScriptedFailure:
    """One scripted failure."""

    error: str
    seconds: float = 0.0


class RequestLog:
    """Records what arrives at all platforms, in order. Safe to use from threads.

    `state` is what a platform stores besides, such as the URL of a webhook.
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
            self._seconds: Counter[tuple[str, int]] = Counter()
            self.state: dict[str, Any] = {}
            self._failures: dict[str, deque[ScriptedFailure]] = {}
            self._rates: dict[str, float] = {}
            self._taken: dict[str, deque[float]] = {}

    def record(
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
        """Record an accepted message. Return its number, from 1."""
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
            self._seconds[platform, int(self._clock())] += 1
            return len(self.sent)

    def edit(self, number: int, *, text: str, buttons: list[dict[str, str]], raw: Any) -> None:
        """Edit a message. Its previous content is appended to its `edits`."""
        with self._lock:
            entry = self.sent[number - 1]
            entry.setdefault("edits", []).append(
                {name: entry[name] for name in ("text", "buttons", "raw")}
            )
            entry.update(text=text, buttons=buttons, raw=raw)

    def busiest(self) -> dict[str, int]:
        """Return the most messages that each platform accepted within one second of the clock."""
        with self._lock:
            return {name: count for (name, _), count in reversed(self._seconds.most_common())}

    def note(self, platform: str, method: str, params: Any) -> None:
        """Record a call that sends no message."""
        with self._lock:
            self.calls.append({"platform": platform, "method": method, "params": params})

    def keep(self, filename: str, mime: str, data: bytes) -> dict[str, Any]:
        """Store a file and return its description for the ledger."""
        digest = self.host(data)
        return {"filename": filename, "mime": mime, "size": len(data), "sha256": digest}

    def host(self, data: bytes) -> str:
        """Store the bytes and return their SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            self.blobs[digest] = data
        return digest

    def script(self, platform: str, error: str, times: int, seconds: float) -> None:
        """Let the next `times` messages of a platform fail."""
        with self._lock:
            self._failures.setdefault(platform, deque()).extend(
                [ScriptedFailure(error, seconds)] * times
            )

    def next_failure(self, platform: str) -> ScriptedFailure | None:
        """Return the failure of the next message, if one is scripted."""
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
            self._rates[platform], self._taken[platform] = per_second, deque()

    def admits(self, platform: str) -> bool:
        """Return whether a message is within the platform's limit.

        Refused messages do not count.
        """
        with self._lock:
            rate = self._rates.get(platform)
            if rate is None:
                return True
            now = self._clock()
            taken = self._taken[platform]
            most = max(1, int(rate))
            while taken and now - taken[0] >= most / rate:
                taken.popleft()
            if len(taken) >= most:
                return False
            taken.append(now)
            return True


class Fake(Protocol):
    """One platform."""

    @property
    def chat_fields(self) -> tuple[str, ...]:
        """The fields in which a message may name its chat."""

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends a message. Only those can fail as scripted."""

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the platform."""

    def failure(self, error: str) -> FakeResponse:
        """Return an error as the platform words it."""

    def host(self, data: bytes) -> str:
        """Store a file that a person sent. Return its name in webhooks: a URL or an id."""
