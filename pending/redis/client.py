"""Connections to Redis, the circuit breaker in front of them, and the server's time."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, TypeVar, cast

from hiredis import pack_command
from redis import ConnectionPool, Redis, SSLConnection
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from sayso.pending.concurrency import call_in_thread, has_no_loop, is_in_loop
from sayso.pending.redis.pipeline import AutoPipeline

V = TypeVar("V")


class CircuitOpen(RedisTimeoutError):
    """Raised at once while a server does not answer. Another caller tests whether it answers again."""


class RedisCircuitBreaker:
    """A circuit breaker for the calls to one server. Lives as long as the connections to it.

    A failure that took at least `slow_seconds` opens the circuit. A quicker one does not: it delays no caller, and the
    next call notices at once when the server is back. While the circuit is open, one caller at a time tries,
    `pause_seconds` after the last. Any answer closes it, including an error reply.
    """

    def __init__(
        self, *, slow_seconds: float = 0.0, pause_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slow_seconds, self._pause_seconds = slow_seconds, pause_seconds
        self._clock = clock
        #: None: closed. Infinite while one caller tries.
        self._open_until: float | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Make one call to the server inside of `with`. Raises CircuitOpen at its beginning."""
        began = self._enter()
        open_until: float | None = began  # after an error of another kind the next caller tries
        try:
            yield
            open_until = None
        except ResponseError:
            open_until = None
            raise
        except RedisError:
            now = self._clock()
            open_until = now + self._pause_seconds if now - began >= self._slow_seconds else None
            raise
        finally:
            self._open_until = open_until

    def call(self, function: Callable[[], V]) -> V:
        """Call the function and return its result. Raises CircuitOpen, and whatever the function raises."""
        with self.attempt():
            return function()

    def _enter(self) -> float:
        """Admit a caller, while the circuit is open only one. Return the time."""
        with self._lock:
            now = self._clock()
            if self._open_until is not None:
                if now < self._open_until:
                    raise CircuitOpen("it did not answer a moment ago")
                self._open_until = inf
            return now


class Connections:
    """Sends commands over open connections of one pool, at most half of it. Lives as long as the pool.

    redis-py's client takes a connection from its pool for each command, checks its socket and counts it for metrics,
    which is about as much work as a script. Here a stale connection shows when it is used. Each command may be sent
    twice, so it must be safe to repeat, as our scripts are.

    `ask` blocks. `ask_async` sends over the `pipeline` of the running event loop if there is one; otherwise it waits in
    a thread.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pipeline: AutoPipeline | None = None
        #: Called before each command: raises when none may be asked.
        self.before: Callable[[], None] = _nothing
        #: The circuit breaker for calls of threads; None: they wait as long as it takes.
        self.circuit_breaker: RedisCircuitBreaker | None = None
        self._pool = pool
        self._most = pool.max_connections // 2
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()

    @classmethod
    def of(cls, client: Redis) -> Connections:
        """Return the connections of a client. All callers share them, as they share the client's pool."""
        pool = client.connection_pool
        shared: Connections = vars(pool).setdefault("_sayso_connections", cls(pool))
        return shared

    def ask(self, *command: str | bytes | int | float) -> Any:
        """Send a command and return the answer, with the client's own timeouts and retries. Raises redis.RedisError."""
        self.before()
        return self._ask(_packed(command))

    async def ask_async(self, *command: str | bytes | int | float) -> Any:
        """Send a command without blocking the event loop, and return the answer. Raises redis.RedisError.

        Under `run_without_loop` it blocks.
        """
        if has_no_loop.get():
            return self.ask(*command)
        self.before()
        if self.pipeline and self.pipeline.serves(asyncio.get_running_loop()):
            return await self.pipeline.execute(_packed(command))
        return await call_in_thread(self._ask, _packed(command))

    def _ask(self, packed: bytes) -> Any:
        breaker = self.circuit_breaker
        return breaker.call(lambda: self._answer(packed)) if breaker else self._answer(packed)

    def _answer(self, packed: bytes) -> Any:
        connection = self._take()
        try:
            answer = connection.retry.call_with_retry(lambda: _asked(connection, packed), lambda _: _close(connection))
        except ResponseError:  # an error reply, read completely
            self._keep(connection)
            raise
        except BaseException as exc:  # another caller must not read the rest of this answer
            self._drop(connection)
            if isinstance(exc, RedisTimeoutError):
                self._drop_idle()
            raise
        self._keep(connection)
        return answer

    def _take(self) -> Connection:
        if self._pid != os.getpid():  # in a forked process these belong to the parent
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def _drop(self, connection: Connection) -> None:
        _close(connection)
        self._pool.release(connection)

    def _drop_idle(self) -> None:
        """Drop the other idle connections: after a timeout they may be dead too, and each would cost another."""
        with contextlib.suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < self._most and not connection.should_reconnect():  # type: ignore[no-untyped-call]
            self._idle.append(connection)
        else:
            self._pool.release(connection)


def _nothing() -> None:
    """Allow every command."""


def _packed(command: tuple[str | bytes | int | float, ...]) -> bytes:
    try:
        packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub expects a tuple of one
    except TypeError as exc:
        raise DataError(f"{command[0]!r}: {exc}") from exc
    return packed


def _asked(connection: Connection, packed: bytes) -> Any:
    if connection.is_connected:
        try:
            return _exchange(connection, packed)
        except RedisConnectionError:  # stale: this does not use up a retry
            _close(connection)
    connection.connect_check_health(check_health=False, retry_socket_connect=False)
    return _exchange(connection, packed)


