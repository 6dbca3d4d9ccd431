"""LeaderLock: lets one process of all machines do something, for as long as it lives."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import LockError
from redis.lock import Lock

from sayso.infra.redis.client import PREFIX

#: Seconds after its last renewal that another process may acquire the lock.
HOLD_SECONDS = 3


class LeaderLock:
    """One process's handle on the lock `name`: of all processes on all machines, one holds it.

    The holder calls `take` again and again, at least every HOLD_SECONDS. A holder that dies loses
    the lock.
    """

    def __init__(self, client: Redis, name: str, *, prefix: str = PREFIX) -> None:
        self._lock = Lock(
            client,
            f"{prefix}leader:{name}",
            timeout=HOLD_SECONDS,
            blocking=False,
            thread_local=False,
        )

    def take(self) -> bool:
        """Acquire the lock, or hold it for another HOLD_SECONDS.

        Return whether this process holds it. Raises redis.RedisError.
        """
        try:
            return self._lock.reacquire()
        except LockError:  # not acquired yet, or lost
            return bool(self._lock.acquire())

    def leave(self) -> None:
        """Release the lock, if this process holds it. Raises redis.RedisError."""
        try:
            self._lock.release()
        except LockError:
            return

    def is_held(self) -> bool:
        """Return whether any process holds the lock. Raises redis.RedisError."""
        return self._lock.locked()
