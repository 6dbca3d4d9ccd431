"""FallbackProvider, CircuitBreaker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import (
    Completion,
    Provider,
    ProviderError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    Restart,
    StreamItem,
    acall,
    pieces,
    without_secrets,
)
from sayso.agent.providers.testing import iterate_sync
from sayso.pending.concurrency import run_sync


class Permit:
    """The right to ask once. Each is given back, with how it went: `passed`, `failed` or `left`."""

    __slots__ = ()


class CircuitBreaker:
    """Closed at first. After `max_failures` in a row it admits nobody for `cooldown` seconds, then one at a time until
    one of them passes. Thread-safe; lives as long as its provider.
    """

    def __init__(self, max_failures: int, cooldown: float, clock: Callable[[], float]) -> None:
        self._max_failures, self._cooldown, self._clock = max_failures, cooldown, clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._trial: Permit | None = None

    @property
    def until(self) -> float:
        """When the cooldown ends, by the clock."""
        return self._until

    @property
    def is_open(self) -> bool:
        """Whether the last `max_failures` attempts failed."""
        return self._failures >= self._max_failures

    def insist(self) -> Permit:
        """A permit, however early it is."""
        return Permit()

    def take(self) -> Permit | None:
        """A permit, None where it is too early or another one tries."""
        with self._lock:
            permit = Permit()
            if not self.is_open:
                return permit
            if self._trial is not None or self._clock() < self._until:
                return None
            self._trial = permit
            return permit

    def passed(self, permit: Permit) -> None:
        """It went well: everybody is admitted again."""
        with self._lock:
            self._give_back(permit)
            self._failures = 0

    def failed(self, permit: Permit) -> None:
        """One more failure in a row."""
        with self._lock:
            self._give_back(permit)
            self._failures += 1
            if self.is_open:
                self._until = self._clock() + self._cooldown

    def left(self, permit: Permit) -> None:
        """Nobody waited for how it went."""
        with self._lock:
            self._give_back(permit)

    def _give_back(self, permit: Permit) -> None:
        if self._trial is permit:
            self._trial = None


#: Hears that a provider failed and the next one is asked: both names and the error.
FallbackListener = Callable[[str, str, Exception], None]


#: Who hears it in the current run. It is called where the provider is: in the run's event loop, or in a thread.
fallback_listener: ContextVar[FallbackListener | None] = ContextVar("sayso_fallback_listener", default=None)


#: Characters of each provider's reason, where all have failed.
SHORT_REASON_CHARS = 120


_log = logging.getLogger(__name__)


class FallbackProvider:
    """Asks its providers in order until one answers (seed: Provider Fallback). Thread-safe; lives as long as its agent.

    One that failed `max_failures` times in a row is skipped for `cooldown_seconds`, then tried by one request at a
    time. Where all are skipped, the one whose cooldown ends first is asked all the same.

    The request's model goes to the first provider; any other gets its own `default_model`, if it has one. Each gets the
    request's whole timeout.
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
            raise ValueError(f"max_failures={max_failures!r} never asks anybody: use 1 or more")
        self._lines = [
            _Candidate(
                provider, name_of(provider), CircuitBreaker(max_failures, cooldown_seconds, clock), is_first=not number
            )
            for number, provider in enumerate(providers)
        ]
        if not self._lines:
            raise ValueError("a FallbackProvider without providers has nobody to ask: give it one or more")
        self._on_fallback = on_fallback
        self._clock = clock

    @property
    def providers(self) -> list[Provider]:
        """Those it asks, in order."""
        return [line.provider for line in self._lines]

    @property
    def default_model(self) -> str | None:
        """That of the first."""
        return _default_model(self._lines[0].provider)

    @property
    def supports_response_format(self) -> bool:
        """Whether all do."""
        return all(getattr(provider, "supports_response_format", False) for provider in self.providers)

    @property
    def supports_tools(self) -> bool:
        """Whether all do."""
        return all(getattr(provider, "supports_tools", True) for provider in self.providers)

    def context_tokens(self, model: str = "") -> int | None:
        """Return the least that a provider's model can read at once; None where nobody knows."""
        windows = [line.context_tokens(model) for line in self._lines]
        return min((window for window in windows if window), default=None)

    @property
    def model_settings(self) -> list[Mapping[str, Any]] | None:
        """Those of all, in their order; None where nobody has any."""
        settings = [getattr(provider, "model_settings", None) or {} for provider in self.providers]
        return settings if any(settings) else None

    async def acomplete(self, **request: Any) -> Completion:
        """The first answer that can be had. Raises ProviderError with the reason of each provider."""
        asked, journey = ProviderRequest(**request), self._journey()
        for leg in journey:
            with leg:
                answer, usage = await acall(leg.line.provider, leg.line.fitted(asked))
                return answer, leg.line.signed(usage)
        raise journey.error()

    async def astream(self, **request: Any) -> AsyncGenerator[StreamItem, None]:
        """The pieces of the first whole answer. A Restart follows the pieces of one that broke off."""
        asked, journey, has_begun = ProviderRequest(**request), self._journey(), False
        for leg in journey:
            if has_begun:
                yield Restart()
                has_begun = False
            with leg:
                async with aclosing(pieces(leg.line.provider, leg.line.fitted(asked))) as stream:
                    async for item in stream:
                        has_begun = True
                        yield leg.line.signed(item) if isinstance(item, UsageStats) else item
                return
        raise journey.error()

    def complete(self, **request: Any) -> Completion:
        """`acomplete` for sync code."""
        return run_sync(self.acomplete(**request))

    def stream(self, **request: Any) -> Iterator[StreamItem]:
        """`astream` for sync code."""
        return iterate_sync(self.astream(**request))

    def _journey(self) -> _Attempts:
        return _Attempts(self._lines, self._tell, self._clock)

    def _tell(self, failed: str, following: str, error: Exception) -> None:
        _log.warning("provider_fallback failed=%s next=%s reason=%s", failed, following, type(error).__name__)
        listener, on_fallback = fallback_listener.get(), self._on_fallback
        try:
            if on_fallback is not None:
                on_fallback(failed, error)
            if listener is not None:
                listener(failed, following, error)
        except Exception as exc:  # noqa: BLE001  # who listens must never cost an answer
            _log.warning("provider_fallback_listener_failed reason=%s", type(exc).__name__)


