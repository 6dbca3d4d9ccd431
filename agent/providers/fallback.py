"""FallbackProvider: calls providers in order until one answers.

A provider is the adapter to a vendor of language models. Each one here has a circuit breaker, which
keeps requests away from it for a while after it has failed several times in a row. What an error
means for the user is its `kind`: `FailureKind` lists the kinds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
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
    hide_secrets,
    name_of,
    stream_items,
    with_listener,
)
from sayso.infra.concurrency import run_sync

_log = logging.getLogger(__name__)
#: How many characters of each provider's error the joint error repeats. The joint error is raised
#: when no provider has answered.
SHORT_REASON_CHARS = 120
#: The attributes of a ProviderError that the joint error takes from the chief one of its errors.
#: Only `retry_after` and `retryable` come from all errors.
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
    """Calls its providers in order until one answers. One per agent; thread-safe.

    * A provider that failed `max_failures` times in a row (1 or more) is skipped for
      `cooldown_seconds`. Then one request at a time tries it again.
    * If all providers are skipped, the one whose cooldown ends first is called all the same, even
      if another request tries it at the moment.
    * The request's model is meant for the first provider. Every other provider gets its own
      `default_model`, if it has one.
    * Each provider gets the whole timeout of the request.
    * A provider without access (a wrong key, no credit) is reported once in the error log, although
      another one answers. It is reported again if it has answered in between.

    `on_fallback` is called with the name of the failed provider and its error, before the next
    provider is called. `clock` returns monotonic seconds.

    Raise ValueError for `max_failures` below 1, and without providers.
    """

    #: Each provider is called with the timeout of the request, so no limit is set around all calls.
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
        """Return a copy that reports its fallbacks to `listener`, and to `on_fallback` as before.

        A copy has one listener: in a copy of a copy, the second one replaces the first. The copy
        shares the circuit breakers. The listener is called where the provider is: in the run's
        event loop, or in a thread.
        """
        candidates = [
            replace(each, provider=with_listener(each.provider, listener))
            for each in self._candidates
        ]
        # A copy keeps all else, such as the clock, and it needs no second set of circuit breakers.
        listening = copy(self)
        listening._listener = listener  # noqa: SLF001  # our own class
        listening._candidates = candidates  # noqa: SLF001
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
        """Whether all providers take the JSON Schema of an answer."""
        return all(
            getattr(provider, "supports_response_format", False) for provider in self.providers
        )

    @property
    def supports_conversation_key(self) -> bool:
        """Whether any provider takes a conversation key. `acall` leaves it out for the others."""
        return any(
            getattr(provider, "supports_conversation_key", False) for provider in self.providers
        )

    @property
    def supports_tools(self) -> bool:
        """Whether all providers take tools. One that does not say so takes them."""
        return all(getattr(provider, "supports_tools", True) for provider in self.providers)

    def context_tokens(self, model: str = "") -> int | None:
        """Return the smallest context window of a provider in tokens, None if all are unknown."""
        windows = [candidate.context_tokens(model) for candidate in self._candidates]
        return min((window for window in windows if window), default=None)

    @property
    def model_settings(self) -> list[Any] | None:
        """The settings of each provider in order, or None if no provider has any.

        A cache of answers has them in its keys. The settings of a provider are a mapping, those of
        a FallbackProvider a list.
        """
        settings = [getattr(provider, "model_settings", None) or {} for provider in self.providers]
        if not any(settings):
            return None
        return settings

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the first answer. `kwargs` are the fields of a ProviderRequest.

        Raise ProviderError with the reason of each provider if none answers.
        """
        attempts = self._attempts(kwargs)
        for attempt in attempts.admitted():
            try:
                answer, usage = await acall(attempt.provider, attempt.request)
            except ProviderError as error:
                attempts.record_error(attempt, error)
                continue
            # `acall` raises any error of a provider as a ProviderError, so this is no error: the
            # request was cancelled.
            except BaseException:
                attempts.record_abandoned(attempt)
                raise
            attempts.record_answer(attempt)
            return answer, attempt.candidate.with_name(usage)
        raise attempts.joint_error()

    async def astream(self, **kwargs: Any) -> AsyncGenerator[StreamItem, None]:
        """Yield the items of answers as they arrive, until one answer is complete.

        If an answer breaks off, a Restart follows its items: they are to be dropped. Then the next
        provider is asked. Raise ProviderError like `acomplete`.
        """
        has_begun = False
        attempts = self._attempts(kwargs)
        for attempt in attempts.admitted():
            try:
                if has_begun:
                    yield Restart()
                    has_begun = False
                async with aclosing(stream_items(attempt.provider, attempt.request)) as stream:
                    async for item in stream:
                        has_begun = True
                        if isinstance(item, UsageStats):
                            yield attempt.candidate.with_name(item)
                        else:
                            yield item
            except ProviderError as error:
                attempts.record_error(attempt, error)
                continue
            # No error, as above: the request was cancelled, or its reader closed the stream.
            except BaseException:
                attempts.record_abandoned(attempt)
                raise
            attempts.record_answer(attempt)
            return
        raise attempts.joint_error()

    def complete(self, **kwargs: Any) -> Completion:
        """Do the same as `acomplete`, for sync code."""
        return run_sync(self.acomplete(**kwargs))

    def stream(self, **kwargs: Any) -> Iterator[StreamItem]:
        """Do the same as `astream`, for sync code.

        Inside a running event loop, that loop waits too. Each item is awaited in another task. So a
        provider that is written as a generator must not yield inside of a task group or a cancel
        scope, which generators should not do anyway.
        """
        from anyio.from_thread import start_blocking_portal

        stream = self.astream(**kwargs)
        # The event loop of this stream, in a thread: it goes on while the reader has an item.
        with start_blocking_portal() as portal:
            # No item is None, so it shows the end of the stream.
            try:
                item = portal.call(anext, stream, None)
                while item is not None:
                    yield item
                    item = portal.call(anext, stream, None)
            finally:
                portal.call(stream.aclose)

    def _attempts(self, kwargs: Mapping[str, Any]) -> _Attempts:
        """Return the attempts to get a request answered. `kwargs` are its fields."""
        return _Attempts(
            ProviderRequest(**kwargs), self._candidates, self._report_fallback, self._clock
        )

    def _report_fallback(self, failed: str, following: str, error: ProviderError) -> None:
        """Report that `following` is called because `failed` did not answer; both are names.

        The log gets the cause of the error, which never has the vendor's text.
        """
        _log.warning("provider.fallback failed=%s next=%s %s", failed, following, error.cause)
        if self._on_fallback is not None:
            _call_listener(self._on_fallback, failed, error)
        if self._listener is not None:
            _call_listener(self._listener, failed, following, error)


