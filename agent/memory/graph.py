"""KnowledgeGraphMemory: relationships that a model extracts from conversations, and their stores.

A relationship is a Triple: subject, relation and object, such as "Alice", "manages", "Project
Alpha". Triples are stored by scope (`extraction.py`), in memory or in a SQLite file.
"""

from __future__ import annotations

import copy
import json
import math
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.agent.memory.extraction import (
    ExtractingMemory,
    one_line,
    required_scope,
    section,
    text_of,
)
from sayso.agent.providers.base import Provider
from sayso.agent.toolsets.embedding import has_word, needs_no_space
from sayso.infra.storage.files import open_database, transaction

#: The most characters of a subject, a relation or an object.
PART_CHARS = 120
#: The most characters of the section that the model reads.
MAX_CONTEXT_CHARS = 5000
#: The most keywords of a query.
MAX_KEYWORDS = 30
#: The shortest keyword in a script with spaces between words, in characters.
MIN_KEYWORD_CHARS = 3

PROMPT = (
    'You list the relationships that a conversation states. Each is an object {"subject": "Alice", '
    '"relation": "manages", "object": "Project Alpha", "confidence": 0.9}: names as they were '
    "said, the relation in one to three words, the confidence from 0 to 1."
)
#: Words that are no keywords: they are in most questions, and would match everything.
_COMMON_WORDS = frozenset(
    """about and any are can could did does for from had has have how into its not our out she
    should tell that the their them then there they this was were what when where which who whom
    whose why will with would you your""".split()
)

#: The column `words` is not read. It stays for files that were created with it.
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS triples (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    scope BLOB NOT NULL, key TEXT NOT NULL, words TEXT NOT NULL,
    subject TEXT NOT NULL, relation TEXT NOT NULL, object TEXT NOT NULL,
    confidence REAL NOT NULL, source_turn INTEGER NOT NULL, created_at REAL NOT NULL,
    UNIQUE (scope, key)
);
"""
#: The columns of a Triple, in the order of its fields.
_COLUMNS = "subject, relation, object, confidence, source_turn, created_at"
#: The `created_at` of a triple to store: the first one, if the triple is stored already.
_FIRST_CREATED = "COALESCE((SELECT created_at FROM triples WHERE scope = ?1 AND key = ?2), ?8)"
#: Stores a triple as the newest of its scope. Its parameters are the scope, the key, and the fields
#: of the Triple in their order.
_INSERT = (
    f"INSERT OR REPLACE INTO triples (scope, key, words, {_COLUMNS}) "  # noqa: S608  # constants
    f"VALUES (?1, ?2, '', ?3, ?4, ?5, ?6, ?7, {_FIRST_CREATED})"
)
#: Returns the triples of a scope, oldest first.
_SELECT = f"SELECT {_COLUMNS} FROM triples WHERE scope = ? ORDER BY n"  # noqa: S608  # a constant
#: Removes the oldest triples of a scope. Its parameters are the scope, twice, and how many stay.
_PRUNE = (
    "DELETE FROM triples WHERE scope = ? "
    "AND n NOT IN (SELECT n FROM triples WHERE scope = ? ORDER BY n DESC LIMIT ?)"
)


class TripleStoreError(Exception):
    """Raised when triples cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Triple:
    """A relationship, such as "Alice", "manages", "Project Alpha".

    Subject, relation and object are each on one line, and cut to PART_CHARS.
    """

    subject: str
    relation: str
    object: str
    #: How sure the extracting model was, from 0 to 1.
    confidence: float = 1.0
    #: The number of user messages in the conversation when the triple was extracted.
    source_turn: int = 0
    #: When it was first stated, in Unix seconds.
    created_at: float = 0.0

    def __post_init__(self) -> None:
        for name in ("subject", "relation", "object"):
            object.__setattr__(self, name, one_line(getattr(self, name), PART_CHARS))

    @property
    def text(self) -> str:
        """The three parts as a sentence."""
        return f"{self.subject} {self.relation} {self.object}"

    @property
    def key(self) -> str:
        """The three parts without case, which identify the triple."""
        return json.dumps(
            [self.subject.casefold(), self.relation.casefold(), self.object.casefold()]
        )


