"""Redis Cluster: its URL, and its clients for threads and for one event loop.

A cluster parts its keys into *slots*, and each slot has a master. redis-py's clients know the table
of slots, and follow slots that move and masters that are replaced. Here their errors become those
of a server that does not answer, and a patient client waits until a failover is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl

from redis import Redis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import PipelineCommand
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from sayso.infra.redis.connections import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    REPLICA_MS,
    Command,
    Connections,
    NotReplicated,
    RedisCircuitBreaker,
    log_not_replicated,
)
from sayso.infra.redis.retries import Retries
from sayso.infra.redis.sentinel import Address
from sayso.infra.redis.url import (
    NotWritable,
    RedisUrl,
    addresses_of,
    check_special_characters,
    split_login,
    takes_no_writes,
)

#: The schemes of a cluster's URL, and those of a connection to one node.
SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
#: The form of a URL, for messages.
FORM = "redis+cluster://host:6379,host:6379"
#: The port of a node where the URL names none.
NODE_PORT = 6379
#: How many connections to each node one event loop may open, where the URL does not say.
MAX_CONNECTIONS = 256
#: Seconds that a thread waits until a node accepts its connection, at most.
THREAD_CONNECT_SECONDS = 1.0
#: The parameters that are refused, although a URL of one server may have them: redis-py's client
#: for threads would ignore `ssl_min_version`, and the one for a loop does not take the others.
_NOT_IN_CLUSTER = ("ssl_ca_path", "ssl_min_version", "ssl_password")
#: The errors after which a patient client sends a command again.
_RETRIED = (RedisConnectionError, RedisTimeoutError)
#: The errors after which another node may have the slot: the asked node is away, is cut off from the
#: majority of the masters (CLUSTERDOWN), or has the slot no more. AskError and TryAgainError are not
#: among them: while a slot moves, its master stays the same.
_ELSEWHERE = (RedisConnectionError, RedisTimeoutError, ClusterDownError, MovedError)
#: The commands whose key is the third argument: script, number of keys, key.
_SCRIPT_COMMANDS = ("EVAL", "EVALSHA")
#: The errors of a cluster that cannot serve a key now. In redis-py ClusterDownError is a kind of
#: ClusterError, and MovedError one of AskError.
_CANNOT_SERVE = (RedisClusterException, ClusterError, TryAgainError, AskError)


class ClusterAway(RedisConnectionError):
    """Raised when a cluster cannot serve a key now: no node answers, or no master has the slot."""


def is_cluster(url: str) -> bool:
    """Return whether a URL names a cluster."""
    return url.partition("://")[0] in SCHEMES


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The URL of a cluster, parsed. Its repr shows no password."""

    #: Some of the nodes: they name the others.
    addresses: tuple[Address, ...]
    #: The options of the connections to all nodes.
    options: Mapping[str, Any] = field(repr=False)
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> ClusterUrl:
        """Read a URL. Raises ValueError, without the URL in its message: it may hold a password."""
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES:
            raise ValueError(f"no URL of a Redis Cluster: write it as {FORM}")
        check_special_characters(rest, has_host=True)
        before, _, query = rest.partition("?")
        netloc, _, db = before.partition("/")
        if db.strip("/") or "db" in dict(parse_qsl(query)):
            raise ValueError(f"names a database, and a Redis Cluster has only one: write {FORM}")
        for name, _ in parse_qsl(query, keep_blank_values=True):
            if name in _NOT_IN_CLUSTER:
                raise ValueError(f"{name} is no parameter for a Redis Cluster: leave it out")
        login, hosts = split_login(netloc)
        addresses = addresses_of(hosts, "a node", NODE_PORT)

        # The parameters are those of one server, so they are read from the URL of one.
        node_scheme = SCHEMES[scheme]
        at = f"{login}@" if login else ""
        node = RedisUrl.parse(f"{node_scheme}://{at}node/?{query}".rstrip("?"))
        options = dict(node.options)
        for name in ("host", "port", "db"):
            options.pop(name, None)
        return cls(addresses, options, tls=node_scheme == "rediss")

    def client_options(self, **options_of_caller: Any) -> dict[str, Any]:
        """Return the options of a client, for threads or a loop. Those of the URL win."""
        options = {**options_of_caller, **self.options, "decode_responses": True}
        # `retry_on_timeout` asks for a retry after a timeout, which both clients make in any case.
        # redis-py's client for a loop does not take this option.
        options.pop("retry_on_timeout", None)
        if self.tls:
            options["ssl"] = True
        return options

    @property
    def node_url(self) -> RedisUrl:
        """Return the URL of one of the nodes in the cluster's URL, chosen by chance."""
        host, port = random.choice(self.addresses)  # noqa: S311  # no secret
        scheme = "rediss" if self.tls else "redis"
        return RedisUrl(scheme, {**self.options, "host": host, "port": port})

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in sorted(self.addresses))


