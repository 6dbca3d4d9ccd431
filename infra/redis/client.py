"""The clients of Redis: how they connect, what kind of server they accept, and the server's time.

All are made from a `RedisUrl`, so that each form of a URL works in every process.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from redis import Redis, SSLConnection
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.client import Pipeline
from redis.commands.core import Script
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from sayso.infra.concurrency import is_in_loop
from sayso.infra.manual import manual
from sayso.infra.redis.cluster import AsyncCluster, ClusterClient, ClusterUrl, is_cluster
from sayso.infra.redis.connections import AutoPipeline, Connections, LoopClient
from sayso.infra.redis.retries import PatientRetry
from sayso.infra.redis.sentinel import SentinelService
from sayso.infra.redis.url import RedisUrl

#: The prefix of all our keys.
PREFIX = "sayso:"
#: Seconds a web process waits for an answer: a slow disk now and then takes
#: more than a second for an fsync.
WEB_ANSWER_SECONDS = 2.0
#: Seconds for which the monotonic clock carries on the time that Redis gave.
TRUSTED_SECONDS = 60.0
#: Seconds after which a Redis that did not answer is asked again.
AGAIN_SECONDS = 1.0
#: The options of a connection that are about its server alone.
_OF_ONE_SERVER = {"host", "path", "port", "redis_connect_func", "sentinel"}
#: An `aclfile` with the users that a Redis of your own needs.
ACL_FILE = Path(__file__).with_name("redis.acl")


class RedisUnfit(Exception):
    """Raised at start when the Redis could lose or evict data that must be kept."""


def connect(url: str, *, patient: bool = False, answer_seconds: float | None = None) -> Redis:
    """Return a client for our scripts.

    With `patient` it waits through a restart of Redis. Otherwise it fails at once when nothing
    listens, retries a broken connection once, and gives up after `answer_seconds`, 2 by default,
    without an answer. Raises ValueError for a malformed URL. The client of a cluster connects at
    once and raises redis.RedisError.
    """
    seconds = answer_seconds or (5 if patient else WEB_ANSWER_SECONDS)
    if is_cluster(url):  # it has the commands of a client
        return cast(
            "Redis", ClusterClient(ClusterUrl.parse(url), patient=patient, answer_seconds=seconds)
        )
    if patient:
        retry: Retry = PatientRetry()
    else:  # does not wait a second time after a timeout
        retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
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
    return _RqRedis.from_pool(
        parsed.pool(socket_connect_timeout=2, retry=retry, **_keepalive(parsed))
    )


class _RqRedis(Redis):
    """A client whose scripts need no SCRIPT LOAD, which some servers forbid: redis-py's Script sends
    it for each script that the server does not know.
    """

    def register_script(self, script: Any) -> Script:
        return _EvalScript(self, script)


class _EvalScript(Script):
    """Runs a script by its hash; where the server does not know it, its text is sent."""

    def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        client = client or self.registered_client
        rest = (len(keys or ()), *(keys or ()), *(args or ()))
        if isinstance(client, Pipeline):
            return client.eval(str(self.script), *rest)
        try:
            return client.evalsha(self.sha, *rest)
        except NoScriptError:
            return client.eval(str(self.script), *rest)


def connect_async(url: str) -> AsyncRedis:
    """Return a client for subscriptions in one event loop. It waits for messages without a limit.
    On a cluster any node delivers what is published on another.
    """
    parsed = ClusterUrl.parse(url).node_url if is_cluster(url) else RedisUrl.parse(url)
    return AsyncRedis.from_pool(
        parsed.async_pool(decode_responses=True, socket_connect_timeout=2, **_keepalive(parsed))
    )


def open_loop_client(url: str) -> LoopClient:
    """Return a client for one event loop that waits while the server does not answer."""
    if is_cluster(url):
        return AsyncCluster(ClusterUrl.parse(url))
    return AutoPipeline(url)


def _keepalive(url: RedisUrl) -> dict[str, Any]:
    """Return TCP keep-alive options: a subscription notices within 20 seconds
    that the server's machine is gone.
    """
    if url.scheme == "unix":
        return {}
    seconds = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
    options = {
        getattr(socket, name): value for name, value in seconds.items() if hasattr(socket, name)
    }
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def address_of(client: Redis) -> str:
    """Return where a client's server is, without its password: `host:port`, a path,
    `service@sentinels`, or several nodes of a cluster.
    """
    if isinstance(client, ClusterClient):
        return str(client.url)
    where = client.connection_pool.connection_kwargs
    if where.get("sentinel"):
        return str(where["sentinel"])
    return str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")


def set_web_timeouts(client: Redis, *, answer_seconds: float = WEB_ANSWER_SECONDS) -> None:
    """Make the unused client of a web process block few threads while Redis hangs.

    A call gives up after `answer_seconds`. From then on calls fail at once,
    except for one caller at a time that tries.
    """
    if not isinstance(client, ClusterClient):  # that one has these times already
        pool = client.connection_pool
        pool.connection_kwargs |= {
            "socket_connect_timeout": answer_seconds,
            "socket_timeout": answer_seconds,
        }
    Connections.of(client).break_circuit(slow_seconds=answer_seconds / 2)


def servers_of(client: Redis) -> list[Redis]:
    """Return a client of each server that takes writes: of each master of a cluster."""
    if isinstance(client, ClusterClient):
        return client.masters()
    return [client]


def nodes_of(client: Redis) -> list[Redis]:
    """Return a client of each server that is known: of each node of a cluster, with its replicas."""
    if isinstance(client, ClusterClient):
        return client.nodes()
    return [client]


def replicas_of(server: Redis) -> list[Redis]:
    """Return a client of each replica that a server names, with the server's own login.

    Raises redis.RedisError.
    """
    pool = server.connection_pool
    options = {
        name: value for name, value in pool.connection_kwargs.items() if name not in _OF_ONE_SERVER
    }
    is_tls = issubclass(pool.connection_class, SSLConnection)
    scheme = "rediss" if is_tls else "redis"

    replicas = []
    for value in server.info("replication").values():
        if isinstance(value, dict) and "ip" in value:  # `slave0` and the like
            address = {"host": value["ip"], "port": int(value["port"])}
            replicas.append(Redis.from_pool(RedisUrl(scheme, {**options, **address}).pool()))
    return replicas


def check_fit(client: Redis) -> list[str]:
    """Refuse a Redis that evicts keys; return warnings about one that may lose acknowledged writes.

    Raises RedisUnfit. INFO is used where the server forbids CONFIG;
    it does not tell how often the server syncs.
    """
    try:
        settings = cast(
            "dict[str, str]", client.config_get("maxmemory-policy", "appendonly", "appendfsync")
        )
        policy = settings.get("maxmemory-policy", "noeviction")
        appends = settings.get("appendonly") == "yes"
        syncs_always = settings.get("appendfsync") == "always"
    except ResponseError:
        try:
            policy = str(client.info("memory").get("maxmemory_policy", ""))
            appends = bool(client.info("persistence").get("aof_enabled", 1))
            syncs_always = True
        except RedisError as exc:
            return [
                f"cannot read CONFIG or INFO of this Redis ({type(exc).__name__}): make sure it never evicts keys"
            ]
    if policy not in ("noeviction", ""):
        raise RedisUnfit(
            f"maxmemory-policy is {policy!r}: waiting messages and confirmations would vanish. Set it to noeviction"
        )
    if not policy:
        return [
            "neither CONFIG nor INFO of this Redis shows its maxmemory-policy: make sure it never evicts keys"
        ]
    if not appends:
        return [
            "appendonly is off: a restart of this Redis loses waiting messages. Set appendonly yes"
        ]
    if not syncs_always:
        return [
            "appendfsync is not always: a crash of this Redis may lose about two seconds of accepted messages"
        ]
    return []


def check_writable(client: Redis, *, prefix: str = PREFIX) -> None:
    """Send a write that changes nothing.

    Raises redis.RedisError if this is a replica, memory or disk is full, or the server is away.
    """
    client.set(f"{prefix}writable", "", xx=True)


def check_guarded(client: Redis) -> None:
    """Refuse a Redis on another machine that serves clients without a login. Raises RedisUnfit, and
    redis.RedisError while Sentinels name no primary.
    """
    given = client.connection_pool.connection_kwargs
    sentinel: SentinelService | None = given.get("sentinel")
    if sentinel:
        host, port = sentinel.primary()
    else:
        host = given.get("host", "")
        port = given.get("port", 6379)
    if not host or _is_this_machine(host, port):
        return
    secure = {
        name: value
        for name, value in given.items()
        if name in ("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs")
    }
    is_tls = issubclass(client.connection_pool.connection_class, SSLConnection)
    once: dict[str, Any] = {
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    with Redis(host=host, port=port, ssl=is_tls, **once, **secure) as anonymous:
        try:
            anonymous.ping()
        except RedisError:  # it requires a login or a certificate
            return
    raise RedisUnfit(
        f"the Redis at {host}:{port} is on another machine and needs no password: anybody can read messages there. "
        f"Give it users ({manual('reference/redis.md')}), or write allow_open_redis: true if nobody else can reach it"
    )


def _is_this_machine(host: str, port: int) -> bool:
    """Return whether all addresses of a host are this machine's. A host that cannot be resolved
    counts: the login check comes later.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(
        ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in addresses
    )


class SharedClock:
    """The time of the Redis server in Unix seconds, for any thread. Lives as long as its process.

    While Redis does not answer, the monotonic clock carries the time on; until the first answer it
    is the machine's own clock. An event loop never waits: there a thread asks Redis, and the next
    call has the answer.
    """

    def __init__(
        self,
        client: Redis,
        *,
        own: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._own = own
        self._monotonic = monotonic
        self._ahead: float | None = None
        self._ask_at = float("-inf")

    def __call__(self) -> float:
        """Return the time now."""
        if self._monotonic() >= self._ask_at:
            self._ask_at = self._monotonic() + AGAIN_SECONDS
            if is_in_loop():
                threading.Thread(target=self._ask, name="shared-clock", daemon=True).start()
            else:
                self._ask()
        if self._ahead is None:
            return self._own()
        return self._monotonic() + self._ahead

    def _ask(self) -> None:
        with contextlib.suppress(RedisError):
            seconds, microseconds = self._client.time()
            self._ahead = seconds + microseconds / 1e6 - self._monotonic()
            self._ask_at = self._monotonic() + TRUSTED_SECONDS
