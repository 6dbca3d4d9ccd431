"""ModelCaller: gets one answer of an agent's model, with cache, retries, cost and budget.

On the way down a call passes through `ask` (what is asked), `_call_or_replay` (the cache), `_call`
(the report of cost and time), `_call_with_reductions` (less of the transcript, if it is too long)
and `_call_with_retries`. `context_window.py` decides how much of the conversation is sent.
`sayso.agent.providers` makes the request of a vendor.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from sayso.agent.config import AgentConfig, Cache
from sayso.agent.guards.budget import BudgetRefusal, book_usage, budget_refusal
from sayso.agent.messages import Message, ToolCall, UsageStats
from sayso.agent.observability.observer import llm_call
from sayso.agent.observability.usage import AgentUsage
from sayso.agent.providers.base import (
    Completion,
    Provider,
    ProviderConfigurationError,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    ToolSchema,
    acall,
    astream_call,
    name_of,
    name_of_model,
    with_listener,
)
from sayso.agent.providers.pricing import cost_usd
from sayso.agent.result import stop_text
from sayso.agent.run.cache import CacheKeyBuilder, cached_answer, delete_answer, store_answer
from sayso.agent.run.context_window import ContextFitter, has_files
from sayso.agent.run.conversation_key import ConversationKeys
from sayso.agent.run.state import RunEnd, RunState, RunTextListener
from sayso.agent.run.structured import schema_from_response_format
from sayso.pending.proposals import current_context

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Waits for this many seconds.
Sleep = Callable[[float], Awaitable[None]]

#: Called before each pause with the number of the failed attempt, its error,
#: and the seconds until the next attempt.
OnRetry = Callable[[int, ProviderError, float], Awaitable[None]]

#: The longest `retry_after` of a vendor that is waited for, in seconds. For a longer one the run
#: ends, and the user reads that the model is away.
MAX_RETRY_AFTER_SECONDS = 60.0
#: The largest random addition to a pause, as a share of the pause. So runs that failed at the same
#: time do not retry at the same time.
JITTER = 0.25
#: How often a transcript that is too long for the model is halved and sent again.
MAX_HALVINGS = 6
#: How often a request is reduced and sent again: by the halvings, and once each without its files
#: and without its history.
_MAX_REDUCTIONS = MAX_HALVINGS + 2


class ModelCaller:
    """Asks the model for one answer of a run, as often as the loop needs one.

    One per provider of an agent; it serves all runs at the same time, and keeps nothing of a run.
    `usage` is the agent's: it counts the calls of all runs. `sleep` waits this many seconds before
    a failed call is repeated.
    """

    def __init__(
        self, provider: Provider, config: AgentConfig, usage: AgentUsage, *, sleep: Sleep
    ) -> None:
        self._provider = provider
        self._config = config
        self._usage = usage
        self._sleep = sleep
        self._conversation_keys = ConversationKeys(config)
        #: Decides what of the transcript the model is sent.
        self.fitter = ContextFitter(provider, config)
        self.name = name_of(provider)
        #: The provider in cache keys: its name and its settings, on which its answers depend.
        self._cache_name = self.name
        settings = getattr(provider, "model_settings", None)
        if settings:
            self._cache_name += f" {json.dumps(settings, sort_keys=True, default=str)}"

    @property
    def prompt(self) -> str:
        """The system prompt for the current user, as the configuration or its function gives it."""
        prompt = self._config.system_prompt
        if isinstance(prompt, str):
            return prompt
        return prompt(current_context())

    async def ask(self, run: RunState, schemas: Sequence[ToolSchema]) -> Completion:
        """Ask the model and return its message and usage.

        `schemas` are the tools that it is shown. The calls of its answer get ids that are unique in
        the conversation. The usage is added to that of the run, of the agent and of the budget at
        once, so that a run that is stopped later has booked it. Raises ProviderError if there is no
        answer.
        """
        config = self._config
        model = await self._select_model(run)
        prompt = "\n\n".join(filter(None, [self.prompt, run.schema_instruction]))

        # The prompt has the schema of a typed answer. Vendors that accept a schema get it as well,
        # because they then force the model to keep to it.
        schema = None
        response_format = run.request.response_format
        knows_schemas = getattr(self._provider, "supports_response_format", False)
        if response_format is not None and knows_schemas:
            schema = schema_from_response_format(response_format)

        request = ProviderRequest(
            model=model,
            system_prompt=prompt,
            messages=self.fitter.messages_for(run, model, prompt, schemas),
            tools=schemas,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            timeout=config.request_timeout,
            response_format=schema,
            conversation_key=self._conversation_keys.key_of(run),
        )
        run.cache_key = ""
        # The pieces of a streamed answer cannot be replayed, so it is neither looked up nor stored.
        if config.cache is None or run.on_text is not None:
            answer, usage = await self._call(run, request, run.on_text)
        else:
            answer, usage = await self._call_or_replay(run, request, config.cache)
        return _with_unique_ids(answer, run), usage

    async def delete_cached_answer(self, run: RunState) -> None:
        """Delete the last answer of the run from the cache, because it was unusable."""
        if self._config.cache is not None and run.cache_key:
            await delete_answer(self._config.cache, run.cache_key)

    def count_calls(self, calls: Sequence[ToolCall]) -> None:
        """Add the tool calls of an answer to the agent's usage."""
        for call in calls:
            self._usage.count_tool(call.tool_name)

    async def book_side_usage(self, run: RunState) -> None:
        """Book what model calls outside the loop, such as summaries, used since the last time."""
        await self.book(run, run.events.take_unbilled_usage())

    async def book(self, run: RunState, usage: UsageStats) -> None:
        """Add usage of the run to the agent's usage and to the budget."""
        if usage.total_tokens:
            self._add_usage(usage)
            await self._add_to_budget(run, usage)

    def log_empty_answer(self, run: RunState, *, is_final: bool = True) -> str:
        """Log that the model gave an empty answer. Return it as the cause of a failure.

        `is_final`: the run ends with it. Otherwise the model is asked once more.
        """
        cause = f"kind=empty model={run.model}"
        if is_final:
            log.error("model.failed run=%s %s provider=%s", run.events.run_id, cause, self.name)
        else:
            log.warning(
                "model.empty run=%s model=%s provider=%s", run.events.run_id, run.model, self.name
            )
        return cause

    def _add_usage(self, usage: UsageStats) -> None:
        """Add usage to the agent's. Log one warning when its cost passes the threshold."""
        threshold = self._config.cost_warning_threshold
        if threshold is None:
            self._usage.add_usage(usage)
            return

        before = self._usage.total_cost_usd
        self._usage.add_usage(usage)
        after = self._usage.total_cost_usd
        if before <= threshold < after:
            facts = {"agent": self._config.name, "usd": round(after, 4), "threshold": threshold}
            log.warning("agent.cost_warning", extra=facts)

    async def _add_to_budget(self, run: RunState, usage: UsageStats) -> None:
        if self._config.budget is not None:
            await book_usage(self._config.budget, run.request.scope, usage)

    async def _select_model(self, run: RunState) -> str:
        """Return the name of the model for this iteration; "" for the provider's default.

        If the configured selector of models fails, the run continues with the configured model.
        """
        config = self._config
        model = config.model
        if config.model_selector is not None:
            try:
                selected = config.model_selector(run.iterations, tuple(run.tool_calls), self._usage)
                model = selected or model
            except Exception as exc:  # a selector may raise anything, and the user needs an answer
                reason = {"agent": config.name, "reason": type(exc).__name__}
                log.warning("agent.model_selector_failed", extra=reason)

        # The run and its observers name the actual model.
        name = name_of_model(self._provider, model)
        if run.model and run.model != name:
            await run.events.tell("model_switch", run.iterations, run.model, name)
        run.model = name
        return model

    async def _call_or_replay(
        self, run: RunState, request: ProviderRequest, cache: Cache
    ) -> Completion:
        """Return the cached answer to the same request; else ask the model and cache its answer."""
        schema = None
        if request.response_format is not None:
            schema = dict(request.response_format)
        try:
            key = CacheKeyBuilder.build(
                # The actual model, which is "" in the request for the provider's default.
                model=run.model,
                system_prompt=request.system_prompt,
                messages=request.messages,
                tools=request.tools,
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                response_format=schema,
                provider=self._cache_name,
            )
        except (TypeError, ValueError, RecursionError):  # the request cannot be written as JSON
            return await self._call(run, request, None)

        run.cache_key = key
        cached_completion = await cached_answer(cache, key, transcript=request.messages)
        if cached_completion is None:
            completion = await self._call(run, request, None)
            await store_answer(cache, key, completion, max_tokens=request.max_tokens)
            return completion

        # The usage of a cached answer is counted again, as if the model had been asked. It is not
        # taken from the budget: nothing was paid for it.
        answer, usage = cached_completion
        run.usage += usage
        self._add_usage(usage)
        run.events.note("cache_hit", model=run.model, prompt_tokens=usage.prompt_tokens)
        if run.events.has_observer_of("cache_hit", "llm_end"):
            await run.events.tell("cache_hit", run.model, answer.content)
            await run.events.tell("llm_end", answer.content, usage)
        return cached_completion

    async def _call(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
        """Ask the model, and report the call to the trace, the observers, the usage and the budget.

        `on_text` receives the answer while it arrives; None: it is not streamed.
        """
        events = run.events
        began = perf_counter()
        if events.has_observer_of("llm_start"):
            await events.tell("llm_start", list(request.messages), run.model, request.system_prompt)

        try:
            answer, usage = await self._call_with_reductions(run, request, on_text)
        except Exception as exc:
            events.note("error", began=began, model=run.model, error=str(exc))
            self._log_failure(run, exc)
            self._report_call(run, request, began, error=exc, is_streamed=on_text is not None)
            raise

        model = usage.model or run.model
        usage = self._with_provider_and_cost(usage, model)
        finish_reason = None
        response_id = None
        details = answer.details
        if details is not None:
            finish_reason = details.finish_reason or None
            response_id = details.response_id or None

        events.note(
            "llm_call",
            began=began,
            model=model,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cache_read_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            cost_usd=usage.cost_usd,
            provider=usage.provider or None,
            finish_reason=finish_reason,
            response_id=response_id,
        )
        run.usage += usage
        self._add_usage(usage)
        if finish_reason == "length":
            log.warning("model.cut_off run=%s model=%s", events.run_id, model)
        self._report_call(
            run, request, began, answer=answer, usage=usage, is_streamed=on_text is not None
        )
        if events.has_observer_of("llm_end", "usage"):
            await events.tell("llm_end", answer.content, usage)
            await events.tell("usage", usage)
        await self._add_to_budget(run, usage)
        return answer, usage

    def _with_provider_and_cost(self, usage: UsageStats, model: str) -> UsageStats:
        """Return the usage of an answer with the provider and the cost, if it lacks them."""
        if not usage.provider:
            usage += UsageStats(provider=self.name)
        prices = self._config.prices
        if not usage.cost_usd and model in prices:
            cost = cost_usd(model, usage, usage.provider, prices=prices)
            usage += UsageStats(cost_usd=cost or 0.0)
        return usage

    def _report_call(
        self, run: RunState, request: ProviderRequest, began: float, **outcome: Any
    ) -> None:
        """Report a call to observers.

        `began`: its start by `perf_counter`. `outcome`: the fields of LlmCall that say how it
        ended.
        """
        if not run.events.has_observer_of("llm_call"):
            return
        seconds = perf_counter() - began
        call = llm_call(self._provider, request, run.model, seconds=seconds, **outcome)
        run.events.tell_call(call)

    def _log_failure(self, run: RunState, error: Exception) -> None:
        """Log the cause of a final failure without the vendor's text, which may quote the user."""
        cause = f"model={run.model}"
        if isinstance(error, ProviderError):
            error.model = error.model or run.model
            cause = error.cause
        details = f"{cause} provider={self.name} error={type(error).__name__}"

        extra = {}
        if isinstance(error, ProviderConfigurationError):
            # The text of this error is our own: it names a key or a library that is missing.
            extra["advice"] = str(error)
        elif isinstance(error, ProviderError) and error.advice:
            extra["advice"] = error.advice
        log.error("model.failed run=%s %s", run.events.run_id, details, extra=extra)

    async def _call_with_reductions(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
        """Call the model, with less of the transcript if the vendor refuses it.

        The size that the model then accepts is remembered: later requests of all conversations stay
        below it. Raises ProviderError.
        """
        limit_before = run.max_transcript_tokens
        # A server may refuse the bytes of a file, which says nothing about the tokens of the texts.
        sends_files = has_files(request.messages)
        for _ in range(_MAX_REDUCTIONS):
            try:
                completion = await self._call_with_retries(run, request, on_text)
            except ProviderError as exc:
                messages = self.fitter.reduced_messages(run, request, exc)
                if messages is None:  # nothing can be left out
                    raise
                request = replace(request, messages=messages)
                continue

            # A limit that this call has set was accepted, and a larger transcript was refused.
            new_limit = run.max_transcript_tokens
            if new_limit is not None and new_limit != limit_before and not sends_files:
                self.fitter.learn_window(run, request, new_limit)
            return completion
        return await self._call_with_retries(run, request, on_text)

    async def _call_with_retries(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
        """Call the model up to `1 + max_retries` times. Report retries and fallbacks to observers.

        A *fallback* is another provider that is asked because one failed. Raises the last
        ProviderError.
        """
        # The provider that failed, the one that was asked next, and the error.
        fallbacks: list[tuple[str, str, Exception]] = []
        provider = with_listener(self._provider, lambda *fallback: fallbacks.append(fallback))
        if on_text is None:
            attempt = partial(acall, provider, request)
        else:
            attempt = partial(astream_call, provider, request, on_text)

        async def on_retry(number: int, error: ProviderError, seconds: float) -> None:
            error.model = error.model or run.model
            log.warning("provider.retry attempt=%d provider=%s %s", number, self.name, error.cause)
            await run.events.tell("llm_retry", number, self._config.max_retries, error, seconds)

        try:
            return await with_retries(attempt, self._config, self._sleep, on_retry=on_retry)
        finally:
            for fallback in fallbacks:
                await run.events.tell("provider_fallback", *fallback)


def _with_unique_ids(answer: Message, run: RunState) -> Message:
    """Return the answer with call ids that are unique in the conversation.

    The id links a result to its call. Some servers number the calls of each answer anew, or send no
    ids, so that the ids of earlier turns come again.
    """
    if not answer.tool_calls:
        return answer

    taken_ids = {call.id for call in run.tool_calls}
    for message in run.history:
        taken_ids.update(call.id for call in message.tool_calls)
    ids = {call.id for call in answer.tool_calls}
    are_unique = len(ids) == len(answer.tool_calls) and taken_ids.isdisjoint(ids)
    if are_unique and "" not in ids:
        return answer

    calls = []
    for at, call in enumerate(answer.tool_calls):
        new_id = call.id
        if not new_id or new_id in taken_ids:
            new_id = f"call_{run.iterations}_{at}"
        suffix = 0
        while new_id in taken_ids:
            suffix += 1
            new_id = f"call_{run.iterations}_{at}_{suffix}"
        calls.append(replace(call, id=new_id))
        taken_ids.add(new_id)
    return replace(answer, tool_calls=tuple(calls))


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    config: AgentConfig,
    sleep: Sleep,
    *,
    on_retry: OnRetry | None = None,
    chance: Callable[[], float] = random.random,
) -> T:
    """Return the result of `attempt`, called up to `1 + max_retries` times.

    `on_retry` is called before each pause, and `sleep` makes it. `chance` returns a number from 0
    to 1. Raises the last ProviderError. One that a retry cannot cure is raised at once, and so is
    one whose vendor asks to wait for longer than MAX_RETRY_AFTER_SECONDS.
    """
    for number in range(1, config.max_retries + 1):
        try:
            return await attempt()
        except ProviderError as exc:
            demanded_seconds = exc.retry_after or 0
            if not exc.retryable or demanded_seconds > MAX_RETRY_AFTER_SECONDS:
                raise
            error = exc

        seconds = retry_pause(number, error, config) * (1 + JITTER * chance())
        if on_retry is not None:
            await on_retry(number, error, seconds)
        await sleep(seconds)
    # The last attempt: its error is raised.
    return await attempt()


def retry_pause(attempt: int, error: ProviderError, config: AgentConfig) -> float:
    """Return the seconds to wait after a failed attempt, without jitter.

    `attempt` counts from 1. The pause is the one that the vendor asks for, or else the configured
    one, which grows with each attempt.
    """
    if error.retry_after is not None and error.retry_after > 0:
        return error.retry_after

    pause = config.retry_backoff_seconds
    text = str(error).lower()  # some adapters show a rate limit only here
    if isinstance(error, RateLimitedError) or "rate limit" in text or "429" in text:
        pause += config.rate_limit_cooldown_seconds
    return attempt * pause


async def budget_end(run: RunState, config: AgentConfig) -> RunEnd | None:
    """Return how the run ends because a budget is spent; None if it may go on.

    The budgets are those of the run, of its conversation and of the day. Observers are told.
    """
    refusal = await _budget_refusal(run, config)
    if refusal is None:
        return None
    tokens = refusal.tokens_used
    cost = refusal.cost_used
    run.events.note("budget", summary=f"{refusal.reason}: {tokens} tokens, {cost:.4f} USD")
    await run.events.tell("budget_exceeded", refusal.reason, tokens, cost)
    return RunEnd(stop_text("budget_spent"), stop_reason="budget")


async def is_budget_spent(run: RunState, config: AgentConfig) -> bool:
    """Return whether a budget forbids further model calls, including those outside the loop."""
    return await _budget_refusal(run, config) is not None


async def _budget_refusal(run: RunState, config: AgentConfig) -> BudgetRefusal | None:
    """Return why a budget forbids further model calls; None if none does."""
    refusal = None
    if config.run_budget is not None:
        refusal = config.run_budget.refusal(run.usage + run.events.side_usage)
    if refusal is None and config.budget is not None:
        refusal = await budget_refusal(config.budget, run.request.scope)
    return refusal