class ClusterClient(RedisCluster):
    """A client for threads. Lives as long as its process.

    Each command may be sent twice, so it must be safe to repeat, as ours are.

    It connects with its first command, as the client of one server does: so a process may start
    before its cluster is there, while redis-py's own `__init__` raises when no node answers. Raises
    redis.RedisError, also where redis-py raises an exception of another kind.

    A `patient` client waits until a failover is over. `answer_seconds` is how long it waits for one
    answer, unless the URL says how long.
    """

    #: Whether redis-py's `__init__` has run.
    _is_connected = False
    #: The thread that connects, 0 for none. redis-py sends commands through this object meanwhile,
    #: which must not wait for the connection.
    _connecting_thread = 0

    def __init__(self, url: ClusterUrl, *, patient: bool, answer_seconds: float) -> None:
        self.url = url
        self._patient = patient
        # redis-py's own `__init__` reads the table of slots, so it runs with the first command.
        options = url.client_options(
            # After an error redis-py reads the table of slots anew, and tries once more at once.
            retry=Retry(NoBackoff(), 1),
            socket_timeout=answer_seconds,
            socket_connect_timeout=min(THREAD_CONNECT_SECONDS, answer_seconds),
        )
        nodes = [ClusterNode(host, port) for host, port in url.addresses]
        self._connect = partial(super().__init__, startup_nodes=nodes, **options)
        self._connect_lock = threading.Lock()
        #: How many attempts to connect have failed.
        self._failures = 0
        self.connections = ClusterConnections(self)

    def __getattr__(self, name: str) -> Any:
        """Connect, and return an attribute that redis-py's `__init__` sets.

        Python calls this only for a missing attribute. Raises redis.RedisError.
        """
        # Python itself looks for special methods, such as `__setstate__` in a copy that has no
        # attributes yet. redis-py's `__init__` sets none of them.
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._is_connected or self._connecting_thread == threading.get_ident():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._persist(self.ensure_connected)
        return getattr(self, name)

    def ensure_connected(self) -> None:
        """Read the table of slots if that was not done yet.

        Raises redis.RedisError while no node answers.
        """
        if self._is_connected or self._connecting_thread == threading.get_ident():
            return
        failures_before = self._failures
        with self._connect_lock:
            if self._is_connected:
                return
            # Threads that waited for the attempt of another one share its failure. Each node may
            # take a second to time out, and so would each thread after the other.
            if self._failures != failures_before:
                raise ClusterAway("no node of the cluster answered another caller")
            self._connecting_thread = threading.get_ident()
            try:
                with_redis_errors(self._connect)
            except RedisConnectionError:
                # Also ClusterAway, in which redis-py's errors of a timeout or of a login end here.
                self._failures += 1
                raise
            finally:
                self._connecting_thread = 0
            self._is_connected = True

    def node_name(self, key: str) -> str:
        """Return the name of the master that has a key; "" while that is not known."""
        if not self._is_connected:
            return ""
        try:
            return str(self.nodes_manager.get_node_from_slot(key_slot(key.encode())).name)
        except RedisClusterException:
            return ""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the node that has its key. Raises redis.RedisError."""

        def send() -> Any:
            self.ensure_connected()
            return super(ClusterClient, self).execute_command(*args, **options)  # type: ignore[no-untyped-call]

        return self._persist(send)

    def pipeline(self, transaction: bool | None = None, shard_hint: Any = None) -> Any:
        """Return a pipeline. Raises redis.RedisError, as its `execute` does.

        Its commands are not sent again after an error, even by a patient client: those who use one
        try again themselves.
        """
        # A pipeline copies what redis-py's `__init__` sets.
        self.ensure_connected()
        pipe = super().pipeline(transaction=transaction, shard_hint=shard_hint)  # type: ignore[no-untyped-call]
        execute = pipe.execute

        def execute_with_redis_errors(*args: Any, **options: Any) -> Any:
            return with_redis_errors(partial(execute, *args, **options))

        pipe.execute = execute_with_redis_errors
        return pipe

    def close(self) -> None:
        """Close all connections."""
        if self._is_connected:
            super().close()

    def ask_durably(self, command: Sequence[Any], replicas: int) -> Any:
        """Send a command, and return the answer when this many replicas have what it wrote.

        They are replicas of the master that has its key. Raises redis.RedisError. After
        NotReplicated the command is not sent again, even by a patient client: the caller decides.
        """
        return self._persist(partial(self._ask_with_wait, command, replicas))

    def _ask_with_wait(self, command: Sequence[Any], replicas: int) -> Any:
        """Send a command and WAIT over one connection, to the master of the slot.

        WAIT is about what its own connection has written, so redis-py cannot choose the connection
        of each. Raises redis-py's errors as they are.
        """
        self.ensure_connected()
        key = _key_of(command)
        try:
            return self._ask_master(key, command, replicas)
        except _ELSEWHERE:
            # By another command, redis-py finds the master that has the slot now.
            super().execute_command("EXISTS", key)  # type: ignore[no-untyped-call]
            return self._ask_master(key, command, replicas)

    def _ask_master(self, key: str, command: Sequence[Any], replicas: int) -> Any:
        """Send a command and WAIT to the master that has a key, by the known table of slots."""
        # redis-py accepts only a table that has a node for each slot.
        node = self.nodes_manager.get_node_from_slot(key_slot(key.encode()))
        # All threads share the connections to a node. Each sets the same number of replicas: that
        # of the settings. `halted` has been checked before, by ClusterConnections.
        connections = Connections.of(self.get_redis_connection(node))
        connections.replicas = replicas
        return connections.ask(*command, durable=True)

    def ask_all(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """Send commands to their nodes, all to one node at once. Blocks.

        Return the answers in the order of the commands; error replies are among them.
        """
        with self.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = pipe.execute(raise_on_error=False)
            return answers

    def group_by_node(self, keys: Mapping[int, str]) -> list[list[int]]:
        """Return the numbers of shards in groups: one group for each master that has some of them.

        `keys`: for the number of each shard, one of its keys. Raises redis.RedisError.
        """
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, key in keys.items():
            slot = key_slot(key.encode())
            node = with_redis_errors(partial(self.nodes_manager.get_node_from_slot, slot))
            groups[node.name].append(number)
        return list(groups.values())

    def masters(self) -> list[Redis]:
        """Return a client of each master alone. Raises redis.RedisError."""
        return [self.get_redis_connection(node) for node in self.get_primaries()]  # type: ignore[no-untyped-call]

    def nodes(self) -> list[Redis]:
        """Return a client of each node alone, with the replicas. Raises redis.RedisError."""
        return [self.get_redis_connection(node) for node in self.get_nodes()]  # type: ignore[no-untyped-call]

    def _persist(self, send: Callable[[], Any]) -> Any:
        """Send a command; if this client is patient, send it again while the cluster is away.

        Return the answer.
        """
        retries = Retries()
        while True:
            try:
                return with_redis_errors(send)
            except _RETRIED as exc:
                if not self._patient:
                    raise
                pause = retries.pause_after(exc)
                if pause is None:
                    raise
                time.sleep(pause)


def _key_of(command: Sequence[Any]) -> str:
    """Return the key that a command is about.

    The commands of Sayso are in capital letters, and their arguments are text. Each of its scripts
    has a key, and every other command that comes here has one as its first argument.
    """
    if command[0] in _SCRIPT_COMMANDS:
        return str(command[3])
    return str(command[1])


def with_redis_errors(send: Callable[[], Any]) -> Any:
    """Send to a cluster, and return the answer.

    Raises redis.RedisError, also for redis-py's errors of other kinds.
    """
    try:
        return send()
    except Exception as exc:
        _raise_as_away(exc)
        raise


def _raise_as_away(exc: Exception) -> None:
    """Raise ClusterAway for a cluster that cannot serve a key, NotWritable for a replica.

    Callers treat both like a server that does not answer: they wait and try again. Any other error
    raises nothing.
    """
    if isinstance(exc, ResponseError) and takes_no_writes(exc):
        raise NotWritable(str(exc)) from exc
    if isinstance(exc, _CANNOT_SERVE):
        raise ClusterAway(f"the cluster cannot serve this key now: {exc}") from exc


class ClusterConnections(Connections):
    """Sends commands to the nodes of a cluster, with a circuit breaker for each node.

    One per ClusterClient. `ask` and `ask_async` are those of Connections: they check `halted`, and
    give an event loop's commands to its `pipeline`, an AsyncCluster. All others come to `_ask`.
    """

    def __init__(self, client: ClusterClient) -> None:
        # Not `super().__init__`, which takes one pool: here each node has its own. The next four
        # are documented there, and hold for the whole cluster. The wiring of a process sets
        # `pipeline`, an AsyncCluster, and `replicas`; the DataLossGuard sets the other two.
        self.pipeline = None
        self.replicas = 0
        self.halted = threading.Event()
        self.watermarks = {}
        self._cluster = client
        #: By the name of the node; None: calls wait as long as it takes.
        self._breakers: defaultdict[str, RedisCircuitBreaker] | None = None

    def break_circuit(self, *, slow_seconds: float, pause_seconds: float = 0.0) -> None:
        """From now on calls of threads to a node fail at once while it does not answer."""
        create = partial(
            RedisCircuitBreaker, slow_seconds=slow_seconds, pause_seconds=pause_seconds
        )
        self._breakers = defaultdict(create)

    def _ask(self, command: Command, replicas: int) -> Any:
        """Send a command of a thread, and return the answer when this many replicas have it."""
        with self._attempt(command):
            if replicas:
                return self._cluster.ask_durably(command, replicas)
            return self._cluster.execute_command(*command)

    def _attempt(self, command: Command) -> AbstractContextManager[None]:
        """Return the block of one call to the node that has the key of a command."""
        # PING, for example, has none.
        has_key = len(command) > 1
        if self._breakers is None or not has_key:
            return contextlib.nullcontext()
        # Without a known master the whole cluster is one server, with the name "":
        # one caller at a time asks for its table.
        return self._breakers[self._cluster.node_name(_key_of(command))].attempt()


class AsyncCluster:
    """Sends the commands of one event loop to the nodes of a cluster, and waits through a failover.

    It belongs to the loop that uses it first, until that loop is closed.
    """

    def __init__(self, url: ClusterUrl, *, new_retries: Callable[[], Retries] = Retries) -> None:
        self._url = url
        self._new_retries = new_retries
        self._owner_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: AsyncRedisCluster | None = None

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this loop may use it.

        The loops of other threads and of forked processes may not.
        """
        with self._owner_lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = loop
                self._client = None
            return self._loop is loop

    async def execute(self, command: Command, replicas: int = 0) -> Any:
        """Send a command to the node that has its key, and return the answer.

        It waits without a limit until this many replicas have what it wrote: a turn that got an
        error would not know whether its write survives. (Threads get NotReplicated: a webhook is
        sent again.) Raises redis.RedisError.
        """
        retries = self._new_retries()
        while True:
            try:
                return await self._send(command, replicas)
            except NotReplicated as exc:
                # The WAIT has taken REPLICA_MS, so there is no further pause. The command writes
                # again when it is repeated, since each script counts its calls in Redis: so the
                # next WAIT is about a write of its own connection, whichever that is.
                log_not_replicated(exc)
                retries = self._new_retries()
            except _RETRIED as exc:
                pause = retries.pause_after(exc)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def _send(self, command: Command, replicas: int) -> Any:
        """Send a command once, and return the answer. Raises redis.RedisError."""
        if self._client is None:
            self._client = self._new_client()
        try:
            if replicas:
                return await _ask_with_wait(self._client, command, replicas)
            return await self._client.execute_command(*command)
        except Exception as exc:
            _raise_as_away(exc)
            # After an error redis-py closes idle connections, also one that another task has just
            # taken (AttributeError of None; uvloop raises RuntimeError), and it changes its table
            # of nodes while another task goes through it (RuntimeError). There is no narrower class
            # for these errors.
            was_closed = isinstance(exc, AttributeError) and exc.obj is None
            if was_closed or isinstance(exc, RuntimeError):
                raise RedisConnectionError("the connection was closed before it was used") from exc
            raise

    def _new_client(self) -> AsyncRedisCluster:
        """Return redis-py's client. It connects with its first command."""
        options = self._url.client_options(
            # As in ClusterClient.
            retry=AsyncRetry(NoBackoff(), 1),
            max_connections=MAX_CONNECTIONS,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
        )
        nodes = [AsyncClusterNode(host, port) for host, port in self._url.addresses]
        return AsyncRedisCluster(startup_nodes=nodes, **options)

    async def close(self) -> None:
        """Close all connections."""
        if self._client:
            await self._client.aclose()


async def _ask_with_wait(client: AsyncRedisCluster, command: tuple[Any, ...], replicas: int) -> Any:
    """Send a command and WAIT over one connection, as `ClusterClient._ask_with_wait` does.

    Raises redis-py's errors as they are, but RedisConnectionError for one of _ELSEWHERE.
    """
    await client.initialize()
    key = _key_of(command)
    node = client.nodes_manager.get_node_from_slot(key_slot(key.encode()))
    batch = [PipelineCommand(0, *command), PipelineCommand(1, "WAIT", replicas, REPLICA_MS)]
    try:
        await node.execute_pipeline(batch)
        for each in batch:
            if isinstance(each.result, Exception):
                raise each.result
    except _ELSEWHERE as exc:
        # By another command, redis-py finds the master that has the slot now. The caller
        # sends again.
        await client.execute_command("EXISTS", key)
        raise RedisConnectionError(
            f"the node of this key did not answer, or has it no more: {exc}"
        ) from exc
    confirmed = cast("int", batch[1].result)
    if confirmed < replicas:
        raise NotReplicated(confirmed, replicas)
    return batch[0].result
