"""Calls: runs the tool calls of one model answer, each under its policy and apart from the others' errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.config import AgentConfig, ConfirmAction
from agent.journal import UNCLEAR, CallOutcome, Journal
from agent.messages import ToolCall
from agent.policy import PolicyDecision
from agent.tools.artifacts import collect_artifacts
from agent.tools.errors import ToolError
from agent.tools.registry import unknown_tool
from agent.tools.screening import screen
from agent.tools.timers import collect_timers, restore_timers
from agent.tools.tool import Tool, serialise
from pending.executors import keyed
from pending.proposals import begin_round, collect_proposals, in_channel_run, place, restore
from pending.results import PendingConfirmation
from workers.offload import in_thread, within

#: Seconds that a call which is cut off has to clean up; what takes longer is left to itself.
STOP_SECONDS = 1.0


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Mapping[str, Tool],
    config: AgentConfig,
    journal: Journal,
    *,
    known: Mapping[int, CallOutcome],
    unclear: Sequence[ToolCall] = (),
) -> list[CallOutcome]:
    """Run every call but those whose outcome is known, by index; the outcomes come in the order of the calls, however
    long each took. What repeats one of the `unclear` calls is not run. Raises LaneError.
    """
    begin_round()
    for outcome in known.values():
        restore(outcome.proposals)
        restore_timers(outcome.timers)
    new = _Calls(
        calls, tools, config, journal, [*unclear, *(outcome.call for outcome in known.values() if outcome.unclear)]
    )
    left = [at for at in range(len(calls)) if at not in known]
    made = await (new.at_once(left) if new.may_run_at_once else new.one_by_one(left))
    return [{**known, **made}[at] for at in range(len(calls))]


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of one answer and what they are run with. The journal hears of each before it begins."""

    calls: Sequence[ToolCall]
    tools: Mapping[str, Tool]
    config: AgentConfig
    journal: Journal
    unclear: Sequence[ToolCall]

    @property
    def may_run_at_once(self) -> bool:
        """Reviewed calls run one after the other: of two proposals the first must win, not the faster."""
        if len(self.calls) == 1 or not self.config.parallel_tool_execution:
            return False
        return not any(self._word_on(call) == "review" for call in self.calls)

    async def at_once(self, left: Sequence[int]) -> dict[int, CallOutcome]:
        await self.journal.save(*filter(self._only_once, left))
        tasks = [asyncio.create_task(self._in_place(at)) for at in left]
        try:
            return dict(zip(left, await asyncio.gather(*tasks), strict=True))
        finally:  # where one of them lost the lane, the others have lost it too
            await _stopped([task for task in tasks if not task.done()])

    async def one_by_one(self, left: Sequence[int]) -> dict[int, CallOutcome]:
        """A result is written together with the begin of the next call."""
        outcomes = {}
        for at in left:
            await self.journal.save(*filter(self._only_once, [at]))
            outcomes[at] = await self._run(at)
        await self.journal.save()
        return outcomes

    async def _in_place(self, at: int) -> CallOutcome:
        place.set(at)  # in this call's own task
        outcome = await self._run(at)
        await self.journal.save()
        return outcome

    async def _run(self, at: int) -> CallOutcome:
        call = self.calls[at]
        if _is_among(call, self.unclear):
            return await self.journal.keep(at, CallOutcome(call, UNCLEAR))
        with (
            collect_artifacts() as files,
            collect_proposals() as proposals,
            collect_timers() as timers,
            keyed(self.journal.key(at)),
        ):
            outcome = await run_call(call, self.tools, self.config)
        made = replace(outcome, artifacts=tuple(files), proposals=tuple(proposals), timers=tuple(timers))
        return await self.journal.keep(at, made)

    def _only_once(self, at: int) -> bool:
        """Whether the call acts at once, and nobody promised that it may act again."""
        call = self.calls[at]
        word, tool = self._word_on(call), self.tools.get(call.tool_name)
        acts = word == "allow" or (word == "review" and not in_channel_run())
        return acts and tool is not None and not tool.repeatable and not _is_among(call, self.unclear)

    def _word_on(self, call: ToolCall) -> str:
        """The policy's word on a call, "" for one that cannot be run."""
        tool = self.tools.get(call.tool_name)
        if tool is None:
            return ""
        try:
            return decide(tool, tool.validate_json(call.parameters), self.config).decision
        except ToolError:
            return ""


async def _stopped(tasks: Sequence[asyncio.Task[CallOutcome]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS)


def _is_among(call: ToolCall, calls: Sequence[ToolCall]) -> bool:
    return any((call.tool_name, call.parameters) == (other.tool_name, other.parameters) for other in calls)


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
