"""ToolsetRefresher: an unreachable source blocks no other, and its tools are added as soon as it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sayso.agent import Tool, ToolOutcome, ToolRegistry
from sayso.agent.toolsets import refresh as live
from sayso.agent.toolsets.base import SourceUnreachable
from sayso.agent.toolsets.refresh import (
    FIRST_PAUSE_SECONDS,
    STABLE_SECONDS,
    ListingPauses,
    LiveSource,
    ToolsetRefresher,
)


class Provider:
    """A provider that lists or raises its answers, and signals each request."""

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
    """A registry that signals when a source was replaced."""

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
    """Return a function that opens providers as sources with minimal pauses."""
    monkeypatch.setattr(live, "FIRST_PAUSE_SECONDS", 0.001)
    made: list[ToolsetRefresher] = []

    def start(*providers: Provider, seconds: float = 30) -> tuple[Registry, dict[str, str]]:
        registry = Registry()
        sources = [
            LiveSource(str(n), f"s{n}", provider, f"s{n}") for n, provider in enumerate(providers)
        ]
        made.append(ToolsetRefresher(sources, registry.replace_source))
        return registry, made[-1].open(seconds)

    yield start
    for each in made:
        each.close()


def test_unreachable_source_is_reported_and_retried_until_it_answers(opened: Open):
    """The tools of the other sources are available at once."""
    registry, why = opened(
        Provider(SourceUnreachable("down"), SourceUnreachable("down"), ["late"]), Provider(["now"])
    )
    assert why == {"0": "down"}
    assert registry.replaced.acquire(timeout=30)
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s1-now", "s0-late"]


def test_changed_source_is_listed_again(opened: Open):
    """Removed tools disappear and new ones are added."""
    provider = Provider(["a", "b"], ["b", "c"])
    registry, why = opened(provider)
    assert (registry.names, why) == (["s0-a", "s0-b"], {})
    assert registry.replaced.acquire(timeout=30)
    provider.changed()
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s0-b", "s0-c"]


def test_lost_source_keeps_its_tools(opened: Open):
    """A call of such a tool gives the reason, which a missing tool could not."""
    provider = Provider(["a"], SourceUnreachable("gone"))
    registry, _ = opened(provider)
    assert provider.asked.acquire(timeout=30)
    provider.changed()
    assert provider.asked.acquire(timeout=30)
    assert registry.names == ["s0-a"]


def test_exception_of_a_provider_stops_no_other_source(opened: Open):
    """The exception comes from custom code."""
    registry, why = opened(Provider(ZeroDivisionError("oops")), Provider(["b"]))
    assert (registry.names, why) == (["s1-b"], {"0": "ZeroDivisionError"})


def test_duplicate_tool_name_is_reported(opened: Open):
    """The tools of the first source stay."""
    registry = Registry()
    registry.register(Tool(name="s0-a", description="d"))
    sources = ToolsetRefresher(
        [LiveSource("0", "s0", Provider(["a"]), "s0")], registry.replace_source
    )
    why = sources.open(30)
    sources.close()
    assert "two tools are called 's0-a'" in why["0"]


def test_source_that_loses_its_tools_is_listed_again_until_its_names_are_free(
    monkeypatch: pytest.MonkeyPatch,
):
    """Which of two sources offers a name does not depend on which answers first."""
    monkeypatch.setattr(live, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(live, "LONGEST_PAUSE_SECONDS", 0.001)
    registry = Registry()
    early = Provider(["a"], ["b"])
    late = Provider(["a", "c"])

    def replace_tools(source: str, tools: list[Tool]) -> dict[str, str]:
        losses = ToolRegistry.replace_source(
            registry, source, tools, gives_way=["late"] if source == "early" else []
        )
        registry.replaced.release()
        return losses

    sources = [LiveSource("late", "late", late), LiveSource("early", "early", early)]
    refresher = ToolsetRefresher(sources, replace_tools)
    why = refresher.open(30)
    assert why == {"late": "two tools are called 'a', and the tool of an earlier source counts"}
    assert registry.names == ["a"]
    early.changed()
    for _ in range(4):  # late and early, then early with its new names, and late again
        assert registry.replaced.acquire(timeout=30)
    refresher.close()
    assert registry.names == ["a", "c", "b"]


def test_silent_source_delays_no_other(opened: Open):
    """After the time limit it is retried in the background."""

    class Silent(Provider):
        async def list_tools(self) -> list[Tool]:
            import asyncio

            await asyncio.Event().wait()
            return []

    _, why = opened(Silent([]), seconds=0.05)
    assert why == {"0": "gave no answer within 0.05 s"}


def test_source_returns_after_any_number_of_failures(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """The pause between attempts is bounded."""
    monkeypatch.setattr(live, "LONGEST_PAUSE_SECONDS", 0.001)
    registry, _ = opened(Provider(*[SourceUnreachable("down")] * 1_100, ["back"]))
    assert registry.replaced.acquire(timeout=60)
    assert registry.names == ["s0-back"]


def test_refresher_survives_a_cancelled_source(opened: Open):
    """A CancelledError from a provider counts as a failure."""

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


def test_refresher_survives_a_failing_watch(opened: Open):
    """It counts as a failure, and the source is tried again."""

    class Unwatched(Provider):
        failures = 2

        def watch(self, changed: Callable[[], None]) -> None:
            self.failures -= 1
            if self.failures > 0:
                raise ZeroDivisionError

    registry, why = opened(Unwatched(["a"]))
    assert why == {"0": "ZeroDivisionError"}
    assert registry.replaced.acquire(timeout=30)
    assert registry.names == ["s0-a"]


def test_source_may_report_a_change_after_the_refresher_is_closed():
    """A connection that ends while the process stops raises nothing in its thread."""
    provider = Provider(["a"])
    refresher = ToolsetRefresher([LiveSource("0", "s0", provider)], Registry().replace_source)
    refresher.open(30)
    refresher.close()
    provider.changed()


def test_first_failure_of_a_source_that_worked_for_long_has_the_first_pause():
    """Earlier failures and changes count no more."""
    pauses = ListingPauses()
    assert [pauses.after_failure(), pauses.after_failure()] == [1.0, 2.0]
    assert pauses.after_change(STABLE_SECONDS) == 0.0
    assert pauses.after_failure() == FIRST_PAUSE_SECONDS


def test_source_that_changes_all_the_time_is_listed_rarely():
    """A change that comes late in a pause waits for the rest of it only."""
    pauses = ListingPauses()
    assert [pauses.after_change(0.0), pauses.after_change(0.5)] == [1.0, 1.5]
