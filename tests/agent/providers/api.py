"""Shared parts of the fake APIs: a scripted step, a refusal and a received request."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

#: The only key that the fakes accept.
KEY = "sk-test-0123456789abcdef"


class Refused(Exception):
    """Raised where the real API would answer with an error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True, slots=True)
class Called:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Api(Protocol):
    """The API of a vendor; `step` is what the test scripted: {"text", "calls", "finish", "usage", ...}."""

    def check(self, called: Called) -> None:
        """Raise Refused for a request that the real API refuses."""

    def streams(self, called: Called) -> bool:
        """Return whether the request asks for a stream."""

    def whole(self, called: Called, step: dict[str, Any]) -> dict[str, Any]:
        """Return the answer as one body."""

    def pieces(self, called: Called, step: dict[str, Any]) -> Iterator[str]:
        """Yield the answer as server-sent events."""

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""

    def failure(self, refused: Refused) -> str:
        """Return an error as an event in a stream that has begun."""

    def too_long(self, size: int, most: int) -> Refused:
        """Return the refusal of a request longer than the model's context window."""


def need(condition: object, message: str, status: int = 400) -> None:
    """Raise Refused unless the condition holds."""
    if not condition:
        raise Refused(status, message)


def need_names(names: Iterable[str]) -> None:
    """Refuse a tool name that the real APIs refuse, in definitions and in transcripts."""
    for name in names:
        need(
            re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name),
            f"{name!r} does not match '^[a-zA-Z0-9_-]{{1,64}}$'",
        )


def need_bytes(encoded: str, kind: str) -> None:
    """Refuse bytes that are no image of this type."""
    starts = {
        "image/png": b"\x89PNG",
        "image/jpeg": b"\xff\xd8\xff",
        "image/gif": b"GIF8",
        "image/webp": b"RIFF",
    }
    need(b64decode(encoded).startswith(starts[kind]), "could not process image")


def signature(thought: str) -> str:
    """Return the signature that proves a reasoning text to be the model's own."""
    return b64encode(hashlib.sha256(f"signed {thought}".encode()).digest()).decode()


def arguments(call: dict[str, Any]) -> str:
    """Return a scripted call's arguments as text; a string is sent unchanged, even if it is no JSON."""
    given = call.get("arguments", {})
    return given if isinstance(given, str) else json.dumps(given)


def words(text: str) -> Iterator[str]:
    """Yield the pieces in which the text is streamed."""
    for at, word in enumerate(text.split(" ")):
        yield word if at == 0 else f" {word}"


def event(data: Any, name: str = "") -> str:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