@runtime_checkable
class TripleStore(Protocol):
    """Stores triples by scope, oldest first.

    A triple that is added again moves to the end, as the newest, but keeps its first `created_at`,
    so that the model reads it where it was before. The methods block for a short time, are
    thread-safe, and raise TripleStoreError.
    """

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Add triples to a scope, then remove its oldest beyond `most`."""

    def all(self, scope: str) -> list[Triple]:
        """Return the triples of a scope."""


class MemoryTripleStore:
    """Keeps triples in the memory of this process, as long as it runs."""

    def __init__(self) -> None:
        self._scopes: dict[str, dict[str, Triple]] = {}
        self._lock = threading.Lock()

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Add triples to a scope, then remove its oldest beyond `most`."""
        with self._lock:
            stored = self._scopes.setdefault(scope, {})
            for triple in triples:
                known = stored.pop(triple.key, triple)
                stored[triple.key] = replace(triple, created_at=known.created_at)
            while len(stored) > most:
                del stored[next(iter(stored))]

    def all(self, scope: str) -> list[Triple]:
        """Return the triples of a scope."""
        with self._lock:
            return list(self._scopes.get(scope, {}).values())


class SQLiteTripleStore:
    """Keeps triples in a SQLite file that only its owner can read.

    Every call opens and closes the file, so that threads share nothing and processes may fork.
    """

    def __init__(self, path: str | Path = "knowledge_graph.db") -> None:
        self.path = Path(path)

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Add triples to a scope in one transaction, then remove its oldest beyond `most`."""
        rows = [(_bytes(scope), triple.key, *astuple(triple)) for triple in triples]
        with self._opened() as db, transaction(db):
            db.executemany(_INSERT, rows)
            db.execute(_PRUNE, (_bytes(scope), _bytes(scope), most))

    def all(self, scope: str) -> list[Triple]:
        """Return the triples of a scope."""
        with self._opened() as db:
            return [Triple(*row) for row in db.execute(_SELECT, (_bytes(scope),)).fetchall()]

    def erase(self, should_erase: Callable[[str], bool]) -> int:
        """Remove the triples of all scopes for which `should_erase` is true. Return how many.

        Their text is overwritten in the file. A missing file is not created.
        """
        if not self.path.exists():
            return 0
        count = 0
        with self._opened() as db:
            for (scope,) in db.execute("SELECT DISTINCT scope FROM triples").fetchall():
                if should_erase(scope.decode("utf-8", "surrogatepass")):
                    count += db.execute("DELETE FROM triples WHERE scope = ?", (scope,)).rowcount
            # The write-ahead log still contains the erased text.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with open_database(self.path, _SCHEMA) as db:
                yield db
        except (sqlite3.Error, OSError) as exc:
            raise TripleStoreError(
                f"{self.path} cannot be used: {exc}; move it away, or name another path"
            ) from exc


def _bytes(scope: str) -> bytes:
    """Return the scope as bytes, because SQLite refuses a text with lone surrogates."""
    return scope.encode("utf-8", "surrogatepass")


class KnowledgeGraphMemory(ExtractingMemory[Triple]):
    """Relationships that were stated in conversations. Thread-safe.

    * `provider`, `model`: extract them from the latest `relevance_window` messages. None is the
      default model of the provider.
    * `storage`: "memory", "sqlite" (a file at `path`) or a TripleStore.
    * `max_triples`: how many a scope keeps; the oldest are removed first.
    * `max_context_triples`: how many a model reads.
    * `clock`: returns Unix seconds.

    Raises ValueError for a limit below 1 and an unknown storage. A new memory uses the scope "",
    which all users share; `bound_to` returns the memory of one scope.
    """

    kind = "triples"
    prompt = PROMPT

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
        super().__init__(
            provider,
            model,
            relevance_window,
            clock,
            max_triples=max_triples,
            max_context_triples=max_context_triples,
        )
        self.store: TripleStore
        if isinstance(storage, TripleStore):
            self.store = storage
        elif storage == "memory":
            self.store = MemoryTripleStore()
        elif storage == "sqlite":
            self.store = SQLiteTripleStore(path)
        else:
            raise ValueError(
                f"storage={storage!r} is unknown: use 'memory', 'sqlite' or a TripleStore"
            )
        self.max_triples = max_triples
        self.max_context_triples = max_context_triples
        self._scope = ""

    def bound_to(self, scope: str) -> KnowledgeGraphMemory:
        """Return a memory with the same store that only uses this scope.

        Raise ValueError for an empty scope.
        """
        bound = copy.copy(self)
        bound._scope = required_scope(scope)  # noqa: SLF001  # a copy of ourselves
        return bound

    @property
    def triples(self) -> list[Triple]:
        """The triples of the scope, oldest first.

        Raises TripleStoreError, as all methods below do.
        """
        return self.store.all(self._scope)

    def _item(self, extracted: Mapping[str, Any], turn: int) -> Triple | None:
        triple = Triple(
            subject=text_of(extracted.get("subject")),
            relation=text_of(extracted.get("relation")),
            object=text_of(extracted.get("object")),
            confidence=_confidence(extracted.get("confidence")),
            source_turn=turn,
            created_at=self._clock(),
        )
        if triple.subject and triple.relation and triple.object:
            return triple
        return None

    def update(self, triples: Iterable[Triple]) -> None:
        """Store triples. Blocks until they are written."""
        new_triples = list(triples)
        if new_triples:
            self.store.add_many(self._scope, new_triples, most=self.max_triples)

    def query_relevant(self, query: str) -> list[Triple]:
        """Return at most `max_context_triples` triples that share a keyword with the query.

        Those with the most shared keywords come first; of equal ones, the newest. For a query
        without keywords, return the newest triples.
        """
        keywords = _keywords_of(query)
        newest_first = self.triples[::-1]
        if not keywords:
            return newest_first[: self.max_context_triples]

        hits: dict[Triple, int] = {}
        for triple in newest_first:
            text = triple.text.casefold()
            hits[triple] = sum(has_word(text, keyword) for keyword in keywords)
        matching = [triple for triple in newest_first if hits[triple]]
        matching.sort(key=lambda triple: -hits[triple])  # stable: the newest stay first
        return matching[: self.max_context_triples]

    def build_context(self, query: str = "") -> str:
        """Return the section for the model with the triples relevant to the query; "" for none.

        They stand in the order in which they were first stated. If not all fit, the least relevant
        are left out.
        """
        lines = []
        for triple in self.query_relevant(query):
            doubt = ""
            if triple.confidence < 1:
                doubt = f" (confidence {triple.confidence:.1f})"
            lines.append(((triple.created_at, triple.key), f"- {triple.text}{doubt}"))
        return section("[Known Relationships]", lines, MAX_CONTEXT_CHARS)


def _confidence(value: Any) -> float:
    """Return the confidence that a model stated, from 0 to 1; 1 if it stated no number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        return 1.0
    return min(1.0, max(0.0, float(value)))


def _keywords_of(query: str) -> list[str]:
    """Return the keywords of a query, each once, at most MAX_KEYWORDS.

    They are all words but the short and the common ones. In scripts without spaces between words,
    every two adjacent characters are a keyword.
    """
    # Letters, numbers and combining marks are parts of words; all other characters separate them.
    words = "".join(
        char if unicodedata.category(char)[0] in "LNM" else " " for char in query.casefold()
    ).split()
    keywords: list[str] = []
    for word in words:
        if any(needs_no_space(char) for char in word):
            starts = range(max(1, len(word) - 1))
            keywords += [word[start : start + 2] for start in starts]
        elif len(word) >= MIN_KEYWORD_CHARS and word not in _COMMON_WORDS:
            keywords.append(word)
    distinct = list(dict.fromkeys(keywords))
    return distinct[:MAX_KEYWORDS]
