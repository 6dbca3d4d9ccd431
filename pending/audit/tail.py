"""Tail: the part of the audit log that is still in Redis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError

from sayso.pending.audit.entry import NO_HEAD, Entry, Kept, Tip
from sayso.workers.redis import PREFIX, SHARDS

#: Entries of one shard that are read at once; the rest is there in the next round. -1 for all.
BATCH = 500

_NUMBER = re.compile(r"[0-9]{1,15}")
_TIP = re.compile(r"([0-9]{1,15}) ([0-9a-f]{40})")


class Tail:
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

    def kept(self) -> list[Kept]:
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


class Tails:
    """The lists of shards that are on several servers. Every method raises redis.RedisError."""

    def __init__(self, homes: Sequence[Tail]) -> None:
        self._homes = homes

    def kept(self) -> list[Kept]:
        """Everything that waits, each shard's where it is at home."""
        found = {tail: tail.kept() for tail in dict.fromkeys(self._homes)}
        return [one for tail, kept in found.items() for one in kept if self._homes[one.shard] is tail]

    def tips(self) -> dict[int, Tip]:
        """The last entry of each shard, as the scripts at its home remember it."""
        found = {tail: tail.tips() for tail in dict.fromkeys(self._homes)}
        return {shard: found[tail][shard] for shard, tail in enumerate(self._homes)}


def _answers(pipe: Pipeline) -> list[Any]:
    """What was asked for; None for a key of another type: one that somebody put in a shard must not hide the others."""
    found = pipe.execute(raise_on_error=False)
    for answer in found:
        if isinstance(answer, Exception) and not _is_other_type(answer):
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in found]


def _is_other_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def waiting(shard: int, texts: Sequence[bytes]) -> list[Kept]:
    """A shard's list as entries. One that is no entry stands where the next would."""
    found: list[Kept] = []
    for raw in texts:
        text = _text(raw)
        entry = Entry.parse(text)
        found.append(Kept(shard, entry.n if entry else found[-1].n + 1 if found else 1, text))
    return found


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _tip(value: str) -> Tip:
    found = _TIP.fullmatch(value)
    return Tip(int(found[1]), found[2]) if found else Tip(0, NO_HEAD)
