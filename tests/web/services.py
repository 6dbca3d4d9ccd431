"""Services: the web's collaborators as fakes of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flask.testing import FlaskClient

from channels.types import Conversation, Hook, Received, Turn
from channels.web import create_app
from workers.mailbox import Accepted

PUBLIC_URL = "https://bots.example.com/base"
TURN = Turn("event-1", Conversation("shop", "+4915100000042"), "+4915100000042", text="hello")


class FakeChannel:
    """A channel that keeps the hooks it gets and answers as told; an error is raised."""

    name = "shop"

    def __init__(self, answer: Received | Exception | None = None) -> None:
        self.answer = answer or Received()
        self.hooks: list[Hook] = []

    def receive(self, hook: Hook) -> Received:
        """Keep the hook."""
        self.hooks.append(hook)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeMailbox:
    """A mailbox that keeps turns; it reads from them what the real one reads."""

    def __init__(self, outcome: Callable[[], str] = lambda: "new") -> None:
        self.outcome = outcome
        self.turns: list[tuple[Turn, str]] = []

    def accept(self, turn: Turn, *, tapped: str = "") -> Accepted:
        """Keep the turn."""
        assert Turn.from_json(turn.to_json()) == turn
        assert turn.conversation.id
        assert turn.scope.id
        self.turns.append((turn, tapped))
        return Accepted(self.outcome(), len(self.turns))  # type: ignore[arg-type]


class FakeDeliveries:
    """Keeps what platforms report."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, ...]] = []
        self.closed: list[tuple[str, str]] = []

    def report(self, *said: str) -> str:
        """Keep it."""
        self.reports.append(said)
        return said[2]

    def close(self, conversation: str, reason: str) -> None:
        """Keep it."""
        self.closed.append((conversation, reason))


def browser(channel: Any = None, mailbox: Any = None, **parts: Any) -> FlaskClient:
    """A client of an app with these parts."""
    parts = {
        "media": None,
        "redis_url": "redis://127.0.0.1:1",
        "public_url": PUBLIC_URL,
        "channels": {},
        "spool": None,
        "tides": (),
        **parts,
    }
    channels = {channel.name: channel} if channel else parts.pop("channels")
    parts.pop("channels", None)
    return create_app(SimpleNamespace(mailbox=mailbox or FakeMailbox(), channels=channels, **parts)).test_client()
