"""What a server says of its shards, and what processes remember of them.

Each shard has a *write counter*: how many writing scripts it has run. The *watermark* of a shard is
the highest write counter that a process has seen of it. A server whose counter is below a watermark
has lost acknowledged writes. Its shards are then *halted*: each gets a key with the reason, and all
scripts refuse there until an operator runs `sayso redis resume`.

A counter alone does not show that the data are the same: a server that was emptied counts from 0
again. So each shard has a random name, its *identity*, which is stored with the data and in the
watermark. A server that does not know the identity of a watermark has lost everything.

A resume makes a shard pass both comparisons again. It raises the counter far above the watermark,
and it adds the identity of the watermark to the names of the shard. The shard keeps its other
names, because other processes may remember it under them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import ResponseError

from sayso.infra.ids import random_id
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.connections import Command, Connections
from sayso.pending.sharded_scripts import SHARDS

log = logging.getLogger(__name__)

#: The file's name in the data folder.
FILE = "watermarks.json"
#: How many addresses of servers are remembered. Beyond that the oldest is dropped.
MAX_ADDRESSES = 32


class ShardKeys(NamedTuple):
    """The keys of a shard that a `DataLossGuard` reads."""

    write_counter: str
    #: The identities of the shard, separated by spaces. It gets one when it is first used. A resume
    #: after a loss of all data adds the earlier one, in the first place.
    identities: str
    #: A `HaltReason` as JSON; no key for a shard that works.
    halted: str


def keys_of(shard: int, prefix: str = PREFIX) -> ShardKeys:
    """Return the keys of a shard."""
    key = f"{prefix}{{{shard}}}"
    return ShardKeys(f"{key}:write_counter", f"{key}:identities", f"{key}:halted")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The highest write counter that was seen of a shard."""

    #: One of the identities that the shard had, by which the same data are recognized.
    identity: str
    #: The write counter.
    writes: int


#: Watermarks by shard.
Watermarks = Mapping[int, Watermark]

#: What a server answers to the keys of one shard, in the order of `ShardKeys`.
ShardAnswer = Sequence[Any]


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a server says of a shard."""

    #: Its identities, () for a shard that no process has used yet.
    identities: tuple[str, ...] = ()
    #: Its write counter.
    writes: int = 0
    #: Why it is halted, a `HaltReason` as JSON; "" where it works.
    halted: str = ""

    @classmethod
    def of(cls, answer: ShardAnswer) -> ShardState:
        """Return the state that an answer describes. A missing or damaged counter is 0."""
        writes, identities, halted = answer
        if not (writes and writes.isdigit()):
            writes = 0
        return cls(tuple((identities or "").split()), int(writes), halted or "")

    def has_lost(self, watermark: Watermark | None) -> bool:
        """Return whether writes that were seen before are missing.

        They are if the shard does not know the watermark's identity, or has a lower counter. A
        watermark of 0 writes, or None for no watermark, leaves nothing to miss.
        """
        if watermark is None or watermark.writes == 0:
            return False
        return watermark.identity not in self.identities or self.writes < watermark.writes

    def next_watermark(self, watermark: Watermark | None) -> Watermark | None:
        """Return what a process remembers after it saw this state. `watermark`: what it remembered.

        Call it only if `has_lost` is false: otherwise the loss could be forgotten. So the shard can
        have another identity only if the watermark has 0 writes. A shard without an identity
        changes nothing.
        """
        if not self.identities:
            return watermark
        if watermark is None or watermark.identity not in self.identities:
            # The first identity is the one under which most processes remember the shard.
            return Watermark(self.identities[0], self.writes)
        if self.writes > watermark.writes:
            return Watermark(watermark.identity, self.writes)
        return watermark


@dataclass(frozen=True, slots=True)
class HaltReason:
    """Why a shard is halted. There are three reasons:

    * It has lost writes: `found` is below `remembered`.
    * Another shard of its server has lost writes: `found` equals `remembered`.
    * A backup is being restored into it: `backup_taken_at` is set.
    """

    #: The identity of the watermark, "" for no watermark.
    identity: str
    #: The write counter of the watermark.
    remembered: int
    #: The write counter that the shard has now, never above `remembered`. It is 0 if the shard does
    #: not know the identity: then all of its data are other data.
    found: int
    #: From how long a time writes are missing, in seconds. It is an estimate: the time between the
    #: last write that is still there and the watermark. None if that is not known.
    lost_seconds: float | None = None
    #: When the backup was taken that is being restored, in Unix seconds; 0 for no restore.
    backup_taken_at: float = 0.0

    @classmethod
    def read(cls, text: str) -> HaltReason:
        """Parse the halt of a shard. A damaged text says only that the shard is halted."""
        try:
            return _HALT_REASON.validate_json(text)
        except ValueError:
            return cls("", 0, 0)

    @classmethod
    def sum(cls, reasons: Iterable[HaltReason]) -> HaltReason:
        """Return what several shards lost together.

        All shards of a server lose the same seconds, so these are not added. One shard whose seconds
        are unknown makes them unknown. Shards that were only halted with the others do not count
        here: they have no seconds.
        """
        halts = list(reasons)
        seconds = [halt.lost_seconds for halt in halts if halt.remembered > halt.found]
        known = [each for each in seconds if each is not None]
        lost_seconds = None
        if known and len(known) == len(seconds):
            lost_seconds = max(known)
        return cls(
            identity=halts[0].identity if len(halts) == 1 else "",
            remembered=sum(halt.remembered for halt in halts),
            found=sum(halt.found for halt in halts),
            lost_seconds=lost_seconds,
            backup_taken_at=max((halt.backup_taken_at for halt in halts), default=0.0),
        )

    def to_json(self) -> str:
        """Return the reason as the text that is stored."""
        return _HALT_REASON.dump_json(self).decode()

    def __str__(self) -> str:
        """Return what is missing, as `sayso redis` prints it. It does not speak of a restore."""
        if not self.remembered:
            return "it is not known what is missing"
        if not self.found:
            return f"everything it knew is gone ({self.remembered:,} writes)"
        missing = f"{self.remembered - self.found:,} of {self.remembered:,} writes are missing"
        if self.lost_seconds is None:
            return missing
        return f"{missing}, about the last {self.lost_seconds:.1f} s of them"


_HALT_REASON = TypeAdapter(HaltReason)


#: Sends commands to a server and returns the answers, among them error replies. To check a new
#: connection, it sends them over that connection, since another may lead to another server.
Ask = Callable[[Sequence[Command]], Awaitable[list[Any]]]


def ask_over(client: Redis) -> Ask:
    """Return a function that sends commands over any connection of a client.

    It blocks its thread. It is async only because `Ask` is, so call it with `run_without_loop`.
    """
    connections = Connections.of(client)

    def answer(command: Command) -> Any:
        try:
            return connections.ask(*command)
        except ResponseError as exc:
            return exc

    async def ask(commands: Sequence[Command]) -> list[Any]:
        if isinstance(client, ClusterClient):
            return client.ask_all(commands)
        return [answer(command) for command in commands]

    return ask


def raise_error(answers: Iterable[Any]) -> None:
    """Raise the first answer that is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