def _exchange(connection: Connection, packed: bytes) -> Any:
    connection.send_packed_command([packed])  # type: ignore[no-untyped-call]  # redis-py's own
    return connection.read_response()


def _close(connection: Connection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own


#: Seconds for which the monotonic clock carries on the time that Redis gave.
TRUSTED_SECONDS = 60.0
#: Seconds after which a Redis that did not answer is asked again.
AGAIN_SECONDS = 1.0


class SharedClock:
    """The time of the Redis server in Unix seconds, for any thread. Lives as long as its process.

    While Redis does not answer, the monotonic clock carries the time on; until the first answer it is the machine's own
    clock. An event loop never waits: there a thread asks Redis, and the next call has the answer.
    """

    def __init__(
        self, client: Redis, *, own: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._own, self._monotonic = client, own, monotonic
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
        return self._own() if self._ahead is None else self._monotonic() + self._ahead

    def _ask(self) -> None:
        with contextlib.suppress(RedisError):
            seconds, microseconds = self._client.time()
            self._ahead = seconds + microseconds / 1e6 - self._monotonic()
            self._ask_at = self._monotonic() + TRUSTED_SECONDS


#: The prefix of all our keys.
PREFIX = "sayso:"


#: Seconds a web process waits for an answer: a slow disk now and then takes more than a second for an fsync.
WEB_ANSWER_SECONDS = 2.0


#: An `aclfile` with the users that a Redis of your own needs.
ACL_FILE = Path(__file__).with_name("redis.acl")


_APPENDONLY_OFF = "appendonly is off: a restart of this Redis loses waiting messages. Set appendonly yes"


class RedisUnfit(Exception):
    """Raised at start when the Redis could lose or evict data that must be kept."""


def connect(url: str, *, patient: bool = False, answer_seconds: float | None = None) -> Redis:
    """Return a client for our scripts.

    With `patient` it waits through a restart of Redis. Otherwise it fails at once when nothing listens, retries a
    broken connection once, and gives up after `answer_seconds`, 2 by default, without an answer.
    """
    if patient:
        retry = Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), 8)
    else:  # does not wait a second time after a timeout
        retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_connect_timeout=1,
        socket_timeout=answer_seconds or (5 if patient else 2),
        retry=retry,
        retry_on_error=[RedisConnectionError],
        max_connections=256,
    )


def set_web_timeouts(client: Redis, *, answer_seconds: float = WEB_ANSWER_SECONDS) -> None:
    """Make the unused client of a web process block few threads while Redis hangs.

    A call gives up after `answer_seconds`. From then on calls fail at once, except for one caller at a time that tries.
    """
    pool = client.connection_pool
    pool.connection_kwargs |= {"socket_connect_timeout": answer_seconds, "socket_timeout": answer_seconds}
    Connections.of(client).circuit_breaker = RedisCircuitBreaker(slow_seconds=answer_seconds / 2)


def check_fit(client: Redis) -> list[str]:
    """Refuse a Redis that evicts keys; return warnings about one that may lose acknowledged writes.

    Raises RedisUnfit. INFO is used where the server forbids CONFIG.
    """
    try:
        settings = cast("dict[str, str]", client.config_get("maxmemory-policy", "appendonly", "appendfsync"))
    except ResponseError:
        return _without_config(client)
    _check_policy(settings.get("maxmemory-policy", "noeviction"))
    if settings.get("appendonly") != "yes":
        return [_APPENDONLY_OFF]
    if settings.get("appendfsync") != "always":
        return ["appendfsync is not always: a crash of this Redis may lose about two seconds of accepted messages"]
    return []


def _without_config(client: Redis) -> list[str]:
    """Check a server that forbids CONFIG by its INFO. Raises RedisUnfit."""
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
        appends = bool(client.info("persistence").get("aof_enabled", 1))
    except RedisError as exc:
        return [f"cannot read CONFIG or INFO of this Redis ({type(exc).__name__}): make sure it never evicts keys"]
    _check_policy(policy or "noeviction")
    if not policy:
        return ["neither CONFIG nor INFO of this Redis shows its maxmemory-policy: make sure it never evicts keys"]
    return [] if appends else [_APPENDONLY_OFF]


def _check_policy(policy: str) -> None:
    if policy != "noeviction":
        raise RedisUnfit(
            f"maxmemory-policy is {policy!r}: waiting messages and confirmations would vanish. Set it to noeviction"
        )


def check_writable(client: Redis, *, prefix: str = PREFIX) -> None:
    """Send a write that changes nothing.

    Raises redis.RedisError if this is a replica, memory or disk is full, or the server is away.
    """
    client.set(f"{prefix}writable", "", xx=True)


def check_guarded(client: Redis) -> None:
    """Refuse a Redis on another machine that serves clients without a login. Raises RedisUnfit."""
    given = client.connection_pool.connection_kwargs
    host, port = given.get("host"), given.get("port", 6379)
    if not host or _is_this_machine(host, port):
        return
    secure = {name: value for name, value in given.items() if name in ("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs")}
    is_tls = issubclass(client.connection_pool.connection_class, SSLConnection)
    with Redis(host=host, port=port, ssl=is_tls, socket_timeout=2, socket_connect_timeout=2, **secure) as anonymous:
        try:
            anonymous.ping()
        except RedisError:  # it requires a login or a certificate
            return
    raise RedisUnfit(
        f"the Redis at {host}:{port} is on another machine and needs no password: anybody can read messages there. "
        "Give it users (docs/reference/redis.md), or write allow_open_redis: true if nobody else can reach it"
    )


def _is_this_machine(host: str, port: int) -> bool:
    """Return whether all addresses of a host are this machine's. A host that cannot be resolved counts: the login check
    comes later.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in addresses)
