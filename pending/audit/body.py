"""Body: what the entries of one action are about, kept apart from them so that it can be erased."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.pending.audit.chain import Fault
from sayso.pending.audit.entry import Entry, Kept
from sayso.pending.audit.signer import Signer
from sayso.pending.plan import PLAN_KIND
from sayso.pending.seal import Seal


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

    def signed(self, signer: Signer) -> Body:
        """The body under our signature."""
        return replace(self, sig=signer.sign(*self._parts))

    def erased(self, at: int) -> Body:
        """The body without anything personal."""
        return replace(self, record=None, told=None, user=None, erased_at=at)

    def fault(self, seal: Seal, signer: Signer, mac: str) -> str:
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


def check_bodies(kept: Iterable[Kept], bodies: Mapping[str, Body], seal: Seal, signer: Signer) -> Iterator[Fault]:
    """The faults of one ledger's bodies, each named by the first entry that is about it."""
    first: dict[str, tuple[int, Entry]] = {}
    for one in kept:
        entry = Entry.parse(one.text)
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
