"""Time limits of calls that run at once: what took too long may have taken effect, and the model reads so."""

from __future__ import annotations

import asyncio
import json

import pytest

from sayso.agent import Agent, AgentConfig, Role, ScriptedProvider, Tool, ToolCall, ToolMetadata
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
