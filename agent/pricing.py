"""Pricing: what a question to a model cost, from own prices or a list that comes with a library."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sayso.agent.messages import UsageStats

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
