"""Connections: sends commands to Redis from threads and event loops, behind a circuit breaker.

Threads take a connection of redis-py's pool. In an event loop the commands that wait travel in one
packet over one connection (`AutoPipeline`), while `redis.asyncio.Redis` takes a connection for
each. Measured with redis-py 8.1: with 16 commands at once each costs 11 microseconds of processor
time instead of 40, and one alone 46 instead of 60. With 24 chats at once (web, worker and a Redis
that syncs each write, rounds alternated), a worker without it needed 14 % more processor time for a
turn and answered 5 % fewer turns a second. `valkey-glide` needs 73 microseconds and cannot check a
new connection before it is used (`sayso.workers.data_loss.guard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, Protocol

from hiredis import pack_command
from redis import Connection, ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, ConnectCallbackT
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sayso.infra.concurrency import call_in_thread, has_no_loop
from sayso.infra.redis.retries import Retries
from sayso.infra.redis.url import RedisUrl

log = logging.getLogger(__name__)

#: Seconds without an answer after which a connection counts as lost.
ANSWER_SECONDS = 5.0
#: Seconds that opening a connection may take, with its checks. A process that is stopped, but not
#: ended, still accepts connections and says nothing.
CONNECT_SECONDS = 2.0
#: Milliseconds that replicas get to confirm a write: less than a web process waits for an answer.
REPLICA_MS = 1000
#: A command of Redis: its name and its arguments.
Command = tuple[str | bytes | int | float, ...]
#: What operators are told while a server is halted.
CURE = (
    "halted: this Redis has lost writes that it had acknowledged (an old file, a replica that lagged, or it was "
    "emptied): nothing is accepted or sent until you run `sayso redis resume`"
)


class Halted(RedisError):
    """Raised when a server has lost acknowledged writes and waits for its operator.

    Nothing was done.
    """

    def __init__(self) -> None:
        super().__init__(CURE)


class NotReplicated(RedisError):
    """Raised when a write is on fewer replicas than asked for.

    It may survive a failover: send it again.
    """

    def __init__(self, confirmed: int, needed: int) -> None:
        super().__init__(
            f"written, and confirmed by {confirmed} of {needed} replicas within {REPLICA_MS} ms"
        )


def log_not_replicated(error: NotReplicated) -> None:
    """Log that a write waits for replicas, once for each time that it is sent."""
    log.warning("redis.not_replicated", extra={"reason": str(error)})


class CircuitOpen(RedisTimeoutError):
    """Raised at once while a server does not answer.

    Another caller tests whether it answers again.
    """


class RedisCircuitBreaker:
    """A circuit breaker for the calls to one server. Lives as long as the connections to it.

    A failure that took at least `slow_seconds` opens the circuit. A quicker one does not: it delays
    no caller, and the next call notices at once when the server is back. While the circuit is open,
    one caller at a time tries, `pause_seconds` after the last. Any answer closes it, including an
    error reply. `clock` returns seconds that never go back.
    """

    def __init__(
        self,
        *,
        slow_seconds: float = 0.0,
        pause_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slow_seconds = slow_seconds
        self._pause_seconds = pause_seconds
        self._clock = clock
        #: Until when callers fail at once; None while the circuit is closed, and infinite while one
        #: caller tries.
        self._open_until: float | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Make one call to the server inside of `with`. Raises CircuitOpen at its beginning."""
        started_at = self._enter()
        # After an error of another kind nothing is known of the server: the next caller tries.
        open_until: float | None = started_at
        try:
            yield
            open_until = None
        except ResponseError:
            open_until = None
            raise
        except RedisError:
            open_until = None
            now = self._clock()
            if now - started_at >= self._slow_seconds:
                open_until = now + self._pause_seconds
            raise
        finally:
            self._open_until = open_until

    def _enter(self) -> float:
        """Admit a caller, while the circuit is open only one. Return the time."""
        with self._lock:
            now = self._clock()
            if self._open_until is not None:
                if now < self._open_until:
                    raise CircuitOpen("it did not answer a moment ago")
                self._open_until = inf
            return now