def _call_listener(listener: Callable[..., None], *args: Any) -> None:
    """Call a listener. Its errors are logged, because they must never cost an answer."""
    try:
        listener(*args)
    except Exception as exc:
        _log.warning("provider.fallback_listener_failed reason=%s", type(exc).__name__)


def _default_model(provider: Provider) -> str | None:
    """Return the provider's `default_model`, None if it has none."""
    model = getattr(provider, "default_model", None)
    return model if isinstance(model, str) else None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One provider with what is remembered of it between requests. Lives as long as its owner."""

    provider: Provider
    #: The provider's name in logs and usage.
    name: str
    #: Decides whether the provider may be called now.
    breaker: CircuitBreaker
    #: Reports that the provider gives no access.
    access: AccessReport
    #: Whether the provider is the first one, whose model the request names.
    is_first: bool

    def model_for(self, requested: str) -> str:
        """Return the model that this provider is asked for when a request names `requested`."""
        if self.is_first:
            return requested
        return _default_model(self.provider) or requested

    def context_tokens(self, model: str) -> int | None:
        """Return the context window of this provider's model in tokens, None if it is unknown."""
        method = getattr(self.provider, "context_tokens", None)
        if not callable(method):
            return None
        tokens: int | None = method(self.model_for(model))
        return tokens

    def with_name(self, usage: UsageStats) -> UsageStats:
        """Return the usage with this provider's name.

        A provider without the attribute `name` may have named itself in the usage: that stays.
        """
        if usage.provider and not getattr(self.provider, "name", None):
            return usage
        return replace(usage, provider=self.name)


