"""AgentLoop: asks the model, runs the tools it calls and shows it the results, until the run ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sayso.agent.config import AgentConfig
from sayso.agent.guards.loop_detection import NUDGE
from sayso.agent.guards.pipeline import GuardrailBlocked, apply_guardrails
from sayso.agent.guards.policy import is_always_denied
from sayso.agent.messages import NO_USAGE, Message, Role
from sayso.agent.providers.base import ProviderError
from sayso.agent.result import stop_text
from sayso.agent.run.journal import CallOutcome, JournaledAnswer, ModelAnswer
from sayso.agent.run.model_call import ModelCaller, budget_end
from sayso.agent.run.state import OpenRound, RunEnd, RunState
from sayso.agent.run.structured import parse_and_validate, validation_retry_message
from sayso.agent.run.tool_call import CallObserver
from sayso.agent.run.tool_calls import ToolSchemas, run_calls
from sayso.agent.tools.registry import Toolset
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import ToolSelector, narrow
from sayso.channels.redaction import redact


class AgentLoop:
    """The loop of one agent. Keeps no state between runs."""

    def __init__(
        self, toolset: Toolset, model_caller: ModelCaller, config: AgentConfig, selector: ToolSelector | None
    ) -> None:
        self._toolset = toolset
        self._model_caller = model_caller
        self._config = config
        self._selector = selector
        self._has_budget = config.run_budget is not None or config.budget is not None
        self._schemas = ToolSchemas()

    async def run(self, run: RunState, observer: CallObserver) -> RunEnd:
        """Return how the run ends. Raises LeaseLost if another worker has taken over the conversation."""
        try:
            await self._add_user_messages(run)
            return await self._iterate(run, observer)
        except GuardrailBlocked as exc:
            return RunEnd("guardrail", exc.words)
        except ProviderError as exc:
            await run.events.tell("error", exc, {"iteration": run.iterations})
            text, cause = redact(f"Provider error: {exc}"), redact(exc.cause)
            return RunEnd("provider_error", text, failure=exc.kind, failure_cause=cause, refusal=exc.refusal)

    async def _add_user_messages(self, run: RunState) -> None:
        """Add the user's messages to the transcript, as the guardrails pass or rewrite them."""
        pipeline = self._config.guardrails
        for message in run.request.messages:
            if pipeline is not None and message.role is Role.USER and message.content:
                content = await apply_guardrails(pipeline, "input", message.content, run.events)
                if content != message.content:
                    run.messages.append(Message(message.role, content, media=message.media))
                    continue
            run.messages.append(message)

    async def _iterate(self, run: RunState, observer: CallObserver) -> RunEnd:
        iteration = self._observed_iteration if run.events.has_observers else self._iteration
        for run.iterations in range(1, self._config.max_iterations + 1):
            end = await iteration(run, observer)
            if end is not None:
                return end
        return _too_many_steps(run)

    async def _observed_iteration(self, run: RunState, observer: CallObserver) -> RunEnd | None:
        """Run an iteration and report it to observers, without the text of an answer that was blocked."""
        await run.events.tell("iteration_start", run.iterations, run.transcript)
        run.answer_text = ""
        try:
            end = await self._iteration(run, observer)
        except (GuardrailBlocked, ProviderError):
            await run.events.tell("iteration_end", run.iterations, "")
            raise
        await run.events.tell("iteration_end", run.iterations, run.answer_text)
        return end

    async def _iteration(self, run: RunState, observer: CallObserver) -> RunEnd | None:
        """Handle one answer of the model. Return how the run ends, or None for another iteration."""
        journaled = await run.journal.next_answer()
        if journaled is not None:
            answer = journaled.answer
            run.usage += answer.usage  # paid for by the earlier attempt
        else:
            end = await budget_end(run, self._config) if self._has_budget else None
            if end is not None:
                return end
            answer = await self._ask_model(run)
        run.answer_text = answer.message.content
        return await self._handle_answer(run, observer, answer, journaled)

    async def _ask_model(self, run: RunState) -> ModelAnswer:
        names = None if self._selector is None else await self._selected_names(run, self._selector)
        offered = [tool for tool in self._callable_tools(names) if not self._is_denied(tool)]
        answer, usage = await self._model_caller.ask(run, await self._schemas.of(offered))
        return ModelAnswer(answer, usage, names)

    async def _selected_names(self, run: RunState, selector: ToolSelector) -> tuple[str, ...]:
        """Return the names of the tools that the selector shows the model."""
        allowed = [tool for tool in self._toolset.all() if not self._is_denied(tool)]
        return tuple(tool.name for tool in await narrow(selector, run.transcript, allowed))

    def _callable_tools(self, names: Collection[str] | None) -> list[Tool]:
        """Return the selected tools, and those that are always denied: the policy refuses their calls."""
        tools = self._toolset.all()
        return tools if names is None else [tool for tool in tools if tool.name in names or self._is_denied(tool)]

    def _is_denied(self, tool: Tool) -> bool:
        return is_always_denied(tool, self._config.tool_policy)

    async def _handle_answer(
        self, run: RunState, observer: CallObserver, answer: ModelAnswer, journaled: JournaledAnswer | None
    ) -> RunEnd | None:
        message = answer.message
        run.reasoning.append(message.content if message.tool_calls else "")
        if not message.tool_calls:
            return await self._handle_final_answer(run, message)
        observer.on_selection(message.tool_calls, message.content)
        if journaled is None:
            self._model_caller.count_calls(message.tool_calls)
        if self._config.routing_only:
            run.tool_calls += message.tool_calls
            return RunEnd("routing", message.content)
        if journaled is None and not run.journal.record_answer(answer):
            return _too_many_steps(run)
        return await self._call_tools(run, observer, journaled or JournaledAnswer(answer))

    async def _handle_final_answer(self, run: RunState, answer: Message) -> RunEnd | None:
        """End the run with the model's answer. Return None if it has the wrong form and the model is asked again."""
        pipeline, response_format, content = self._config.guardrails, run.request.response_format, answer.content
        if pipeline is not None:
            content = await apply_guardrails(pipeline, "output", content, run.events)
        if response_format is None:
            finish_reason = answer.details.finish_reason if answer.details else ""
            is_empty = not (content.strip() or run.artifacts or run.choices)
            cause = self._model_caller.log_empty_answer(run) if is_empty else ""
            return RunEnd("answer", content, failure_cause=cause, finish_reason=finish_reason)
        attempt = len(run.rejected) // 2 + 1
        try:
            parsed = parse_and_validate(content, response_format)
        except ValueError as exc:
            return await self._reject_answer(run, content, attempt, str(exc))
        await run.events.tell("structured_validate", True, attempt, None)
        run.rejected.clear()
        return RunEnd("answer", content, parsed)

    async def _reject_answer(self, run: RunState, content: str, attempt: int, error: str) -> RunEnd | None:
        await run.events.tell("structured_validate", False, attempt, error)
        run.events.note("structured_retry", error=error)
        await self._model_caller.delete_cached_answer(run)
        if run.iterations == self._config.max_iterations:
            return RunEnd("invalid_answer", content, structured_error=error)
        correction = Message(Role.USER, validation_retry_message(error))
        run.rejected += [Message(Role.ASSISTANT, content), correction]
        return None

    async def _call_tools(self, run: RunState, observer: CallObserver, journaled: JournaledAnswer) -> RunEnd | None:
        """Run the calls and add them to the transcript. Return how the run ends, if it ends here."""
        answer, tools = journaled.answer.message, self._callable_tools(journaled.answer.tools)
        run.open_round = OpenRound(answer, dict(journaled.outcomes))
        outcomes = await run_calls(
            answer.tool_calls,
            {tool.name: tool for tool in tools},
            self._config,
            run.journal,
            outcomes=run.open_round.outcomes,
            started=run.open_round.started,
            unclear=run.unclear,
            compressor=run.compressor,
            observer=observer,
        )
        new_usage = [outcome.usage for at, outcome in enumerate(outcomes) if at not in journaled.outcomes]
        await self._model_caller.book(run, sum(new_usage, NO_USAGE))
        await self._model_caller.book_side_usage(run)  # now, so that a run that is stopped later has booked it
        end = _end_by_outcomes(outcomes)
        watch = run.loop_watch if end is None else None
        fingerprints = [outcome.fingerprint for outcome in outcomes] if watch else []
        verdict = watch.add_round(answer.tool_calls, fingerprints) if watch else ""
        run.close_round(outcomes, note=NUDGE if verdict == "nudge" else "")
        return await _report_loop(run, verdict, watch.kind) if watch and verdict else end


def _too_many_steps(run: RunState) -> RunEnd:
    return RunEnd("max_iterations", f"I stopped after {run.iterations} steps without reaching an answer.")


async def _report_loop(run: RunState, verdict: str, kind: str) -> RunEnd | None:
    """Report that the run repeats itself. Return its end, unless this is the first warning."""
    names = [call.tool_name for call in run.tool_calls[-1:]]
    await run.events.tell("tool_loop_detected", kind, {"verdict": verdict, "tools": names})
    run.events.note("loop_detected", summary=f"{verdict}: {', '.join(names)}")
    return RunEnd("loop", stop_text("loop_detected")) if verdict == "stop" else None


def _end_by_outcomes(outcomes: Sequence[CallOutcome]) -> RunEnd | None:
    """Return how the calls end the run, or None. A proposal comes first: the user must see what waits for a yes."""
    ends = {outcome.ends: outcome.final_text for outcome in reversed(outcomes) if outcome.ends}  # the first of each
    if "pending" in ends:
        return RunEnd("pending", ends["pending"])
    return RunEnd("terminal", ends["terminal"]) if ends else None
