"""All calls of one answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.messages import NOT_JSON, ToolCall
from sayso.agent.run.approval import effective_decision, is_always_denied
from sayso.agent.run.compression import Compressor
from sayso.agent.run.journal import NOT_RUN_AFTER_TERMINAL, UNCLEAR, CallOutcome, Journal, digest
from sayso.agent.run.result_cache import CachedResult, remember
from sayso.agent.run.tool_call import CallObserver, ToolRequest
from sayso.agent.tools.context import collect_artifacts, collect_choices, collect_timer_changes, restore_timers
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.registry import CallLike, batches, unknown_tool
from sayso.agent.tools.screening import screen
from sayso.agent.tools.tool import Tool, result_for_model
from sayso.pending.concurrency import in_thread, lending
from sayso.pending.executors import keyed
from sayso.pending.proposals import begin_round, collect_proposals, in_channel_run, restore, set_position

#: Seconds that a call which is cut off has to clean up; what takes longer is left to itself.
STOP_SECONDS = 1.0


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Mapping[str, Tool],
    config: AgentConfig,
    journal: Journal,
    *,
    outcomes: dict[int, CallOutcome],
    begun: set[int] | None = None,
    unclear: Sequence[ToolCall] = (),
    compressor: Compressor | None = None,
    watch: CallObserver | None = None,
) -> list[CallOutcome]:
    """Run every call but those whose outcome is known, by index; the outcomes come in the order of the calls, however
    long each took. What repeats one of the `unclear` calls is not run. Raises LaneError.

    `outcomes` and `begun` fill up as calls end and begin: whoever stops this halfway sees there how far it came.
    """
    begin_round()
    for outcome in outcomes.values():
        restore(outcome.proposals)
        restore_timers(outcome.timers)
    asked = [await _asked(call, tools, config) for call in calls]
    again = [*unclear, *(outcome.call for outcome in outcomes.values() if outcome.unclear)]
    begun = set() if begun is None else begun
    new = _Calls(calls, asked, tools, config, journal, again, compressor, watch or CallObserver(), outcomes, begun)
    await new.run([at for at in range(len(calls)) if at not in outcomes])
    return [outcomes[at] for at in range(len(calls))]


async def _asked(call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig) -> ToolRequest | CallOutcome:
    """The call, or what the model is told when it cannot be made."""
    tool = tools.get(call.tool_name)
    if tool is None:
        known = [name for name, known_tool in tools.items() if not is_always_denied(known_tool, config)]
        return CallOutcome(call, f"Error: {unknown_tool(call.tool_name, known)}")
    if NOT_JSON in call.parameters:
        return CallOutcome(call, f"Error: {call.tool_name!r} was called with {NOT_JSON}: {call.parameters[NOT_JSON]!r}")
    try:
        if not tool.knows_its_schema:
            await in_thread(tool.schema)  # asks the injector, which may block
        checked = tool.check(call.parameters)
        args = checked.json if config.tool_policy is not None else {}  # which nobody else reads now
        return ToolRequest(call, tool, checked, effective_decision(tool, args, config))
    except ToolError as exc:
        return CallOutcome(call, screen(tool.name, f"Error: {exc}") if tool.screen_output else f"Error: {exc}")


@dataclass(slots=True)
class _Calls:
    """The calls of one answer and what they are run with. The journal hears of each before it begins."""

    calls: Sequence[ToolCall]
    asked: Sequence[ToolRequest | CallOutcome]
    tools: Mapping[str, Tool]
    config: AgentConfig
    journal: Journal
    unclear: Sequence[ToolCall]
    compressor: Compressor | None
    watch: CallObserver
    outcomes: dict[int, CallOutcome]
    begun: set[int]

    async def run(self, left: Sequence[int]) -> None:
        """Run these. A result is written together with the begin of what comes next.

        One after the other, they stop at the first terminal result: the run ends with it at once (seed: Terminal
        Actions).
        """
        for group in self._groups(left):
            if not self.config.parallel_tool_execution and self._has_terminal_result():
                await self._skip(group)
                continue
            passed = await self._passed(group)
            await self.journal.save(*filter(self._only_once, passed))
            if len(group) == 1:
                await self._one_by_one(passed)
            else:
                await self._at_once(passed)
        await self.journal.save()

    def _has_terminal_result(self) -> bool:
        return any(outcome.ends == "terminal" for outcome in self.outcomes.values())

    async def _skip(self, group: Sequence[int]) -> None:
        for at in group:
            self.outcomes[at] = await self.journal.keep(at, CallOutcome(self.calls[at], NOT_RUN_AFTER_TERMINAL))

    async def _passed(self, group: Sequence[int]) -> dict[int, ToolRequest]:
        """Those that are to begin; the others have an outcome. What is still looked at has not begun, whoever is killed
        meanwhile.
        """
        at_once = len(group) > 1  # one alone needs no task
        looked_at = await asyncio.gather(*map(self._looked_at, group)) if at_once else [await self._looked_at(group[0])]
        passed = {}
        for at, each in zip(group, looked_at, strict=True):
            if isinstance(each, CallOutcome):
                self.outcomes[at] = await self.journal.keep(at, each)
            else:
                passed[at] = each
        return passed

    async def _looked_at(self, at: int) -> ToolRequest | CallOutcome:
        """The call if it is to begin, else what the model is told instead."""
        asked = self.asked[at]
        if self._repeats_unclear(at):
            return CallOutcome(self.calls[at], UNCLEAR)
        if isinstance(asked, CallOutcome):
            await self.watch.refused(asked)
            return asked
        if not self.watch.looks_at_calls:
            return asked
        await self.watch.decided(asked)
        objection = await self.watch.objection(asked)
        return CallOutcome(asked.call, f"Error: {objection}") if objection else asked

    def _groups(self, left: Sequence[int]) -> list[list[int]]:
        """What runs at once. Reviewed calls run one after the other: of two proposals the first must win, not the
        faster.
        """
        is_alone = len(left) == 1 or not self.config.parallel_tool_execution
        if is_alone or any(map(_is_reviewed, self.asked)):
            return [[at] for at in left]
        groups = batches([self.calls[at] for at in left], self._may_run_beside_others)
        return [[left[number] for number in group] for group in groups]

    def _may_run_beside_others(self, call: CallLike) -> bool:
        tool = self.tools.get(call.tool_name)
        return tool is None or tool.metadata.is_concurrency_safe

    async def _one_by_one(self, group: Mapping[int, ToolRequest]) -> None:
        for at, asked in group.items():
            self.outcomes[at] = await self._made(at, asked)

    async def _at_once(self, group: Mapping[int, ToolRequest]) -> None:
        tasks = [asyncio.create_task(self._run_and_save(at, asked)) for at, asked in group.items()]
        try:
            await asyncio.gather(*tasks)
        finally:  # where one of them lost the lane, the others have lost it too
            await _stopped([task for task in tasks if not task.done()])

    async def _run_and_save(self, at: int, asked: ToolRequest) -> None:
        with lending(False):  # what runs at once has threads of its own
            self.outcomes[at] = await self._made(at, asked)
        await self.journal.save()

    async def _made(self, at: int, asked: ToolRequest) -> CallOutcome:
        """What one call comes to, once it is kept."""
        set_position(at)  # for as long as this call runs, in its task or before the next one
        self.begun.add(at)
        with (
            collect_artifacts() as files,
            collect_proposals() as proposals,
            collect_timer_changes() as timers,
            collect_choices() as choices,
            keyed(self.journal.key(at)),
        ):
            ran = await self.watch.watched(asked, self.config)
        made = ran.outcome
        if files or proposals or timers:
            made = replace(made, artifacts=tuple(files), proposals=tuple(proposals), timers=tuple(timers))
        if choices and ran.error is None:
            made = replace(made, choices=tuple(choices))
        if ran.raw is not None and (self.compressor is not None or ran.key):
            made = await self._finished(at, asked, made, ran.raw, ran.key)
        return await self.journal.keep(at, made)

    async def _finished(self, at: int, asked: ToolRequest, made: CallOutcome, raw: str, key: str) -> CallOutcome:
        """The outcome as the model sees it, compressed where it is too long, and kept for the next time."""
        kept = CachedResult(raw)
        if self.compressor is not None and not made.ends and self.compressor.is_due(raw):
            if self._only_once(at):  # whoever takes over during the summary must know how the call ended
                made = await self.journal.keep(at, made)
                await self.journal.save()
            summary = await self.compressor.compress(asked.tool.name, raw)
            content = await result_for_model(asked.tool, raw, summary=summary.text, mark=summary.mark)
            made = replace(made, content=content, raw_digest=digest(raw), usage=summary.usage)
            kept = CachedResult(raw, summary.text, summary.mark) if summary.mark else kept
            if summary.failed:
                return made
        if key and not (made.artifacts or made.proposals or made.timers or made.choices):
            await _remember(asked.tool, key, kept, self.config)
        return made

    def _only_once(self, at: int) -> bool:
        """Whether the call acts at once, and nobody promised that it may act again."""
        asked = self.asked[at]
        if isinstance(asked, CallOutcome) or asked.tool.repeatable or self._repeats_unclear(at):
            return False
        word = asked.decision.decision
        return word == "allow" or (word == "review" and not in_channel_run())

    def _repeats_unclear(self, at: int) -> bool:
        """Whether it does what an unclear call may have done: for another reason, or in another spelling, too."""
        call = self.calls[at]
        same = [other for other in self.unclear if other.tool_name == call.tool_name]
        return any(_deed(other, self.tools) == _deed(call, self.tools) for other in same)


async def _stopped(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS)


def _deed(call: ToolCall, tools: Mapping[str, Tool]) -> Mapping[str, Any]:
    """The arguments that a call comes to; as they are given where its tool refuses them."""
    try:
        return tools[call.tool_name].validate_json(call.parameters)
    except (KeyError, ToolError):
        return call.parameters


async def _remember(tool: Tool, key: str, result: CachedResult, config: AgentConfig) -> None:
    if config.tool.cache is not None:
        await remember(config.tool.cache, key, result, tool.cache_ttl)


def _is_reviewed(asked: ToolRequest | CallOutcome) -> bool:
    return isinstance(asked, ToolRequest) and asked.decision.decision == "review"


log = logging.getLogger(__name__)


class Schemas:
    """Reads tools for one agent. One that fails is left out, with one warning until it works again: a turn that has no
    need of it is answered.
    """

    def __init__(self) -> None:
        self._failing: set[str] = set()

    async def of(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        """Return the schemas of the tools that work. An injector is asked in a thread: it may block."""
        return [schema for tool in tools if (schema := await self._of(tool)) is not None]

    async def _of(self, tool: Tool) -> dict[str, Any] | None:
        try:
            schema = tool.schema() if tool.knows_its_schema else await in_thread(tool.schema)
        except ToolError as exc:
            if tool.name not in self._failing:
                log.warning("tool.left_out", extra={"tool": tool.name, "why": str(exc)})
            self._failing.add(tool.name)
            return None
        self._failing.discard(tool.name)
        return schema
