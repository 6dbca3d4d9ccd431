"""FallbackProvider: calls providers in order until one answers, each with a circuit breaker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import (
    Completion,
    FallbackListener,
    Provider,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    Restart,
    StreamItem,
    acall,
    name_of,
    stream_items,
    with_listener,
    without_secrets,
)
from sayso.infra.concurrency import run_sync

_log = logging.getLogger(__name__)
#: How many characters of each provider's error are kept in the error of all.
SHORT_REASON_CHARS = 120
#: What the error of all providers takes from the one that caused it.
_FACTS = (
    "kind",
    "status",
    "code",
    "model",
    "settings",
    "refusal",
    "fitting_share",
    "access_fault",
)


class FallbackProvider:
    """Calls its providers in order until one answers.

    Thread-safe; one per agent.

    A provider that failed `max_failures` times in a row (1 or more) is skipped for
    `cooldown_seconds`. Then one request at a time tries it again. If all providers are skipped, the
    one whose cooldown ends first is called all the same.

    `on_fallback` is called with the name of the failed provider and its error. `clock` returns
    monotonic seconds.

    A provider without access (a wrong key, no credit) is reported once in the error log, although
    another one answers. It is reported again if it has answered in between.

    The request's model is meant for the first provider; every other gets its own `default_model`,
    if it has one. Each provider gets the whole timeout of the request.
    """

    keeps_time = True

    def __init__(
        self,
        providers: Iterable[Provider],
        max_failures: int = 3,
        cooldown_seconds: float = 60,
        on_fallback: Callable[[str, Exception], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_failures < 1:
            raise ValueError(f"max_failures={max_failures!r} calls no provider: use 1 or more")
        self._candidates = []
        for number, provider in enumerate(providers):
            candidate = _Candidate(
                provider=provider,
                name=name_of(provider),
                breaker=CircuitBreaker(max_failures, cooldown_seconds, clock),
                access=AccessReport(),
                is_first=number == 0,
            )
            self._candidates.append(candidate)
        if not self._candidates:
            raise ValueError("a FallbackProvider needs providers: give it one or more")
        self._on_fallback = on_fallback
        self._listener: FallbackListener | None = None
        self._clock = clock

    def with_listener(self, listener: FallbackListener) -> FallbackProvider:
        """Return a copy with the same circuit breakers that reports its fallbacks to `listener` too.

        The listener is called where the provider is: in the run's event loop, or in a thread.
        """
        candidates = [
            replace(each, provider=with_listener(each.provider, listener))
            for each in self._candidates
        ]
        listening = copy(self)
        vars(listening).update(_listener=listener, _candidates=candidates)
        return listening

    @property
    def providers(self) -> list[Provider]:
        """The providers in the order in which they are called."""
        return [candidate.provider for candidate in self._candidates]

    @property
    def default_model(self) -> str | None:
        """The default model of the first provider."""
        return _default_model(self._candidates[0].provider)

    @property
    def supports_response_format(self) -> bool:
        """Whether all providers support it."""
        return all(
            getattr(provider, "supports_response_format", False) for provider in self.providers
        )

    @property
    def supports_conversation_key(self) -> bool:
        """Whether any provider supports it. The others are called without the key."""
        return any(
            getattr(provider, "supports_conversation_key", False) for provider in self.providers
        )

    @property
    def supports_tools(self) -> bool:
        """Whether all providers support them."""
        return all(getattr(provider, "supports_tools", True) for provider in self.providers)

    def context_tokens(self, model: str = "") -> int | None:
        """Return the smallest context window of the providers in tokens, None if all are unknown."""
        windows = [candidate.context_tokens(model) for candidate in self._candidates]
        return min((window for window in windows if window), default=None)

    @property
    def model_settings(self) -> list[Mapping[str, Any]] | None:
        """The settings of each provider in order, or None if no provider has any."""
        settings = [getattr(provider, "model_settings", None) or {} for provider in self.providers]
        if not any(settings):
            return None
        return settings

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the first answer.

        Raise ProviderError with the reason of each provider if none answers.
        """
        request = ProviderRequest(**kwargs)
        attempts = _Attempts(self._candidates, self._report_fallback, self._clock)
        for candidate, call in attempts.admitted():
            own_request = replace(request, model=candidate.model_for(request.model))
            try:
                answer, usage = await acall(candidate.provider, own_request)
            except ProviderError as error:
                attempts.record_error(candidate, call, error)
                continue
            except BaseException:
                # The request was cancelled. That says nothing about the provider.
                candidate.breaker.record(call, succeeded=None)
                raise
            attempts.record_answer(candidate, call)
            return answer, candidate.with_name(usage)
        raise attempts.error()

    async def astream(self, **kwargs: Any) -> AsyncGenerator[StreamItem, None]:
        """Yield the items of the first whole answer.

        A Restart follows the items of an answer that broke off.
        """
        request = ProviderRequest(**kwargs)
        has_begun = False
        attempts = _Attempts(self._candidates, self._report_fallback, self._clock)
        for candidate, call in attempts.admitted():
            own_request = replace(request, model=candidate.model_for(request.model))
            try:
                if has_begun:
                    yield Restart()
                    has_begun = False
                async with aclosing(stream_items(candidate.provider, own_request)) as stream:
                    async for item in stream:
                        has_begun = True
                        if isinstance(item, UsageStats):
                            yield candidate.with_name(item)
                        else:
                            yield item
            except ProviderError as error:
                attempts.record_error(candidate, call, error)
                continue
            except BaseException:
                # The request was cancelled, or its reader closed the stream.
                candidate.breaker.record(call, succeeded=None)
                raise
            attempts.record_answer(candidate, call)
            return
        raise attempts.error()

    def complete(self, **kwargs: Any) -> Completion:
        """Do the same as `acomplete`, for sync code."""
        return run_sync(self.acomplete(**kwargs))

    def stream(self, **kwargs: Any) -> Iterator[StreamItem]:
        """Do the same as `astream`, for sync code.

        Inside a running event loop, that loop waits too.
        """
        from anyio.from_thread import start_blocking_portal

        stream = self.astream(**kwargs)
        with start_blocking_portal() as portal:
            try:
                item = portal.call(anext, stream, None)
                while item is not None:
                    yield item
                    item = portal.call(anext, stream, None)
            finally:
                portal.call(stream.aclose)

    def _report_fallback(self, failed: str, following: str, error: ProviderError) -> None:
        _log.warning("provider.fallback failed=%s next=%s %s", failed, following, error.cause)
        try:
            if self._on_fallback is not None:
                self._on_fallback(failed, error)
            if self._listener is not None:
                self._listener(failed, following, error)
        except Exception as exc:  # a listener must never cost an answer
            _log.warning("provider.fallback_listener_failed reason=%s", type(exc).__name__)


