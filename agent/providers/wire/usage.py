"""Usage: what an answer consumed, and its price where somebody knows it."""

from __future__ import annotations

import logging

from pydantic_ai.messages import ModelResponse

from sayso.agent.messages import UsageStats

log = logging.getLogger(__name__)

#: Models that nobody knows the price of, as far as it was said already.
_unpriced: set[tuple[str, str]] = set()
#: How many are remembered: a name comes from a configuration, or from a server that may make them up.
_MAX_UNPRICED = 1000


def usage_of(response: ModelResponse, provider: str, model: str) -> UsageStats:
    """The answer's tokens and US dollars; `model` is what was asked, if the answer does not say."""
    used, name = response.usage, response.model_name or model
    return UsageStats(
        prompt_tokens=used.input_tokens,
        completion_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        cost_usd=_cost(response, provider, name),
        model=name,
        provider=provider,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
    )


def _cost(response: ModelResponse, provider: str, model: str) -> float:
    try:
        return float(response.cost().total_price)
    except Exception as exc:  # noqa: BLE001  # a price must never cost an answer
        if (provider, model) not in _unpriced and len(_unpriced) < _MAX_UNPRICED:
            _unpriced.add((provider, model))
            log.info("provider.no_price provider=%s model=%s reason=%s", provider, model, type(exc).__name__)
        return 0.0
