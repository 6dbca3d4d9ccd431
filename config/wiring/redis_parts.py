"""The Redis of a bot: its clients, the parts that need nothing else, and the risks of its servers.

A bot may use two servers: one for conversations and actions (REDIS_URL), and one for RQ's queue
(QUEUE_URL). By default both are the same. If they differ, the scripts on the first server cannot
create jobs on the second one; then the process that ran a script creates the job.

Commands of an operator use this module without `bootstrap`, and so without importing the agent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.data_folder import running_url
from sayso.infra.redis.checks import (
    check_fit,
    forbidden_commands,
    replication_risks,
    sentinel_of,
    wrong_server,
)
from sayso.infra.redis.client import (
    RedisUnfit,
    address_of,
    connect,
    open_loop_client,
    servers_of,
    set_web_timeouts,
)
from sayso.infra.redis.cluster import ClusterClient, is_cluster
from sayso.infra.redis.connections import Connections
from sayso.infra.redis.scripts import ScriptFolder
from sayso.infra.redis.shared_cache import SharedCache
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.alerts import RedisAlerts
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.watermarks import FILE as WATERMARKS
from sayso.workers.data_loss.watermarks import WatermarkFile
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.identities import RedisIdentities
from sayso.workers.people import RedisPeople
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QueueServer, WakeUps
from sayso.workers.scripts import CONVERSATION_SCRIPTS, WakingScripts
from sayso.workers.sender import RedisOutbox
from sayso.workers.wake_ups import WakeUp, no_wake_up

log = logging.getLogger(__name__)

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisParts:
    """The clients of Redis of one process, and the parts that need nothing else.

    Lives as long as the process.
    """

    #: The Redis of conversations and actions.
    url: str
    client: Redis
    #: How all keys of the bot begin.
    key_prefix: str
    #: The server of RQ's queue: the same, unless the configuration names another.
    queue_url: str
    queue: Redis
    #: Creates the jobs that wake workers.
    jobs: WakeUps
    #: Queues these jobs where the queue is on a separate server; None where it is on the same.
    queue_server: QueueServer | None
    #: Values that processes share for a while.
    cache: SharedCache
    alerts: RedisAlerts

    @classmethod
    def connect(cls, settings: Settings, url: str, *, patient: bool = False) -> RedisParts:
        """Create the clients and the parts. Most clients connect when they are first used.

        A `patient` client waits while Redis restarts, as a worker does; another one fails soon.
        Raises ConfigError for a malformed URL.
        """
        queue_url = check_queue_url(find_queue(settings), url) or url
        prefix = settings.key_prefix
        client = _open(url, "REDIS_URL (or redis_url)", patient=patient)
        connections = Connections.of(client)
        connections.replicas = settings.redis_wait_replicas
        if patient:
            connections.pipeline = open_loop_client(url)

        # The work itself is stored in the first server, so no process waits long for the queue.
        queue = client
        if queue_url != url:
            queue = _open(queue_url, "QUEUE_URL (or queue_url)")
            set_web_timeouts(queue)
        jobs = WakeUps(queue, settings.queue, prefix=prefix)
        server = None
        if queue is not client:
            server = QueueServer(queue, jobs, prefix=prefix)
        return cls(
            url=url,
            client=client,
            key_prefix=prefix,
            queue_url=queue_url,
            queue=queue,
            jobs=jobs,
            queue_server=server,
            cache=SharedCache(client, prefix=prefix),
            alerts=RedisAlerts(client, prefix=prefix),
        )

    @property
    def identities(self) -> RedisIdentities:
        """The store of the ids that belong to one person."""
        return RedisIdentities(self.scripts(CONVERSATION_SCRIPTS))

    @property
    def wake_up(self) -> WakeUp:
        """The function that creates a job, which a script then queues on the same server.

        With a separate queue server scripts queue nothing, so it creates nothing.
        """
        return no_wake_up if self.queue_server else self.jobs

    @classmethod
    def find(cls, settings: Settings, data: Path) -> RedisParts:
        """Connect to the bot's Redis, for a command. Raises ConfigError."""
        return cls.connect(settings, find_redis(settings, data))

    def scripts(self, folder: ScriptFolder) -> ShardedScripts:
        """Return the Lua scripts of a folder, ready to run on the bot's Redis.

        Each call makes a new object. Parts may share one, and need not.
        """
        # A script cannot queue a job on another server, so this process does it after the script.
        if self.queue_server and folder is CONVERSATION_SCRIPTS:
            return WakingScripts(self.client, self.queue_server.wake, prefix=self.key_prefix)
        return ShardedScripts(self.client, folder, prefix=self.key_prefix)

    def reaper(self, worker_lock: WorkerLock) -> Reaper:
        """Return what wakes the conversations that have work and no worker.

        `worker_lock` is that of this process.
        """
        queue: Mapping[str, str] | None = self.jobs.queue
        queued = None
        if self.queue_server:
            queue = None
            queued = self.queue_server.queued
        return Reaper(
            self.client,
            self.scripts(CONVERSATION_SCRIPTS),
            self.wake_up,
            worker_lock,
            queue=queue,
            queued=queued,
            prefix=self.key_prefix,
        )

    def guard_against_loss(self, state: Path) -> DataLossGuard:
        """Return the guard against data loss, which checks each new connection from now on.

        `state` is the bot's state folder, where the guard stores its watermarks.
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
    """Return a client of a server. `name` says in errors where its URL is from."""
    try:
        return connect(url, patient=patient)
    except ValueError as exc:
        raise ConfigError([f"{name}: {exc}"]) from exc


def check_queue_url(queue_url: str, url: str) -> str:
    """Return `queue_url` unchanged. Raises ConfigError if RQ cannot run on its server.

    `url` is that of the conversations. `queue_url` is "" if the queue is on the same server. RQ's scripts use keys of several slots at once, which a Redis Cluster refuses.
    """
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
    """Return the URL of the configuration, else of REDIS_URL, else of a running `sayso up`.

    `data` is the data folder. Raises ConfigError if there is none.
    """
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError(
            [f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"]
        )
    return url


def risks_of(client: Redis, settings: Settings) -> list[str]:
    """Return what is risky about a server, or about all servers of a Cluster, with cures.

    Raises RedisUnfit for a server that would lose acknowledged writes, that is too old, or that is
    a Sentinel or one node of a Cluster. Raises redis.RedisError.
    """
    _check_version(client)
    if isinstance(client, ClusterClient):
        return _cluster_risks(client, settings)

    replicas = settings.redis_wait_replicas
    risks = []
    problem = wrong_server(client)
    if problem:
        says, cure = problem
        if "Sentinel" in says or "Cluster" in says:
            raise RedisUnfit(f"the server of REDIS_URL {says}: {cure}")
        # A replica may become the primary.
        risks.append(f"{address_of(client)} {says}, and takes no messages: {cure}")
    risks += check_fit(client)
    service = sentinel_of(client)
    if service:
        risks += service.risks()
    risks += replication_risks(client, replicas)
    risks += forbidden_commands(client, settings.key_prefix, replicas)
    return risks


def _cluster_risks(client: Any, settings: Settings) -> list[str]:
    """Return what is risky about the servers of a Cluster. Raises RedisUnfit, redis.RedisError.

    `client` is a ClusterClient, which has the methods of a Redis without being one for mypy.
    """
    replicas = settings.redis_wait_replicas
    risks: list[str] = []
    for server in servers_of(client):
        risks += [*check_fit(server), *replication_risks(server, replicas)]
    if len(client.get_replicas()) < len(client.get_primaries()):
        risks.append(
            "a master of the cluster has no replica: while it is down, nothing is accepted. Add replicas"
        )
    risks += forbidden_commands(client, settings.key_prefix, replicas)
    # Each risk once, though several servers may have it.
    return list(dict.fromkeys(risks))


def _check_version(client: Redis) -> None:
    """Raise RedisUnfit for a server that is too old.

    A server that hides its version is taken to be new enough.
    """
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(
            f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own"
        )
