"""Migration: change stored data for a new release, and show what is left to change.

A release can work on the data of the release before it, so an operator upgrades the processes
first and the data afterwards. The migration removes what only older processes need, so it is
refused while any of them runs.

The *layout* is the version of the form of all keys, and stored once for a bot. Each *record*, such
as a waiting turn, has a version as well.
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
from sayso.ops.server.snapshot import BATCH, batches
from sayso.pending.sharded_scripts import LAYOUT
from sayso.workers.deployment_name import check_layout
from sayso.workers.recovery import GONE_SECONDS, Heartbeat, own_version

#: Keys that Redis looks at per SCAN.
SCAN_COUNT = 1000
#: The keys of layout 1 that no process of layout 2 uses: a counter of writes and an identity for
#: the whole server.
_LAYOUT_1 = ("tide", "founded")
#: Queues the command that reads the records in a key, by the kind in its name: the part after the
#: shard. A record is a text of JSON, which may have a number before it.
_RECORDS: Mapping[str, Callable[[Pipeline, str], object]] = {
    "inbox": lambda pipe, key: pipe.lrange(key, 0, -1),
    "outbox": lambda pipe, key: pipe.lrange(key, 0, -1),
    "timer": lambda pipe, key: pipe.hvals(key),
    "history": lambda pipe, key: pipe.get(key),
    "people": lambda pipe, key: pipe.hvals(key),
    "person": lambda pipe, key: pipe.get(key),
    "pending": lambda pipe, key: pipe.hmget(key, "record"),
    "accounts": lambda pipe, key: pipe.hvals(key),
    "requests": lambda pipe, key: pipe.hvals(key),
    "absences": lambda pipe, key: pipe.hvals(key),
}
#: What messages call each kind of record.
_KINDS = {
    "inbox": "waiting messages",
    "outbox": "waiting replies",
    "timer": "timers",
    "history": "histories",
    "people": "people approved or blocked",
    "person": "ids of people",
    "pending": "actions",
    "accounts": "joined accounts",
    "requests": "links that wait",
    "absences": "absences",
}


class OtherProcesses(Exception):
    """Raised when processes of another version run, which may need the data in its old form.

    The message names the cure.
    """


@dataclass(frozen=True, slots=True)
class MigrationState:
    """The stored data of a bot, and the processes that use it, at one moment."""

    #: The layout of the keys.
    layout: int
    #: The names, without the bot's prefix, of keys that only older layouts use.
    old_keys: tuple[str, ...] = ()
    #: The number of records, by kind (as messages call it) and version.
    records: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: The number of live workers by their version of Sayso, "" for an unknown one.
    workers: Mapping[str, int] = field(default_factory=dict)
    #: The number of live web and poll processes by their version, "" for an unknown one.
    ingress: Mapping[str, int] = field(default_factory=dict)

    @property
    def steps(self) -> list[str]:
        """What a migration would do, each step in words; [] when there is nothing to do."""
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
        """How many records this version cannot read."""
        total = 0
        for (_, version), count in self.records.items():
            if version not in READABLE:
                total += count
        return total


def inspect(client: Redis, name: str, *, prefix: str = PREFIX) -> MigrationState:
    """Return the state of a bot's data. Changes nothing.

    `name` is the name of the bot. Raises RedisUnfit for a newer layout, and redis.RedisError.
    """
    record = json.loads(str(client.get(f"{prefix}deployment") or "null"))
    layout = LAYOUT
    if record:
        layout = check_layout(record, name)
    old_keys = tuple(key for key in _LAYOUT_1 if client.exists(f"{prefix}{key}"))
    records = Counter(_records(client, prefix))
    workers = Heartbeat(client, prefix=prefix)
    ingress = Heartbeat(client, kind="ingress", prefix=prefix)
    return MigrationState(layout, old_keys, records, workers.versions(), ingress.versions())


def migrate(client: Redis, name: str, *, prefix: str = PREFIX) -> MigrationState:
    """Change the stored data for this version, and return the state before.

    `name` is the name of the bot. If this is killed, run it again.

    Raises OtherProcesses while processes of another version than this one are alive, RedisUnfit and
    redis.RedisError.
    """
    before = inspect(client, name, prefix=prefix)
    others = []
    for kind, versions in (("workers", before.workers), ("web and poll processes", before.ingress)):
        total = sum(versions.values())
        other = total - versions.get(own_version(), 0)
        if other:
            others.append(f"{other} of {total} {kind}")
    if others:
        raise OtherProcesses(
            f"of another version than this command: {', '.join(others)}. They may still read old data: restart them "
            f"with this version first. One that ended may count for {GONE_SECONDS} seconds"
        )

    if before.old_keys:
        client.delete(*(f"{prefix}{key}" for key in before.old_keys))

    # As a transaction: a process that starts now may write the same record.
    key = f"{prefix}deployment"

    def note_layout(pipe: Pipeline) -> None:
        record = json.loads(str(pipe.get(key) or "null"))
        pipe.multi()
        if record:
            pipe.set(key, json.dumps({**record, "v": LAYOUT}))

    client.transaction(note_layout, key)
    return before


def _records(client: Redis, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and the version of each record."""
    for keys in batches(client.scan_iter(match=f"{prefix}*", count=SCAN_COUNT), BATCH):
        pipe = client.pipeline(transaction=False)
        kinds = []
        for key in map(str, keys):
            kind = _kind_of(key.removeprefix(prefix))
            if kind in _RECORDS:
                _RECORDS[kind](pipe, key)
                kinds.append(kind)

        for kind, answer in zip(kinds, pipe.execute(), strict=True):
            # One text or a list of texts, with None for a key that vanished meanwhile.
            texts = [answer] if isinstance(answer, str) else answer or []
            for text in filter(None, texts):
                read_version = _action_version if kind == "pending" else version_of
                version = read_version(text)
                yield _KINDS[kind], version


def _kind_of(name: str) -> str:
    """Return the kind in the name of a key: `inbox` for `{17}:inbox:...` and for `inbox:...`."""
    if name.startswith("{"):
        _, _, name = name.partition("}:")
    return name.partition(":")[0]


def _action_version(record: str) -> int:
    """Return the version of the signed record of an action.

    Its keys are in any order, so `version_of`, which looks at the end of the text, cannot be used.
    A damaged record counts as version 1; its reader refuses it.
    """
    try:
        return int(json.loads(record).get("v", 1))
    except (ValueError, TypeError, AttributeError):
        return 1


def describe(state: MigrationState) -> Iterator[str]:
    """Yield what is stored, in lines for an operator."""
    yield f"keys: layout {state.layout}, this version writes {LAYOUT}"
    for (kind, version), count in sorted(state.records.items()):
        note = ""
        if version not in READABLE:
            note = " (this version leaves them to others)"
        yield f"records: {kind} of version {version}: {count:,}{note}"
    for kind, versions in (("workers", state.workers), ("web and poll processes", state.ingress)):
        for sayso, count in sorted(versions.items()):
            yield f"{kind}: {count} of version {sayso or 'unknown, which is older'}"
    if state.unreadable:
        yield f"records that this version cannot read: {state.unreadable:,}. Run workers of a version that can"
