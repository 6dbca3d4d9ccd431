"""LeaderLock: of all processes on all machines, one does something for as long as it keeps the lock."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import LockError
from redis.lock import Lock

from sayso.pending.redis.client import PREFIX

#: Seconds after its last renewal that another process may acquire the lock.
HOLD_SECONDS = 3


class LeaderLock:
    """A process's handle on the lock of a name."""

    def __init__(self, client: Redis, name: str, *, prefix: str = PREFIX) -> None:
        self._lock = Lock(client, f"{prefix}baton:{name}", timeout=HOLD_SECONDS, blocking=False, thread_local=False)

    def take(self) -> bool:
        """Acquire the lock, or keep it for another HOLD_SECONDS. Return whether this process has it. Raises
        redis.RedisError.
        """
        try:
            return self._lock.reacquire()
        except LockError:  # not acquired yet, or lost
            return bool(self._lock.acquire())

    def leave(self) -> None:
        """Release the lock, if this process has it. Raises redis.RedisError."""
        try:
            self._lock.release()
        except LockError:
            return

    def is_held(self) -> bool:
        """Return whether any process has the lock. Raises redis.RedisError."""
        return self._lock.locked()
