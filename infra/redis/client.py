"""The clients of Redis: how each kind of process connects, and waits for an answer.

All are made from a `RedisUrl` or a `ClusterUrl`, so that each form of a URL works in every process.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

from redis import Redis, SSLConnection
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.client import Pipeline
from redis.commands.core import Script
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.retry import Retry

from sayso.infra.redis.cluster import AsyncCluster, ClusterClient, ClusterUrl, is_cluster
from sayso.infra.redis.connections import AutoPipeline, Connections, LoopClient
from sayso.infra.redis.retries import PatientRetry
from sayso.infra.redis.url import RedisUrl

#: The prefix of all our keys.
PREFIX = "sayso:"
#: Seconds a web process waits for an answer: a slow disk now and then takes
#: more than a second for an fsync.
WEB_ANSWER_SECONDS = 2.0
#: The options of a connection that another server of the same login must not get.
_OPTIONS_OF_ONE_SERVER = {"host", "path", "port", "redis_connect_func", "sentinel"}
#: An `aclfile` with the users that a Redis of your own needs.
ACL_FILE = Path(__file__).with_name("redis.acl")


class RedisUnfit(Exception):
    """Raised at start when the Redis could lose or evict data that must be kept."""


def connect(url: str, *, patient: bool = False, answer_seconds: float | None = None) -> Redis:
    """Return a client for our scripts, for any thread. It connects with its first command.

    With `patient`, as in a worker, it waits through a restart of Redis. Otherwise it fails at once
    when nothing listens, retries a broken connection once, and gives up after `answer_seconds`
    without an answer; None: 5 seconds for a patient client, WEB_ANSWER_SECONDS for another. Raises
    ValueError for a malformed URL.
    """
    if answer_seconds:
        seconds = answer_seconds
    elif patient:
        seconds = 5.0
    else:
        seconds = WEB_ANSWER_SECONDS

    if is_cluster(url):
        cluster = ClusterClient(ClusterUrl.parse(url), patient=patient, answer_seconds=seconds)
        # It is no subclass of Redis, but has the same commands.
        return cast("Redis", cluster)

    # Does not wait a second time after a timeout.
    retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    if patient:
        retry = PatientRetry()
    pool = RedisUrl.parse(url).pool(
        decode_responses=True,
        socket_connect_timeout=1,
        socket_timeout=seconds,
        retry=retry,
        retry_on_error=[RedisConnectionError],
        max_connections=256,
    )
    return Redis.from_pool(pool)


def connect_rq(url: str) -> Redis:
    """Return a client for RQ, which answers in bytes and has the timeout that RQ sets.

    It retries after a lost connection, not after a timeout: RQ's loop retries then,
    and handles signals first.
    """
    retry = Retry(ConstantBackoff(0.1), 2, supported_errors=(RedisConnectionError,))
    parsed = RedisUrl.parse(url)
    pool = parsed.pool(socket_connect_timeout=2, retry=retry, **_keepalive(parsed))
    return _RqRedis.from_pool(pool)


class _RqRedis(Redis):
    """A client whose scripts need no SCRIPT LOAD, which some servers forbid.

    redis-py's Script sends it for each script that the server does not know.
    """

    def register_script(self, script: Any) -> Script:
        return _EvalScript(self, script)


class _EvalScript(Script):
    """Runs a script by its hash; where the server does not know it, its text is sent."""

    def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        client = client or self.registered_client
        keys = keys or ()
        args = args or ()
        if isinstance(client, Pipeline):
            # In a pipeline no answer could say that the server does not know the hash.
            return client.eval(str(self.script), len(keys), *keys, *args)
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(str(self.script), len(keys), *keys, *args)


def connect_async(url: str) -> AsyncRedis:
    """Return a client for subscriptions in one event loop.

    It waits for messages without a limit of time. On a cluster it is a client of one node, since
    any node delivers what is published on another.
    """
    if is_cluster(url):
        parsed = ClusterUrl.parse(url).node_url
    else:
        parsed = RedisUrl.parse(url)
    pool = parsed.async_pool(decode_responses=True, socket_connect_timeout=2, **_keepalive(parsed))
    return AsyncRedis.from_pool(pool)


def open_loop_client(url: str) -> LoopClient:
    """Return a client for our scripts in one event loop. It waits through a restart of Redis."""
    if is_cluster(url):
        return AsyncCluster(ClusterUrl.parse(url))
    return AutoPipeline(url)


def _keepalive(url: RedisUrl) -> dict[str, Any]:
    """Return TCP keep-alive options for connections that wait without a limit.

    With them a subscription notices within 20 seconds that the server's machine is gone.
    """
    if url.scheme == "unix":
        return {}
    # Ask after 10 seconds of silence, three times, 3 seconds apart.
    values = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
    # macOS lacks some of these names.
    known = [name for name in values if hasattr(socket, name)]
    options = {getattr(socket, name): values[name] for name in known}
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def address_of(client: Redis) -> str:
    """Return where a client's server is, without its password.

    That is `host:port`, a path, `service@sentinels`, or several nodes of a cluster.
    """
    if isinstance(client, ClusterClient):
        return str(client.url)
    options = client.connection_pool.connection_kwargs
    if options.get("sentinel"):
        return str(options["sentinel"])
    if options.get("path"):
        return str(options["path"])
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def set_web_timeouts(client: Redis, *, answer_seconds: float = WEB_ANSWER_SECONDS) -> None:
    """Make the client of a web process block few threads while Redis hangs.

    A call gives up after `answer_seconds`. From then on calls fail at once, except for one caller
    at a time that tries. The client must be unused: its open connections would keep their times.
    """
    # The client of a cluster has these times already.
    if not isinstance(client, ClusterClient):
        pool = client.connection_pool
        pool.connection_kwargs["socket_connect_timeout"] = answer_seconds
        pool.connection_kwargs["socket_timeout"] = answer_seconds
    Connections.of(client).break_circuit(slow_seconds=answer_seconds / 2)


def servers_of(client: Redis) -> list[Redis]:
    """Return a client of each server that takes writes: of each master of a cluster."""
    if isinstance(client, ClusterClient):
        return client.masters()
    return [client]


def nodes_of(client: Redis) -> list[Redis]:
    """Return a client of each known server: of each node of a cluster, with its replicas."""
    if isinstance(client, ClusterClient):
        return client.nodes()
    return [client]


def replicas_of(server: Redis) -> list[Redis]:
    """Return a client of each replica that a server names, with the server's own login.

    Raises redis.RedisError.
    """
    pool = server.connection_pool
    is_tls = issubclass(pool.connection_class, SSLConnection)
    scheme = "rediss" if is_tls else "redis"
    options = dict(pool.connection_kwargs)
    for name in _OPTIONS_OF_ONE_SERVER:
        options.pop(name, None)

    replicas = []
    for value in server.info("replication").values():
        # The fields `slave0`, `slave1` and so on describe a replica each.
        if isinstance(value, dict) and "ip" in value:
            address = {"host": value["ip"], "port": int(value["port"])}
            replicas.append(Redis.from_pool(RedisUrl(scheme, {**options, **address}).pool()))
    return replicas
