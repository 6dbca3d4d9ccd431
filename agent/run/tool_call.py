"""ToolCaller: runs one tool call, and reports it.

The *policy* is the agent's rule for each tool: allow, review or deny. What follows from it stands
in a table at `ToolCaller._apply_policy`: the call runs, is refused, is proposed to the user of a
channel, or waits for the program that started the run. Whatever happens, the call ends with a
CallOutcome, and no error of a tool ends the run. `tool_calls.py` runs all calls of one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.decisions import OpenCall
from sayso.agent.guards.coherence import CoherenceCheck, check_coherence
from sayso.agent.guards.policy import (
    PolicyDecision,
    ToolCallRefused,
    editable_names,
    require_approval,
)
from sayso.agent.messages import ToolCall
from sayso.agent.observability.run_events import RunEvents, place_of
from sayso.agent.observability.usage import AgentAnalytics
from sayso.agent.providers.base import Provider
from sayso.agent.providers.pricing import with_cost
from sayso.agent.run.inner_agent import InnerPause
from sayso.agent.run.pause import DECIDED_MESSAGE, denied_calls, waiting_calls
from sayso.agent.run.result_summaries import cache_key, load_result, with_summary
from sayso.agent.run.state import CallOutcome, RunState, text_digest
from sayso.agent.run.unknown_outcomes import unknown_outcome_result
from sayso.agent.tools.arguments import ValidatedArguments
from sayso.agent.tools.definition import RESULTS, SEARCH
from sayso.agent.tools.errors import (
    EffectUnknownError,
    PreviewError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolParameterError,
)
from sayso.agent.tools.proposal_draft import ProposalDraft
from sayso.agent.tools.result_texts import ChunkCallback, serialize
from sayso.agent.tools.screening import result_for_model
from sayso.agent.tools.tool import Tool
from sayso.agent.trace import StepType
from sayso.channels.i18n.invisible import readable
from sayso.channels.markdown.literal import as_kind_of
from sayso.infra.concurrency import call_in_tool_thread, execution_timeout, is_in_loop
from sayso.pending.action import compute_args_digest
from sayso.pending.call_context import call_context
from sayso.pending.executors import PendingConfirmation, ToolResult
from sayso.pending.proposals import in_channel_run, last_proposed_preview

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ToolRequest:
    """A call of a known tool with valid arguments, before it runs. Lives as long as the call."""

    #: The call with the arguments as the model gave them.
    call: ToolCall
    tool: Tool
    #: The arguments as the tool gets them.
    checked: ValidatedArguments
    #: What the policy says about the call: allow, review or deny.
    decision: PolicyDecision
    #: Whether a call that needs an approval waits for a decision of the program that started the
    #: run.
    may_pause: bool = False

    @property
    def runs_now(self) -> bool:
        """Return whether the policy lets the tool itself run now, rather than a proposal of it.

        A call under review runs now if `confirm_action` approves it: outside of channels, in a run
        that cannot pause.
        """
        match self.decision.decision:
            case "allow":
                return True
            case "review":
                return not (self.may_pause or in_channel_run())
            case _:
                return False


@dataclass(slots=True)
class ToolRun:
    """A finished call: its outcome, and what is needed to summarize and cache its result."""

    outcome: CallOutcome
    #: The result as the tool returned it, if it may be summarized and cached; else None.
    raw: str | None = None
    #: The key under which the result is to be cached; "" not to cache it.
    key: str = ""
    #: Why the call failed, None if it did not.
    error: Exception | None = None


class ToolCaller:
    """Runs tool calls, and reports them to the trace, the observers, the analytics and the log.

    Lives as long as the calls of one answer. `provider` is the agent's model. It also checks
    *coherence*, which is whether a call fits what the user asked for, unless the configuration
    names another model. `analytics` counts the calls; None: they are not counted.
    """

    def __init__(
        self,
        run: RunState,
        provider: Provider,
        config: AgentConfig,
        analytics: AgentAnalytics | None = None,
    ) -> None:
        self._run = run
        self._events = run.events
        self._provider = provider
        self._config = config
        self._analytics = analytics

    async def on_invalid_call(self, outcome: CallOutcome, *, is_known: bool) -> None:
        """Report a call that cannot run: its tool is unknown, or its arguments are invalid.

        `outcome` has the error. `is_known`: a tool of this name exists.
        """
        call = outcome.call
        self._events.note(
            "error", tool_name=call.tool_name, tool_args=call.parameters, error=outcome.content
        )
        if self._events.has_observer_of("tool_error"):
            error_class = ValueError if is_known else ToolNotFoundError
            text = outcome.content.removeprefix("Error: ")
            error = error_class(text)
            await self._events.tell(
                "tool_error", call.id, call.tool_name, error, call.parameters, 0.0
            )

    async def on_decision(self, request: ToolRequest) -> str:
        """Report the policy's decision, and check the coherence of a call that is not denied.

        Return the objection, which the model reads, if the call does not fit what the user asked
        for; else "".
        """
        decision = request.decision
        if self._events.has_observer_of("policy_decision"):
            try:
                args = request.checked.json
            except ToolParameterError:
                # They cannot be written as JSON: observers get them as the model wrote them.
                args = request.call.parameters
            await self._events.tell(
                "policy_decision", request.tool.name, decision.decision, decision.reason, args
            )

        check = self._config.coherence
        if check is None or decision.decision == "deny":
            return ""
        # Two tools of Sayso itself need no check. One reads the rest of a result, whose call was
        # checked. The other searches for tools, and each call of a tool that it finds is checked.
        if request.tool.metadata.source in (RESULTS, SEARCH):
            return ""
        return await self._check_coherence(check, request.call, request.tool.description)

    async def _check_coherence(
        self, check: CoherenceCheck, call: ToolCall, description: str
    ) -> str:
        """Return what the model reads if the call does not fit what the user asked for, else ""."""
        config = self._config
        began = perf_counter()
        result = await check_coherence(
            call,
            description,
            user_words=self._run.user_text,
            provider=check.provider or self._provider,
            model=check.model or config.model,
            timeout=config.request_timeout,
            fail_closed=check.fail_closed,
        )
        self._events.add_side_usage(with_cost(result.usage, config.prices))
        await self._events.tell(
            "coherence_check", call.tool_name, result.coherent, result.explanation
        )
        if result.coherent:
            return ""
        self._events.note(
            "coherence_check", began=began, tool_name=call.tool_name, error=result.explanation
        )
        return (
            f"{call.tool_name!r} was not run: it does not fit what the user asked for. "
            f"{result.explanation}"
        )

    async def run(self, request: ToolRequest, suspicions: Sequence[str]) -> ToolRun:
        """Run the call, and report its start, its chunks and its end.

        A *chunk* is a piece of a result that the tool sends while it runs. Of a call that is denied
        or proposed, no start is reported. If `confirm_action` is asked, the start is reported
        before.

        `suspicions` is a list of the call's ToolEnvironment. While the call runs, the screening of
        its result writes into it which kinds of prompt injection it finds.

        Raises nothing: the model reads the error, and can correct itself.
        """
        call = request.call
        began = perf_counter()
        runs_now = request.runs_now

        # Each chunk costs a task of asyncio, so chunks are only reported where they are received.
        chunks: _ChunkReporter | None = None
        is_observed = self._events.has_observer_of("tool_start", "tool_chunk")
        if runs_now and (is_observed or self._analytics is not None):
            chunks = _ChunkReporter(self._events, call)
            await self._events.tell("tool_start", call.id, call.tool_name, call.parameters)

        try:
            run = await self._run_or_explain(request, chunks)
            if chunks:
                await chunks.wait()
        finally:
            if chunks:
                chunks.close()

        self._note_in_trace(request, run, began)
        if isinstance(run.error, ToolError) and not isinstance(run.error, ToolParameterError):
            self._log_failure(call, run.error)
        if suspicions:
            await self._report_suspicions(call, suspicions)
        if runs_now and self._events.has_observer_of("tool_end", "tool_error"):
            await self._report_end(call, run, began)
        if self._analytics is not None and runs_now:
            seconds = perf_counter() - began
            chunk_count = chunks.count if chunks else 0
            self._analytics.record_tool_call(
                call.tool_name, run.error is None, seconds, call.parameters, chunk_count
            )
        return run

    def _note_in_trace(self, request: ToolRequest, run: ToolRun, began: float) -> None:
        """Add a finished call to the trace. `began` is its start by `perf_counter`."""
        step: StepType = "tool_selection"
        if request.runs_now:
            step = "tool_execution"
        elif run.error is not None:
            step = "error"
        error_text = None if run.error is None else str(run.error)
        self._events.note(
            step,
            began=began,
            tool_name=request.call.tool_name,
            tool_args=request.call.parameters,
            tool_result=run.outcome.content,
            error=error_text,
        )

    async def _report_suspicions(self, call: ToolCall, suspicions: Sequence[str]) -> None:
        """Report which kinds of prompt injection the result may contain."""
        kinds = ", ".join(suspicions)
        self._events.note(
            "output_screening", tool_name=call.tool_name, summary=f"{call.tool_name}: {kinds}"
        )
        await self._events.tell("guardrail_triggered", "tool_output", "screening", "warn", kinds)

    def _log_failure(self, call: ToolCall, error: ToolError) -> None:
        """Log an exception of a tool or its preview with the trace's ids.

        A ToolCallRefused is no ToolError, so it never gets here: the tool did not run, and the
        trace has the reason.
        """
        raised = original_error(error)
        ids = {
            "tool": call.tool_name,
            "reference": self._reference(call),
            "error": type(raised).__name__,
        }
        # A ToolError that the tool itself raised is its normal answer, so it has no traceback.
        is_expected = raised is error
        if is_expected:
            log.warning("tool.failed", extra=ids)
        else:
            log.error("tool.failed", extra=ids, exc_info=raised)

    def _reference(self, call: ToolCall) -> str:
        """Return the reference by which an operator finds the call in the log."""
        return f"{self._events.run_id}/{call.id}"

    async def _report_end(self, call: ToolCall, run: ToolRun, began: float) -> None:
        """Report to observers how the call ended. `began` is its start by `perf_counter`."""
        error = run.error
        milliseconds = (perf_counter() - began) * 1000
        if error is None:
            await self._events.tell(
                "tool_end", call.id, call.tool_name, run.outcome.content, milliseconds
            )
        else:
            raised = original_error(error)
            await self._events.tell(
                "tool_error", call.id, call.tool_name, raised, call.parameters, milliseconds
            )

    async def _run_or_explain(self, request: ToolRequest, chunks: ChunkCallback | None) -> ToolRun:
        """Run one call. An error becomes its outcome."""
        call = request.call
        tool = request.tool
        try:
            return await self._apply_policy(request, chunks)
        except ToolCallRefused as exc:
            return ToolRun(CallOutcome(call, f"Error: {exc}", not_run=True), error=exc)
        except EffectUnknownError as exc:
            if tool.repeatable or _prevent_effect(tool):
                return ToolRun(await _error_outcome(request, exc), error=exc)
            text = str(exc)
            content = unknown_outcome_result(await result_for_model(tool, text))
            return ToolRun(replace(_outcome(call, content, text), is_unknown=True), error=exc)
        except PreviewError as exc:
            # What the preview raised is for the log alone. `not_run` stays False, so that people
            # see that the step failed: a broken preview is no refusal.
            text = f"Error: {exc} (reference {self._reference(call)})"
            return ToolRun(CallOutcome(call, text), error=exc)
        except ToolError as exc:
            outcome = await _error_outcome(request, exc)
            if not request.runs_now:
                # Nothing was asked, for example because the arguments cannot be stored.
                outcome = replace(outcome, not_run=True)
            return ToolRun(outcome, error=exc)

    async def _apply_policy(self, request: ToolRequest, chunks: ChunkCallback | None) -> ToolRun:
        """Run the tool, propose the call or ask for approval, as the policy decided.

        | the policy says | on a channel | the run may pause   | neither                          |
        |-----------------|--------------|---------------------|----------------------------------|
        | deny            | refuse       | refuse              | refuse                           |
        | allow           | run          | run                 | run                              |
        | review          | ask its user | leave the call open | run if `confirm_action` approves |

        To ask the user is a *proposal*: it is stored, and runs after a yes. A call that is left
        open waits for the program that started the run.

        Raises ToolError. Raises ToolCallRefused where the table says "refuse", for a no of
        `confirm_action`, and for a call that must not be asked about, such as one that waits
        already.
        """
        tool = request.tool
        decision = request.decision
        if decision.decision == "deny":
            raise ToolCallRefused(f"{tool.name!r} is denied: {decision.reason}")
        if decision.decision == "allow":
            return await self._run_or_reuse(request, chunks)
        if in_channel_run():
            return ToolRun(await self._proposal(request))
        if request.may_pause:
            return ToolRun(await self._open_call(request))
        return await self._run_if_approved(request, chunks)

    async def _proposal(self, request: ToolRequest) -> CallOutcome:
        """Ask the user of the channel to confirm the call. Return that question as its outcome."""
        tool = request.tool
        self._refuse_other_tool(tool)
        draft = await self.draft(request)
        editable: Sequence[str] = ()
        # A channel changes only calls of its own agent's tools.
        if not self._run.request.is_inner:
            editable = editable_names(tool, self._config.tool_policy)
        form = tool.edit_fields(editable, draft.args)
        return await _proposal_outcome(request, draft.propose(request.decision.reason, form))

    async def _run_if_approved(self, request: ToolRequest, chunks: ChunkCallback | None) -> ToolRun:
        """Run the tool once `confirm_action` has approved the call.

        Raises ToolCallRefused, and ToolError.
        """
        tool = request.tool
        config = self._config
        decision = request.decision

        # The person must approve the very arguments that run, although a default may be created
        # anew each time the arguments are checked. So the record is approved, and it runs.
        checked: ValidatedArguments | None = None
        try:
            parameters: Mapping[str, Any] = tool.validate_record(request.call.parameters)
            approved = deepcopy(dict(parameters))

            # A preview function may find that there is nothing to approve, such as an invoice that
            # does not exist. Its text is not used: `confirm_action` gets the arguments. Without
            # `confirm_action` the call is refused below, so the preview would be made for nothing.
            if callable(tool.preview) and config.confirm_action is not None:
                draft = await self.draft(request)
                if isinstance(draft.preview, ToolResult):
                    return ToolRun(await _proposal_outcome(request, draft.preview))

        # A value would read differently from a record, or `draft` found the same. Then the
        # arguments that were checked before the call are approved and run, without a preview.
        except ToolParameterError:
            approved = request.checked.json
            parameters = request.call.parameters
            checked = request.checked

        await require_approval(
            tool, approved, decision.reason, config.confirm_action, config.approval_timeout
        )
        value = await invoke(tool, parameters, config.tool_timeout_seconds, chunks, checked=checked)
        return await self._finished_run(request, value)

    async def _open_call(self, request: ToolRequest) -> CallOutcome:
        """Return the outcome of a call that waits for a decision of the program.

        If the preview finds nothing to decide, such as an invoice that does not exist, return that
        as the outcome.
        """
        call = request.call
        tool = request.tool
        draft = await self.draft(request)
        if isinstance(draft.preview, ToolResult):
            return await _proposal_outcome(request, draft.preview)
        open_call = OpenCall(
            id=call.id,
            tool_name=tool.name,
            arguments=draft.args,
            preview=readable(draft.text),
            reason=request.decision.reason,
            editable=editable_names(tool, self._config.tool_policy),
            tool_digest=draft.tool_digest,
            values_digest=draft.values_digest,
        )
        self._refuse_repetition(tool, open_call)
        return CallOutcome(
            call, "", ends="pending", final_text=open_call.preview, open_call=open_call
        )

    def _refuse_repetition(self, tool: Tool, open_call: OpenCall) -> None:
        """Raise ToolCallRefused for a call that waits already, or that the user has just denied."""
        run = self._run
        transcript = [*run.history, *run.messages]

        # Calls of earlier answers wait in the transcript, those of this answer in the open round.
        waiting = list(_digests(tool, waiting_calls(transcript)))
        if run.open_round is not None:
            for outcome in run.open_round.outcomes.values():
                other = outcome.open_call
                if other is not None and other.tool_name == tool.name:
                    waiting.append(other.args_digest)
        if open_call.args_digest in waiting:
            raise ToolCallRefused(f"the same call of {tool.name!r} waits for a decision already")

        denied = [*_digests(tool, denied_calls(transcript)), *self._denied_now(tool)]
        if open_call.args_digest in denied:
            raise ToolCallRefused(
                f"the user has just said no to the same call of {tool.name!r}: wait until they ask"
            )

    def _denied_now(self, tool: Tool) -> list[str]:
        """Return the digests of the arguments with which this tool was denied at the run's start.

        Empty if the user has written something new, since that may ask for the call again. The
        transcript alone does not show these calls, since other messages may have followed while
        they waited.
        """
        run = self._run
        # A run that only goes on after decisions has this one message, which Sayso wrote.
        has_no_new_message = [each.content for each in run.request.messages] == [DECIDED_MESSAGE]
        if not has_no_new_message:
            return []
        denied = [each for each in run.decided if each.outcome == "denied"]
        return [
            compute_args_digest(each.arguments) for each in denied if each.tool_name == tool.name
        ]

    def _refuse_other_tool(self, tool: Tool) -> None:
        """Raise ToolCallRefused for a tool of an inner agent if a yes would run another tool.

        An action is stored with the name of its tool. Two agents may have tools of one name that
        look the same to a person, such as refunds of two accounts.
        """
        # Outside of a channel no yes can follow. The tools of the channel's own agent need no check:
        # a yes looks for the name among them first.
        channel_run = call_context().run
        if channel_run is None or not self._run.request.is_inner:
            return

        # The tool that would run after a yes. None: the channel finds no tool of this name, so a
        # yes could run no other one.
        confirmed_tool = channel_run.tool_of_yes(tool.name)
        if confirmed_tool is None or confirmed_tool is tool:
            return

        is_same_code = (
            tool.function == confirmed_tool.function
            and tool.config_injector == confirmed_tool.config_injector
            and tool.injected_kwargs == confirmed_tool.injected_kwargs
        )
        if not is_same_code:
            raise ToolCallRefused(
                f"another agent here has a tool {tool.name!r} too: a yes could run that one"
            )

    async def draft(self, request: ToolRequest) -> ProposalDraft:
        """Return the preview of a call with its arguments.

        It takes no longer than the agent's time limit and that of the tool; ToolCallRefused is
        raised at the end of the shorter one. Raises ToolError if the arguments cannot be stored or
        the code of the preview fails.
        """
        tool = request.tool
        limits = [self._config.tool_timeout_seconds, tool.metadata.timeout]
        seconds = min((limit for limit in limits if limit is not None), default=None)
        try:
            async with execution_timeout(seconds):
                return await call_in_tool_thread(lambda: tool.draft(request.call.parameters))
        except TimeoutError as exc:
            problem = f"the preview of {tool.name!r} took too long: nothing was asked for"
            raise ToolCallRefused(problem) from exc

    async def _run_or_reuse(self, request: ToolRequest, chunks: ChunkCallback | None) -> ToolRun:
        """Run the tool, or use its cached result. Raises ToolError.

        The raw result decides whether the run ends, also where the model reads a summary.
        """
        call = request.call
        tool = request.tool
        config = self._config

        key = self._cache_key(request)
        cached_result = None
        if key and config.tool.cache is not None:
            cached_result = await load_result(config.tool.cache, key)

        if cached_result is None:
            value = await invoke(
                tool, call.parameters, config.tool_timeout_seconds, chunks, checked=request.checked
            )
            return await self._finished_run(request, value, key)

        outcome = await self._result_outcome(request, cached_result.raw)
        if not cached_result.compressed or outcome.ends or not config.tool.compress_results:
            return ToolRun(outcome)

        # The summary was stored with its mark, such as "[compressed from 9000 chars]", which tells
        # the model that it does not read the whole result.
        content, full_text = await with_summary(
            tool,
            cached_result.raw,
            cached_result.compressed,
            cached_result.mark,
            config.result_tokens,
        )
        return ToolRun(
            replace(
                _outcome(call, content, cached_result.raw), has_result=True, full_text=full_text
            )
        )

    def _cache_key(self, request: ToolRequest) -> str:
        """Return the key of the call's result in the cache; "" if the result is not cached."""
        if self._config.tool.cache is None or not request.tool.cacheable:
            return ""
        try:
            return cache_key(request.tool, request.checked.json)
        except ToolParameterError:
            # JSON cannot express the arguments, so equal calls cannot be recognized.
            return ""

    async def _finished_run(self, request: ToolRequest, value: Any, key: str = "") -> ToolRun:
        """Return the finished call of a tool that returned `value`.

        The value may be a result, a proposal that the tool made itself, or the pause of an agent
        that is a tool. `key` is the key of the result in the cache, "" to cache nothing.
        """
        if isinstance(value, InnerPause):
            waiting = CallOutcome(
                request.call, "", ends="pending", final_text=value.text, inner=value.snapshot
            )
            return ToolRun(waiting)
        value = _proposal_in(request.tool, value)
        if isinstance(value, PendingConfirmation):
            return ToolRun(await _proposal_outcome(request, value))
        raw = serialize(value)
        return ToolRun(await self._result_outcome(request, raw), raw, key)

    async def _result_outcome(self, request: ToolRequest, raw: str) -> CallOutcome:
        """Return the outcome of a result as the tool returned it (`raw`).

        The run ends with it if the tool is terminal, or if the agent's stop condition says so.
        """
        tool = request.tool
        stop_condition = self._config.stop_condition
        ends = tool.terminal
        try:
            if stop_condition is not None:
                verdict = stop_condition(tool.name, raw)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
                ends = bool(verdict) or tool.terminal
        except Exception as exc:
            # The tool's result must not be lost. The error may quote it: only its place is logged.
            reason = {"tool": tool.name, "reason": type(exc).__name__, "at": place_of(exc)}
            log.warning("agent.stop_condition_failed", extra=reason)

        outcome = _outcome(request.call, await result_for_model(tool, raw, whole=ends), raw)
        outcome = replace(outcome, has_result=True)
        if not ends:
            return outcome
        return replace(outcome, ends="terminal", final_text=as_kind_of(raw, outcome.content))


