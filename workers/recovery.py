"""Recovery: finds dead workers, and wakes the conversations that no worker works on.

WorkerLock finds a dead worker of the same machine by its file lock, within a second. A dead worker
of another machine shows only by what it does no more: its heartbeats end (Heartbeat), and so do its
leases. Reaper uses both, and wakes the conversations that are overdue.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Literal

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from sayso.infra.concurrency import call_in_thread
from sayso.infra.ids import random_id
from sayso.infra.metrics import WORKERS_DIED
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.workers.lease import token_prefix
from sayso.workers.wake_ups import WakeUp

#: The folder of the lock files in the data folder.
ALIVE = "alive"
#: The file that identifies one boot of this machine. The folder of lock files may be shared by
#: several machines, and a file lock says nothing across machines.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: For how many seconds files of another machine, or of an earlier boot, are kept: a week.
KEEP_SECONDS = 7 * 24 * 3600
#: How many seconds after its last heartbeat a process counts as gone.
GONE_SECONDS = 5
#: Seconds between two heartbeats, and between two rounds of the reaper.
INTERVAL = 1.0
#: After how many seconds a round begins no further shard. The next round continues there.
ROUND_SECONDS = 0.5
#: How many conversations of a shard are looked at in one round. The rest are still due in the next.
BATCH = 100

log = logging.getLogger(__name__)


class WorkerLock:
    """A file of one worker in a common folder, locked from `hold` until its process ends.

    The system releases a file lock when the process ends, however it ends. So a file without a lock
    is that of a dead worker. One object per worker process.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: where all workers of this machine have their files."""
        #: The name of this worker, new for each process: hexadecimal digits.
        self.name = random_id(8)
        self._folder = folder
        try:
            boot = BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot = platform.node().replace(".", "-")
        #: The beginning of the names of files of this machine since it was started.
        self._ours = f"{boot}.."
        self._file = -1

    def hold(self) -> None:
        """Create and lock the file: from now on others can see that this worker lives.

        Raises OSError.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        path = self._path(self.name)
        # The file gets its name once it is locked: no other process ever sees it unlocked.
        temporary = path.with_name(f".{path.name}")
        self._file = os.open(temporary, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        temporary.rename(path)

    def leave(self) -> None:
        """Remove the file: this worker holds nothing that others must release."""
        self._path(self.name).unlink(missing_ok=True)

    def is_dead(self, name: str) -> bool:
        """Return whether a worker of this machine was killed.

        Return False for a worker of another machine, and for an unknown one.
        """
        # The name was read from Redis, and becomes a part of a path.
        if not name.isalnum():
            return False
        with _dead_worker_lock(self._path(name)) as is_dead:
            return is_dead

    def count_living(self) -> int:
        """Return how many workers of this machine live and hold their files."""
        living = 0
        for path in self._folder.glob(f"{self._ours}*"):
            with _dead_worker_lock(path) as is_dead:
                if not is_dead and path.exists():
                    living += 1
        return living

    def release_dead(self, release: Callable[[str], object]) -> list[str]:
        """Call `release` with the name of each dead worker of this machine, and remove its file.

        Return the names. Raises what `release` raises; then that worker's file stays, so that it is
        released later.
        """
        released = []
        for path in self._folder.glob(f"{self._ours}*"):
            name = path.name.removeprefix(self._ours)
            with _dead_worker_lock(path) as is_dead:
                if is_dead and name != self.name:
                    release(name)
                    path.unlink(missing_ok=True)
                    released.append(name)
        return released

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._ours}{name}"

    def _sweep(self) -> None:
        """Remove old files of other machines and of earlier boots of this one."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                boot, _, _ = self._ours.partition(".")
                is_foreign = not path.name.startswith(boot)
                if is_foreign and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


@contextmanager
def _dead_worker_lock(path: Path) -> Iterator[bool]:
    """Yield whether no process holds the file's lock.

    Then this process holds it: it alone releases the worker.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        # Another process has released the worker and removed the file.
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)