def name_of(provider: object) -> str:
    """What the provider calls itself, else what its class is called."""
    name = getattr(provider, "name", None)
    return name if isinstance(name, str) and name else type(provider).__name__


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One provider, and whether it is worth asking."""

    provider: Provider
    name: str
    breaker: CircuitBreaker
    is_first: bool

    def fitted(self, request: ProviderRequest) -> ProviderRequest:
        """The request for a model that this vendor knows."""
        model = None if self.is_first else _default_model(self.provider)
        return replace(request, model=model) if model else request

    def context_tokens(self, model: str) -> int | None:
        """Return what this vendor's model can read at once, in tokens; None where nobody knows."""
        known = getattr(self.provider, "context_tokens", None)
        own = None if self.is_first else _default_model(self.provider)
        return known(own or model) if callable(known) else None

    def signed(self, usage: UsageStats) -> UsageStats:
        """The usage with the name of who answered; one that has no name of its own may say it there itself."""
        if usage.provider and not getattr(self.provider, "name", None):
            return usage
        return replace(usage, provider=self.name)


def _default_model(provider: Provider) -> str | None:
    model = getattr(provider, "default_model", None)
    return model if isinstance(model, str) else None


class _Attempts:
    """One request on its way from provider to provider."""

    def __init__(
        self, lines: list[_Candidate], tell: Callable[[str, str, Exception], None], clock: Callable[[], float]
    ) -> None:
        self._lines, self._tell, self._clock = lines, tell, clock
        self._failures: list[tuple[str, ProviderError]] = []
        self._skipped: list[str] = []

    def __iter__(self) -> Iterator[_Attempt]:
        for line in self._lines:
            permit = line.breaker.take()
            if permit is None:
                self._skipped.append(f"{line.name}: skipped for {max(0.0, line.breaker.until - self._clock()):.0f} s")
            else:
                yield self._leg(line, permit)
        if not self._failures:
            line = min(self._lines, key=lambda line: line.breaker.until)
            self._skipped = []
            yield self._leg(line, line.breaker.insist())

    def fail(self, line: _Candidate, error: ProviderError) -> None:
        """It did not answer."""
        self._failures.append((line.name, error))

    def error(self) -> ProviderError:
        """What all of them have said, as one error."""
        errors = [error for _, error in self._failures]
        said = [f"{name}: {without_secrets(str(error))[:SHORT_REASON_CHARS]}" for name, error in self._failures]
        waits = [error.retry_after for error in errors if error.retry_after is not None]
        kind = RateLimitedError if all(isinstance(error, RateLimitedError) for error in errors) else ProviderError
        failure = kind(
            f"no provider answered ({'; '.join(said + self._skipped)})",
            retry_after=min(waits, default=None),
            retryable=any(error.retryable for error in errors),
        )
        # A shorter transcript or one without files helps, whatever is wrong with the others.
        may_help = [each for kind in ("too_long", "refused") for each in errors if each.kind == kind]
        last = failure.__cause__ = may_help[0] if may_help else errors[-1]
        for name in ("kind", "status", "code", "model", "settings", "refusal"):
            setattr(failure, name, getattr(last, name))
        return failure

    def _leg(self, line: _Candidate, permit: Permit) -> _Attempt:
        if self._failures:
            name, error = self._failures[-1]
            self._tell(name, line.name, error)
        return _Attempt(self, line, permit)


class _Attempt:
    """One provider's turn: its failure is noted and the next one's turn comes."""

    def __init__(self, journey: _Attempts, line: _Candidate, permit: Permit) -> None:
        self.line = line
        self._journey, self._permit = journey, permit

    def __enter__(self) -> None:
        """Nothing is left to do: the permit is taken."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.line.breaker.passed(self._permit)
            return False
        if not isinstance(error, ProviderError):  # we were stopped: that says nothing about the provider
            self.line.breaker.left(self._permit)
            return False
        if isinstance(error, RequestRefusedError):  # one person's request is no reason to skip it for the others
            self.line.breaker.left(self._permit)
        else:
            self.line.breaker.failed(self._permit)
        self._journey.fail(self.line, error)
        return True
