"""ModelCaller: one call of the model, with cache, retries, cost and budget."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from time import perf_counter
from typing import Any, TypeVar

from sayso.agent.config import AgentConfig, Cache
from sayso.agent.guards.budget import BudgetRefusal, book_usage, budget_refusal
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.observability.observer import llm_call
from sayso.agent.observability.usage import AgentUsage
from sayso.agent.providers.base import (
    FILTERED,
    Completion,
    Provider,
    ProviderConfigurationError,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    acall,
    astream_call,
    name_of,
    with_listener,
)
from sayso.agent.providers.files import without_files
from sayso.agent.providers.pricing import cost_usd
from sayso.agent.result import stop_text
from sayso.agent.run.cache import CacheKeyBuilder, cached_answer, delete_answer, store_answer
from sayso.agent.run.context_window import (
    DEFAULT_CONTEXT_TOKENS,
    MIN_TRANSCRIPT_SHARE,
    RESULT_SHARE,
    SMALL_CHARS,
    fit_transcript,
    transcript_tokens,
)
from sayso.agent.run.conversation_key import ConversationKeys
from sayso.agent.run.long_results import (
    BYTES_PER_TOKEN,
    MAX_CHAR_BYTES,
    has_shortened_result,
    text_tokens,
)
from sayso.agent.run.state import RunEnd, RunState, RunTextListener
from sayso.agent.run.structured import schema_from_response_format
from sayso.pending.proposals import current_context

log = logging.getLogger(__name__)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
ResponseSchema = Mapping[str, Any]

#: Called before each pause with the number of the failed attempt, its error,
#: and the seconds until the next attempt.
OnRetry = Callable[[int, ProviderError, float], Awaitable[None]]

#: The longest `retry_after` of a vendor that is waited for, in seconds.
#: Beyond it the user is told of the failure.
MAX_RETRY_AFTER_SECONDS = 60.0
#: The largest random addition to a pause, as a share of it,
#: so that runs that failed together do not retry together.
JITTER = 0.25
#: How often a transcript that is too long for the model is halved and sent again.
MAX_HALVINGS = 6
#: The largest share of a rejected transcript that is sent again.
MAX_FITTING_SHARE = 0.85
#: HTTP statuses with which a vendor rejects a request because of its content.
_REJECTED_STATUSES = frozenset({400, 413, 415, 422})


class ModelCaller:
    """Calls the model of one agent. `usage` counts all its calls."""

    def __init__(
        self, provider: Provider, config: AgentConfig, usage: AgentUsage, *, sleep: Sleep
    ) -> None:
        self._provider = provider
        self._config = config
        self._usage = usage
        self._sleep = sleep
        self._conversation_keys = ConversationKeys(config)
        #: Context windows that are known from refused requests, in tokens as they are estimated
        #: here, by model.
        self._learned_windows: dict[str, int] = {}
        self.name = name_of(provider)
        settings = getattr(provider, "model_settings", None)
        #: The provider in cache keys: its answers depend on its settings.
        if settings:
            self._cache_name = f"{self.name} {json.dumps(settings, sort_keys=True, default=str)}"
        else:
            self._cache_name = self.name

    @property
    def prompt(self) -> str:
        """Return the system prompt for the current user."""
        prompt = self._config.system_prompt
        if isinstance(prompt, str):
            return prompt
        return prompt(current_context())

    async def ask(self, run: RunState, schemas: Sequence[ResponseSchema]) -> Completion:
        """Ask the model and return its message and usage.

        Tool calls get unique ids; usage is added to the run at once.

        Raises ProviderError if there is no answer.
        """
        config = self._config
        on_text = run.on_text
        response_format = run.request.response_format
        schema = None
        model = await self._select_model(run)
        prompt = "\n\n".join(filter(None, (self.prompt, run.schema_instruction)))
        if response_format is not None and getattr(
            self._provider, "supports_response_format", False
        ):
            schema = schema_from_response_format(response_format)
        request = ProviderRequest(
            model=model,
            system_prompt=prompt,
            messages=self._build_messages(run, model, prompt, schemas),
            tools=schemas,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            timeout=config.request_timeout,
            response_format=schema,
            conversation_key=self._conversation_keys.key_of(run),
        )
        cache = config.cache
        run.cache_key = ""
        # A stream cannot be replayed (seed: What Gets Cached).
        if cache is None or on_text is not None:
            answer, usage = await self._call(run, request, on_text)
        else:
            answer, usage = await self._call_or_replay(run, request, cache)
        return _with_unique_ids(answer, run), usage

    async def delete_cached_answer(self, run: RunState) -> None:
        """Delete the last answer from the cache, because it was unusable."""
        if self._config.cache is not None and run.cache_key:
            await delete_answer(self._config.cache, run.cache_key)

    def count_calls(self, calls: Sequence[ToolCall]) -> None:
        """Add the tool calls of an answer to the agent's usage."""
        for call in calls:
            self._usage.count_tool(call.tool_name)

    async def book_side_usage(self, run: RunState) -> None:
        """Book what model calls outside the loop used since the last time, such as summaries."""
        await self.book(run, run.events.take_unbilled_usage())

    async def book(self, run: RunState, usage: UsageStats) -> None:
        """Add usage of the run to the agent's usage and to the budget."""
        if usage.total_tokens:
            self._add_usage(usage)
            await self._add_to_budget(run, usage)

    def log_empty_answer(self, run: RunState, *, is_final: bool = True) -> str:
        """Log that the model gave an empty answer, and return this cause.

        One that `is_final` ends the run.
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
        """Add usage to the agent's, and log a warning when its
        cost passes `cost_warning_threshold`.
        """
        threshold = self._config.cost_warning_threshold
        before = None if threshold is None else self._usage.total_cost_usd
        self._usage.add_usage(usage)
        if (
            threshold is not None
            and before is not None
            and before <= threshold < self._usage.total_cost_usd
        ):
            total = round(self._usage.total_cost_usd, 4)
            log.warning(
                "agent.cost_warning",
                extra={"agent": self._config.name, "usd": total, "threshold": threshold},
            )

    async def _add_to_budget(self, run: RunState, usage: UsageStats) -> None:
        if self._config.budget is not None:
            await book_usage(self._config.budget, run.request.scope, usage)

    async def _select_model(self, run: RunState) -> str:
        """Return the model of this step as the provider is asked for it;
        "" for the provider's default.

        If the selector fails, the run continues with the configured model.
        """
        config = self._config
        model = self._config.model
        if config.model_selector is not None:
            try:
                model = (
                    config.model_selector(run.iterations, tuple(run.tool_calls), self._usage)
                    or model
                )
            except Exception as exc:  # a selector may raise anything, and the user needs an answer
                reason = {"agent": config.name, "reason": type(exc).__name__}
                log.warning("agent.model_selector_failed", extra=reason)
        name = model or str(getattr(self._provider, "default_model", ""))
        if run.model and run.model != name:
            await run.events.tell("model_switch", run.iterations, run.model, name)
        run.model = name
        return model

    def _build_messages(
        self, run: RunState, model: str, prompt: str, schemas: Sequence[ResponseSchema]
    ) -> Sequence[Message]:
        """Return the part of the transcript that the model is sent, with what is remembered."""
        config = self._config
        messages = run.transcript
        limit = run.max_transcript_tokens
        has_own_window = config.context_tokens is not None or run.model in self._learned_windows
        if limit is None and (has_own_window or not self._is_small(messages)):
            window = self._window(model)
            others = self._other_tokens(run, prompt, schemas)
            limit = max(window - others, int(window * MIN_TRANSCRIPT_SHARE))
        if limit is not None:
            current = [*run.messages, *run.rejected]
            messages = fit_transcript(
                run.history, current, max_tokens=limit, result_tokens=run.result_tokens
            )
        if run.names_files_only:
            messages = without_files(messages)
        return run.with_context(messages)

    def limit_results(self, run: RunState) -> None:
        """Decide how many tokens the model reads of one result in this step,
        and whether it is shown `read_result`.
        """
        run.result_tokens = self._config.result_tokens
        if self._is_small(run.transcript):
            share = run.result_tokens
        else:
            window = run.max_transcript_tokens or self._window(run.model or self._config.model)
            share = int(window * RESULT_SHARE)
        if getattr(self._provider, "shows_results", False):
            # It has no price, and people read what it reads.
            run.result_tokens = share
            run.can_read_on = False
            return
        run.result_tokens = min(run.result_tokens, share)
        run.can_read_on = run.can_read_on or has_shortened_result(run.transcript, run.result_tokens)

    def _is_small(self, messages: Sequence[Message]) -> bool:
        """Return whether a transcript fits every model, and its results need not be shortened."""
        most = min(SMALL_CHARS, self._config.result_tokens * BYTES_PER_TOKEN // MAX_CHAR_BYTES)
        return sum(len(message.content) for message in messages) < most

    def _window(self, model: str) -> int:
        """Return the context window of a model in tokens.

        It is the configured one, else the known one. It is never more than refused requests have
        shown.
        """
        window = self._config.context_tokens
        if window is None:
            known_window = getattr(self._provider, "context_tokens", None)
            if callable(known_window):
                window = known_window(model)
            else:
                window = None
        window = window or DEFAULT_CONTEXT_TOKENS
        name = model or str(getattr(self._provider, "default_model", ""))
        return min(window, self._learned_windows.get(name, window))

    def _other_tokens(self, run: RunState, prompt: str, schemas: Sequence[ResponseSchema]) -> int:
        """Return an estimate of the tokens beside the transcript, with those for the answer."""
        tools = json.dumps(list(schemas), default=str)
        texts = (prompt, run.background, run.related_facts, tools)
        return self._config.max_tokens + sum(map(text_tokens, texts))

    async def _call_or_replay(
        self, run: RunState, request: ProviderRequest, cache: Cache
    ) -> Completion:
        try:
            key = run.cache_key = CacheKeyBuilder.build(
                # The actual model, which is "" in the request for the provider's default.
                model=run.model,
                system_prompt=request.system_prompt,
                messages=request.messages,
                tools=request.tools,
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                response_format=None
                if request.response_format is None
                else dict(request.response_format),
                provider=self._cache_name,
            )
        except (TypeError, ValueError, RecursionError):  # the request cannot be written as JSON
            return await self._call(run, request, None)
        cached = await cached_answer(cache, key, transcript=request.messages)
        if cached is None:
            completion = await self._call(run, request, None)
            await store_answer(cache, key, completion, max_tokens=request.max_tokens)
            return completion
        answer, usage = cached
        run.usage += usage  # it is counted again (seed: Integration with Usage Tracking)
        self._add_usage(usage)
        run.events.note("cache_hit", model=run.model, prompt_tokens=usage.prompt_tokens)
        if run.events.has_observer_of("cache_hit", "llm_end"):
            await run.events.tell("cache_hit", run.model, answer.content)
            await run.events.tell("llm_end", answer.content, usage)
        return cached

    async def _call(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
        events = run.events
        config = self._config
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
        details = answer.details
        if not usage.provider:
            usage += UsageStats(provider=self.name)
        if not usage.cost_usd and model in config.prices:
            usage += UsageStats(
                cost_usd=cost_usd(model, usage, usage.provider, prices=config.prices) or 0.0
            )
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
            finish_reason=details.finish_reason or None if details else None,
            response_id=details.response_id or None if details else None,
        )
        run.usage += usage
        self._add_usage(usage)
        if details is not None and details.finish_reason == "length":
            log.warning("model.cut_off run=%s model=%s", events.run_id, model)
        self._report_call(
            run, request, began, answer=answer, usage=usage, is_streamed=on_text is not None
        )
        if events.has_observer_of("llm_end", "usage"):
            await events.tell("llm_end", answer.content, usage)
            await events.tell("usage", usage)
        await self._add_to_budget(run, usage)
        return answer, usage

    def _report_call(
        self, run: RunState, request: ProviderRequest, began: float, **outcome: Any
    ) -> None:
        if run.events.has_observer_of("llm_call"):
            seconds = perf_counter() - began
            run.events.tell_call(
                llm_call(self._provider, request, run.model, seconds=seconds, **outcome)
            )

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
        """Call the model, with less of the transcript if the vendor rejects it.

        The size that the model then takes is remembered: later requests of all conversations stay
        below it. Raises ProviderError.
        """
        limit_before = run.max_transcript_tokens
        # A server may refuse the bytes of a file, which says nothing about the tokens of the texts.
        has_files = _has_files(request.messages)
        for _ in range(MAX_HALVINGS + 2):
            try:
                completion = await self._call_with_retries(run, request, on_text)
                if not has_files and run.max_transcript_tokens not in (None, limit_before):
                    self._learn_window(run, request, run.max_transcript_tokens)
                return completion
            except ProviderError as exc:
                messages = self._reduce_messages(run, request, exc)
                if messages is None:
                    raise
            request = replace(request, messages=messages)
        return await self._call_with_retries(run, request, on_text)

    def _learn_window(self, run: RunState, request: ProviderRequest, tokens: int) -> None:
        """Remember the window of a model that took `tokens` of a transcript but not more."""
        others = self._other_tokens(run, request.system_prompt, request.tools or ())
        window = tokens + others
        known = self._learned_windows.get(run.model, window + 1)
        if window >= known:
            return
        self._learned_windows[run.model] = window
        log.warning(
            "model.window_learned model=%s provider=%s tokens=%d",
            run.model,
            self.name,
            window,
        )

    def _reduce_messages(
        self, run: RunState, request: ProviderRequest, error: ProviderError
    ) -> Sequence[Message] | None:
        """Return less of a rejected transcript, also for the rest of the run;
        None if nothing more can be left out.

        A transcript that is too long is cut to the size that the vendor names, or else halved.
        Otherwise its files are only named, since one may be damaged or larger than it looks. If a
        content filter rejected it, the history is left out, so that one message does not block all
        that follow.
        """
        if error.kind == "too_long":
            tokens = _spoken_tokens(request.messages)
            limit = run.max_transcript_tokens
            fitting = self._fitting_tokens(run, request, tokens, error.fitting_share)
            run.max_transcript_tokens = fitting
            self.limit_results(run)
            shorter = self._build_messages(
                run, request.model, request.system_prompt, request.tools or ()
            )
            if _spoken_tokens(shorter) <= tokens * 0.9:
                log.warning("model.context_exceeded run=%s %s", run.events.run_id, error.cause)
                return shorter
            run.max_transcript_tokens = limit  # the transcript cannot become notably shorter
        elif error.kind != "refused" or error.status not in _REJECTED_STATUSES:
            return None
        if not run.names_files_only and _has_files(request.messages):
            run.names_files_only = True
            run.max_transcript_tokens = None
            log.warning("model.files_left_out run=%s %s", run.events.run_id, error.cause)
        elif error.code == FILTERED and run.history:
            run.history = []
            log.warning("model.history_left_out run=%s %s", run.events.run_id, error.cause)
        else:
            return None
        return self._build_messages(run, request.model, request.system_prompt, request.tools or ())

    def _fitting_tokens(
        self,
        run: RunState,
        request: ProviderRequest,
        tokens: int,
        share: float | None,
    ) -> int:
        """Return how many tokens a rejected transcript of `tokens` may have.

        `share` is the share of the whole request that the model would take, None if it is unknown.
        """
        if share is None:
            return tokens // 2
        others = self._other_tokens(run, request.system_prompt, request.tools or ())
        fitting = int((tokens + others) * share) - others
        least = int(tokens * MIN_TRANSCRIPT_SHARE)
        most = int(tokens * MAX_FITTING_SHARE)
        return min(max(fitting, least), most)

    async def _call_with_retries(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
        """Call the model up to `1 + max_retries` times,
        and report retries and fallbacks to observers.
        """
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


def _has_files(messages: Sequence[Message]) -> bool:
    """Return whether a file or an image is sent with the messages."""
    return any(message.media or message.pictures for message in messages)


def _spoken_tokens(messages: Sequence[Message]) -> int:
    """Return an estimate of the tokens of the messages that can be left out of a request."""
    return transcript_tokens([message for message in messages if message.role is not Role.SYSTEM])


def _with_unique_ids(answer: Message, run: RunState) -> Message:
    """Return the answer with call ids that are unique in the request.

    The id links a result to its call.

    Servers that number the calls of each answer, or send no ids, repeat those of earlier turns.
    """
    if not answer.tool_calls:
        return answer
    taken = {call.id for call in run.tool_calls}
    for message in run.history:
        taken.update(call.id for call in message.tool_calls)
    ids = {call.id for call in answer.tool_calls}
    if len(ids) == len(answer.tool_calls) and "" not in ids and taken.isdisjoint(ids):
        return answer
    calls = []
    for at, call in enumerate(answer.tool_calls):
        preferred = f"call_{run.iterations}_{at}"
        candidates = chain(
            [call.id] if call.id else [], [preferred], (f"{preferred}_{n}" for n in count(1))
        )
        calls.append(replace(call, id=next(each for each in candidates if each not in taken)))
        taken.add(calls[-1].id)
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

    Raises the last ProviderError.

    An error is raised at once if a retry cannot help, or if the vendor asks to wait for too long.
    """
    for number in range(1, config.max_retries + 1):
        try:
            return await attempt()
        except ProviderError as exc:
            if not exc.retryable or (exc.retry_after or 0) > MAX_RETRY_AFTER_SECONDS:
                raise
            error = exc
        seconds = retry_pause(number, error, config) * (1 + JITTER * chance())
        if on_retry is not None:
            await on_retry(number, error, seconds)
        await sleep(seconds)
    return await attempt()


def retry_pause(attempt: int, error: ProviderError, config: AgentConfig) -> float:
    """Return the seconds to wait after a failed attempt, without jitter: the vendor's wish,
    or as configured.
    """
    if error.retry_after is not None and error.retry_after > 0:
        return error.retry_after
    text = str(error).lower()  # some adapters show a rate limit only here
    is_rate_limit = isinstance(error, RateLimitedError) or "rate limit" in text or "429" in text
    return attempt * (
        config.retry_backoff_seconds
        + (config.rate_limit_cooldown_seconds if is_rate_limit else 0.0)
    )


async def budget_end(run: RunState, config: AgentConfig) -> RunEnd | None:
    """Return the end of a run whose own, conversation's or daily budget is spent;
    None if it is not.
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
    limits = config.run_budget
    if limits:
        refusal = limits.refusal(run.usage + run.events.side_usage)
    else:
        refusal = None
    if refusal is None and config.budget is not None:
        refusal = await budget_refusal(config.budget, run.request.scope)
    return refusal
