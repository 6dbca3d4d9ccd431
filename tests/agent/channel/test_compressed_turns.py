"""Compressed results in a journal: a successor sees the same text, pays for it once, and repeats no effect."""

from __future__ import annotations

from itertools import count

import pytest

from sayso.agent import Message, Role, ToolConfig, UsageStats, tool
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME
from tests.contracts.rigs import Rig
from tests.workers.story import Story, call, playing

LONG = "row 1; " * 40


class Summarizer:
    """Returns a new summary each time; the worker may be killed before and after."""

    def __init__(self, story: Story) -> None:
        self.story, self.numbers = story, count(1)

    async def acomplete(self, **request):
        """Return the next summary."""
        self.story.life.at("before summary")
        said = f"summary {next(self.numbers)}"
        self.story.life.at("after summary")
        return Message(Role.ASSISTANT, said), UsageStats(7, 1, 8)


@tool
async def export(what: str) -> str:
    """Export with an effect, and return everything."""
    await playing.get().act("export", what)
    return LONG


@tool(read_only=True)
async def read(what: str) -> str:
    """Read everything."""
    await playing.get().act("read", what)
    return LONG


@pytest.fixture
def story():
    """Return a function that makes a story with one call of `export` or `read` and compression."""

    def make(name: str) -> Story:
        made = Story(Rig(), [(call(name, what="a"),), "all done"])
        options = ToolConfig(True, 100, Summarizer(made), "cheap")
        made._config = made._config.__class__(max_retries=0, tool=options)
        made.tools += [export, read]
        return made

    return make


@pytest.mark.parametrize("name", ["export", "read"])
@pytest.mark.parametrize("step", ["before model 1", "after model 1", "before commit"])
def test_successor_sees_the_same_summary(story, name, step):
    """The worker was killed after the summary: no second summary is requested, and the tool does not run again."""
    told = story(name)
    assert told.killed_at(step) == "all done"
    assert told.model.seen[-1] == ["[compressed from 280 chars] summary 1"]
    assert (told.begun["a"], next(told._config.tool.compress_provider.numbers)) == (1, 2)


@pytest.mark.parametrize("step", ["before summary", "after summary"])
def test_call_with_an_interrupted_summary_is_not_unclear(story, step):
    """The result was recorded before the summary, so the outcome is known, and the model sees the whole result."""
    told = story("export")
    assert told.killed_at(step) == "all done"
    assert (told.begun["a"], told.ended["a"]) == (1, 1)
    assert told.model.seen[-1] == [LONG]


@pytest.mark.parametrize("step", ["before summary", "after summary"])
def test_read_only_call_with_an_interrupted_summary_runs_again(story, step):
    """A read-only call may be repeated, so its long result is not recorded first."""
    told = story("read")
    assert told.killed_at(step) == "all done"
    assert told.begun["a"] == 2
    assert told.model.seen[-1][0].startswith("[compressed from 280 chars] summary ")


def test_interrupted_call_is_unclear_with_compression_too(story):
    """Compression does not change the outcome of the call."""
    told = story("export")
    told.killed_at("during export a")
    assert told.model.seen[-1] == [UNKNOWN_OUTCOME]
