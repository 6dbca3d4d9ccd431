"""Checks of a Redis at start and by `sayso doctor`: may it be used, and what could it lose?

A server that must not be used is a RedisUnfit. Other findings are returned as sentences for an
operator, which end with the cure.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import replace
from typing import Any, cast

from redis import Redis, SSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from sayso.infra.manual import manual
from sayso.infra.redis.client import PREFIX, RedisUnfit, address_of, servers_of
from sayso.infra.redis.cluster import ClusterAway, ClusterClient
from sayso.infra.redis.connections import NotReplicated
from sayso.infra.redis.failures import Failure, causes_of, failure_of
from sayso.infra.redis.sentinel import NoPrimary, PrimarySilent, SentinelService
from sayso.infra.redis.url import NotWritable

#: The address in an error of redis-py.
_ADDRESS = re.compile(r"connecting to (\S+:\d+)\.")


def sentinel_of(client: Redis) -> SentinelService | None:
    """Return the Sentinel service that a client uses, None for a client of one server."""
    if isinstance(client, ClusterClient):
        return None
    service: SentinelService | None = client.connection_pool.connection_kwargs.get("sentinel")
    return service


def wrong_server(client: Redis, variable: str = "REDIS_URL") -> tuple[str, str] | None:
    """Return what a server is if it is not a usable primary, and the cure; None if it is one.

    `variable` is the name of the variable with the URL of the server: REDIS_URL or QUEUE_URL. A
    server that hides its INFO counts as usable. Raises redis.RedisError.
    """
    try:
        info = client.info()
    except ResponseError:
        return None
    # Redis has the first of these fields, Valkey the second.
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        port = client.connection_pool.connection_kwargs.get("port", 6379)
        groups = [value for value in info.values() if isinstance(value, dict)]
        services = ", ".join(group["name"] for group in groups if "name" in group)
        cure = f"write redis+sentinel://HOST:{port}/SERVICE into {variable}, with all Sentinels"
        return "is a Sentinel, not a Redis", f"{cure}; its services: {services or 'none'}"
    if info.get("cluster_enabled") and not isinstance(client, ClusterClient):
        return cluster_node(address_of(client), variable)
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return (
            "is a read-only replica",
            f"set {variable} to its primary, {primary}, or to Sentinels that name it",
        )
    return None


def cluster_node(place: str, variable: str = "REDIS_URL") -> tuple[str, str]:
    """Return what is wrong with the URL of one server for a node of a cluster, and the cure."""
    if variable == "QUEUE_URL":
        cure = "RQ does not run on a cluster: name a server in QUEUE_URL that is in none"
        return "is a node of a Redis Cluster", cure
    cure = f"write redis+cluster://{place} into REDIS_URL, and another Redis, for the queue, into QUEUE_URL"
    return "is a node of a Redis Cluster", cure


def unreachable(client: Redis, exc: RedisError, variable: str = "REDIS_URL") -> Failure:
    """Return why the server of a client cannot be used, and the cure.

    `variable` is the name of the variable with the URL of the server.
    """
    place = ""
    if not isinstance(client, ClusterClient):
        place = address_of(client)
    return explain(exc, place, variable)


def explain(exc: RedisError, place: str = "", variable: str = "REDIS_URL") -> Failure:
    """Return why the server at `place`, which `variable` names, cannot be used, and the cure.

    If `place` is "", the error may name it, as those of a node of a cluster do.
    """
    if not place:
        address = _ADDRESS.search(str(exc))
        place = address[1] if address else f"the Redis of {variable}"
    failure = _explain(exc, place)
    return replace(
        failure,
        says=failure.says.replace("REDIS_URL", variable),
        cure=failure.cure.replace("REDIS_URL", variable),
    )


def _explain(exc: RedisError, place: str) -> Failure:
    if isinstance(exc, NotWritable):
        cure = "see that it is the primary and that its replicas are connected"
        return Failure(f"{place} takes no writes now: {exc}", cure, lasts=False)
    if isinstance(exc, NotReplicated):
        cure = "start the replicas, or lower redis_wait_replicas"
        return Failure(f"{place} has too few replicas: {exc}", cure, lasts=False)
    if isinstance(exc, NoPrimary | PrimarySilent):
        says, _, cure = str(exc).partition(": ")
        return Failure(says, cure, lasts=False)
    if isinstance(exc, ClusterAway):
        causes = [
            each for each in causes_of(exc) if isinstance(each, RedisError) and each is not exc
        ]
        if causes:
            failure = failure_of(causes[0], place)
            # A failure that waiting does not mend says more, such as a login that a node refuses.
            if failure.lasts:
                return failure
        cure = "start its nodes, and see that they announce addresses that are reached from here (`CLUSTER SLOTS`)"
        return Failure(str(exc), cure, lasts=False)
    return failure_of(exc, place)


def check_reachable(client: Redis, variable: str = "REDIS_URL") -> Failure | None:
    """Return why a server does not answer now, None if it does.

    Raises RedisUnfit if waiting is of no use.
    """
    try:
        client.ping()
    except RedisError as exc:
        failure = unreachable(client, exc, variable)
        if failure.lasts:
            raise RedisUnfit(str(failure)) from exc
        return failure
    return None


def replication_risks(client: Redis, replicas: int) -> list[str]:
    """Return what a failover may lose when writes wait for this many replicas.

    [] for nothing, and for a server that hides its INFO. Raises redis.RedisError.
    """
    try:
        connected = int(client.info("replication").get("connected_slaves", 0))
    except ResponseError:
        return []
    if connected < replicas:
        says = f"redis_wait_replicas is {replicas}, and {connected} replicas are connected"
        return [
            f"{says}: every message is refused until as many are, so start them or lower the number"
        ]
    if connected and not replicas:
        return ["a failover loses the messages that no replica has yet: set redis_wait_replicas: 1"]
    return []


def forbidden_commands(client: Redis, prefix: str, replicas: int) -> list[str]:
    """Return what is lost by the commands that this server forbids.

    `prefix` begins our keys. `replicas` is how many must confirm a write. Raises RedisUnfit if
    Sayso needs a forbidden command, and redis.RedisError.
    """
    key = f"{prefix}{{0}}"
    needed: list[tuple[str | int, ...]] = [
        ("EVAL", "return 1", 1, key),
        ("EVALSHA", "0" * 40, 1, key),
        ("TIME",),
    ]
    for command in needed:
        reason = _refusal(client, *command)
        if reason:
            raise RedisUnfit(
                f"this Redis forbids {command[0]} ({reason}), and every step needs it: allow it"
            )
    if replicas:
        reason = _refusal(client, "WAIT", 0, 1)
        if reason:
            raise RedisUnfit(
                f"this Redis forbids WAIT ({reason}): allow it, or remove redis_wait_replicas"
            )
    # The queue is never in a cluster, where transactions span one node only.
    if not isinstance(client, ClusterClient):
        reason = _transaction_refusal(client)
        if reason:
            raise RedisUnfit(
                f"this Redis forbids MULTI ({reason}), and the queue needs it: allow it, and EXEC"
            )

    node = servers_of(client)[0]
    losses = []
    if _refusal(node, "PUBLISH", f"{key}:stop", ""):
        losses.append(
            "this Redis forbids PUBLISH, and a /stop takes up to 4 s to be noticed: allow it if you can"
        )
    if _refusal(node, "SCAN", 0, "COUNT", 1):
        losses.append(
            "this Redis forbids SCAN, and `sayso redis resume`, `backup`, `migrate` and `people erase` fail: allow it"
        )
    return losses


def _transaction_refusal(client: Redis) -> str:
    """Return why the server forbids transactions, "" if it allows them."""
    try:
        with client.pipeline(transaction=True) as pipe:
            pipe.ping()
            pipe.execute()
    except ResponseError as exc:
        return str(exc)
    return ""


def _refusal(client: Redis, *command: str | int) -> str:
    """Return why the server forbids a command, "" if it allows it.

    An error reply of another kind shows that the command is allowed.
    """
    try:
        client.execute_command(*command)
    except NoPermissionError as exc:
        return str(exc)
    except ResponseError as exc:
        if "unknown command" in str(exc).lower():
            return str(exc)
        return ""
    return ""


def check_fit(client: Redis) -> list[str]:
    """Refuse a Redis that evicts keys; return warnings about one that may lose acknowledged writes.

    [] for no warning. Raises RedisUnfit. Of a server that forbids CONFIG, INFO is read, which does
    not say how often the server syncs its file.
    """
    try:
        answer = client.config_get("maxmemory-policy", "appendonly", "appendfsync")
        settings = cast("dict[str, str]", answer)
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
    """Send a write that changes nothing. `prefix` begins our keys.

    Raises redis.RedisError if this is a replica, memory or disk is full, or the server is away.
    """
    client.set(f"{prefix}writable", "", xx=True)


def check_guarded(client: Redis) -> None:
    """Refuse a Redis on another machine that serves clients without a login.

    Raises RedisUnfit, and redis.RedisError while Sentinels name no primary.
    """
    options = client.connection_pool.connection_kwargs
    sentinel: SentinelService | None = options.get("sentinel")
    if sentinel:
        host, port = sentinel.primary()
    else:
        host = options.get("host", "")
        port = options.get("port", 6379)
    if not host or _is_this_machine(host, port):
        return

    # A client without user and password, which tries once.
    anonymous_options: dict[str, Any] = {
        "ssl": issubclass(client.connection_pool.connection_class, SSLConnection),
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs"):
        if name in options:
            anonymous_options[name] = options[name]
    with Redis(host=host, port=port, **anonymous_options) as anonymous:
        try:
            anonymous.ping()
        except RedisError:
            # It requires a login or a certificate.
            return
    raise RedisUnfit(
        f"the Redis at {host}:{port} is on another machine and needs no password: anybody can read messages there. "
        f"Give it users ({manual('reference/redis.md')}), or write allow_open_redis: true if nobody else can reach it"
    )


def _is_this_machine(host: str, port: int) -> bool:
    """Return whether all addresses of a host are this machine's.

    False for a host whose name cannot be resolved: connecting to it fails then.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for *_, socket_address in addresses:
        # An address of IPv6 may end with the name of a network interface.
        text, _, _ = str(socket_address[0]).partition("%")
        if not ipaddress.ip_address(text).is_loopback:
            return False
    return True
