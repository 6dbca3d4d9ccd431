"""Auditor: moves the audit log from Redis into the ledger of this machine, and never loses or doubles an entry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from sayso.pending.audit.body import Body
from sayso.pending.audit.entry import Entry, Kept
from sayso.pending.audit.ledger import Ledger, LedgerUnusable
from sayso.pending.audit.tail import Tail, waiting
from sayso.workers.offload import offload
from sayso.workers.redis import PREFIX, Scripts, ShardMoved

log = logging.getLogger(__name__)

#: Seconds between two rounds.
INTERVAL = 1.0

_LUA = Path(__file__).parent.parent / "lua"


class Auditor:
    """Runs in every worker; a short lock in Redis lets one of them work at a time.

    First the ledger has an entry, on disk, then Redis drops it. Killed in between, the next round stores nothing twice.
    """

    def __init__(
        self,
        client: Redis,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.time,
        prefix: str = PREFIX,
        gated: bool = False,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._clock = clock
        self._tail = Tail(client, prefix=prefix)
        self._scripts = Scripts(client, _LUA, prefix=prefix, gated=gated)
        self._lock = f"{prefix}auditor"
        self._token = secrets.token_urlsafe(8)

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
        here = self._scripts.at_home()
        lists = [texts if shard in here else [] for shard, texts in enumerate(self._tail.read())]
        if not any(lists):
            return 0
        found = [waiting(shard, texts) for shard, texts in enumerate(lists)]
        bodies = self._bodies(found)
        if not here <= self._scripts.at_home():  # one is leaving: who knows how much of it was read
            return 0
        self._report_gaps(found)
        stored = self._ledger.store([one for kept in found for one in kept], bodies)
        for rival in stored.rivals:
            log.error("audit.rival", extra={"shard": rival.shard, "entry": rival.n})
        for kept, texts in zip(found, lists, strict=True):
            self._drop(kept, texts)
        return stored.entries

    def _bodies(self, found: Sequence[Sequence[Kept]]) -> list[Body]:
        """The bodies of all actions that come by, with the words their users were told by now."""
        entries = [(one.shard, Entry.parse(one.text)) for kept in found for one in kept]
        places = list(dict.fromkeys((shard, entry.pid) for shard, entry in entries if entry))
        at = round(self._clock() * 1000)
        return [
            Body.of(pid, record or None, mac, told, at=at)
            for (_, pid), (record, mac, told) in zip(places, self._tail.records(places), strict=True)
        ]

    def _report_gaps(self, found: Sequence[Sequence[Kept]]) -> None:
        """Entries that were dropped before anybody came, or a Redis that knows less than it did: verify names them."""
        for shard, (drained, kept) in enumerate(zip(self._tail.drained(), found, strict=True)):
            for before, n in pairwise([drained, *(one.n for one in kept)]):
                if n != before + 1:
                    log.error("audit.gap", extra={"shard": shard, "after": before, "entry": n})

    def _drop(self, kept: Sequence[Kept], texts: Sequence[bytes]) -> None:
        """Have Redis forget what the ledger has now."""
        if not kept:
            return
        numbers = [one.n for one in kept if Entry.parse(one.text)] or [0]
        strange = [text for one, text in zip(kept, texts, strict=True) if not Entry.parse(one.text)]
        with contextlib.suppress(ShardMoved):  # its next home drops them: they are stored once, however often they come
            self._scripts.on_shard("drained", kept[0].shard, min(numbers), max(numbers), *strange)
