"""Baton: the right to be the only process that does something, on whatever machine, for as long as it gives a sign."""

from __future__ import annotations

from redis import Redis
from redis.exceptions import LockError
from redis.lock import Lock

from sayso.pending.redis.client import PREFIX

#: Seconds after its holder's last sign of life that somebody else may take it.
HOLD_SECONDS = 3


class LeaderLock:
    """One process's hand on the baton of a name."""

    def __init__(self, client: Redis, name: str, *, prefix: str = PREFIX) -> None:
        self._lock = Lock(client, f"{prefix}baton:{name}", timeout=HOLD_SECONDS, blocking=False, thread_local=False)

    def take(self) -> bool:
        """Take it, or keep it for another HOLD_SECONDS; whether it is ours. Raises redis.RedisError."""
        try:
            return self._lock.reacquire()
        except LockError:  # not ours yet, or not any more
            return bool(self._lock.acquire())

    def leave(self) -> None:
        """Let it go, if it is ours. Raises redis.RedisError."""
        try:
            self._lock.release()
        except LockError:
            return

    def is_held(self) -> bool:
        """Whether anybody has it. Raises redis.RedisError."""
        return self._lock.locked()
