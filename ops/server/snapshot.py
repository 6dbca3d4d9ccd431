"""The keys of one bot as they were at one moment, read from a Redis that goes on working.

The server makes a snapshot of itself, as for a new replica (SYNC). A temporary server on this
machine loads it, and the bot's keys are read there, each by its type. So they can be put into any
Redis of any version.

A server that refuses SYNC, as most managed ones do, is read key by key. Its *write counter*, which
every writing script of Sayso increments, shows then whether a script wrote meanwhile.

On a Cluster this is done with one master after the other. All keys of one conversation lie in one
shard and therefore on one master, so they fit together as long as no slot moves meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

from redis import Redis
from redis.client import Pipeline
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import ResponseError

from sayso.infra.redis.client import servers_of
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.url import RedisUrl
from sayso.infra.storage.files import make_private, open_private
from sayso.ops.server.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from sayso.pending.approvals.requests import REQUEST_KIND
from sayso.pending.sharded_scripts import SHARDS
from sayso.pending.stored_action import OPEN_STATES
from sayso.workers.data_loss.watermarks import keys_of

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Keys that are read, and written, in one round trip.
BATCH = 200
#: How long a server may send nothing before its snapshot is given up, in seconds. While it makes
#: one, it sends a line end every second.
SILENT_SECONDS = 60.0
#: How often a server without SYNC is read. An attempt fails when a script writes meanwhile.
ATTEMPTS = 3
_BLOCK_BYTES = 1024 * 1024


class SnapshotError(Exception):
    """Raised when the keys cannot be read as of one moment. The message names the cure."""


class _NoSync(Exception):
    """Raised when a server does not give its snapshot, or this machine cannot read it.

    The message says why.
    """


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key of Redis with its value.

    Its texts may hold any bytes: those that are not UTF-8 are lone surrogates in them, as Python's
    error handler `surrogateescape` makes them.
    """

    #: Its name without the bot's prefix.
    name: str
    #: The type that Redis calls it by, such as `hash`.
    type: str
    #: A text, or a list or dict of texts, by the type.
    value: Any
    #: When the key expires, in Unix milliseconds; 0 for never.
    expires_at: int = 0

    def to_json(self) -> str:
        """Return the key as one line. JSON can write lone surrogates."""
        return json.dumps([self.name, self.type, self.value, self.expires_at])

    @classmethod
    def from_json(cls, line: str) -> StoredKey:
        """Read the result of `to_json`. Raises ValueError."""
        try:
            return cls(*json.loads(line))
        except TypeError as exc:
            raise ValueError("no stored key") from exc


@contextmanager
def read_snapshot(client: Redis, folder: Path, *, prefix: str) -> Iterator[Iterator[StoredKey]]:
    """Yield an iterator of the keys with this prefix, as they are at one moment.

    On a Cluster it is one moment for each master. `folder` is created for the snapshots, and
    removed afterwards. Raises SnapshotError, redis.RedisError and OSError.
    """
    # Keys of a slot that moves may be missed: their new master may have been read already.
    slots = _slots_of(client)
    try:
        with contextlib.closing(_read_servers(client, folder, prefix)) as keys:
            yield keys
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if _slots_of(client) != slots:
        raise SnapshotError(
            "slots of this Redis Cluster moved, or a master was replaced meanwhile: run it again"
        )


def _slots_of(client: Redis) -> dict[str, Any]:
    """Return the slots of each master of a Cluster by its id; {} for a single server.

    Raises SnapshotError while a slot moves, and where a slot has no master.
    """
    if not isinstance(client, ClusterClient):
        return {}

    slots: dict[str, list[list[str]]] = {}
    for master in servers_of(client):
        nodes: dict[str, Any] = master.execute_command("CLUSTER NODES")
        own = next(node for node in nodes.values() if "myself" in node["flags"])
        if own["migrations"]:
            raise SnapshotError(
                "slots of this Redis Cluster are moving to other masters: wait until that is done"
            )
        slots[own["node_id"]] = own["slots"]

    served = 0
    for ranges in slots.values():
        for ends in ranges:  # a range of one slot has one end
            served += int(ends[-1]) - int(ends[0]) + 1
    if served != REDIS_CLUSTER_HASH_SLOTS:
        raise SnapshotError(
            f"only {served:,} of the {REDIS_CLUSTER_HASH_SLOTS:,} slots of this Redis Cluster have a "
            "master: repair it first (`redis-cli --cluster check`)"
        )
    return slots


def _read_servers(client: Redis, folder: Path, prefix: str) -> Generator[StoredKey, None, None]:
    """Yield the keys of one server, or of one master after the other."""
    for server in servers_of(client):
        with contextlib.ExitStack() as stack:
            try:
                copy = stack.enter_context(_load_copy(server, folder))
            except _NoSync as exc:
                log.warning("backup.without_sync", extra={"reason": str(exc)})
                yield from _read_unchanged(server, client, folder, prefix, str(exc))
            else:
                yield from _read_keys(copy, prefix)


