"""AgentLoop: answers a request by asking the model, running its calls and showing it the results.

The loop decides only what comes next. Its parts do the work: `model_call.py` asks the model,
`tool_calls.py` runs the calls of an answer, `memory.py` reads and writes the memories, `resume.py`
carries out decisions about calls of a paused run, and `state.py` has what the run knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.decisions import RunSnapshot
from sayso.agent.guards.guardrails import GuardrailBlocked, apply_guardrails
from sayso.agent.guards.loop_detection import NUDGE
from sayso.agent.memory.conversation import ConversationMemory, MemoryDraft
from sayso.agent.memory.extraction import current_scope
from sayso.agent.memory.sessions import Session
from sayso.agent.messages import NO_USAGE, FinishReason, Message, Role
from sayso.agent.observability.observer import AgentObserver
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.observability.usage import AgentAnalytics
from sayso.agent.providers.base import Provider, ProviderError
from sayso.agent.result import AgentResult, stop_text
from sayso.agent.run.cancellation import RunCancelled
from sayso.agent.run.long_results import (
    READ_RESULT,
    find_result,
    read_result_tool,
    shorten_for_history,
    with_read_result,
)
from sayso.agent.run.memory import RunMemory
from sayso.agent.run.model_call import ModelCaller, budget_end, is_budget_spent
from sayso.agent.run.pause import forget_ended_pause, note_run_counts
from sayso.agent.run.result_summaries import Compressor
from sayso.agent.run.resume import DecisionRunner
from sayso.agent.run.shown_tools import ShownTools, note_names, noted_names
from sayso.agent.run.state import (
    CallOutcome,
    JournaledAnswer,
    ModelAnswer,
    NoJournal,
    OpenRound,
    RunEnd,
    RunRequest,
    RunState,
)
from sayso.agent.run.structured import (
    ResponseFormat,
    build_schema_instruction,
    parse_and_validate,
    schema_from_response_format,
    validation_retry_message,
)
from sayso.agent.run.tool_call import ToolCaller
from sayso.agent.run.tool_calls import run_calls
from sayso.agent.tools.environment import (
    LongResult,
    ResultFinder,
    TextLoader,
    ToolEnvironment,
    tool_environment,
)
from sayso.agent.tools.registry import Toolset
from sayso.agent.tools.result_texts import result_text
from sayso.agent.tools.screening import unfenced
from sayso.agent.toolsets.selectors import ToolSelector, would_show
from sayso.channels.i18n.invisible import shows_nothing
from sayso.infra.redaction import redact
from sayso.pending.call_context import own_context
from sayso.pending.error_texts import error_text
from sayso.pending.proposals import in_channel_run

log = logging.getLogger(__name__)

#: Stop reasons after which the memories learn nothing: no model read the message, or the user
#: stopped waiting.
_WITHOUT_LEARNING = frozenset(("cancelled", "guardrail", "provider_error"))


class AgentLoop:
    """Answers requests: asks the model, runs its calls, and repeats that until there is an answer.

    One per provider of an agent; it serves all runs at the same time. It keeps nothing of a run but
    `memory`, the agent's own conversation.

    `toolset` has the tools, and `selector` chooses which of them the model is shown; None: all.
    `observers` are told of the events of each run. `analytics` counts the tool calls; None: they
    are not counted. `session` is where the agent's own conversation is stored; None: nowhere.

    A run has three parts:

    * `_prepare` loads the history and what the memories know.
    * `_run_to_end` repeats `_iteration`, which gets one answer of the model and runs the calls in
      it, until that returns a RunEnd; None means that the run goes on.
    * `_finish` stores the run in the memory and returns its result.
    """

    def __init__(
        self,
        toolset: Toolset,
        provider: Provider,
        *,
        config: AgentConfig,
        model_caller: ModelCaller,
        selector: ToolSelector | None,
        observers: Sequence[AgentObserver],
        analytics: AgentAnalytics | None,
        memory: ConversationMemory | None,
        session: Session | None,
    ) -> None:
        self.memory = memory
        # A run that only chooses calls could not run the search for tools.
        can_find = not config.routing_only
        self._shown_tools = ShownTools(toolset, selector, config.tool_policy, can_find=can_find)
        self._provider = provider
        self._selector = selector
        self._config = config
        self._model_caller = model_caller
        self._observers = observers
        self._analytics = analytics
        self._session = session
        self._has_budget = config.run_budget is not None or config.budget is not None

    async def load_own_memory(self, events: RunEvents) -> ConversationMemory | None:
        """Return the agent's own conversation. With a session it is read from the store.

        `events` are told that it was read. Raises SessionError.
        """
        if self._session is not None:
            with self._session.counted_run():
                self.memory = await self._session.load(self.memory, events)
        return self.memory

    async def answer(self, request: RunRequest) -> AgentResult:
        """Answer one request. Raises the errors that `Agent.arun` documents."""
        # Inside a tool of another run, the scope is that of this other run.
        scope = request.scope or current_scope()
        if scope and scope != request.scope:
            request = replace(request, scope=scope)
        if self._session is None or request.memory is not None:
            return await self._answer(request, None)
        with self._session.counted_run():
            return await self._answer(request, self._session)

    async def _answer(self, request: RunRequest, session: Session | None) -> AgentResult:
        """Answer a request, and tell observers of an error that ends the run."""
        run = self._create_state(request)
        try:
            await self._prepare(run, session)
            end = await self._run_to_end(run)
            return await self._finish(run, end, session)
        except BaseException as exc:
            run.events.note("error", error=f"{type(exc).__name__}: {error_text(exc)}")
            if not run.is_end_reported:
                await self._report_exception(run, exc)
            raise

    async def _report_exception(self, run: RunState, exc: BaseException) -> None:
        """Tell observers that an exception ends the run."""
        if isinstance(exc, asyncio.CancelledError | KeyboardInterrupt):
            await run.events.tell("cancelled", run.iterations, "task cancelled")
        elif isinstance(exc, Exception):
            await run.events.tell("error", exc, {"iteration": run.iterations})
        # Anything else, such as a SystemExit, ends the process, and is not an error of the run.

    def _create_state(self, request: RunRequest) -> RunState:
        """Return the state of a run before its first step.

        Raises ValueError and TypeError for an invalid response format.
        """
        config = self._config
        counts = request.paused_counts
        schema_instruction = ""
        if request.response_format is not None:
            schema = schema_from_response_format(request.response_format)
            schema_instruction = build_schema_instruction(schema)

        events = RunEvents(
            self._observers,
            parent_run_id=request.parent_run_id or config.parent_run_id or "",
            metadata=config.trace_metadata,
            asynchronous=request.asynchronous,
            tool_result_chars=config.trace_tool_result_chars,
            run_id=counts.run_id if counts else "",
        )

        # Whose knowledge the run has:
        # * a run with a scope, that of the scope, such as one user's (see `answer`);
        # * a run in the agent's own conversation, that of the agent; also the runs that say so;
        # * a run in a conversation that the caller gives, none: it may be that of any user. If the
        #   settings have a knowledge memory or graph, RunMemory then raises ValueError.
        is_agents_own = not request.scope and (
            request.has_agents_knowledge or request.memory is None
        )
        run_memory = RunMemory(
            self._provider, config, events, is_agents_own=is_agents_own, scope=request.scope
        )
        run = RunState(
            request=request,
            events=events,
            run_memory=run_memory,
            schema_instruction=schema_instruction,
        )
        if config.tool.compress_results:
            run.compressor = Compressor(self._provider, config)

        # A reply that is checked as a whole must not be shown before the check.
        is_checked = config.guardrails is not None and bool(config.guardrails.output)
        if request.response_format is None and not is_checked:
            run.on_text = request.on_text

        # A run that goes on after a pause counts on. Its messages and calls are in the snapshot, or
        # on a channel in the memory.
        if counts is not None:
            run.iterations = counts.iterations
            run.usage = counts.usage
        if request.paused_run is not None:
            run.restore(request.paused_run)
        return run

    async def _prepare(self, run: RunState, session: Session | None) -> None:
        """Load the conversation, and what the memories know about the request.

        Raises SessionError if the session cannot be read.
        """
        if run.events.has_observer_of("run_start"):
            with own_context(ToolEnvironment) as own:
                own.memory_scope = run.run_memory.tool_scope  # observers may ask for it
                await run.events.tell(
                    "run_start", list(run.request.messages), self._model_caller.prompt
                )
        if session is not None:
            self.memory = await session.load(self.memory, run.events)
        memory = run.request.memory
        if memory is None:
            memory = self.memory
        run.set_memory(memory)
        run.session = session

        run.shown_tools = noted_names(memory)
        run.can_read_on = memory is not None and READ_RESULT in memory.notes
        run.stable_context = await run.run_memory.stable_context()
        run.changing_context = await run.run_memory.changing_context(run.request_text)

    async def _run_to_end(self, run: RunState) -> RunEnd:
        """Run all iterations inside the tool environment of this run. Return how the run ends."""
        run.may_pause = self._may_pause(run.request)
        with own_context(ToolEnvironment) as own:
            own.may_pause = run.may_pause
            own.artifacts = run.artifacts
            own.memory_scope = run.run_memory.tool_scope
            own.find_result = _result_finder(run, own.load_text)
            return await self._run_until_cancelled(run)

    async def _run_until_cancelled(self, run: RunState) -> RunEnd:
        """Run all iterations, or up to the cancellation of the run's token. Return how it ends."""
        token = run.request.cancellation_token
        if token is None:
            return await self._run_iterations(run)
        try:
            async with token.scope():
                return await self._run_iterations(run)
        except RunCancelled as exc:
            run.is_end_reported = True
            await run.events.tell("cancelled", run.iterations, exc.reason)
            run.events.note("cancelled", summary=exc.reason or "stopped from outside")
            # Every call in progress gets a result: vendors refuse a transcript without it.
            if run.open_round is not None:
                run.close_round(run.open_round.final_outcomes())
            # A program must not carry out what a cancelled run has chosen.
            if self._config.routing_only:
                run.tool_calls.clear()
            return RunEnd(stop_text("cancelled"), stop_reason="cancelled")

    def _may_pause(self, request: RunRequest) -> bool:
        """Return whether a call may wait for a decision of the program that started the run."""
        # On a channel, the person in the conversation decides.
        if in_channel_run() or not isinstance(request.journal, NoJournal):
            return False

        outer = tool_environment()
        if request.is_inner:
            return outer.may_pause
        # Inside any other tool no call may wait: the code of that tool could not go on later. Only
        # the environment of a run can find results, so a tool called this one if that is set.
        is_inside_tool = outer.find_result is not None
        return self._config.pause_for_approval and not is_inside_tool

    async def _carry_out_decisions(self, run: RunState) -> RunEnd | None:
        """Carry out the decisions about the open calls of a run that goes on.

        Return how the run ends, or None if the model is asked next.
        """
        # The person's role may have changed since the run paused: a hidden tool does not run.
        known_tools = self._shown_tools.callable_tools(run, names=None)  # all tools
        tools = {
            name: tool
            for name, tool in known_tools.items()
            if await would_show(self._selector, tool) != "hidden"
        }
        caller = ToolCaller(run, self._provider, self._config, self._analytics)
        end = await DecisionRunner(run, tools, self._config, caller).carry_out()
        if run.session is not None and run.memory is not None and run.decided:
            # Not only at the end of the run: the model is asked before, and may fail or never end.
            await run.session.save(run.memory, run.events)
        return end

    async def _run_iterations(self, run: RunState) -> RunEnd:
        """Carry out decisions if the run goes on with them, then run iterations up to its end.

        The messages of the request join the transcript as the guardrails pass or rewrite them.
        Raises LeaseLost if another worker has taken over the conversation.
        """
        is_observed = run.events.has_observer_of("iteration_start", "iteration_end")
        iteration = self._iteration
        if is_observed:
            iteration = self._observed_iteration

        try:
            if run.request.paused_run is not None:
                end = await self._carry_out_decisions(run)
                if end is not None:
                    return end

            for message in run.request.messages:
                run.messages.append(await self._checked_message(run, message))

            # A run that goes on after a decision has iterated before.
            first = run.iterations + 1
            for number in range(first, self._config.max_iterations + 1):
                run.iterations = number
                end = await iteration(run)
                if end is not None:
                    return end
            return _too_many_steps(run)
        except GuardrailBlocked:
            return RunEnd(stop_text("refused"), stop_reason="guardrail")
        except ProviderError as exc:
            await run.events.tell("error", exc, {"iteration": run.iterations})
            return RunEnd(
                redact(f"Provider error: {exc}"),
                stop_reason="provider_error",
                failure=exc.kind,
                failure_cause=redact(exc.cause),
                refusal=exc.refusal,
            )

    async def _checked_message(self, run: RunState, message: Message) -> Message:
        """Return a message of the request as the guardrails pass it. Raises GuardrailBlocked."""
        guardrails = self._config.guardrails
        if guardrails is None or message.role is not Role.USER or not message.content:
            return message
        content = await apply_guardrails(guardrails, "input", message.content, run.events)
        if content == message.content:
            return message
        # Without `text_file`: a file would have the text as it was before.
        return Message(message.role, content, media=message.media)

    async def _observed_iteration(self, run: RunState) -> RunEnd | None:
        """Run an iteration, and report its start and its end with the model's text to observers.

        The text of an answer that a guardrail blocked is not reported.
        """
        await run.events.tell("iteration_start", run.iterations, run.transcript)
        run.answer_text = ""
        try:
            end = await self._iteration(run)
        except (GuardrailBlocked, ProviderError):
            await run.events.tell("iteration_end", run.iterations, "")
            raise
        await run.events.tell("iteration_end", run.iterations, run.answer_text)
        return end

    async def _iteration(self, run: RunState) -> RunEnd | None:
        """Get one answer of the model and carry out what it says.

        An earlier attempt at the same turn may have journaled the answer: then the model is not
        asked again. Return how the run ends, or None for another iteration.
        """
        journaled = await run.request.journal.next_answer()
        if journaled is not None:
            answer = journaled.answer
            run.usage += answer.usage  # paid for by the earlier attempt
        else:
            if self._has_budget:
                end = await budget_end(run, self._config)
                if end is not None:
                    return end
            answer = await self._ask_model(run)
        run.answer_text = answer.message.content
        return await self._handle_answer(run, answer, journaled)

    async def _ask_model(self, run: RunState) -> ModelAnswer:
        """Ask the model, which is shown the tools that the policy and the selector allow."""
        offer = await self._shown_tools.offer(run)
        schemas: Sequence[Mapping[str, Any]] = offer.schemas
        self._model_caller.fitter.limit_results(run)
        if run.can_read_on:
            schemas = with_read_result(schemas)
        message, usage = await self._model_caller.ask(run, schemas)
        return ModelAnswer(message, usage, offer.names)

    async def _handle_answer(
        self, run: RunState, answer: ModelAnswer, journaled: JournaledAnswer | None
    ) -> RunEnd | None:
        """End the run with a text, or run the calls of the answer.

        `journaled` is the answer in the journal, with the known outcomes of its calls; None for a
        new answer. Return how the run ends, or None for another iteration.
        """
        message = answer.message
        run.reasoning.append(message.content if message.tool_calls else "")
        if not message.tool_calls:
            return await self._handle_final_answer(run, message)

        for call in message.tool_calls:
            run.events.note(
                "tool_selection",
                tool_name=call.tool_name,
                tool_args=call.parameters,
                reasoning=message.content or None,
            )
        if journaled is None:
            self._model_caller.count_calls(message.tool_calls)
        if self._config.routing_only:
            run.tool_calls += message.tool_calls
            return RunEnd(
                message.content, stop_reason="routing", finish_reason=_finish_reason(message)
            )
        if journaled is None and not run.request.journal.record_answer(answer):
            return _too_many_steps(run)
        return await self._call_tools(run, journaled or JournaledAnswer(answer))

    async def _handle_final_answer(self, run: RunState, answer: Message) -> RunEnd | None:
        """End the run with the model's answer.

        Return None if it is empty or has the wrong form, to ask again.
        """
        response_format = run.request.response_format
        content = answer.content
        if response_format is None and self._may_ask_again(run, content):
            run.has_asked_again = True
            self._model_caller.log_empty_answer(run, is_final=False)
            await self._model_caller.delete_cached_answer(run)
            return None

        pipeline = self._config.guardrails
        if pipeline is not None:
            content = await apply_guardrails(pipeline, "output", content, run.events)
        if response_format is not None:
            end = await self._validate_answer(run, content, response_format)
        else:
            cause = ""
            if _is_empty(run, content):
                cause = self._model_caller.log_empty_answer(run)
            end = RunEnd(content, stop_reason="answer", failure_cause=cause)
        if end is None:
            return None
        return end._replace(finish_reason=_finish_reason(answer))

    async def _validate_answer(
        self, run: RunState, content: str, response_format: ResponseFormat
    ) -> RunEnd | None:
        """Return the end of the run with an answer in the demanded form; None to ask for it again.

        An answer of another form ends the run where no iteration is left.
        """
        # `rejected` has two messages for each earlier attempt: the answer and its correction.
        attempt = len(run.rejected) // 2 + 1
        try:
            parsed = parse_and_validate(content, response_format)
        except ValueError as exc:
            error = error_text(exc)
        else:
            await run.events.tell("structured_validate", True, attempt, None)
            run.rejected.clear()
            return RunEnd(content, stop_reason="answer", parsed=parsed)

        await run.events.tell("structured_validate", False, attempt, error)
        run.events.note("structured_retry", error=error)
        await self._model_caller.delete_cached_answer(run)
        if run.iterations == self._config.max_iterations:
            return RunEnd(content, stop_reason="invalid_answer", structured_error=error)
        correction = Message(Role.USER, validation_retry_message(error))
        run.rejected += [Message(Role.ASSISTANT, content), correction]
        return None

    def _may_ask_again(self, run: RunState, content: str) -> bool:
        """Return whether to ask the model again because its answer is empty: once in a run."""
        has_steps = run.iterations < self._config.max_iterations
        may_retry = self._config.max_retries > 0 and not run.has_asked_again
        return has_steps and may_retry and _is_empty(run, content)

    async def _call_tools(self, run: RunState, journaled: JournaledAnswer) -> RunEnd | None:
        """Run the calls of an answer and add them to the transcript.

        `journaled` is the answer, with the outcomes of calls that an earlier attempt at the turn
        has recorded. Return how the run ends, None for another iteration.
        """
        answer = journaled.answer.message
        run.open_round = OpenRound(answer, dict(journaled.outcomes))
        tools = self._shown_tools.callable_tools(run, journaled.answer.tools)
        if any(call.tool_name == READ_RESULT for call in answer.tool_calls):
            # The model may have seen `read_result` in an earlier step, and may call it although it is
            # not shown in this one.
            tools.setdefault(READ_RESULT, read_result_tool())
        caller = ToolCaller(run, self._provider, self._config, self._analytics)
        outcomes = await run_calls(run, run.open_round, tools, self._config, caller)

        # The outcomes of an earlier attempt were reported and booked by that attempt.
        new = [outcome for at, outcome in enumerate(outcomes) if at not in journaled.outcomes]
        usage_of_summaries = NO_USAGE
        for outcome in new:
            run.events.tell_side_usage(outcome.usage)
            usage_of_summaries += outcome.usage
        # At once, so that a run that is stopped later has booked what it used.
        await self._model_caller.book(run, usage_of_summaries)
        await self._model_caller.book_side_usage(run)

        end = end_after_calls(outcomes, may_pause=run.may_pause)
        if end is not None:
            run.close_round(outcomes)
            return end
        return await self._close_round_and_detect_loop(run, answer, outcomes)

    async def _close_round_and_detect_loop(
        self, run: RunState, answer: Message, outcomes: Sequence[CallOutcome]
    ) -> RunEnd | None:
        """Close a round. Return how the run ends, None to ask the model again.

        A model that begins to repeat its calls gets a note about it. If it goes on, the run ends.
        Without a loop detector in the settings, the round is only closed.
        """
        if run.loop_watch is None and self._config.loop_detector is not None:
            run.loop_watch = self._config.loop_detector.watch()
        watch = run.loop_watch
        if watch is None:
            run.close_round(outcomes)
            return None

        fingerprints = [outcome.fingerprint for outcome in outcomes]
        verdict = watch.add_round(answer.tool_calls, fingerprints)
        note = NUDGE if verdict == "nudge" else ""
        run.close_round(outcomes, note=note)
        if not verdict:
            return None

        tool_names = list(dict.fromkeys(call.tool_name for call in answer.tool_calls))
        details = {"verdict": verdict, "tools": tool_names}
        await run.events.tell("tool_loop_detected", watch.kind, details)
        run.events.note("loop_detected", summary=f"{verdict}: {', '.join(tool_names)}")
        if verdict != "stop":
            return None
        return RunEnd(stop_text("loop_detected"), stop_reason="loop")

    async def _finish(self, run: RunState, end: RunEnd, session: Session | None) -> AgentResult:
        """Close the transcript, store it in the memory and report the end. Return the result."""
        # Before `close`, which adds the reply: a paused run has none.
        paused = _resumable_snapshot(run, end)

        # A vendor's error text is for operators and stays out of the transcript.
        closing = end.content
        if end.stop_reason == "provider_error":
            closing = end.refusal or stop_text("model_away")
        run.close(closing)

        # A text that did not arrive piece by piece is passed on as a whole. Only what the model wrote
        # has arrived, and only if no check of the complete reply came first.
        was_streamed = end.stop_reason in ("answer", "routing") and run.on_text is not None
        if run.request.on_text is not None and not was_streamed:
            text = end.content
            if end.stop_reason == "terminal":  # the result of a tool, as the model would read it
                text = result_text(unfenced(text))
            await run.request.on_text(text)

        await self._store_in_memory(run, end)
        if session is not None and run.memory is not None:
            await session.save(run.memory, run.events)
        run.is_end_reported = True
        result = run.result(end, paused)
        await run.events.tell("run_end", result)
        return result

    async def _store_in_memory(self, run: RunState, end: RunEnd) -> None:
        """Let the memories learn from the run, then add its messages to the conversation."""
        config = self._config
        memory = run.memory
        run_memory = run.run_memory
        messages = run.messages
        if not run.remembers_earlier:
            messages = [*run.earlier, *messages]
        messages = shorten_for_history(messages)

        # Learning takes time, in which other runs may change the conversation. So this run works on
        # a draft, which is committed at the end. `run_memory` then writes to the draft.
        takes_time = (
            config.summarize_on_trim
            or config.entity_memory is not None
            or run.events.has_observer_of("memory_trim")
        )
        draft = None
        if memory is not None and takes_time:
            draft = MemoryDraft(memory, messages, summarizes=config.summarize_on_trim)
            run_memory.memory = draft.memory
        if run_memory.memory is not None and run.can_read_on:
            # The tool is shown in all later turns, so that the list of tools stays the same.
            run_memory.memory.notes[READ_RESULT] = True

        # Whether the memories may ask a model.
        may_ask = False
        if run_memory.calls_model and end.stop_reason != "budget":
            may_ask = not await is_budget_spent(run, config)
        if may_ask and end.stop_reason not in _WITHOUT_LEARNING:
            await run_memory.learn(run.messages)
        # The last step before the commit, so that another run hardly ever summarizes in between.
        if draft is not None:
            await run_memory.record_trim(draft, may_summarize=may_ask)
        await self._model_caller.book_side_usage(run)

        if draft is not None:
            draft.commit()
        elif memory is not None:
            memory.add_many(messages)
        if memory is not None:
            note_names(memory, run.shown_tools)
            if run.waiting_ids:
                note_run_counts(memory, run.counts)
            else:
                forget_ended_pause(memory)


