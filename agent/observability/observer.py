"""AgentObserver, AsyncAgentObserver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sayso.agent.messages import Message, UsageStats
from sayso.agent.providers.base import Provider, ProviderRequest, UnchosenTemperature
from sayso.agent.providers.fallback import name_of

if TYPE_CHECKING:
    from sayso.agent.result import AgentResult  # which names observers in turn


class AgentObserver:
    """Overrides what it wants to hear. It is called where the run is, so it should be quick; its errors are logged.

    `run_id` names the run, `call_id` one call of a tool: calls that run at once are told apart by it. What is given is
    the run's own: read it, and change nothing.
    """

    def on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """A run begins with these messages."""

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """A run came to its result, whatever that is."""

    def on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """A run ends with an error; `context` says where. If no model could be asked, its result follows."""

    def on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """A model is about to be asked."""

    def on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """A model answered with this text; empty where it only called tools."""

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """The answer is one that was given before."""

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """What one question to a model cost."""

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """A model failed, and is asked again after the pause."""

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A tool is about to run."""

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """A tool gave its result."""

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """A tool failed."""

    def on_tool_chunk(self, run_id: str, call_id: str, tool_name: str, chunk: str) -> None:
        """A tool gave a piece of its result."""

    def on_iteration_start(self, run_id: str, iteration: int, messages: Sequence[Message]) -> None:
        """A step begins; the first is 1."""

    def on_iteration_end(self, run_id: str, iteration: int, response: str) -> None:
        """A step ended with this text of the model."""

    def on_batch_start(self, batch_id: str, prompts_count: int) -> None:
        """Several prompts are about to run at once."""

    def on_batch_end(self, batch_id: str, results_count: int, errors_count: int, total_duration_ms: float) -> None:
        """All of them have ended."""

    def on_policy_decision(
        self, run_id: str, tool_name: str, decision: str, reason: str, tool_args: Mapping[str, Any]
    ) -> None:
        """The policy said `allow`, `review` or `deny` of a call."""

    def on_structured_validate(self, run_id: str, success: bool, attempt: int, error: str | None) -> None:
        """An answer was held against the format asked for."""

    def on_provider_fallback(self, run_id: str, failed_provider: str, next_provider: str, error: BaseException) -> None:
        """A provider failed, and the next is asked."""

    def on_memory_trim(self, run_id: str, messages_removed: int, messages_remaining: int, reason: str) -> None:
        """A memory let its oldest messages go."""

    def on_session_load(self, run_id: str, session_id: str, message_count: int) -> None:
        """A session was read from its store."""

    def on_session_save(self, run_id: str, session_id: str, message_count: int) -> None:
        """A session was written to its store."""

    def on_memory_summarize(self, run_id: str, summary: str, messages_summarized: int) -> None:
        """Messages that were let go live on in a summary."""

    def on_entity_extraction(self, run_id: str, entities: Sequence[Any], turn_count: int) -> None:
        """What the conversation is about was noted."""

    def on_kg_extraction(self, run_id: str, triples: Sequence[Any]) -> None:
        """Relations were noted in the knowledge graph."""

    def on_budget_exceeded(self, run_id: str, reason: str, tokens_used: int, cost_used: float) -> None:
        """A run stops because of what it cost."""

    def on_cancelled(self, run_id: str, iteration: int, reason: str) -> None:
        """A run was stopped from outside."""

    def on_tool_loop_detected(self, run_id: str, detector_name: str, details: Mapping[str, Any]) -> None:
        """A run calls tools in circles."""

    def on_guardrail_triggered(self, run_id: str, stage: str, guardrail_name: str, action: str, detail: str) -> None:
        """A guardrail objected to the `input` or the `output`."""

    def on_coherence_check(self, run_id: str, tool_name: str, coherent: bool, explanation: str) -> None:
        """A call was held against what the user had asked for."""

    def on_model_switch(self, run_id: str, iteration: int, old_model: str, new_model: str) -> None:
        """The next step asks another model."""


#: The names of all events, without the `on_`.
EVENTS: tuple[str, ...] = tuple(name.removeprefix("on_") for name in vars(AgentObserver) if name.startswith("on_"))


