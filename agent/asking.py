"""Asker: one question to the model, from the cache or with retries, and its bill."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from time import perf_counter
from typing import Any

from sayso.agent.budget import book_in
from sayso.agent.cache.asking import forgotten, looked_up, stored
from sayso.agent.cache.base import Cache
from sayso.agent.cache.keys import CacheKeyBuilder
from sayso.agent.config import AgentConfig, ModelSelector, model_for
from sayso.agent.context_window import DEFAULT_CONTEXT_TOKENS, fitted, is_small, tokens_in, transcript_tokens
from sayso.agent.messages import Message, ToolCall, UsageStats
from sayso.agent.observers.llm_call import llm_call
from sayso.agent.pricing import cost_usd
from sayso.agent.providers.base import (
    FILTERED,
    Completion,
    Provider,
    ProviderError,
    ProviderRequest,
    acall,
    astream_call,
)
from sayso.agent.providers.fallback import fallback_listener, name_of
from sayso.agent.providers.files import named_only
from sayso.agent.retry import Sleep, with_retries
from sayso.agent.run import OnText, Run
from sayso.agent.structured import schema_from_response_format
from sayso.agent.usage import AgentUsage

log = logging.getLogger(__name__)

Schema = Mapping[str, Any]

#: How often a transcript that is too long for the model is halved, and asked with again.
MAX_SHORTENINGS = 6
#: Statuses with which a vendor refuses a request for what is in it.
_REFUSALS = frozenset({400, 413, 415, 422})
#: The share of the context window that is left to a transcript at least, whatever else a request has in it.
LEAST_SHARE = 0.125


class Asker:
    """Lives as long as its agent. `usage` is what all its questions came to."""

    def __init__(self, provider: Provider, config: AgentConfig, usage: AgentUsage, *, sleep: Sleep) -> None:
        self._provider = provider
        self._config = config
        self._usage = usage
        self._sleep = sleep
        self.name = name_of(provider)
        self._unnamed = UsageStats(provider=self.name)
        settings = getattr(provider, "model_settings", None)
        #: Who answers, for keys of the cache: other settings have other answers.
        self._cached_as = f"{self.name} {json.dumps(settings, sort_keys=True, default=str)}" if settings else self.name

    async def ask(self, run: Run, schemas: Sequence[Schema]) -> Completion:
        """The model's answer to what the run has come to, every call in it with an id of its own, and what it cost,
        which the run has from the moment it is known.

        Raises ProviderError when there is none.
        """
        request, on_text = await self._request(run, schemas), run.on_text
        cache, run.cache_key = self._config.cache, ""
        if cache is None or on_text is not None:  # a stream cannot be replayed (seed: What Gets Cached)
            answer, usage = await self._answered(run, request, on_text)
        else:
            answer, usage = await self._cached(run, request, cache)
        return _identified(answer, run), usage

    async def disown(self, run: Run) -> None:
        """The answer was of no use: the next who asks is not to get it from the cache."""
        if self._config.cache is not None and run.cache_key:
            await forgotten(self._config.cache, run.cache_key)

    def spend(self, usage: UsageStats) -> None:
        """Take what something cost to the agent's account, and warn once when it is over what was thought enough."""
        threshold, before = self._config.cost_warning_threshold, self._usage.total_cost_usd
        self._usage.add_usage(usage)
        if threshold is not None and before <= threshold < self._usage.total_cost_usd:
            total = round(self._usage.total_cost_usd, 4)
            log.warning("agent.cost_warning", extra={"agent": self._config.name, "usd": total, "threshold": threshold})

    def count(self, calls: Sequence[ToolCall]) -> None:
        """Take the model's calls to the agent's account."""
        for call in calls:
            self._usage.count_tool(call.tool_name)

    async def spend_beside(self, run: Run) -> None:
        """Take what the run's side questions cost since then to the account, and off its budget."""
        await self.spend_on(run, run.chronicle.unpaid())

    async def spend_on(self, run: Run, usage: UsageStats) -> None:
        """Take what a run used to the account, and off its budget."""
        if usage.total_tokens:
            self.spend(usage)
            await self._book(run, usage)

    async def _book(self, run: Run, usage: UsageStats) -> None:
        if self._config.budget is not None:
            await book_in(self._config.budget, run.request.scope, usage)

    async def _request(self, run: Run, schemas: Sequence[Schema]) -> ProviderRequest:
        config, native = self._config, getattr(self._provider, "supports_response_format", False)
        form = run.request.response_format
        model, prompt = await self._model(run), "\n\n".join(filter(None, [config.prompt, run.context]))
        return ProviderRequest(
            model=model,
            system_prompt=prompt,
            messages=self._messages(run, model, prompt, schemas),
            tools=schemas,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            timeout=config.request_timeout,
            response_format=schema_from_response_format(form) if form is not None and native else None,
        )

    def _messages(self, run: Run, model: str, prompt: str, schemas: Sequence[Schema]) -> Sequence[Message]:
        """Return what the model is sent of the transcript."""
        messages = self._fitted(run, model, prompt, schemas)
        return named_only(messages) if run.names_files else messages

    def _fitted(self, run: Run, model: str, prompt: str, schemas: Sequence[Schema]) -> Sequence[Message]:
        """Return the transcript as far as the model's context window has room for it."""
        messages, config = run.transcript, self._config
        if run.room is not None:
            return fitted(run.history, [*run.messages, *run.drafts], room=run.room, result_tokens=config.result_tokens)
        if config.context_tokens is None and is_small(messages):
            return messages
        window = config.context_tokens or self._known_window(model) or DEFAULT_CONTEXT_TOKENS
        beside = config.max_tokens + tokens_in(prompt) + tokens_in(json.dumps(list(schemas), default=str))
        room = max(window - beside, int(window * LEAST_SHARE))
        current = [*run.messages, *run.drafts]
        made = fitted(run.history, current, room=room, result_tokens=config.result_tokens or window // 4)
        return messages if made == messages else made

    def _known_window(self, model: str) -> int | None:
        """Return the context window that the provider knows of the model, in tokens; None where it knows none."""
        known = getattr(self._provider, "context_tokens", None)
        return known(model) if callable(known) else None

    async def _model(self, run: Run) -> str:
        """The model of this step, as its provider is asked for it."""
        config = self._config
        model = model_for(self._provider, config.model)
        if config.model_selector is not None:
            model = self._chosen(config.model_selector, run) or model
        shown = model or str(getattr(self._provider, "default_model", ""))
        if run.model and run.model != shown:
            await run.chronicle.tell("model_switch", run.iterations, run.model, shown)
        run.model = shown
        return model

    def _chosen(self, select: ModelSelector, run: Run) -> str:
        """The selector's choice; "" where it fails, and the run goes on with the model that is configured."""
        try:
            return select(run.iterations, tuple(run.tool_calls), self._usage)
        except Exception as exc:  # noqa: BLE001  # it is anybody's code, and the user must be answered
            log.warning("agent.model_selector_failed", extra={"agent": self._config.name, "reason": type(exc).__name__})
            return ""

    def _key(self, request: ProviderRequest, model: str) -> str:
        """`model` is what the request comes to: in it, that of the provider's own choice is ""."""
        return CacheKeyBuilder.build(
            model=model,
            system_prompt=request.system_prompt,
            messages=request.messages,
            tools=request.tools,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            response_format=None if request.response_format is None else dict(request.response_format),
            provider=self._cached_as,
        )

    async def _cached(self, run: Run, request: ProviderRequest, cache: Cache) -> Completion:
        try:
            key = run.cache_key = self._key(request, run.model)
        except (TypeError, ValueError, RecursionError):  # what JSON cannot hold has no key
            return await self._answered(run, request, None)
        kept = await looked_up(cache, key, said=request.messages)
        if kept is not None:
            return await self._replayed(run, kept)
        answer = await self._answered(run, request, None)
        await stored(cache, key, answer, max_tokens=request.max_tokens)
        return answer

    async def _replayed(self, run: Run, kept: Completion) -> Completion:
        """What the cache had. What it cost then is counted again (seed: Integration with Usage Tracking)."""
        answer, usage = kept
        run.usage += usage
        self.spend(usage)
        run.chronicle.note("cache_hit", model=run.model, prompt_tokens=usage.prompt_tokens)
        if run.chronicle.is_heard:
            await run.chronicle.tell("cache_hit", run.model, answer.content)
            await run.chronicle.tell("llm_end", answer.content, usage)
        return kept

    async def _answered(self, run: Run, request: ProviderRequest, on_text: OnText | None) -> Completion:
        chronicle, began = run.chronicle, perf_counter()
        if chronicle.is_heard:
            await chronicle.tell("llm_start", list(request.messages), run.model, request.system_prompt)
        try:
            answer, usage = await self._until_taken(run, request, on_text)
        except Exception as exc:
            chronicle.note("error", began=began, model=run.model, error=str(exc))
            self._log_failure(run, exc)
            self._tell_call(run, request, began, error=exc, is_streamed=on_text is not None)
            raise
        usage, details = self._priced(usage, run.model), answer.details
        chronicle.note(
            "llm_call",
            began=began,
            model=usage.model or run.model,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cost_usd=usage.cost_usd,
            provider=usage.provider or None,
            **(
                {"finish_reason": details.finish_reason or None, "response_id": details.response_id or None}
                if details
                else {}
            ),
        )
        self._tell_call(run, request, began, answer=answer, usage=usage, is_streamed=on_text is not None)
        run.usage += usage
        self.spend(usage)
        if details is not None and details.finish_reason == "length":
            self._usage.count_cut_off()
            log.warning("model.cut_off run=%s model=%s", chronicle.run_id, usage.model or run.model)
        if chronicle.is_heard:
            await chronicle.tell("llm_end", answer.content, usage)
            await chronicle.tell("usage", usage)
        await self._book(run, usage)
        return answer, usage

    def _tell_call(self, run: Run, request: ProviderRequest, began: float, **ended: Any) -> None:
        if run.chronicle.is_heard:
            seconds = perf_counter() - began
            run.chronicle.tell_call(llm_call(self._provider, request, run.model, seconds=seconds, **ended))

    def _log_failure(self, run: Run, error: Exception) -> None:
        """Log a final failure by its cause, without the vendor's words, which may repeat a person's."""
        cause = f"model={run.model}"
        if isinstance(error, ProviderError):
            error.model = error.model or run.model
            cause = error.cause
        shown = f"{cause} provider={self.name} error={type(error).__name__}"
        log.error("model.failed run=%s %s", run.chronicle.run_id, shown)

    def log_empty_answer(self, run: Run) -> str:
        """Log that a model ended a run without a word, and return this cause: its person has no answer."""
        cause = f"kind=empty model={run.model}"
        log.error("model.failed run=%s %s provider=%s", run.chronicle.run_id, cause, self.name)
        return cause

    async def _until_taken(self, run: Run, request: ProviderRequest, on_text: OnText | None) -> Completion:
        """Ask; while the vendor refuses the transcript, ask again with less of it. Raises ProviderError."""
        for _ in range(MAX_SHORTENINGS + 2):
            try:
                return await self._with_retries(run, request, on_text)
            except ProviderError as exc:
                messages = self._reduced(run, request, exc)
                if messages is None:
                    raise
            request = replace(request, messages=messages)
        return await self._with_retries(run, request, on_text)

    def _reduced(self, run: Run, request: ProviderRequest, error: ProviderError) -> Sequence[Message] | None:
        """Return less of a transcript that was refused, which the run then keeps to; None where nothing is left to try.

        One that is too long is halved. Else its files are only named: one may be damaged, or longer than it looks. The
        history of one that a content filter refused is left out: what was said once must not end all that follows.
        """
        if error.kind == "too_long" and (shorter := self._halved(run, request)) is not None:
            _log_reduced("model.context_exceeded", run, error)
            return shorter
        if error.kind != "too_long" and (error.kind != "refused" or error.status not in _REFUSALS):
            return None
        if not run.names_files and any(message.media or message.pictures for message in request.messages):
            run.names_files, run.room = True, None
            _log_reduced("model.files_left_out", run, error)
        elif error.code == FILTERED and run.history:
            run.history = []
            _log_reduced("model.history_left_out", run, error)
        else:
            return None
        return self._messages(run, request.model, request.system_prompt, request.tools or ())

    def _halved(self, run: Run, request: ProviderRequest) -> Sequence[Message] | None:
        """Return half of the transcript; None where it can hardly be made shorter."""
        before, room = transcript_tokens(request.messages), run.room
        run.room = before // 2
        shorter = self._messages(run, request.model, request.system_prompt, request.tools or ())
        if transcript_tokens(shorter) <= before * 0.9:
            return shorter
        run.room = room
        return None

    async def _with_retries(self, run: Run, request: ProviderRequest, on_text: OnText | None) -> Completion:
        """Ask up to `1 + max_retries` times. What was heard of an answer that broke off is void."""
        attempt = (
            partial(acall, self._provider, request)
            if on_text is None
            else partial(astream_call, self._provider, request, on_text)
        )

        async def on_retry(number: int, error: Exception, seconds: float) -> None:
            await run.chronicle.tell("llm_retry", number, self._config.max_retries, error, seconds)

        switches: list[tuple[str, str, Exception]] = []
        token = fallback_listener.set(lambda *switch: switches.append(switch))
        try:
            return await with_retries(attempt, self._config, self._sleep, on_retry=on_retry)
        finally:
            fallback_listener.reset(token)
            for switch in switches:
                await run.chronicle.tell("provider_fallback", *switch)

    def _priced(self, usage: UsageStats, model: str) -> UsageStats:
        if not usage.provider:
            usage = self._unnamed + usage
        if usage.cost_usd or (usage.model or model) not in self._config.prices:
            return usage
        known = cost_usd(usage.model or model, usage, usage.provider, prices=self._config.prices)
        return replace(usage, cost_usd=known) if known else usage


def _log_reduced(event: str, run: Run, error: ProviderError) -> None:
    log.warning("%s run=%s %s", event, run.chronicle.run_id, error.cause)


def _identified(answer: Message, run: Run) -> Message:
    """The answer, in which each call has an id that no other call of its run has: what ties the result to it."""
    if not answer.tool_calls:
        return answer
    taken = {call.id for call in run.tool_calls}
    ids = {call.id for call in answer.tool_calls}
    if len(ids) == len(answer.tool_calls) and "" not in ids and taken.isdisjoint(ids):
        return answer
    calls = []
    for at, call in enumerate(answer.tool_calls):
        is_free = call.id and call.id not in taken
        calls.append(call if is_free else replace(call, id=_free_id(f"call_{run.iterations}_{at}", taken)))
        taken.add(calls[-1].id)
    return replace(answer, tool_calls=tuple(calls))


def _free_id(wanted: str, taken: Collection[str]) -> str:
    return next(each for each in chain([wanted], (f"{wanted}_{n}" for n in count(1))) if each not in taken)