class LoopClient(Protocol):
    """Sends commands for one event loop: an `AutoPipeline`, or an `AsyncCluster`.

    A command whose answer was lost is sent again.
    """

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this loop may use it.

        The loops of other threads and of forked processes may not.
        """
        ...

    async def execute(self, command: Command, replicas: int = 0) -> Any:
        """Send a command and return the answer, when this many replicas have it.

        Raises redis.RedisError.
        """
        ...

    async def close(self) -> None:
        """Close the connections for good."""
        ...


class Connections:
    """Sends commands to one server, from threads and from event loops.

    Lives as long as the pool of its client. All callers share it, as they share the pool. Each
    command may be sent twice, so it must be safe to repeat, as our scripts are.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        #: Sends the commands of an event loop; None: they wait in a thread.
        self.pipeline: LoopClient | None = None
        #: How many replicas must confirm a write that is `durable`.
        self.replicas = 0
        #: Set while the server has lost writes and could not be halted: then no command is sent.
        self.halted = threading.Event()
        #: By shard, the highest write counter that this process has read. Scripts compare it with
        #: the one in Redis, which is lower after a loss of data (`sayso.workers.data_loss.guard`).
        self.watermarks: Mapping[int | str, int] = {}
        #: The circuit breaker for calls of threads; None: they wait as long as it takes.
        self.circuit_breaker: RedisCircuitBreaker | None = None
        self._pool = pool

    @classmethod
    def of(cls, client: Redis) -> Connections:
        """Return the connections of a client, the same ones for all callers.

        The client of a cluster brings its own.
        """
        own = getattr(client, "connections", None)
        if isinstance(own, Connections):
            return own
        # They are an attribute of the pool, so that they live as long as the pool does.
        pool = client.connection_pool
        shared: Connections = vars(pool).setdefault("_sayso_connections", cls(pool))
        return shared

    def ask(self, *command: str | bytes | int | float, durable: bool = False) -> Any:
        """Send a command and return the answer, with the client's own timeouts and retries. Blocks.

        With `durable` it is answered when the replicas have it, too. Raises redis.RedisError, such
        as Halted and NotReplicated.
        """
        if self.halted.is_set():
            raise Halted
        return self._ask(command, self.replicas if durable else 0)

    async def ask_async(self, *command: str | bytes | int | float, durable: bool = False) -> Any:
        """Send a command as `ask` does, without blocking the event loop, and return the answer.

        It is sent over the `pipeline` if that serves the running loop, and by a thread if not. Under
        `run_without_loop` there is no loop, and the call blocks.
        """
        if has_no_loop.get():
            return self.ask(*command, durable=durable)
        if self.halted.is_set():
            raise Halted
        replicas = self.replicas if durable else 0
        if self.pipeline and self.pipeline.serves(asyncio.get_running_loop()):
            return await self.pipeline.execute(command, replicas)
        return await call_in_thread(self._ask, command, replicas)

    def break_circuit(self, *, slow_seconds: float, pause_seconds: float = 0.0) -> None:
        """From now on calls of threads fail at once while the server does not answer.

        The arguments are those of RedisCircuitBreaker.
        """
        self.circuit_breaker = RedisCircuitBreaker(
            slow_seconds=slow_seconds, pause_seconds=pause_seconds
        )

    def _ask(self, command: Command, replicas: int) -> Any:
        if self.circuit_breaker is None:
            return self._ask_with_retry(command, replicas)
        with self.circuit_breaker.attempt():
            return self._ask_with_retry(command, replicas)

    def _ask_with_retry(self, command: Command, replicas: int) -> Any:
        """Send a command over a connection of the pool, with the retries of that connection."""
        connection = self._pool.get_connection()
        try:
            return connection.retry.call_with_retry(
                lambda: _exchange(connection, command, replicas),
                lambda _error: connection.disconnect(),
            )
        except ResponseError:
            # Redis answered with an error, which was read to its end: the connection is sound.
            raise
        except BaseException as exc:
            # The next caller of this connection would read the rest of this answer as its own.
            connection.disconnect()
            if isinstance(exc, RedisTimeoutError | NotReplicated):
                # The idle connections may be dead too, and each would cost another caller a
                # whole timeout. A server that lost its replicas may be the primary no more:
                # the next connection asks which one is.
                self._pool.disconnect(inuse_connections=False)
            raise
        finally:
            self._pool.release(connection)


