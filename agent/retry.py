"""Retry: asks a provider again after a failure, with a pause that grows."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from agent.config import AgentConfig
from agent.providers.base import Completion, Provider, ProviderError, ProviderRequest, acall

Sleep = Callable[[float], Awaitable[None]]

_log = logging.getLogger(__name__)


async def ask(provider: Provider, request: ProviderRequest, config: AgentConfig, sleep: Sleep) -> Completion:
    """The provider's answer. Raises the last ProviderError once `max_retries` are used up."""
    for attempt in range(1, config.max_retries + 1):
        try:
            return await acall(provider, request)
        except ProviderError as exc:
            _log.warning("provider_retry attempt=%d model=%s", attempt, request.model)
            await sleep(pause(attempt, exc, config))
    return await acall(provider, request)


def pause(attempt: int, error: ProviderError, config: AgentConfig) -> float:
    """Seconds to wait after the failed attempt; a rate limit adds its cooldown."""
    text = str(error).lower()
    limited = "rate limit" in text or "429" in text
    cooldown = config.rate_limit_cooldown_seconds if limited else 0.0
    return attempt * (config.retry_backoff_seconds + cooldown)
