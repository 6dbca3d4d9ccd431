"""run_calls: runs all tool calls of one answer, in parallel where their tools allow it.

`tool_call.py` runs one call. This module decides which calls run at the same time, what the journal
must know before each starts, and which call must not be repeated because its outcome is unknown
(`unknown_outcomes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sayso.agent.config import AgentConfig, CachedResult
from sayso.agent.guards.policy import effective_decision
from sayso.agent.messages import NOT_JSON, ToolCall
from sayso.agent.providers.pricing import with_cost
from sayso.agent.run.result_summaries import store_result, with_summary
from sayso.agent.run.state import (
    NOT_RUN_AFTER_TERMINAL,
    CallOutcome,
    Journal,
    OpenRound,
    RunState,
    text_digest,
)
from sayso.agent.run.tool_call import ToolCaller, ToolRequest
from sayso.agent.run.unknown_outcomes import (
    UNKNOWN_OUTCOME,
    CallWithUnknownOutcome,
    calls_with_unknown_outcome,
    may_have_run_reason,
)
from sayso.agent.tools.environment import Artifact, ToolEnvironment
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.registry import batches, unknown_tool
from sayso.agent.tools.scheduling import restore_timers
from sayso.agent.tools.screening import screen
from sayso.agent.tools.timers import TimerChange
from sayso.agent.tools.tool import Tool
from sayso.infra.concurrency import gather_all, keep_caller_thread
from sayso.pending.call_context import ProposedAction, call_context, own_context
from sayso.pending.effect import EffectStart
from sayso.pending.proposals import begin_round, in_channel_run, restore_proposals

#: How long a cancelled call may clean up, in seconds. After that it is left running.
STOP_SECONDS = 1.0


async def run_calls(
    run: RunState,
    round_: OpenRound,
    tools: Mapping[str, Tool],
    config: AgentConfig,
    caller: ToolCaller,
) -> list[CallOutcome]:
    """Run every call of the round whose outcome is not known yet.

    `round_` has the calls of one answer, and the outcomes that an earlier attempt journaled. It is
    updated as calls start and end, so that the caller sees the progress when this is cancelled.
    `tools` are those that the answer may call, by name. Return the outcomes in the order of the
    calls. Raises LeaseLost if another worker has taken over.
    """
    begin_round()
    calls = round_.answer.tool_calls
    outcomes = round_.outcomes

    # What the earlier attempt proposed and scheduled is part of this turn.
    for outcome in outcomes.values():
        restore_proposals(outcome.proposals)
        restore_timers(outcome.timer_changes)

    requests = [await check_call(call, tools, config, may_pause=run.may_pause) for call in calls]
    if in_channel_run():
        unknown_before = calls_with_unknown_outcome(run.history)
        requests = [_reviewed_if_repeated(request, unknown_before, tools) for request in requests]

    unknown_of_round = [outcome.call for outcome in outcomes.values() if outcome.is_unknown]
    runner = _CallsRunner(
        run=run,
        round=round_,
        requests=requests,
        tools=tools,
        config=config,
        caller=caller,
        unknown_outcomes=[*run.unknown_outcomes, *unknown_of_round],
    )
    await runner.run_all([at for at in range(len(calls)) if at not in outcomes])
    return [outcomes[at] for at in range(len(calls))]


async def check_call(
    call: ToolCall, tools: Mapping[str, Tool], config: AgentConfig, *, may_pause: bool = False
) -> ToolRequest | CallOutcome:
    """Return the call with its tool, checked arguments and the policy's decision about it.

    A call of an unknown tool or with invalid arguments returns its outcome instead, an error that
    the model reads. `tools` are those that may be called, by name. `may_pause`: see ToolRequest.
    """
    tool = tools.get(call.tool_name)
    if tool is None:
        known_tools: Iterable[Tool] = tools.values()
        if config.tool_policy:
            known_tools = config.tool_policy.without_denied(known_tools)
        error = f"Error: {unknown_tool(call.tool_name, [each.name for each in known_tools])}"
        return CallOutcome(call, error, not_run=True)

    if NOT_JSON in call.parameters:
        raw_arguments = call.parameters[NOT_JSON]
        error = f"Error: {call.tool_name!r} was called with {NOT_JSON}: {raw_arguments!r}"
        return CallOutcome(call, error, not_run=True)

    try:
        # Load the schema here: `check` would call the tool's injector itself, and block the loop.
        await tool.aschema()
        checked_args = tool.check(call.parameters)
        # Only a policy reads the arguments as JSON here, and to write them takes time.
        args: Mapping[str, Any] = {}
        if config.tool_policy is not None:
            args = checked_args.json
        decision = effective_decision(tool, args, config.tool_policy)
        return ToolRequest(call, tool, checked_args, decision, may_pause)
    except ToolError as exc:
        error = f"Error: {exc}"
        if tool.screen_output:
            error = screen(tool.name, error)
        return CallOutcome(call, error, not_run=True)


def _reviewed_if_repeated(
    request: ToolRequest | CallOutcome,
    unknown: Sequence[CallWithUnknownOutcome],
    tools: Mapping[str, Tool],
) -> ToolRequest | CallOutcome:
    """Return the request, under review if an earlier turn may have had the effect of the call.

    `unknown` are the calls of earlier turns with an unknown outcome. The user was told that they
    are not repeated, so only the user can decide that one is.
    """
    if isinstance(request, CallOutcome) or request.decision.decision != "allow":
        return request
    if request.tool.repeatable or request.tool.proposes:
        return request
    times = [each.at for each in unknown if _is_among(request.call, [each.call], tools)]
    if not times:
        return request
    reason = may_have_run_reason(max(times))
    return replace(request, decision=replace(request.decision, decision="review", reason=reason))


@dataclass(slots=True)
class _CallsRunner:
    """Runs the calls of one answer. Lives as long as they run.

    The journal records each call before it starts. If the start of a call is recorded and its
    outcome is not, the outcome is unknown to the next worker.
    """

    run: RunState
    round: OpenRound
    #: For each call of the answer what is to run, or the outcome of one that is invalid.
    requests: Sequence[ToolRequest | CallOutcome]
    tools: Mapping[str, Tool]
    config: AgentConfig
    caller: ToolCaller
    #: The calls of this run with an unknown outcome: none of them is repeated.
    unknown_outcomes: Sequence[ToolCall]

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls of the answer."""
        return self.round.answer.tool_calls

    @property
    def journal(self) -> Journal:
        """The journal of the run."""
        return self.run.request.journal

    async def run_all(self, remaining: Sequence[int]) -> None:
        """Run these calls, given by their indexes in the answer.

        Without `parallel_tool_execution`, the first result of a terminal tool ends the run at once:
        the calls behind it do not run.
        """
        outcomes = self.round.outcomes
        for group in self._groups(remaining):
            has_ended = any(each.ends == "terminal" for each in outcomes.values())
            if has_ended and not self.config.parallel_tool_execution:
                for at in group:
                    not_run = CallOutcome(self.calls[at], NOT_RUN_AFTER_TERMINAL, not_run=True)
                    outcomes[at] = await self.journal.record_outcome(at, not_run)
                continue

            # One write for two things: the outcomes of the calls before, and the start of these.
            requests = await self._calls_to_start(group)
            starting = [at for at in requests if self._begins_at_once(at)]
            await self.journal.save(*starting)

            if len(group) == 1:
                for at, request in requests.items():
                    outcomes[at] = await self._run_call(at, request)
            else:
                calls = (self._run_and_save(at, request) for at, request in requests.items())
                await gather_all(calls, stop_seconds=STOP_SECONDS)
        await self.journal.save()

    def _groups(self, remaining: Sequence[int]) -> list[list[int]]:
        """Return the indexes of the calls in groups; the calls of one group run at the same time.

        If a call is under review, all run one after another: of two proposals the first must win,
        not the faster one.
        """
        is_sequential = len(remaining) == 1 or not self.config.parallel_tool_execution
        requests = [request for request in self.requests if isinstance(request, ToolRequest)]
        has_review = any(request.decision.decision == "review" for request in requests)
        if is_sequential or has_review:
            return [[at] for at in remaining]

        def is_concurrency_safe(call: ToolCall) -> bool:
            tool = self.tools.get(call.tool_name)
            return tool is None or tool.metadata.is_concurrency_safe

        groups = batches([self.calls[at] for at in remaining], is_concurrency_safe)
        return [[remaining[index] for index in group] for group in groups]

    async def _calls_to_start(self, group: Sequence[int]) -> dict[int, ToolRequest]:
        """Return the calls that passed all checks, by index. All others get their outcome here."""
        if len(group) == 1:  # one call needs no task of asyncio
            results = [await self._check_before_start(group[0])]
        else:
            results = await asyncio.gather(*map(self._check_before_start, group))
        requests = {}
        for at, result in zip(group, results, strict=True):
            if isinstance(result, CallOutcome):
                self.round.outcomes[at] = await self.journal.record_outcome(at, result)
            else:
                requests[at] = result
        return requests

    async def _check_before_start(self, at: int) -> ToolRequest | CallOutcome:
        """Return the request if the call may start, or else its outcome."""
        request = self.requests[at]
        if self._repeats_unknown_outcome(at):
            return CallOutcome(self.calls[at], UNKNOWN_OUTCOME, not_run=True)
        if isinstance(request, CallOutcome):
            is_known = self.calls[at].tool_name in self.tools
            await self.caller.on_invalid_call(request, is_known=is_known)
            return request
        objection = await self.caller.on_decision(request)
        if objection:
            return CallOutcome(request.call, f"Error: {objection}", not_run=True)
        return request

    async def _run_and_save(self, at: int, request: ToolRequest) -> None:
        """Run one of several parallel calls, and store its outcome at once.

        The others may still take long, and this worker may die meanwhile.
        """
        keep_caller_thread()
        self.round.outcomes[at] = await self._run_call(at, request)
        await self.journal.save()

    async def _run_call(self, at: int, request: ToolRequest) -> CallOutcome:
        """Run one call, and return its recorded outcome.

        What the tool hands over besides its result (files, timers, proposals, choices) is collected
        in the ToolEnvironment of the call.

        A tool with `marks_effect` prepares its effect first, and says where it begins. If its call
        is cut off before that, it counts as one that did not start.
        """
        self.round.started.add(at)
        effect = call_context().effect
        if request.tool.marks_effect:
            effect = EffectStart(partial(self._note_effect, at, effect))
        files: list[Artifact] = []
        timer_changes: list[TimerChange] = []
        proposals: list[ProposedAction] = []
        choices: list[str] = []
        suspicions: list[str] = []
        key = self.journal.begin_call(at)

        with own_context(ToolEnvironment) as own:
            own.artifacts = files
            own.timer_changes = timer_changes
            own.choices = choices
            own.suspicions = suspicions
            own.proposals = proposals
            own.position = at
            own.idempotency_key = key or own.idempotency_key
            own.effect = effect
            try:
                tool_run = await self.caller.run(request, suspicions)
            finally:
                # From here on the effect cannot begin any more.
                if request.tool.marks_effect and effect is not None:
                    has_begun = effect.close()
                    if not has_begun:
                        self.round.started.discard(at)

        outcome = tool_run.outcome
        if files or proposals or timer_changes:
            outcome = replace(
                outcome,
                artifacts=tuple(files),
                proposals=tuple(proposals),
                timer_changes=tuple(timer_changes),
            )
        if choices and tool_run.error is None:
            outcome = replace(outcome, choices=tuple(choices))
        if tool_run.raw is not None and (self.run.compressor is not None or tool_run.key):
            outcome = await self._compress_and_cache(
                at, request, outcome, tool_run.raw, tool_run.key
            )
        return await self.journal.record_outcome(at, outcome)

    async def _compress_and_cache(
        self, at: int, request: ToolRequest, outcome: CallOutcome, raw: str, key: str
    ) -> CallOutcome:
        """Return the outcome with a long result summarized, and store the result in the cache.

        `raw` is the result as the tool returned it, `key` its key in the cache; "" for none.
        """
        result = CachedResult(raw)
        compressor = self.run.compressor
        if compressor is not None and compressor.is_due(raw) and self._is_read_again(outcome):
            # A worker that takes over during the summary must know the outcome.
            if self._must_not_repeat(at):
                outcome = await self.journal.record_outcome(at, outcome)
                await self.journal.save()
            summary = await compressor.compress(request.tool.name, raw)
            content, full_text = await with_summary(
                request.tool, raw, summary.text, summary.mark, self.config.result_tokens
            )
            outcome = replace(
                outcome,
                content=content,
                full_text=full_text,
                raw_digest=text_digest(raw),
                usage=with_cost(summary.usage, self.config.prices),
            )
            if summary.mark:
                result = CachedResult(raw, summary.text, summary.mark)
            if summary.failed:  # the next attempt may succeed, so nothing is cached
                return outcome

        # A cached result is reused without calling the tool, so the result must be all that the
        # call has produced.
        has_effects = (
            outcome.artifacts or outcome.proposals or outcome.timer_changes or outcome.choices
        )
        if key and not has_effects and self.config.tool.cache is not None:
            await store_result(self.config.tool.cache, key, result, request.tool.cache_ttl)
        return outcome

    def _is_read_again(self, outcome: CallOutcome) -> bool:
        """Return whether the model is asked again in this run, and so reads the result.

        If not, a summary would cost something and save nothing. The model is not asked after a
        result that ends the run, after the last iteration, and after calls that ask the user.
        """
        requests = [request for request in self.requests if isinstance(request, ToolRequest)]
        allowed = [request for request in requests if request.decision.decision != "deny"]
        has_question = not all(request.runs_now for request in allowed)
        is_last_step = self.run.iterations >= self.config.max_iterations
        return not (outcome.ends or has_question or is_last_step)

    async def _note_effect(self, at: int, outer: EffectStart | None) -> None:
        """Store that the effect of a call begins.

        `outer`: where the call is made by an agent that is itself a tool, the effect of that tool.
        It begins as well. None for any other call.
        """
        await self.journal.save(at)
        if outer is not None:
            await outer.begin()

    def _begins_at_once(self, at: int) -> bool:
        """Return whether the effect of the call may begin as soon as the call starts.

        Then the journal must have the start before. A tool with `marks_effect` says itself where
        its effect begins.
        """
        request = self.requests[at]
        marks_effect = isinstance(request, ToolRequest) and request.tool.marks_effect
        return self._must_not_repeat(at) and not marks_effect

    def _must_not_repeat(self, at: int) -> bool:
        """Return whether the call has an effect now, and its tool is not `repeatable`."""
        request = self.requests[at]
        if isinstance(request, CallOutcome) or request.tool.repeatable:
            return False
        return request.runs_now and not self._repeats_unknown_outcome(at)

    def _repeats_unknown_outcome(self, at: int) -> bool:
        """Return whether an earlier call of the run may have had the effect of this call."""
        return _is_among(self.calls[at], self.unknown_outcomes, self.tools)


def _is_among(call: ToolCall, others: Sequence[ToolCall], tools: Mapping[str, Tool]) -> bool:
    """Return whether one of the other calls has the same tool and equal arguments."""
    candidates = [other for other in others if other.tool_name == call.tool_name]
    return any(_arguments(other, tools) == _arguments(call, tools) for other in candidates)


def _arguments(call: ToolCall, tools: Mapping[str, Tool]) -> Mapping[str, Any]:
    """Return the validated arguments of a call, or the model's own if they are invalid."""
    try:
        return tools[call.tool_name].validate_json(call.parameters)
    except (KeyError, ToolError):
        return call.parameters
