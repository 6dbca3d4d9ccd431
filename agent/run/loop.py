"""Agent: the loop between a model and its tools, until there is something to say to the user."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sayso.agent.config import AgentConfig
from sayso.agent.guards.pipeline import GuardrailBlocked, apply_guardrails
from sayso.agent.messages import NO_USAGE, Message, Role
from sayso.agent.providers.base import ProviderError
from sayso.agent.result import ending_words
from sayso.agent.run.approval import is_always_denied
from sayso.agent.run.journal import Answered, CallOutcome, Recalled
from sayso.agent.run.loop_detection import NUDGE
from sayso.agent.run.model_call import ModelCaller, refusal
from sayso.agent.run.state import OpenRound, RunEnd, RunState
from sayso.agent.run.structured import parse_and_validate, validation_retry_message
from sayso.agent.run.tool_call import CallObserver
from sayso.agent.run.tool_calls import Schemas, run_calls
from sayso.agent.tools.registry import Toolset
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import ToolSelector, narrow
from sayso.channels.redaction import redact


class Loop:
    """Lives as long as its agent and holds nothing of any run."""

    def __init__(
        self, toolset: Toolset, asker: ModelCaller, config: AgentConfig, selector: ToolSelector | None
    ) -> None:
        self._toolset = toolset
        self._asker = asker
        self._config = config
        self._selector = selector
        self._is_limited = config.run_budget is not None or config.budget is not None
        self._schemas = Schemas()

    async def ending(self, run: RunState, watch: CallObserver) -> RunEnd:
        """Ask the model, run the tools it calls, show it the results, until something ends it. Raises LaneError."""
        try:
            await self._listen(run)
            return await self._steps(run, watch)
        except GuardrailBlocked as exc:
            return RunEnd("guardrail", exc.words)
        except ProviderError as exc:
            await run.chronicle.tell("error", exc, {"iteration": run.iterations})
            words, cause = redact(f"Provider error: {exc}"), redact(exc.cause)
            return RunEnd("provider_error", words, failure=exc.kind, failure_cause=cause, refusal=exc.refusal)

    async def _listen(self, run: RunState) -> None:
        """Take the user's words in, as far as the guardrails let them pass."""
        pipeline = self._config.guardrails
        for message in run.request.said:
            if pipeline is not None and message.role is Role.USER and message.content:
                passed = await apply_guardrails(pipeline, "input", message.content, run.chronicle)
                run.messages.append(message if passed == message.content else _reworded(message, passed))
            else:
                run.messages.append(message)

    async def _steps(self, run: RunState, watch: CallObserver) -> RunEnd:
        for run.iterations in range(1, self._config.max_iterations + 1):
            ending = await (self._watched(run, watch) if run.chronicle.has_observers else self._iteration(run, watch))
            if ending is not None:
                return ending
        return _exhausted(run)

    async def _watched(self, run: RunState, watch: CallObserver) -> RunEnd | None:
        """An iteration of which observers hear, also how it ended; they hear nothing of an answer that was blocked."""
        await run.chronicle.tell("iteration_start", run.iterations, run.transcript)
        run.said = ""
        try:
            ending = await self._iteration(run, watch)
        except (GuardrailBlocked, ProviderError):
            await run.chronicle.tell("iteration_end", run.iterations, "")
            raise
        await run.chronicle.tell("iteration_end", run.iterations, run.said)
        return ending

    async def _iteration(self, run: RunState, watch: CallObserver) -> RunEnd | None:
        """One answer of the model and what it leads to: the end of the run, or None for another."""
        recalled = await run.journal.recall()
        if recalled is None and self._is_limited:
            refused = await refusal(run, self._config)
            if refused is not None:
                return refused
        answered = _known(run, recalled.answered) if recalled else await self._ask(run)
        run.said = answered.message.content
        return await self._step(run, watch, answered, recalled)

    async def _ask(self, run: RunState) -> Answered:
        names = None if self._selector is None else await self._selected(run, self._selector)
        shown = [tool for tool in self._callable(names) if not is_always_denied(tool, self._config)]
        answer, usage = await self._asker.ask(run, await self._schemas.of(shown))
        return Answered(answer, usage, names)

    async def _selected(self, run: RunState, selector: ToolSelector) -> tuple[str, ...]:
        """The names of the tools that the model is shown."""
        allowed = [tool for tool in self._toolset.all() if not is_always_denied(tool, self._config)]
        return tuple(tool.name for tool in await narrow(selector, run.transcript, allowed))

    def _callable(self, names: Collection[str] | None) -> list[Tool]:
        """Return the tools that were shown, and those that are always denied: the policy refuses their calls."""
        tools = self._toolset.all()
        if names is None:
            return tools
        return [tool for tool in tools if tool.name in names or is_always_denied(tool, self._config)]

    async def _step(
        self, run: RunState, watch: CallObserver, answered: Answered, recalled: Recalled | None
    ) -> RunEnd | None:
        """What an answer leads to: the end of the run, or None for another step."""
        answer = answered.message
        run.reasoning.append(answer.content if answer.tool_calls else "")
        if not answer.tool_calls:
            return await self._concluded(run, answer)
        watch.chosen(answer.tool_calls, answer.content)
        if recalled is None:
            self._asker.count(answer.tool_calls)
        if self._config.routing_only:
            run.tool_calls += answer.tool_calls
            return RunEnd("routing", answer.content)
        if recalled is None and not run.journal.note(answered):
            return _exhausted(run)
        return await self._call_tools(run, watch, recalled or Recalled(answered))

    async def _concluded(self, run: RunState, answer: Message) -> RunEnd | None:
        """The model's last word, once it has the form that was asked for; None to ask for that form again."""
        pipeline, form, content = self._config.guardrails, run.request.response_format, answer.content
        if pipeline is not None:
            content = await apply_guardrails(pipeline, "output", content, run.chronicle)
        if form is None:
            reason = answer.details.finish_reason if answer.details else ""
            is_empty = not (content.strip() or run.artifacts or run.choices)
            cause = self._asker.log_empty_answer(run) if is_empty else ""
            return RunEnd("answer", content, failure_cause=cause, finish_reason=reason)
        attempt = len(run.drafts) // 2 + 1
        try:
            parsed = parse_and_validate(content, form)
        except ValueError as exc:
            return await self._misshapen(run, content, attempt, str(exc))
        await run.chronicle.tell("structured_validate", True, attempt, None)
        run.drafts.clear()
        return RunEnd("answer", content, parsed)

    async def _misshapen(self, run: RunState, content: str, attempt: int, error: str) -> RunEnd | None:
        await run.chronicle.tell("structured_validate", False, attempt, error)
        run.chronicle.note("structured_retry", error=error)
        await self._asker.disown(run)
        if run.iterations == self._config.max_iterations:
            return RunEnd("invalid_answer", content, structured_error=error)
        retry = Message(Role.USER, validation_retry_message(error))
        run.drafts += [Message(Role.ASSISTANT, content), retry]
        return None

    async def _call_tools(self, run: RunState, watch: CallObserver, recalled: Recalled) -> RunEnd | None:
        """Run the calls and take them into the transcript. Returns how the run ends, if it ends here."""
        answer, tools = recalled.answered.message, self._callable(recalled.answered.tools)
        run.open_round = OpenRound(answer, dict(recalled.outcomes))
        outcomes = await run_calls(
            answer.tool_calls,
            {tool.name: tool for tool in tools},
            self._config,
            run.journal,
            outcomes=run.open_round.outcomes,
            begun=run.open_round.begun,
            unclear=run.unclear,
            compressor=run.compressor,
            watch=watch,
        )
        new = [outcome.usage for at, outcome in enumerate(outcomes) if at not in recalled.outcomes]
        await self._asker.spend_on(run, sum(new, NO_USAGE))
        await self._asker.spend_beside(run)  # now: a run that is stopped later has paid for it too
        ending = _ending(outcomes)
        watch_for_loops = run.loop_watch if ending is None else None
        verdict = watch_for_loops.see(answer.tool_calls, _prints(outcomes)) if watch_for_loops else ""
        run.close_round(outcomes, note=NUDGE if verdict == "nudge" else "")
        if watch_for_loops and verdict:
            return await _looped(run, verdict, watch_for_loops.kind)
        return ending


