"""The stores of a bot: its data folder with the secret keys, its Redis, and the store of files and long texts."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.agent.channel.long_texts import FOLDER as TEXTS
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.extras import LibraryError, import_libraries
from sayso.channels.redaction import remember
from sayso.channels.storage.files import make_private, make_tree_private
from sayso.channels.storage.media import ARRIVING, OWNERS, LocalMediaStore, MediaFiles
from sayso.channels.storage.objects import LocalObjects, StoreRefused
from sayso.channels.storage.s3 import Bucket
from sayso.config.server.embedded_redis import running_url
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.action import derived_keys
from sayso.pending.redis.checks import explain, forbidden_commands, replication_risks, sentinel_of, wrong_server
from sayso.pending.redis.client import (
    RedisUnfit,
    address_of,
    check_fit,
    connect,
    open_loop_client,
    servers_of,
    set_web_timeouts,
)
from sayso.pending.redis.cluster import ClusterClient, is_cluster
from sayso.pending.redis.connections import Connections
from sayso.pending.redis.scripts import LuaScripts, WakeUp, no_wake_up
from sayso.workers.alerts import RedisAlerts, RedisSharedCache
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import WatermarkFile
from sayso.workers.mailbox import LUA
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QueueServer, WakeUps

log = logging.getLogger(__name__)

#: The variable with the secret keys, separated by commas. The first one signs; all are accepted, so that keys rotate.
KEYS_VARIABLE = "SAYSO_SECRET_KEYS"
#: The folder of files in the data folder, or in the bucket.
MEDIA = "media"
#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


def open_data(data: Path, own: Path | None = None) -> list[str]:
    """Create the data folder, readable by our own user alone, and return its secret keys. Raises ConfigError.

    `own` is the folder in it that belongs to the bot alone, and need not exist. It must be writable too.
    """
    os.umask(0o077)  # also for what libraries and tools create in it
    folder = data
    try:
        make_tree_private(data)
        folder = next(each for each in (own or data, *(own or data).parents) if os.access(each, os.F_OK))
        with TemporaryFile(dir=folder):  # what another user created may be readable, and not writable
            keys = secret_keys(data)
    except OSError as exc:
        raise ConfigError(
            [f"data folder {str(folder)!r}: {exc.strerror}: give one you may write to with --data"]
        ) from exc
    if not keys:
        raise ConfigError([f"{data / 'secret_keys'} is empty: put the old key back, or delete the file for a new one"])
    return keys


def secret_keys(data: Path) -> list[str]:
    """Return the keys of the environment, else those of the data folder, which are created on first use."""
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").split(",") if key.strip()]
    if not keys:
        make_private(data)
        file, fresh = data / "secret_keys", data / f"secret_keys.{os.getpid()}"
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_hex(32))
        try:
            os.link(fresh, file)  # of several processes at first start, one wins and all read the same keys
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        keys = file.read_text().split()
    remember(keys)
    return keys


def known_keys(data: Path) -> list[str]:
    """Return the secret keys as `secret_keys` does, but create none. Raises OSError."""
    return secret_keys(data) if os.environ.get(KEYS_VARIABLE) or (data / "secret_keys").exists() else []


def bot_ids(settings: Settings, keys: Sequence[str]) -> list[str]:
    """Return the public id of a bot for each of its secret keys. The bot shows the first one.

    The processes of a bot have the same id on all machines; another bot has another name or other keys.
    """
    derived = derived_keys(keys, "sayso.bot") if keys else []
    return [hmac.digest(key, settings.name.encode(), "sha256").hex()[:16] for key in derived]


@dataclass(frozen=True, slots=True)
class FileStores:
    """Where files and long texts are kept: in the data folder, or in a bucket. Lives as long as the process."""

    media: MediaFiles
    texts: TextFiles
    bucket: Bucket | None
    #: What the data folder holds from the time before the bucket. It is swept and erased, and not read.
    former: tuple[MediaFiles, TextFiles] | None = None

    @property
    def all_media(self) -> tuple[MediaFiles, ...]:
        """All stores that may hold files."""
        return (*([self.former[0]] if self.former else []), self.media)

    @property
    def all_texts(self) -> tuple[TextFiles, ...]:
        """All stores that may hold long texts."""
        return (*([self.former[1]] if self.former else []), self.texts)

    def sweeps(self) -> dict[str, Callable[[], int]]:
        """Return what removes old files and old texts. Each raises OSError."""
        return {
            MEDIA: lambda: sum(each.sweep() for each in self.all_media),
            TEXTS: lambda: sum(each.sweep() for each in self.all_texts),
        }

    @classmethod
    def open(
        cls,
        settings: Settings,
        data: Path,
        keys: Sequence[str],
        *,
        public_url: str = "",
        link_clock: Callable[[], float] | None = None,
    ) -> Self:
        """Open the stores without any I/O. Raises ConfigError where the library for buckets is missing."""
        folder, limits = data / MEDIA, settings.media.limits
        bucket = open_bucket(settings)
        local = LocalMediaStore(folder, keys=keys, public_url=public_url, link_clock=link_clock, limits=limits)
        if bucket is None:
            return cls(local, local_texts(data), None)
        media = MediaFiles(
            bucket.objects(MEDIA), bucket.objects(OWNERS), folder / ARRIVING,
            keys=keys, public_url=public_url, link_clock=link_clock, limits=limits,
        )  # fmt: skip
        return cls(media, TextFiles(bucket.objects(TEXTS)), bucket, (local, local_texts(data)))


def local_texts(data: Path) -> TextFiles:
    """Return the long texts in a data folder."""
    return TextFiles(LocalObjects(data / TEXTS))


def open_bucket(settings: Settings) -> Bucket | None:
    """Return the bucket of the configuration, None without one.

    Raises ConfigError where the library is missing, or variables of the environment cannot be used.
    """
    media = settings.media
    if not media.store:
        return None
    try:
        import_libraries("s3", "obstore.exceptions", "obstore.store")
        return Bucket(media.store, endpoint=str(media.endpoint or ""), region=media.region)
    except LibraryError as exc:
        raise ConfigError([settings.problem(("media", "store"), str(exc))]) from exc
    except StoreRefused as exc:
        raise ConfigError([settings.problem(("media", "store"), exc.reason)]) from None


@dataclass(frozen=True, slots=True)
class RedisParts:
    """The clients of Redis of one process, and the parts that need nothing else. Lives as long as the process."""

    url: str
    client: Redis
    key_prefix: str
    #: The server of RQ's keys: the same, unless the configuration names another.
    queue_url: str
    queue: Redis
    #: Creates the jobs that wake workers.
    jobs: WakeUps
    #: Queues these jobs, where the queue has a server of its own.
    queue_server: QueueServer | None
    cache: RedisSharedCache
    alerts: RedisAlerts

    @classmethod
    def connect(cls, settings: Settings, url: str, *, patient: bool = False) -> RedisParts:
        """Open the connections; `patient` ones wait while Redis restarts. Raises ConfigError for a malformed URL."""
        queue_url = _check_queue(find_queue(settings), url) or url
        client, prefix = _open(url, "REDIS_URL (or redis_url)", patient=patient), settings.key_prefix
        connections = Connections.of(client)
        connections.replicas = settings.redis_wait_replicas
        if patient:
            connections.pipeline = open_loop_client(url)
        queue = client
        if queue_url != url:  # the work is stored elsewhere, so neither web nor worker waits long for this server
            queue = _open(queue_url, "QUEUE_URL (or queue_url)")
            set_web_timeouts(queue)
        jobs = WakeUps(queue, settings.queue, prefix=prefix)
        server = QueueServer(queue, jobs, prefix=prefix) if queue is not client else None
        cache, alerts = RedisSharedCache(client, prefix=prefix), RedisAlerts(client, prefix=prefix)
        return cls(url, client, prefix, queue_url, queue, jobs, server, cache, alerts)

    @property
    def wake_up(self) -> WakeUp:
        """Return what creates the jobs that scripts store. With a queue server, scripts store none."""
        return no_wake_up if self.queue_server else self.jobs

    @classmethod
    def find(cls, settings: Settings, data: Path) -> RedisParts:
        """Connect to the bot's Redis, for a command. Raises ConfigError."""
        return cls.connect(settings, find_redis(settings, data))

    def scripts(self, folder: Path) -> LuaScripts:
        """Return the Lua scripts of a folder."""
        wake = self.queue_server.wake if self.queue_server else None
        return LuaScripts(self.client, folder, prefix=self.key_prefix, wake=wake)

    def reaper(self, worker_lock: WorkerLock) -> Reaper:
        """Return what wakes the conversations that no worker took."""
        jobs = {"queued": self.queue_server.queued} if self.queue_server else {"queue": self.jobs.queue}
        scripts = self.scripts(LUA)
        return Reaper(self.client, scripts, self.wake_up, worker_lock, prefix=self.key_prefix, **jobs)

    def guard_against_loss(self, state: Path) -> DataLossGuard:
        """Return the data-loss guard, which checks each new connection from now on. Its watermark is in `state`."""
        file, replicas = WatermarkFile(state / WATERMARKS), Connections.of(self.client).replicas
        guard = DataLossGuard(connect(self.url), file, prefix=self.key_prefix, replicas=replicas)
        guard.guard(self.client)
        return guard


