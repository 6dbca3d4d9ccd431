"""OpenTelemetryObserver, spans, attribute names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sayso.agent.extras import install_command
from sayso.agent.memory.scope import current_scope, digest_of
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.observability.observer import AgentObserver, LlmCall
from sayso.agent.observability.trace import AgentTrace, TraceStep
from sayso.agent.providers.base import ProviderError
from sayso.agent.tools.definition import loggable_name
from sayso.channels.redaction import redact

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from sayso.agent.result import AgentResult  # which names observers in turn


OPERATION = "gen_ai.operation.name"


AGENT_NAME = "gen_ai.agent.name"


CONVERSATION = "gen_ai.conversation.id"


PROVIDER = "gen_ai.provider.name"


REQUEST_MODEL = "gen_ai.request.model"


RESPONSE_MODEL = "gen_ai.response.model"


INPUT_TOKENS = "gen_ai.usage.input_tokens"


OUTPUT_TOKENS = "gen_ai.usage.output_tokens"


CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"


CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"


FINISH_REASONS = "gen_ai.response.finish_reasons"


RESPONSE_ID = "gen_ai.response.id"


OUTPUT_TYPE = "gen_ai.output.type"


REQUEST_STREAM = "gen_ai.request.stream"


TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105  # the name of an attribute


SERVER_ADDRESS, SERVER_PORT = "server.address", "server.port"


HTTP_STATUS = "http.response.status_code"


TOOL_NAME = "gen_ai.tool.name"


TOOL_TYPE = "gen_ai.tool.type"


TOOL_CALL_ID = "gen_ai.tool.call.id"


ERROR_TYPE = "error.type"


#: What people and tools said: written only where somebody asked for it.
INPUT_MESSAGES = "gen_ai.input.messages"


OUTPUT_MESSAGES = "gen_ai.output.messages"


SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"


TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"


TOOL_RESULT = "gen_ai.tool.call.result"


#: Settings of a request, by the names of the vendors, as the conventions have them.
REQUEST_SETTINGS = {
    "max_tokens": "gen_ai.request.max_tokens", "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p", "topP": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k", "topK": "gen_ai.request.top_k", "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty", "frequencyPenalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty", "presencePenalty": "gen_ai.request.presence_penalty",
    "stop": "gen_ai.request.stop_sequences", "stop_sequences": "gen_ai.request.stop_sequences",
    "stopSequences": "gen_ai.request.stop_sequences",
}  # fmt: skip


#: What the conventions call a provider that has another name here.
PROVIDER_NAMES = {"gemini": "gcp.gemini"}


#: Metrics: their names, units and bucket boundaries, as the conventions want them.
TOKEN_USAGE, OPERATION_DURATION = "gen_ai.client.token.usage", "gen_ai.client.operation.duration"


TOKEN_BUCKETS = tuple(4**exponent for exponent in range(14))


SECONDS_BUCKETS = tuple(0.01 * 2**exponent for exponent in range(14))


#: Ours: the conventions have no word for them.
RUN_ID = "sayso.run_id"


COST_USD = "sayso.cost_usd"


STEP = "sayso.step"


FAILURE = "sayso.failure"


CUT_OFF = "sayso.answers.cut_off"


STOP_REASON = "sayso.stop_reason"


ITERATIONS = "sayso.iterations"


#: The operations, and `error.type` where no class is known.
INVOKE_AGENT, CHAT, EXECUTE_TOOL, OTHER = "invoke_agent", "chat", "execute_tool", "_OTHER"


_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


#: What an error's text begins with where it names a class.
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*(?=:)")


def spans_of(trace: AgentTrace, *, include_content: bool) -> list[dict[str, Any]]:
    """The run's span and, below it, one for each step. Times are in nanoseconds since 1970."""
    ids = {"trace_id": trace_id(trace.parent_run_id or trace.run_id), "parent_span_id": root_id(trace.run_id)}
    return [_root(trace), *(ids | _step(trace, at, include_content) for at in range(len(trace)))]


def trace_id(run_id: str) -> str:
    """A run's id where it can be one of a trace, else one that is made of it."""
    return run_id if _TRACE_ID.fullmatch(run_id) else hashlib.sha256(run_id.encode()).hexdigest()[:32]


def root_id(run_id: str) -> str:
    """The id of a run's own span: whoever knows the run knows it."""
    return _span_id(run_id, "run")


def _span_id(run_id: str, part: str) -> str:
    digest = hashlib.sha256(f"{run_id}/{part}".encode()).hexdigest()[:16]
    return digest if digest.strip("0") else "1".rjust(16, "0")