def _known(run: RunState, answered: Answered) -> Answered:
    """An answer of an earlier attempt, which was paid for then."""
    run.usage += answered.usage
    return answered


def _prints(outcomes: Sequence[CallOutcome]) -> list[str]:
    return [outcome.fingerprint for outcome in outcomes]


def _exhausted(run: RunState) -> RunEnd:
    return RunEnd("max_iterations", f"I stopped after {run.iterations} steps without reaching an answer.")


async def _looped(run: RunState, verdict: str, kind: str) -> RunEnd | None:
    """What a run that goes in circles comes to: a word to the model first, then the end."""
    names = [call.tool_name for call in run.tool_calls[-1:]]
    await run.chronicle.tell("tool_loop_detected", kind, {"verdict": verdict, "tools": names})
    run.chronicle.note("loop_detected", summary=f"{verdict}: {', '.join(names)}")
    return RunEnd("loop", ending_words("loop_detected")) if verdict == "stop" else None


def _ending(outcomes: Sequence[CallOutcome]) -> RunEnd | None:
    """A proposal ends the run before anything else does: the user must see what waits for the yes."""
    ends = {outcome.ends: outcome.closing for outcome in reversed(outcomes) if outcome.ends}  # of each, the first
    if "pending" in ends:
        return RunEnd("pending", ends["pending"])
    return RunEnd("terminal", ends["terminal"]) if ends else None


def _reworded(message: Message, content: str) -> Message:
    return Message(message.role, content, media=message.media)
