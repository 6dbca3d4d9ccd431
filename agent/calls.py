"""Calls: runs the tool calls of one model answer, each under its policy and apart from the others' errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent.config import AgentConfig, ConfirmAction
from agent.messages import Message, Role, ToolCall
from agent.policy import PolicyDecision
from agent.tools.errors import ToolError
from agent.tools.registry import unknown_tool
from agent.tools.screening import screen
from agent.tools.tool import Tool, serialise
from pending.proposals import begin_round, in_channel_run, place
from pending.results import PendingConfirmation
from workers.offload import in_thread, within


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call came to: the text for the model and, when the run ends with it, why."""

    call: ToolCall
    content: str
    ends: Literal["", "pending", "terminal"] = ""
    #: What the user reads when the run ends here.
    closing: str = ""

    @property
    def message(self) -> Message:
        """The outcome as the model sees it."""
        return Message(Role.TOOL, self.content, tool_call_id=self.call.id, tool_name=self.call.tool_name)


async def run_calls(calls: Sequence[ToolCall], tools: Mapping[str, Tool], config: AgentConfig) -> list[CallOutcome]:
    """Run every call; the outcomes come in the order of the calls, however long each took."""
    begin_round()
    if config.parallel_tool_execution and not any(_may_propose(call, tools, config) for call in calls):
        return list(await asyncio.gather(*(_in_place(at, call, tools, config) for at, call in enumerate(calls))))
    return [await run_call(call, tools, config) for call in calls]


async def _in_place(at: int, call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig) -> CallOutcome:
    place.set(at)  # in this call's own task
    return await run_call(call, tools, config)


async def run_call(call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig) -> CallOutcome:
    """Run one call. What goes wrong is told to the model, which can correct itself; nothing is raised."""
    tool = tools.get(call.tool_name)
    if tool is None:
        return CallOutcome(call, f"Error: {unknown_tool(call.tool_name, tools)}")
    try:
        return await _gated(call, tool, config)
    except _RefusedError as exc:
        return CallOutcome(call, f"Error: {exc}")
    except ToolError as exc:
        return CallOutcome(call, _screened(tool, f"Error: {exc}"))


class _RefusedError(Exception):
    """Raised when a call must not run; the text tells the model why."""


def decide(tool: Tool, args: Mapping[str, Any], config: AgentConfig) -> PolicyDecision:
    """The policy's word on a call; a tool that requires approval is reviewed even where the policy allows it."""
    policy = config.tool_policy
    decision = policy.evaluate(tool.name, args) if policy else PolicyDecision("allow", "there is no policy")
    if tool.requires_approval and decision.decision == "allow":
        return PolicyDecision("review", f"{tool.name!r} requires approval")
    return decision


def _may_propose(call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig) -> bool:
    """Reviewed calls run one after the other: of two proposals the first must win, not the faster."""
    tool = tools.get(call.tool_name)
    if tool is None:
        return False
    try:
        return decide(tool, tool.validate_json(call.parameters), config).decision == "review"
    except ToolError:
        return False


async def _gated(call: ToolCall, tool: Tool, config: AgentConfig) -> CallOutcome:
    """What the tool, or its proposal, came to, once the policy has spoken."""
    args = tool.validate_json(call.parameters)
    decision = decide(tool, args, config)
    if decision.decision == "deny":
        raise _RefusedError(f"{tool.name!r} is denied: {decision.reason}")
    if decision.decision == "review":
        if in_channel_run():
            return _outcome(call, tool, await in_thread(lambda: tool.propose(call.parameters, reason=decision.reason)))
        await _confirmed(tool, args, decision.reason, config)
    return await _ran(call, tool, config)


async def _confirmed(tool: Tool, args: dict[str, Any], reason: str, config: AgentConfig) -> None:
    """Return once a person has said yes; raise _RefusedError on anything else, silence and failure included."""
    if config.confirm_action is None:
        raise _RefusedError(f"{tool.name!r} needs an approval that nobody can give here: {reason}")
    try:
        async with asyncio.timeout(config.approval_timeout):
            answer = await _ask_person(config.confirm_action, tool.name, args, reason)
    except TimeoutError as exc:
        raise _RefusedError(f"{tool.name!r} was not approved within {config.approval_timeout} seconds") from exc
    except Exception as exc:
        raise _RefusedError(f"{tool.name!r} was not approved: asking failed with {type(exc).__name__}") from exc
    if answer is not True:
        raise _RefusedError(f"{tool.name!r} was rejected by the user")


async def _ask_person(confirm: ConfirmAction, name: str, args: dict[str, Any], reason: str) -> Any:
    if inspect.iscoroutinefunction(confirm):
        return await confirm(name, args, reason)
    answer = await in_thread(lambda: confirm(name, args, reason))
    return await answer if inspect.isawaitable(answer) else answer


async def _ran(call: ToolCall, tool: Tool, config: AgentConfig) -> CallOutcome:
    """Run the tool. Only a tool that really ran can end the run with its result."""
    value = await _timed(call, tool, config)
    outcome = _outcome(call, tool, value)
    if not outcome.ends and (tool.terminal or _stops(tool, value, config)):
        return replace(outcome, ends="terminal", closing=outcome.content)
    return outcome


async def _timed(call: ToolCall, tool: Tool, config: AgentConfig) -> Any:
    seconds = config.tool_timeout_seconds
    try:
        async with within(seconds):
            return await tool.ainvoke(call.parameters)
    except TimeoutError as exc:
        raise _RefusedError(f"{tool.name!r} gave no result within {seconds} seconds; it may still be running") from exc


def _stops(tool: Tool, value: Any, config: AgentConfig) -> bool:
    """The stop condition sees the result as the tool gave it, before screening."""
    return config.stop_condition is not None and config.stop_condition(tool.name, serialise(value))


def _outcome(call: ToolCall, tool: Tool, value: Any) -> CallOutcome:
    content = _screened(tool, serialise(value))
    if isinstance(value, PendingConfirmation):
        return CallOutcome(call, content, "pending", value.preview)
    return CallOutcome(call, content)


def _screened(tool: Tool, content: str) -> str:
    return screen(tool.name, content) if tool.screen_output else content
