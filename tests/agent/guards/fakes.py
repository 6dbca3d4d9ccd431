"""Fakes of the guards' tests."""

from __future__ import annotations

import time
from typing import Any

from sayso.agent.messages import Message, Role, UsageStats


class Diary:
    """Stands for a run's events: records the steps and the events, in order."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, dict[str, Any]]] = []
        self.told: list[tuple[Any, ...]] = []

    def note(self, type: str, *, began: float | None = None, **fields: Any) -> None:
        """A step."""
        assert began is None or began <= time.perf_counter()
        self.noted.append((type, fields))

    async def tell(self, event: str, *args: Any) -> None:
        """An event."""
        self.told.append((event, *args))


class Judge:
    """A provider that always says the same, or fails; it keeps what it was asked."""

    def __init__(self, reply: str | Exception) -> None:
        self.reply = reply
        self.asked: list[dict[str, Any]] = []

    async def acomplete(self, **kwargs: Any) -> tuple[Message, UsageStats]:
        """The reply, for 7 tokens."""
        self.asked.append(kwargs)
        if isinstance(self.reply, Exception):
            raise self.reply
        return Message(Role.ASSISTANT, self.reply), UsageStats(total_tokens=7)
