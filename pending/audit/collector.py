"""AuditCollector: Redis to file."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from sayso.channels.types import random_id
from sayso.pending.audit.chain import ChainReport, Terms, check
from sayso.pending.audit.entry import NO_HEAD, AuditEntry, Body, EntrySigner, Fault, RecordedEntry, Tip, check_bodies
from sayso.pending.audit.export import read_export
from sayso.pending.audit.ledger import AuditLedger, LedgerUnusable
from sayso.pending.concurrency import offload
from sayso.pending.redis.client import PREFIX
from sayso.pending.redis.scripts import SHARDS, LuaScripts
from sayso.pending.signing import ActionSigner

#: Entries of one shard that are read at once; the rest is there in the next round. -1 for all.
BATCH = 500


_NUMBER = re.compile(r"[0-9]{1,15}")


_TIP = re.compile(r"([0-9]{1,15}) ([0-9a-f]{40})")


class UncollectedEntries:
    """The lists of all shards, read in one round trip. Every method raises redis.RedisError."""

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = prefix

    def read(self, most: int = BATCH) -> list[list[bytes]]:
        """The oldest entries of each shard, as they are: somebody may have written bytes that are no text."""
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            self._ask(pipe, "LRANGE", f"{self._key(shard)}:audit", 0, most - 1)
        return [texts or [] for texts in _answers(pipe)]

    def kept(self) -> list[RecordedEntry]:
        """Everything that waits, not signed by anybody yet."""
        return [one for shard, texts in enumerate(self.read(0)) for one in waiting(shard, texts)]

    def tips(self) -> dict[int, Tip]:
        """The last entry of each shard, as the scripts remember it."""
        return {shard: _tip(value) for shard, value in enumerate(self._strings("audit:head"))}

    def drained(self) -> list[int]:
        """The number of the last entry of each shard that went into a ledger, on whatever machine."""
        return [int(value) if _NUMBER.fullmatch(value) else 0 for value in self._strings("audit:drained")]

    def records(self, places: Sequence[tuple[int, str]]) -> list[list[str]]:
        """Record, MAC and what was told of some actions; "" for what is not there."""
        pipe = self._client.pipeline(transaction=False)
        for shard, pid in places:
            key = f"{self._key(shard)}:pending:{pid}"
            self._ask(pipe, "HMGET", key, "rec", "mac", "told")
        return [[_text(value or b"") for value in values or [b""] * 3] for values in _answers(pipe)]

    def _strings(self, name: str) -> list[str]:
        pipe = self._client.pipeline(transaction=False)
        for shard in range(SHARDS):
            self._ask(pipe, "GET", f"{self._key(shard)}:{name}")
        return [_text(value or b"") for value in _answers(pipe)]

    def _ask(self, pipe: Pipeline, *command: str | int) -> None:
        pipe.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]  # redis-py's own

    def _key(self, shard: int) -> str:
        return f"{self._prefix}{{{shard}}}"


def _answers(pipe: Pipeline) -> list[Any]:
    """What was asked for; None for a key of another type: one that somebody put in a shard must not hide the others."""
    found = pipe.execute(raise_on_error=False)
    for answer in found:
        if isinstance(answer, Exception) and not _is_other_type(answer):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in found]


def _is_other_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def waiting(shard: int, texts: Sequence[bytes]) -> list[RecordedEntry]:
    """A shard's list as entries. One that is no entry stands where the next would."""
    found: list[RecordedEntry] = []
    for raw in texts:
        text = _text(raw)
        entry = AuditEntry.parse(text)
        found.append(RecordedEntry(shard, entry.n if entry else found[-1].n + 1 if found else 1, text))
    return found


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _tip(value: str) -> Tip:
    found = _TIP.fullmatch(value)
    return Tip(int(found[1]), found[2]) if found else Tip(0, NO_HEAD)


log = logging.getLogger(__name__)


#: Seconds between two rounds.
INTERVAL = 1.0


_LUA = Path(__file__).parent.parent / "redis" / "lua"


