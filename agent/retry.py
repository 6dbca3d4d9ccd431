"""Retry: asks a provider again after a failure, with a pause that grows."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sayso.agent.config import AgentConfig
from sayso.agent.providers.base import ProviderError, RateLimitedError

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
