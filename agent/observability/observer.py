"""Observers: base classes for code that watches runs, and the record of one call of a model.

An *event* is something that happens in a run, such as `tool_start`. For each event, `run_events.py`
calls the method `on_<event>` of each observer. LlmCall is what one of these methods, `on_llm_call`,
receives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec
from urllib.parse import urlsplit

from sayso.agent.messages import Message, UsageStats
from sayso.agent.providers.base import Provider, ProviderRequest, UnchosenTemperature, name_of
from sayso.agent.result import AgentResult

P = ParamSpec("P")


class AgentObserver:
    """Base of observers: override the methods of the events that you want to receive.

    Methods run inside the run, so keep them short. An error in a method is logged and does not stop
    the run. `run_id` names the run; `call_id` names one tool call, as several may run at once. The
    arguments are the objects that the run uses: do not change them.
    """

    def on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """Receive the messages that a run starts with."""

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """Receive the result of a run, for every stop reason."""

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """Receive the error that ends a run; `context` says where.

        A failed model call is followed by `on_run_end`.
        """

    def on_llm_start(
        self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str
    ) -> None:
        """Receive the request before a model is called."""

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """Receive the text of a model's answer; empty when it only called tools."""

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """Receive an answer that came from the cache."""

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """Receive the tokens and the cost of one model call."""

    def on_llm_retry(
        self,
        run_id: str,
        attempt: int,
        max_retries: int,
        error: BaseException,
        backoff_seconds: float,
    ) -> None:
        """Receive the error of a model call that is retried after the backoff."""

    def on_tool_start(
        self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]
    ) -> None:
        """Receive a tool call before it runs."""

    def on_tool_end(
        self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float
    ) -> None:
        """Receive the result of a tool call."""

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Receive the error of a tool call."""

    def on_tool_chunk(self, run_id: str, call_id: str, tool_name: str, chunk: str) -> None:
        """Receive a piece of a result that a tool streams."""

    def on_iteration_start(self, run_id: str, iteration: int, messages: Sequence[Message]) -> None:
        """Receive the start of an iteration of the agent loop; the first is 1."""

    def on_iteration_end(self, run_id: str, iteration: int, response: str) -> None:
        """Receive the end of an iteration, with the model's text."""

    def on_batch_start(self, batch_id: str, prompts_count: int) -> None:
        """Receive the start of a batch of prompts."""

    def on_batch_end(
        self, batch_id: str, results_count: int, errors_count: int, total_duration_ms: float
    ) -> None:
        """Receive the end of a batch."""

    def on_policy_decision(
        self, run_id: str, tool_name: str, decision: str, reason: str, tool_args: Mapping[str, Any]
    ) -> None:
        """Receive what the policy decided for a tool call: `allow`, `review` or `deny`."""

    def on_structured_validate(
        self, run_id: str, success: bool, attempt: int, error: str | None
    ) -> None:
        """Receive whether an answer matches the `response_format`."""

    def on_provider_fallback(
        self, run_id: str, failed_provider: str, next_provider: str, error: BaseException
    ) -> None:
        """Receive the error of a provider, and the name of the provider that is called next."""

    def on_memory_trim(
        self, run_id: str, messages_removed: int, messages_remaining: int, reason: str
    ) -> None:
        """Receive how many of its oldest messages a memory removed."""

    def on_session_load(self, run_id: str, session_id: str, message_count: int) -> None:
        """Receive a session that was read from its store."""

    def on_session_save(self, run_id: str, session_id: str, message_count: int) -> None:
        """Receive a session that was written to its store."""

    def on_memory_summarize(self, run_id: str, summary: str, messages_summarized: int) -> None:
        """Receive the summary of messages that were removed from a memory."""

    def on_entity_extraction(self, run_id: str, entities: Sequence[Any], turn_count: int) -> None:
        """Receive the entities that were extracted from a conversation."""

    def on_kg_extraction(self, run_id: str, triples: Sequence[Any]) -> None:
        """Receive the triples that were added to the knowledge graph."""

    def on_budget_exceeded(
        self, run_id: str, reason: str, tokens_used: int, cost_used: float
    ) -> None:
        """Receive why a run stops at its budget."""

    def on_cancelled(self, run_id: str, iteration: int, reason: str) -> None:
        """Receive the cancellation of a run."""

    def on_tool_loop_detected(
        self, run_id: str, detector_name: str, details: Mapping[str, Any]
    ) -> None:
        """Receive that a run repeats the same tool calls."""

    def on_guardrail_triggered(
        self, run_id: str, stage: str, guardrail_name: str, action: str, detail: str
    ) -> None:
        """Receive what a guardrail found; `stage` is `input` or `output`."""

    def on_coherence_check(
        self, run_id: str, tool_name: str, coherent: bool, explanation: str
    ) -> None:
        """Receive whether a tool call matches what the user asked for."""

    def on_model_switch(self, run_id: str, iteration: int, old_model: str, new_model: str) -> None:
        """Receive the model that the next iteration calls instead."""


#: The names of all events, without `on_`.
EVENTS: tuple[str, ...] = tuple(
    name.removeprefix("on_") for name in vars(AgentObserver) if name.startswith("on_")
)


def _async_twin(method: Callable[P, None]) -> Callable[P, Coroutine[Any, Any, None]]:
    """Return an async method that does nothing, with the signature and docstring of `method`."""

    @wraps(method)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> None:
        pass

    return twin


