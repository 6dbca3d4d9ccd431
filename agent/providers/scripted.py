"""ScriptedProvider: says what it was told to say, in order, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.providers.base import Completion, ProviderError, ProviderRequest

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
