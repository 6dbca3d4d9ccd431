"""Runs all tool calls of one answer, in parallel where their tools allow it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.config import AgentConfig, CachedResult
from sayso.agent.guards.policy import effective_decision, is_always_denied
from sayso.agent.messages import NOT_JSON, ToolCall
from sayso.agent.run.journal import NOT_RUN_AFTER_TERMINAL, UNCLEAR, CallOutcome, Journal, text_digest
from sayso.agent.run.tool_call import CallObserver, ToolRequest
from sayso.agent.run.tool_results import Compressor, store_result
from sayso.agent.tools.context import collect_artifacts, collect_choices, collect_timer_changes, restore_timers
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.registry import CallLike, batches, unknown_tool
from sayso.agent.tools.screening import screen
from sayso.agent.tools.tool import Tool, result_for_model
from sayso.pending.concurrency import call_in_tool_thread, lend_caller_thread
from sayso.pending.context import set_position
from sayso.pending.executors import with_idempotency_key
from sayso.pending.proposals import begin_round, collect_proposals, restore_proposals

log = logging.getLogger(__name__)

#: How long a cancelled call may clean up, in seconds. After that it is left running.
STOP_SECONDS = 1.0


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Mapping[str, Tool],
    config: AgentConfig,
    journal: Journal,
    *,
    outcomes: dict[int, CallOutcome],
    started: set[int] | None = None,
    unclear: Sequence[ToolCall] = (),
    compressor: Compressor | None = None,
    observer: CallObserver | None = None,
) -> list[CallOutcome]:
    """Run every call whose outcome is not known yet. Return the outcomes in the order of the calls.

    A call that repeats one of the `unclear` calls is not run. `outcomes` and `started` are updated as calls start and
    end, so that the caller sees the progress when this is cancelled. Raises LeaseLost if another worker has taken over.
    """
    begin_round()
    for outcome in outcomes.values():
        restore_proposals(outcome.proposals)
        restore_timers(outcome.timers)
    requests = [await _check_call(call, tools, config) for call in calls]
    runner = _CallsRunner(
        calls=calls,
        requests=requests,
        tools=tools,
        config=config,
        journal=journal,
        unclear=[*unclear, *(outcome.call for outcome in outcomes.values() if outcome.unclear)],
        compressor=compressor,
        observer=observer or CallObserver(),
        outcomes=outcomes,
        started=set() if started is None else started,
    )
    await runner.run([at for at in range(len(calls)) if at not in outcomes])
    return [outcomes[at] for at in range(len(calls))]


async def _check_call(call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig) -> ToolRequest | CallOutcome:
    """Return the request, or the outcome of a call that is invalid."""
    tool = tools.get(call.tool_name)
    if tool is None:
        known = [name for name, each in tools.items() if not is_always_denied(each, config.tool_policy)]
        return CallOutcome(call, f"Error: {unknown_tool(call.tool_name, known)}")
    if NOT_JSON in call.parameters:
        return CallOutcome(call, f"Error: {call.tool_name!r} was called with {NOT_JSON}: {call.parameters[NOT_JSON]!r}")
    try:
        if not tool.knows_its_schema:
            await call_in_tool_thread(tool.schema)  # calls the injector, which may block
        checked = tool.check(call.parameters)
        args = checked.json if config.tool_policy is not None else {}  # only a policy reads them here
        return ToolRequest(call, tool, checked, effective_decision(tool, args, config.tool_policy))
    except ToolError as exc:
        return CallOutcome(call, screen(tool.name, f"Error: {exc}") if tool.screen_output else f"Error: {exc}")


@dataclass(slots=True)
class _CallsRunner:
    """Runs the calls of one answer. The journal records each call before it starts."""

    calls: Sequence[ToolCall]
    requests: Sequence[ToolRequest | CallOutcome]
    tools: Mapping[str, Tool]
    config: AgentConfig
    journal: Journal
    unclear: Sequence[ToolCall]
    compressor: Compressor | None
    observer: CallObserver
    outcomes: dict[int, CallOutcome]
    started: set[int]

    async def run(self, remaining: Sequence[int]) -> None:
        """Run these calls. An outcome is written together with the start of the next calls.

        Without `parallel_tool_execution`, the first terminal result ends the run at once (seed: Terminal Actions).
        """
        for group in self._groups(remaining):
            if not self.config.parallel_tool_execution and self._has_terminal_result():
                for at in group:
                    await self._record(at, CallOutcome(self.calls[at], NOT_RUN_AFTER_TERMINAL))
                continue
            requests = await self._calls_to_start(group)
            await self.journal.save(*filter(self._must_not_repeat, requests))
            if len(group) == 1:
                for at, request in requests.items():
                    self.outcomes[at] = await self._run_call(at, request)
            else:
                await self._run_in_parallel(requests)
        await self.journal.save()

    def _groups(self, remaining: Sequence[int]) -> list[list[int]]:
        """Return the calls in groups that run in parallel.

        If a call is reviewed, all run one after another: of two proposals the first must win, not the faster one.
        """
        is_sequential = len(remaining) == 1 or not self.config.parallel_tool_execution
        if is_sequential or any(map(_is_reviewed, self.requests)):
            return [[at] for at in remaining]
        groups = batches([self.calls[at] for at in remaining], self._is_concurrency_safe)
        return [[remaining[index] for index in group] for group in groups]

    def _is_concurrency_safe(self, call: CallLike) -> bool:
        tool = self.tools.get(call.tool_name)
        return tool is None or tool.metadata.is_concurrency_safe

    def _has_terminal_result(self) -> bool:
        return any(outcome.ends == "terminal" for outcome in self.outcomes.values())

    async def _record(self, at: int, outcome: CallOutcome) -> None:
        self.outcomes[at] = await self.journal.record_outcome(at, outcome)

    async def _calls_to_start(self, group: Sequence[int]) -> dict[int, ToolRequest]:
        """Return the calls that passed all checks. All others have an outcome now."""
        if len(group) == 1:  # one call needs no task
            checked = [await self._check_before_start(group[0])]
        else:
            checked = await asyncio.gather(*map(self._check_before_start, group))
        requests = {}
        for at, result in zip(group, checked, strict=True):
            if isinstance(result, CallOutcome):
                await self._record(at, result)
            else:
                requests[at] = result
        return requests

    async def _check_before_start(self, at: int) -> ToolRequest | CallOutcome:
        """Return the request if the call may start, or else its outcome."""
        request = self.requests[at]
        if self._repeats_unclear_call(at):
            return CallOutcome(self.calls[at], UNCLEAR)
        if isinstance(request, CallOutcome):
            await self.observer.on_invalid_call(request)
            return request
        if not self.observer.needs_call_before_start:
            return request
        await self.observer.on_decision(request)
        objection = await self.observer.objection(request)
        return CallOutcome(request.call, f"Error: {objection}") if objection else request

    async def _run_in_parallel(self, requests: Mapping[int, ToolRequest]) -> None:
        tasks = [asyncio.create_task(self._run_and_save(at, request)) for at, request in requests.items()]
        try:
            await asyncio.gather(*tasks)
        finally:  # no TaskGroup, which would wait for a call that does not stop
            running = [task for task in tasks if not task.done()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=STOP_SECONDS)

    async def _run_and_save(self, at: int, request: ToolRequest) -> None:
        with lend_caller_thread(False):  # parallel calls need threads of their own
            self.outcomes[at] = await self._run_call(at, request)
        await self.journal.save()

    async def _run_call(self, at: int, request: ToolRequest) -> CallOutcome:
        """Run one call, and return its recorded outcome."""
        set_position(at)  # until the call ends: each parallel call has a context of its own
        self.started.add(at)
        with (
            collect_artifacts() as files,
            collect_proposals() as proposals,
            collect_timer_changes() as timers,
            collect_choices() as choices,
            with_idempotency_key(self.journal.idempotency_key(at)),
        ):
            run = await self.observer.run(request, self.config)
        outcome = run.outcome
        if files or proposals or timers:
            outcome = replace(outcome, artifacts=tuple(files), proposals=tuple(proposals), timers=tuple(timers))
        if choices and run.error is None:
            outcome = replace(outcome, choices=tuple(choices))
        if run.raw is not None and (self.compressor is not None or run.key):
            outcome = await self._compress_and_cache(at, request, outcome, run.raw, run.key)
        return await self.journal.record_outcome(at, outcome)

    async def _compress_and_cache(
        self, at: int, request: ToolRequest, outcome: CallOutcome, raw: str, key: str
    ) -> CallOutcome:
        """Return the outcome with a long result summarized, and store the result in the cache."""
        result = CachedResult(raw)
        if self.compressor is not None and not outcome.ends and self.compressor.is_due(raw):
            if self._must_not_repeat(at):  # a worker that takes over during the summary must know the outcome
                outcome = await self.journal.record_outcome(at, outcome)
                await self.journal.save()
            summary = await self.compressor.compress(request.tool.name, raw)
            content = await result_for_model(request.tool, raw, summary=summary.text, mark=summary.mark)
            outcome = replace(outcome, content=content, raw_digest=text_digest(raw), usage=summary.usage)
            result = CachedResult(raw, summary.text, summary.mark) if summary.mark else result
            if summary.failed:
                return outcome
        has_effects = outcome.artifacts or outcome.proposals or outcome.timers or outcome.choices
        if key and not has_effects and self.config.tool.cache is not None:
            await store_result(self.config.tool.cache, key, result, request.tool.cache_ttl)
        return outcome

    def _must_not_repeat(self, at: int) -> bool:
        """Return whether the call has an effect now, and its tool is not `repeatable`."""
        request = self.requests[at]
        if isinstance(request, CallOutcome) or request.tool.repeatable or self._repeats_unclear_call(at):
            return False
        return request.runs_now

    def _repeats_unclear_call(self, at: int) -> bool:
        """Return whether an unclear call may have had the effect of this call: the same tool with equal arguments."""
        call = self.calls[at]
        candidates = [other for other in self.unclear if other.tool_name == call.tool_name]
        return any(_arguments(other, self.tools) == _arguments(call, self.tools) for other in candidates)


def _is_reviewed(request: ToolRequest | CallOutcome) -> bool:
    return isinstance(request, ToolRequest) and request.decision.decision == "review"


def _arguments(call: ToolCall, tools: Mapping[str, Tool]) -> Mapping[str, Any]:
    """Return the validated arguments of a call, or the given ones if they are invalid."""
    try:
        return tools[call.tool_name].validate_json(call.parameters)
    except (KeyError, ToolError):
        return call.parameters


class ToolSchemas:
    """Reads the schemas of tools for one agent.

    A tool whose schema fails is left out, so that turns without it get an answer. It is logged once until it works
    again.
    """

    def __init__(self) -> None:
        self._failing: set[str] = set()

    async def of(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        """Return the schemas of the tools that work. An injector may block, so it is called in a thread."""
        return [schema for tool in tools if (schema := await self._schema(tool)) is not None]

    async def _schema(self, tool: Tool) -> dict[str, Any] | None:
        try:
            schema = tool.schema() if tool.knows_its_schema else await call_in_tool_thread(tool.schema)
        except ToolError as exc:
            if tool.name not in self._failing:
                log.warning("tool.left_out", extra={"tool": tool.name, "why": str(exc)})
            self._failing.add(tool.name)
            return None
        self._failing.discard(tool.name)
        return schema
