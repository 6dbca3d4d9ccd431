"""Check the chains of the audit log, and that each action had only events that may follow.

Several sources may have copies of one log: the ledgers of several machines, exported files, and
Redis with its newest entries. They are checked together, shard by shard. `verify.py` reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from sayso.pending.audit.entries import (
    VOTED,
    AuditEntry,
    ChainHead,
    EntrySigner,
    Fault,
    FaultReason,
    RecordedEntry,
    entry_hash,
)
from sayso.pending.standing_yes import standing_event_id
from sayso.pending.stored_limits import NO_HEAD

#: The states that may follow while a question is open. When a Redis is restored from a backup, open
#: actions become unknown.
_AFTER_SHOWN = frozenset({"claimed", "cancelled", "expired", "superseded", "unknown"})
#: The events that may follow each event of an action; "" is a new action. Only an action that a
#: standing yes covers may be claimed without being shown (`_transition_problem`).
ALLOWED: Mapping[str, Set[str]] = {
    "": {"armed"},
    "armed": {"shown", "cancelled", "expired", "superseded", "unknown"},
    "shown": _AFTER_SHOWN | {VOTED},
    # The action is still shown: any number of people may vote.
    VOTED: _AFTER_SHOWN | {VOTED},
    # "failed": it was refused before its effect began.
    "claimed": {"started", "failed", "cancelled", "superseded", "unknown"},
    # "started": only a plan or an idempotent action starts again. "cancelled": its record was found
    # changed before its effect began.
    "started": {"done", "failed", "unknown", "started", "cancelled"},
    # A late report of the worker corrects these two.
    "unknown": {"done", "failed"},
    "failed": {"done"},
    "done": set(),
    "cancelled": set(),
    "expired": set(),
    "superseded": set(),
}


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check knows besides the entries. The defaults know nothing, and forgive the most."""

    #: None: signatures are not checked.
    signer: EntrySigner | None = None
    #: The ids of the actions that may be started only once: neither idempotent ones nor plans. An
    #: action of an unknown kind, whose body is erased or not here, is not among them.
    run_once: Set[str] = frozenset()
    #: Whether every chain must be here from its first entry on. A ledger may begin late otherwise.
    whole: bool = False
    #: By shard, where the chain in Redis ended before the entries were read. It has all shards, also
    #: those with an empty chain. {} without Redis: then the ends are not checked.
    heads_before: Mapping[int, ChainHead] = field(default_factory=dict)
    #: Where the chains ended after the entries were read; None: as before.
    heads_after: Mapping[int, ChainHead] | None = None


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The result of a check."""

    #: How many entries the shards have together. Several of one number count as one.
    entries: int
    #: How many shards have entries.
    shards: int
    #: In order of shard and number.
    faults: tuple[Fault, ...] = ()
    #: What is worth knowing and no fault, in words for an operator.
    notes: tuple[str, ...] = ()


def check_chains(
    sources: Iterable[Sequence[RecordedEntry]], context: CheckContext | None = None
) -> ChainReport:
    """Check the copies of the log that several sources have, each in the order of its source."""
    context = context or CheckContext()
    shards: dict[int, list[Sequence[RecordedEntry]]] = defaultdict(list)
    for shard in context.heads_before:
        # A shard without entries is checked too: Redis may remember some.
        shards[shard] = []
    for source in sources:
        for shard, entries in _by_shard(source).items():
            shards[shard].append(entries)

    chains = [Chain(shard, shards[shard], context) for shard in sorted(shards)]
    faults: list[Fault] = []
    for chain in chains:
        faults += chain.faults()
    return ChainReport(
        entries=sum(chain.size for chain in chains),
        shards=sum(chain.size > 0 for chain in chains),
        faults=tuple(faults),
        notes=tuple(chain.note for chain in chains if chain.note),
    )


def _by_shard(source: Sequence[RecordedEntry]) -> Mapping[int, Sequence[RecordedEntry]]:
    by_shard: dict[int, list[RecordedEntry]] = defaultdict(list)
    for recorded in source:
        by_shard[recorded.shard].append(recorded)
    return by_shard


@dataclass(frozen=True, slots=True)
class _Link:
    """A genuine entry of a chain and its hash."""

    entry: AuditEntry
    hash: str


class Chain:
    """The chain of one shard, as several sources have it.

    An entry is *genuine* if its signature and the hash beside it fit its text. Other entries are
    *spoiled*. An entry in Redis has neither a signature nor a hash beside it, and counts as
    genuine. All other sources must have a signature.

    A genuine entry counts under the number in its text, which is signed; a spoiled entry under the
    number of its place in the source.

    Each entry names the hash of the entry before it. Two neighbors *meet* if the second names the
    hash of the first.
    """

    def __init__(
        self, shard: int, sources: Sequence[Sequence[RecordedEntry]], context: CheckContext
    ) -> None:
        self._shard = shard
        self._sources = sources
        self._context = context
        #: Where the chain in Redis ended before the entries were read; None without Redis.
        self._head = context.heads_before.get(shard)
        #: The parsed genuine entries; None for a spoiled one.
        self._parsed: dict[RecordedEntry, AuditEntry | None] = {}
        #: By number, the different genuine entries: more than one if the chain was forked.
        self._links: dict[int, list[_Link]] = {}
        #: By number, the first spoiled entry.
        self._spoiled: dict[int, RecordedEntry] = {}
        #: By hash, the numbers of all entries that name it as the hash before them. Also of spoiled
        #: entries: one whose number was edited still tells which entry it followed.
        self._numbers_after: dict[str, set[int]] = defaultdict(set)

        for source in sources:
            for recorded in source:
                if recorded not in self._parsed:
                    self._add(recorded)
        self._numbers = sorted(self._links.keys() | self._spoiled.keys())
        #: How many numbers have an entry.
        self.size = len(self._numbers)

    @property
    def note(self) -> str:
        """Return a note if older entries are not here, which is no fault; "" for none."""
        if self._context.whole or not self._numbers or self._numbers[0] == 1:
            return ""
        return f"shard {self._shard} begins with entry {self._numbers[0]}: older ones are not here"

    def faults(self) -> list[Fault]:
        """Return at most one fault for each number."""
        # Of several faults of one number, the first counts: the rule that says most comes first.
        rules = (
            self._order,
            self._signatures,
            self._forks,
            self._joints,
            self._holes,
            self._end,
        )
        faults: dict[int, Fault] = {}
        for rule in rules:
            for fault in rule():
                faults.setdefault(fault.number, fault)
        for fault in self._transitions(faults.keys()):
            faults.setdefault(fault.number, fault)
        return sorted(faults.values())

    def _add(self, recorded: RecordedEntry) -> None:
        entry = recorded.entry
        if entry:
            self._numbers_after[entry.previous].add(entry.number)
        if entry is None or not self._is_genuine(recorded, entry):
            self._parsed[recorded] = None
            self._spoiled.setdefault(recorded.number, recorded)
            return

        self._parsed[recorded] = entry
        links = self._links.setdefault(entry.number, [])
        link = _Link(entry, entry_hash(recorded.text))
        if all(link.hash != other.hash for other in links):
            links.append(link)

    def _is_genuine(self, recorded: RecordedEntry, entry: AuditEntry) -> bool:
        if recorded.stored_hash not in (None, entry_hash(recorded.text)):
            return False
        signer = self._context.signer
        if signer is None or recorded.sig is None:
            return True
        # The signature is over the number in the text, so a misplaced entry is genuine too.
        return signer.verify(recorded.sig, "entry", self._shard, entry.number, recorded.text)

    def _order(self) -> Iterator[Fault]:
        """Find entries that a source repeats, and the first one that is not in order."""
        for source in self._sources:
            texts: set[str] = set()
            numbers: set[int] = set()
            last = 0
            in_order = True
            for recorded in source:
                entry = self._parsed[recorded]
                if recorded.text in texts:
                    yield Fault(self._shard, recorded.number, "repeated")
                elif entry:
                    is_misplaced = entry.number != recorded.number
                    # A number that came before is a fork, which another rule names.
                    is_late = entry.number < last and entry.number not in numbers
                    if in_order and (is_misplaced or is_late):
                        # Only the first: after it, all others may seem to be out of order.
                        in_order = False
                        yield Fault(self._shard, recorded.number, "reordered")
                    else:
                        numbers.add(entry.number)
                        last = max(last, entry.number)
                texts.add(recorded.text)

    def _signatures(self) -> Iterator[Fault]:
        """Find spoiled entries: with a "bad signature" if they fit the chain, else "edited"."""
        for number, recorded in self._spoiled.items():
            reason: FaultReason = "edited"
            if self._fits(number, recorded):
                reason = "bad signature"
            yield Fault(self._shard, number, reason)

    def _fits(self, number: int, recorded: RecordedEntry) -> bool:
        """Return whether a spoiled entry meets the entries before and after it."""
        entry = recorded.entry
        if entry is None or entry.number != number:
            return False
        own_hash = entry_hash(recorded.text)
        if recorded.stored_hash not in (None, own_hash):
            return False
        hashes_before = self._own_hashes(number - 1)
        if hashes_before and entry.previous not in hashes_before:
            return False
        named_by_next = self._previous_hashes(number + 1)
        return not named_by_next or own_hash in named_by_next

    def _forks(self) -> Iterator[Fault]:
        for number, links in self._links.items():
            if len(links) > 1:
                yield Fault(self._shard, number, "forked", f"{len(links)} different entries")

    def _joints(self) -> Iterator[Fault]:
        """Find neighbors that do not meet, and name the one that was edited.

        An edit changes the hash of an entry, so the entry does not meet the next one. If the edit
        changed the hash that the entry names, it does not meet the entry before it either. So an
        entry that meets neither neighbor was edited. If only one joint is broken, the entry before
        it was edited.
        """
        for number in self._numbers:
            if not self._is_followed_wrongly(number - 1):
                continue
            # There is no entry 0 that could have been edited.
            if number == 1 or self._is_followed_wrongly(number):
                yield Fault(self._shard, number, "edited")
            else:
                yield Fault(self._shard, number - 1, "edited")
        # After the last entry comes what Redis remembers as the end of the chain.
        if self._numbers and self._is_followed_wrongly(self._numbers[-1]):
            yield Fault(self._shard, self._numbers[-1], "edited")

    def _is_followed_wrongly(self, number: int) -> bool:
        """Return whether the next entry, or Redis for its last entry, names another hash.

        False if one side is not known. `number` may be 0: the first entry must name NO_HEAD.
        """
        own_hashes = self._own_hashes(number)
        if not own_hashes:
            return False
        head = self._head
        if head and head.number == number > 0 and head.hash not in own_hashes:
            return True
        named_by_next = self._previous_hashes(number + 1)
        return bool(named_by_next) and own_hashes.isdisjoint(named_by_next)

    def _own_hashes(self, number: int) -> set[str]:
        """Return the hashes of the genuine entries of a number: one, or several after a fork.

        Empty if there is no such entry. Number 0 stands for the beginning of the chain.
        """
        if number == 0:
            return {NO_HEAD}
        return {link.hash for link in self._links.get(number, ())}

    def _previous_hashes(self, number: int) -> set[str]:
        """Return the hashes that the genuine entries of a number name as the hash before them.

        Empty if there is no such entry.
        """
        return {link.entry.previous for link in self._links.get(number, ())}

    def _holes(self) -> Iterator[Fault]:
        """Find missing entries between those that are here."""
        before = 0
        if not self._context.whole and self._numbers:
            before = self._numbers[0] - 1
        for left, right in pairwise([before, *self._numbers]):
            if right - left > 1:
                yield self._hole(left + 1, right - 1)

    def _hole(self, first: int, last: int) -> Fault:
        """Return the fault of missing entries.

        If an entry under another number names the hash of the entry before the hole, nothing is
        missing: the number of that entry was edited.
        """
        for hash_before in self._own_hashes(first - 1):
            if self._numbers_after.get(hash_before, set()) - {first}:
                return Fault(self._shard, first, "edited")
        detail = f"up to {last}" if last > first else ""
        return Fault(self._shard, first, "removed", detail)

    def _end(self) -> Iterator[Fault]:
        """Compare the end of the chain with what Redis remembers."""
        if self._head is None:
            return
        last = 0
        if self._numbers:
            last = self._numbers[-1]

        if last < self._head.number:
            hole = self._hole(last + 1, self._head.number)
            if hole.reason == "edited":
                yield hole
            else:
                detail = f"Redis is at {self._head.number}"
                yield Fault(self._shard, last + 1, "removed", detail)

        heads = self._context.heads_before
        if self._context.heads_after:
            heads = self._context.heads_after
        newest = heads.get(self._shard, self._head).number
        if last > newest:
            detail = f"Redis is at {newest}, the log at {last}"
            yield Fault(self._shard, newest + 1, "rolled back", detail)

    def _transitions(self, faulty: Set[int]) -> Iterator[Fault]:
        """Find transitions that are not allowed.

        `faulty` has the numbers of the faults that other rules found. After one of these or a hole
        anything may follow, so that one change is not reported for all entries after it.

        The entry of such a transition is genuine, so the next entry of its action is judged by it.
        """
        if not self._numbers:
            return
        # The last entry of each action since the last fault or hole.
        last: dict[str, AuditEntry] = {}
        # Whether all entries from the first on were seen: then an unknown action is a new one.
        is_complete = self._numbers[0] == 1
        for before, number in pairwise([self._numbers[0] - 1, *self._numbers]):
            if number - before > 1 or number in faulty:
                last.clear()
                is_complete = False
            if number in faulty:
                continue

            entry = self._links[number][0].entry
            previous = last.get(entry.action_id)
            last[entry.action_id] = entry
            if entry.event not in ALLOWED:
                yield Fault(self._shard, number, "impossible", f"{entry.event!r} is no event")
            elif previous or is_complete:
                problem = _transition_problem(previous, entry, self._context.run_once)
                if problem:
                    yield Fault(self._shard, number, "impossible", problem)


def _transition_problem(before: AuditEntry | None, entry: AuditEntry, run_once: Set[str]) -> str:
    """Return why an entry cannot follow `before`; "" if it can.

    `before` is the last entry of the same action, None for a new action.
    """
    last = before.event if before else ""
    # Nobody was shown an action that a standing yes covers. It is claimed by a turn of its own.
    is_covered = (last, entry.event) == (
        "armed",
        "claimed",
    ) and entry.decided_by_event == standing_event_id(entry.action_id)
    if entry.event not in ALLOWED.get(last, ()) and not is_covered:
        return f"{last or 'nothing'} -> {entry.event}"
    if last == entry.event == "started" and entry.action_id in run_once:
        return "started twice"
    if entry.event == VOTED and not entry.decided_by_event:
        return "a vote by no event"
    if before and before.mac != entry.mac:
        return "another record"
    return ""
