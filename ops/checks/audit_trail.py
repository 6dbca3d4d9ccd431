"""AuditTrail: what the audit log knows of actions, from the ledger and from Redis.

The bot writes each audit entry to Redis. Later the entries are collected into the ledger, a file on
this machine. A trail joins both, so that an action of the last seconds is found too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from redis import Redis

from sayso.channels.types import Conversation
from sayso.ops.checks.stored_json import stored_fields
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.collector import UncollectedEntries
from sayso.pending.audit.entries import AuditEntry
from sayso.pending.audit.ledger import AuditLedger


class AuditTrail:
    """The audit entries of actions, and the records in the ledger. Lives as long as a command.

    Each action, and what waits in Redis, is read once. The ledger or Redis may be missing (None).
    `prefix` is how the bot's keys in Redis begin. All methods raise redis.RedisError and
    LedgerUnusable.
    """

    def __init__(self, ledger: AuditLedger | None, client: Redis | None, *, prefix: str) -> None:
        self._ledger = ledger
        self._client = client
        self._prefix = prefix
        #: The audit entries that were read, by the id of their action.
        self._read_entries: dict[str, list[AuditEntry]] = {}

    def entries(self, action_id: str) -> list[AuditEntry]:
        """Return the audit entries of an action in their order."""
        if action_id not in self._read_entries:
            entries = set(self._uncollected)
            if self._ledger:
                entries |= set(self._ledger.find_by_action(action_id))
            ordered = [entry for _, entry in sorted(entries, key=_place_of)]
            self._read_entries[action_id] = [
                each for each in ordered if each.action_id == action_id
            ]
        return self._read_entries[action_id]

    def find_decided(self, is_meant: Callable[[str], bool]) -> list[str]:
        """Return the ids of the actions that an event decided.

        `is_meant` returns whether the event with this id is meant.
        """
        entries: list[AuditEntry] = []
        if self._ledger:
            entries += self._ledger.find_decided(is_meant)
        for _, entry in self._uncollected:
            if entry.decided_by_event and is_meant(entry.decided_by_event):
                entries.append(entry)
        return list(dict.fromkeys(entry.action_id for entry in entries))

    def find_by_number(self, shard: int, number: int) -> list[str]:
        """Return the ids of the actions of the entry `number` of a shard.

        They are several only if entries of several actions claim the same number.
        """
        entries = {each for each in self._uncollected if _place_of(each) == (shard, number)}
        if self._ledger:
            entries |= set(self._ledger.find_by_number(shard, number))
        return sorted({entry.action_id for _, entry in entries})

    def find_by_outcome(self, reference: str) -> list[str]:
        """Return the ids of the actions whose outcome, as the person read it, has this text."""
        if self._ledger is None:
            return []
        return list(self._ledger.find_by_outcome(reference))

    def body(self, action_id: str) -> AuditBody | None:
        """Return the personal part of an action in the ledger, None without one."""
        if self._ledger:
            return self._ledger.bodies(action_id).get(action_id)
        return None

    def record(self, action_id: str) -> dict[str, Any]:
        """Return the record of an action in the ledger; {} for none, and after it was erased."""
        body = self.body(action_id)
        if body is None:
            return {}
        return stored_fields(body.record)

    def requests_about(self, action_id: str) -> list[tuple[str, Conversation]]:
        """Return the ids of the requests about an action, and where they stand, from the ledger."""
        if self._ledger is None:
            return []
        return [
            (body.action_id, body.conversation)
            for body in self._ledger.find_bodies(action_id)
            if body.requested and body.requested.action_id == action_id
        ]

    @cached_property
    def _uncollected(self) -> list[tuple[int, AuditEntry]]:
        """The audit entries that wait in Redis for a ledger, with their shards."""
        if self._client is None:
            return []
        recorded = UncollectedEntries(self._client, prefix=self._prefix).entries()
        return [(each.shard, each.entry) for each in recorded if each.entry]


def _place_of(entry: tuple[int, AuditEntry]) -> tuple[int, int]:
    """Return the shard of an audit entry and its number there."""
    return entry[0], entry[1].number
