"""Verification."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from sayso.pending.audit.entry import NO_HEAD, AuditEntry, EntrySigner, Fault, RecordedEntry, Tip, head_of

#: From each event to those that may follow it; "" is an action that is new.
LAWFUL: Mapping[str, Set[str]] = {
    "": {"armed"},
    "armed": {"shown", "cancelled", "expired", "superseded"},
    "shown": {"claimed", "cancelled", "expired", "superseded"},
    "claimed": {"started", "failed", "cancelled", "superseded"},
    "started": {"done", "failed", "unknown", "started", "cancelled"},
    "unknown": {"done", "failed"},
    "failed": {"done"},
    "done": set(),
    "cancelled": set(),
    "expired": set(),
    "superseded": set(),
}


#: Events after which an action is settled and its user was told, though an unknown or failed one may be corrected.
FINAL = frozenset({"done", "failed", "unknown", "cancelled", "expired", "superseded"})


class AllowedTransitions:
    """Follows the actions of one shard along its chain. `once` are those that may be started a single time."""

    def __init__(self, once: Set[str], *, from_birth: bool) -> None:
        self._once = once
        self._from_birth = from_birth
        self._last: dict[str, AuditEntry] = {}

    def follow(self, entry: AuditEntry) -> str:
        """Take the next entry: "" when it is lawful, else what is wrong with it."""
        before = self._last.get(entry.pid)
        last = before.event if before else ""
        self._last[entry.pid] = entry
        if entry.event not in LAWFUL:
            return f"{entry.event!r} is no event"
        if before is None and not self._from_birth:
            return ""
        if entry.event not in LAWFUL.get(last, ()):
            return f"{last or 'nothing'} -> {entry.event}"
        if last == entry.event == "started" and entry.pid in self._once:
            return "started twice"
        return "another record" if before and before.body != entry.body else ""

    def forget(self) -> None:
        """Something is missing here: what comes next may follow from anything."""
        self._last.clear()
        self._from_birth = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known besides the entries.

    `once` are the actions that may be started a single time; `whole` expects every shard from its first entry.
    `tips` is where Redis's chains ended before the entries were read, `newest` where they ended afterwards.
    """

    signer: EntrySigner | None = None
    once: Set[str] = frozenset()
    whole: bool = False
    tips: Mapping[int, Tip] = field(default_factory=dict)
    newest: Mapping[int, Tip] | None = None


@dataclass(frozen=True, slots=True)
class _Link:
    """An entry that is as its keeper signed it, or that nobody signed yet."""

    entry: AuditEntry
    head: str


