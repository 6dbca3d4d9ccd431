"""Compressed results in a journal: a successor sees the same text, pays nothing again, and repeats no effect."""

from __future__ import annotations

from itertools import count

import pytest

from sayso.agent import Message, Role, ToolConfig, UsageStats, tool
from sayso.agent.run.state import UNCLEAR
from tests.contracts.rigs import MemoryRig, RedisRig
from tests.workers.story import Story, call, playing

LONG = "row 1; " * 40


class Summariser:
    """Never says the same twice; its caller may die before and after."""

    def __init__(self, story: Story) -> None:
        self.story, self.numbers = story, count(1)

    async def acomplete(self, **request):
        """Another summary."""
        self.story.life.at("before summary")
        said = f"summary {next(self.numbers)}"
        self.story.life.at("after summary")
        return Message(Role.ASSISTANT, said), UsageStats(7, 1, 8)


@tool
async def export(what: str) -> str:
    """Export, for everybody to see, and return it all."""
    await playing.get().act("export", what)
    return LONG


@tool(read_only=True)
async def read(what: str) -> str:
    """Read it all."""
    await playing.get().act("read", what)
    return LONG


@pytest.fixture(params=["memory", "redis"])
def story(request):
    """One call of `export` or `read` with compression, on either kind of lanes."""

    def make(name: str) -> Story:
        client = request.getfixturevalue("redis_client") if request.param == "redis" else None
        made = Story(RedisRig(client) if client else MemoryRig(), [(call(name, what="a"),), "all done"])
        options = ToolConfig(True, 100, Summariser(made), "cheap")
        made._config = made._config.__class__(max_retries=0, tool=options)
        made.tools += [export, read]
        return made

    return make


@pytest.mark.parametrize("name", ["export", "read"])
@pytest.mark.parametrize("step", ["before model 1", "after model 1", "before commit"])
def test_successor_sees_the_same_summary(story, name, step):
    """Its worker died after the summary: no other is asked for, and the tool is not run again."""
    told = story(name)
    assert told.killed_at(step) == "all done"
    assert told.model.seen[-1] == ["[compressed from 280 chars] summary 1"]
    assert (told.begun["a"], next(told._config.tool.compress_provider.numbers)) == (1, 2)


@pytest.mark.parametrize("step", ["before summary", "after summary"])
def test_call_whose_summary_was_interrupted_is_not_unclear(story, step):
    """Its effect is known since before the summary: nobody is told that nobody knows, and the model sees it whole."""
    told = story("export")
    assert told.killed_at(step) == "all done"
    assert (told.begun["a"], told.ended["a"]) == (1, 1)
    assert told.model.seen[-1] == [LONG]


@pytest.mark.parametrize("step", ["before summary", "after summary"])
def test_read_whose_summary_was_interrupted_is_read_again(story, step):
    """It may be repeated, so no long text is written for it."""
    told = story("read")
    assert told.killed_at(step) == "all done"
    assert told.begun["a"] == 2
    assert told.model.seen[-1][0].startswith("[compressed from 280 chars] summary ")


def test_call_that_was_interrupted_itself_is_still_unclear(story):
    """Compression changes nothing about it."""
    told = story("export")
    told.killed_at("during export a")
    assert told.model.seen[-1] == [UNCLEAR]
