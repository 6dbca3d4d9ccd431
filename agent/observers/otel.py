"""OpenTelemetryObserver: runs, questions to models and calls of tools as spans and metrics of the GenAI conventions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sayso.agent import gen_ai
from sayso.agent.extras import install_command
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.observers.base import AgentObserver
from sayso.agent.observers.llm_call import LlmCall
from sayso.agent.providers.base import ProviderError
from sayso.agent.scope import digest_of, memory_scope
from sayso.channels.redaction import redact

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from sayso.agent.result import AgentResult  # which names observers in turn

#: Runs that are watched at a time; of more, the spans of the oldest end.
MOST_RUNS = 10_000


@dataclass(slots=True)
class _Run:
    """The spans of a run that have not ended. `outside` is the context that it was begun in."""

    span: Span
    outside: Context
    inside: Context
    chat: Span | None = None
    #: The conversation, for each of its spans.
    conversation: dict[str, str] = field(default_factory=dict)
    #: Whether the span of the question has the answer, and the class of the error that the run ends with.
    is_told: bool = False
    failed: str = ""
    tools: dict[str, tuple[Span, Context]] = field(default_factory=dict)


class OpenTelemetryObserver(AgentObserver):
    """Needs the extra `otel`. Spans go to the `tracer_provider`, metrics to the `meter_provider`; without them, to
    those that the process has set.

    A run in somebody's scope has the scope's digest for its conversation: no phone number goes where spans go.

    What people, models and tools said is left out, the words of errors too, unless `include_content`. A run is below
    the span that is current when it begins, so an agent that a tool runs is below the tool.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        agent_name: str = "agent",
        include_content: bool = False,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as exc:
            raise ImportError(f"OpenTelemetryObserver needs OpenTelemetry: {install_command('otel')}") from exc
        self._trace, self._context = trace, context
        self._tracer = trace.get_tracer("sayso", tracer_provider=tracer_provider)
        self._metrics = _Metrics(metrics.get_meter("sayso", meter_provider=meter_provider))
        self._agent_name = agent_name
        self._content = include_content
        self._runs: dict[str, _Run] = {}

    def on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """A span `invoke_agent` begins."""
        if len(self._runs) >= MOST_RUNS:
            self._end_run(next(iter(self._runs)), gen_ai.OTHER)
        outside, scope = self._context.get_current(), memory_scope.get()
        conversation = {gen_ai.CONVERSATION: digest_of(scope)} if scope else {}
        span = self._tracer.start_span(
            f"{gen_ai.INVOKE_AGENT} {self._agent_name}",
            outside,
            attributes={
                gen_ai.OPERATION: gen_ai.INVOKE_AGENT,
                gen_ai.AGENT_NAME: self._agent_name,
                gen_ai.RUN_ID: run_id,
                **conversation,
            },
        )
        self._say(span, gen_ai.SYSTEM_INSTRUCTIONS, [_text(system_prompt)])
        self._say(span, gen_ai.INPUT_MESSAGES, [_spoken(message) for message in messages])
        self._runs[run_id] = _Run(
            span, outside, self._trace.set_span_in_context(span, outside), conversation=conversation
        )

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """It ends, with what the run cost and why it stopped."""
        if run := self._runs.get(run_id):
            run.span.set_attributes(_usage(result.usage))
            run.span.set_attributes({gen_ai.ITERATIONS: result.iterations, gen_ai.STOP_REASON: result.stop_reason})
            self._say(run.span, gen_ai.OUTPUT_MESSAGES, [_spoken(Message(Role.ASSISTANT, result.content))])
            failed = run.failed or "provider_error" if result.stop_reason == "provider_error" else ""
            self._end_run(run_id, failed)

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """It ends with an error; one whose model could not be asked has a result, which tells more."""
        if not isinstance(error, ProviderError):
            self._end_run(run_id, _kind(error), error)
        elif run := self._runs.get(run_id):
            run.failed = _kind(error)

    def on_cancelled(self, run_id: str, iteration: int, reason: str) -> None:
        """It ends, cancelled."""
        self._end_run(run_id, "cancelled")

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """A span `chat` begins; one that never heard its answer has failed."""
        if run := self._runs.get(run_id):
            self._end_chat(run, gen_ai.OTHER)
            run.chat = self._tracer.start_span(
                f"{gen_ai.CHAT} {model}",
                run.inside,
                kind=self._trace.SpanKind.CLIENT,
                attributes={gen_ai.OPERATION: gen_ai.CHAT, gen_ai.REQUEST_MODEL: model, **run.conversation},
            )
            self._say(run.chat, gen_ai.SYSTEM_INSTRUCTIONS, [_text(system_prompt)])
            self._say(run.chat, gen_ai.INPUT_MESSAGES, [_spoken(message) for message in messages])

    def on_llm_call(self, run_id: str, call: LlmCall) -> None:
        """It has what the vendor said of the answer, and the metrics have it. One that failed ends."""
        self._metrics.count(call)
        run = self._runs.get(run_id)
        if run is None or run.chat is None:
            return
        run.chat.set_attributes(_request(call) | _response(call))
        if call.error is not None:
            self._end(run.chat, _kind(call.error), call.error)
            run.chat = None
        elif call.answer is not None:
            self._say(run.chat, gen_ai.OUTPUT_MESSAGES, [_answer(call.answer)])
            run.is_told = True

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """It ends, with what it cost."""
        run = self._runs.get(run_id)
        if run and run.chat:
            run.chat.set_attributes(_usage(usage or UsageStats()))
            if not run.is_told:
                self._say(run.chat, gen_ai.OUTPUT_MESSAGES, [_spoken(Message(Role.ASSISTANT, response))])
            self._end_chat(run)

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """An event of the span, whose question is asked again."""
        if run := self._runs.get(run_id):
            (run.chat or run.span).add_event("sayso.retry", {"sayso.attempt": attempt, gen_ai.ERROR_TYPE: _kind(error)})

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """An event of the run: nobody was asked."""
        if run := self._runs.get(run_id):
            run.span.add_event("sayso.cache_hit", {gen_ai.REQUEST_MODEL: model})

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A span `execute_tool` begins, and is the current one for what the tool does."""
        if run := self._runs.get(run_id):
            attributes = {
                gen_ai.OPERATION: gen_ai.EXECUTE_TOOL,
                gen_ai.TOOL_NAME: tool_name,
                gen_ai.TOOL_TYPE: "function",
                gen_ai.TOOL_CALL_ID: call_id,
                **run.conversation,
            }
            name = f"{gen_ai.EXECUTE_TOOL} {tool_name}"
            span = self._tracer.start_span(name, run.inside, attributes=attributes)
            self._say(span, gen_ai.TOOL_ARGUMENTS, dict(tool_args))
            run.tools[call_id] = span, self._around(run)
            self._context.attach(self._trace.set_span_in_context(span, run.inside))

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """It ends."""
        run = self._runs.get(run_id)
        if run and call_id in run.tools:
            self._say(run.tools[call_id][0], gen_ai.TOOL_RESULT, result)
            self._end_tool(run, call_id)

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """It ends with an error."""
        run = self._runs.get(run_id)
        if run and call_id in run.tools:
            self._end_tool(run, call_id, _kind(error), error)

    def _around(self, run: _Run) -> Context:
        """The context to go back to: never one of a call beside this one, which may end first."""
        current = self._trace.get_current_span()
        beside = any(current is span for span, _ in run.tools.values())
        return run.outside if beside else self._context.get_current()

    def _end_run(self, run_id: str, failed: str = "", error: BaseException | None = None) -> None:
        """With all that has not ended: it never will."""
        if run := self._runs.pop(run_id, None):
            self._end_chat(run, failed or gen_ai.OTHER)
            for call_id in list(run.tools):
                self._end_tool(run, call_id, failed or gen_ai.OTHER)
            self._end(run.span, failed, error)

    def _end_chat(self, run: _Run, failed: str = "") -> None:
        if run.chat:
            self._end(run.chat, failed)
            run.chat, run.is_told = None, False

    def _end_tool(self, run: _Run, call_id: str, failed: str = "", error: BaseException | None = None) -> None:
        span, around = run.tools.pop(call_id)
        # Not by the token of `attach`: a run may be cancelled from another task, whose context has none of this.
        if self._trace.get_current_span() is span:
            self._context.attach(around)
        self._end(span, failed, error)

    def _end(self, span: Span, failed: str, error: BaseException | None = None) -> None:
        if failed:
            words = redact(str(error)) if error is not None and self._content else None
            span.set_attribute(gen_ai.ERROR_TYPE, failed)
            span.set_status(self._trace.StatusCode.ERROR, words)
        span.end()

    def _say(self, span: Span, name: str, what: Any) -> None:
        if self._content and span.is_recording():
            span.set_attribute(name, redact(what if isinstance(what, str) else json.dumps(what, default=str)))


def _kind(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _usage(usage: UsageStats) -> dict[str, str | int | float]:
    """What nobody counted is not said to be nothing."""
    told: dict[str, str | int | float] = {
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAMES.get(usage.provider, usage.provider),
        gen_ai.RESPONSE_MODEL: usage.model,
        gen_ai.INPUT_TOKENS: usage.prompt_tokens,
        gen_ai.OUTPUT_TOKENS: usage.completion_tokens,
        gen_ai.CACHE_READ_TOKENS: usage.cache_read_tokens,
        gen_ai.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        gen_ai.COST_USD: usage.cost_usd,
    }
    return {name: value for name, value in told.items() if value}


def _operation(call: LlmCall) -> dict[str, Any]:
    """Return what every span and metric of a question says."""
    told = {
        gen_ai.OPERATION: gen_ai.CHAT,
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAMES.get(call.provider, call.provider),
        gen_ai.REQUEST_MODEL: call.model,
        gen_ai.RESPONSE_MODEL: call.usage.model if call.usage else "",
        gen_ai.SERVER_ADDRESS: call.address,
        gen_ai.SERVER_PORT: call.port if call.address else None,
    }
    return {name: value for name, value in told.items() if value}


def _request(call: LlmCall) -> dict[str, Any]:
    known = gen_ai.REQUEST_SETTINGS
    chosen = {known[name]: value for name, value in call.settings.items() if name in known}
    told = {name: value if isinstance(value, int | float | str) else list(value) for name, value in chosen.items()}
    told[gen_ai.OUTPUT_TYPE] = "json" if call.is_json else "text"
    if call.is_streamed:
        told[gen_ai.REQUEST_STREAM] = True
    return _operation(call) | told


def _response(call: LlmCall) -> dict[str, Any]:
    details = call.answer.details if call.answer else None
    told: dict[str, Any] = {}
    if details is not None:
        told = {gen_ai.FINISH_REASONS: [details.finish_reason] if details.finish_reason else None}
        told[gen_ai.RESPONSE_ID] = details.response_id
    if isinstance(call.error, ProviderError):
        told = {gen_ai.HTTP_STATUS: call.error.status, gen_ai.FAILURE: call.error.kind}
    return {name: value for name, value in told.items() if value}


def _answer(message: Message) -> dict[str, Any]:
    """A model's answer in the shape of the conventions: with its calls, and why it ended."""
    reason = message.details.finish_reason if message.details else ""
    return _spoken(message) | {"finish_reason": reason or ("tool_call" if message.tool_calls else "stop")}