def _exchange(connection: Connection, command: Command, replicas: int) -> Any:
    """Send a command and return its answer, when this many replicas have it.

    `redis.Redis.execute_command` does the same for a third more processor time: it reads each
    argument again in Python and keeps counters that Sayso does not read.
    """
    if not replicas:
        connection.send_packed_command([_packed(command)])
        return connection.read_response()

    # WAIT is about all that its connection has written before.
    connection.send_packed_command([_packed(command), _wait_command(replicas)])
    try:
        answer = connection.read_response()
    except ResponseError:
        # The answer to WAIT follows and must be read, too. It may be another error. The first one
        # says more: MOVED names the server that has the key now.
        with contextlib.suppress(ResponseError):
            connection.read_response()
        raise
    confirmed = connection.read_response()
    if confirmed < replicas:
        raise NotReplicated(confirmed, replicas)
    return answer


def _packed(command: Command) -> bytes:
    """Return a command as it is sent. Raises DataError for a value of another type."""
    try:
        packed: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub expects a tuple of one
    except TypeError as exc:
        raise DataError(f"{command[0]!r}: {exc}") from exc
    return packed


@cache
def _wait_command(replicas: int) -> bytes:
    return _packed(("WAIT", replicas, REPLICA_MS))


@dataclass(slots=True, eq=False)
class _Command:
    """A command in the queue of an AutoPipeline."""

    packed: bytes
    #: Gets the answer. It is done already if the caller was cancelled.
    answer: asyncio.Future[Any]
    #: How many replicas must have what the command wrote, 0 for none.
    replicas: int


