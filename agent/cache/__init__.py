"""Cache of answers: what a model said is given again, for the same question in the same words (seed: Response Caching).

Results of tools are in another one: `sayso.agent.result_cache`.
"""

from __future__ import annotations

from sayso.agent.cache.base import Cache, CacheStats
from sayso.agent.cache.keys import CacheKeyBuilder
from sayso.agent.cache.memory import InMemoryCache
from sayso.agent.cache.redis_cache import RedisCache

__all__ = ["Cache", "CacheKeyBuilder", "CacheStats", "InMemoryCache", "RedisCache"]