class Chain:
    """One shard's chain. Each source is what one keeper has, in the order it has it."""

    def __init__(self, shard: int, sources: Sequence[Sequence[RecordedEntry]], terms: Terms) -> None:
        self._shard = shard
        self._sources = sources
        self._terms = terms
        self._tip = terms.tips.get(shard)
        self._genuine: dict[RecordedEntry, AuditEntry | None] = {}
        self._links: dict[int, list[_Link]] = {}
        self._spoilt: dict[int, RecordedEntry] = {}
        self._followers: dict[str, set[int]] = defaultdict(set)
        for source in sources:
            for kept in source:
                self._sort_in(kept)
        self._numbers = sorted(self._links.keys() | self._spoilt.keys())
        self.size = len(self._numbers)

    @property
    def note(self) -> str:
        """That older entries are not here, which is lawful: a ledger may begin late."""
        if self._terms.whole or not self._numbers or self._numbers[0] == 1:
            return ""
        return f"shard {self._shard} begins with entry {self._numbers[0]}: older ones are not here"

    def faults(self) -> list[Fault]:
        """At most one fault a number: the most telling rule speaks first."""
        found: dict[int, Fault] = {}
        for rule in (self._order, self._signatures, self._forks, self._joints, self._holes, self._end):
            for fault in rule():
                found.setdefault(fault.n, fault)
        for fault in self._lives(found.keys()):
            found.setdefault(fault.n, fault)
        return sorted(found.values())

    def _sort_in(self, kept: RecordedEntry) -> None:
        if kept in self._genuine:
            return
        entry = AuditEntry.parse(kept.text)
        if entry:
            self._followers[entry.prev].add(entry.n)
        if entry is None or not self._is_genuine(kept, entry):
            self._genuine[kept] = None
            self._spoilt.setdefault(kept.n, kept)
            return
        self._genuine[kept] = entry
        links, link = self._links.setdefault(entry.n, []), _Link(entry, head_of(kept.text))
        if all(link.head != other.head for other in links):
            links.append(link)

    def _is_genuine(self, kept: RecordedEntry, entry: AuditEntry) -> bool:
        """An entry under another's number is genuine too, only misplaced: its signature is over its own."""
        if kept.head is not None and kept.head != head_of(kept.text):
            return False
        if self._terms.signer is None or kept.sig is None:
            return True
        return self._terms.signer.verify(kept.sig, "entry", self._shard, entry.n, kept.text)

    def _order(self) -> Iterator[Fault]:
        for source in self._sources:
            yield from self._order_in(source)

    def _order_in(self, source: Sequence[RecordedEntry]) -> Iterator[Fault]:
        """What a keeper has twice, and the first place where it is not in the order of its numbers."""
        seen: set[str] = set()
        numbers: set[int] = set()
        last, in_order = 0, True
        for kept in source:
            entry = self._genuine[kept]
            if kept.text in seen:
                yield Fault(self._shard, kept.n, "repeated")
            elif entry and in_order and (entry.n != kept.n or (entry.n < last and entry.n not in numbers)):
                in_order = False
                yield Fault(self._shard, kept.n, "reordered")
            elif entry:
                numbers.add(entry.n)
                last = max(last, entry.n)
            seen.add(kept.text)

    def _signatures(self) -> Iterator[Fault]:
        for n, kept in self._spoilt.items():
            entry = AuditEntry.parse(kept.text)
            fits = entry is not None and entry.n == n and self._fits(entry, kept)
            yield Fault(self._shard, n, "bad signature" if fits else "edited")

    def _fits(self, entry: AuditEntry, kept: RecordedEntry) -> bool:
        """Whether a text without a good signature is at home between its neighbours."""
        head, before, after = head_of(kept.text), self._heads(entry.n - 1), self._named(entry.n + 1)
        return kept.head in (None, head) and (not before or entry.prev in before) and (not after or head in after)

    def _forks(self) -> Iterator[Fault]:
        for n, links in self._links.items():
            if len(links) > 1:
                yield Fault(self._shard, n, "forked", f"{len(links)} different entries")

    def _joints(self) -> Iterator[Fault]:
        """Of two entries that do not meet, the first was edited, unless the second does not meet the third either."""
        for n in self._numbers:
            if self._is_broken(n - 1):
                yield Fault(self._shard, n if n == 1 or self._is_broken(n) else n - 1, "edited")
        if self._numbers and self._is_broken(self._numbers[-1]):
            yield Fault(self._shard, self._numbers[-1], "edited")

    def _is_broken(self, n: int) -> bool:
        """Whether entry `n` does not meet what is known to come after it."""
        heads, named = self._heads(n), self._named(n + 1)
        at_tip = self._tip is not None and self._tip.n == n > 0
        if heads and at_tip and self._tip and self._tip.head not in heads:
            return True
        return bool(heads and named) and not heads & named

    def _heads(self, n: int) -> set[str]:
        """What the entry after `n` may name; empty when that is not known."""
        return {link.head for link in self._links.get(n, ())} if n else {NO_HEAD}

    def _named(self, n: int) -> set[str]:
        """What entry `n` names as its predecessor; empty when that is not known."""
        return {link.entry.prev for link in self._links.get(n, ())}

    def _holes(self) -> Iterator[Fault]:
        before = 0 if self._terms.whole else (self._numbers or [1])[0] - 1
        for left, right in pairwise([before, *self._numbers]):
            if right - left > 1:
                yield self._hole(left + 1, right - 1)

    def _hole(self, first: int, last: int) -> Fault:
        """A missing entry, unless one under another number names its predecessor: then its number was edited."""
        if any(self._followers.get(head, set()) - {first} for head in self._heads(first - 1)):
            return Fault(self._shard, first, "edited")
        return Fault(self._shard, first, "removed", f"up to {last}" if last > first else "")

    def _end(self) -> Iterator[Fault]:
        if self._tip is None:
            return
        last = self._numbers[-1] if self._numbers else 0
        if last < self._tip.n:
            yield self._tail(last + 1, self._tip)
        newest = (self._terms.newest or self._terms.tips).get(self._shard, self._tip)
        if last > newest.n:
            yield Fault(self._shard, newest.n + 1, "rolled back", f"Redis is at {newest.n}, the log at {last}")

    def _tail(self, first: int, tip: Tip) -> Fault:
        hole = self._hole(first, tip.n)
        return hole if hole.reason == "edited" else Fault(self._shard, first, "removed", f"Redis is at {tip.n}")

    def _lives(self, faulty: Set[int]) -> Iterator[Fault]:
        """Impossible moves. After a fault anything may follow: one hand shows once, not in all that comes after."""
        lives = AllowedTransitions(self._terms.once, from_birth=self._numbers[:1] == [1])
        for before, n in pairwise([self._numbers[0] - 1, *self._numbers] if self._numbers else []):
            if n - before > 1 or n in faulty:
                lives.forget()
            wrong = "" if n in faulty else lives.follow(self._links[n][0].entry)
            if wrong:
                yield Fault(self._shard, n, "impossible", wrong)


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a check found. `faults` are in order of shard and number."""

    entries: int
    shards: int
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Fault | None:
        """The first fault, None when the chain holds."""
        return self.faults[0] if self.faults else None


def check(sources: Iterable[Sequence[RecordedEntry]], terms: Terms | None = None) -> ChainReport:
    """Check what several keepers have of the log, each in the order it has it."""
    terms = terms or Terms()
    shards: dict[int, list[Sequence[RecordedEntry]]] = defaultdict(list, {shard: [] for shard in terms.tips})
    for source in sources:
        for shard, kept in _by_shard(source).items():
            shards[shard].append(kept)
    chains = [Chain(shard, shards[shard], terms) for shard in sorted(shards)]
    return ChainReport(
        entries=sum(chain.size for chain in chains),
        shards=sum(chain.size > 0 for chain in chains),
        faults=tuple(fault for chain in chains for fault in chain.faults()),
        notes=tuple(chain.note for chain in chains if chain.note),
    )


def _by_shard(source: Sequence[RecordedEntry]) -> dict[int, list[RecordedEntry]]:
    shards: dict[int, list[RecordedEntry]] = defaultdict(list)
    for kept in source:
        shards[kept.shard].append(kept)
    return shards
