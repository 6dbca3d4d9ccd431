"""InnerAgent: an agent as a tool of another one, whose open calls wait on the outer run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sayso.agent.config import DecisionLog
from sayso.agent.decisions import Decision, RunSnapshot
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.result import AgentResult
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.pending.context import call_context
from sayso.pending.executors import PendingConfirmation


class RunInside(Protocol):
    """Runs an agent inside a tool of another one: for a request, or with decisions about a paused run."""

    async def __call__(
        self,
        request: str,
        snapshot: RunSnapshot | None,
        decisions: Mapping[str, Decision],
        decision_log: DecisionLog | None,
    ) -> AgentResult:
        """Return the result of the run."""


@dataclass(frozen=True, slots=True)
class InnerPause:
    """What the tool returns while the inner run waits: the run, and the previews of its calls."""

    snapshot: RunSnapshot
    text: str


class InnerAgent:
    """An agent as a tool. `name` is the tool's. Lives as long as the tool.

    `own_tools` returns the tools of the agent, and `policy` what decides about their calls.
    """

    def __init__(
        self, name: str, run_inside: RunInside, own_tools: Callable[[], Sequence[Tool]], policy: ToolPolicy | None
    ) -> None:
        self._name = name
        self._run_inside = run_inside
        self.own_tools = own_tools
        self.policy = policy

    async def ask(self, request: str) -> str | InnerPause | PendingConfirmation:
        """Return the agent's answer, or that a call of its run waits. Raises ToolError if there is no answer."""
        result = await self._run_inside(request, None, {}, None)
        if result.stop_reason == "pending" and result.paused is None:  # the person on the channel is asked
            _collect_proposals(result)
            return PendingConfirmation(action=self._name, preview=result.content)
        return answer_or_pause(result)

    async def go_on(
        self, snapshot: RunSnapshot, decisions: Mapping[str, Decision], decision_log: DecisionLog
    ) -> AgentResult:
        """Go on with a paused run. The decisions are noted in the log of the outer agent."""
        return await self._run_inside("", snapshot, decisions, decision_log)


def _collect_proposals(result: AgentResult) -> None:
    """Count the proposals of an inner run as those of the call that asked its agent."""
    context = call_context()
    if context.run is None or context.proposals is None:
        return
    ids = {link.id for message in result.messages for link in message.actions}
    context.proposals += [each for each in context.run.proposed if each.action.pending_action_id in ids]


def answer_or_pause(result: AgentResult) -> str | InnerPause:
    """Return what the outer run is given of an inner one. Raises ToolError if there is no answer."""
    if result.open_calls and result.paused is not None:
        return InnerPause(result.paused, result.content)
    if result.stop_reason in ("provider_error", "error"):
        raise ToolError("the agent could not be asked: its model did not answer")
    return result.content


def inner_tools(tools: Iterable[Tool]) -> list[tuple[Tool, ToolPolicy | None]]:
    """Return the tools of the agents that are among these tools, at any depth, with the policy of their agent."""
    found: list[tuple[Tool, ToolPolicy | None]] = []
    seen: set[int] = set()
    waiting = [agent for agent in map(inner_agent_of, tools) if agent is not None]
    while waiting:
        agent = waiting.pop(0)
        if id(agent) in seen:  # an agent may ask itself
            continue
        seen.add(id(agent))
        own = agent.own_tools()
        found += [(tool, agent.policy) for tool in own]
        waiting += [inner for inner in map(inner_agent_of, own) if inner is not None]
    return found


def inner_agent_of(tool: Tool | None) -> InnerAgent | None:
    """Return the agent that a tool asks; None if it is no such tool."""
    owner = getattr(tool.function, "__self__", None) if tool is not None else None
    return owner if isinstance(owner, InnerAgent) else None
