"""Server: the Redis of one simulation, which can be killed, kept away, and left without memory or disk."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError

from sayso.config.embedded import EmbeddedRedis

#: Bytes that a full memory or disk still takes.
LAST_BYTES = 4096
#: Seconds within which a killed process is gone.
GONE_SECONDS = 10.0


class Server(EmbeddedRedis):
    """Start and end it in one thread that outlives it, as any embedded Redis."""

    def prepare(self) -> None:
        """Die with the parent; and hear of a file that may not grow by an error, as of a full disk, not by a signal."""
        super().prepare()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def kill(self) -> None:
        """End it without warning. Returns when it is gone; `restart` has it read what it had written."""
        os.kill(self.pid or 0, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def workers(self) -> set[int]:
        """The process ids that RQ knows workers by; none while it is away."""
        try:
            with self._client() as client:
                return {int(client.hget(name, "pid") or 0) for name in client.smembers("rq:workers")}
        except RedisError:
            return set()

    def used_bytes(self) -> int:
        """The memory it uses for what it holds. Raises RedisError."""
        with self._client() as client:
            return int(cast("dict[str, Any]", client.info("memory"))["used_memory"])

    def limit_memory(self) -> None:
        """From now on it refuses all that needs more memory than it uses. Raises RedisError."""
        limit = self.used_bytes() + LAST_BYTES
        with self._client() as client:
            client.config_set("maxmemory", limit)

    def limit_disk(self) -> None:
        """From now on its file cannot grow, as on a full disk: it ends itself, as it can answer nothing it has to keep.

        Raises OSError when it has ended already.
        """
        sizes = [file.stat().st_size for file in Path(self.folder, "appendonlydir").iterdir()]
        _limit_files(self.pid or 0, max(sizes) + LAST_BYTES)

    def unlimit(self) -> None:
        """Room again for both. Raises RedisError."""
        _limit_files(self.pid or 0, resource.RLIM_INFINITY)
        with self._client() as client:
            client.config_set("maxmemory", 0)

    def _client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True)


def _limit_files(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
