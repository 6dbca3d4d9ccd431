"""Quota: how many turns one person may send on a channel in a minute, over all conversations and processes."""

from __future__ import annotations

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import MovingWindowRateLimiter
from redis import Redis

from sayso.channels.admission import digest
from sayso.workers.redis import PREFIX


class Quota:
    """What was taken of each person in the last minute; one per process."""

    def __init__(self, storage: MemoryStorage | RedisStorage) -> None:
        self._limiter = MovingWindowRateLimiter(storage)

    def is_used_up(self, channel: str, person: str, per_minute: int) -> bool:
        """Whether so many turns were booked within the last minute. Raises redis.RedisError."""
        return not self._limiter.test(RateLimitItemPerMinute(per_minute), channel, digest(person))

    def book(self, channel: str, person: str, per_minute: int) -> None:
        """One more was taken. Raises redis.RedisError."""
        self._limiter.hit(RateLimitItemPerMinute(per_minute), channel, digest(person))


def redis_quota(client: Redis, url: str, *, prefix: str = PREFIX) -> Quota:
    """The quota of all processes that share this Redis, over the connections of its client."""
    return Quota(RedisStorage(url, connection_pool=client.connection_pool, key_prefix=f"{prefix}turns"))


def memory_quota() -> Quota:
    """The quota of one process."""
    return Quota(MemoryStorage())
