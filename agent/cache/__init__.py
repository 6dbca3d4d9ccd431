"""Cache of answers: what a model said is given again, for the same question in the same words (seed: Response Caching).

Results of tools are in another one: `agent.result_cache`.
"""

from __future__ import annotations

from agent.cache.base import Cache, CacheStats
from agent.cache.keys import CacheKeyBuilder
from agent.cache.memory import InMemoryCache
from agent.cache.redis_cache import RedisCache

__all__ = ["Cache", "CacheKeyBuilder", "CacheStats", "InMemoryCache", "RedisCache"]
