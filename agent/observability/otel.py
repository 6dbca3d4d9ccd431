"""OpenTelemetryObserver: live spans and metrics of runs.

A run is one span `invoke_agent`. Below it each model call is a span `chat`, and each tool call a
span `execute_tool`. Names and attributes follow OpenTelemetry's conventions for generative AI
(`agent/otel_conventions.py`). An OpenTelemetry *context* holds the current span: a new span becomes
its child, and so do the spans that the code of a tool starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sayso.agent import otel_conventions as gen_ai
from sayso.agent.extras import import_libraries
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.observability.observer import AgentObserver, LlmCall
from sayso.agent.providers.base import ProviderError
from sayso.agent.result import AgentResult
from sayso.agent.tools.environment import scope_digest, tool_environment
from sayso.infra.redaction import redact
from sayso.pending.error_texts import error_text

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, TracerProvider


#: How many runs may have open spans at a time. Beyond that, the spans of the oldest run are ended:
#: it may be one whose end was never reported.
MAX_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class _ToolSpan:
    """The open span of a tool call."""

    span: Span
    #: The context that is current again when the call ends.
    restore_to: Context


@dataclass(slots=True)
class _RunSpans:
    """The open spans of one run."""

    #: The span `invoke_agent`.
    span: Span
    #: The context in which the run began.
    outer_context: Context
    #: The same context with the span of the run as the current span.
    inner_context: Context
    #: The attribute that names the conversation, for each span of the run; empty without a scope.
    conversation: dict[str, str] = field(default_factory=dict)
    #: The span of the model call that runs now; None between calls.
    chat: Span | None = None
    #: The class of the provider error that the run ends with; "" for none.
    provider_error: str = ""
    #: The spans of the tool calls that run now, by the ids of the calls.
    tools: dict[str, _ToolSpan] = field(default_factory=dict)


class OpenTelemetryObserver(AgentObserver):
    """Reports runs to OpenTelemetry. Needs the extra `otel`. One may serve many runs at once.

    * `tracer_provider`, `meter_provider`: where spans and metrics go; None for the global ones of
      the process.
    * `agent_name`: the name of the agent in its spans.
    * `include_content`: whether spans have messages, arguments, results and the texts of errors.

    The conversation id of a span is a digest of the run's memory scope, so that no phone number
    gets into spans. A run's span is a child of the span that is current when the run begins, so
    that an agent called by a tool appears below the tool.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        agent_name: str = "agent",
        include_content: bool = False,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        import_libraries("otel", "opentelemetry", "opentelemetry.trace", "opentelemetry.metrics")
        from opentelemetry import context, metrics, trace

        self._trace = trace
        self._context = context
        self._tracer = trace.get_tracer("sayso", tracer_provider=tracer_provider)
        self._metrics = _Metrics(metrics.get_meter("sayso", meter_provider=meter_provider))
        self._agent_name = agent_name
        self._include_content = include_content
        self._runs: dict[str, _RunSpans] = {}

    def on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """Start an `invoke_agent` span."""
        if len(self._runs) >= MAX_RUNS:
            # A dict is in the order in which its keys were added.
            oldest_run_id = next(iter(self._runs))
            self._end_run(oldest_run_id, gen_ai.ERROR_OTHER)

        context = self._context.get_current()
        scope = tool_environment().memory_scope
        conversation: dict[str, str] = {}
        if scope:
            conversation[gen_ai.CONVERSATION] = scope_digest(scope)
        attributes = {
            gen_ai.OPERATION: gen_ai.INVOKE_AGENT,
            gen_ai.AGENT_NAME: self._agent_name,
            gen_ai.RUN_ID: run_id,
            **conversation,
        }
        span = self._tracer.start_span(
            f"{gen_ai.INVOKE_AGENT} {self._agent_name}", context, attributes=attributes
        )
        self._set_content(span, gen_ai.SYSTEM_INSTRUCTIONS, [_text_part(system_prompt)])
        self._set_content(span, gen_ai.INPUT_MESSAGES, [_message(message) for message in messages])
        self._runs[run_id] = _RunSpans(
            span=span,
            outer_context=context,
            inner_context=self._trace.set_span_in_context(span, context),
            conversation=conversation,
        )

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """End the run's span, with its cost and stop reason."""
        run = self._runs.get(run_id)
        if run is None:
            return
        run.span.set_attributes(_usage_attributes(result.usage))
        run.span.set_attributes(
            {gen_ai.ITERATIONS: result.iterations, gen_ai.STOP_REASON: result.stop_reason}
        )
        reply = Message(Role.ASSISTANT, result.content)
        self._set_content(run.span, gen_ai.OUTPUT_MESSAGES, [_message(reply)])
        error_type = ""
        if result.stop_reason == "provider_error":
            # `on_error` has named the class of the error before.
            error_type = run.provider_error or "provider_error"
        self._end_run(run_id, error_type)

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """End the run's span with the error.

        A provider error only sets the error of `on_run_end`, which follows it.
        """
        if not isinstance(error, ProviderError):
            self._end_run(run_id, _class_name(error), error)
            return
        run = self._runs.get(run_id)
        if run is not None:
            run.provider_error = _class_name(error)

    def on_cancelled(self, run_id: str, iteration: int, reason: str) -> None:
        """End the run's span as cancelled."""
        self._end_run(run_id, "cancelled")

    def on_llm_start(
        self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str
    ) -> None:
        """Start a `chat` span. One that is still open never got its answer and ends as failed."""
        run = self._runs.get(run_id)
        if run is None:
            return
        self._end_chat(run, gen_ai.ERROR_OTHER)
        run.chat = self._tracer.start_span(
            f"{gen_ai.CHAT} {model}",
            run.inner_context,
            kind=self._trace.SpanKind.CLIENT,
            attributes={
                gen_ai.OPERATION: gen_ai.CHAT,
                gen_ai.REQUEST_MODEL: model,
                **run.conversation,
            },
        )
        self._set_content(run.chat, gen_ai.SYSTEM_INSTRUCTIONS, [_text_part(system_prompt)])
        self._set_content(run.chat, gen_ai.INPUT_MESSAGES, [_message(each) for each in messages])

    def on_llm_call(self, run_id: str, call: LlmCall) -> None:
        """Record the metrics of a model call, and end its span with its details and its cost."""
        self._metrics.record(call)
        run = self._runs.get(run_id)
        if run is None or run.chat is None:
            return
        run.chat.set_attributes(
            _chat_attributes(call) | _usage_attributes(call.usage or UsageStats())
        )
        if call.answer is not None:
            # The vendor may not say why the model stopped.
            reason = "tool_call" if call.answer.tool_calls else "stop"
            if call.answer.details is not None and call.answer.details.finish_reason:
                reason = call.answer.details.finish_reason
            answer = _message(call.answer) | {"finish_reason": reason}
            self._set_content(run.chat, gen_ai.OUTPUT_MESSAGES, [answer])
        error_type = _class_name(call.error) if call.error else ""
        self._end_chat(run, error_type, call.error)

    def on_llm_retry(
        self,
        run_id: str,
        attempt: int,
        max_retries: int,
        error: BaseException,
        backoff_seconds: float,
    ) -> None:
        """Add a `sayso.retry` event to the span of the call that is retried."""
        run = self._runs.get(run_id)
        if run is None:
            return
        span = run.chat or run.span
        attributes: dict[str, str | int] = {
            "sayso.attempt": attempt,
            gen_ai.ERROR_TYPE: _class_name(error),
        }
        span.add_event("sayso.retry", attributes)

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """Add a `sayso.cache_hit` event to the run's span: no model was called."""
        run = self._runs.get(run_id)
        if run is not None:
            run.span.add_event("sayso.cache_hit", {gen_ai.REQUEST_MODEL: model})

    def on_tool_start(
        self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]
    ) -> None:
        """Start an `execute_tool` span and make it the current span for the tool's code."""
        run = self._runs.get(run_id)
        if run is None:
            return
        attributes = {
            gen_ai.OPERATION: gen_ai.EXECUTE_TOOL,
            gen_ai.TOOL_NAME: tool_name,
            gen_ai.TOOL_TYPE: "function",
            gen_ai.TOOL_CALL_ID: call_id,
        }
        span = self._tracer.start_span(
            f"{gen_ai.EXECUTE_TOOL} {tool_name}",
            run.inner_context,
            attributes=attributes | run.conversation,
        )
        self._set_content(span, gen_ai.TOOL_ARGUMENTS, dict(tool_args))

        # Usually the context of now is restored when the call ends. If that is the context of a
        # parallel call, it may end first, and its span must not become current again.
        current = self._trace.get_current_span()
        is_parallel = any(current is other.span for other in run.tools.values())
        restore_to = self._context.get_current()
        if is_parallel:
            restore_to = run.outer_context
        run.tools[call_id] = _ToolSpan(span, restore_to)
        self._context.attach(self._trace.set_span_in_context(span, run.inner_context))

    def on_tool_end(
        self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float
    ) -> None:
        """End the tool's span."""
        run = self._runs.get(run_id)
        if run and call_id in run.tools:
            self._set_content(run.tools[call_id].span, gen_ai.TOOL_RESULT, result)
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
        """End the tool's span with the error."""
        run = self._runs.get(run_id)
        if run and call_id in run.tools:
            self._end_tool(run, call_id, _class_name(error), error)

    def _end_run(
        self, run_id: str, error_type: str = "", error: BaseException | None = None
    ) -> None:
        """End the run's span, and before it the spans of calls that are still open, as failed.

        `error_type`: "" if the run did not fail.
        """
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        error_of_calls = error_type or gen_ai.ERROR_OTHER
        self._end_chat(run, error_of_calls)
        for call_id in list(run.tools):
            self._end_tool(run, call_id, error_of_calls)
        self._end_span(run.span, error_type, error)

    def _end_chat(
        self, run: _RunSpans, error_type: str, error: BaseException | None = None
    ) -> None:
        """End the span of the model call that runs now, if there is one."""
        if run.chat:
            self._end_span(run.chat, error_type, error)
            run.chat = None

    def _end_tool(
        self, run: _RunSpans, call_id: str, error_type: str = "", error: BaseException | None = None
    ) -> None:
        """End the span of a tool call, and restore the context that was current before it."""
        tool = run.tools.pop(call_id)
        # Not `detach(token)`: a run may be cancelled from another task, whose context does not know
        # the token.
        if self._trace.get_current_span() is tool.span:
            self._context.attach(tool.restore_to)
        self._end_span(tool.span, error_type, error)

    def _end_span(self, span: Span, error_type: str, error: BaseException | None = None) -> None:
        """End a span, as failed if there is an `error_type`."""
        if error_type:
            text = None
            if error is not None and self._include_content:
                text = redact(error_text(error))
            span.set_attribute(gen_ai.ERROR_TYPE, error_type)
            span.set_status(self._trace.StatusCode.ERROR, text)
        span.end()

    def _set_content(self, span: Span, name: str, content: Any) -> None:
        """Set an attribute to a text or to data as JSON, redacted, if spans have content at all."""
        if not self._include_content or not span.is_recording():
            return
        text = content
        if not isinstance(content, str):
            text = json.dumps(content, default=str)
        span.set_attribute(name, redact(text))


