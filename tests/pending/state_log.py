"""StateLog: an audit log as the scripts write it, made by hand, in this process or in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from redis import Redis

from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.audit.entries import ChainHead, EntrySigner, RecordedEntry, entry_hash
from sayso.pending.repository import sign_action
from sayso.pending.stored_limits import NO_HEAD

KEY = "key"
SEAL = ActionSigner([KEY])
SIGNER = EntrySigner([KEY])
LIFE = ("armed", "shown", "claimed", "started", "done")
AT = 1_763_680_000_000


class StateLog:
    """One shard's chain. `redis` keeps what was written there as well."""

    def __init__(
        self, shard: int = 0, redis: Redis | None = None, *, prefix: str = "sayso:"
    ) -> None:
        self.shard = shard
        self.texts: list[str] = []
        self.head = ChainHead(0, NO_HEAD)
        self._redis = redis
        self._key = f"{prefix}{{{shard}}}"

    def add(self, pid: str, event: str, *, body: str = "", by: str = "", told: str = "") -> str:
        """Append an entry; a new action's record comes with it."""
        body = body or self.record(pid, told)
        n = self.head.number + 1
        text = (
            f'{{"n":{n},"at":{AT + n},"pid":"{pid}","event":"{event}","by":{json.dumps(by)},'
            f'"body":"{body}","prev":"{self.head.hash}"}}'
        )
        self.head = ChainHead(n, entry_hash(text))
        self.texts.append(text)
        if self._redis:
            self._redis.rpush(f"{self._key}:audit", text)
            self._redis.set(f"{self._key}:audit:head", f"{n} {self.head.hash}")
        return text

    def live(self, pid: str, *events: str, told: str = "") -> None:
        """A whole life, told at its end."""
        for event in events or LIFE:
            by = "tap" if event == "voted" else ""
            self.add(pid, event, by=by, told=told if event == (events or LIFE)[-1] else "")

    def record(self, pid: str, told: str = "") -> str:
        """Store an action's record in Redis, if there is one. Returns its MAC."""
        record, mac = sealed(pid)
        if self._redis:
            fields = {"record": record, "mac": mac} | ({"outcome_text": told} if told else {})
            self._redis.hset(f"{self._key}:pending:{pid}", mapping=fields)
        return mac

    @property
    def waiting(self) -> list[RecordedEntry]:
        """The entries as a list in Redis."""
        return as_list(self.shard, self.texts)

    @property
    def ledger(self) -> list[RecordedEntry]:
        """The entries as rows of a ledger."""
        return [signed(self.shard, n, text) for n, text in enumerate(self.texts, start=1)]

    def forget(self) -> None:
        """Redis loses the whole shard."""
        if self._redis:
            self._redis.delete(
                f"{self._key}:audit", f"{self._key}:audit:head", f"{self._key}:audit:drained"
            )


def sealed(pid: str, *, user: str = "ana", **fields: Any) -> tuple[str, str]:
    """A record and its MAC."""
    given = {"kind": "delete", "preview": f"Delete {pid}?", "args": {"id": pid}, **fields}
    arm = sign_action(PendingAction(user, **given, pending_action_id=pid), SEAL, user="-")
    return arm.record, arm.mac


def signed(shard: int, n: int, text: str) -> RecordedEntry:
    """An entry as a ledger keeps it."""
    return RecordedEntry(shard, n, text, SIGNER.sign("entry", shard, n, text), entry_hash(text))


def as_list(shard: int, texts: Iterable[str]) -> list[RecordedEntry]:
    """Texts as a list in Redis, where an entry's number is the one it says."""
    return [RecordedEntry(shard, json.loads(text)["n"], text) for text in texts]


def busy_log(actions: int = 12, shard: int = 0) -> StateLog:
    """A log in which the lives of several actions are woven together: 60 entries by default."""
    log = StateLog(shard)
    for step in LIFE:
        for number in range(actions):
            log.add(f"action-{number}", step, by=f"event-{number}" if step == "claimed" else "")
    return log