def _digests(tool: Tool, calls: Iterable[ToolCall]) -> Iterator[str]:
    """Yield the digest of the arguments of each call of this tool, as the tool would get them."""
    for call in calls:
        if call.tool_name != tool.name:
            continue
        with contextlib.suppress(ToolError):  # the tool does not take these arguments any more
            yield compute_args_digest(tool.validate_record(call.parameters))


async def invoke(
    tool: Tool,
    parameters: Mapping[str, Any],
    seconds: float | None,
    chunks: ChunkCallback | None = None,
    *,
    checked: ValidatedArguments | None = None,
) -> Any:
    """Run a tool and return its value.

    `seconds` is the agent's time limit, None for none. The tool may have its own limit; the shorter
    one applies. `chunks` receives the pieces of a result while they arrive. `checked` are the
    parameters if they were checked before; None: they are checked here. Raises ToolError, and
    EffectUnknownError at the end of the time: nothing can stop a tool that runs in a thread.
    """
    if seconds is None:
        return await tool.ainvoke(dict(parameters), chunks, checked=checked)
    try:
        async with execution_timeout(seconds):
            return await tool.ainvoke(dict(parameters), chunks, checked=checked)
    except TimeoutError as exc:
        raise EffectUnknownError(
            f"Tool {tool.name!r} timed out: it gave no result within {seconds} seconds;"
            " it may still be running",
            tool_name=tool.name,
            error=exc,
        ) from exc


