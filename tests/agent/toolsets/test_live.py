"""LiveSources: what cannot be reached stops nobody, and is there as soon as it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sayso.agent import Tool, ToolRegistry
from sayso.agent.tools import ToolOutcome
from sayso.agent.toolsets import refresh as live
from sayso.agent.toolsets.base import SourceUnreachable
from sayso.agent.toolsets.refresh import LiveSource, ToolsetRefresher


class Provider:
    """Lists what it is told to, or raises it; says when it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)
        self.changed: Callable[[], None] = lambda: None

    async def list_tools(self) -> list[Tool]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if isinstance(answer, Exception):
            raise answer
        return [Tool(name=name, description="d") for name in answer]

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome(success=True, result=tool_name)

    def watch(self, changed: Callable[[], None]) -> None:
        self.changed = changed


class Registry(ToolRegistry):
    """One that says when a source was replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced = threading.Semaphore(0)

    def replace_source(self, source: str, tools: Any) -> None:
        super().replace_source(source, tools)
        self.replaced.release()

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self.all()]


Open = Callable[..., tuple[Registry, dict[str, str]]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens providers as sources, with pauses that are over at once."""
    monkeypatch.setattr(live, "FIRST_PAUSE_SECONDS", 0.001)
    made: list[ToolsetRefresher] = []

    def start(*providers: Provider, seconds: float = 30) -> tuple[Registry, dict[str, str]]:
        registry = Registry()
        sources = [LiveSource(str(n), f"s{n}", provider, f"s{n}") for n, provider in enumerate(providers)]
        made.append(ToolsetRefresher(sources, registry.replace_source))
        return registry, made[-1].open(seconds)

    yield start
    for each in made:
        each.close()


def test_what_cannot_be_reached_is_told_and_tried_until_it_answers(opened: Open):
    """The others are there at once, and it too as soon as it answers."""
    registry, why = opened(Provider(SourceUnreachable("down"), SourceUnreachable("down"), ["late"]), Provider(["now"]))
    assert why == {"0": "down"}
    assert registry.replaced.acquire(timeout=30)
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s1-now", "s0-late"]


def test_change_is_listed_again(opened: Open):
    """What is gone is gone, what is new is there."""
    provider = Provider(["a", "b"], ["b", "c"])
    registry, why = opened(provider)
    assert (registry.names, why) == (["s0-a", "s0-b"], {})
    assert registry.replaced.acquire(timeout=30)
    provider.changed()
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s0-b", "s0-c"]


def test_lost_source_keeps_its_tools(opened: Open):
    """Their calls say what is wrong; a bot whose tools vanish would only say that it has none."""
    provider = Provider(["a"], SourceUnreachable("gone"))
    registry, _ = opened(provider)
    assert provider.asked.acquire(timeout=30)
    provider.changed()
    assert provider.asked.acquire(timeout=30)
    assert registry.names == ["s0-a"]


def test_failure_of_a_providers_own_code_stops_nobody(opened: Open):
    """It is somebody else's."""
    registry, why = opened(Provider(ZeroDivisionError("oops")), Provider(["b"]))
    assert (registry.names, why) == (["s1-b"], {"0": "ZeroDivisionError"})


def test_names_that_are_taken_are_told(opened: Open):
    """The tools of the source that came first stay."""
    registry = Registry()
    registry.register(Tool(name="s0-a", description="d"))
    sources = ToolsetRefresher([LiveSource("0", "s0", Provider(["a"]), "s0")], registry.replace_source)
    why = sources.open(30)
    sources.close()
    assert "two tools are called 's0-a'" in why["0"]


def test_silent_source_holds_nobody_up(opened: Open):
    """After the time limit it goes on in the background."""

    class Silent(Provider):
        async def list_tools(self) -> list[Tool]:
            import asyncio

            await asyncio.Event().wait()
            return []

    _, why = opened(Silent([]), seconds=0.05)
    assert why == {"0": "gave no answer within 0.05 s"}


def test_source_that_was_away_for_days_is_there_when_it_answers(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """However often it failed: pauses do not grow until no number holds them."""
    monkeypatch.setattr(live, "LONGEST_PAUSE_SECONDS", 0.001)
    registry, _ = opened(Provider(*[SourceUnreachable("down")] * 1_100, ["back"]))
    assert registry.replaced.acquire(timeout=60)
    assert registry.names == ["s0-back"]


def test_keeping_outlives_what_a_source_waited_for(opened: Open):
    """A cancellation that was not meant for who keeps it is a failure like others."""

    class Cancelled(Provider):
        async def list_tools(self) -> list[Tool]:
            tools = await super().list_tools()
            if not tools:
                raise asyncio.CancelledError
            return tools

    registry, why = opened(Cancelled([], ["a"]))
    assert why == {"0": "CancelledError"}
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s0-a"]


def test_keeping_outlives_a_watch_that_fails(opened: Open):
    """It goes on as if nothing had been said."""

    class Unwatched(Provider):
        failures = 2

        def watch(self, changed: Callable[[], None]) -> None:
            self.failures -= 1
            if self.failures > 0:
                raise ZeroDivisionError

    registry, _ = opened(Unwatched(["a"]))
    assert registry.names == ["s0-a"]
