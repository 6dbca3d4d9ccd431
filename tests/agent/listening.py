"""Helpers for tests of whole runs: an observer that records every event, and a provider that streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentObserver,
    AgentResult,
    AsyncAgentObserver,
    Message,
    Role,
    ToolCall,
    UsageStats,
    tool,
)
from sayso.agent.observability.observer import EVENTS


class Heard(AgentObserver):
    """Records each event with its arguments, the id of the run first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def names(self) -> list[str]:
        """Return the names of the events in order."""
        return [name for name, _ in self.events]

    def of(self, event: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each event of this name, without the run's id."""
        return [args[1:] for name, args in self.events if name == event]


class HeardLater(AsyncAgentObserver):
    """Records the names of the events that it receives as a coroutine."""

    blocking = True

    def __init__(self) -> None:
        self.names: list[str] = []


def _keeping(event: str) -> Any:
    return lambda self, *args: self.events.append((event, args))


def _keeping_later(event: str) -> Any:
    async def keep(self: HeardLater, *args: Any) -> None:
        self.names.append(event)

    return keep


for _event in EVENTS:
    setattr(Heard, f"on_{_event}", _keeping(_event))
    setattr(HeardLater, f"a_on_{_event}", _keeping_later(_event))


class Streaming:
    """Yields an answer in pieces: one list for each step."""

    def __init__(self, *steps: list[str | ToolCall]) -> None:
        self.steps = list(steps)

    async def astream(self, **request: Any) -> Any:
        """Yield the pieces of the next answer, then its usage."""
        for piece in self.steps.pop(0):
            yield piece
        yield UsageStats(1, 1, 2)


@tool
def search(query: str) -> str:
    """Search the web for information."""
    return f"3 tutorials on {query}"


@tool
def fails(query: str) -> str:
    """Search a closed source."""
    raise RuntimeError(f"closed: {query}")


#: The first call of most scripted runs.
SEARCH = ToolCall("search", {"query": "Python"}, "c1")


def user(text: str) -> Message:
    """Return a user message, as the seed writes it."""
    return Message(role=Role.USER, content=text)


async def collected(stream: Any) -> list[Any]:
    """Return all items of a stream."""
    return [item async for item in stream]


def by_run(agent: Agent, prompt: Any) -> AgentResult:
    """Run with the sync method."""
    return agent.run(prompt)


def by_arun(agent: Agent, prompt: Any) -> AgentResult:
    """Run with the async method."""
    return asyncio.run(agent.arun(prompt))


def by_astream(agent: Agent, prompt: Any) -> AgentResult:
    """Run with the stream and return its last item."""
    return asyncio.run(collected(agent.astream(prompt)))[-1]


#: Marks a test that holds for every way to start a run.
every_door = pytest.mark.parametrize("door", [by_run, by_arun, by_astream])
