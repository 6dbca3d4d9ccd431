"""TripleStore: the promises of every store of relationships."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sayso.agent.memory.graph import (
    MemoryTripleStore,
    SQLiteTripleStore,
    Triple,
    TripleStore,
    TripleStoreError,
)

MANAGES = Triple("Alice", "manages", "Project Alpha", 0.9, 2, 100.5)
KNOWS = Triple("Bob", "knows", "ÉMILE")


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    """Return each of the product's stores, empty."""
    return (
        MemoryTripleStore()
        if request.param == "memory"
        else SQLiteTripleStore(tmp_path / "graph.db")
    )


def test_no_method_reads_another_scope(store):
    """A triple belongs to the scope that it was added to."""
    store.add_many("a", [MANAGES], most=9)
    assert (store.all("a"), store.all("b")) == ([MANAGES], [])


@pytest.mark.parametrize("scope", ["' OR 1=1 --", "%", "a\0b", "\ud83d", "", "x" * 9999])
def test_scope_may_be_any_text(store, scope):
    """It is a bound parameter, never a part of a statement."""
    store.add_many("a", [KNOWS], most=9)
    store.add_many(scope, [MANAGES], most=9)
    assert store.all(scope) == [MANAGES]


def test_oldest_triples_of_a_scope_are_dropped_at_the_limit(store):
    """Other scopes do not count."""
    store.add_many("b", [KNOWS], most=2)
    store.add_many("a", (Triple(str(n), "is", "x") for n in range(5)), most=2)
    assert [triple.subject for triple in store.all("a")] == ["3", "4"]
    assert len(store.all("b")) == 1


def test_repeated_triple_is_stored_once_as_the_newest(store):
    """Case makes no difference."""
    store.add_many("a", [MANAGES, KNOWS], most=9)
    store.add_many("a", [Triple("ALICE", "Manages", "project alpha", created_at=200.0)], most=9)
    assert [triple.subject for triple in store.all("a")] == ["Bob", "ALICE"]


def test_repeated_triple_keeps_the_time_of_its_first_statement(store):
    """A model reads the triples in the order of these times."""
    store.add_many("a", [MANAGES], most=9)
    store.add_many("b", [replace(MANAGES, created_at=150.0)], most=9)
    store.add_many("a", [replace(MANAGES, created_at=200.0, confidence=0.5)], most=9)
    assert store.all("a") == [replace(MANAGES, confidence=0.5)]


def test_store_implements_the_protocol(store):
    """It has the methods of the protocol."""
    assert isinstance(store, TripleStore)


def test_concurrent_threads_lose_no_triple(store):
    """All write into one scope."""

    def write(n):
        store.add_many("a", [Triple(str(n), "is", "x")], most=99)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.all("a")) == 8


def _add_twenty(path: Path, name: str) -> None:
    for n in range(20):
        SQLiteTripleStore(path).add_many("a", [Triple(name, "is", str(n))], most=99)


def test_concurrent_processes_lose_no_triple(tmp_path):
    """They create the file at the same time."""
    path = tmp_path / "graph.db"
    forks = multiprocessing.get_context("fork")
    running = [forks.Process(target=_add_twenty, args=(path, name)) for name in "xyz"]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0, 0]
    assert len(SQLiteTripleStore(path).all("a")) == 60


def test_user_is_erased_by_the_names_of_scopes(tmp_path):
    """All scopes of a user are erased, and looking for them creates no file."""
    store = SQLiteTripleStore(tmp_path / "kg.db")
    assert store.erase(lambda _: True) == 0
    assert not store.path.exists()
    for scope in ("chat:ana", "room:ana", "chat:bob"):
        store.add_many(scope, [Triple("a", "knows", "b")], most=9)
    assert store.erase(lambda scope: scope.endswith(":ana")) == 2
    assert [len(store.all(scope)) for scope in ("chat:ana", "room:ana", "chat:bob")] == [0, 0, 1]


def test_file_is_readable_by_its_owner_only(tmp_path):
    """Deleted relationships are gone from the disk too."""
    store = SQLiteTripleStore(tmp_path / "new" / "graph.db")
    store.add_many("a", [MANAGES], most=9)
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.erase(lambda scope: scope == "a") == 1
    assert b"Alice" not in b"".join(path.read_bytes() for path in store.path.parent.iterdir())


def test_foreign_file_is_an_error_that_names_it(tmp_path):
    """The error gives the fix, and the file is unchanged."""
    path = tmp_path / "graph.db"
    path.write_text("no database, but something somebody wants to keep " * 99)
    with pytest.raises(TripleStoreError, match=r"graph\.db cannot be used.*name another"):
        SQLiteTripleStore(path).all("a")
    assert "somebody wants" in path.read_text()


def test_readers_do_not_wait_for_writers(tmp_path):
    """The file is in WAL mode."""
    store = SQLiteTripleStore(tmp_path / "graph.db")
    store.add_many("a", [MANAGES], most=9)
    db = sqlite3.connect(store.path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
