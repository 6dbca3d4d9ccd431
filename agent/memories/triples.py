"""Triple: one relationship, and TripleStore: where those of many scopes are kept, none seeing another's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sayso.agent.memories.lines import one_line

#: Characters of a subject, a relation or an object.
PART_CHARS = 120


class TripleStoreError(Exception):
    """Raised when the relationships cannot be read or kept."""


@dataclass(frozen=True, slots=True)
class Triple:
    """Subject, relation, object, each short and of one line. `created_at` is in Unix seconds."""

    subject: str
    relation: str
    object: str
    confidence: float = 1.0
    source_turn: int = 0
    created_at: float = 0.0

    def __post_init__(self) -> None:
        for name in ("subject", "relation", "object"):
            object.__setattr__(self, name, one_line(getattr(self, name), PART_CHARS))

    @property
    def words(self) -> str:
        """What keywords are looked for in."""
        return f"{self.subject} {self.relation} {self.object}".casefold()

    @property
    def key(self) -> str:
        """What two spellings of one relationship share."""
        return json.dumps([self.subject.casefold(), self.relation.casefold(), self.object.casefold()])


@runtime_checkable
class TripleStore(Protocol):
    """Relationships by scope, oldest first. One that is told again is kept once, as the youngest.

    Every method sees one scope. They block, are short, and may be called from any thread. Raises TripleStoreError.
    """

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Keep these; past `most` of the scope the oldest go."""
        ...

    def query(self, scope: str, keywords: Sequence[str]) -> list[Triple]:
        """Those in which any of the keywords is, in whatever case."""
        ...

    def all(self, scope: str) -> list[Triple]:
        """Those of the scope."""
        ...

    def clear(self, scope: str) -> None:
        """Forget those of the scope."""
        ...

    def count(self, scope: str) -> int:
        """How many the scope has."""
        ...


class MemoryTripleStore:
    """The relationships of this process, gone with it."""

    def __init__(self) -> None:
        self._scopes: dict[str, dict[str, Triple]] = {}
        self._lock = threading.Lock()

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Keep these; past `most` of the scope the oldest go."""
        with self._lock:
            kept = self._scopes.setdefault(scope, {})
            for triple in triples:
                kept.pop(triple.key, None)
                kept[triple.key] = triple
            while len(kept) > most:
                del kept[next(iter(kept))]

    def query(self, scope: str, keywords: Sequence[str]) -> list[Triple]:
        """Those in which any of the keywords is, in whatever case."""
        folded = [keyword.casefold() for keyword in keywords]
        return [triple for triple in self.all(scope) if any(word in triple.words for word in folded)]

    def all(self, scope: str) -> list[Triple]:
        """Those of the scope."""
        with self._lock:
            return list(self._scopes.get(scope, {}).values())

    def clear(self, scope: str) -> None:
        """Forget those of the scope."""
        with self._lock:
            self._scopes.pop(scope, None)

    def count(self, scope: str) -> int:
        """How many the scope has."""
        with self._lock:
            return len(self._scopes.get(scope, {}))
