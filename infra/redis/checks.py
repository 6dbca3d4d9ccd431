"""Checks of a Redis at start and by the doctor: its role, forbidden commands,
and what a failover may lose.
"""

from __future__ import annotations

import re
from dataclasses import replace

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from sayso.infra.redis.client import RedisUnfit, address_of, servers_of
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


def wrong_server(client: Redis) -> tuple[str, str] | None:
    """Return what a server is if it is not a usable primary, and the cure.

    Raises redis.RedisError.
    """
    try:
        info = client.info()
    except ResponseError:  # one that hides its INFO
        return None
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):  # Valkey has the second
        port = client.connection_pool.connection_kwargs.get("port", 6379)
        services = ", ".join(
            value["name"] for value in info.values() if isinstance(value, dict) and "name" in value
        )
        cure = f"write redis+sentinel://HOST:{port}/SERVICE into REDIS_URL, with all Sentinels"
        return "is a Sentinel, not a Redis", f"{cure}; its services: {services or 'none'}"
    if info.get("cluster_enabled") and not isinstance(client, ClusterClient):
        return cluster_node(address_of(client))
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return (
            "is a read-only replica",
            f"set REDIS_URL to its primary, {primary}, or to Sentinels that name it",
        )
    return None


def cluster_node(place: str) -> tuple[str, str]:
    """Return what is wrong with the URL of one server for a node of a cluster, and the cure."""
    cure = f"write redis+cluster://{place} into REDIS_URL, and another Redis, for the queue, into QUEUE_URL"
    return "is a node of a Redis Cluster", cure


def unreachable(client: Redis, exc: RedisError, variable: str = "REDIS_URL") -> Failure:
    """Return why the server of a client cannot be used, and the cure."""
    return explain(exc, "" if isinstance(client, ClusterClient) else address_of(client), variable)


def explain(exc: RedisError, place: str = "", variable: str = "REDIS_URL") -> Failure:
    """Return why the server at `place`, which `variable` names, cannot be used, and the cure.
    Without a place the error may name it, as those of a node of a cluster do.
    """
    if not place:
        named = _ADDRESS.search(str(exc))
        place = named[1] if named else f"the Redis of {variable}"
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
        refusal = next(
            (each for each in causes_of(exc) if isinstance(each, RedisError) and each is not exc),
            None,
        )
        if refusal:
            failure = failure_of(refusal, place)
            if failure.lasts:  # such as a login that a node refuses
                return failure
        cure = "start its nodes, and see that they announce addresses that are reached from here (`CLUSTER SLOTS`)"
        return Failure(str(exc), cure, lasts=False)
    return failure_of(exc, place)


def check_reachable(client: Redis, variable: str = "REDIS_URL") -> Failure | None:
    """Return why a server does not answer now, None where it does.

    Raises RedisUnfit where waiting is of no use.
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

    Raises redis.RedisError.
    """
    try:
        connected = int(client.info("replication").get("connected_slaves", 0))
    except ResponseError:  # one that hides its INFO
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
    Raises RedisUnfit where Sayso needs one, and redis.RedisError.
    """
    key = f"{prefix}{{0}}"
    needed: list[tuple[str | int, ...]] = [
        ("EVAL", "return 1", 1, key),
        ("EVALSHA", "0" * 40, 1, key),
        ("TIME",),
    ]
    for command in needed:
        if reason := _refusal(client, *command):
            raise RedisUnfit(
                f"this Redis forbids {command[0]} ({reason}), and every step needs it: allow it"
            )
    if replicas and (reason := _refusal(client, "WAIT", 0, 1)):
        raise RedisUnfit(
            f"this Redis forbids WAIT ({reason}): allow it, or remove redis_wait_replicas"
        )
    node = servers_of(client)[0]
    if not isinstance(client, ClusterClient) and (reason := _transaction_refusal(client)):
        raise RedisUnfit(
            f"this Redis forbids MULTI ({reason}), and the queue needs it: allow it, and EXEC"
        )
    lost = {
        (
            "PUBLISH",
            f"{key}:stop",
            "",
        ): "a /stop takes up to 4 s to be noticed: allow it if you can",
        (
            "SCAN",
            0,
            "COUNT",
            1,
        ): "`sayso redis resume`, `backup`, `migrate` and `people erase` fail: allow it",
    }
    return [
        f"this Redis forbids {command[0]}, and {loss}"
        for command, loss in lost.items()
        if _refusal(node, *command)
    ]


def _transaction_refusal(client: Redis) -> str:
    """Return why the server forbids transactions, "" where it does not."""
    try:
        with client.pipeline(transaction=True) as pipe:
            pipe.ping()
            pipe.execute()
    except ResponseError as exc:
        return str(exc)
    return ""


def _refusal(client: Redis, *command: str | int) -> str:
    """Return why the server forbids a command, "" where it does not.

    An error of another kind counts as an answer.
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
