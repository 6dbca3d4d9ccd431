"""Time limits of calls that run at once: what took too long may have taken effect, and the model reads so."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    Role,
    ScriptedProvider,
    Tool,
    ToolCall,
    ToolMetadata,
    tool,
)
from sayso.agent.decisions import UNKNOWN_NOTE

#: A limit of the tool itself, and one of the agent.
LIMITS = [(ToolMetadata(timeout=0.01), None), (ToolMetadata(), 0.01)]


class SlowPayment:
    """A tool that never ends, on an agent whose model calls it twice with the same arguments."""

    def __init__(
        self, metadata: ToolMetadata, seconds: float | None, *, read_only: bool = False
    ) -> None:
        self.begun = 0

        async def pay() -> str:
            self.begun += 1
            await asyncio.Event().wait()
            return "paid"

        tool = Tool("pay", "Pay.", [], pay, metadata=metadata, read_only=read_only)
        model = ScriptedProvider([ToolCall("pay"), ToolCall("pay"), "sorry"])
        self.result = Agent([tool], model, AgentConfig(tool_timeout_seconds=seconds)).run("pay")
        self.told = [
            message.content for message in self.result.messages if message.role is Role.TOOL
        ]


@pytest.mark.parametrize(("metadata", "seconds"), LIMITS)
def test_call_that_took_too_long_has_an_unknown_outcome(metadata, seconds):
    """The result has the form of all outcomes, with the error beside it. The call is not made again in the same run."""
    slow = SlowPayment(metadata, seconds)
    first, second = map(json.loads, slow.told)
    assert first["error"].endswith("gave no result within 0.01 seconds; it may still be running")
    assert {**first, "error": ""} == {"outcome": "unknown", "error": "", "note": UNKNOWN_NOTE}
    assert second == {"outcome": "unknown", "note": UNKNOWN_NOTE}
    assert (slow.begun, [call.tool_name for call in slow.result.unknown_outcomes]) == (1, ["pay"])


@pytest.mark.parametrize(("metadata", "seconds"), LIMITS)
def test_call_that_only_reads_failed_and_may_be_made_again(metadata, seconds):
    """It has no effect that could be doubled."""
    slow = SlowPayment(metadata, seconds, read_only=True)
    assert all(text.startswith("Error: ") and "timed out" in text for text in slow.told)
    assert (slow.begun, slow.result.unknown_outcomes) == (2, ())


def test_tool_that_took_too_long_is_not_cut_off_by_its_next_chunk():
    """Its loop is closed by then. An error at the chunk would stop the tool in the middle of its effect."""
    may_go_on = threading.Event()
    has_ended = threading.Event()

    @tool
    def copy():
        """Copy in two steps."""
        yield "one"
        may_go_on.wait(5)
        yield "two"
        has_ended.set()

    config = AgentConfig(tool_timeout_seconds=0.01, observers=[ChunkObserver()])
    asyncio.run(Agent([copy], ScriptedProvider([ToolCall("copy"), "sorry"]), config).arun("copy"))
    may_go_on.set()
    assert has_ended.wait(5)


class ChunkObserver(AgentObserver):
    """Receives chunks, so that they are reported."""

    def on_tool_chunk(self, *_):
        """Ignore the chunk."""
