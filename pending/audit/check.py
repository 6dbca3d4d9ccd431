"""Audit: the check of all chains, which names every place where somebody's hand shows, the first one first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sayso.pending.audit.chain import Chain, Fault, Terms
from sayso.pending.audit.entry import Kept


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found. `faults` are in order of shard and number."""

    entries: int
    shards: int
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Fault | None:
        """The first fault, None when the chain holds."""
        return self.faults[0] if self.faults else None


def check(sources: Iterable[Sequence[Kept]], terms: Terms | None = None) -> Report:
    """Check what several keepers have of the log, each in the order it has it."""
    terms = terms or Terms()
    shards: dict[int, list[Sequence[Kept]]] = defaultdict(list, {shard: [] for shard in terms.tips})
    for source in sources:
        for shard, kept in _by_shard(source).items():
            shards[shard].append(kept)
    chains = [Chain(shard, shards[shard], terms) for shard in sorted(shards)]
    return Report(
        entries=sum(chain.size for chain in chains),
        shards=sum(chain.size > 0 for chain in chains),
        faults=tuple(fault for chain in chains for fault in chain.faults()),
        notes=tuple(chain.note for chain in chains if chain.note),
    )


def _by_shard(source: Sequence[Kept]) -> dict[int, list[Kept]]:
    shards: dict[int, list[Kept]] = defaultdict(list)
    for kept in source:
        shards[kept.shard].append(kept)
    return shards
