"""Prices and context windows of models, from the optional library genai-prices.

The library has a list of models in it. Nothing here uses the network, and no error of the library
ends a run.

A `provider` is Sayso's name of it, such as "openai". The library knows the vendors under the same
names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sayso.agent.messages import UsageStats

log = logging.getLogger(__name__)
#: US dollars for a million tokens, as two or four numbers: for tokens of the prompt and of the
#: completion, then for tokens of the prompt that the vendor read from its prompt cache and wrote to
#: it. With two numbers, the latter cost as much as others of the prompt. AgentConfig refuses any other
#: number of numbers.
Price = tuple[float, ...]


def cost_usd(
    model: str, usage: UsageStats, provider: str = "", *, prices: Mapping[str, Price] | None = None
) -> float | None:
    """Return what the usage cost in US dollars; None where the price of the model is unknown.

    A price in `prices`, by the name of the model alone, comes first. Otherwise genai-prices is
    asked if it is installed. It looks among the models of the provider only, so that a local model
    does not get the price of a hosted model with the same name; "" is any provider. The first call
    imports that library, which takes about a tenth of a second.
    """
    if prices is not None and model in prices:
        return _cost_at(prices[model], usage)
    library = _library()
    if library is None or not model:
        return None
    try:
        counted = library.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        return float(library.calc_price(counted, model, provider_id=provider or None).total_price)
    except LookupError:
        return None
    except Exception as exc:  # an unknown price must never prevent an answer
        _log_failure(model, exc)
        return None


def with_cost(usage: UsageStats, prices: Mapping[str, Price]) -> UsageStats:
    """Return the usage with its cost at these prices, by the name of the model.

    A usage that has a cost already (0.0 is none), or whose model has no price here, is returned
    unchanged.
    """
    if usage.cost_usd or usage.model not in prices:
        return usage
    return replace(usage, cost_usd=_cost_at(prices[usage.model], usage))


def _cost_at(price: Price, usage: UsageStats) -> float:
    """Return what the usage costs at this price, in US dollars."""
    prompt_price, completion_price, *cache_prices = price
    read_price, write_price = cache_prices or (prompt_price, prompt_price)

    cached_tokens = usage.cache_read_tokens + usage.cache_write_tokens
    # `prompt_tokens` includes the cached ones, but some servers report fewer.
    uncached_tokens = max(0, usage.prompt_tokens - cached_tokens)
    total = uncached_tokens * prompt_price
    total += usage.cache_read_tokens * read_price
    total += usage.cache_write_tokens * write_price
    total += usage.completion_tokens * completion_price
    return total / 1_000_000


@lru_cache(maxsize=256)
def context_tokens(model: str, provider: str) -> int | None:
    """Return the context window of a provider's model in tokens; None where it is unknown.

    `provider` must be named.
    """
    library = _library()
    if library is None:
        return None
    try:
        _, known_model = library.data_snapshot.get_snapshot().find_provider_model(
            model,
            provider=None,
            provider_id=provider,
            provider_api_url=None,
        )
        window = known_model.context_window
    except LookupError:
        return None
    except Exception as exc:  # an unknown window must not prevent an answer either
        _log_failure(model, exc)
        return None
    return window if isinstance(window, int) and window > 0 else None


def _log_failure(model: str, exc: Exception) -> None:
    log.warning("pricing.failed", extra={"model": model, "reason": type(exc).__name__})


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the module genai_prices, None where it is not installed."""
    try:
        import genai_prices
        import genai_prices.data_snapshot
    except ImportError:
        return None
    return genai_prices