async def _error_outcome(request: ToolRequest, error: ToolError) -> CallOutcome:
    """Return the outcome of a call that failed, with the error as the model reads it."""
    text = str(error)
    if not text.startswith("Error "):
        text = f"Error: {text}"
    return _outcome(request.call, await result_for_model(request.tool, text), text)


async def _proposal_outcome(request: ToolRequest, value: Any) -> CallOutcome:
    """Return the outcome of a proposal: a question for the user, or the reason why there is none.

    `value` is a PendingConfirmation if there is a question, else a typed result such as NotFound.
    """
    raw = serialize(value)
    content = await result_for_model(request.tool, raw, whole=True)
    outcome = _outcome(request.call, content, raw)
    if isinstance(value, PendingConfirmation):
        # The user confirms the stored preview, even if the tool returns another one.
        preview = last_proposed_preview() or value.preview
        question = "\n\n".join(filter(None, [preview, readable(value.own_prompt)]))
        return replace(outcome, ends="pending", final_text=question)
    # There is nothing to ask for, such as an invoice that does not exist. `not_run`: the steps that
    # people see say that the tool did not run. `has_result`: for a tool that only reads, the
    # answer of the preview is a result like any other, which a channel may show to its user.
    return replace(outcome, has_result=request.tool.read_only, not_run=True)


