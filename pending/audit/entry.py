"""AuditEntry and its erasable body."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sayso.pending.action import ActionState
from sayso.pending.proposals import PLAN_KIND
from sayso.pending.signing import ActionSigner

#: What an entry records: the state an action moved to.
Event = ActionState


#: The head before the first entry.
NO_HEAD = "0" * 40


#: The one spelling that the scripts write. Any other could mean one thing to them and another to us.
_SPELLING = re.compile(
    r'\{"n":(?P<n>[1-9][0-9]{0,14}),"at":(?P<at>[0-9]{1,15}),"pid":"(?P<pid>[A-Za-z0-9_-]+)",'
    r'"event":"(?P<event>[a-z]+)","by":(?P<by>"(?:[^"\\\x00-\x1f]|\\.)*"),'
    r'"body":"(?P<body>[^"\\\x00-\x1f]*)","prev":"(?P<prev>[0-9a-f]{40})"\}'
)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What one text says: the move, who decided it, the MAC of the record, and the head of the entry before."""

    n: int
    at: int
    pid: str
    event: str
    by: str
    body: str
    prev: str

    @classmethod
    def parse(cls, text: str) -> AuditEntry | None:
        """The entry in a text, None when it is none that our scripts wrote."""
        found = _SPELLING.fullmatch(text)
        if not found:
            return None
        try:
            by = str(json.loads(found["by"]))
        except ValueError:
            return None
        return cls(int(found["n"]), int(found["at"]), found["pid"], found["event"], by, found["body"], found["prev"])


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """A text of the log as it was found, and the number it was found under.

    `sig` is None while it waits in Redis, where nobody signed it yet; `head` is what its keeper noted, if it does.
    """

    shard: int
    n: int
    text: str
    sig: str | None = None
    head: str | None = None


@dataclass(frozen=True, slots=True)
class Tip:
    """The last entry of a shard as Redis remembers it; number 0 when it knows none."""

    n: int
    head: str


def head_of(text: str) -> str:
    """What the next entry names: Redis's scripts have this hash and no other."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class EntrySigner:
    """Signs with the first key and accepts any. Its keys are of its own: nothing signed here passes for a record."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or not all(keys):
            raise ValueError("no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder")
        self._keys = [hashlib.sha256(f"sayso.audit\0{key}".encode()).digest() for key in keys]

    def sign(self, *parts: str | int | bool | None) -> str:
        """The MAC over these parts, in hex."""
        return _mac(self._keys[0], parts)

    def verify(self, sig: str, *parts: str | int | bool | None) -> bool:
        """Whether `sig` is one of ours over exactly these parts."""
        return any(hmac.compare_digest(_mac(key, parts).encode(), sig.encode()) for key in self._keys)


def _mac(key: bytes, parts: Sequence[str | int | bool | None]) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


#: What may be wrong with an entry. `forked`: two different ones under one number. `rolled back`: Redis knows less than
#: the log. The last two are about the body, which is kept apart.
FaultReason = Literal[
    "edited", "removed", "reordered", "repeated", "bad signature", "impossible", "forked", "rolled back",
    "body edited", "body removed",
]  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One place where the log is not as it was written."""

    shard: int
    n: int
    reason: FaultReason
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"shard {self.shard}, entry {self.n}: {self.reason}{detail}"


@dataclass(frozen=True, slots=True)
class Body:
    """An action's sealed record and the words its user was told in the end.

    `repeatable` says whether it may be started more than once; None when that is not known. It stays when the body is
    erased, as the MAC does. Times are Unix milliseconds. Without a record and not erased: it was gone before it was
    drained.
    """

    pid: str
    record: str | None
    mac: str
    told: str | None
    user: str | None
    at: int
    repeatable: bool | None = None
    erased_at: int | None = None
    sig: str = ""

    @classmethod
    def of(cls, pid: str, record: str | None, mac: str, told: str, *, at: int) -> Body:
        """The body of a record as Redis has it. A plan has no effect of its own: it may be taken up again."""
        sealed = _fields(record)
        may = bool(sealed.get("idempotent")) or sealed.get("kind") == PLAN_KIND
        repeatable = may if "pid" in sealed else None
        return cls(pid, record, mac, told, _user(sealed), at, repeatable)

    @property
    def preview(self) -> str:
        """The words the user agreed to, as far as they are still here."""
        if self.erased_at:
            return "(erased)"
        return str(_fields(self.record).get("preview", "")) or "(not kept)"

    def signed(self, signer: EntrySigner) -> Body:
        """The body under our signature."""
        return replace(self, sig=signer.sign(*self._parts))

    def erased(self, at: int) -> Body:
        """The body without anything personal."""
        return replace(self, record=None, told=None, user=None, erased_at=at)

    def fault(self, seal: ActionSigner, signer: EntrySigner, mac: str) -> str:
        """What is wrong with it as the body of an entry that names this MAC, "" when nothing is."""
        if not signer.verify(self.sig, *self._parts):
            return "bad signature"
        if self.mac and self.mac != mac:
            return "another record's"
        if self.record is None:
            return ""
        if not seal.verify(self.record, self.mac):
            return "not what was sealed"
        return "" if _fields(self.record).get("pid") == self.pid else "another action's"

    @property
    def _parts(self) -> tuple[str | int | bool | None, ...]:
        return (
            "body", self.pid, self.record, self.mac, self.told, self.user, self.at, self.repeatable, self.erased_at,
        )  # fmt: skip


def check_bodies(
    kept: Iterable[RecordedEntry], bodies: Mapping[str, Body], seal: ActionSigner, signer: EntrySigner
) -> Iterator[Fault]:
    """The faults of one ledger's bodies, each named by the first entry that is about it."""
    first: dict[str, tuple[int, AuditEntry]] = {}
    for one in kept:
        entry = AuditEntry.parse(one.text)
        if entry:
            first.setdefault(entry.pid, (one.shard, entry))
    for pid, (shard, entry) in first.items():
        body = bodies.get(pid)
        wrong = body.fault(seal, signer, entry.body) if body else ""
        if body is None or wrong:
            yield Fault(shard, entry.n, "body edited" if body else "body removed", wrong)


def _fields(record: str | None) -> dict[str, Any]:
    """What a record says; nothing when somebody made it unreadable."""
    try:
        fields = json.loads(record or "{}")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _user(sealed: Mapping[str, Any]) -> str | None:
    """Whose it is, in characters that any store takes."""
    return str(sealed.get("user_id", "")).encode(errors="replace").decode() or None
