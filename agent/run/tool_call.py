"""One call: policy, arguments, run, observers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from sayso.agent.config import AgentConfig, model_for
from sayso.agent.guards.coherence import check_coherence
from sayso.agent.messages import ToolCall
from sayso.agent.observability.dispatcher import RunEvents, place_of
from sayso.agent.observability.usage import AgentAnalytics
from sayso.agent.policy import PolicyDecision
from sayso.agent.providers.base import Provider
from sayso.agent.run.approval import ToolCallRefused, confirmed
from sayso.agent.run.journal import UNCLEAR, CallOutcome, digest
from sayso.agent.run.result_cache import cache_key, recalled
from sayso.agent.swift import swift
from sayso.agent.tools.arguments import ValidatedArguments
from sayso.agent.tools.errors import EffectUnknownError, ToolError, ToolExecutionError, ToolParameterError
from sayso.agent.tools.results import ChunkCallback, serialize
from sayso.agent.tools.screening import collect_suspicions
from sayso.agent.tools.tool import Tool, result_for_model
from sayso.channels.i18n.invisible import readable
from sayso.pending.concurrency import in_thread, within
from sayso.pending.executors import PendingConfirmation
from sayso.pending.proposals import asked_preview, in_channel_run


class CoherenceCheck:
    """Lives as long as one run. `words` tells what the user said, once the guardrails have seen it."""

    def __init__(self, provider: Provider, config: AgentConfig, chronicle: RunEvents, words: Callable[[], str]) -> None:
        self._provider = config.coherence_provider or provider
        self._model = config.coherence_model or model_for(provider, config.model)
        self._config = config
        self._chronicle = chronicle
        self._words = words

    async def objection(self, call: ToolCall, description: str) -> str:
        """What the model is told of a call that nobody asked for; "" lets it through."""
        began = perf_counter()
        result = await check_coherence(
            call,
            description,
            user_words=self._words(),
            provider=self._provider,
            model=self._model,
            timeout=self._config.request_timeout,
            fail_closed=self._config.coherence_fail_closed,
        )
        self._chronicle.add_side_usage(result.usage)
        await self._chronicle.tell("coherence_check", call.tool_name, result.coherent, result.explanation)
        if result.coherent:
            return ""
        self._chronicle.note("coherence_check", began=began, tool_name=call.tool_name, error=result.explanation)
        return f"{call.tool_name!r} was not run: it does not fit what the user asked for. {result.explanation}"


def objector_of(
    provider: Provider, config: AgentConfig, chronicle: RunEvents, words: Callable[[], str]
) -> CoherenceCheck | None:
    """The objector of a run; None where nothing is checked."""
    return CoherenceCheck(provider, config, chronicle, words) if config.coherence_check else None


log = logging.getLogger(__name__)


@swift
@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call that can be made: its tool, its arguments, and the policy's word on it."""

    call: ToolCall
    tool: Tool
    checked: ValidatedArguments
    decision: PolicyDecision


@swift
@dataclass(frozen=True, slots=True)
class ToolRun:
    """What a call came to; the tool's own words where they may be summarised, and the key they may be cached under;
    or what went wrong.
    """

    outcome: CallOutcome
    raw: str | None = None
    key: str = ""
    error: Exception | None = None


async def run_call(asked: ToolRequest, config: AgentConfig, chunk_callback: ChunkCallback | None = None) -> ToolRun:
    """Run one call. What goes wrong is told to the model, which can correct itself; nothing is raised."""
    try:
        return await _gated(asked, config, chunk_callback)
    except ToolCallRefused as exc:
        return ToolRun(CallOutcome(asked.call, f"Error: {exc}"), error=exc)
    except EffectUnknownError as exc:
        return ToolRun(await _unclear(asked, f"Error: {exc}"), error=exc)
    except ToolError as exc:
        words = str(exc) if str(exc).startswith("Error ") else f"Error: {exc}"
        return ToolRun(said(asked.call, await result_for_model(asked.tool, words), words), error=exc)