def _proposal_in(tool: Tool, value: Any) -> Any:
    """Return what the model reads of a tool whose own code may have stored a proposal.

    A text or a typed result is what the author wants the model to read: it is returned unchanged.
    Any other value of a tool that stored a proposal is replaced by a PendingConfirmation. It may be
    None, True, or the action that `stash_pending` returned, and the model would read "done" or the
    stored record while the question is open. Without a proposal `value` is returned.
    """
    preview = last_proposed_preview()
    if not preview or isinstance(value, str | ToolResult):
        return value
    return PendingConfirmation(action=tool.name, preview=preview)


def _prevent_effect(tool: Tool) -> bool:
    """Prevent the effect of the running call from beginning later. Return whether it had not begun.

    Only a tool with `marks_effect` says where its effect begins. Of any other tool the effect
    cannot be prevented.
    """
    if not tool.marks_effect:
        return False
    effect = call_context().effect
    return effect is not None and not effect.close()


def _outcome(call: ToolCall, content: str, raw: str) -> CallOutcome:
    """Return the outcome of a call with the result `raw`, which the model reads as `content`."""
    raw_digest = ""
    if content != raw:
        raw_digest = text_digest(raw)
    return CallOutcome(call, content, raw_digest=raw_digest)


def original_error(error: Exception) -> BaseException:
    """Return the exception that the tool's own code raised; the error itself if it wraps none."""
    if isinstance(error, ToolExecutionError) and error.error:
        return error.error
    return error