@contextmanager
def _load_copy(client: Redis, folder: Path) -> Iterator[Redis]:
    """Yield a client of a temporary server that has loaded a snapshot of the client's server.

    Raises _NoSync.
    """
    server = EmbeddedRedis(folder, appends=False)
    try:
        server.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(server.folder / "dump.rdb", "wb") as file:
            _save_snapshot(client, file)
        try:
            server.start()
        except EmbeddedRedisError as exc:
            reason = _load_failure(server.folder) or str(exc)
            raise _NoSync(f"this machine cannot read its snapshot: {reason}") from exc

        db = client.connection_pool.connection_kwargs.get("db") or 0
        options = {"decode_responses": True, "encoding_errors": "surrogateescape"}
        pool = RedisUrl.parse(f"{server.url}?db={db}").pool(**options)
        with Redis.from_pool(pool) as copy:
            yield copy
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _load_failure(folder: Path) -> str:
    """Return why a server could not load its file, as its log says; "" where it does not."""
    try:
        lines = (folder / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        is_about_loading = "RDB" in line or "loading" in line.lower()
        _, _, warning = line.partition(" # ")  # Redis marks warnings with #
        if is_about_loading and warning:
            return warning
    return ""


def _save_snapshot(client: Redis, file: BinaryIO) -> None:
    """Write the snapshot that the server makes for a new replica to a file.

    The server sends line ends while it saves, then `$<length>`, then so many bytes. Raises _NoSync
    and redis.RedisError.
    """
    connection: Any = client.connection_pool.get_connection()
    try:
        connection.connect()
        # From Redis 7 on: the server keeps no buffer of later writes for us. Older ones refuse it.
        with contextlib.suppress(ResponseError):
            connection.send_command("REPLCONF", "rdb-only", "1")
            connection.read_response()
        stream = connection._sock  # noqa: SLF001  # the answer to SYNC is not in Redis's protocol, so no parser may read it
        stream.settimeout(SILENT_SECONDS)
        stream.sendall(b"SYNC\r\n")
        with stream.makefile("rb") as answer:
            head = answer.readline()
            while head == b"\n":  # sent once a second while the server saves
                head = answer.readline()
            if not head.startswith(b"$") or not head[1:].strip().isdigit():
                error = head.decode(errors="replace").strip().strip("-")
                raise _NoSync(f"it refuses SYNC ({error or 'no answer'})")

            missing = int(head[1:])
            while missing:
                block = answer.read(min(missing, _BLOCK_BYTES))
                if not block:
                    break
                file.write(block)
                missing -= len(block)
        if missing:
            raise _NoSync("its snapshot ended early")
    except OSError as exc:
        raise _NoSync(f"its snapshot broke off ({type(exc).__name__})") from exc
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def _read_unchanged(
    server: Redis, client: Redis, folder: Path, prefix: str, reason: str
) -> Iterator[StoredKey]:
    """Yield the keys of one server, read one by one, if no script wrote while they were read.

    `client` is that of the whole Cluster, or the same as `server`. `reason` says why the server
    gives no snapshot. Raises SnapshotError where scripts wrote at each attempt.
    """
    for _ in range(ATTEMPTS):
        before = count_writes(client, prefix)
        with TemporaryFile("w+", encoding="ascii", dir=make_private(folder)) as lines:
            # The keys wait in a file for the end of the reading: they may not fit into memory.
            lines.writelines(f"{key.to_json()}\n" for key in _read_keys(server, prefix))
            if count_writes(client, prefix) == before:
                lines.seek(0)
                yield from map(StoredKey.from_json, lines)
                return
    raise SnapshotError(
        f"this Redis gives no snapshot: {reason}. It was read key by key, and messages came in meanwhile: stop web and "
        "workers during the backup, or use your vendor's snapshot together with `sayso backup --without-redis`"
    )


def count_writes(client: Redis, prefix: str) -> int:
    """Return how many writing scripts the servers of the bot have run for it: a sum over shards."""
    pipe = client.pipeline(transaction=False)
    for shard in range(SHARDS):
        pipe.get(keys_of(shard, prefix).write_counter)
    return sum(int(counter or 0) for counter in pipe.execute())


def _read_keys(client: Redis, prefix: str) -> Iterator[StoredKey]:
    """Yield all keys with a prefix, in any order.

    Keys that vanish meanwhile are left out, and so are keys of a type that Sayso does not use.
    """
    for names in batches(client.scan_iter(match=f"{prefix}*", count=1000), BATCH):
        seconds, micros = client.time()
        now = int(seconds) * 1000 + int(micros) // 1000
        pipe = client.pipeline(transaction=False)
        for name in map(_as_bytes, names):
            pipe.type(name)
            pipe.pttl(name)
        # Type and remaining milliseconds of each key, by turns.
        answers = pipe.execute()
        types = answers[0::2]
        lifetimes = answers[1::2]

        for name, kind in zip(names, types, strict=True):
            read = _READ.get(kind, _skip)
            read(pipe, _as_bytes(name))
        values = pipe.execute()

        for name, kind, lifetime, value in zip(names, types, lifetimes, values, strict=True):
            # -2: the key had expired. An empty text is a value, an empty list is a missing key.
            is_present = lifetime != -2 and (value or value == "")
            if kind not in _READ or not is_present:
                continue
            expires_at = 0
            if lifetime >= 0:
                expires_at = now + lifetime
            # JSON has no sets.
            content = sorted(value) if kind == "set" else value
            yield StoredKey(name.removeprefix(prefix), kind, content, expires_at)


def batches(values: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield values in groups of at most this size."""
    iterator = iter(values)
    while batch := tuple(islice(iterator, size)):
        yield batch


def _skip(pipe: Pipeline, name: bytes) -> None:
    """Queue a command whose answer is not used, so that each key of a batch has one answer."""
    pipe.exists(name)


#: Queues the command that reads a key, by its type.
_READ: Mapping[str, Callable[[Pipeline, bytes], object]] = {
    "string": lambda pipe, name: pipe.get(name),
    "list": lambda pipe, name: pipe.lrange(name, 0, -1),
    "hash": lambda pipe, name: pipe.hgetall(name),
    "set": lambda pipe, name: pipe.execute_command("SMEMBERS", name),
    "zset": lambda pipe, name: pipe.zrange(name, 0, -1, withscores=True),
    "stream": lambda pipe, name: pipe.xrange(name),
}


def write_keys(client: Redis, keys: Iterable[StoredKey], *, prefix: str) -> int:
    """Write the keys that have not expired, and replace those of the same names.

    Return how many were written. Raises redis.RedisError.
    """
    written = 0
    for batch in batches(keys, BATCH):
        seconds, _ = client.time()
        now = int(seconds) * 1000
        pipe = client.pipeline(transaction=False)
        for key in batch:
            has_expired = key.expires_at and key.expires_at <= now
            if has_expired:
                continue
            name = _as_bytes(f"{prefix}{key.name}")
            pipe.delete(name)
            _write(pipe, name, key)
            if key.expires_at:
                pipe.pexpireat(name, key.expires_at)
            written += 1
        pipe.execute()
    return written


def _write(pipe: Pipeline, name: bytes, key: StoredKey) -> None:
    """Queue the command that writes a key. Raises ValueError for a type that no backup has."""
    value = _as_bytes(key.value)
    match key.type:
        case "string":
            pipe.set(name, value)
        case "list":
            pipe.rpush(name, *value)
        case "hash":
            pipe.hset(name, mapping=value)
        case "set":
            pipe.sadd(name, *value)
        case "zset":
            pipe.zadd(name, dict(value))
        case "stream":
            for entry, fields in value:
                pipe.xadd(name, fields, id=entry)
        case other:
            raise ValueError(f"the key {key.name!r} has the unknown type {other!r}")


def _as_bytes(value: Any) -> Any:
    """Return a value with bytes in place of its texts.

    Lone surrogates become the bytes that they stand for; hiredis would refuse them.
    """
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {_as_bytes(name): _as_bytes(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_bytes(each) for each in value]
    return value


def delete_keys(client: Redis, *, prefix: str, but: Sequence[str] = ()) -> int:
    """Delete all keys with a prefix, except those in `but`.

    Return how many were deleted. Raises redis.RedisError.
    """
    deleted = 0
    for names in batches(client.scan_iter(match=f"{prefix}*", count=1000), BATCH):
        others = [_as_bytes(name) for name in names if name not in but]
        if others:
            deleted += int(client.delete(*others))
    return deleted


def yield_and_count(keys: Iterable[StoredKey], counts: dict[str, int]) -> Iterator[StoredKey]:
    """Yield the same keys, and add to `counts` how many of each kind there are.

    The kinds are `keys`, `conversations`, `waiting_turns`, `waiting_replies`, `open_actions`,
    `people` (approved or blocked) and `installations` of apps.
    """
    for key in keys:
        counts["keys"] = counts.get("keys", 0) + 1
        for kind, number in _kinds(key):
            counts[kind] = counts.get(kind, 0) + number
        yield key


def _kinds(key: StoredKey) -> Iterator[tuple[str, int]]:
    """Yield the names of the counts to which a key adds, each with the number that it adds."""
    _, _, rest = key.name.partition("}:")
    if rest.startswith("conversation:"):
        yield "conversations", 1
    elif rest.startswith("inbox:"):
        yield "waiting_turns", len(key.value)
    elif rest.startswith("outbox:"):
        yield "waiting_replies", len(key.value)
    elif rest.startswith("pending:") and isinstance(key.value, Mapping):
        # A request asks about another action, which counts.
        is_request = key.value.get("kind") == REQUEST_KIND
        is_open = key.value.get("state") in OPEN_STATES and not is_request
        yield "open_actions", int(is_open)
    elif rest == "installed":
        yield "installations", len(key.value)
    elif key.name.startswith("people:"):
        yield "people", len(key.value)
