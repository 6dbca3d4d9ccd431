"""Presence: which workers live, by a sign of life a second, so that a killed one counts as gone at once."""

from __future__ import annotations

from redis import Redis

from sayso.workers.redis import PREFIX

#: Seconds after its last sign of life that a worker counts as gone.
GONE_SECONDS = 5

_BEAT = """
local time = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], time, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. time - ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""
_COUNT = "return redis.call('ZCOUNT', KEYS[1], redis.call('TIME')[1] - ARGV[1], '+inf')"


class Presence:
    """One worker's sign of life, and the count of all; on Redis's clock."""

    def __init__(self, client: Redis, name: str = "", *, prefix: str = PREFIX) -> None:
        self._client = client
        self._key = f"{prefix}workers"
        self._name = name
        self._beat = client.register_script(_BEAT)
        self._count = client.register_script(_COUNT)

    def beat(self) -> None:
        """Say that this worker lives."""
        self._beat(keys=[self._key], args=[self._name, GONE_SECONDS])

    def leave(self, name: str = "") -> None:
        """Say that this worker stops, or that the one of this name has."""
        self._client.zrem(self._key, name or self._name)

    def count(self) -> int:
        """How many workers live. Raises redis.RedisError."""
        return int(self._count(keys=[self._key], args=[GONE_SECONDS]))