def _open(url: str, name: str, *, patient: bool = False) -> Redis:
    try:
        if patient and is_cluster(url):
            _log_if_away(url)
        return connect(url, patient=patient)
    except ValueError as exc:
        raise ConfigError([f"{name}: {exc}"]) from exc


def _log_if_away(url: str) -> None:
    """Log why no cluster answers, before a patient client waits for it for a minute."""
    try:
        connect(url).close()
    except RedisError as exc:
        failure = explain(exc)
        log.warning("redis.away", extra={"reason": failure.says, "advice": failure.cure})


def _check_queue(queue_url: str, url: str) -> str:
    """Return the URL of the queue. Raises ConfigError for a Redis on which RQ cannot run."""
    if is_cluster(queue_url):
        raise ConfigError(
            ["QUEUE_URL (or queue_url) names a Redis Cluster, and RQ does not run there: name one server"]
        )
    if is_cluster(url) and not queue_url:
        raise ConfigError([
            "REDIS_URL (or redis_url) names a Redis Cluster, and RQ, which wakes the workers, does not run there: "
            "name another Redis, a small one, in queue_url (or QUEUE_URL)"
        ])  # fmt: skip
    return queue_url


def find_queue(settings: Settings) -> str:
    """Return the URL of the queue server, "" if the queue is on the server of the conversations."""
    return settings.queue_url or os.environ.get("QUEUE_URL", "")


