"""Verification: check the hash chains of the audit log,
and that each action made only allowed transitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from sayso.pending.audit.ledger import (
    AuditEntry,
    ChainHead,
    EntrySigner,
    Fault,
    RecordedEntry,
    entry_hash,
)
from sayso.pending.limits import NO_HEAD

#: The events that may follow each event; "" is a new action. When a Redis is restored,
#: open actions become unknown.
ALLOWED: Mapping[str, Set[str]] = {
    "": {"armed"},
    "armed": {"shown", "cancelled", "expired", "superseded", "unknown"},
    "shown": {"claimed", "cancelled", "expired", "superseded", "unknown"},
    "claimed": {"started", "failed", "cancelled", "superseded", "unknown"},
    "started": {"done", "failed", "unknown", "started", "cancelled"},
    "unknown": {"done", "failed"},
    "failed": {"done"},
    "done": set(),
    "cancelled": set(),
    "expired": set(),
    "superseded": set(),
}
#: Events after which an action is settled and its user was told.
#: An unknown or failed one may be corrected later.
FINAL = frozenset({"done", "failed", "unknown", "cancelled", "expired", "superseded"})


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What is known besides the entries."""

    signer: EntrySigner | None = None
    #: The actions that may be started only once.
    once: Set[str] = frozenset()
    #: Expect every shard from its first entry on.
    whole: bool = False
    #: Where the chains in Redis ended before the entries were read.
    tips: Mapping[int, ChainHead] = field(default_factory=dict)
    #: Where they ended afterwards.
    newest: Mapping[int, ChainHead] | None = None


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a check found. `faults` are in order of shard and number."""

    entries: int
    shards: int
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


def check_chains(
    sources: Iterable[Sequence[RecordedEntry]], context: CheckContext | None = None
) -> ChainReport:
    """Check the copies of the log that several sources have, each in the order of its source."""
    context = context or CheckContext()
    shards: dict[int, list[Sequence[RecordedEntry]]] = defaultdict(
        list, {shard: [] for shard in context.tips}
    )
    for source in sources:
        by_shard: dict[int, list[RecordedEntry]] = defaultdict(list)
        for recorded in source:
            by_shard[recorded.shard].append(recorded)
        for shard, entries in by_shard.items():
            shards[shard].append(entries)
    chains = [Chain(shard, shards[shard], context) for shard in sorted(shards)]
    return ChainReport(
        entries=sum(chain.size for chain in chains),
        shards=sum(chain.size > 0 for chain in chains),
        faults=tuple(fault for chain in chains for fault in chain.faults()),
        notes=tuple(chain.note for chain in chains if chain.note),
    )


@dataclass(frozen=True, slots=True)
class _Link:
    """An entry whose signature is genuine, or that is not signed yet."""

    entry: AuditEntry
    head: str


class Chain:
    """The chain of one shard, as several sources have it."""

    def __init__(
        self, shard: int, sources: Sequence[Sequence[RecordedEntry]], context: CheckContext
    ) -> None:
        self._shard = shard
        self._sources = sources
        self._context = context
        self._tip = context.tips.get(shard)
        self._genuine: dict[RecordedEntry, AuditEntry | None] = {}
        self._links: dict[int, list[_Link]] = {}
        self._spoiled: dict[int, RecordedEntry] = {}
        #: By the hash that entries name as their predecessor: the numbers of these entries.
        self._followers: dict[str, set[int]] = defaultdict(set)
        for source in sources:
            for recorded in source:
                self._add(recorded)
        self._numbers = sorted(self._links.keys() | self._spoiled.keys())
        self.size = len(self._numbers)

    @property
    def note(self) -> str:
        """Return a note when older entries are not here, which is no fault:
        a ledger may begin late.
        """
        if self._context.whole or not self._numbers or self._numbers[0] == 1:
            return ""
        return f"shard {self._shard} begins with entry {self._numbers[0]}: older ones are not here"

    def faults(self) -> list[Fault]:
        """Return at most one fault for each number. The rule that says most comes first."""
        faults: dict[int, Fault] = {}
        for rule in (
            self._order,
            self._signatures,
            self._forks,
            self._joints,
            self._holes,
            self._end,
        ):
            for fault in rule():
                faults.setdefault(fault.n, fault)
        for fault in self._transitions(faults.keys()):
            faults.setdefault(fault.n, fault)
        return sorted(faults.values())

    def _add(self, recorded: RecordedEntry) -> None:
        if recorded in self._genuine:
            return
        entry = recorded.entry
        if entry:
            self._followers[entry.prev].add(entry.n)
        head = entry_hash(recorded.text)
        signer = self._context.signer
        sig = recorded.sig
        is_genuine = recorded.head in (None, head)
        if entry and is_genuine and signer and sig is not None:
            # The signature is over the entry's own number, so a misplaced entry is genuine too.
            is_genuine = signer.verify(sig, "entry", self._shard, entry.n, recorded.text)
        if entry is None or not is_genuine:
            self._genuine[recorded] = None
            self._spoiled.setdefault(recorded.n, recorded)
            return
        self._genuine[recorded] = entry
        links = self._links.setdefault(entry.n, [])
        link = _Link(entry, head)
        if all(link.head != other.head for other in links):
            links.append(link)

    def _order(self) -> Iterator[Fault]:
        """Find repeated entries of a source, and the first place where they are
        not in the order of their numbers.
        """
        for source in self._sources:
            seen: set[str] = set()
            numbers: set[int] = set()
            last = 0
            in_order = True
            for recorded in source:
                entry = self._genuine[recorded]
                if recorded.text in seen:
                    yield Fault(self._shard, recorded.n, "repeated")
                elif (
                    entry
                    and in_order
                    and (entry.n != recorded.n or (entry.n < last and entry.n not in numbers))
                ):
                    in_order = False
                    yield Fault(self._shard, recorded.n, "reordered")
                elif entry:
                    numbers.add(entry.n)
                    last = max(last, entry.n)
                seen.add(recorded.text)

    def _signatures(self) -> Iterator[Fault]:
        for n, recorded in self._spoiled.items():
            entry = recorded.entry
            head = entry_hash(recorded.text)
            before = self._heads(n - 1)
            after = self._predecessors(n + 1)
            fits = (  # it meets the entries before and after it
                entry is not None
                and entry.n == n
                and recorded.head in (None, head)
                and (not before or entry.prev in before)
                and (not after or head in after)
            )
            yield Fault(self._shard, n, "bad signature" if fits else "edited")

    def _forks(self) -> Iterator[Fault]:
        for n, links in self._links.items():
            if len(links) > 1:
                yield Fault(self._shard, n, "forked", f"{len(links)} different entries")

    def _joints(self) -> Iterator[Fault]:
        """Find neighbors that do not meet.

        The first of them was edited, unless the second does not meet the third.
        """
        for n in self._numbers:
            if self._is_broken(n - 1):
                yield Fault(self._shard, n if n == 1 or self._is_broken(n) else n - 1, "edited")
        if self._numbers and self._is_broken(self._numbers[-1]):
            yield Fault(self._shard, self._numbers[-1], "edited")

    def _is_broken(self, n: int) -> bool:
        """Return whether entry `n` does not meet what is known to come after it."""
        heads = self._heads(n)
        named = self._predecessors(n + 1)
        if heads and self._tip and self._tip.n == n > 0 and self._tip.head not in heads:
            return True
        return bool(heads and named) and not heads & named

    def _heads(self, n: int) -> set[str]:
        """Return the hashes of entry `n`, which the next entry may name; empty when unknown."""
        if n:
            return {link.head for link in self._links.get(n, ())}
        return {NO_HEAD}

    def _predecessors(self, n: int) -> set[str]:
        """Return the hashes that entry `n` names as its predecessor; empty when unknown."""
        return {link.entry.prev for link in self._links.get(n, ())}

    def _holes(self) -> Iterator[Fault]:
        if self._context.whole:
            before = 0
        else:
            before = (self._numbers or [1])[0] - 1
        for left, right in pairwise([before, *self._numbers]):
            if right - left > 1:
                yield self._hole(left + 1, right - 1)

    def _hole(self, first: int, last: int) -> Fault:
        """Return the fault of missing entries.

        If an entry under another number names the entry before the hole,
        that entry's number was edited.
        """
        if any(self._followers.get(head, set()) - {first} for head in self._heads(first - 1)):
            return Fault(self._shard, first, "edited")
        return Fault(self._shard, first, "removed", f"up to {last}" if last > first else "")

    def _end(self) -> Iterator[Fault]:
        """Compare the end of the chain with what Redis remembers."""
        if self._tip is None:
            return
        last = self._numbers[-1] if self._numbers else 0
        if last < self._tip.n:
            hole = self._hole(last + 1, self._tip.n)
            at = f"Redis is at {self._tip.n}"
            yield hole if hole.reason == "edited" else Fault(self._shard, last + 1, "removed", at)
        newest = (self._context.newest or self._context.tips).get(self._shard, self._tip)
        if last > newest.n:
            yield Fault(
                self._shard,
                newest.n + 1,
                "rolled back",
                f"Redis is at {newest.n}, the log at {last}",
            )

    def _transitions(self, faulty: Set[int]) -> Iterator[Fault]:
        """Find transitions that are not allowed.

        After another fault or a hole anything may follow, so that one change is reported
        once and not for all entries after it.
        """
        last: dict[str, AuditEntry] = {}
        from_birth = self._numbers[:1] == [1]
        for before, n in pairwise([self._numbers[0] - 1, *self._numbers] if self._numbers else []):
            if n - before > 1 or n in faulty:
                last.clear()
                from_birth = False
            if n in faulty:
                continue
            entry = self._links[n][0].entry
            known = last.get(entry.pid)
            last[entry.pid] = entry
            if entry.event not in ALLOWED:
                yield Fault(self._shard, n, "impossible", f"{entry.event!r} is no event")
            elif (known or from_birth) and (
                problem := _transition_problem(known, entry, self._context.once)
            ):
                yield Fault(self._shard, n, "impossible", problem)


def _transition_problem(before: AuditEntry | None, entry: AuditEntry, once: Set[str]) -> str:
    """Return why an entry cannot follow `before`, the last one of its action, None for a new one.

    "": it can.
    """
    last = before.event if before else ""
    if entry.event not in ALLOWED.get(last, ()):
        return f"{last or 'nothing'} -> {entry.event}"
    if last == entry.event == "started" and entry.pid in once:
        return "started twice"
    if before and before.body != entry.body:
        return "another record"
    return ""
