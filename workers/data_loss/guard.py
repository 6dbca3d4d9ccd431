"""DataLossGuard: halt a Redis that came back with fewer writes than it had acknowledged.

Every script that writes increments a counter in its shard (key `write_counter`), and every process
remembers the highest value of each shard that it has seen: its watermark. A shard that comes back
with a lower value has lost acknowledged writes: its server was restarted on an old file, a replica
that lagged was promoted, or the server was emptied. It would give out numbers of turns, replies and
leases a second time. So the process that notices the loss writes a halt into all shards of that
server, and all scripts refuse there until an operator runs `sayso redis resume`.

Three places compare:

* Each script gets the watermark of its own shard, and raises and compares the counter in one step.
* Each new connection is checked before its first command.
* A thread checks the server four times a second. It also learns the watermarks for the scripts.

A check reads the keys of all shards in one command, and looks only at shards whose answer is not
the one that was learned last. An answer is compared with what was known before the question was
sent. So these raise no alarm: concurrent connections, restarts that lose nothing, processes that
start or end, and clocks.

`check` is the way of one check: it reads, decides which shards have lost writes, and either halts
the server or learns the new watermarks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from sayso.infra.redis.connections import (
    CURE,
    AutoPipeline,
    Command,
    Connections,
    Halted,
    NotReplicated,
)
from sayso.pending.sharded_scripts import SHARDS
from sayso.workers.data_loss.known_shards import KnownShards, Learned, halt_log_fields
from sayso.workers.data_loss.watermarks import (
    Ask,
    HaltReason,
    ShardAnswer,
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

#: Seconds between two checks of a server. A loss of writes that are younger than this may go
#: unnoticed.
CHECK_SECONDS = 0.25
#: Seconds between two writes to the data folder.
SAVE_SECONDS = 1.0
_IDENTIFY = """
-- Give this shard an identity, unless it has one. The counter is never below the numbers that were
-- given out. KEYS: identities, write counter. ARGV: the identity, and the key of the floor (the
-- lowest new number after a resume), which the web may only read.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
local floor = redis.call('GET', ARGV[2]) or '0'
if tonumber(redis.call('GET', KEYS[2]) or '0') < tonumber(floor) then
  redis.call('SET', KEYS[2], floor)
