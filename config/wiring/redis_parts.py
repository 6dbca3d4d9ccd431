"""The Redis of a bot: its clients, the parts that need nothing else,
and what is risky about its servers.

Commands of an operator use it without `bootstrap`, and so without importing the agent.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.data_folder import running_url
from sayso.infra.redis.checks import (
    forbidden_commands,
    replication_risks,
    sentinel_of,
    wrong_server,
)
from sayso.infra.redis.client import (
    RedisUnfit,
    address_of,
    check_fit,
    connect,
    open_loop_client,
    servers_of,
    set_web_timeouts,
)
from sayso.infra.redis.cluster import ClusterClient, is_cluster
from sayso.infra.redis.connections import Connections
from sayso.infra.redis.scripts import LuaScripts, ScriptFolder, WakeUp, no_wake_up
from sayso.infra.redis.shared_cache import SharedCache
from sayso.workers.alerts import RedisAlerts
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import WatermarkFile
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.identities import RedisIdentities
from sayso.workers.people import RedisPeople
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QueueServer, WakeUps
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox

log = logging.getLogger(__name__)

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisParts:
    """The clients of Redis of one process, and the parts that need nothing else.

    Lives as long as the process.
    """

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
    cache: SharedCache
    alerts: RedisAlerts

    @classmethod
    def connect(cls, settings: Settings, url: str, *, patient: bool = False) -> RedisParts:
        """Open the connections; `patient` ones wait while Redis restarts.

        Raises ConfigError for a malformed URL.
        """
        queue_url = _check_queue(find_queue(settings), url) or url
        prefix = settings.key_prefix
        client = _open(url, "REDIS_URL (or redis_url)", patient=patient)
        connections = Connections.of(client)
        connections.replicas = settings.redis_wait_replicas
        if patient:
            connections.pipeline = open_loop_client(url)
        queue = client
        # The work is stored elsewhere, so neither web nor worker waits long for this server.
        if queue_url != url:
            queue = _open(queue_url, "QUEUE_URL (or queue_url)")
            set_web_timeouts(queue)
        jobs = WakeUps(queue, settings.queue, prefix=prefix)
        server = None
        if queue is not client:
            server = QueueServer(queue, jobs, prefix=prefix)
        cache = SharedCache(client, prefix=prefix)
        alerts = RedisAlerts(client, prefix=prefix)
        return cls(url, client, prefix, queue_url, queue, jobs, server, cache, alerts)

    @property
    def identities(self) -> RedisIdentities:
        """Return the store of the ids of people."""
        return RedisIdentities(self.scripts(CONVERSATION_SCRIPTS))

    @property
    def wake_up(self) -> WakeUp:
        """Return what creates the jobs that scripts store.

        With a queue server, scripts store none.
        """
        return no_wake_up if self.queue_server else self.jobs

    @classmethod
    def find(cls, settings: Settings, data: Path) -> RedisParts:
        """Connect to the bot's Redis, for a command. Raises ConfigError."""
        return cls.connect(settings, find_redis(settings, data))

    def scripts(self, folder: ScriptFolder) -> LuaScripts:
        """Return the Lua scripts of a folder."""
        wake = self.queue_server.wake if self.queue_server else None
        return LuaScripts(self.client, folder, prefix=self.key_prefix, wake=wake)

    def reaper(self, worker_lock: WorkerLock) -> Reaper:
        """Return what wakes the conversations that no worker took."""
        server = self.queue_server
        return Reaper(
            self.client,
            self.scripts(CONVERSATION_SCRIPTS),
            self.wake_up,
            worker_lock,
            queue=None if server else self.jobs.queue,
            queued=server.queued if server else None,
            prefix=self.key_prefix,
        )

    def guard_against_loss(self, state: Path) -> DataLossGuard:
        """Return the data-loss guard, which checks each new connection from now on.

        Its watermark is in `state`.
        """
        file = WatermarkFile(state / WATERMARKS)
        replicas = Connections.of(self.client).replicas
        guard = DataLossGuard(connect(self.url), file, prefix=self.key_prefix, replicas=replicas)
        guard.protect(self.client)
        return guard


def open_deliveries(settings: Settings, data: Path) -> tuple[RedisDeliveries, RedisAlerts]:
    """Return the deliveries and the alerts of the channels, for a command. Raises ConfigError."""
    redis = RedisParts.find(settings, data)
    return RedisDeliveries(redis.scripts(CONVERSATION_SCRIPTS), redis.wake_up), redis.alerts


def open_people(settings: Settings, data: Path) -> tuple[RedisPeople, RedisOutbox]:
    """Return the people who are approved, blocked or waiting, and the outbox, for a command.

    Raises ConfigError.
    """
    redis = RedisParts.find(settings, data)
    people = RedisPeople(redis.client, prefix=settings.key_prefix)
    return people, RedisOutbox(redis.scripts(CONVERSATION_SCRIPTS), redis.wake_up)


def _open(url: str, name: str, *, patient: bool = False) -> Redis:
    try:
        return connect(url, patient=patient)
    except ValueError as exc:
        raise ConfigError([f"{name}: {exc}"]) from exc


def _check_queue(queue_url: str, url: str) -> str:
    """Return the URL of the queue. Raises ConfigError for a Redis on which RQ cannot run."""
    if is_cluster(queue_url):
        raise ConfigError(
            [
                "QUEUE_URL (or queue_url) names a Redis Cluster, and RQ does not run there: name one server"
            ]
        )
    if is_cluster(url) and not queue_url:
        raise ConfigError(
            [
                "REDIS_URL (or redis_url) names a Redis Cluster, and RQ, which wakes the workers, does not run there: "
                "name another Redis, a small one, in queue_url (or QUEUE_URL)"
            ]
        )
    return queue_url


def find_queue(settings: Settings) -> str:
    """Return the URL of the queue server, "" if the queue is on the server of the conversations."""
    return settings.queue_url or os.environ.get("QUEUE_URL", "")


def find_redis(settings: Settings, data: Path) -> str:
    """Return the URL of the configuration, of REDIS_URL, or of a running `sayso up`.

    Raises ConfigError without any.
    """
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError(
            [f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"]
        )
    return url


def risks_of(client: Redis, settings: Settings) -> list[str]:
    """Return what is risky about a server. Raises RedisUnfit for one that would lose acknowledged
    writes or that lacks commands we use, and redis.RedisError. The version of one that hides its
    INFO is not checked.
    """
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        version = ""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(
            f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own"
        )
    if isinstance(client, ClusterClient):
        replicas = settings.redis_wait_replicas
        risks: list[str] = []
        for server in servers_of(client):
            risks += [*check_fit(server), *replication_risks(server, replicas)]
        if len(client.get_replicas()) < len(client.get_primaries()):
            risks.append(
                "a master of the cluster has no replica: while it is down, nothing is accepted. Add replicas"
            )
        return list(
            dict.fromkeys([*risks, *forbidden_commands(client, settings.key_prefix, replicas)])
        )
    wrong = wrong_server(client)
    if wrong and ("Sentinel" in wrong[0] or "Cluster" in wrong[0]):
        raise RedisUnfit(f"the server of REDIS_URL {wrong[0]}: {wrong[1]}")
    risks = []
    if wrong:
        risks.append(f"{address_of(client)} {wrong[0]}, and takes no messages: {wrong[1]}")
    risks += check_fit(client)
    service = sentinel_of(client)
    if service:
        risks += service.risks()
    risks += replication_risks(client, settings.redis_wait_replicas)
    risks += forbidden_commands(client, settings.key_prefix, settings.redis_wait_replicas)
    return risks