async def _unclear(asked: ToolRequest, words: str) -> CallOutcome:
    """What was asked of somebody else and never answered: the person hears of it, and it is not asked twice."""
    if asked.tool.repeatable:
        return said(asked.call, await result_for_model(asked.tool, words), words)
    outcome = said(asked.call, f"{await result_for_model(asked.tool, words)}\n{UNCLEAR}", words)
    return replace(outcome, unclear=True)


async def _gated(asked: ToolRequest, config: AgentConfig, chunk_callback: ChunkCallback | None) -> ToolRun:
    """What the tool, or its proposal, came to, once the policy has spoken."""
    tool, decision = asked.tool, asked.decision
    if decision.decision == "deny":
        raise ToolCallRefused(f"{tool.name!r} is denied: {decision.reason}")
    if decision.decision == "allow":
        return await _ran_or_cached(asked, config, chunk_callback)
    if in_channel_run():
        return ToolRun(await _proposed(asked, await _asked_for(asked, config)))
    approved, params = _shown_to_person(asked)
    await confirmed(tool, approved, decision.reason, config)
    return await _ran(asked, config, chunk_callback, params=params)


async def _asked_for(asked: ToolRequest, config: AgentConfig) -> Any:
    """The proposal of a call. A preview has the time that its tool has; one that comes later asks for nothing."""
    tool, limits = asked.tool, (config.tool_timeout_seconds, asked.tool.metadata.timeout)
    limit = within(min((seconds for seconds in limits if seconds is not None), default=None))
    try:
        async with limit:
            draft = await in_thread(lambda: tool.draft(asked.call.parameters))
    except TimeoutError as exc:
        raise ToolCallRefused(f"the preview of {tool.name!r} took too long: nothing was asked for") from exc
    return draft.propose(asked.decision.reason)


def _shown_to_person(asked: ToolRequest) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The arguments that a person approves, and those to run with: the same, also of defaults that are made up anew at
    each call. What JSON does not keep, such as a secret, runs as it was given.
    """
    try:
        exact = asked.tool.validate_record(asked.call.parameters)
        return deepcopy(exact), exact
    except ToolParameterError:
        return asked.checked.json, asked.call.parameters


async def _ran_or_cached(asked: ToolRequest, config: AgentConfig, chunk_callback: ChunkCallback | None) -> ToolRun:
    """What an earlier run came to, if it is kept. Whether it ends the run, its own words decide."""
    cache = config.tool.cache
    key = cache_key(asked.tool, asked.checked.json) if cache is not None else ""
    if cache is None or not key:
        return await _ran(asked, config, chunk_callback)
    hit = await recalled(cache, key)
    if hit is None:
        return await _ran(asked, config, chunk_callback, key)
    outcome = await _result(asked, hit.raw, config)
    if not hit.compressed or outcome.ends or not config.tool.compress_results:
        return ToolRun(outcome)
    content = await result_for_model(asked.tool, hit.raw, summary=hit.compressed, mark=hit.mark)
    return ToolRun(said(asked.call, content, hit.raw))


async def _ran(
    asked: ToolRequest,
    config: AgentConfig,
    chunk_callback: ChunkCallback | None,
    key: str = "",
    *,
    params: Mapping[str, Any] | None = None,
) -> ToolRun:
    """Run the tool. Only a tool that really ran can end the run with its result."""
    if params is None:
        value = await timed(asked.call, asked.tool, config, chunk_callback, checked=asked.checked)
    else:
        value = await timed(replace(asked.call, parameters=dict(params)), asked.tool, config, chunk_callback)
    if isinstance(value, PendingConfirmation):
        return ToolRun(await _proposed(asked, value))
    raw = serialize(value)
    return ToolRun(await _result(asked, raw, config), raw, key)


async def timed(
    call: ToolCall,
    tool: Tool,
    config: AgentConfig,
    chunk_callback: ChunkCallback | None = None,
    *,
    checked: ValidatedArguments | None = None,
) -> Any:
    """The tool's own value. Of its own time limit and the agent's, the shorter one holds."""
    seconds = config.tool_timeout_seconds
    if seconds is None:
        return await tool.ainvoke(call.parameters, chunk_callback, checked=checked)
    try:
        async with within(seconds):
            return await tool.ainvoke(call.parameters, chunk_callback, checked=checked)
    except TimeoutError as exc:
        raise ToolCallRefused(
            f"Tool {tool.name!r} timed out: it gave no result within {seconds} seconds; it may still be running"
        ) from exc


async def _result(asked: ToolRequest, raw: str, config: AgentConfig) -> CallOutcome:
    """What the tool gave, and whether the run ends with it. The stop condition sees it before screening."""
    ends = _stops(config, asked.tool.name, raw) or asked.tool.terminal
    outcome = said(asked.call, await result_for_model(asked.tool, raw, whole=ends), raw)
    return replace(outcome, ends="terminal", closing=outcome.content) if ends else outcome


def _stops(config: AgentConfig, name: str, raw: str) -> bool:
    """One that fails stops nothing: the tool has acted, and its result must not be lost."""
    try:
        return config.stop_condition is not None and bool(config.stop_condition(name, raw))
    except Exception as exc:  # noqa: BLE001  # its words may quote the result: only its kind and its place are told
        log.warning(
            "agent.stop_condition_failed", extra={"tool": name, "reason": type(exc).__name__, "at": place_of(exc)}
        )
        return False


async def _proposed(asked: ToolRequest, value: Any) -> CallOutcome:
    """What a proposal came to: a question for the user, or why there is none."""
    raw = serialize(value)
    outcome = said(asked.call, await result_for_model(asked.tool, raw, whole=True), raw)
    if isinstance(value, PendingConfirmation):
        preview = asked_preview() or value.preview  # what is asked counts, whatever the tool says beside it
        closing = "\n\n".join(filter(None, [preview, readable(value.own_prompt)]))
        return replace(outcome, ends="pending", closing=closing)
    return outcome


def said(call: ToolCall, content: str, raw: str) -> CallOutcome:
    """The outcome of a call, with the text for the model that stands for the tool's own words."""
    return CallOutcome(call, content, raw_digest="" if content == raw else digest(raw))


