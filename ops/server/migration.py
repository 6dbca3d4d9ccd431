"""Migration: change stored data for a new release, and show what is left to change.

A release can work on the data of the release before, so processes are upgraded first and the data
afterwards. The migration removes what only older processes need, so it is refused while any of them
runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from redis import Redis
from redis.client import Pipeline

from sayso.infra.records import READABLE, version_of
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.scripts import LAYOUT
from sayso.ops.server.snapshot import BATCH, batches
from sayso.workers.deployment_name import check_layout
from sayso.workers.recovery import GONE_SECONDS, Heartbeat, own_version

#: Keys that Redis looks at per SCAN.
SCAN_COUNT = 1000
#: The keys of layout 1 that no process of layout 2 uses:
#: a watermark and an identity for the whole server.
_LAYOUT_1 = ("tide", "founded")
#: How the records in a key are read, by the part of its name after the shard.
#: The texts may have a number before them.
_RECORDS: Mapping[str, Callable[[Pipeline, str], object]] = {
    "inbox": lambda pipe, key: pipe.lrange(key, 0, -1),
    "outbox": lambda pipe, key: pipe.lrange(key, 0, -1),
    "timer": lambda pipe, key: pipe.hvals(key),
    "history": lambda pipe, key: pipe.get(key),
    "people": lambda pipe, key: pipe.hvals(key),
    "person": lambda pipe, key: pipe.get(key),
    "pending": lambda pipe, key: pipe.hmget(key, "record"),
}
#: Names of the kinds of records, for messages.
_KINDS = {
    "inbox": "waiting messages",
    "outbox": "waiting replies",
    "timer": "timers",
    "history": "histories",
    "people": "people approved or blocked",
    "person": "ids of people",
    "pending": "actions",
}


class OtherProcesses(Exception):
    """Raised when data cannot be migrated because processes of another version may need it as
    it is. The message names the cure.
    """


@dataclass(frozen=True, slots=True)
class MigrationState:
    """The stored data: the layout of the keys, keys of older layouts,
    and the number of records by kind and version.

    `workers`, `ingress`: how many workers, and web and poll processes, of each version of Sayso
    live, "" for those that note none.
    """

    layout: int
    old_keys: tuple[str, ...] = ()
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    ingress: Mapping[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> list[str]:
        """Return what a migration would do, in words; nothing when there is nothing to do."""
        steps = [
            f"delete the key {key!r}, which only versions before layout {LAYOUT} use"
            for key in self.old_keys
        ]
        if self.layout != LAYOUT:
            steps.append(
                f"note layout {LAYOUT} in place of {self.layout}: older versions then refuse to start"
            )
        return steps

    @property
    def unreadable(self) -> int:
        """Return how many records this version cannot read."""
        return sum(count for (_, version), count in self.records.items() if version not in READABLE)


def inspect(client: Redis, name: str, *, prefix: str = PREFIX) -> MigrationState:
    """Return the state of a bot's data.

    Changes nothing. Raises RedisUnfit for a newer layout, and redis.RedisError.
    """
    record = json.loads(str(client.get(f"{prefix}deployment") or "null"))
    if record:
        layout = check_layout(record, name)
    else:
        layout = LAYOUT
    old_keys = tuple(key for key in _LAYOUT_1 if client.exists(f"{prefix}{key}"))
    records = Counter(_records(client, prefix))
    workers = Heartbeat(client, prefix=prefix)
    ingress = Heartbeat(client, kind="ingress", prefix=prefix)
    return MigrationState(layout, old_keys, records, workers.versions(), ingress.versions())


def migrate(client: Redis, name: str, *, prefix: str = PREFIX) -> MigrationState:
    """Change the stored data for this version, and return the state before.

    If it is killed, run it again.

    Raises OtherProcesses while those of another version than this one are alive,
    RedisUnfit and redis.RedisError.
    """
    found = inspect(client, name, prefix=prefix)
    others = [
        f"{count} of {sum(versions.values())} {kind}"
        for kind, versions in (
            ("workers", found.workers),
            ("web and poll processes", found.ingress),
        )
        if (count := sum(versions.values()) - versions.get(own_version(), 0))
    ]
    if others:
        raise OtherProcesses(
            f"of another version than this command: {', '.join(others)}. They may still read old data: restart them "
            f"with this version first. One that ended may count for {GONE_SECONDS} seconds"
        )
    if found.old_keys:
        client.delete(*(f"{prefix}{key}" for key in found.old_keys))
    key = f"{prefix}deployment"

    def note_layout(pipe: Pipeline) -> None:
        record = json.loads(str(pipe.get(key) or "null"))
        pipe.multi()
        if record:
            pipe.set(key, json.dumps({**record, "v": LAYOUT}))

    client.transaction(note_layout, key)
    return found


def _records(client: Redis, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and the version of each record."""
    for keys in batches(client.scan_iter(match=f"{prefix}*", count=SCAN_COUNT), BATCH):
        pipe = client.pipeline(transaction=False)
        kinds = []
        for key in map(str, keys):
            name = key.removeprefix(prefix)
            if name.startswith("{"):
                kind = name.partition("}:")[2].partition(":")[0]
            else:
                kind = name.partition(":")[0]
            if kind in _RECORDS:
                _RECORDS[kind](pipe, key)
                kinds.append(_KINDS[kind])
        for kind, found in zip(kinds, pipe.execute(), strict=True):
            for text in filter(None, [found] if isinstance(found, str) else found or ()):
                yield kind, _action_version(text) if kind == _KINDS["pending"] else version_of(text)


def _action_version(record: str) -> int:
    """Return the version of a signed record, whose keys are in any order.

    A damaged one is refused by its reader.
    """
    try:
        return int(json.loads(record).get("v", 1))
    except (ValueError, TypeError, AttributeError):
        return 1


def describe(state: MigrationState) -> Iterator[str]:
    """Yield what is stored, in lines for an operator."""
    yield f"keys: layout {state.layout}, this version writes {LAYOUT}"
    for (kind, version), count in sorted(state.records.items()):
        if version in READABLE:
            note = ""
        else:
            note = " (this version leaves them to others)"
        yield f"records: {kind} of version {version}: {count:,}{note}"
    for kind, versions in (("workers", state.workers), ("web and poll processes", state.ingress)):
        for sayso, count in sorted(versions.items()):
            yield f"{kind}: {count} of version {sayso or 'unknown, which is older'}"
    if state.unreadable:
        yield f"records that this version cannot read: {state.unreadable:,}. Run workers of a version that can"
