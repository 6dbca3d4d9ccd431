"""InnerAgent: an agent as a tool of another one, whose open calls wait on the outer run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sayso.agent.decisions import Decision, RunSnapshot
from sayso.agent.result import AgentResult
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.pending.executors import PendingConfirmation


class RunInside(Protocol):
    """Runs an agent inside a tool of another one: for a request, or with decisions about a paused run."""

    async def __call__(
        self, request: str, snapshot: RunSnapshot | None, decisions: Mapping[str, Decision]
    ) -> AgentResult:
        """Return the result of the run."""


@dataclass(frozen=True, slots=True)
class InnerPause:
    """What the tool returns while the inner run waits: the run, and the previews of its calls."""

    snapshot: RunSnapshot
    text: str


class InnerAgent:
    """An agent as a tool. `name` is the tool's. Lives as long as the tool."""

    def __init__(self, name: str, run_inside: RunInside) -> None:
        self._name = name
        self._run_inside = run_inside

    async def ask(self, request: str) -> str | InnerPause | PendingConfirmation:
        """Return the agent's answer, or that a call of its run waits. Raises ToolError if there is no answer."""
        result = await self._run_inside(request, None, {})
        if result.stop_reason == "pending" and result.paused is None:  # the person on the channel is asked
            return PendingConfirmation(action=self._name, preview=result.content)
        return answer_or_pause(result)

    async def go_on(self, snapshot: RunSnapshot, decisions: Mapping[str, Decision]) -> AgentResult:
        """Go on with a paused run."""
        return await self._run_inside("", snapshot, decisions)


def answer_or_pause(result: AgentResult) -> str | InnerPause:
    """Return what the outer run is given of an inner one. Raises ToolError if there is no answer."""
    if result.open_calls and result.paused is not None:
        return InnerPause(result.paused, result.content)
    if result.stop_reason in ("provider_error", "error"):
        raise ToolError("the agent could not be asked: its model did not answer")
    return result.content


def inner_agent_of(tool: Tool | None) -> InnerAgent | None:
    """Return the agent that a tool asks; None if it is no such tool."""
    owner = getattr(tool.function, "__self__", None) if tool is not None else None
    return owner if isinstance(owner, InnerAgent) else None