class CallObserver:
    """Lives as long as one run."""

    def __init__(
        self,
        chronicle: RunEvents | None = None,
        analytics: AgentAnalytics | None = None,
        objector: CoherenceCheck | None = None,
    ) -> None:
        self._chronicle = chronicle or RunEvents(())
        self._analytics = analytics
        self._objector = objector

    @property
    def looks_at_calls(self) -> bool:
        """Whether anybody wants to know of a call before it begins."""
        return self._chronicle.has_observers or self._objector is not None

    def chosen(self, calls: Sequence[ToolCall], reasoning: str) -> None:
        """The model's choice of tools."""
        for call in calls:
            self._chronicle.note(
                "tool_selection", tool_name=call.tool_name, tool_args=call.parameters, reasoning=reasoning or None
            )

    async def refused(self, outcome: CallOutcome) -> None:
        """A call that cannot be made: of an unknown tool, or with arguments that it does not take."""
        call = outcome.call
        self._chronicle.note("error", tool_name=call.tool_name, tool_args=call.parameters, error=outcome.content)
        if self._chronicle.has_observers:
            error = ValueError(outcome.content.removeprefix("Error: "))
            await self._chronicle.tell("tool_error", call.id, call.tool_name, error, call.parameters, 0.0)

    async def decided(self, asked: ToolRequest) -> None:
        """The policy's word on a call."""
        if self._chronicle.has_observers:
            decision = asked.decision
            await self._chronicle.tell(
                "policy_decision", asked.tool.name, decision.decision, decision.reason, _written(asked)
            )

    async def objection(self, asked: ToolRequest) -> str:
        """Why a call that may run is not what the person asked for; "" where nothing speaks against it."""
        if self._objector is None or asked.decision.decision == "deny":
            return ""
        return await self._objector.objection(asked.call, asked.tool.description)

    async def watched(self, asked: ToolRequest, config: AgentConfig) -> ToolRun:
        """Run the call, and tell of its begin, its chunks and its end. One that is denied, or asked for, begins not."""
        call, began, begins = asked.call, perf_counter(), _begins(asked)
        counted = begins and (self._chronicle.has_observers or self._analytics is not None)
        chunks = _Chunks(self._chronicle, call) if counted else None
        if chunks:
            await self._chronicle.tell("tool_start", call.id, call.tool_name, call.parameters)
        try:
            with collect_suspicions() as suspicions:
                ran = await run_call(asked, config, chunks)
            if chunks:
                await chunks.told()
        finally:
            if chunks:
                chunks.close()
        self._chronicle.note(
            "tool_execution" if begins else "error" if ran.error else "tool_selection",
            began=began,
            tool_name=call.tool_name,
            tool_args=call.parameters,
            tool_result=ran.outcome.content,
            error=None if ran.error is None else str(ran.error),
        )
        if isinstance(ran.error, ToolError) and not isinstance(ran.error, ToolParameterError):
            self._log_failure(call, ran.error)
        if suspicions:
            await self._suspected(call, suspicions)
        if begins and self._chronicle.has_observers:
            await self._ended(call, ran, began)
        if self._analytics is not None and begins:
            seconds, count = perf_counter() - began, chunks.count if chunks else 0
            self._analytics.record_tool_call(call.tool_name, ran.error is None, seconds, call.parameters, count)
        return ran

    def _log_failure(self, call: ToolCall, error: ToolError) -> None:
        """Log what a tool raised, or its preview, under the ids that its trace and spans have. A traceback is for what
        its author did not mean to raise.
        """
        raised = _raised(error)
        expected = isinstance(raised, ToolError)
        ids = {
            "tool": call.tool_name,
            "reference": f"{self._chronicle.run_id}/{call.id}",
            "error": type(raised).__name__,
        }
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "tool.failed",
            extra=ids,
            exc_info=None if expected else raised,
        )

    async def _suspected(self, call: ToolCall, suspicions: Sequence[str]) -> None:
        kinds = ", ".join(suspicions)
        self._chronicle.note("output_screening", tool_name=call.tool_name, summary=f"{call.tool_name}: {kinds}")
        await self._chronicle.tell("guardrail_triggered", "tool_output", "screening", "warn", kinds)

    async def _ended(self, call: ToolCall, ran: ToolRun, began: float) -> None:
        error, took = ran.error, (perf_counter() - began) * 1000
        if error is None:
            await self._chronicle.tell("tool_end", call.id, call.tool_name, ran.outcome.content, took)
        else:
            raised = _raised(error)
            await self._chronicle.tell("tool_error", call.id, call.tool_name, raised, call.parameters, took)


