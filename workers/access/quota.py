"""The number of turns that one person may send in a minute. Imported only where a channel has such a limit."""

from __future__ import annotations

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis import Redis

from sayso.pending.redis.client import PREFIX
from sayso.workers.access.rules import digest


class Quota:
    """Counts the turns of each person in the last minute; one per process."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._limiter = MovingWindowRateLimiter(storage)

    def is_used_up(self, channel: str, person: str, per_minute: int) -> bool:
        """Return whether the maximum of turns was counted within the last minute. Raises redis.RedisError."""
        return not self._limiter.test(RateLimitItemPerMinute(per_minute), channel, digest(person))

    def book(self, channel: str, person: str, per_minute: int) -> None:
        """Count one more turn. Raises redis.RedisError."""
        self._limiter.hit(RateLimitItemPerMinute(per_minute), channel, digest(person))


def redis_quota(client: Redis, url: str, *, prefix: str = PREFIX) -> Quota:
    """Return the quota of all processes that share this Redis, over the connections of its client."""
    return Quota(RedisStorage(url, connection_pool=client.connection_pool, key_prefix=f"{prefix}turns"))


def memory_quota() -> Quota:
    """Return the quota of one process."""
    return Quota(MemoryStorage())