end
return 1
"""
_HALT = """
-- Halt this shard if it still has fewer writes than were seen. Return 1 if it is halted, else 0.
-- The first halt stays if this is sent again. KEYS: write counter, identities, halted. ARGV: the
-- identity and the watermark that were seen, and the halt as JSON.
local identities = ' ' .. (redis.call('GET', KEYS[2]) or '') .. ' '
local is_same = string.find(identities, ' ' .. ARGV[1] .. ' ', 1, true)
if is_same and tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[3], ARGV[3], 'NX')
return 1
"""


class DataLossGuard:
    """Checks one server, learns its watermarks, and halts it after a loss.

    One per process and server, for all connections. On a cluster, all its nodes are one server
    here. Its methods check new connections and the server in the background, and are the steps of
    one check. A KnownShards remembers what the checks learn.
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
        """`file`: where watermarks are stored, so that they survive the process; None for nowhere.
        `replicas`: how many replicas must have a write before it counts as acknowledged. What is on
        fewer of them is not learned. `clock`: monotonic, in seconds.
        """
        self._client = client
        self._replicas = replicas
        Connections.of(client).replicas = replicas
        self._file = file
        self._address = _file_entry(client)
        self._in_cluster = isinstance(client, ClusterClient)
        self._prefix = prefix
        self._clock = clock
        #: The watermarks in the file, by address.
        self._stored: dict[str, Watermarks] = {}
        if file:
            self._stored = dict(file.load())
        #: When this process wrote the file last, by the clock.
        self._stored_at = float("-inf")

        self._shards = KnownShards(self._stored.get(self._address, {}), clock)
        #: The process whose thread checks the server; 0 for none.
        self._watching = 0
        #: Held to begin that thread once.
        self._starting = threading.Lock()

    @property
    def known(self) -> Watermarks:
        """Return the watermarks of this process."""
        return self._shards.learned.watermarks

    @property
    def trouble(self) -> str:
        """Return why this server is halted, in words for its operator; "" if it is not halted."""
        return CURE if self._shards.has_trouble else ""

    @property
    def resumed(self) -> threading.Event:
        """Return the event that is set when the server was resumed.

        The thread that waits for it clears it.
        """
        return self._shards.resumed

    def protect(self, client: Redis) -> None:
        """From now on check each new connection of a client, and each script that it runs.

        On a cluster only the scripts and the regular checks compare. A new connection says little
        there: a shard may have moved to the node after an older connection was opened.
        """
        connections = Connections.of(client)
        connections.halted = self._shards.refusing
        connections.watermarks = self._shards.seen_writes
        if not isinstance(client, ClusterClient):
            client.connection_pool.connection_kwargs["redis_connect_func"] = self.check_connection
        if isinstance(connections.pipeline, AutoPipeline):
            connections.pipeline.on_connect(self._check_loop_connection)

    def check_connection(self, connection: Connection) -> None:
        """Check the server on a new connection.

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

    async def _check_loop_connection(self, connection: AbstractConnection) -> None:
        """Check the server on a new connection of an event loop.

        Raises redis.RedisError: the connection must not be used.
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

    def watch(self) -> None:
        """Check the server again and again in the background for the life of this process.

        A second call does nothing.
        """
        with self._starting:
            if self._watching == os.getpid():  # a thread does not survive a fork
                return
            self._watching = os.getpid()
        threading.Thread(target=self._watch, name="data-loss-guard", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                self.check_server()
            except RedisError:
                # The server is away, which the callers of Redis notice themselves.
                pass
            except Exception:
                # Nothing would restart this thread.
                log.exception("watermark.check_failed")
            time.sleep(CHECK_SECONDS)

    def check_server(self) -> None:
        """Check the server, give its shards an identity if they have none, and write the file.

        Raises redis.RedisError.
        """
        run_without_loop(self.check(ask_over(self._client), creates_identity=True))

        known = self.known
        if not (self._file and known) or self._stored.get(self._address) == known:
            return
        if self._clock() - self._stored_at >= SAVE_SECONDS:
            self._stored_at = self._clock()
            self._stored[self._address] = known
            self._file.save(self._address, known)

    async def check(self, ask: Ask, *, creates_identity: bool = False) -> None:
        """Check the server behind a connection, and learn what it says.

        `ask`: sends commands over that connection. `creates_identity`: shards without an identity
        are given one, because the server was checked to be fit before. Raises redis.RedisError: the
        connection must not be used. Raises RedisUnfit for a node of a cluster under the URL of one
        server.
        """
        # What is learned from here on may be newer than the answers.
        before = self._shards.learned
        answers = await self._read(ask)
        changed = self._shards.changed(answers, before)
        if not changed:
            return

        states = {shard: ShardState.of(answers[shard]) for shard in changed}
        self._shards.note_halts(states)

        # A halted shard has nothing to lose, and nothing to learn from.
        working = {shard: state for shard, state in states.items() if not state.halted}
        lost = [
            shard
            for shard, state in working.items()
            if state.has_lost(self._remembered(before, shard, state))
        ]
        if lost:
            await self._halt_server(ask, lost, answers, before)
            return

        unidentified = [shard for shard, state in working.items() if not state.identities]
        if creates_identity and unidentified:
            await self._identify(ask, unidentified)
            answers = await self._read(ask)

        # A new connection does not wait for replicas; the next regular check learns.
        if self._replicas and not creates_identity:
            return
        self._shards.learn(
            {shard: answers[shard] for shard in self._replicated() if shard in working}
        )

    async def _read(self, ask: Ask) -> dict[int, ShardAnswer]:
        """Return what the server answers to the keys of each shard."""
        try:
            return await read_shards(ask, self._prefix, in_cluster=self._in_cluster)
        except ClusterCrossSlotError as exc:
            what, cure = cluster_node(address_of(self._client))
            raise RedisUnfit(f"the server of REDIS_URL {what}: {cure}") from exc

    def _remembered(self, before: Learned, shard: int, state: ShardState) -> Watermark | None:
        """Return the watermark of a shard, of this process or from the file. None for no watermark.

        The file has watermarks from before this process began. The server may have had another
        address then, so the shard is recognized by its identity.
        """
        watermark = before.watermarks.get(shard)
        if watermark:
            return watermark

        candidates: list[Watermark] = []
        for watermarks in self._stored.values():
            stored = watermarks.get(shard)
            if stored and stored.identity in state.identities:
                candidates.append(stored)
        return max(candidates, key=lambda watermark: watermark.writes, default=None)

    async def _identify(self, ask: Ask, shards: Iterable[int]) -> None:
        """Give shards an identity, by which they are recognized later."""
        identity = random_id(8)
        commands: list[Command] = []
        for shard in shards:
            keys = keys_of(shard, self._prefix)
            floor = f"{self._prefix}{{{shard}}}:floor"
            commands.append(
                ("EVAL", _IDENTIFY, 2, keys.identities, keys.write_counter, identity, floor)
            )
        raise_error(await ask(commands))

    def _replicated(self) -> list[int]:
        """Return the shards whose replicas have all that was read so far.

        A write that is sent now and confirmed by the replicas proves that they have all before it.
        """
        replicated: list[int] = []
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
        """Write to the server of a shard, and wait until enough replicas have it."""
        if not self._replicas:
            return
        key = f"{self._prefix}{{{shard}}}:writable"
        Connections.of(self._client).ask("SET", key, "", "PX", 1000, durable=True)

    def _shards_by_server(self) -> list[list[int]]:
        """Return the shards of each server: on a cluster those of each master."""
        if isinstance(self._client, ClusterClient):
            return self._client.group_by_node(
                {shard: f"{self._prefix}{{{shard}}}" for shard in range(SHARDS)}
            )
        return [list(range(SHARDS))]

    async def _halt_server(
        self,
        ask: Ask,
        lost: Collection[int],
        answers: Mapping[int, ShardAnswer],
        before: Learned,
    ) -> None:
        """Halt the shards that lost writes, and with them all others of that server.

        The others may have lost writes that no process saw. Until the halt is written, this process
        refuses by itself. Raises Halted if the halt cannot be written, and redis.RedisError.
        """
        states = {shard: ShardState.of(answer) for shard, answer in answers.items()}
        working = {shard: state for shard, state in states.items() if not state.halted}
        halts: dict[int, HaltReason] = {}
        others: dict[int, HaltReason] = {}
        for shard, state in working.items():
            watermark = self._remembered(before, shard, state)
            if shard in lost and watermark:
                halts[shard] = self._reason(shard, watermark, state)
            else:
                identity = watermark.identity if watermark else ""
                others[shard] = HaltReason(identity, state.writes, state.writes)

        # The server may have been resumed meanwhile, which the next check will show.
        if not await self._write_halts(ask, halts):
            return

        commands: list[Command] = []
        for shard, halt in others.items():
            commands.append(("SET", keys_of(shard, self._prefix).halted, halt.to_json(), "NX"))
        await ask(commands)
        log.error("redis.rolled_back", extra=halt_log_fields(halts.values()) | {"advice": CURE})
        self._shards.note_own_halts(halts | others)

    async def _write_halts(self, ask: Ask, halts: Mapping[int, HaltReason]) -> bool:
        """Halt shards that still have fewer writes than were seen. Return whether any was halted.

        Raises Halted if the halt cannot be written, and redis.RedisError.
        """
        commands: list[Command] = []
        for shard, halt in halts.items():
            keys = keys_of(shard, self._prefix)
            commands.append(
                ("EVAL", _HALT, 3, *keys, halt.identity, halt.remembered, halt.to_json())
            )
        answers = await ask(commands)
        try:
            raise_error(answers)
        except (ReadOnlyError, BusyLoadingError):
            # The server is a replica, or still loads its file: that proves no loss.
            raise
        except ResponseError as exc:
            self._shards.refuse(halts)
            log.error("redis.not_halted", extra={"reason": str(exc)})
            raise Halted from exc
        return any(answers)

    def _reason(self, shard: int, watermark: Watermark, state: ShardState) -> HaltReason:
        """Return why a shard is halted that has lost writes, and about how much it has lost."""
        if watermark.identity not in state.identities:
            return HaltReason(watermark.identity, watermark.writes, found=0)
        # A check sees a write up to CHECK_SECONDS after it was made.
        lost_seconds = self._shards.seconds_after(shard, state.writes)
        if lost_seconds is not None:
            lost_seconds += CHECK_SECONDS
        return HaltReason(watermark.identity, watermark.writes, state.writes, lost_seconds)


def _file_entry(client: Redis) -> str:
    """Return the name of a client's server, or cluster, in the file."""
    if isinstance(client, ClusterClient):
        return address_of(client)
    return f"{address_of(client)}/{client.connection_pool.connection_kwargs.get('db', 0)}"
