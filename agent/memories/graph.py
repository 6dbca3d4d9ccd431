"""KnowledgeGraphMemory: who stands in which relation to what, as it was said in conversations."""

from __future__ import annotations

import copy
import math
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from sayso.agent.memories.extraction import TIMEOUT_SECONDS, extracted, heard, model_for, text_of
from sayso.agent.memories.lines import section
from sayso.agent.memories.sqlite_triples import SQLiteTripleStore
from sayso.agent.memories.triples import MemoryTripleStore, Triple, TripleStore
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.providers.base import Provider
from sayso.agent.scope import named
from sayso.agent.selectors.scripts import has_word, needs_no_space
from sayso.workers.offload import run_sync

#: Keywords of a question that are looked for, and characters from which on a word is one, in scripts with spaces.
MAX_KEYWORDS, MIN_KEYWORD_CHARS = 30, 3
#: Characters of the section that the model reads.
MAX_CONTEXT_CHARS = 5000

PROMPT = (
    "You list the relationships that a conversation states. Each is an object "
    '{"subject": "Alice", "relation": "manages", "object": "Project Alpha", "confidence": 0.9}: names as they were '
    "said, the relation in one to three words, the confidence from 0 to 1."
)
#: Words that are in most questions, and find everything.
_COMMON = frozenset(
    """about and any are can could did does for from had has have how into its not our out she should tell that the
    their them then there they this was were what when where which who whom whose why will with would you
    your""".split()  # noqa: SIM905  # fifty quoted words read worse
)


class KnowledgeGraphMemory:
    """Lives as long as its store. Any thread may use it.

    It asks `model` of `provider` what the latest `relevance_window` messages state, and keeps `max_triples` of a scope;
    the oldest go first. `storage` is "memory", "sqlite" (a file at `path`) or a TripleStore. `clock` tells Unix
    seconds.
    """

    def __init__(
        self,
        provider: Provider,
        model: str | None = None,
        storage: Literal["memory", "sqlite"] | TripleStore = "memory",
        path: str | Path = "knowledge_graph.db",
        max_triples: int = 200,
        max_context_triples: int = 15,
        relevance_window: int = 10,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if min(max_triples, max_context_triples, relevance_window) < 1:
            raise ValueError(
                f"max_triples={max_triples!r}, max_context_triples={max_context_triples!r} and "
                f"relevance_window={relevance_window!r} must be 1 or more"
            )
        self.provider, self.model = provider, model
        self.store = _store(storage, path)
        self.max_triples, self.max_context_triples = max_triples, max_context_triples
        self.relevance_window = relevance_window
        self._clock, self._scope = clock, ""

    def bound_to(self, scope: str) -> KnowledgeGraphMemory:
        """One with the same store that sees and keeps only what is this scope's. Raises ValueError for an empty one."""
        bound = copy.copy(self)
        bound._scope = named(scope)  # noqa: SLF001  # a copy of ourselves
        return bound

    @property
    def triples(self) -> list[Triple]:
        """What is known, oldest first. Raises TripleStoreError, as all that follow."""
        return self.store.all(self._scope)

    async def aextract_triples(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        *,
        timeout: float | None = TIMEOUT_SECONDS,  # noqa: ASYNC109  # acall enforces it
    ) -> tuple[list[Triple], UsageStats]:
        """What the messages state, without keeping it, and what that cost. Nothing where the model fails."""
        found, usage = await extracted(
            self.provider,
            PROMPT,
            heard(messages)[-self.relevance_window :],
            model=model_for(self.provider, model, self.model),
            timeout=timeout,
            kind="triples",
        )
        turn, now = sum(message.role is Role.USER for message in messages), self._clock()
        triples = [_triple(each, turn, now) for each in found]
        return [triple for triple in triples if triple.subject and triple.relation and triple.object], usage

    def extract_triples(self, messages: Sequence[Message], model: str | None = None) -> list[Triple]:
        """`aextract_triples` for sync code, without the cost."""
        return run_sync(self.aextract_triples(messages, model))[0]

    def update(self, triples: Iterable[Triple]) -> None:
        """Keep what was found. Blocks while it is written."""
        found = list(triples)
        if found:
            self.store.add_many(self._scope, found, most=self.max_triples)

    def query_relevant(self, query: str) -> list[Triple]:
        """Those that share a word with the query: who shares most first, then the youngest; without words, all."""
        words = _keywords(query)
        found = self.store.query(self._scope, words) if words else self.triples
        hits = {triple.key: sum(has_word(triple.words, word) for word in words) for triple in found}
        relevant = [triple for triple in reversed(found) if hits[triple.key] or not words]
        relevant.sort(key=lambda triple: -hits[triple.key])
        return relevant[: self.max_context_triples]

    def build_context(self, query: str = "") -> str:
        """The section for the model, with what the query is about, or the latest without one; "" where nothing is."""
        lines = [_line(triple) for triple in self.query_relevant(query)]
        return section("[Known Relationships]", lines, MAX_CONTEXT_CHARS)

    def to_dict(self) -> dict[str, Any]:
        """Limits, and the relationships of this scope, as JSON-ready data."""
        return {
            "max_triples": self.max_triples,
            "max_context_triples": self.max_context_triples,
            "relevance_window": self.relevance_window,
            "triples": [asdict(triple) for triple in self.triples],
        }

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        provider: Provider,
        *,
        storage: Literal["memory", "sqlite"] | TripleStore = "memory",
        path: str | Path = "knowledge_graph.db",
    ) -> KnowledgeGraphMemory:
        """The memory that `to_dict` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        memory = cls(
            provider, None, storage, path, data["max_triples"], data["max_context_triples"], data["relevance_window"]
        )
        memory.update(Triple(**each) for each in data["triples"])
        return memory


def _store(storage: str | TripleStore, path: str | Path) -> TripleStore:
    if isinstance(storage, TripleStore):
        return storage
    if storage == "memory":
        return MemoryTripleStore()
    if storage == "sqlite":
        return SQLiteTripleStore(path)
    raise ValueError(f"storage={storage!r} is unknown: use 'memory', 'sqlite' or a TripleStore")


def _triple(found: Mapping[str, Any], turn: int, now: float) -> Triple:
    subject, relation, object_ = (text_of(found.get(name)) for name in ("subject", "relation", "object"))
    return Triple(subject, relation, object_, _confidence(found.get("confidence", 1.0)), turn, now)


def _confidence(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 1.0
    return min(1.0, max(0.0, float(value)))


def _keywords(query: str) -> list[str]:
    """The words that tell one question from another; where words have no spaces between them, every two letters."""
    words: dict[str, None] = {}
    for word in "".join(char if unicodedata.category(char)[0] in "LNM" else " " for char in query.casefold()).split():
        if any(map(needs_no_space, word)):
            words |= dict.fromkeys(word[start : start + 2] for start in range(max(1, len(word) - 1)))
        elif len(word) >= MIN_KEYWORD_CHARS and word not in _COMMON:
            words[word] = None
    return list(words)[:MAX_KEYWORDS]


def _line(triple: Triple) -> str:
    doubt = f" (confidence {triple.confidence:.1f})" if triple.confidence < 1 else ""
    return f"- {triple.subject} {triple.relation} {triple.object}{doubt}"
