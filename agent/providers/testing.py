"""Providers for tests and demos: ScriptedProvider, and LocalProvider, which repeats the user's text (seed)."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.providers.base import Completion, ProviderError, ProviderRequest, StreamItem

#: One answer: a message, its text, its tool calls, or an exception to raise.
ScriptLine = Message | str | ToolCall | list[ToolCall] | Exception


class ScriptedProvider:
    """Gives prepared answers in order. `requests` holds every request, also those answered with an exception."""

    def __init__(self, lines: Iterable[ScriptLine]) -> None:
        self._lines = list(lines)
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next answer. Raise ProviderError at the end of the script."""
        with self._lock:
            self.requests.append(ProviderRequest(**{**kwargs, "messages": tuple(kwargs["messages"])}))
            count = len(self.requests)
        if count > len(self._lines):
            raise ProviderError(f"the script has {len(self._lines)} lines, this is request {count}")
        line = self._lines[count - 1]
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            line = Message(Role.ASSISTANT, line)
        elif not isinstance(line, Message):
            line = Message(Role.ASSISTANT, tool_calls=tuple([line] if isinstance(line, ToolCall) else line))
        return line, UsageStats(1, 1, 2, model=kwargs["model"], provider="scripted")


class LocalProvider:
    """Repeats the user's latest message at no cost, and never calls a tool (seed: Testing)."""

    name = "local"

    def complete(self, **kwargs: Any) -> Completion:
        """Return the user's text and the name of the requested model."""
        request = ProviderRequest(**kwargs)
        users = (message.content for message in reversed(request.messages) if message.role is Role.USER)
        answer = Message(Role.ASSISTANT, f"[local provider: {request.model or 'local'}] {next(users, '')}".rstrip())
        return answer, UsageStats(model=request.model, provider=self.name)

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Do the same as `complete`."""
        return self.complete(**kwargs)

    def stream(self, **kwargs: Any) -> Iterator[StreamItem]:
        """Yield the answer of `complete` word by word, each with the space after it, and then the usage."""
        answer, usage = self.complete(**kwargs)
        for line in answer.content.splitlines(keepends=True):
            *words, last = line.split(" ")
            yield from (f"{word} " for word in words)
            yield last
        yield usage

    async def astream(self, **kwargs: Any) -> AsyncGenerator[StreamItem, None]:
        """Do the same as `stream`."""
        for item in self.stream(**kwargs):
            yield item
