"""Reaper, worker heartbeats, file locks of live workers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from sayso.pending.concurrency import offload
from sayso.pending.redis.client import PREFIX
from sayso.pending.redis.scripts import SHARDS, LuaScripts, WakeUp
from sayso.workers.mailbox import token_prefix

#: The folder of them in the data folder.
ALIVE = "alive"


#: What tells one run of a machine from every other: a folder may be shared, and a lock says nothing across machines.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


#: Files that another machine, or this one before its last start, left behind are kept for so many seconds: a week.
KEEP_SECONDS = 7 * 24 * 3600


class WorkerLock:
    """One worker's file in a folder of all, from `hold` to the end of its process.

    `name` is new for each process, of letters, digits, - and _.
    """

    def __init__(self, folder: Path) -> None:
        self.name = secrets.token_urlsafe(8)
        self._folder = folder
        self._ours = f"{_this_run()}.."
        self._file = -1

    def hold(self) -> None:
        """From now on others can see that we live. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        path = self._path(self.name)
        made = path.with_name(f".{path.name}")  # under its own name it is locked from the first moment
        self._file = os.open(made, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        made.rename(path)

    def leave(self) -> None:
        """Nothing is held any more: there will be nothing to bury."""
        self._path(self.name).unlink(missing_ok=True)

    def bury(self, settle: Callable[[str], object]) -> list[str]:
        """Call `settle` with the name of each worker of this machine that died, and forget it.

        Raises what `settle` raises: its dead stay known. Returns the names.
        """
        buried = []
        for path in self._folder.glob(f"{self._ours}*"):
            name = path.name.removeprefix(self._ours)
            with _lock_of_the_dead(path) as dead:
                if dead and name != self.name:
                    settle(name)
                    path.unlink(missing_ok=True)
                    buried.append(name)
        return buried

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._ours}{name}"

    def _sweep(self) -> None:
        """Remove what nobody of this run of this machine will ever look at."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                foreign = not path.name.startswith(self._ours.split(".", 1)[0])
                if foreign and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


def _this_run() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node().replace(".", "-")


@contextmanager
def _lock_of_the_dead(path: Path) -> Iterator[bool]:
    """Whether nobody holds the file's lock; then we do, so that no two of us bury the same one at a time."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:  # buried meanwhile
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)


#: Seconds after its last sign of life that a worker counts as gone.
GONE_SECONDS = 5


_BEAT = """
local time = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], time, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. time - ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""


_COUNT = "return redis.call('ZCOUNT', KEYS[1], redis.call('TIME')[1] - ARGV[1], '+inf')"


class Heartbeat:
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


log = logging.getLogger(__name__)


#: Seconds between two rounds.
INTERVAL = 1.0


#: Seconds after which a round begins with no further shard; the next one goes on there.
ROUND_SECONDS = 0.5


#: Conversations looked at per shard and round at most; the rest are still due in the next round.
BATCH = 100


class Reaper:
    """Runs in every worker; a short lock in Redis lets one of them work at a time.

    Those who died on this machine are known by their `lifeline`, and each worker takes care of them by itself. `queue`:
    what job keys begin with, and queue key, so that what waits there is known without a call for each conversation.
    """

    def __init__(
        self,
        client: Redis,
        scripts: LuaScripts,
        wake_up: WakeUp,
        lifeline: WorkerLock,
        *,
        queue: Sequence[str] = (),
        prefix: str = PREFIX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.presence = Heartbeat(client, lifeline.name, prefix=prefix)
        self._lifeline = lifeline
        self._client = client
        self._scripts = scripts
        self._wake_up = wake_up
        self._queue = queue
        self._clock = clock
        self._lock = f"{prefix}reaper"
        self._token = secrets.token_urlsafe(8)
        self._shards = cycle(range(SHARDS))

    async def forever(self) -> None:
        """Show signs of life, bury and go round until cancelled; none of them waits for another."""
        await asyncio.gather(*map(_again_and_again, (self.presence.beat, self.bury, self.round)))

    def bury(self) -> list[str]:
        """Wake what workers held that died on this machine. Returns their names. Raises redis.RedisError, OSError."""
        return self._lifeline.bury(self._free)

    def _free(self, worker: str) -> None:
        held = [
            name
            for names in self._scripts.on_every_shard("release_dead_worker", token_prefix(worker))
            for name in names
        ]
        log.warning("worker.died", extra={"worker": worker, "conversations": len(held)})
        for conversation in held:
            self._wake(conversation)
        self.presence.leave(worker)

    def round(self) -> int:
        """Wake everything that is overdue and not in the queue, unless another worker just did. Returns how many were.

        Raises redis.RedisError.
        """
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        woken, ends = 0, self._clock() + ROUND_SECONDS
        for shard in islice(self._shards, SHARDS):
            woken += sum(map(self._wake, self._unanswered(shard)))
            if self._clock() > ends:
                break
        return woken

    def _unanswered(self, shard: int) -> Sequence[str]:
        """Conversations whose time has come although nobody came, but those that are in the queue."""
        overdue: Sequence[str] = self._scripts.on_shard("overdue", shard, BATCH)
        if overdue and self._queue:
            overdue = self._scripts.on_shard("put_off", shard, *self._queue, *overdue)
        return overdue

    def _wake(self, conversation: str) -> bool:
        word = self._scripts.run("rewake", conversation, *self._wake_up(conversation))
        if word == "ok":
            log.info("lane.rewoken", extra={"conversation": conversation})
        return bool(word == "ok")


async def _again_and_again(call: Callable[[], object]) -> None:
    """Until cancelled. A Redis that is away is tried again after the interval."""
    while True:
        try:
            await offload(call)
        except RedisError as exc:
            log.warning("reaper.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("reaper.failed")  # a worker that stops to reap and to show signs of life is half dead
        await asyncio.sleep(INTERVAL)
