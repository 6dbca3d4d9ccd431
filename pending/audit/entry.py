"""AuditEntry: one transition of an action in the audit log, and the body of the action, which can be erased."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sayso.pending.action import ActionSigner, ActionState
from sayso.pending.proposals import PLAN_KIND

#: What an entry records: the state that an action changed to.
Event = ActionState
#: The exact form in which the scripts write entries. Any other could be read differently by different parsers.
_ENTRY = re.compile(
    r'\{"n":(?P<n>[1-9][0-9]{0,14}),"at":(?P<at>[0-9]{1,15}),"pid":"(?P<pid>[A-Za-z0-9_-]+)",'
    r'"event":"(?P<event>[a-z]+)","by":(?P<by>"(?:[^"\\\x00-\x1f]|\\.)*"),'
    r'"body":"(?P<body>[^"\\\x00-\x1f]*)","prev":"(?P<prev>[0-9a-f]{40})"\}'
)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A parsed entry: the transition, who decided it, the MAC of the record, and the hash of the entry before.

    `at` is in Unix milliseconds.
    """

    n: int
    at: int
    pid: str
    event: str
    by: str
    body: str
    prev: str

    @classmethod
    def parse(cls, text: str) -> AuditEntry | None:
        """Parse the text of an entry. None: our scripts have not written it."""
        match = _ENTRY.fullmatch(text)
        if not match:
            return None
        try:
            by = str(json.loads(match["by"]))
        except ValueError:
            return None
        return cls(int(match["n"]), int(match["at"]), match["pid"], match["event"], by, match["body"], match["prev"])


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """The text of an entry as it was found, and the number it was found under.

    `sig` is None for an entry in Redis, which is not signed yet. `head` is the hash that the source noted, if any.
    """

    shard: int
    n: int
    text: str
    sig: str | None = None
    head: str | None = None


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Number and hash of the last entry of a shard; number 0 when there is none."""

    n: int
    head: str


def entry_hash(text: str) -> str:
    """Return the hash by which the next entry names this one. Redis scripts have no hash but SHA-1."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class EntrySigner:
    """Signs with the first key and accepts signatures of all keys.

    The keys differ from those of ActionSigner, so that nothing signed here passes for the record of an action.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or not all(keys):
            raise ValueError("no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder")
        self._keys = [hashlib.sha256(f"sayso.audit\0{key}".encode()).digest() for key in keys]

    def sign(self, *parts: str | int | bool | None) -> str:
        """Return the MAC over these parts, in hex."""
        return _mac(self._keys[0], parts)

    def verify(self, sig: str, *parts: str | int | bool | None) -> bool:
        """Return whether `sig` was made over exactly these parts with one of the keys."""
        return any(hmac.compare_digest(_mac(key, parts).encode(), sig.encode()) for key in self._keys)


def _mac(key: bytes, parts: Sequence[str | int | bool | None]) -> str:
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


#: What may be wrong with an entry. `forked`: two different entries have one number. `rolled back`: Redis has fewer
#: entries than the log. The last two are about the body, which is stored apart.
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
class AuditBody:
    """The signed record of an action, and what its user was told in the end.

    `repeatable`: whether the action may be started more than once, None when that is not known. It stays when the body
    is erased, as the MAC does. Times are in Unix milliseconds. A body that has no record and was not erased lost its
    record before it was collected.
    """

    pid: str
    record: str | None
    mac: str
    outcome_text: str | None
    user: str | None
    at: int
    repeatable: bool | None = None
    erased_at: int | None = None
    sig: str = ""

    @classmethod
    def of(cls, pid: str, record: str | None, mac: str, outcome_text: str, *, at: int) -> AuditBody:
        """Return the body of a record in Redis. A plan has no effect of its own, so it may be started again."""
        signed = _fields(record)
        may_repeat = bool(signed.get("idempotent")) or signed.get("kind") == PLAN_KIND
        user = str(signed.get("user_id", "")).encode(errors="replace").decode() or None  # no lone surrogates
        return cls(pid, record, mac, outcome_text, user, at, may_repeat if "pid" in signed else None)

    @property
    def preview(self) -> str:
        """Return the preview that the user agreed to, or why it is not here."""
        if self.erased_at:
            return "(erased)"
        return str(_fields(self.record).get("preview", "")) or "(not kept)"

    def signed(self, signer: EntrySigner) -> AuditBody:
        """Return the body with its signature."""
        return replace(self, sig=signer.sign(*self._parts))

    def erased(self, at: int) -> AuditBody:
        """Return the body without personal data."""
        return replace(self, record=None, outcome_text=None, user=None, erased_at=at)

    def fault(self, action_signer: ActionSigner, signer: EntrySigner, mac: str) -> str:
        """Return what is wrong with it as the body of an entry that names this MAC, "" when nothing is."""
        if not signer.verify(self.sig, *self._parts):
            return "bad signature"
        if self.mac and self.mac != mac:
            return "another record's"
        if self.record is None:
            return ""
        if not action_signer.verify(self.record, self.mac):
            return "not what was signed"
        return "" if _fields(self.record).get("pid") == self.pid else "another action's"

    @property
    def _parts(self) -> tuple[str | int | bool | None, ...]:
        return (
            "body", self.pid, self.record, self.mac, self.outcome_text, self.user, self.at, self.repeatable,
            self.erased_at,
        )  # fmt: skip


def _fields(record: str | None) -> dict[str, Any]:
    """Return the fields of a record; none when it is unreadable."""
    try:
        fields = json.loads(record or "{}")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def check_bodies(
    entries: Iterable[RecordedEntry],
    bodies: Mapping[str, AuditBody],
    action_signer: ActionSigner,
    signer: EntrySigner,
) -> Iterator[Fault]:
    """Yield the faults of one ledger's bodies, each at the first entry of its action."""
    first: dict[str, tuple[int, AuditEntry]] = {}
    for recorded in entries:
        entry = AuditEntry.parse(recorded.text)
        if entry:
            first.setdefault(entry.pid, (recorded.shard, entry))
    for pid, (shard, entry) in first.items():
        body = bodies.get(pid)
        problem = body.fault(action_signer, signer, entry.body) if body else ""
        if body is None or problem:
            yield Fault(shard, entry.n, "body edited" if body else "body removed", problem)