def _default_model(provider: Provider) -> str | None:
    """Return the provider's `default_model`, None if it has none."""
    model = getattr(provider, "default_model", None)
    return model if isinstance(model, str) else None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One provider with what is remembered of it between requests."""

    provider: Provider
    #: The provider's name in logs and usage.
    name: str
    #: Whether the provider may be called now.
    breaker: CircuitBreaker
    #: Whether the log already has that the provider gives no access.
    access: AccessReport
    #: Whether the provider is the first one, whose model the request names.
    is_first: bool

    def model_for(self, requested: str) -> str:
        """Return the model that this provider is asked for, if the request names `requested`."""
        if self.is_first:
            return requested
        return _default_model(self.provider) or requested

    def context_tokens(self, model: str) -> int | None:
        """Return the context window of this provider's model in tokens, or None if it is unknown."""
        method = getattr(self.provider, "context_tokens", None)
        if not callable(method):
            return None
        tokens: int | None = method(self.model_for(model))
        return tokens

    def with_name(self, usage: UsageStats) -> UsageStats:
        """Return the usage with this provider's name.

        A provider without a `name` may have set it in the usage.
        """
        if usage.provider and not getattr(self.provider, "name", None):
            return usage
        return replace(usage, provider=self.name)


class _Attempts:
    """The attempts to get one request answered. Lives as long as the request.

    Each call that `admitted` yields is recorded once: by `record_answer`, by `record_error`, or in
    the circuit breaker alone where its outcome says nothing about the provider.
    """

    def __init__(
        self,
        candidates: list[_Candidate],
        report_fallback: Callable[[str, str, ProviderError], None],
        clock: Callable[[], float],
    ) -> None:
        self._candidates = candidates
        self._report_fallback = report_fallback
        self._clock = clock
        self._failures: list[tuple[str, ProviderError]] = []
        self._skipped: list[str] = []

    def admitted(self) -> Iterator[tuple[_Candidate, Call]]:
        """Yield the providers to call, in order; the caller stops at the first answer.

        Before each but the first, the fallback to it is reported. If the circuit breakers admit
        none, the provider whose cooldown ends first is yielded.
        """
        for candidate in self._candidates:
            call = candidate.breaker.take()
            if call is None:
                seconds = max(0.0, candidate.breaker.open_until - self._clock())
                self._skipped.append(f"{candidate.name}: skipped for {seconds:.0f} s")
                continue
            if self._failures:
                name, error = self._failures[-1]
                self._report_fallback(name, candidate.name, error)
            yield candidate, call

        if not self._failures:  # all were skipped
            self._skipped = []
            yield min(self._candidates, key=lambda each: each.breaker.open_until), "usual"

    def record_answer(self, candidate: _Candidate, call: Call) -> None:
        """Record that the provider answered."""
        candidate.access.note_answer()
        candidate.breaker.record(call, succeeded=True)

    def record_error(self, candidate: _Candidate, call: Call, error: ProviderError) -> None:
        """Record why the provider did not answer. A request that it refused is not its failure."""
        candidate.access.note_failure(candidate.name, error)
        self._failures.append((candidate.name, error))
        is_refused = isinstance(error, RequestRefusedError)
        candidate.breaker.record(call, succeeded=None if is_refused else False)

    def error(self) -> ProviderError:
        """Return the errors of all providers as one error, with the facts of the chief one."""
        errors = [error for _, error in self._failures]
        reasons = [
            f"{name}: {without_secrets(str(error))[:SHORT_REASON_CHARS]}"
            for name, error in self._failures
        ]
        pauses = [error.retry_after for error in errors if error.retry_after is not None]
        error_class = ProviderError
        if all(isinstance(error, RateLimitedError) for error in errors):
            error_class = RateLimitedError
        failure = error_class(
            f"no provider answered ({'; '.join(reasons + self._skipped)})",
            retry_after=min(pauses, default=None),
            retryable=any(error.retryable for error in errors),
        )

        cause = _chief_error(errors)
        failure.__cause__ = cause
        for name in _FACTS:
            setattr(failure, name, getattr(cause, name))
        # A skipped provider may give access later.
        if failure.kind == "no_access" and self._skipped:
            failure.kind = "away"
        return failure


