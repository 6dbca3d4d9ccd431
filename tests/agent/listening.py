"""What tests of whole runs listen with: an observer that writes everything down, and a provider that streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sayso.agent import Agent, AgentObserver, AgentResult, AsyncAgentObserver, Message, Role, ToolCall, UsageStats, tool
from sayso.agent.observability.observer import EVENTS


class Heard(AgentObserver):
    """Keeps each event with its arguments, the id of the run first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def names(self) -> list[str]:
        """The events in the order in which they were heard."""
        return [name for name, _ in self.events]

    def of(self, event: str) -> list[tuple[Any, ...]]:
        """What came with each event of a name, without the id."""
        return [args[1:] for name, args in self.events if name == event]


class HeardLater(AsyncAgentObserver):
    """Keeps the names of what it hears as a coroutine."""

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
    """Yields an answer in pieces, one list a step."""

    def __init__(self, *steps: list[str | ToolCall]) -> None:
        self.steps = list(steps)

    async def astream(self, **request: Any) -> Any:
        """The pieces of the next answer, and what it cost."""
        for piece in self.steps.pop(0):
            yield piece
        yield UsageStats(1, 1, 2)


@tool
def search(query: str) -> str:
    """Search the web for information."""
    return f"3 tutorials on {query}"


@tool
def fails(query: str) -> str:
    """Search what is closed."""
    raise RuntimeError(f"closed: {query}")


#: The call that most runs here begin with.
SEARCH = ToolCall("search", {"query": "Python"}, "c1")


def user(text: str) -> Message:
    """Somebody's words, as the seed gives them."""
    return Message(role=Role.USER, content=text)


async def collected(stream: Any) -> list[Any]:
    """All that a stream yields."""
    return [item async for item in stream]


def by_run(agent: Agent, prompt: Any) -> AgentResult:
    """The sync door."""
    return agent.run(prompt)


def by_arun(agent: Agent, prompt: Any) -> AgentResult:
    """The async door."""
    return asyncio.run(agent.arun(prompt))


def by_astream(agent: Agent, prompt: Any) -> AgentResult:
    """The last that the stream yields."""
    return asyncio.run(collected(agent.astream(prompt)))[-1]


#: For what holds however a run is begun.
every_door = pytest.mark.parametrize("door", [by_run, by_arun, by_astream])
