"""ConversationMemory: the recent transcript of one conversation, cut only between whole exchanges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.messages import Message, Role

#: Characters per token in the estimate that `max_tokens` goes by.
CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class ConversationMemory:
    """Lives as long as its conversation; forgets the oldest exchanges past its limits.

    An exchange is a user's message and all that followed it, so a tool call never loses its result and the history
    always begins with a user. The latest exchange stays whole even when it alone is over the limits.
    """

    max_messages: int = 20
    max_tokens: int | None = None
    _messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.max_messages < 1:
            raise ValueError(f"max_messages={self.max_messages!r} keeps nothing: use 1 or more")

    def get_history(self) -> list[Message]:
        """The kept messages, oldest first, in a list of the caller's own."""
        return list(self._messages)

    def add(self, message: Message) -> None:
        """Append one message."""
        self.add_many([message])

    def add_many(self, messages: Iterable[Message]) -> None:
        """Append messages, then forget the oldest exchanges past the limits."""
        self._messages = self._trimmed([*self._messages, *messages])

    def clear(self) -> None:
        """Forget everything."""
        self._messages = []

    def to_dict(self) -> dict[str, Any]:
        """Limits and messages as JSON-ready data."""
        return {
            "max_messages": self.max_messages,
            "max_tokens": self.max_tokens,
            "messages": [message.to_dict() for message in self._messages],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConversationMemory:
        """The memory that `to_dict` wrote."""
        memory = cls(data["max_messages"], data["max_tokens"])
        memory.add_many(Message.from_dict(message) for message in data["messages"])
        return memory

    def _trimmed(self, messages: list[Message]) -> list[Message]:
        starts = [index for index, message in enumerate(messages) if message.role is Role.USER]
        for start in starts[:-1]:
            if self._fits(messages[start:]):
                return messages[start:]
        return messages[starts[-1] :] if starts else []

    def _fits(self, messages: list[Message]) -> bool:
        if len(messages) > self.max_messages:
            return False
        return self.max_tokens is None or sum(map(estimate_tokens, messages)) <= self.max_tokens


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message costs, at least one."""
    calls = "".join(json.dumps(call.parameters, default=str) + call.tool_name for call in message.tool_calls)
    return max(1, len(message.content + calls) // CHARS_PER_TOKEN)