async def read_shards(ask: Ask, prefix: str, *, in_cluster: bool) -> dict[int, ShardAnswer]:
    """Return what a server answers to the keys of each shard.

    `in_cluster`: whether `ask` leads to a cluster. There each shard needs its own command; elsewhere
    one command reads all. Raises redis.RedisError.
    """
    answers = await ask(_questions(prefix, whole=not in_cluster))
    raise_error(answers)
    # The answers come in the order of the shards, one value for each of their keys.
    values = list(chain.from_iterable(answers))
    size = len(ShardKeys._fields)
    return {shard: values[size * shard : size * (shard + 1)] for shard in range(SHARDS)}


@cache
def _questions(prefix: str, *, whole: bool) -> Sequence[Command]:
    """Return the commands that read the keys of all shards. `whole`: in one command."""
    keys = [keys_of(shard, prefix) for shard in range(SHARDS)]
    if whole:
        return [("MGET", *chain.from_iterable(keys))]
    return [("MGET", *each) for each in keys]


@dataclass(frozen=True, slots=True)
class _StoredWatermarks:
    """The content of the file."""

    version: Literal[1]
    #: The watermarks, by the address of the server and by shard.
    servers: dict[str, dict[int, Watermark]]


_STORED_WATERMARKS = TypeAdapter(_StoredWatermarks)


class WatermarkFile:
    """A small JSON file with watermarks, which all processes with the same data folder share.

    The file is replaced as a whole, so that a reader never finds half of it. There is no lock: if
    two processes save at once, the file lacks what one of them saved, until that process saves
    again. The processes of one server see the same counters, so little is missing for a short time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Mapping[str, Watermarks]:
        """Return the stored watermarks by address of the server.

        A file that is missing, damaged or of another version counts as empty.
        """
        try:
            return _STORED_WATERMARKS.validate_json(self._path.read_bytes()).servers
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            log.warning("watermark.not_read", extra={"reason": type(exc).__name__})
            return {}

    def save(self, address: str, watermarks: Watermarks) -> None:
        """Store the watermarks of an address. An error is only logged: the process goes on.

        If the file has a higher one of the same identity, that one stays. Counters of two
        identities cannot be compared, so a watermark of another identity replaces the stored one.
        """
        servers = {each: dict(stored) for each, stored in self.load().items()}
        stored = servers.pop(address, {})
        for shard, watermark in watermarks.items():
            before = stored.get(shard)
            is_higher = (
                before is not None
                and before.identity == watermark.identity
                and before.writes > watermark.writes
            )
            if not is_higher:
                stored[shard] = watermark

        # The address that was used last stands last, so that the oldest one is dropped.
        servers[address] = stored
        content = _StoredWatermarks(1, dict(list(servers.items())[-MAX_ADDRESSES:]))
        # A random name: in containers that share a data folder, processes have the same ids.
        new_file = self._path.with_name(f"{self._path.name}.{random_id(8)}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                new_file.write_bytes(_STORED_WATERMARKS.dump_json(content))
                new_file.replace(self._path)
            finally:
                new_file.unlink(missing_ok=True)
        except OSError as exc:
            log.warning("watermark.not_stored", extra={"reason": type(exc).__name__})