class AsyncAgentObserver(AgentObserver):
    """Base of async observers: each event calls `on_<event>`, then the async `a_on_<event>`.

    Only overridden methods are called. With `blocking` the run waits for `a_on_<event>`. Otherwise
    the run goes on, and an event that is not handled when the event loop ends is lost: wait with
    `sayso.agent.observability.run_events.wait_for_observers`. A synchronous `run()` does not call
    `a_on_<event>`.
    """

    blocking: bool = False


for _event in EVENTS:
    setattr(
        AsyncAgentObserver, f"a_on_{_event}", _async_twin(getattr(AgentObserver, f"on_{_event}"))
    )

#: Where a value of an event comes from: the name of a parameter, such as `result`, or the path of
#: an attribute of it, such as `result.usage`; alone, or with a function that converts the value.
Source = str | tuple[str, Callable[[Any], Any]]


def event_reader(
    event: str, sources: Mapping[str, Source]
) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Return a function that reads values out of the arguments of `on_<event>`.

    `sources` says where each value comes from, by its name. The function takes the arguments of the
    method, and returns the id of the run or batch, and the values by their names. With it, an
    observer of many events is a table instead of many methods.
    """
    signature = inspect.signature(getattr(AgentObserver, f"on_{event}"))
    # The first parameter is `self`, the second the id.
    id_parameter = tuple(signature.parameters)[1]

    def read(*args: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        """Return the id of the run or batch, and the values by their names."""
        arguments = signature.bind(None, *args, **kwargs).arguments
        values = {}
        for name, source in sources.items():
            convert: Callable[[Any], Any] | None = None
            if isinstance(source, str):
                path = source
            else:
                path, convert = source
            parameter, _, attribute = path.partition(".")
            value = arguments[parameter]
            if attribute:
                value = attrgetter(attribute)(value)
            if convert is not None:
                value = convert(value)
            values[name] = value
        return arguments[id_parameter], values

    return read


@dataclass(frozen=True, slots=True)
class LlmCall:
    """One finished call of a model: with an `answer` and its `usage`, or with an `error`."""

    #: The name of the provider that answered, which a FallbackProvider chooses.
    provider: str
    #: The model that was asked.
    model: str
    #: How long the call took, retries included.
    seconds: float
    answer: Message | None = None
    usage: UsageStats | None = None
    error: BaseException | None = None
    #: Whether the answer was streamed.
    is_streamed: bool = False
    #: Whether the vendor was asked for JSON of a schema.
    is_json: bool = False
    #: The settings of the request that were configured, by the vendor's names.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The host of the provider's server; "" if it has none.
    address: str = ""
    #: The port of that server; None if it is not known.
    port: int | None = None


def llm_call(
    provider: Provider, request: ProviderRequest, model: str, *, seconds: float, **outcome: Any
) -> LlmCall:
    """Return the record of a finished call.

    `provider` was called, and may wrap several others. `model` is the model of the run. `outcome`
    has the fields of LlmCall that say how the call ended: `answer` and `usage`, or `error`, and
    `is_streamed`.
    """
    usage = outcome.get("usage")
    answering, model = _answering(provider, model, usage)
    provider_name = name_of(answering)
    if usage is not None and usage.provider:
        provider_name = usage.provider

    url = urlsplit(str(getattr(answering, "base_url", "")))
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    # The default temperature is no setting that was configured.
    temperature = request.temperature
    if isinstance(temperature, UnchosenTemperature):
        temperature = None
    settings = {
        "max_tokens": request.max_tokens,
        "temperature": temperature,
        **(getattr(answering, "model_settings", None) or {}),
    }
    return LlmCall(
        provider=provider_name,
        model=model,
        seconds=seconds,
        is_json=request.response_format is not None,
        settings={name: value for name, value in settings.items() if value is not None},
        address=url.hostname or "",
        port=port,
        **outcome,
    )


def _answering(provider: Provider, model: str, usage: UsageStats | None) -> tuple[Any, str]:
    """Return the provider that answered, and the model that it was called with.

    `provider` may wrap several, which are called one after the other until one answers. Only the
    first is called with the `model` of the run, the others with their default models. A call
    without a usage counts for the first provider.
    """
    first, *others = _wrapped(provider)
    fallbacks = [(each, getattr(each, "default_model", None) or model) for each in others]
    candidates = [(first, model), *fallbacks]
    if usage is None:
        return candidates[0]

    # The usage names the vendor that answered.
    of_vendor = [(each, name) for each, name in candidates if name_of(each) == usage.provider]
    if not of_vendor:
        of_vendor = candidates[:1]
    # Several providers may be of that vendor. The model in the usage begins with the name of the
    # model that was called, so the longest such name is that of the provider which answered.
    matching = [(each, name) for each, name in of_vendor if usage.model.startswith(name)]
    return max(matching, key=lambda pair: len(pair[1]), default=of_vendor[0])


def _wrapped(provider: Any) -> list[Any]:
    """Return the providers inside of a provider, in the order in which they are called.

    A provider that wraps none is returned alone.
    """
    inner = getattr(provider, "provider", None)
    providers = list(getattr(provider, "providers", None) or ())
    if not providers and inner is not None:
        providers = [inner]
    if not providers:
        return [provider]
    innermost: list[Any] = []
    for wrapped in providers:
        innermost += _wrapped(wrapped)
    return innermost