def _raised(error: Exception) -> BaseException:
    """Return what the tool's own code raised."""
    return error.error if isinstance(error, ToolExecutionError) and error.error else error


def _written(asked: ToolRequest) -> dict[str, Any]:
    """The arguments as JSON; as the model gave them where they cannot be written down: who watches stops nothing."""
    try:
        return asked.checked.json
    except ToolParameterError:
        return asked.call.parameters


def _begins(asked: ToolRequest) -> bool:
    """Whether the tool itself is run now, as far as the policy is concerned."""
    word = asked.decision.decision
    return word == "allow" or (word == "review" and not in_channel_run())


class _Chunks:
    """Hears the pieces of a result, in whatever thread they are made, and tells them in order."""

    def __init__(self, chronicle: RunEvents, call: ToolCall) -> None:
        self._chronicle = chronicle
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._telling: list[asyncio.Task[None]] = []
        self._is_closed = False
        self.count = 0

    def __call__(self, chunk: Any) -> None:
        """One more piece. One from the loop's own thread needs no crossing, and would come too late by it."""
        self.count += 1
        if not self._chronicle.has_observers:
            return
        if threading.get_ident() == self._thread:
            self._tell(str(chunk))
        else:
            self._loop.call_soon_threadsafe(self._tell, str(chunk))

    async def told(self) -> None:
        """Return once everybody has heard of every piece."""
        while self._telling:
            await self._telling[0]
            del self._telling[0]

    def close(self) -> None:
        """The call has ended: what a tool that was left running goes on to say is nobody's business."""
        self._is_closed = True
        for task in self._telling:
            task.cancel()

    def _tell(self, chunk: str) -> None:
        if self._is_closed:
            return
        call = self._call
        told = self._chronicle.tell("tool_chunk", call.id, call.tool_name, chunk)
        self._telling.append(self._loop.create_task(told))
