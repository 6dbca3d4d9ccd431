"""ToolSelector: narrows the tools a model sees before each call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from agent.messages import Message
from agent.tools.tool import Tool


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses tools for the next model call. A tool left out cannot be called in that step either."""

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The subset of `tools` for this step of the conversation."""
        ...