class AutoPipeline:
    """Sends the commands of one event loop over one connection, those that wait in one packet.

    It connects with the first command, and belongs to the loop that uses it first, until that loop
    is closed. A command whose answer was lost is sent again, so each command must be safe to
    repeat, as our scripts are.
    """

    def __init__(self, url: str, *, new_retries: Callable[[], Retries] = Retries) -> None:
        self._pool = RedisUrl.parse(url).async_pool(
            decode_responses=True, socket_connect_timeout=1, socket_timeout=None
        )
        self._new_retries = new_retries
        self._owner_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def on_connect(self, check: ConnectCallbackT) -> None:
        """From now on await `check` to set up each new connection.

        If it raises, the connection is not used.
        """
        self._pool.connection_kwargs["redis_connect_func"] = check

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this loop may use it.

        The loops of other threads and of forked processes may not.
        """
        if self._loop is loop:
            return True
        with self._owner_lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = loop
                #: Commands without an answer, in order: first those that were sent,
                #: then those that wait.
                self._commands: deque[_Command] = deque()
                self._connection: AbstractConnection = self._pool.make_connection()
                self._was_sent = False
                self._sender: asyncio.Task[None] | None = None
            return self._loop is loop

    async def execute(self, command: Command, replicas: int = 0) -> Any:
        """Send a command and return the answer once this many replicas have it.

        There is no limit of time for that. Raises redis.RedisError, and RuntimeError on another
        loop.
        """
        loop = asyncio.get_running_loop()
        if not self.serves(loop):
            raise RuntimeError("this pipeline belongs to another event loop")
        if self._closed:
            raise RedisConnectionError("closed")
        queued = _Command(_packed(command), loop.create_future(), replicas)
        self._commands.append(queued)
        # Commands of other tasks that come before the sender runs travel in the same packet.
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all())
        return await queued.answer

    async def close(self) -> None:
        """Close the connection for good. Callers that wait get an error."""
        self._closed = True
        if self._loop is None:
            return
        if self._sender:
            self._sender.cancel()
        self._fail("closed")
        await self._connection.disconnect(nowait=True)

    async def _send_all(self) -> None:
        """Send what waits, one packet after the other, until nothing waits.

        After a failure the commands are sent again, until they are given up: then all callers get
        an error.
        """
        retries = self._new_retries()
        while self._commands:
            try:
                await self._send_until_replicated()
                retries = self._new_retries()
            except RedisError as exc:
                await self._disconnect(exc)
                pause = retries.pause_after(exc, was_sent=self._was_sent)
                if pause is None:
                    self._fail(
                        f"no answer in {retries.failures} tries: {exc or type(exc).__name__}"
                    )
                    retries = self._new_retries()
                else:
                    await asyncio.sleep(pause)
            # Callers must get an answer, whatever happened.
            except Exception as exc:  # noqa: BLE001
                self._fail(f"not sent: {exc or type(exc).__name__}")
                await self._connection.disconnect(nowait=True)

    async def _send_until_replicated(self) -> None:
        """Send what waits, and send it again while too few replicas have the writes in it.

        A caller that got an error would not know whether its write survives. What came meanwhile is
        sent too. Raises RedisError.
        """
        while True:
            try:
                return await self._send_waiting()
            except NotReplicated as exc:
                log_not_replicated(exc)
                # Another server may be the primary by now.
                await self._connection.disconnect(nowait=True)

    async def _send_waiting(self) -> None:
        """Send all commands in one packet and read their answers.

        Raises RedisError when the connection is lost.
        """
        loop = asyncio.get_running_loop()
        self._was_sent = False
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                await self._ensure_connected()
                # A command that was not sent yet, and whose caller was cancelled, is never sent.
                waiting = (command for command in self._commands if not command.answer.done())
                self._commands = deque(waiting)
                if not self._commands:
                    return

                limit.reschedule(loop.time() + ANSWER_SECONDS)
                replicas = max(command.replicas for command in self._commands)
                packet = [command.packed for command in self._commands]
                if replicas:
                    packet.append(_wait_command(replicas))
                await self._connection.send_packed_command(packet, check_health=False)
                self._was_sent = True
                await self._read_answers(replicas, limit)
        except TimeoutError:
            raise RedisTimeoutError("Redis does not answer") from None
        except OSError as exc:
            raise RedisConnectionError(str(exc)) from exc

    async def _ensure_connected(self) -> None:
        """Open the connection, or open it again if it is not sound."""
        connection = self._connection
        if connection.is_connected and await connection.can_read():
            # It was closed, or there is an answer to no command:
            # the next one would be taken for ours.
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            await connection.connect()

    async def _read_answers(self, replicas: int, limit: asyncio.Timeout) -> None:
        """Read the answers to the commands of one packet, and give them to their callers.

        `replicas` is what the WAIT behind the commands asks for, 0 for a packet without one. `limit`
        is extended with each answer.
        """
        loop = asyncio.get_running_loop()
        # The answers to writes are held back until the replicas have them.
        unconfirmed: deque[tuple[_Command, Any]] = deque()
        try:
            for _ in range(len(self._commands)):
                answer = await _read(self._connection)
                command = self._commands.popleft()
                if command.replicas and not isinstance(answer, Exception):
                    unconfirmed.append((command, answer))
                else:
                    _settle(command, answer)
                limit.reschedule(loop.time() + ANSWER_SECONDS)
            if replicas:
                _confirm(await _read(self._connection), replicas, unconfirmed)
        finally:
            # What is left is sent again, in order, before what waits.
            self._commands.extendleft(command for command, _ in reversed(unconfirmed))

    async def _disconnect(self, error: Exception) -> None:
        """Close the connection after an error, and log an error that operators should see."""
        if isinstance(error, RedisTimeoutError):
            log.warning("redis.silent")
        elif isinstance(error, InvalidResponse):
            log.error("redis.out_of_step")
        await self._connection.disconnect(nowait=True)

    def _fail(self, reason: str) -> None:
        """Give all callers an error."""
        while self._commands:
            _settle(self._commands.popleft(), RedisConnectionError(reason))


async def _read(connection: AbstractConnection) -> Any:
    """Read an answer; an error reply is returned as an exception.

    Raises RedisError when the connection is lost.
    """
    try:
        return await connection.read_response(disconnect_on_error=False)
    except ResponseError as exc:
        return exc
    except UnicodeDecodeError as exc:
        # The answer was read completely, so the connection can be used further.
        return InvalidResponse(f"an answer that is no text: {exc.reason}")


def _confirm(confirmed: Any, needed: int, unconfirmed: deque[tuple[_Command, Any]]) -> None:
    """Give callers the answers to their writes, once the replicas have them.

    `confirmed` is the answer to WAIT: how many replicas have the writes, or an error. Raises
    NotReplicated if too few have them.
    """
    if isinstance(confirmed, int) and confirmed < needed:
        raise NotReplicated(confirmed, needed)
    while unconfirmed:
        command, answer = unconfirmed.popleft()
        if isinstance(confirmed, Exception):
            answer = confirmed
        _settle(command, answer)


def _settle(command: _Command, answer: Any) -> None:
    """Give a caller its answer, unless the caller was cancelled."""
    if command.answer.done():
        return
    if isinstance(answer, Exception):
        command.answer.set_exception(answer)
    else:
        command.answer.set_result(answer)