def _root(trace: AgentTrace) -> dict[str, Any]:
    failed = [step.error for step in trace.filter("error") if step.error]
    attributes = {OPERATION: INVOKE_AGENT, RUN_ID: trace.run_id} | _totals(trace)
    attributes |= {f"sayso.metadata.{key}": _plain(value) for key, value in trace.metadata.items()}
    return {
        "trace_id": trace_id(trace.parent_run_id or trace.run_id),
        "span_id": root_id(trace.run_id),
        "parent_span_id": root_id(trace.parent_run_id) if trace.parent_run_id else "",
        "name": INVOKE_AGENT,
        "kind": "INTERNAL",
        **_times(trace.start_time, trace.total_duration_ms),
        "attributes": attributes | _error_type(failed[-1] if failed else None),
        "status": {"code": "ERROR" if failed else "OK"},
    }


def _totals(trace: AgentTrace) -> dict[str, Any]:
    return {
        INPUT_TOKENS: sum(step.prompt_tokens or 0 for step in trace),
        OUTPUT_TOKENS: sum(step.completion_tokens or 0 for step in trace),
        COST_USD: sum(step.cost_usd or 0.0 for step in trace),
    }


def _step(trace: AgentTrace, at: int, include_content: bool) -> dict[str, Any]:
    step = trace.steps[at]
    operation, kind, named = _OPERATIONS.get(step.type, (step.type, "INTERNAL", None))
    name = getattr(step, named) if named else None
    status = {"code": "ERROR" if step.error else "OK"}
    if step.error and include_content:
        status["message"] = step.error
    return {
        "span_id": _span_id(trace.run_id, str(at)),
        "name": f"{operation} {name}" if name else operation,
        "kind": kind,
        **_times(step.timestamp, step.duration_ms),
        "attributes": _attributes(step, operation, include_content) | _error_type(step.error),
        "status": status,
    }


#: Operation, kind of span, and the field that names it; steps that are no operation have their type's name.
_OPERATIONS: dict[str, tuple[str, str, str | None]] = {
    "llm_call": (CHAT, "CLIENT", "model"),
    "tool_execution": (EXECUTE_TOOL, "INTERNAL", "tool_name"),
}


def _attributes(step: TraceStep, operation: str, include_content: bool) -> dict[str, Any]:
    attributes = {
        STEP: step.type,
        OPERATION: operation if step.type in _OPERATIONS else None,
        REQUEST_MODEL: step.model,
        PROVIDER: PROVIDER_NAMES.get(step.provider, step.provider) if step.provider else None,
        FINISH_REASONS: [step.finish_reason] if step.finish_reason else None,
        RESPONSE_ID: step.response_id,
        INPUT_TOKENS: step.prompt_tokens,
        OUTPUT_TOKENS: step.completion_tokens,
        COST_USD: step.cost_usd,
        TOOL_NAME: None if step.tool_name is None else loggable_name(step.tool_name),
    }
    if include_content:
        args = None if step.tool_args is None else json.dumps(dict(step.tool_args), default=str)
        attributes |= {TOOL_ARGUMENTS: args, TOOL_RESULT: step.tool_result}
    return {name: value for name, value in attributes.items() if value is not None}


def _error_type(error: str | None) -> dict[str, str]:
    if not error:
        return {}
    named = _CLASS.match(error)
    return {ERROR_TYPE: named.group() if named else OTHER}


