"""InnerAgent: an agent that another agent, the outer one, uses as a tool.

If calls of the inner run wait for a decision, the outer run waits with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sayso.agent.config import DecisionLog
from sayso.agent.decisions import Decision, RunSnapshot
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.result import AgentResult
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.pending.call_context import call_context
from sayso.pending.executors import PendingConfirmation

#: Runs an agent inside a tool of another one (`Agent._run_inside`). Its arguments are the request,
#: or a paused run to go on with, the decisions about the calls of that run, and the log to write
#: them to. It returns the result of the run.
RunInside = Callable[
    [str, RunSnapshot | None, Mapping[str, Decision], DecisionLog | None],
    Awaitable[AgentResult],
]


@dataclass(frozen=True, slots=True)
class InnerPause:
    """What the tool returns if the inner run waits for a decision of the program."""

    #: The inner run.
    snapshot: RunSnapshot
    #: The previews of its open calls.
    text: str


class InnerAgent:
    """An agent behind a tool of another one. Lives as long as the tool.

    `name` is the name of the tool. `own_tools` returns the tools of the agent behind it, and
    `policy` decides about their calls; None: the tools say themselves what needs a yes.
    """

    def __init__(
        self,
        name: str,
        run_inside: RunInside,
        own_tools: Callable[[], Sequence[Tool]],
        policy: ToolPolicy | None,
    ) -> None:
        self._name = name
        self._run_inside = run_inside
        self.own_tools = own_tools
        self.policy = policy

    async def ask(self, request: str) -> str | InnerPause | PendingConfirmation:
        """Return the agent's answer, or what its run waits for.

        An InnerPause waits for a decision of the program, a PendingConfirmation for the person on
        the channel. Raises ToolError if there is no answer.
        """
        result = await self._run_inside(request, None, {}, None)
        is_for_channel = result.stop_reason == "pending" and result.paused is None
        if is_for_channel:
            _collect_proposals(result)
            return PendingConfirmation(action=self._name, preview=result.content)
        return answer_or_pause(result)

    async def go_on(
        self,
        snapshot: RunSnapshot,
        decisions: Mapping[str, Decision],
        decision_log: DecisionLog,
    ) -> AgentResult:
        """Go on with a paused run of this agent, and return its result.

        `decision_log` is that of the outer agent.
        """
        return await self._run_inside("", snapshot, decisions, decision_log)


def _collect_proposals(result: AgentResult) -> None:
    """Count the proposals of an inner run as those of the call that asked its agent."""
    context = call_context()
    if context.run is None or context.proposals is None:
        return
    ids: set[str] = set()
    for message in result.messages:
        ids.update(link.id for link in message.actions)
    for proposed in context.run.proposed_actions:
        if proposed.action.pending_action_id in ids:
            context.proposals.append(proposed)


def answer_or_pause(result: AgentResult) -> str | InnerPause:
    """Return what the tool returns for the result of an inner run.

    Raises ToolError if there is no answer.
    """
    if result.open_calls and result.paused is not None:
        return InnerPause(result.paused, result.content)
    if result.stop_reason in ("provider_error", "error"):
        raise ToolError("the agent could not be asked: its model did not answer")
    return result.content


def inner_tools(tools: Iterable[Tool]) -> list[tuple[Tool, ToolPolicy | None]]:
    """Return the tools of all agents behind these tools, each with the policy of its agent.

    Tools of these agents may be agents again, to any depth.
    """
    pairs: list[tuple[Tool, ToolPolicy | None]] = []
    visited: set[int] = set()
    agents = _agents_behind(tools)
    while agents:
        agent = agents.pop(0)
        if id(agent) in visited:  # an agent may ask itself
            continue
        visited.add(id(agent))
        own = agent.own_tools()
        pairs += [(tool, agent.policy) for tool in own]
        agents += _agents_behind(own)
    return pairs


def _agents_behind(tools: Iterable[Tool]) -> list[InnerAgent]:
    """Return the agents that these tools ask."""
    agents = map(inner_agent_of, tools)
    return [agent for agent in agents if agent is not None]


def inner_agent_of(tool: Tool | None) -> InnerAgent | None:
    """Return the agent that a tool asks; None if the tool asks no agent."""
    if tool is None:
        return None
    owner = getattr(tool.function, "__self__", None)
    return owner if isinstance(owner, InnerAgent) else None
