"""KnowledgeGraphMemory, triples in memory and SQLite."""

from __future__ import annotations

import copy
import json
import math
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sayso.agent.memory.extraction import TIMEOUT_SECONDS, extracted, heard, model_for, one_line, section, text_of
from sayso.agent.memory.scope import named
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.providers.base import Provider
from sayso.agent.toolsets.selectors import has_word, needs_no_space
from sayso.pending.concurrency import run_sync

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


#: Seconds that a call waits for another that writes.
PATIENCE = 10.0


_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS triples (
    n INTEGER PRIMARY KEY AUTOINCREMENT, scope BLOB NOT NULL, key TEXT NOT NULL, words TEXT NOT NULL,
    subject TEXT NOT NULL, relation TEXT NOT NULL, object TEXT NOT NULL,
    confidence REAL NOT NULL, source_turn INTEGER NOT NULL, created_at REAL NOT NULL,
    UNIQUE (scope, key)
);
"""


_COLUMNS = "subject, relation, object, confidence, source_turn, created_at"


_INSERT = f"INSERT OR REPLACE INTO triples (scope, key, words, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # a constant


_SELECT = f"SELECT {_COLUMNS} FROM triples WHERE scope = ?"  # noqa: S608  # a constant


_SCOPES = "SELECT DISTINCT scope FROM triples"


_PRUNE = (
    "DELETE FROM triples WHERE scope = ? AND n NOT IN (SELECT n FROM triples WHERE scope = ? ORDER BY n DESC LIMIT ?)"
)


class SQLiteTripleStore:
    """The file is only its owner's to read. Every call opens and closes it, so that threads share nothing and processes
    may fork.
    """

    def __init__(self, path: str | Path = "knowledge_graph.db") -> None:
        self.path = Path(path)

    def add_many(self, scope: str, triples: Iterable[Triple], *, most: int) -> None:
        """Keep these in one transaction; past `most` of the scope the oldest go."""
        rows = [(_bytes(scope), triple.key, triple.words, *_row(triple)) for triple in triples]
        with self._write() as db:
            db.executemany(_INSERT, rows)
            db.execute(_PRUNE, (_bytes(scope), _bytes(scope), most))

    def query(self, scope: str, keywords: Sequence[str]) -> list[Triple]:
        """Those in which any of the keywords is, in whatever case."""
        if not keywords:
            return []
        found = " OR ".join(["instr(words, ?)"] * len(keywords))
        with self._open() as db:
            rows = db.execute(
                f"{_SELECT} AND ({found}) ORDER BY n", (_bytes(scope), *(word.casefold() for word in keywords))
            ).fetchall()
        return [Triple(*row) for row in rows]

    def all(self, scope: str) -> list[Triple]:
        """Those of the scope."""
        with self._open() as db:
            return [Triple(*row) for row in db.execute(f"{_SELECT} ORDER BY n", (_bytes(scope),)).fetchall()]

    def clear(self, scope: str) -> None:
        """Forget those of the scope; nothing of them stays in the file."""
        with self._write() as db:
            db.execute("DELETE FROM triples WHERE scope = ?", (_bytes(scope),))
        with self._open() as db:  # what was deleted must not live on in the log of writes
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def erase(self, is_gone: Callable[[str], bool]) -> int:
        """Forget those of the scopes of which this is true. Returns how many. A file that is not there is not made."""
        if not self.path.exists():
            return 0
        with self._open() as db:
            found = [bytes(row[0]).decode("utf-8", "surrogatepass") for row in db.execute(_SCOPES).fetchall()]
        gone = {scope: self.count(scope) for scope in found if is_gone(scope)}
        for scope in gone:
            self.clear(scope)
        return sum(gone.values())

    def count(self, scope: str) -> int:
        """How many the scope has."""
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM triples WHERE scope = ?", (_bytes(scope),)).fetchone()[0])

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            yield db  # an error ends with the connection, and the transaction with it
            db.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)  # before SQLite would make it readable for others
            with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as db:
                db.execute("PRAGMA secure_delete = ON")
                _prepare(db)
                yield db
        except (sqlite3.Error, OSError) as exc:
            raise TripleStoreError(f"{self.path} cannot be used: {exc}; move it away, or name another path") from exc


def _prepare(db: sqlite3.Connection) -> None:
    """Two who turn one new file to WAL at once would wait for each other, so SQLite refuses one of them at once."""
    patience_ends = time.monotonic() + PATIENCE
    while True:
        try:
            db.executescript(_SCHEMA)
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience_ends:
                raise
            time.sleep(0.005)
        else:
            return


def _bytes(scope: str) -> bytes:
    """A scope may be any text, half characters included."""
    return scope.encode("utf-8", "surrogatepass")


def _row(triple: Triple) -> tuple[str, str, str, float, int, float]:
    return (
        triple.subject, triple.relation, triple.object, triple.confidence, triple.source_turn, triple.created_at
    )  # fmt: skip


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