def _chief_error(errors: list[ProviderError]) -> ProviderError:
    """Return the error that decides what is done next, and what the user reads."""
    # The caller can cure these: a shorter transcript, or one without files, helps.
    for kind in ("too_long", "refused"):
        for error in errors:
            if error.kind == kind:
                return error

    # A later attempt may succeed, unless no provider gives access.
    for error in reversed(errors):
        if error.kind != "no_access":
            return error
    return errors[-1]


class AccessReport:
    """Reports once in the error log that a provider gives no access.

    Each provider of a FallbackProvider has one. People do not notice the fault, because another
    provider answers. So only the log can tell the operator.
    """

    def __init__(self) -> None:
        self._is_reported = False

    def note_answer(self) -> None:
        """Have the next fault reported."""
        self._is_reported = False

    def note_failure(self, name: str, error: ProviderError) -> None:
        """Report a fault that only the operator can mend, unless the log has it already."""
        if error.kind != "no_access" or self._is_reported:
            return
        self._is_reported = True
        advice = {"advice": error.advice}
        _log.error("provider.no_access provider=%s %s", name, error.cause, extra=advice)


#: A call that a circuit breaker admitted: a usual one, or a trial after the provider's cooldown.
Call = Literal["usual", "trial"]


class CircuitBreaker:
    """A circuit breaker: keeps calls from a provider that fails. Thread-safe.

    The breaker is closed at first. After `max_failures` failures in a row it opens for `cooldown`
    seconds. Then it admits one call at a time, until one succeeds and closes it. `clock` returns
    monotonic seconds.
    """

    def __init__(self, max_failures: int, cooldown: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._has_trial = False
        #: When the cooldown ends, by the clock.
        self.open_until = 0.0

    def take(self) -> Call | None:
        """Admit a call; None during the cooldown and while a trial is running after it."""
        with self._lock:
            if self._failures < self._max_failures:
                return "usual"
            if self._has_trial or self._clock() < self.open_until:
                return None
            self._has_trial = True
            return "trial"

    def record(self, call: Call, *, succeeded: bool | None) -> None:
        """End a call. `succeeded` is None where the outcome says nothing about the provider."""
        with self._lock:
            if call == "trial":
                self._has_trial = False
            if succeeded:
                self._failures = 0
            elif succeeded is False:
                self._failures += 1
                if self._failures >= self._max_failures:
                    self.open_until = self._clock() + self._cooldown
