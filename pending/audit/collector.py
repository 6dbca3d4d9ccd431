"""AuditCollector: move the entries of the audit log from Redis into the ledger file,
and verify all copies.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from sayso.infra.concurrency import call_in_thread
from sayso.infra.ids import random_id
from sayso.infra.metrics import PENDING, PENDING_ANSWER_SECONDS, bounded
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.scripts import SHARDS, LuaScripts
from sayso.pending.action import ActionSigner
from sayso.pending.audit.chain import ChainReport, CheckContext, check_chains
from sayso.pending.audit.ledger import (
    AuditBody,
    AuditEntry,
    AuditLedger,
    ChainHead,
    EntrySigner,
    LedgerUnusable,
    RecordedEntry,
    check_bodies,
    read_export,
)
from sayso.pending.limits import NO_HEAD
from sayso.pending.scripts import ACTION_SCRIPTS

log = logging.getLogger(__name__)

#: Seconds between two rounds.
INTERVAL = 1.0
#: Entries of one shard that are read at once; the rest follows in the next round.
BATCH = 500

#: How a SQLite file begins.
_SQLITE = b"SQLite format 3\0"
_NUMBER = re.compile(r"[0-9]{1,15}")
_TIP = re.compile(r"([0-9]{1,15}) ([0-9a-f]{40})")


class UncollectedEntries:
    """The entries in Redis that no ledger has yet.

    Reads all shards at once. Every method raises redis.RedisError.
    """

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def read(self, limit: int = BATCH) -> list[list[bytes]]:
        """Return the oldest entries of each shard, 0 for all, as bytes:
        an intruder may have written other things.
        """
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            self._ask(pipe, "LRANGE", f"{self._key(shard)}:audit", 0, limit - 1)
        return [texts or [] for texts in _answers(pipe)]

    def entries(self) -> list[RecordedEntry]:
        """Return all entries. They are not signed yet."""
        return [
            entry
            for shard, texts in enumerate(self.read(0))
            for entry in parse_entries(shard, texts)
        ]

    def tips(self) -> dict[int, ChainHead]:
        """Return the last entry of each shard, as the scripts remember it."""
        tips = map(_TIP.fullmatch, self._strings("audit:head"))
        return {
            shard: ChainHead(int(tip[1]), tip[2]) if tip else ChainHead(0, NO_HEAD)
            for shard, tip in enumerate(tips)
        }

    def drained(self) -> list[int]:
        """Return the number of each shard's last entry that was stored in a ledger, on any machine."""
        return [
            int(value) if _NUMBER.fullmatch(value) else 0
            for value in self._strings("audit:drained")
        ]

    def records(self, places: Sequence[tuple[int, str]]) -> list[list[str]]:
        """Return record, MAC, outcome text and when it was shown of some actions;
        "" for what is missing.
        """
        pipe = self._client.pipeline(transaction=False)
        for shard, pid in places:
            key = f"{self._key(shard)}:pending:{pid}"
            self._ask(pipe, "HMGET", key, "record", "mac", "outcome_text", "shown_at")
        return [[_text(value or b"") for value in values or [b""] * 4] for values in _answers(pipe)]

    def _strings(self, name: str) -> list[str]:
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            self._ask(pipe, "GET", f"{self._key(shard)}:{name}")
        return [_text(value or b"") for value in _answers(pipe)]

    def _ask(self, pipe: Pipeline, *command: str | int) -> None:
        pipe.execute_command(*command, NEVER_DECODE=True)

    def _key(self, shard: int) -> str:
        return f"{self._prefix}{{{shard}}}"


def _answers(pipe: Pipeline) -> list[Any]:
    """Return the answers, None for a key of another type:
    such a key in one shard must not hide the other shards.
    """
    answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        is_other_type = isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")
        if isinstance(answer, Exception) and not is_other_type:
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


def parse_entries(shard: int, texts: Sequence[bytes]) -> list[RecordedEntry]:
    """Parse the list of a shard. A text that is not an entry gets the next number."""
    entries: list[RecordedEntry] = []
    for raw in texts:
        text = _text(raw)
        entry = AuditEntry.parse(text)
        next_number = entries[-1].n + 1 if entries else 1
        entries.append(RecordedEntry(shard, entry.n if entry else next_number, text))
    return entries


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


