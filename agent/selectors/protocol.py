"""ToolSelector: narrows the tools a model sees before each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from sayso.agent.messages import Message
from sayso.agent.tools.tool import Tool


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses tools for the next model call. A tool left out cannot be called in that step either (seed)."""

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The subset of `tools` for this step of the conversation; only membership counts."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors that are near each other where the texts mean the same."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, in their order, all equally long. May raise anything."""
        ...
