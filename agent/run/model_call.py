"""ModelCaller: cache, retries, cost, budget check."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, count
from time import perf_counter
from typing import Any, TypeVar

from sayso.agent.config import AgentConfig, ModelSelector, model_for
from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.observability.observer import llm_call
from sayso.agent.observability.usage import AgentUsage
from sayso.agent.providers.base import (
    FILTERED,
    Completion,
    Provider,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    acall,
    astream_call,
)
from sayso.agent.providers.fallback import fallback_listener, name_of
from sayso.agent.providers.files import without_files
from sayso.agent.result import ending_words
from sayso.agent.run.budget import BudgetRefusal, book_in, refusal_of
from sayso.agent.run.cache import Cache, CacheKeyBuilder, forgotten, looked_up, stored
from sayso.agent.run.state import RunEnd, RunState, RunTextListener
from sayso.agent.run.structured import schema_from_response_format
from sayso.agent.tools.results import truncate

log = logging.getLogger(__name__)


#: Dollars for a million tokens, those of the question and those of the answer.
Price = tuple[float, float]


def cost_usd(
    model: str,
    usage: UsageStats,
    provider: str = "",
    *,
    prices: Mapping[str, Price] | None = None,
) -> float | None:
    """What the usage cost in dollars; None where nobody knows the model's price. Never asks the network.

    Own `prices` come first; they know no discount for what a prompt cache gave. Else `genai-prices` is asked, where it
    is installed: among the models of the provider, if one is named, so that a local model has not the price of its
    namesake. The first question loads that library, which takes about a tenth of a second.
    """
    if prices is not None and model in prices:
        question, answer = prices[model]
        return (usage.prompt_tokens * question + usage.completion_tokens * answer) / 1_000_000
    library = _library()
    return None if library is None or not model else _listed(library, model, usage, provider)


@lru_cache(maxsize=256)
def context_tokens(model: str, provider: str) -> int | None:
    """Return how many tokens a model can read at once; None where nobody knows it. Never asks the network."""
    library = _library()
    if library is None:
        return None
    try:
        _, found = library.data_snapshot.get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None
    window = found.context_window
    return window if isinstance(window, int) and window > 0 else None


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        import genai_prices
        import genai_prices.data_snapshot
    except ImportError:
        return None
    return genai_prices


def _listed(library: Any, model: str, usage: UsageStats, provider: str) -> float | None:
    try:
        counted = library.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        price = library.calc_price(counted, model, provider_id=provider or None)
    except LookupError:
        return None
    except Exception as exc:  # noqa: BLE001  # a price must never cost an answer
        log.warning("pricing.failed", extra={"model": model, "reason": type(exc).__name__})
        return None
    return float(price.total_price)


T = TypeVar("T")


Sleep = Callable[[float], Awaitable[None]]


#: Hears before each pause which attempt failed, with what, and for how many seconds the next one waits.
OnRetry = Callable[[int, Exception, float], Awaitable[None]]


#: Seconds a vendor may ask us to wait. For longer, a person had better hear now that it failed.
MAX_RETRY_AFTER_SECONDS = 60.0


#: The part of a pause that chance adds at most: a thousand runs that failed at once must not return at once.
JITTER = 0.25


_log = logging.getLogger(__name__)


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    config: AgentConfig,
    sleep: Sleep,
    *,
    on_retry: OnRetry | None = None,
    chance: Callable[[], float] = random.random,
) -> T:
    """What `attempt` returns, asked `1 + max_retries` times at most. Raises the last ProviderError.

    One that asking again cannot help, or that asks us to wait for too long, is raised at once.
    """
    for number in range(1, config.max_retries + 1):
        try:
            return await attempt()
        except ProviderError as exc:
            if not _may_pass(exc):
                raise
            error = exc
        seconds = pause(number, error, config) * (1 + JITTER * chance())
        _log.warning("provider_retry attempt=%d model=%s reason=%s", number, config.model, type(error).__name__)
        if on_retry is not None:
            await on_retry(number, error, seconds)
        await sleep(seconds)
    return await attempt()


def pause(attempt: int, error: ProviderError, config: AgentConfig) -> float:
    """Seconds to wait after the failed attempt, chance aside: what the vendor asks for; else what is configured."""
    if error.retry_after is not None and error.retry_after > 0:
        return error.retry_after
    cooldown = config.rate_limit_cooldown_seconds if _is_rate_limit(error) else 0.0
    return attempt * (config.retry_backoff_seconds + cooldown)


def _may_pass(error: ProviderError) -> bool:
    return error.retryable and not (error.retry_after or 0) > MAX_RETRY_AFTER_SECONDS


def _is_rate_limit(error: ProviderError) -> bool:
    """By its type, or by its words: not every adapter knows our type."""
    text = str(error).lower()
    return isinstance(error, RateLimitedError) or "rate limit" in text or "429" in text


async def refusal(run: RunState, config: AgentConfig) -> RunEnd | None:
    """How the run ends if it has used up what it, its conversation or the day may use; None while it has not."""
    refused = await _refused(run, config)
    return await _told(run, refused) if refused is not None else None


async def is_spent(run: RunState, config: AgentConfig) -> bool:
    """Whether nothing may be asked any more, beside the run either."""
    return await _refused(run, config) is not None


async def _refused(run: RunState, config: AgentConfig) -> BudgetRefusal | None:
    limits = config.run_budget
    refused = limits.refusal(run.usage + run.chronicle.side_usage) if limits else None
    if refused is None and config.budget is not None:
        refused = await refusal_of(config.budget, run.request.scope)
    return refused


async def _told(run: RunState, refused: BudgetRefusal) -> RunEnd:
    tokens, cost = refused.tokens_used, refused.cost_used
    run.chronicle.note("budget", summary=f"{refused.reason}: {tokens} tokens, {cost:.4f} USD")
    await run.chronicle.tell("budget_exceeded", refused.reason, tokens, cost)
    return RunEnd("budget", ending_words("budget_spent"))


#: Tokens of a model whose limit nobody knows, such as one on a server of your own.
DEFAULT_CONTEXT_TOKENS = 200_000


#: The share of the context window that one result of a tool may take.
RESULT_SHARE = 0.25


#: Bytes of UTF-8 that count as one token. Plain English has more; numbers, JSON and Chinese have about so many.
BYTES_PER_TOKEN = 3


#: Tokens that a file counts as. A picture takes about so many.
FILE_TOKENS = 1500


#: Tokens of a text that no further cut makes shorter.
MIN_TEXT_TOKENS = 100


#: Characters of a transcript that no known model is too small for: it is not measured.
SMALL_CHARS = 6000


def tokens_in(text: str) -> int:
    """Return about how many tokens a text takes, rather too many than too few."""
    return len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """Return about how many tokens a message takes, with its calls and files."""
    calls = sum(tokens_in(call.tool_name + json.dumps(call.parameters, default=str)) for call in message.tool_calls)
    return tokens_in(message.content) + calls + FILE_TOKENS * (len(message.media) + len(message.pictures))


def transcript_tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens a transcript takes."""
    return sum(map(message_tokens, messages))