def find_redis(settings: Settings, data: Path) -> str:
    """Return the URL of the configuration, of REDIS_URL, or of a running `sayso up`. Raises ConfigError without any."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def risks_of(client: Redis, settings: Settings) -> list[str]:
    """Return what is risky about a server. Raises RedisUnfit for one that would lose acknowledged writes or that lacks
    commands we use, and redis.RedisError. The version of one that hides its INFO is not checked.
    """
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        version = ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own")
    if isinstance(client, ClusterClient):
        replicas = settings.redis_wait_replicas
        risks = [risk for each in servers_of(client) for risk in (*check_fit(each), *replication_risks(each, replicas))]
        if len(client.get_replicas()) < len(client.get_primaries()):
            risks.append("a master of the cluster has no replica: while it is down, nothing is accepted. Add replicas")
        return list(dict.fromkeys([*risks, *forbidden_commands(client, settings.key_prefix, replicas)]))
    wrong = wrong_server(client)
    if wrong and ("Sentinel" in wrong[0] or "Cluster" in wrong[0]):
        raise RedisUnfit(f"the server of REDIS_URL {wrong[0]}: {wrong[1]}")
    service = sentinel_of(client)
    return [
        *([f"{address_of(client)} {wrong[0]}, and takes no messages: {wrong[1]}"] if wrong else []),
        *check_fit(client),
        *(service.risks() if service else []),
        *replication_risks(client, settings.redis_wait_replicas),
        *forbidden_commands(client, settings.key_prefix, settings.redis_wait_replicas),
    ]