def _is_empty(run: RunState, content: str) -> bool:
    """Return whether the user would see nothing: no text, no file of a tool, and no choices."""
    return shows_nothing(content) and not (run.artifacts or run.choices)


def _finish_reason(answer: Message) -> FinishReason:
    """Return why the model ended this answer; "" if the vendor does not say it."""
    if answer.details is None:
        return ""
    return answer.details.finish_reason


def _result_finder(run: RunState, load: TextLoader | None) -> ResultFinder:
    """Return the function by which `read_result` finds an earlier result of this conversation.

    `load` reads a long text from its file; None: there are no files.
    """

    # The function must not refer to the ToolEnvironment that holds it: of such a cycle, files that
    # tools made would be released only when garbage is collected, and not at the end of the run.
    async def find(wanted: str) -> LongResult:
        name, text = await find_result(run.transcript, wanted, load)
        return LongResult(name, text, run.result_tokens)

    return find


def _resumable_snapshot(run: RunState, end: RunEnd) -> RunSnapshot | None:
    """Return the run as its program can go on with it; None if it is over.

    | the run                                                       | is over |
    |---------------------------------------------------------------|---------|
    | has calls that wait, its own or those of agents that it asked | no      |
    | went on after decisions, and its model could not answer       | no      |
    | any other                                                     | yes     |

    In the second case the calls were carried out. The run goes on without further decisions.
    """
    has_waiting_calls = bool(run.open_calls or run.inner)
    went_on = run.request.paused_run is not None
    has_no_answer = end.stop_reason in ("provider_error", "cancelled", "budget")
    if has_waiting_calls or (went_on and has_no_answer):
        return run.snapshot
    return None