class AsyncAgentObserver(AgentObserver):
    """Hears each event twice: in `on_<event>`, then in `a_on_<event>`, if it overrides them.

    With `blocking` the run waits for it; without, it goes on meanwhile, and what the observer has begun is lost if the
    event loop ends first: `sayso.agent.observability.dispatcher.wait_for_observers` waits for it. A sync
    `run()` calls no `a_on_<event>`.
    """

    blocking: bool = False

    async def a_on_run_start(self, run_id: str, messages: Sequence[Message], system_prompt: str) -> None:
        """A run begins with these messages."""

    async def a_on_run_end(self, run_id: str, result: AgentResult) -> None:
        """A run came to its result, whatever that is."""

    async def a_on_error(self, run_id: str, error: BaseException, context: Mapping[str, Any]) -> None:
        """A run ends with an error; `context` says where. If no model could be asked, its result follows."""

    async def a_on_llm_start(self, run_id: str, messages: Sequence[Message], model: str, system_prompt: str) -> None:
        """A model is about to be asked."""

    async def a_on_llm_end(self, run_id: str, response: str, usage: UsageStats | None) -> None:
        """A model answered with this text; empty where it only called tools."""

    async def a_on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """The answer is one that was given before."""

    async def a_on_usage(self, run_id: str, usage: UsageStats) -> None:
        """What one question to a model cost."""

    async def a_on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """A model failed, and is asked again after the pause."""

    async def a_on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A tool is about to run."""

    async def a_on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """A tool gave its result."""

    async def a_on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """A tool failed."""

    async def a_on_tool_chunk(self, run_id: str, call_id: str, tool_name: str, chunk: str) -> None:
        """A tool gave a piece of its result."""

    async def a_on_iteration_start(self, run_id: str, iteration: int, messages: Sequence[Message]) -> None:
        """A step begins; the first is 1."""

    async def a_on_iteration_end(self, run_id: str, iteration: int, response: str) -> None:
        """A step ended with this text of the model."""

    async def a_on_batch_start(self, batch_id: str, prompts_count: int) -> None:
        """Several prompts are about to run at once."""

    async def a_on_batch_end(
        self, batch_id: str, results_count: int, errors_count: int, total_duration_ms: float
    ) -> None:
        """All of them have ended."""

    async def a_on_policy_decision(
        self, run_id: str, tool_name: str, decision: str, reason: str, tool_args: Mapping[str, Any]
    ) -> None:
        """The policy said `allow`, `review` or `deny` of a call."""

    async def a_on_structured_validate(self, run_id: str, success: bool, attempt: int, error: str | None) -> None:
        """An answer was held against the format asked for."""

    async def a_on_provider_fallback(
        self, run_id: str, failed_provider: str, next_provider: str, error: BaseException
    ) -> None:
        """A provider failed, and the next is asked."""

    async def a_on_memory_trim(self, run_id: str, messages_removed: int, messages_remaining: int, reason: str) -> None:
        """A memory let its oldest messages go."""

    async def a_on_session_load(self, run_id: str, session_id: str, message_count: int) -> None:
        """A session was read from its store."""

    async def a_on_session_save(self, run_id: str, session_id: str, message_count: int) -> None:
        """A session was written to its store."""

    async def a_on_memory_summarize(self, run_id: str, summary: str, messages_summarized: int) -> None:
        """Messages that were let go live on in a summary."""

    async def a_on_entity_extraction(self, run_id: str, entities: Sequence[Any], turn_count: int) -> None:
        """What the conversation is about was noted."""

    async def a_on_kg_extraction(self, run_id: str, triples: Sequence[Any]) -> None:
        """Relations were noted in the knowledge graph."""

    async def a_on_budget_exceeded(self, run_id: str, reason: str, tokens_used: int, cost_used: float) -> None:
        """A run stops because of what it cost."""

    async def a_on_cancelled(self, run_id: str, iteration: int, reason: str) -> None:
        """A run was stopped from outside."""

    async def a_on_tool_loop_detected(self, run_id: str, detector_name: str, details: Mapping[str, Any]) -> None:
        """A run calls tools in circles."""

    async def a_on_guardrail_triggered(
        self, run_id: str, stage: str, guardrail_name: str, action: str, detail: str
    ) -> None:
        """A guardrail objected to the `input` or the `output`."""

    async def a_on_coherence_check(self, run_id: str, tool_name: str, coherent: bool, explanation: str) -> None:
        """A call was held against what the user had asked for."""

    async def a_on_model_switch(self, run_id: str, iteration: int, old_model: str, new_model: str) -> None:
        """The next step asks another model."""


@dataclass(frozen=True, slots=True)
class LlmCall:
    """A question that has ended: with an `answer` and its `usage`, or with an `error`. `seconds` has its retries.

    `provider`, `address` and `port` say who answered, of several the one that did. `settings` are those of the request
    that somebody chose, by the names of the vendors.
    """

    provider: str
    model: str
    seconds: float
    answer: Message | None = None
    usage: UsageStats | None = None
    error: BaseException | None = None
    is_streamed: bool = False
    is_json: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""
    port: int | None = None


def llm_call(provider: Provider, request: ProviderRequest, model: str, *, seconds: float, **ended: Any) -> LlmCall:
    """Return the call for a request and how it ended: `answer` and `usage`, or `error`, and `is_streamed`."""
    usage = ended.get("usage")
    who = _who(provider, usage.provider if usage else "")
    url = urlsplit(str(getattr(who, "base_url", "")))
    ports = {"http": 80, "https": 443}
    return LlmCall(
        provider=usage.provider if usage and usage.provider else name_of(who),
        model=model,
        seconds=seconds,
        is_json=request.response_format is not None,
        settings=_settings(who, request),
        address=url.hostname or "",
        port=url.port or ports.get(url.scheme),
        **ended,
    )


def _who(provider: Provider, name: str) -> Any:
    """Return the provider of this name among those that stand behind the given one; else the first of them."""
    inner = getattr(provider, "provider", None)
    several = getattr(provider, "providers", None) or ([inner] if inner is not None else [])
    if not several:
        return provider
    found = [_who(each, name) for each in several]
    return next((each for each in found if name_of(each) == name), found[0])


def _settings(provider: Any, request: ProviderRequest) -> dict[str, Any]:
    chosen = None if isinstance(request.temperature, UnchosenTemperature) else request.temperature
    given = {
        "max_tokens": request.max_tokens,
        "temperature": chosen,
        **(getattr(provider, "model_settings", None) or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
