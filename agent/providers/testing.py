"""LocalProvider, ScriptedProvider."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.providers.base import Completion, ProviderError, ProviderRequest, StreamItem

T = TypeVar("T")


_END = object()


def iterate_sync(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """The pieces of the stream, each fetched when it is asked for; also inside a running loop, which then waits too."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as pool:
        runner = asyncio.Runner()

        def wait(step: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            return pool.submit(lambda: runner.run(step(), context=context)).result()

        try:
            while (piece := wait(lambda: _next(stream))) is not _END:
                yield piece
        finally:
            wait(stream.aclose)
            pool.submit(runner.close).result()


async def _next(stream: AsyncGenerator[T, None]) -> Any:
    return await anext(stream, _END)


#: One answer: a message, its text alone, its tool calls alone, or an exception to raise.
Line = Message | str | ToolCall | list[ToolCall] | Exception


class ScriptedProvider:
    """Lives for one test or demo. `requests` holds every request it got, also those it answered with an error."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = list(lines)
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **request: Any) -> Completion:
        """The next line. Raises ProviderError when the script has ended."""
        with self._lock:
            self.requests.append(ProviderRequest(**{**request, "messages": tuple(request["messages"])}))
            count = len(self.requests)
        if count > len(self._lines):
            raise ProviderError(f"the script has {len(self._lines)} lines, this is request {count}")
        line = self._lines[count - 1]
        if isinstance(line, Exception):
            raise line
        return _message(line), UsageStats(1, 1, 2, model=request["model"], provider="scripted")


def _message(line: Message | str | ToolCall | list[ToolCall]) -> Message:
    if isinstance(line, Message):
        return line
    if isinstance(line, str):
        return Message(Role.ASSISTANT, line)
    return Message(Role.ASSISTANT, tool_calls=tuple([line] if isinstance(line, ToolCall) else line))


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