class AuditCollector:
    """Moves entries from Redis to the ledger.

    Runs in every worker; a short lock in Redis lets one work at a time.

    An entry is written to disk before Redis deletes it. After a crash in between,
    the next round stores nothing twice.
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
        self._scripts = LuaScripts(client, ACTION_SCRIPTS, prefix=prefix)
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

        Return how many entries. Raises RedisError and LedgerUnusable.
        """
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        return self.collect()

    def collect(self) -> int:
        """Move a batch of entries.

        Safe while another worker does the same. Raises RedisError and LedgerUnusable.
        """
        drained = self._uncollected.drained()
        lists = self._uncollected.read()
        if not any(lists):
            return 0
        drained_since = self._uncollected.drained()
        found = [parse_entries(shard, texts) for shard, texts in enumerate(lists)]
        collected = [recorded for entries in found for recorded in entries]
        places = list(
            dict.fromkeys((each.shard, each.entry.pid) for each in collected if each.entry)
        )
        at = round(self._clock() * 1000)
        records = self._uncollected.records(places)
        bodies = [  # of all actions that these entries are about, with their outcome so far
            AuditBody.of(pid, record or None, mac, outcome_text, at=at)
            for (_, pid), (record, mac, outcome_text, _) in zip(places, records, strict=True)
        ]
        for shard, entries in enumerate(found):
            _log_gaps(shard, [entry.n for entry in entries], drained[shard], drained_since[shard])
        conflicts = self._ledger.store(collected, bodies)
        for conflict in conflicts:
            log.error("audit.conflict", extra={"shard": conflict.shard, "entry": conflict.n})
        shown_at = {pid: shown for (_, pid), (*_, shown) in zip(places, records, strict=True)}
        _count(collected, {body.pid: (body, shown_at[body.pid]) for body in bodies})
        for entries, texts in zip(found, lists, strict=True):
            self._delete(entries, texts)
        return len(collected) - len(conflicts)

    def _delete(self, entries: Sequence[RecordedEntry], texts: Sequence[bytes]) -> None:
        """Delete from Redis what the ledger has now."""
        if not entries:
            return
        numbers = [recorded.n for recorded in entries if recorded.entry] or [0]
        invalid = [
            text for recorded, text in zip(entries, texts, strict=True) if not recorded.entry
        ]
        self._scripts.on_shard(
            "drained", entries[0].shard, {"first": min(numbers), "last": max(numbers)}, *invalid
        )


def _log_gaps(shard: int, numbers: Sequence[int], drained: int, drained_since: int) -> None:
    """Log where entries of a shard are missing: Redis has lost them, or they were deleted.

    `verify` names them all.

    `drained` and `drained_since` are the last entry that a ledger had before these were read, and
    after it: another worker may have collected some in between. The first one follows an entry of
    this range.
    """
    for number in numbers[:1]:
        if not drained < number <= drained_since + 1:
            log.error("audit.gap", extra={"shard": shard, "after": drained, "entry": number})
    for before, number in pairwise(numbers):
        if number != before + 1:
            log.error("audit.gap", extra={"shard": shard, "after": before, "entry": number})


def _count(
    collected: Sequence[RecordedEntry], actions: Mapping[str, tuple[AuditBody, str]]
) -> None:
    """Count what the entries record, for Prometheus.

    `actions`: of each its body and when it was shown, "" if unknown.

    An entry that is collected again after a crash counts again.
    """
    for entry in filter(None, (recorded.entry for recorded in collected)):
        body, shown = actions[entry.pid]
        channel = bounded("channel", body.channel or "unknown")
        PENDING.labels(channel, bounded("state", entry.event)).inc()
        is_answer = entry.event == "claimed" or (entry.event == "cancelled" and entry.by)
        if is_answer and _NUMBER.fullmatch(shown) and not body.is_step:
            PENDING_ANSWER_SECONDS.labels(channel).observe(max(0, entry.at - int(shown)) / 1000)


def verify(
    files: Sequence[Path],
    keys: Sequence[str],
    *,
    tail: UncollectedEntries | None = None,
    whole: bool = False,
) -> ChainReport:
    """Check ledgers and exports together, and the entries that are
    still in Redis if a `tail` is given.

    Raises LedgerUnusable and redis.RedisError.
    """
    signer = EntrySigner(keys)
    action_signer = ActionSigner(keys)
    # An entry is in Redis until a ledger has it. So Redis is read before the files,
    # and its heads again after them.
    tips = tail.tips() if tail else {}
    uncollected = tail.entries() if tail else []
    copies = [_read(file, signer) for file in files]
    newest = tail.tips() if tail else None
    once = {
        pid
        for _, bodies in copies
        for pid, body in (bodies or {}).items()
        if body.repeatable is False
    }
    context = CheckContext(signer, once, whole, tips, newest)
    report = check_chains([*(entries for entries, _ in copies), uncollected], context)
    faults = set(report.faults)
    for entries, bodies in copies:
        if bodies is not None:  # an export has none; a ledger has one for each of its actions
            faults |= set(check_bodies(entries, bodies, action_signer, signer))
    return replace(report, faults=tuple(sorted(faults)))


def _read(
    file: Path, signer: EntrySigner
) -> tuple[list[RecordedEntry], dict[str, AuditBody] | None]:
    try:
        with file.open("rb") as start:
            is_ledger = start.read(len(_SQLITE)) in (_SQLITE, b"")
    except OSError as exc:
        raise LedgerUnusable(f"{file} cannot be read: {exc.strerror}") from exc
    if not is_ledger:
        return read_export(file), None
    ledger = AuditLedger(file, signer)
    return ledger.entries(), ledger.bodies()
