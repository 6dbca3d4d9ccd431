"""The keys of one bot as they were at one moment, read from a Redis that goes on working.

The server makes a snapshot of itself, as for a new replica (SYNC). A temporary server on this
machine loads it, and the bot's keys are read there, each by its type. So they can be put into any
Redis of any version.

A server that refuses SYNC, as most managed ones do, is read key by key.
The watermark proves then that no script wrote meanwhile.

On a Cluster this is done with one master after the other. Whatever must fit together lies in one
shard, so on one master, as long as no slot moves meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
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
from sayso.infra.redis.scripts import SHARDS
from sayso.infra.redis.url import RedisUrl
from sayso.infra.storage.files import make_private, open_private
from sayso.ops.server.embedded_redis import EmbeddedRedis, EmbeddedRedisError
from sayso.workers.data_loss.watermarks import keys_of

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Keys that are read, and written, in one round trip.
BATCH = 200
#: Seconds without any byte after which the server's snapshot is given up. While it makes one,
#: it sends line ends.
SILENT_SECONDS = 60.0
#: How often a server without SYNC is read in the hope that no script writes meanwhile.
TRIES = 3
_BLOCK_BYTES = 1024 * 1024


class SnapshotError(Exception):
    """Raised when the keys cannot be read as of one moment. The message names the cure."""


class _NoSync(Exception):
    """Raised when a server does not give its snapshot, or this machine cannot read it.

    The message says why.
    """


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key without the bot's prefix, its type and value, and when it expires in Unix milliseconds,
    0 for never.
    """

    name: str
    type: str
    value: Any
    expires_at: int = 0

    def to_json(self) -> str:
        """Return the key as one line.

        Bytes that are no UTF-8 are lone surrogates, which JSON can spell.
        """
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
    """Yield the keys with this prefix as of one moment, on a Cluster of one moment of each master.
    `folder` is created for the snapshots, and removed afterwards.

    Raises SnapshotError, redis.RedisError and OSError.
    """
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
    """Return the slots of each master of a Cluster by its id, nothing for one server. Raises
    SnapshotError while a slot moves, and where one has no master.
    """
    slots: dict[str, list[list[str]]] = {}
    masters: Sequence[Redis] = servers_of(client) if isinstance(client, ClusterClient) else ()
    for master in masters:
        nodes: dict[str, Any] = master.execute_command("CLUSTER NODES")
        own = next(node for node in nodes.values() if "myself" in node["flags"])
        if own["migrations"]:
            raise SnapshotError(
                "slots of this Redis Cluster are moving to other masters: wait until that is done"
            )
        slots[own["node_id"]] = own["slots"]
    served = sum(int(ends[-1]) - int(ends[0]) + 1 for each in slots.values() for ends in each)
    if slots and served != REDIS_CLUSTER_HASH_SLOTS:
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
                copy = stack.enter_context(_loaded(server, folder))
            except _NoSync as exc:
                log.warning("backup.without_sync", extra={"reason": str(exc)})
                yield from _read_unchanged(server, client, folder, prefix, str(exc))
            else:
                yield from _read_keys(copy, prefix)


@contextmanager
def _loaded(client: Redis, folder: Path) -> Iterator[Redis]:
    """Yield a client of a temporary server that has loaded the snapshot of the client's.

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
            raise _NoSync(
                f"this machine cannot read its snapshot: {_last_words(server.folder) or exc}"
            ) from exc
        db = client.connection_pool.connection_kwargs.get("db") or 0
        options = {"decode_responses": True, "encoding_errors": "surrogateescape"}
        with Redis.from_pool(RedisUrl.parse(f"{server.url}?db={db}").pool(**options)) as copy:
            yield copy
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _last_words(folder: Path) -> str:
    """Return why a server could not load its file, as its log says."""
    with contextlib.suppress(OSError):
        lines = (folder / "server.log").read_text(errors="replace").splitlines()
        found = [
            line.partition(" # ")[2] for line in lines if "RDB" in line or "loading" in line.lower()
        ]
        return next(filter(None, found), "")
    return ""


def _save_snapshot(client: Redis, file: BinaryIO) -> None:
    """Write the snapshot that the server makes for a new replica to a file.

    Raises _NoSync, redis.RedisError.
    """
    connection: Any = client.connection_pool.get_connection()
    try:
        connection.connect()
        # Before Redis 7; later it saves the server a buffer for us.
        with contextlib.suppress(ResponseError):
            connection.send_command("REPLCONF", "rdb-only", "1")
            connection.read_response()
        stream = connection._sock  # noqa: SLF001  # what comes now is not in Redis's protocol, so no parser may read it
        stream.settimeout(SILENT_SECONDS)
        stream.sendall(b"SYNC\r\n")
        with stream.makefile("rb") as answer:
            head = answer.readline()
            while head == b"\n":  # sent once a second while the server saves
                head = answer.readline()
            if not head.startswith(b"$") or not head[1:].strip().isdigit():
                raise _NoSync(
                    f"it refuses SYNC ({head.decode(errors='replace').strip().strip('-') or 'no answer'})"
                )
            left = int(head[1:])
            while left and (block := answer.read(min(left, _BLOCK_BYTES))):
                file.write(block)
                left -= len(block)
        if left:
            raise _NoSync("its snapshot ended early")
    except OSError as exc:
        raise _NoSync(f"its snapshot broke off ({type(exc).__name__})") from exc
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def _read_unchanged(
    server: Redis, client: Redis, folder: Path, prefix: str, reason: str
) -> Iterator[StoredKey]:
    """Yield the keys of a server, if no watermark rose while they were read.

    Raises SnapshotError.
    """
    for _ in range(TRIES):
        before = watermark_of(client, prefix)
        with TemporaryFile("w+", encoding="ascii", dir=make_private(folder)) as lines:
            # They may not fit into memory.
            lines.writelines(f"{key.to_json()}\n" for key in _read_keys(server, prefix))
            if watermark_of(client, prefix) == before:
                lines.seek(0)
                yield from map(StoredKey.from_json, lines)
                return
    raise SnapshotError(
        f"this Redis gives no snapshot: {reason}. It was read key by key, and messages came in meanwhile: stop web and "
        "workers during the backup, or use your vendor's snapshot together with `sayso backup --without-redis`"
    )


def watermark_of(client: Redis, prefix: str) -> int:
    """Return how many writing scripts a server, or all masters of a Cluster, have run for the bot."""
    pipe = client.pipeline(transaction=False)
    for shard in range(SHARDS):
        pipe.get(keys_of(shard, prefix).write_counter)
    return sum(int(n or 0) for n in pipe.execute())


def _read_keys(client: Redis, prefix: str) -> Iterator[StoredKey]:
    """Yield all keys with a prefix, sorted within each batch.

    Those that vanish meanwhile are left out.
    """
    for names in batches(client.scan_iter(match=f"{prefix}*", count=1000), BATCH):
        seconds, micros = client.time()
        now = int(seconds) * 1000 + int(micros) // 1000
        pipe = client.pipeline(transaction=False)
        for name in map(_as_bytes, names):
            pipe.type(name)
            pipe.pttl(name)
        described = list(batches(pipe.execute(), 2))
        for name, (kind, _) in zip(names, described, strict=True):
            _READ.get(kind, _skip)(pipe, _as_bytes(name))
        values = pipe.execute()
        for name, (kind, left), value in zip(names, described, values, strict=True):
            if kind in _READ and (value or value == "") and left != -2:
                plain = sorted(value) if kind == "set" else value
                yield StoredKey(
                    name.removeprefix(prefix), kind, plain, now + left if left >= 0 else 0
                )


def batches(values: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield values in groups of at most this size."""
    iterator = iter(values)
    while batch := tuple(islice(iterator, size)):
        yield batch


