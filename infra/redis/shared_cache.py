"""SharedCache: small values that all processes share, and that are safe to lose."""

from __future__ import annotations

from redis import Redis

from sayso.infra.redis.client import PREFIX

#: Seconds for which a value is cached: 90 days.
CACHE_SECONDS = 90 * 24 * 3600


class SharedCache:
    """A small cache in Redis, one key for each value, with a time to live.

    It is for what is costly to get and safe to lose, such as ids at a vendor. Any thread may use
    it. Its methods raise redis.RedisError.
    """

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = f"{prefix}note:"

    def get(self, key: str) -> str | None:
        """Return the value stored under `key`, or None."""
        value = self._client.get(self._prefix + key)
        if value is None:
            return None
        return str(value)

    def put(self, key: str, value: str, *, seconds: int = CACHE_SECONDS) -> None:
        """Store a value for all processes, for this many seconds."""
        self._client.set(self._prefix + key, value, ex=seconds)