def own_version() -> str:
    """Return the version of Sayso that runs here, "" for a checkout that is not installed."""
    try:
        return version("sayso")
    except PackageNotFoundError:
        return ""


class Heartbeat:
    """Sends the heartbeats of one process, and counts the live processes of its kind.

    A process lives while its last heartbeat is at most GONE_SECONDS old, by the clock of Redis. One
    object per process and kind.
    """

    def __init__(
        self,
        client: Redis,
        name: str = "",
        *,
        kind: Literal["workers", "ingress"] = "workers",
        prefix: str = PREFIX,
        version: str = "",
    ) -> None:
        """`name`: of this process, a new one if it is "". `kind`: "ingress" are the web and poll
        processes, which take messages in. `version`: of Sayso, the installed one if it is "".
        """
        self._client = client
        self._key = f"{prefix}{kind}"
        self._versions = f"{prefix}{kind}:versions"
        self._name = name or random_id(8)
        self._version = version or own_version()

    def watch(self) -> None:
        """Send heartbeats in the background for the life of this process. Call it after a fork."""
        threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True).start()

    def _beat_for_ever(self) -> None:
        while True:
            try:
                self.beat()
            except NoPermissionError as exc:
                # The login to Redis was made for an earlier version, which had no heartbeats.
                log.warning("heartbeat.refused", extra={"reason": str(exc)})
                return
            except RedisError:
                # Redis is away. What else uses Redis here reports it.
                pass
            time.sleep(INTERVAL)

    def beat(self) -> None:
        """Record that this process lives, and forget the processes that are gone."""
        now, _ = self._client.time()
        self._client.zadd(self._key, {self._name: now})
        self._client.zremrangebyscore(self._key, "-inf", f"({now - GONE_SECONDS}")

        # The version is stored at the first heartbeat only, and again if Redis has lost it.
        if self._client.hget(self._versions, self._name) is None:
            self._client.hset(self._versions, self._name, self._version)
            known = set(self._client.hkeys(self._versions))
            living = set(self._client.zrange(self._key, 0, -1))
            gone = known - living
            if gone:
                self._client.hdel(self._versions, *gone)

    def leave(self, name: str = "") -> None:
        """Record that this process stops, or that the process `name` has stopped."""
        self._client.zrem(self._key, name or self._name)
        self._client.hdel(self._versions, name or self._name)

    def count(self) -> int:
        """Return how many processes of its kind live. Raises redis.RedisError."""
        now, _ = self._client.time()
        return int(self._client.zcount(self._key, now - GONE_SECONDS, "+inf"))

    def is_gone(self, name: str) -> bool:
        """Return whether a process of its kind sends no heartbeats any more.

        Raises redis.RedisError.
        """
        now, _ = self._client.time()
        last = self._client.zscore(self._key, name)
        return last is None or float(last) < now - GONE_SECONDS

    def versions(self) -> dict[str, int]:
        """Return the number of live processes of this kind, by version; "" for an unknown version.

        Raises redis.RedisError.
        """
        now, _ = self._client.time()
        names = list(map(str, self._client.zrangebyscore(self._key, now - GONE_SECONDS, "+inf")))
        versions: list[Any] = []
        if names:
            versions = self._client.hmget(self._versions, names)
        return dict(Counter(str(version or "") for version in versions))