def _skip(pipe: Pipeline, name: bytes) -> None:
    pipe.exists(name)


#: How a key of each type is read.
_READ = {
    "string": lambda pipe, name: pipe.get(name),
    "list": lambda pipe, name: pipe.lrange(name, 0, -1),
    "hash": lambda pipe, name: pipe.hgetall(name),
    "set": lambda pipe, name: pipe.execute_command("SMEMBERS", name),
    "zset": lambda pipe, name: pipe.zrange(name, 0, -1, withscores=True),
    "stream": lambda pipe, name: pipe.xrange(name),
}


def write_keys(client: Redis, keys: Iterable[StoredKey], *, prefix: str) -> int:
    """Write keys that are not over yet, replacing what is there.

    Return how many. Raises redis.RedisError.
    """
    written = 0
    for batch in batches(keys, BATCH):
        seconds, _ = client.time()
        pipe = client.pipeline(transaction=False)
        for key in batch:
            if not key.expires_at or key.expires_at > int(seconds) * 1000:
                name = _as_bytes(f"{prefix}{key.name}")
                pipe.delete(name)
                _write(pipe, name, key)
                if key.expires_at:
                    pipe.pexpireat(name, key.expires_at)
                written += 1
        pipe.execute()
    return written


def _write(pipe: Pipeline, name: bytes, key: StoredKey) -> None:
    """Write one key. Raises ValueError for a type that no backup has."""
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
    """Return a value with bytes in place of texts. hiredis refuses lone surrogates,
    which stand for other bytes.
    """
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {_as_bytes(name): _as_bytes(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_bytes(each) for each in value]
    return value


def delete_keys(client: Redis, *, prefix: str, but: Sequence[str] = ()) -> int:
    """Delete all keys with a prefix, except some. Return how many. Raises redis.RedisError."""
    deleted = 0
    for names in batches(client.scan_iter(match=f"{prefix}*", count=1000), BATCH):
        doomed = [_as_bytes(name) for name in names if name not in but]
        deleted += int(client.delete(*doomed)) if doomed else 0
    return deleted


def count_kinds(keys: Iterable[StoredKey], counts: dict[str, int]) -> Iterator[StoredKey]:
    """Pass keys on, and count them, conversations, waiting turns, open actions,
    approved or blocked people and installations of apps.
    """
    for key in keys:
        counts["keys"] = counts.get("keys", 0) + 1
        for kind, number in _kinds(key):
            counts[kind] = counts.get(kind, 0) + number
        yield key


def _kinds(key: StoredKey) -> Iterator[tuple[str, int]]:
    """Yield what a key adds to each count."""
    _, _, rest = key.name.partition("}:")
    if rest.startswith("conversation:"):
        yield "conversations", 1
    elif rest.startswith("inbox:"):
        yield "waiting_turns", len(key.value)
    elif rest.startswith("outbox:"):
        yield "waiting_replies", len(key.value)
    elif rest.startswith("pending:") and isinstance(key.value, Mapping):
        yield (
            "open_actions",
            int(key.value.get("state") in ("armed", "shown", "claimed", "started")),
        )
    elif rest == "installed":
        yield "installations", len(key.value)
    elif key.name.startswith("people:"):
        yield "people", len(key.value)