class _Metrics:
    """The metrics of model calls. One per observer."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            gen_ai.TOKEN_USAGE,
            "{token}",
            "Tokens of the input and of the output of a model call",
            explicit_bucket_boundaries_advisory=gen_ai.TOKEN_BUCKETS,
        )
        self._seconds = meter.create_histogram(
            gen_ai.OPERATION_DURATION,
            "s",
            "Duration of a model call",
            explicit_bucket_boundaries_advisory=gen_ai.SECONDS_BUCKETS,
        )
        self._cut_off = meter.create_counter(
            gen_ai.CUT_OFF, "{answer}", "Answers that reached their length limit"
        )

    def record(self, call: LlmCall) -> None:
        """Record a finished model call."""
        attributes = _call_attributes(call)
        error_type: dict[str, str] = {}
        if call.error is not None:
            error_type[gen_ai.ERROR_TYPE] = _class_name(call.error)
        self._seconds.record(call.seconds, attributes | error_type)
        if call.usage is not None and call.usage.total_tokens:
            self._tokens.record(call.usage.prompt_tokens, attributes | {gen_ai.TOKEN_TYPE: "input"})
            self._tokens.record(
                call.usage.completion_tokens, attributes | {gen_ai.TOKEN_TYPE: "output"}
            )
        details = call.answer.details if call.answer else None
        if details is not None and details.finish_reason == "length":
            self._cut_off.add(1, attributes)


def _class_name(error: BaseException) -> str:
    """Return the name of an error's class, with its module unless the class is built in."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _usage_attributes(usage: UsageStats) -> dict[str, str | int | float]:
    """Return the usage as attributes, without those that are zero or empty.

    A zero may also mean that the vendor did not report the number.
    """
    attributes: dict[str, str | int | float] = {
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAMES.get(usage.provider, usage.provider),
        gen_ai.RESPONSE_MODEL: usage.model,
        gen_ai.INPUT_TOKENS: usage.prompt_tokens,
        gen_ai.OUTPUT_TOKENS: usage.completion_tokens,
        gen_ai.CACHE_READ_TOKENS: usage.cache_read_tokens,
        gen_ai.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        gen_ai.COST_USD: usage.cost_usd,
    }
    return {name: value for name, value in attributes.items() if value}


