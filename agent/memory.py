"""ConversationMemory: what one conversation remembers by itself, its transcript cut only between whole exchanges."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from sayso.agent.messages import Message, Role

#: Characters per token in the estimate that `max_tokens` goes by.
CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class ConversationMemory:
    """Lives as long as its conversation; forgets the oldest exchanges past its limits. Safe to share between threads.

    An exchange is a user's message and all that followed it, so a tool call never loses its result and the history
    always begins with a user. The latest exchange stays whole even when it alone is over the limits.

    `summary` stands for what was forgotten, "" where nothing does. `notes` is JSON-ready data that other memories keep
    with this conversation, under a key of each one's own.
    """

    max_messages: int = 20
    max_tokens: int | None = None
    summary: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    _messages: list[Message] = field(default_factory=list, init=False)
    _seams: _Seams = field(default_factory=lambda: _Seams(), init=False, repr=False, compare=False)  # noqa: PLW0108  # below
    _costs: _Costs = field(default_factory=lambda: _Costs(), init=False, repr=False, compare=False)  # noqa: PLW0108  # below
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_messages < 1:
            raise ValueError(f"max_messages={self.max_messages!r} keeps nothing: use 1 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens!r} keeps nothing: use 1 or more, or None for no limit")

    def get_history(self) -> list[Message]:
        """The kept messages, oldest first, in a list of the caller's own."""
        return list(self._messages)

    def get_recent(self, n: int) -> list[Message]:
        """The newest `n` messages at most, oldest first: for reading, as they may begin inside an exchange.

        Raises ValueError for a negative number.
        """
        if n < 0:
            raise ValueError(f"n={n!r} messages cannot be given: use 0 or more")
        return self._messages[-n:] if n else []

    def add(self, message: Message) -> list[Message]:
        """Append one message. Returns what was forgotten, as `add_many` does."""
        return self.add_many((message,))

    def add_many(self, messages: Iterable[Message]) -> list[Message]:
        """Append messages, then forget the oldest exchanges past the limits. Returns what was forgotten, oldest first.

        What no transcript can begin with, and a result whose call is not there, is forgotten at once.
        """
        with self._lock:
            before = self._seams.first
            refused = self._append(messages)
            forgotten = self._forget()
            for count, (number, message) in enumerate(refused):
                forgotten.insert(number - before + count, message)
            return forgotten

    def clear(self) -> None:
        """Forget everything, the summary and the notes too."""
        with self._lock:
            self.summary, self.notes = "", {}
            self._messages, self._seams, self._costs = [], _Seams(), _Costs()

    def branch(self) -> ConversationMemory:
        """A memory with the same limits and all that this one knows; what one learns, the other does not."""
        return self.limited(self.max_messages, self.max_tokens)

    def limited(self, max_messages: int, max_tokens: int | None) -> ConversationMemory:
        """As `branch`, with other limits. Raises ValueError."""
        branch = ConversationMemory(max_messages, max_tokens, self.summary, deepcopy(self.notes))
        branch.add_many(self.get_history())
        return branch

    def to_dict(self) -> dict[str, Any]:
        """Limits and messages as JSON-ready data; a summary and notes only where there are any."""
        data: dict[str, Any] = {
            "max_messages": self.max_messages,
            "max_tokens": self.max_tokens,
            "messages": [message.to_dict() for message in self.get_history()],
        }
        if self.summary:
            data["summary"] = self.summary
        if self.notes:
            data["notes"] = dict(self.notes)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConversationMemory:
        """The memory that `to_dict` wrote. Raises KeyError, ValueError or TypeError on anything else."""
        summary, notes = data.get("summary", ""), data.get("notes", {})
        if not isinstance(summary, str) or not isinstance(notes, dict):
            raise TypeError("its summary is no text, or its notes are no object")
        memory = cls(data["max_messages"], data["max_tokens"], summary, dict(notes))
        memory.add_many(Message.from_dict(message) for message in data["messages"])
        return memory

    def _append(self, messages: Iterable[Message]) -> list[tuple[int, Message]]:
        """Append what makes sense. Returns the rest, each with the number it would have had."""
        refused = []
        for message in messages:
            if self._seams.takes(message):
                self._messages.append(message)
            else:
                refused.append((self._seams.next, message))
        return refused

    def _forget(self) -> list[Message]:
        going = 0
        while self._is_over(going) and (following := self._seams.following()):
            going = following
        forgotten = self._messages[:going]
        if going:
            del self._messages[:going]
            self._seams.cut(forgotten)
            self._costs.cut(going)
        return forgotten

    def _is_over(self, going: int) -> bool:
        """Whether the messages are over a limit without the oldest so many."""
        if len(self._messages) - going > self.max_messages:
            return True
        return self.max_tokens is not None and self._costs.of(self._messages, going) > self.max_tokens


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message costs, at least one."""
    calls = "".join(json.dumps(call.parameters, default=str) + call.tool_name for call in message.tool_calls)
    return max(1, len(message.content + calls) // CHARS_PER_TOKEN)


class _Seams:
    """Where a transcript may be cut, kept up message by message. Messages are numbered from the conversation's first,
    so that nothing has to be renumbered when some are forgotten.
    """

    def __init__(self) -> None:
        #: The numbers of the oldest message that is kept and of the next one.
        self.first = self.next = 0
        self._starts: deque[int] = deque()
        self._calls: dict[str, int] = {}

    def takes(self, message: Message) -> bool:
        """Number a message. False, and no number, for one that makes no sense after those before it."""
        if message.role is Role.USER:
            self._starts.append(self.next)
        elif not self._starts or (message.role is Role.TOOL and not self._joins(message.tool_call_id)):
            return False
        for call in message.tool_calls:
            self._calls[call.id] = self.next
        self.next += 1
        return True

    def following(self) -> int:
        """Go on to the next seam. Returns how many messages are before it, 0 if there is none."""
        if len(self._starts) < 2:
            return 0
        self._starts.popleft()
        return self._starts[0] - self.first

    def cut(self, forgotten: list[Message]) -> None:
        """The oldest messages are gone."""
        for number, message in enumerate(forgotten, self.first):
            for call in message.tool_calls:
                if self._calls.get(call.id) == number:  # an id may be used again
                    del self._calls[call.id]
        self.first += len(forgotten)

    def _joins(self, call_id: str) -> bool:
        """Whether the call is there. Nothing is cut between it and its result, even if a user spoke meanwhile."""
        number = self._calls.get(call_id)
        if number is None:
            return False
        while self._starts[-1] > number:
            self._starts.pop()
        return True


class _Costs:
    """Tokens of a transcript's messages, each counted once, and not at all where no limit asks for them."""

    def __init__(self) -> None:
        #: What the messages up to each one cost, with all that were forgotten.
        self._totals: list[int] = []
        self._forgotten = 0

    def of(self, messages: list[Message], going: int) -> int:
        """The tokens of all messages but the oldest so many."""
        for message in messages[len(self._totals) :]:
            self._totals.append(self._total(len(self._totals)) + estimate_tokens(message))
        return self._total(len(messages)) - self._total(going)

    def cut(self, going: int) -> None:
        """The oldest messages are gone."""
        self._forgotten = self._total(min(going, len(self._totals)))
        del self._totals[:going]

    def _total(self, count: int) -> int:
        return self._totals[count - 1] if count else self._forgotten