class Reaper:
    """Wakes conversations that have work and no worker. One in every worker process.

    A conversation is overdue if a worker was woken for it long ago, or its lease or a timer has
    ended. A short lock in Redis lets one worker at a time look for these. Dead workers of this
    machine are found by their lock files, without that lock.
    """

    def __init__(
        self,
        client: Redis,
        scripts: ShardedScripts,
        wake_up: WakeUp,
        lock: WorkerLock,
        *,
        queue: Mapping[str, str] | None = None,
        queued: Callable[[int, Sequence[str]], Sequence[str]] | None = None,
        prefix: str = PREFIX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lock`: the lock file of this worker.

        A conversation whose job waits in the queue needs no second job. `queue`: the arguments by
        which a script looks for such jobs, the prefix of job keys and the queue's key. `queued`:
        returns which conversations of a shard have a job, where the queue has a server of its own.
        Without both, each overdue conversation is woken.
        """
        self.heartbeat = Heartbeat(client, lock.name, prefix=prefix)
        self._worker_lock = lock
        self._client = client
        self._scripts = scripts
        self._wake_up = wake_up
        self._queue = queue or {}
        self._queued = queued
        self._clock = clock
        self._round_lock = f"{prefix}reaper"
        self._token = random_id(8)
        self._shards = cycle(range(SHARDS))

    async def forever(self) -> None:
        """Send heartbeats, release dead workers and wake overdue conversations, until cancelled.

        The three run at the same time, so that a slow one does not delay the heartbeats.
        """
        await asyncio.gather(
            _repeat(self.heartbeat.beat),
            _repeat(self.release_dead),
            _repeat(self.round),
        )

    def release_dead(self) -> list[str]:
        """Wake the conversations that dead workers of this machine held. Return the workers' names.

        Raises redis.RedisError, OSError.
        """
        return self._worker_lock.release_dead(self._release)

    def _release(self, worker: str) -> None:
        """Release all leases of a dead worker, and wake their conversations."""
        args = {"token_prefix": token_prefix(worker)}
        by_shard = self._scripts.on_every_shard("release_dead_worker", args)
        conversations = list(chain.from_iterable(by_shard))
        WORKERS_DIED.inc()
        log.warning("worker.died", extra={"worker": worker, "conversations": len(conversations)})
        for conversation in conversations:
            self._wake(conversation)
        self.heartbeat.leave(worker)

    def round(self) -> int:
        """Wake overdue conversations that are not in the queue, unless another worker just did.

        Return how many were woken. Raises redis.RedisError.
        """
        # The lock ends by itself, a little before the next round is due.
        lock_ms = round(INTERVAL * 900)
        if not self._client.set(self._round_lock, self._token, nx=True, px=lock_ms):
            return 0

        woken = 0
        ends = self._clock() + ROUND_SECONDS
        for shard in islice(self._shards, SHARDS):
            overdue: Sequence[str] = self._scripts.on_shard("list_overdue", shard, {"most": BATCH})
            if overdue and (self._queue or self._queued):
                overdue = self._without_job(shard, overdue)
            woken += sum(map(self._wake, overdue))
            if self._clock() > ends:
                break
        return woken

    def _without_job(self, shard: int, overdue: Sequence[str]) -> Sequence[str]:
        """Return the conversations that have no job in the queue, and look at the others later."""
        args: dict[str, Any] = {"conversations": overdue}
        if self._queued:
            args["queued"] = self._queued(shard, overdue)
        else:
            args |= self._queue
        without_job: Sequence[str] = self._scripts.on_shard("look_again_later", shard, args)
        return without_job

    def _wake(self, conversation: str) -> bool:
        """Wake a worker for a conversation. Return False if it needs none any more."""
        job = self._wake_up(conversation)
        answer = self._scripts.run("rewake", conversation, job.names, *job.fields)
        if answer != "ok":
            return False
        log.info("conversation.rewoken", extra={"conversation": conversation})
        return True


async def _repeat(call: Callable[[], object]) -> None:
    """Call a function in a thread until cancelled, with a pause of INTERVAL between two calls."""
    while True:
        try:
            await call_in_thread(call)
        except RedisError as exc:
            log.warning("reaper.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            # It goes on: a worker without heartbeats and rounds would be half dead.
            log.exception("reaper.failed")
        await asyncio.sleep(INTERVAL)