class _Metrics:
    """The metrics of questions to models. Lives as long as its observer."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            gen_ai.TOKEN_USAGE, "{token}", "Tokens of a question and of its answer",
            explicit_bucket_boundaries_advisory=gen_ai.TOKEN_BUCKETS,
        )  # fmt: skip
        self._seconds = meter.create_histogram(
            gen_ai.OPERATION_DURATION, "s", "How long a question to a model took",
            explicit_bucket_boundaries_advisory=gen_ai.SECONDS_BUCKETS,
        )  # fmt: skip
        self._cut_off = meter.create_counter(gen_ai.CUT_OFF, "{answer}", "Answers that reached their length limit")

    def count(self, call: LlmCall) -> None:
        """Take a question that has ended."""
        about = _operation(call)
        failed = {gen_ai.ERROR_TYPE: _kind(call.error)} if call.error is not None else {}
        self._seconds.record(call.seconds, about | failed)
        if call.usage is not None and call.usage.total_tokens:
            self._tokens.record(call.usage.prompt_tokens, about | {gen_ai.TOKEN_TYPE: "input"})
            self._tokens.record(call.usage.completion_tokens, about | {gen_ai.TOKEN_TYPE: "output"})
        details = call.answer.details if call.answer else None
        if details is not None and details.finish_reason == "length":
            self._cut_off.add(1, about)


def _text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def _spoken(message: Message) -> dict[str, Any]:
    """A message in the shape of the conventions."""
    parts: list[dict[str, Any]] = [_text(message.content)] if message.content else []
    if message.role is Role.TOOL:
        parts = [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.tool_name, "arguments": call.parameters}
        for call in message.tool_calls
    ]
    return {"role": message.role.value, "parts": parts}