class AuditCollector:
    """Runs in every worker; a short lock in Redis lets one of them work at a time.

    First the ledger has an entry, on disk, then Redis drops it. Killed in between, the next round stores nothing twice.
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
        self._tail = UncollectedEntries(client, prefix=prefix)
        self._scripts = LuaScripts(client, _LUA, prefix=prefix)
        self._lock = f"{prefix}auditor"
        self._token = random_id()

    async def forever(self) -> None:
        """Go round until cancelled. A Redis or a disk that is away is tried again in the next round."""
        while True:
            try:
                await offload(self.round)
            except RedisError as exc:
                log.warning("auditor.redis_away", extra={"reason": type(exc).__name__})
            except LedgerUnusable as exc:
                log.error("auditor.ledger_refuses", extra={"reason": str(exc)})
            except Exception:
                log.exception("auditor.failed")
            await asyncio.sleep(INTERVAL)

    def round(self) -> int:
        """Move what waits, unless another worker just did. Returns how many. Raises RedisError, LedgerUnusable."""
        if not self._client.set(self._lock, self._token, nx=True, px=round(INTERVAL * 900)):
            return 0
        return self.drain()

    def drain(self) -> int:
        """Move what waits, whoever else is at it: two do no harm. Raises RedisError, LedgerUnusable."""
        lists = self._tail.read()
        if not any(lists):
            return 0
        found = [waiting(shard, texts) for shard, texts in enumerate(lists)]
        bodies = self._bodies(found)
        self._report_gaps(found)
        stored = self._ledger.store([one for kept in found for one in kept], bodies)
        for rival in stored.rivals:
            log.error("audit.rival", extra={"shard": rival.shard, "entry": rival.n})
        for kept, texts in zip(found, lists, strict=True):
            self._drop(kept, texts)
        return stored.entries

    def _bodies(self, found: Sequence[Sequence[RecordedEntry]]) -> list[Body]:
        """The bodies of all actions that come by, with the words their users were told by now."""
        entries = [(one.shard, AuditEntry.parse(one.text)) for kept in found for one in kept]
        places = list(dict.fromkeys((shard, entry.pid) for shard, entry in entries if entry))
        at = round(self._clock() * 1000)
        return [
            Body.of(pid, record or None, mac, told, at=at)
            for (_, pid), (record, mac, told) in zip(places, self._tail.records(places), strict=True)
        ]

    def _report_gaps(self, found: Sequence[Sequence[RecordedEntry]]) -> None:
        """Entries that were dropped before anybody came, or a Redis that knows less than it did: verify names them."""
        for shard, (drained, kept) in enumerate(zip(self._tail.drained(), found, strict=True)):
            for before, n in pairwise([drained, *(one.n for one in kept)]):
                if n != before + 1:
                    log.error("audit.gap", extra={"shard": shard, "after": before, "entry": n})

    def _drop(self, kept: Sequence[RecordedEntry], texts: Sequence[bytes]) -> None:
        """Have Redis forget what the ledger has now."""
        if not kept:
            return
        numbers = [one.n for one in kept if AuditEntry.parse(one.text)] or [0]
        strange = [text for one, text in zip(kept, texts, strict=True) if not AuditEntry.parse(one.text)]
        self._scripts.on_shard("drained", kept[0].shard, min(numbers), max(numbers), *strange)


_SQLITE = b"SQLite format 3\0"


def verify(
    files: Sequence[Path], keys: Sequence[str], *, tail: UncollectedEntries | None = None, whole: bool = False
) -> ChainReport:
    """Check ledgers and exports together, with what Redis holds if there is a `tail`.

    Raises LedgerUnusable, redis.RedisError.
    """
    signer, seal = EntrySigner(keys), ActionSigner(keys)
    # An entry is in Redis until a ledger has it. So Redis is read first, and its heads once more at the end.
    tips = tail.tips() if tail else {}
    waiting = tail.kept() if tail else []
    found = [_read(file, signer) for file in files]
    newest = tail.tips() if tail else None
    once = {pid for _, bodies in found for pid, body in (bodies or {}).items() if body.repeatable is False}
    terms = Terms(signer, once, whole, tips, newest)
    report = check([*(kept for kept, _ in found), waiting], terms)
    faults = set(report.faults)
    for kept, bodies in found:
        faults |= _body_faults(kept, bodies, seal, signer)
    return replace(report, faults=tuple(sorted(faults)))


def _body_faults(
    kept: Sequence[RecordedEntry], bodies: dict[str, Body] | None, seal: ActionSigner, signer: EntrySigner
) -> set[Fault]:
    """An export has no bodies; a ledger has one for every action in it."""
    return set() if bodies is None else set(check_bodies(kept, bodies, seal, signer))


def _read(file: Path, signer: EntrySigner) -> tuple[list[RecordedEntry], dict[str, Body] | None]:
    if not _is_ledger(file):
        return read_export(file), None
    ledger = AuditLedger(file, signer)
    return ledger.entries(), ledger.bodies()


def _is_ledger(file: Path) -> bool:
    try:
        with file.open("rb") as start:
            return start.read(len(_SQLITE)) in (_SQLITE, b"")
    except OSError as exc:
        raise LedgerUnusable(f"{file} cannot be read: {exc.strerror}") from exc