#: What a call is to a circuit breaker: a usual one, or its trial after the provider's cooldown.
Call = Literal["usual", "trial"]
#: What the end of a call says about its provider; "unclear" says nothing.
CallVerdict = Literal["answered", "failed", "unclear"]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One call of one provider. Its circuit breaker admitted it, or all breakers skipped theirs."""

    candidate: _Candidate
    call: Call
    #: The request with the model that this provider is asked for.
    request: ProviderRequest

    @property
    def provider(self) -> Provider:
        """The provider to call."""
        return self.candidate.provider


class _Attempts:
    """The attempts to get one request answered. Lives as long as the request.

    Each attempt that `admitted` yields is recorded once, with one of the `record_` methods.
    """

    def __init__(
        self,
        request: ProviderRequest,
        candidates: Sequence[_Candidate],
        report_fallback: Callable[[str, str, ProviderError], None],
        clock: Callable[[], float],
    ) -> None:
        self._request = request
        self._candidates = candidates
        self._report_fallback = report_fallback
        self._clock = clock
        #: Name and error of each provider that failed, in order.
        self._failures: list[tuple[str, ProviderError]] = []
        #: Each provider that was not called, with the reason for the joint error.
        self._skipped: list[tuple[_Candidate, str]] = []

    def admitted(self) -> Iterator[_Attempt]:
        """Yield the calls to make, in order. The caller stops at the first answer.

        Before a provider that follows a failed one, the fallback is reported. If the circuit
        breakers skip all providers, the one whose cooldown ends first is called.
        """
        for candidate in self._candidates:
            call = candidate.breaker.take()
            if call is None:
                self._skipped.append((candidate, self._why_skipped(candidate)))
                continue
            if self._failures:
                failed_name, error = self._failures[-1]
                self._report_fallback(failed_name, candidate.name, error)
            yield self._attempt(candidate, call)

        if not self._failures:  # the loop has yielded nothing
            first_back = min(self._candidates, key=lambda each: each.breaker.open_until)
            self._skipped = [skipped for skipped in self._skipped if skipped[0] is not first_back]
            # It is no trial: the trial may be running for another request, and does not end here.
            yield self._attempt(first_back, "usual")

    def _why_skipped(self, candidate: _Candidate) -> str:
        """Return why the circuit breaker keeps requests away from a provider."""
        seconds = candidate.breaker.open_until - self._clock()
        if seconds > 0:
            return f"skipped for {seconds:.0f} s"
        return "skipped while another request tries it"

    def _attempt(self, candidate: _Candidate, call: Call) -> _Attempt:
        """Return the call of a provider, with the request for its model."""
        model = candidate.model_for(self._request.model)
        return _Attempt(candidate, call, replace(self._request, model=model))

    def record_answer(self, attempt: _Attempt) -> None:
        """Record that the provider answered."""
        attempt.candidate.access.note_answer()
        attempt.candidate.breaker.record(attempt.call, "answered")

    def record_error(self, attempt: _Attempt, error: ProviderError) -> None:
        """Record why the provider did not answer.

        A request that was refused or too long says nothing about the provider. All other errors are
        failures of it, also that it gives no access: the breaker then spares the next requests a
        useless call.
        """
        candidate = attempt.candidate
        candidate.access.note_failure(candidate.name, error)
        self._failures.append((candidate.name, error))
        # `acall` gives the error of another library only a kind: it is no RequestRefusedError.
        if isinstance(error, RequestRefusedError) or error.kind == "too_long":
            candidate.breaker.record(attempt.call, "unclear")
        else:
            candidate.breaker.record(attempt.call, "failed")

    def record_abandoned(self, attempt: _Attempt) -> None:
        """Record that the call ended before the provider did: it is not known how it would end."""
        attempt.candidate.breaker.record(attempt.call, "unclear")

    def joint_error(self) -> ProviderError:
        """Return one error for those of all providers, with the facts of the chief one.

        It is retryable if any of them is: at the next attempt that provider may answer. A skipped
        provider does not make it retryable, because attempts follow each other in seconds.
        """
        errors = [error for _, error in self._failures]
        reasons = [
            f"{name}: {hide_secrets(str(error))[:SHORT_REASON_CHARS]}"
            for name, error in self._failures
        ]
        reasons += [f"{candidate.name}: {reason}" for candidate, reason in self._skipped]
        pauses = [error.retry_after for error in errors if error.retry_after is not None]
        error_class = ProviderError
        if all(isinstance(error, RateLimitedError) for error in errors):
            error_class = RateLimitedError
        joint_error = error_class(
            f"no provider answered ({'; '.join(reasons)})",
            retry_after=min(pauses, default=None),
            retryable=any(error.retryable for error in errors),
        )

        chief_error = _chief_error(errors)
        joint_error.__cause__ = chief_error
        for name in _FACTS:
            setattr(joint_error, name, getattr(chief_error, name))
        # A skipped provider may answer after its cooldown. So the user reads that the model is away,
        # and not that the operator has to mend something.
        if joint_error.kind == "no_access" and self._skipped:
            joint_error.kind = "away"
        return joint_error


def _chief_error(errors: list[ProviderError]) -> ProviderError:
    """Return the error that decides what is done next, and what the user reads."""
    # The caller can cure these: a shorter transcript, or one without files, helps.
    for kind in ("too_long", "refused"):
        for error in errors:
            if error.kind == kind:
                return error

    # Of the others the last one counts. One that may pass comes before "no_access", which only the
    # operator can mend.
    for error in reversed(errors):
        if error.kind != "no_access":
            return error
    return errors[-1]


class AccessReport:
    """Reports once in the error log that a provider gives no access.

    Each provider of a FallbackProvider has one. People do not notice that it gives no access, since
    another provider answers. So only the log can tell the operator.
    """

    def __init__(self) -> None:
        #: Whether the log has it, since the provider's last answer.
        self._is_reported = False

    def note_answer(self) -> None:
        """Note that the provider gives access. When it stops giving access, that is reported."""
        self._is_reported = False

    def note_failure(self, name: str, error: ProviderError) -> None:
        """Report an error that only the operator can mend, unless the log has it already."""
        if error.kind != "no_access" or self._is_reported:
            return
        self._is_reported = True
        _log.error(
            "provider.no_access provider=%s %s", name, error.cause, extra={"advice": error.advice}
        )


class CircuitBreaker:
    """Keeps calls away from one provider that fails. Thread-safe.

    The breaker is closed at first: it admits all calls. After `max_failures` failures in a row it
    opens and admits none for `cooldown` seconds. Then it admits one call at a time, the trial,
    until one is answered and closes the breaker. Each failed trial begins another cooldown.

    `clock` returns monotonic seconds.
    """

    def __init__(self, max_failures: int, cooldown: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        #: The number of failures since the last answer.
        self._failures = 0
        #: Whether a trial is running.
        self._has_trial = False
        #: When the cooldown ends, by the clock.
        self.open_until = 0.0

    def take(self) -> Call | None:
        """Admit a call, to be ended with `record`.

        Return None during the cooldown, and after it while a trial is running.
        """
        with self._lock:
            if self._failures < self._max_failures:
                return "usual"
            if self._has_trial or self._clock() < self.open_until:
                return None
            self._has_trial = True
            return "trial"

    def record(self, call: Call, verdict: CallVerdict) -> None:
        """End a call. `call` is what `take` returned, or "usual" for a call without its consent.

        Of both kinds an answer closes the breaker, and a failure may begin another cooldown.
        """
        with self._lock:
            if call == "trial":
                self._has_trial = False
            if verdict == "answered":
                self._failures = 0
            elif verdict == "failed":
                self._failures += 1
                if self._failures >= self._max_failures:
                    self.open_until = self._clock() + self._cooldown