def _call_attributes(call: LlmCall) -> dict[str, Any]:
    """Return the attributes that the span and the metrics of a call share, without empty ones.

    Providers have the names that the conventions give them.
    """
    attributes = {
        gen_ai.OPERATION: gen_ai.CHAT,
        gen_ai.PROVIDER: gen_ai.PROVIDER_NAMES.get(call.provider, call.provider),
        gen_ai.REQUEST_MODEL: call.model,
        gen_ai.RESPONSE_MODEL: call.usage.model if call.usage else "",
        gen_ai.SERVER_ADDRESS: call.address,
        gen_ai.SERVER_PORT: call.port if call.address else None,
    }
    return {name: value for name, value in attributes.items() if value}


def _chat_attributes(call: LlmCall) -> dict[str, Any]:
    """Return the attributes of a chat span: the request, and what is known of answer or error."""
    attributes = _call_attributes(call)
    for name, value in call.settings.items():
        attribute = gen_ai.REQUEST_SETTINGS.get(name)
        if attribute is None:
            continue
        if isinstance(value, int | float | str):
            attributes[attribute] = value
        else:
            attributes[attribute] = list(value)
    attributes[gen_ai.OUTPUT_TYPE] = "json" if call.is_json else "text"
    if call.is_streamed:
        attributes[gen_ai.REQUEST_STREAM] = True

    details = call.answer.details if call.answer else None
    response: dict[str, Any] = {}
    if isinstance(call.error, ProviderError):
        response = {gen_ai.HTTP_STATUS: call.error.status, gen_ai.FAILURE: call.error.kind}
    elif details is not None:
        reasons = [details.finish_reason] if details.finish_reason else None
        response = {gen_ai.FINISH_REASONS: reasons, gen_ai.RESPONSE_ID: details.response_id}
    return attributes | {name: value for name, value in response.items() if value}


def _message(message: Message) -> dict[str, Any]:
    """Return a message in the format of the conventions."""
    parts: list[dict[str, Any]] = []
    if message.role is Role.TOOL:
        parts = [
            {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        ]
    elif message.content:
        parts = [_text_part(message.content)]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.tool_name, "arguments": call.parameters}
        for call in message.tool_calls
    ]
    return {"role": message.role.value, "parts": parts}


def _text_part(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}