def _times(began: float, duration_ms: float) -> dict[str, int]:
    start = int(began * 1e9)
    return {"start_time_unix_nano": start, "end_time_unix_nano": start + int(duration_ms * 1e6)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)


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
            self._end_run(next(iter(self._runs)), OTHER)
        outside, scope = self._context.get_current(), current_scope()
        conversation = {CONVERSATION: digest_of(scope)} if scope else {}
        span = self._tracer.start_span(
            f"{INVOKE_AGENT} {self._agent_name}",
            outside,
            attributes={
                OPERATION: INVOKE_AGENT,
                AGENT_NAME: self._agent_name,
                RUN_ID: run_id,
                **conversation,
            },
        )
        self._say(span, SYSTEM_INSTRUCTIONS, [_text(system_prompt)])
        self._say(span, INPUT_MESSAGES, [_spoken(message) for message in messages])
        self._runs[run_id] = _Run(
            span, outside, self._trace.set_span_in_context(span, outside), conversation=conversation
        )

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """It ends, with what the run cost and why it stopped."""
        if run := self._runs.get(run_id):
            run.span.set_attributes(_usage(result.usage))
            run.span.set_attributes({ITERATIONS: result.iterations, STOP_REASON: result.stop_reason})
            self._say(run.span, OUTPUT_MESSAGES, [_spoken(Message(Role.ASSISTANT, result.content))])
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
            self._end_chat(run, OTHER)
            run.chat = self._tracer.start_span(
                f"{CHAT} {model}",
                run.inside,
                kind=self._trace.SpanKind.CLIENT,
                attributes={OPERATION: CHAT, REQUEST_MODEL: model, **run.conversation},
            )
            self._say(run.chat, SYSTEM_INSTRUCTIONS, [_text(system_prompt)])
            self._say(run.chat, INPUT_MESSAGES, [_spoken(message) for message in messages])

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
            self._say(run.chat, OUTPUT_MESSAGES, [_answer(call.answer)])
            run.is_told = True

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """It ends, with what it cost."""
        run = self._runs.get(run_id)
        if run and run.chat:
            run.chat.set_attributes(_usage(usage or UsageStats()))
            if not run.is_told:
                self._say(run.chat, OUTPUT_MESSAGES, [_spoken(Message(Role.ASSISTANT, response))])
            self._end_chat(run)

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """An event of the span, whose question is asked again."""
        if run := self._runs.get(run_id):
            (run.chat or run.span).add_event("sayso.retry", {"sayso.attempt": attempt, ERROR_TYPE: _kind(error)})

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """An event of the run: nobody was asked."""
        if run := self._runs.get(run_id):
            run.span.add_event("sayso.cache_hit", {REQUEST_MODEL: model})

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A span `execute_tool` begins, and is the current one for what the tool does."""
        if run := self._runs.get(run_id):
            attributes = {
                OPERATION: EXECUTE_TOOL,
                TOOL_NAME: tool_name,
                TOOL_TYPE: "function",
                TOOL_CALL_ID: call_id,
                **run.conversation,
            }
            name = f"{EXECUTE_TOOL} {tool_name}"
            span = self._tracer.start_span(name, run.inside, attributes=attributes)
            self._say(span, TOOL_ARGUMENTS, dict(tool_args))
            run.tools[call_id] = span, self._around(run)
            self._context.attach(self._trace.set_span_in_context(span, run.inside))

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """It ends."""
        run = self._runs.get(run_id)
        if run and call_id in run.tools:
            self._say(run.tools[call_id][0], TOOL_RESULT, result)
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
            self._end_chat(run, failed or OTHER)
            for call_id in list(run.tools):
                self._end_tool(run, call_id, failed or OTHER)
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
            span.set_attribute(ERROR_TYPE, failed)
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
        PROVIDER: PROVIDER_NAMES.get(usage.provider, usage.provider),
        RESPONSE_MODEL: usage.model,
        INPUT_TOKENS: usage.prompt_tokens,
        OUTPUT_TOKENS: usage.completion_tokens,
        CACHE_READ_TOKENS: usage.cache_read_tokens,
        CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        COST_USD: usage.cost_usd,
    }
    return {name: value for name, value in told.items() if value}


def _operation(call: LlmCall) -> dict[str, Any]:
    """Return what every span and metric of a question says."""
    told = {
        OPERATION: CHAT,
        PROVIDER: PROVIDER_NAMES.get(call.provider, call.provider),
        REQUEST_MODEL: call.model,
        RESPONSE_MODEL: call.usage.model if call.usage else "",
        SERVER_ADDRESS: call.address,
        SERVER_PORT: call.port if call.address else None,
    }
    return {name: value for name, value in told.items() if value}


def _request(call: LlmCall) -> dict[str, Any]:
    known = REQUEST_SETTINGS
    chosen = {known[name]: value for name, value in call.settings.items() if name in known}
    told = {name: value if isinstance(value, int | float | str) else list(value) for name, value in chosen.items()}
    told[OUTPUT_TYPE] = "json" if call.is_json else "text"
    if call.is_streamed:
        told[REQUEST_STREAM] = True
    return _operation(call) | told


def _response(call: LlmCall) -> dict[str, Any]:
    details = call.answer.details if call.answer else None
    told: dict[str, Any] = {}
    if details is not None:
        told = {FINISH_REASONS: [details.finish_reason] if details.finish_reason else None}
        told[RESPONSE_ID] = details.response_id
    if isinstance(call.error, ProviderError):
        told = {HTTP_STATUS: call.error.status, FAILURE: call.error.kind}
    return {name: value for name, value in told.items() if value}


def _answer(message: Message) -> dict[str, Any]:
    """A model's answer in the shape of the conventions: with its calls, and why it ended."""
    reason = message.details.finish_reason if message.details else ""
    return _spoken(message) | {"finish_reason": reason or ("tool_call" if message.tool_calls else "stop")}


class _Metrics:
    """The metrics of questions to models. Lives as long as its observer."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            TOKEN_USAGE, "{token}", "Tokens of a question and of its answer",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )  # fmt: skip
        self._seconds = meter.create_histogram(
            OPERATION_DURATION, "s", "How long a question to a model took",
            explicit_bucket_boundaries_advisory=SECONDS_BUCKETS,
        )  # fmt: skip
        self._cut_off = meter.create_counter(CUT_OFF, "{answer}", "Answers that reached their length limit")

    def count(self, call: LlmCall) -> None:
        """Take a question that has ended."""
        about = _operation(call)
        failed = {ERROR_TYPE: _kind(call.error)} if call.error is not None else {}
        self._seconds.record(call.seconds, about | failed)
        if call.usage is not None and call.usage.total_tokens:
            self._tokens.record(call.usage.prompt_tokens, about | {TOKEN_TYPE: "input"})
            self._tokens.record(call.usage.completion_tokens, about | {TOKEN_TYPE: "output"})
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
