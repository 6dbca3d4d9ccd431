"""Stubs: providers without a vendor, for tests and for trying things out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.providers.base import Completion, ProviderRequest, StreamItem
from sayso.agent.providers.scripted import ScriptedProvider

__all__ = ["LocalProvider", "ScriptedProvider"]


class LocalProvider:
    """Says the user's latest words back, free of charge, and never calls a tool (seed: Testing)."""

    name = "local"

    def complete(self, **request: Any) -> Completion:
        """The words, and which model was meant to have them."""
        asked = ProviderRequest(**request)
        users = (message.content for message in reversed(asked.messages) if message.role is Role.USER)
        answer = Message(Role.ASSISTANT, f"[local provider: {asked.model or 'local'}] {next(users, '')}".rstrip())
        return answer, UsageStats(model=asked.model, provider=self.name)

    async def acomplete(self, **request: Any) -> Completion:
        """As `complete`."""
        return self.complete(**request)

    def stream(self, **request: Any) -> Iterator[StreamItem]:
        """As `complete`, word by word."""
        answer, usage = self.complete(**request)
        for word in answer.content.splitlines(keepends=True):
            yield from _words(word)
        yield usage

    async def astream(self, **request: Any) -> AsyncGenerator[StreamItem, None]:
        """As `stream`."""
        for item in self.stream(**request):
            yield item


def _words(line: str) -> Iterator[str]:
    """The words, each with the space after it."""
    yield from (f"{word} " for word in line.split(" ")[:-1])
    yield line.split(" ")[-1]