def end_after_calls(outcomes: Sequence[CallOutcome], *, may_pause: bool) -> RunEnd | None:
    """Return how a run ends after the calls of one answer, None if the model is asked next.

    `may_pause`: a program decides about each call that waits, so it is shown all of them.

    | a call of the answer               | the run ends with                                      |
    |------------------------------------|--------------------------------------------------------|
    | waits for a yes ("pending")        | its preview; if the run may pause, those of all calls  |
    | of a terminal tool ("terminal")    | the text of the first, if no call waits for a yes      |
    | any other                          | nothing: the model reads its result                    |
    """
    pending = [outcome.final_text for outcome in outcomes if outcome.ends == "pending"]
    if pending:
        if not may_pause:
            pending = pending[:1]
        return RunEnd("\n\n".join(pending), stop_reason="pending")
    terminal = [outcome.final_text for outcome in outcomes if outcome.ends == "terminal"]
    if terminal:
        return RunEnd(terminal[0], stop_reason="terminal")
    return None


def _too_many_steps(run: RunState) -> RunEnd:
    """Return the end of a run that has no iteration left, or no room in its journal.

    A channel shows the person another text, in their language.
    """
    return RunEnd(
        f"I stopped after {run.iterations} steps without reaching an answer.",
        stop_reason="max_iterations",
    )
