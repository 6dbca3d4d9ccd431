"""DataLossGuard: halt a Redis that came back with fewer writes than it had acknowledged.

Every script that writes increments a counter in its shard, the watermark (key `tide`), and every
process remembers the highest value of each that it has seen. A shard that comes back with a lower
value has lost acknowledged writes: its server was restarted on an old file, a replica that lagged
was promoted, or the server was emptied. It would give out numbers of turns, replies and leases a
second time. So the process that notices the loss writes a halt into all shards of that server, and
all scripts refuse there until an operator runs `sayso redis resume`.

The watermarks are compared four times a second, on each new connection, and in each script, which
gets the watermark that its process knows. An answer is compared only with what was known before the
question was sent. So these raise no alarm: concurrent connections, restarts that lose nothing,
processes that start or end, and clocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from redis import Redis
from redis.asyncio.connection import AbstractConnection
from redis.connection import Connection
from redis.exceptions import (
    BusyLoadingError,
    ClusterCrossSlotError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from sayso.infra.concurrency import run_without_loop
from sayso.infra.ids import random_id
from sayso.infra.redis.checks import cluster_node
from sayso.infra.redis.client import PREFIX, RedisUnfit, address_of
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.connections import CURE, AutoPipeline, Connections, Halted, NotReplicated
from sayso.infra.redis.scripts import SHARDS
from sayso.workers.data_loss.watermarks import (
    Ask,
    Command,
    HaltReason,
    ShardState,
    Watermark,
    WatermarkFile,
    Watermarks,
    ask_over,
    keys_of,
    raise_error,
    read_shards,
)

log = logging.getLogger(__name__)

#: Seconds between two checks: a server that loses less than its
#: writes of this time may go unnoticed.
LOOK_SECONDS = 0.25
#: Seconds between two writes to the data folder.
KEEP_SECONDS = 1.0
#: Changes of a shard's watermark that a process remembers with their times:
#: the last minute of a busy shard.
MOMENTS = 300
_IDENTIFY = """
-- Give this shard an identity. KEYS: founded (the identities), tide (the watermark). ARGV: identity, the key of the
-- floor (the lowest new number after a resume), which the web may only read. The watermark is never below the numbers
-- that were given out.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local floor = redis.call('GET', ARGV[2]) or '0'
if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(floor) then redis.call('SET', KEYS[2], floor) end
return 1
"""
_HALT = """
-- Halt this shard if it still has a lower watermark than was seen. KEYS: tide (the watermark), founded (the
-- identities), halted. ARGV: identity, watermark, halt as JSON. The first halt stays when this is sent again.
local known = ' ' .. (redis.call('GET', KEYS[2]) or '') .. ' '
local same = string.find(known, ' ' .. ARGV[1] .. ' ', 1, true)
if same and tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[3], ARGV[3], 'NX')
return 1
"""


class DataLossGuard:
    """The watermarks of one server as this process knows them; one per process and server,
    for all connections.
    """

    def __init__(
        self,
        client: Redis,
        file: WatermarkFile | None = None,
        *,
        prefix: str = PREFIX,
        replicas: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        #: How many replicas must have a watermark before it is learned:
        #: what is on none was never acknowledged.
        self._replicas = Connections.of(client).replicas = replicas
        self._file = file
        self._address = _file_entry(client)
        self._in_cluster = isinstance(client, ClusterClient)
        self._prefix = prefix
        self._clock = clock
        self._stored = dict(file.read()) if file else {}
        #: Never changed but replaced, so that a check can hold what was known when it began.
        self._known: Watermarks = self._stored.get(self._address, {})
        #: The same numbers by shard, for the scripts. Changed in place.
        self._numbers: dict[int | str, int] = {
            shard: watermark.n for shard, watermark in self._known.items()
        }
        #: The last answers that were learned, and what was known then:
        #: most checks find the same again.
        self._learned: tuple[Mapping[int, Sequence[Any]], Watermarks] = {}, {}
        self._stored_at = float("-inf")
        self._moments: defaultdict[int, deque[tuple[float, int]]] = defaultdict(
            partial(deque, maxlen=MOMENTS)
        )
        self._halts: dict[int, str] = {}
        #: Shards that have lost writes while the halt could not be written;
        #: `_refusing` is set while there are any.
        self._refused: set[int] = set()
        self._refusing = threading.Event()
        self._learning = threading.Lock()
        self._watching = 0
        #: Set when the server was resumed; the thread that waits for it clears it.
        self.resumed = threading.Event()

    @property
    def known(self) -> Watermarks:
        """Return the highest watermark that this process has seen of each shard."""
        return self._known

    @property
    def trouble(self) -> str:
        """Return why this server is halted, in words for its operator; "" when it is not."""
        return CURE if self._halts or self._refusing.is_set() else ""

    def guard(self, client: Redis) -> None:
        """From now on check the watermarks on each new connection of this client and its pipeline,
        and in each script.

        A connection to a node of a cluster may be older than the shard's move there. So on a
        cluster only the scripts and the regular checks compare.
        """
        connections = Connections.of(client)
        connections.halted = self._refusing
        connections.watermarks = self._numbers
        if not isinstance(client, ClusterClient):
            client.connection_pool.connection_kwargs["redis_connect_func"] = self.greet
        if isinstance(connections.pipeline, AutoPipeline):
            connections.pipeline.on_connect(self._greet_async)

    def greet(self, connection: Connection) -> None:
        """Check the watermarks on a new connection.

        Raises redis.RedisError: the connection must not be used.
        """
        connection.on_connect()

        def read() -> Any:
            try:
                return connection.read_response()
            except ResponseError as exc:
                return exc

        async def ask(commands: Sequence[Command]) -> list[Any]:
            connection.send_packed_command(connection.pack_commands(commands))
            return [read() for _ in commands]

        run_without_loop(self.check(ask))

    async def _greet_async(self, connection: AbstractConnection) -> None:
        """Check the watermarks on a new connection of an event loop.

        Raises redis.RedisError: do not use it.
        """
        await connection.on_connect()

        async def read() -> Any:
            try:
                return await connection.read_response()
            except ResponseError as exc:
                return exc

        async def ask(commands: Sequence[Command]) -> list[Any]:
            await connection.send_packed_command(connection.pack_commands(commands))
            return [await read() for _ in commands]

        await self.check(ask)

    def look(self) -> None:
        """Check the server's watermarks, and give its shards an identity if they have none.

        Raises redis.RedisError.
        """
        run_without_loop(self.check(ask_over(self._client), creates_identity=True))
        known = self._known
        if not (self._file and known) or self._stored.get(self._address) == known:
            return
        if self._clock() - self._stored_at >= KEEP_SECONDS:  # the file survives this process
            self._stored_at = self._clock()
            self._stored[self._address] = known
            self._file.keep(self._address, known)

    async def check(self, ask: Ask, *, creates_identity: bool = False) -> None:
        """Check the server behind a connection. Raises redis.RedisError: the connection must not be
        used. Raises RedisUnfit for a node of a cluster under the URL of one server.

        With `creates_identity`, shards without an identity are given one:
        the server was checked to be fit before.
        """
        known = self._known  # what is learned from here on may be newer than the answer
        try:
            answers = await read_shards(ask, self._prefix, in_cluster=self._in_cluster)
        except ClusterCrossSlotError as exc:
            raise RedisUnfit(
                "the server of REDIS_URL {}: {}".format(*cluster_node(address_of(self._client)))
            ) from exc
        if self._learned == (answers, known) and not (self._halts or self._refused):
            return
        states = {shard: ShardState.of(answer) for shard, answer in answers.items()}
        self._note_halts(
            {shard: state.halted for shard, state in states.items() if state.halted}, states
        )
        states = {shard: state for shard, state in states.items() if not state.halted}
        seen = {
            shard: known.get(shard) or self._seen_elsewhere(shard, state)
            for shard, state in states.items()
        }
        lost = {shard: mark for shard, mark in seen.items() if mark and states[shard].forgot(mark)}
        if lost:
            await self._write_halts(ask, lost, states, seen)
            return
        unidentified = [shard for shard, state in states.items() if not state.ids]
        if creates_identity and unidentified:
            await self._identify(ask, unidentified)
            answers = await read_shards(ask, self._prefix, in_cluster=self._in_cluster)
            states = {shard: ShardState.of(answers[shard]) for shard in states}
        if self._replicas and not creates_identity:
            return
        self._learn({shard: states[shard] for shard in self._replicated() if shard in states})
        self._learned = answers, self._known

    def _replicated(self) -> list[int]:
        """Return the shards whose replicas have all that was read so far:
        they have what is written after it.
        """
        replicated = []
        for shards in self._shards_by_server():
            with contextlib.suppress(NotReplicated):
                self._check_replicas_of(shards[0])
                replicated += shards
        return replicated

    def check_replicas(self) -> None:
        """Write to each server, and wait until enough replicas have it.

        Raises NotReplicated, and redis.RedisError.
        """
        for shards in self._shards_by_server():
            self._check_replicas_of(shards[0])

    def _check_replicas_of(self, shard: int) -> None:
        if self._replicas:
            key = f"{self._prefix}{{{shard}}}:writable"
            Connections.of(self._client).ask("SET", key, "", "PX", 1000, durable=True)

    def _shards_by_server(self) -> list[list[int]]:
        """Return the shards that live on one server together: on a cluster those of each master."""
        if isinstance(self._client, ClusterClient):
            return self._client.group_by_node(
                {shard: f"{self._prefix}{{{shard}}}" for shard in range(SHARDS)}
            )
        return [list(range(SHARDS))]

    def _seen_elsewhere(self, shard: int, state: ShardState) -> Watermark | None:
        """Return what was stored for this shard before this process began, at whatever address."""
        stored = (
            marks[shard]
            for marks in self._stored.values()
            if shard in marks and marks[shard].id in state.ids
        )
        return max(stored, key=lambda watermark: watermark.n, default=None)

    async def _identify(self, ask: Ask, shards: Sequence[int]) -> None:
        name = random_id(8)
        commands = []
        for shard in shards:
            watermark, identities, _ = keys_of(shard, self._prefix)
            commands.append(
                (
                    "EVAL",
                    _IDENTIFY,
                    2,
                    identities,
                    watermark,
                    name,
                    f"{self._prefix}{{{shard}}}:floor",
                )
            )
        raise_error(await ask(commands))

    def watch(self) -> None:
        """Check again and again in the background for the life of this process.

        A second call does nothing.
        """
        with self._learning:
            if self._watching == os.getpid():  # a thread does not survive a fork
                return
            self._watching = os.getpid()
        threading.Thread(target=self._watch, name="data-loss-guard", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except RedisError:  # away: the callers of Redis notice it themselves
                pass
            except Exception:
                # Nothing would restart this thread.
                log.exception("watermark.check_failed")
            time.sleep(LOOK_SECONDS)

    async def _write_halts(
        self,
        ask: Ask,
        lost: Watermarks,
        states: Mapping[int, ShardState],
        seen: Mapping[int, Watermark | None],
    ) -> None:
        """Halt the shards that lost writes, and with them all others of that server: they may have
        lost writes that no process saw. Until that succeeds, this process refuses by itself.
        """
        halts = {
            shard: self._reason(shard, watermark, states[shard])
            for shard, watermark in lost.items()
        }
        answers = await ask(
            [
                (
                    "EVAL",
                    _HALT,
                    3,
                    *keys_of(shard, self._prefix),
                    lost[shard].id,
                    lost[shard].n,
                    halt.to_json(),
                )
                for shard, halt in halts.items()
            ]
        )
        try:
            raise_error(answers)
        except (ReadOnlyError, BusyLoadingError):  # a replica, or still loading: proves nothing
            raise
        except ResponseError as exc:
            with self._learning:
                self._refuse({*self._refused, *lost})
            log.error("redis.not_halted", extra={"reason": str(exc)})
            raise Halted from exc
        if not any(answers):  # resumed meanwhile: the next check will show it
            return
        others = {}
        for shard in states.keys() - lost.keys():
            watermark = seen[shard]
            state = states[shard]
            others[shard] = HaltReason(watermark.id if watermark else "", state.n, state.n)
        await ask(
            [
                ("SET", keys_of(n, self._prefix)[2], halt.to_json(), "NX")
                for n, halt in others.items()
            ]
        )
        log.error("redis.rolled_back", extra=_extra(halts.values()) | {"advice": CURE})
        with self._learning:
            self._halts |= {shard: halt.to_json() for shard, halt in (halts | others).items()}
            self._refuse(self._refused - states.keys())

    def _reason(self, shard: int, known: Watermark, state: ShardState) -> HaltReason:
        same = known.id in state.ids
        seconds = None
        with self._learning:
            moments = list(self._moments[shard])
        # This process saw how long the shard went on after that.
        if same and moments and moments[0][1] <= state.n:
            last, _ = moments[-1]
            seconds = (
                last - next((at for at, seen in moments if seen > state.n), last) + LOOK_SECONDS
            )
        return HaltReason(known.id, known.n, state.n if same else 0, seconds)

    def _note_halts(self, halted: Mapping[int, str], states: Mapping[int, ShardState]) -> None:
        """Note which shards are halted, of those that answered."""
        with self._learning:
            new = halted.keys() - self._halts.keys()
            self._halts |= halted
            self._refuse(self._refused - halted.keys())
        if new:
            reasons = (HaltReason.read(halted[shard]) for shard in new)
            log.error("redis.halted", extra=_extra(reasons) | {"advice": CURE})

    def _refuse(self, shards: set[int]) -> None:
        self._refused = shards
        if shards:
            self._refusing.set()
        else:
            self._refusing.clear()

    def _learn(self, states: Mapping[int, ShardState]) -> None:
        """Remember the watermarks of shards that are in order."""
        with self._learning:
            known = dict(self._known)
            for shard, state in states.items():
                watermark = known.get(shard)
                if state.ids and (watermark is None or watermark.id not in state.ids):
                    known[shard] = Watermark(state.ids[0], state.n)
                elif watermark and state.n > watermark.n:
                    known[shard] = Watermark(watermark.id, state.n)
                if known.get(shard) != watermark:
                    self._moments[shard].append((self._clock(), state.n))
            if known != self._known:
                self._known = known
                self._numbers.update((shard, watermark.n) for shard, watermark in known.items())
            self._refuse(self._refused - states.keys())
            resumed = self._halts.keys() & states.keys()
            for shard in resumed:
                del self._halts[shard]
        if resumed:
            self.resumed.set()
        if resumed and not self._halts:
            log.warning("redis.resumed")


def _extra(halts: Iterable[HaltReason]) -> dict[str, Any]:
    halt = HaltReason.sum(halts)
    if halt.seconds is None:
        seconds = "unknown"
    else:
        seconds = f"{halt.seconds:.1f}"
    return {"remembered": halt.remembered, "found": halt.found, "lost_seconds": seconds}


def _file_entry(client: Redis) -> str:
    """Return the name of a client's server, or cluster, in the file."""
    if isinstance(client, ClusterClient):
        return address_of(client)
    return f"{address_of(client)}/{client.connection_pool.connection_kwargs.get('db', 0)}"
