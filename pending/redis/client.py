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
from collections.abc import Callable
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

from sayso.pending.redis.ferry import aboard, wait_for
from sayso.pending.redis.pipeline import AutoPipeline

V = TypeVar("V")


class CircuitOpen(RedisTimeoutError):
    """Raised at once where a server did not answer: somebody else finds out whether it does again."""


class RedisCircuitBreaker:
    """What callers ask a server through; lives as long as the way there.

    A failure that took `slow_seconds` or longer closes it; a quick one holds nobody up, and so a server that came back
    is noticed at once. Where it is closed one caller at a time asks, `pause_seconds` after the last. Any answer opens
    it, also a refusal.
    """

    def __init__(
        self, *, slow_seconds: float = 0.0, pause_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slow_seconds, self._pause_seconds = slow_seconds, pause_seconds
        self._clock = clock
        #: None: it is open. While somebody finds out, nobody knows how long it stays closed.
        self._closed_until: float | None = None
        self._lock = threading.Lock()

    def ask(self, question: Callable[[], V]) -> V:
        """What the question comes to. Raises NotAsked, and what the question raises."""
        began = self._enter()
        closed_until: float | None = began  # whatever ends it without an answer: the next one finds out
        try:
            answer = question()
        except ResponseError:
            closed_until = None
            raise
        except RedisError:
            now = self._clock()
            closed_until = now + self._pause_seconds if now - began >= self._slow_seconds else None
            raise
        else:
            closed_until = None
            return answer
        finally:
            self._closed_until = closed_until

    def _enter(self) -> float:
        """Let somebody ask; where it is closed, one of all. Returns when he began."""
        with self._lock:
            now = self._clock()
            if self._closed_until is not None:
                if now < self._closed_until:
                    raise CircuitOpen("it did not answer a moment ago")
                self._closed_until = inf
            return now


class Connections:
    """Open connections of one pool, at most half of it, as many as there are calls at once. They live as long as it.

    A client takes a connection from its pool for each command, looks whether its socket is still good, and keeps
    count for its metrics: about as much work as a script. Here a connection that has gone stale shows when it is
    used. What is sent must bear being sent twice, as our scripts do.

    Calls from an event loop (`reach`) go over the `pipeline`, if there is one for that loop; else each waits in a
    thread.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.pipeline: AutoPipeline | None = None
        #: Called before each command: raises when none may be asked.
        self.before: Callable[[], None] = _nothing
        #: What threads ask through; none where they wait as long as it takes.
        self.breather: RedisCircuitBreaker | None = None
        self._pool = pool
        self._most = pool.max_connections // 2
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()

    @classmethod
    def of(cls, client: Redis) -> Connections:
        """The connections of a client, the same ones for everybody who asks: its pool is one, too."""
        pool = client.connection_pool
        shared: Connections = vars(pool).setdefault("_sayso_connections", cls(pool))
        return shared

    def ask(self, *command: str | int | float) -> Any:
        """The server's answer to a command, with the client's own patience. Raises redis.RedisError."""
        self.before()
        packed = _packed(command)
        if not aboard():
            return self._ask(packed)
        if self.pipeline and self.pipeline.serves(asyncio.get_running_loop()):
            return wait_for(self.pipeline.execute(packed))
        return wait_for(asyncio.to_thread(self._ask, packed))

    def _ask(self, packed: bytes) -> Any:
        return self.breather.ask(lambda: self._answer(packed)) if self.breather else self._answer(packed)

    def _answer(self, packed: bytes) -> Any:
        connection = self._take()
        try:
            answer = connection.retry.call_with_retry(lambda: _asked(connection, packed), lambda _: _close(connection))
        except ResponseError:  # an answer, read to its end
            self._keep(connection)
            raise
        except BaseException as exc:  # nobody may read the rest of this answer as his own
            self._drop(connection)
            if isinstance(exc, RedisTimeoutError):
                self._drop_idle()
            raise
        self._keep(connection)
        return answer

    def _take(self) -> Connection:
        if self._pid != os.getpid():  # forked: these are the parent's
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._pool.get_connection()

    def _drop(self, connection: Connection) -> None:
        _close(connection)
        self._pool.release(connection)

    def _drop_idle(self) -> None:
        """Where one got no answer the others may be as dead: each would cost somebody all his patience."""
        with contextlib.suppress(IndexError):
            while True:
                self._drop(self._idle.pop())

    def _keep(self, connection: Connection) -> None:
        if len(self._idle) < self._most and not connection.should_reconnect():  # type: ignore[no-untyped-call]
            self._idle.append(connection)
        else:
            self._pool.release(connection)


def _nothing() -> None:
    """Nothing speaks against it."""


def _packed(command: tuple[str | int | float, ...]) -> bytes:
    try:
        packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub names a tuple of one
    except TypeError as exc:
        raise DataError(f"{command[0]}: {exc}") from exc
    return packed


def _asked(connection: Connection, packed: bytes) -> Any:
    if connection.is_connected:
        try:
            return _exchange(connection, packed)
        except RedisConnectionError:  # stale: no try of the client's is spent on that
            _close(connection)
    connection.connect_check_health(check_health=False, retry_socket_connect=False)
    return _exchange(connection, packed)


def _exchange(connection: Connection, packed: bytes) -> Any:
    connection.send_packed_command([packed])  # type: ignore[no-untyped-call]  # redis-py's own
    return connection.read_response()


def _close(connection: Connection) -> None:
    connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's own


#: Seconds for which what Redis said is carried on by the monotonic clock, and after which one is asked again that did
#: not answer.
TRUSTED_SECONDS, AGAIN_SECONDS = 60.0, 1.0


class SharedClock:
    """Lives as long as its process; called from any thread, it returns seconds since 1970.

    While Redis does not answer it is carried on; until Redis has answered once, it is the machine's own clock. An event
    loop never waits for it: what it is asked there, a thread asks Redis, for the next time.
    """

    def __init__(
        self, client: Redis, *, own: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._own, self._monotonic = client, own, monotonic
        self._ahead: float | None = None
        self._ask_at = float("-inf")

    def __call__(self) -> float:
        """Now, by Redis's clock."""
        if self._monotonic() >= self._ask_at:
            self._ask_at = self._monotonic() + AGAIN_SECONDS
            if _on_a_loop():
                threading.Thread(target=self._ask, name="shared-clock", daemon=True).start()
            else:
                self._ask()
        return self._own() if self._ahead is None else self._monotonic() + self._ahead

    def _ask(self) -> None:
        with contextlib.suppress(RedisError):
            seconds, microseconds = self._client.time()
            self._ahead = seconds + microseconds / 1e6 - self._monotonic()
            self._ask_at = self._monotonic() + TRUSTED_SECONDS


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


#: What every key of ours begins with.
PREFIX = "sayso:"


#: Seconds a web process waits for an answer: a disk that is slow takes a second and more for an fsync now and then.
HURRY_SECONDS = 2.0


#: The users of a Redis of your own, for its `aclfile`.
ACL_FILE = Path(__file__).with_name("redis.acl")


_APPENDONLY_OFF = "appendonly is off: a restart of this Redis loses waiting messages. Set appendonly yes"


class RedisUnfit(Exception):
    """Raised at start when the Redis given could lose or evict what we must keep."""


def connect(url: str, *, patient: bool = False, answer_seconds: float | None = None) -> Redis:
    """A client for our own scripts.

    One that is `patient` rides out a restart of Redis. Any other fails at once where nobody listens, tries once more
    where a connection broke, and gives up after `answer_seconds`, 2 unless given, where nothing is answered.
    """
    if patient:
        retry = Retry(ExponentialWithJitterBackoff(base=0.05, cap=1.0), 8)
    else:  # no second wait for one that did not answer
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


def hurry(client: Redis, *, answer_seconds: float = HURRY_SECONDS) -> None:
    """Have a web process's client, before it is used, hold up few of its threads where Redis hangs.

    Whoever asks gives up after `answer_seconds`; then scripts fail at once, but for one caller at a time.
    """
    pool = client.connection_pool
    pool.connection_kwargs |= {"socket_connect_timeout": answer_seconds, "socket_timeout": answer_seconds}
    Connections.of(client).breather = RedisCircuitBreaker(slow_seconds=answer_seconds / 2)


def check_fit(client: Redis) -> list[str]:
    """Refuse a Redis that evicts keys; return warnings about one that may lose acknowledged writes.

    Raises RedisUnfit. A server that forbids CONFIG is judged by its INFO.
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
    """Judge a server by its INFO where CONFIG is forbidden. Raises RedisUnfit."""
    try:
        policy = str(client.info("memory").get("maxmemory_policy", ""))
        appends = bool(client.info("persistence").get("aof_enabled", 1))
    except RedisError as exc:
        return [f"cannot read CONFIG or INFO of this Redis ({type(exc).__name__}): make sure it never evicts keys"]
    _check_policy(policy or "noeviction")
    if not policy:
        return ["neither CONFIG nor INFO of this Redis tells its maxmemory-policy: make sure it never evicts keys"]
    return [] if appends else [_APPENDONLY_OFF]


def _check_policy(policy: str) -> None:
    if policy != "noeviction":
        raise RedisUnfit(
            f"maxmemory-policy is {policy!r}: waiting messages and confirmations would vanish. Set it to noeviction"
        )


def check_writable(client: Redis, *, prefix: str = PREFIX) -> None:
    """Send a write that changes nothing. Raises redis.RedisError: a replica, a full memory or disk, or it is away."""
    client.set(f"{prefix}writable", "", xx=True)


def check_guarded(client: Redis) -> None:
    """Refuse a Redis of another machine that serves whoever asks, without a login. Raises RedisUnfit."""
    given = client.connection_pool.connection_kwargs
    host, port = given.get("host"), given.get("port", 6379)
    if not host or _is_this_machine(host, port):
        return
    secure = {name: value for name, value in given.items() if name in ("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs")}
    is_tls = issubclass(client.connection_pool.connection_class, SSLConnection)
    with Redis(host=host, port=port, ssl=is_tls, socket_timeout=2, socket_connect_timeout=2, **secure) as stranger:
        try:
            stranger.ping()
        except RedisError:  # it wants a login, or a certificate
            return
    raise RedisUnfit(
        f"the Redis at {host}:{port} is on another machine and needs no password: whoever reaches it reads messages. "
        "Give it users (docs/reference/redis.md), or write allow_open_redis: true where nobody else reaches it"
    )


def _is_this_machine(host: str, port: int) -> bool:
    """Whether a host name stands for addresses of this machine alone; one without an address is asked later."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