def is_small(messages: Sequence[Message]) -> bool:
    """Return whether a transcript fits into any model, so that nobody has to measure it."""
    return sum(len(message.content) for message in messages) < SMALL_CHARS


def fitted(
    history: Sequence[Message], current: Sequence[Message], *, room: int, result_tokens: int | None = None
) -> list[Message]:
    """Return the transcript within `room` tokens, as far as it can be made to fit.

    Results of tools are cut to `result_tokens` each (a quarter of the room without it). Then the oldest exchanges of
    the `history` are left out; of the last one, the longest texts are cut first. What is still too long then are texts
    of the `current` exchange: the longest are cut.
    """
    most = min(result_tokens or int(room * RESULT_SHARE), max(room // 2, MIN_TEXT_TOKENS))
    history = [_cut_result(message, most) for message in history]
    current = [_cut_result(message, most) for message in current]
    kept = _newest(history, room - transcript_tokens(current))
    return [*kept, *_squeezed(current, room - transcript_tokens(kept))]


def _cut_result(message: Message, most: int) -> Message:
    return _cut(message, most) if message.role is Role.TOOL else message


def _cut(message: Message, most: int) -> Message:
    """Return the message with a text of at most about so many tokens: its beginning and its end."""
    tokens = tokens_in(message.content)
    if tokens <= most:
        return message
    return replace(message, content=truncate(message.content, len(message.content) * most // tokens))


def _newest(history: Sequence[Message], room: int) -> Sequence[Message]:
    """Return the newest whole exchanges that fit. An exchange begins with a user's message. The last one is cut to half
    of the room where it alone does not fit: what was said a moment ago is missed the most.
    """
    starts = [at for at, message in enumerate(history) if message.role is Role.USER]
    total, first = 0, len(history)
    for start in reversed([0, *starts[1:]] if history else []):
        total += transcript_tokens(history[start:first])
        if total > room:
            break
        first = start
    if first == len(history) and history:
        last = _squeezed(history[starts[-1] if starts else 0 :], room // 2)
        return last if transcript_tokens(last) <= room else []
    return history[first:]


def _squeezed(messages: Sequence[Message], room: int) -> Sequence[Message]:
    """Return the messages with their longest texts cut until all fit, or none is long any more."""
    most = max(map(message_tokens, messages), default=0)
    while transcript_tokens(messages) > room and most > MIN_TEXT_TOKENS:
        most = max(most // 2, MIN_TEXT_TOKENS)
        messages = [_cut(message, most) for message in messages]
    return messages


ResponseSchema = Mapping[str, Any]


#: How often a transcript that is too long for the model is halved, and asked with again.
MAX_SHORTENINGS = 6


#: Statuses with which a vendor refuses a request for what is in it.
_REFUSALS = frozenset({400, 413, 415, 422})


#: The share of the context window that is left to a transcript at least, whatever else a request has in it.
LEAST_SHARE = 0.125


class ModelCaller:
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

    async def ask(self, run: RunState, schemas: Sequence[ResponseSchema]) -> Completion:
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

    async def disown(self, run: RunState) -> None:
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

    async def spend_beside(self, run: RunState) -> None:
        """Take what the run's side questions cost since then to the account, and off its budget."""
        await self.spend_on(run, run.chronicle.take_unbilled_usage())

    async def spend_on(self, run: RunState, usage: UsageStats) -> None:
        """Take what a run used to the account, and off its budget."""
        if usage.total_tokens:
            self.spend(usage)
            await self._book(run, usage)

    async def _book(self, run: RunState, usage: UsageStats) -> None:
        if self._config.budget is not None:
            await book_in(self._config.budget, run.request.scope, usage)

    async def _request(self, run: RunState, schemas: Sequence[ResponseSchema]) -> ProviderRequest:
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

    def _messages(self, run: RunState, model: str, prompt: str, schemas: Sequence[ResponseSchema]) -> Sequence[Message]:
        """Return what the model is sent of the transcript."""
        messages = self._fitted(run, model, prompt, schemas)
        return without_files(messages) if run.names_files else messages

    def _fitted(self, run: RunState, model: str, prompt: str, schemas: Sequence[ResponseSchema]) -> Sequence[Message]:
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

    async def _model(self, run: RunState) -> str:
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

    def _chosen(self, select: ModelSelector, run: RunState) -> str:
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

    async def _cached(self, run: RunState, request: ProviderRequest, cache: Cache) -> Completion:
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

    async def _replayed(self, run: RunState, kept: Completion) -> Completion:
        """What the cache had. What it cost then is counted again (seed: Integration with Usage Tracking)."""
        answer, usage = kept
        run.usage += usage
        self.spend(usage)
        run.chronicle.note("cache_hit", model=run.model, prompt_tokens=usage.prompt_tokens)
        if run.chronicle.has_observers:
            await run.chronicle.tell("cache_hit", run.model, answer.content)
            await run.chronicle.tell("llm_end", answer.content, usage)
        return kept

    async def _answered(self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None) -> Completion:
        chronicle, began = run.chronicle, perf_counter()
        if chronicle.has_observers:
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
        if chronicle.has_observers:
            await chronicle.tell("llm_end", answer.content, usage)
            await chronicle.tell("usage", usage)
        await self._book(run, usage)
        return answer, usage

    def _tell_call(self, run: RunState, request: ProviderRequest, began: float, **ended: Any) -> None:
        if run.chronicle.has_observers:
            seconds = perf_counter() - began
            run.chronicle.tell_call(llm_call(self._provider, request, run.model, seconds=seconds, **ended))

    def _log_failure(self, run: RunState, error: Exception) -> None:
        """Log a final failure by its cause, without the vendor's words, which may repeat a person's."""
        cause = f"model={run.model}"
        if isinstance(error, ProviderError):
            error.model = error.model or run.model
            cause = error.cause
        shown = f"{cause} provider={self.name} error={type(error).__name__}"
        log.error("model.failed run=%s %s", run.chronicle.run_id, shown)

    def log_empty_answer(self, run: RunState) -> str:
        """Log that a model ended a run without a word, and return this cause: its person has no answer."""
        cause = f"kind=empty model={run.model}"
        log.error("model.failed run=%s %s provider=%s", run.chronicle.run_id, cause, self.name)
        return cause

    async def _until_taken(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
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

    def _reduced(self, run: RunState, request: ProviderRequest, error: ProviderError) -> Sequence[Message] | None:
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

    def _halved(self, run: RunState, request: ProviderRequest) -> Sequence[Message] | None:
        """Return half of the transcript; None where it can hardly be made shorter."""
        before, room = transcript_tokens(request.messages), run.room
        run.room = before // 2
        shorter = self._messages(run, request.model, request.system_prompt, request.tools or ())
        if transcript_tokens(shorter) <= before * 0.9:
            return shorter
        run.room = room
        return None

    async def _with_retries(
        self, run: RunState, request: ProviderRequest, on_text: RunTextListener | None
    ) -> Completion:
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


def _log_reduced(event: str, run: RunState, error: ProviderError) -> None:
    log.warning("%s run=%s %s", event, run.chronicle.run_id, error.cause)


def _identified(answer: Message, run: RunState) -> Message:
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
