"""AuditCollector: moves the entries of the audit log from Redis into the ledger of this machine."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from prometheus_client import Histogram
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from sayso.infra.concurrency import call_in_thread
from sayso.infra.ids import random_id
from sayso.infra.metrics import (
    APPROVAL_SECONDS,
    APPROVALS,
    PENDING,
    PENDING_ANSWER_SECONDS,
    VOTES,
    label_value,
)
from sayso.infra.redis.client import PREFIX
from sayso.pending.approvals.endings import approval_outcome
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.entries import VOTED, AuditEntry, ChainHead, RecordedEntry
from sayso.pending.audit.ledger import AuditLedger, LedgerUnusable
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.pending.stored_limits import NO_HEAD

log = logging.getLogger(__name__)

#: Seconds between two rounds.
INTERVAL = 1.0
#: Entries of one shard that are read at once; the rest follows in the next round.
BATCH = 500

#: A value that a script wrote as a number. Another client may have written anything.
_NUMBER = re.compile(r"[0-9]{1,15}")
_HEAD = re.compile(r"([0-9]{1,15}) ([0-9a-f]{40})")


@dataclass(frozen=True, slots=True)
class StoredFields:
    """What Redis has of one action, as texts: "" for what is missing."""

    record: str
    mac: str
    outcome_text: str
    #: When the question was shown, in Unix milliseconds.
    shown_at: str
    #: How its person decided, and the votes of other people, one a line.
    decision: str
    votes: str


#: The names of these fields in Redis.
_STORED_FIELDS = tuple(field.name for field in fields(StoredFields))


class UncollectedEntries:
    """The entries in Redis that no ledger has yet.

    Each method reads all shards at once, and raises redis.RedisError. What it returns may have been
    written by an intruder, so texts are read as bytes and values are checked for their form.
    """

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def read(self, limit: int = BATCH) -> list[list[bytes]]:
        """Return the texts of the `limit` oldest entries of each shard; 0 means all entries."""
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            _ask(pipe, "LRANGE", f"{self._key(shard)}:audit", 0, limit - 1)
        return [texts or [] for texts in _answers(pipe)]

    def entries(self) -> list[RecordedEntry]:
        """Return all entries. They are not signed yet."""
        entries: list[RecordedEntry] = []
        for shard, texts in enumerate(self.read(0)):
            entries += parse_entries(shard, texts)
        return entries

    def heads(self) -> dict[int, ChainHead]:
        """Return the head of the chain of each shard, as the scripts remember it."""
        heads: dict[int, ChainHead] = {}
        for shard, value in enumerate(self._strings("audit:head")):
            match = _HEAD.fullmatch(value)
            heads[shard] = ChainHead(0, NO_HEAD)
            if match:
                heads[shard] = ChainHead(int(match[1]), match[2])
        return heads

    def last_collected(self) -> list[int]:
        """Return by shard the number of the last entry that a ledger has, on any machine."""
        values = self._strings("audit:drained")
        return [int(value) if _NUMBER.fullmatch(value) else 0 for value in values]

    def actions(self, places: Sequence[tuple[int, str]]) -> list[StoredFields]:
        """Return what Redis has of some actions. A place is a shard and the id of an action."""
        pipe = self._client.pipeline(transaction=False)
        for shard, action_id in places:
            key = f"{self._key(shard)}:pending:{action_id}"
            _ask(pipe, "HMGET", key, *_STORED_FIELDS)
        actions: list[StoredFields] = []
        for values in _answers(pipe):
            texts = [_text(value or b"") for value in values or [b""] * len(_STORED_FIELDS)]
            actions.append(StoredFields(*texts))
        return actions

    def _strings(self, name: str) -> list[str]:
        """Return the value of a key of each shard, "" where it is missing."""
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            _ask(pipe, "GET", f"{self._key(shard)}:{name}")
        return [_text(value or b"") for value in _answers(pipe)]

    def _key(self, shard: int) -> str:
        return f"{self._prefix}{{{shard}}}"


def _ask(pipe: Pipeline, *command: str | int) -> None:
    """Add a command whose answer is bytes: what is no UTF-8 must not stop the client."""
    pipe.execute_command(*command, NEVER_DECODE=True)


def _answers(pipe: Pipeline) -> list[Any]:
    """Return the answers, None for a key of another type.

    Such a key in one shard must not hide the other shards.
    """
    answers: list[Any] = []
    for answer in pipe.execute(raise_on_error=False):
        if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
            answers.append(None)
        elif isinstance(answer, Exception):
            raise answer
        else:
            answers.append(answer)
    return answers


def parse_entries(shard: int, texts: Sequence[bytes]) -> list[RecordedEntry]:
    """Parse the list of a shard. A text that is not an entry gets the next number."""
    entries: list[RecordedEntry] = []
    number = 0
    for raw in texts:
        text = _text(raw)
        entry = AuditEntry.parse(text)
        if entry:
            number = entry.number
        else:
            number += 1
        entries.append(RecordedEntry(shard, number, text))
    return entries


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


class AuditCollector:
    """Moves entries from Redis to the ledger.

    Runs in every worker; a short lock in Redis lets one work at a time. An entry is on disk before
    Redis deletes it. After a crash in between, the next round stores nothing twice.

    `clock` returns the time in Unix seconds.
    """

    def __init__(
        self,
        client: Redis,
        ledger: AuditLedger,
        *,
        clock: Callable[[], float] = time.time,
        prefix: str = PREFIX,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._clock = clock
        self._uncollected = UncollectedEntries(client, prefix=prefix)
        self._scripts = ShardedScripts(client, ACTION_SCRIPTS, prefix=prefix)
        self._lock = f"{prefix}auditor"
        self._token = random_id()

    async def forever(self) -> None:
        """Run rounds until cancelled.

        An error of Redis or of the disk is logged, and the next round tries again.
        """
        while True:
            try:
                await call_in_thread(self.round)
            except RedisError as exc:
                log.warning("audit.redis_away", extra={"reason": type(exc).__name__})
            except LedgerUnusable as exc:
                log.error("audit.ledger_unusable", extra={"reason": str(exc)})
            except Exception:
                log.exception("audit.failed")
            await asyncio.sleep(INTERVAL)

    def round(self) -> int:
        """Collect, unless another worker just did.

        Return how many entries were collected. Raises RedisError and LedgerUnusable.
        """
        # The lock ends a little before the next round, so that any worker may run it.
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        return self.collect()

    def collect(self) -> int:
        """Move a batch of entries of each shard, and return how many were moved.

        Safe while another worker does the same. Raises RedisError and LedgerUnusable.
        """
        collected_before = self._uncollected.last_collected()
        texts_by_shard = self._uncollected.read()
        if not any(texts_by_shard):
            return 0
        collected_after = self._uncollected.last_collected()

        by_shard = [parse_entries(shard, texts) for shard, texts in enumerate(texts_by_shard)]
        collected: list[RecordedEntry] = []
        for entries in by_shard:
            collected += entries
        actions = self._actions_of(collected)
        for shard, entries in enumerate(by_shard):
            numbers = [recorded.number for recorded in entries]
            _log_gaps(shard, numbers, collected_before[shard], collected_after[shard])

        bodies = [action.body for action in actions.values()]
        conflicts = self._ledger.store(collected, bodies)
        for conflict in conflicts:
            log.error("audit.conflict", extra={"shard": conflict.shard, "entry": conflict.number})
        _count(collected, actions)

        # Only now: what the ledger has must be on disk before Redis forgets it.
        for entries, texts in zip(by_shard, texts_by_shard, strict=True):
            self._delete(entries, texts)
        return len(collected) - len(conflicts)

    def _actions_of(self, collected: Sequence[RecordedEntry]) -> dict[str, _CollectedAction]:
        """Return the actions that these entries are about, by id, with their outcome so far."""
        places: dict[tuple[int, str], None] = {}
        for recorded in collected:
            entry = recorded.entry
            if entry:
                places[recorded.shard, entry.action_id] = None

        at = round(self._clock() * 1000)
        actions: dict[str, _CollectedAction] = {}
        stored = self._uncollected.actions(list(places))
        for (_, action_id), action_fields in zip(places, stored, strict=True):
            body = AuditBody.of(
                action_id,
                action_fields.record or None,
                action_fields.mac,
                action_fields.outcome_text,
                at=at,
                decision=action_fields.decision,
                votes=action_fields.votes,
            )
            actions[action_id] = _CollectedAction(body, action_fields.shown_at)
        return actions

    def _delete(self, entries: Sequence[RecordedEntry], texts: Sequence[bytes]) -> None:
        """Delete from Redis what the ledger has now: the entries of one shard."""
        if not entries:
            return
        numbers: list[int] = []
        invalid: list[bytes] = []
        for recorded, text in zip(entries, texts, strict=True):
            if recorded.entry:
                numbers.append(recorded.number)
            else:
                invalid.append(text)
        # No entry has the number 0: then the script deletes only the invalid texts.
        numbers = numbers or [0]
        stored = {"first": min(numbers), "last": max(numbers)}
        self._scripts.on_shard("drop_audit_entries", entries[0].shard, stored, *invalid)


@dataclass(frozen=True, slots=True)
class _CollectedAction:
    """An action that collected entries are about."""

    body: AuditBody
    #: When the question was shown, in Unix milliseconds; "" if that is not known.
    shown_at: str


def _log_gaps(
    shard: int, numbers: Sequence[int], collected_before: int, collected_after: int
) -> None:
    """Log where entries of a shard are missing: Redis has lost them, or they were deleted.

    `numbers` are those of the entries just read. `collected_before` and `collected_after` are the
    number of the last entry that a ledger had before and after they were read: another worker may
    have collected some in between. `sayso audit verify` names all missing entries.
    """
    for number in numbers[:1]:
        if not collected_before < number <= collected_after + 1:
            log.error(
                "audit.gap", extra={"shard": shard, "after": collected_before, "entry": number}
            )
    for before, number in pairwise(numbers):
        if number != before + 1:
            log.error("audit.gap", extra={"shard": shard, "after": before, "entry": number})


def _count(collected: Sequence[RecordedEntry], actions: Mapping[str, _CollectedAction]) -> None:
    """Count what the entries record, for Prometheus. `actions` are by id.

    An entry that is collected again after a crash counts again.
    """
    for recorded in collected:
        entry = recorded.entry
        if entry is None:
            continue
        action = actions[entry.action_id]
        channel = label_value("channel", action.body.channel or "unknown")
        # A request asks about another action, which counts.
        if action.body.is_request:
            continue
        if entry.event == VOTED:
            _count_vote(entry, action)
            continue
        PENDING.labels(channel, label_value("state", entry.event)).inc()
        if action.body.is_for_others:
            _count_approval(entry, action, channel)
            continue

        is_no = entry.event == "cancelled" and entry.decided_by_event
        is_answer = entry.event == "claimed" or is_no
        if is_answer and not action.body.is_step:
            _observe_wait(PENDING_ANSWER_SECONDS, entry, action, channel)


def _count_vote(entry: AuditEntry, action: _CollectedAction) -> None:
    """Count a vote of another person, on the channel where they answered."""
    for vote in action.body.known_votes:
        if vote.event_id == entry.decided_by_event:
            # Another client may have written values of any type.
            channel = label_value("channel", str(vote.channel))
            answer = label_value("answer", str(vote.answer))
            form = label_value("form", str(vote.form))
            VOTES.labels(channel, answer, form).inc()
            return


def _count_approval(entry: AuditEntry, action: _CollectedAction, channel: str) -> None:
    """Count the end of a question about which other people decide. Any other entry is no end."""
    outcome = approval_outcome(entry.event, entry.decided_by_event, action.body.known_votes)
    if outcome is None:
        return
    APPROVALS.labels(channel, outcome).inc()
    if outcome in ("approved", "denied"):
        _observe_wait(APPROVAL_SECONDS, entry, action, channel)


def _observe_wait(
    histogram: Histogram, entry: AuditEntry, action: _CollectedAction, channel: str
) -> None:
    """Observe the seconds from the question to an answer, if it is known when it was shown."""
    if _NUMBER.fullmatch(action.shown_at):
        waited_ms = max(0, entry.at - int(action.shown_at))
        histogram.labels(channel).observe(waited_ms / 1000)