class _ChunkReporter:
    """Reports the chunks of a result to observers in order. It may be called from any thread.

    A tool that took too long may still run in its thread after `close`. Its chunks are then dropped
    without an error, also if the event loop is closed meanwhile.
    """

    def __init__(self, events: RunEvents, call: ToolCall) -> None:
        self._events = events
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self.count = 0

    def __call__(self, chunk: Any) -> None:
        """Report one chunk, at once if this is the thread of the event loop."""
        self.count += 1
        if self._is_closed or not self._events.has_observer_of("tool_chunk"):
            return

        text = str(chunk)
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._report, text)
        elif is_in_loop():
            self._report(text)
        else:
            # The tool of a sync `run()` holds the thread of the loop: no task could run before the
            # tool ends, so only sync observers get the chunk.
            self._events.tell_now("tool_chunk", self._call.id, self._call.tool_name, text)

    async def wait(self) -> None:
        """Return once every chunk has been reported."""
        while self._tasks:
            await self._tasks[0]
            del self._tasks[0]

    def close(self) -> None:
        """Stop reporting: the call has ended."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def _report(self, chunk: str) -> None:
        if self._is_closed:
            return
        report = self._events.tell("tool_chunk", self._call.id, self._call.tool_name, chunk)
        self._tasks.append(self._loop.create_task(report))
