"""TripleStore: what every store of relationships promises."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading

import pytest

from sayso.agent.memory.graph import MemoryTripleStore, SQLiteTripleStore, Triple, TripleStore, TripleStoreError

MANAGES = Triple("Alice", "manages", "Project Alpha", 0.9, 2, 100.5)
KNOWS = Triple("Bob", "knows", "ÉMILE")


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    """Each of the product's stores, empty."""
    return MemoryTripleStore() if request.param == "memory" else SQLiteTripleStore(tmp_path / "graph.db")


def test_no_method_sees_another_scope(store):
    """Neither all nor a query, nor a count; and clearing one leaves the other."""
    store.add_many("a", [MANAGES], most=9)
    assert (store.all("b"), store.query("b", ["alice"]), store.count("b")) == ([], [], 0)
    store.clear("b")
    assert store.all("a") == [MANAGES]


@pytest.mark.parametrize("scope", ["' OR 1=1 --", "%", "a\0b", "\ud83d", "", "x" * 9999])
def test_a_scope_is_any_text(store, scope):
    """It is compared, and never a part of a statement."""
    store.add_many("a", [KNOWS], most=9)
    store.add_many(scope, [MANAGES], most=9)
    assert store.all(scope) == [MANAGES]
    assert store.query(scope, ["%", "bob"]) == []


def test_the_oldest_go_past_the_limit_of_their_own_scope(store):
    """Another scope's are not counted."""
    store.add_many("b", [KNOWS], most=2)
    store.add_many("a", (Triple(str(n), "is", "x") for n in range(5)), most=2)
    assert [triple.subject for triple in store.all("a")] == ["3", "4"]
    assert store.count("b") == 1


def test_what_is_told_again_is_kept_once_as_the_youngest(store):
    """In whatever case it is written."""
    store.add_many("a", [MANAGES, KNOWS], most=9)
    store.add_many("a", [Triple("ALICE", "Manages", "project alpha")], most=9)
    assert [triple.subject for triple in store.all("a")] == ["Bob", "ALICE"]


def test_keywords_are_found_in_any_case_and_script(store):
    """Any of them is enough; without any, nothing is."""
    store.add_many("a", [MANAGES, KNOWS], most=9)
    assert store.query("a", ["émile"]) == [KNOWS]
    assert store.query("a", ["ALPHA", "bob"]) == [MANAGES, KNOWS]
    assert store.query("a", []) == []


def test_clearing_forgets(store):
    """All of the scope."""
    store.add_many("a", [MANAGES], most=9)
    store.clear("a")
    assert store.count("a") == 0


def test_it_is_a_store(store):
    """By its methods."""
    assert isinstance(store, TripleStore)


def test_threads_lose_nothing(store):
    """All write into one scope at once."""

    def write(n):
        store.add_many("a", [Triple(str(n), "is", "x")], most=99)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count("a") == 8


@pytest.mark.slow
def test_processes_share_a_file_and_lose_nothing(tmp_path):
    """Also those that make it at the same time."""
    code = (
        "import sys; from sayso.agent.memory.graph import SQLiteTripleStore, Triple\n"
        "for n in range(20): SQLiteTripleStore(sys.argv[1]).add_many('a', [Triple(sys.argv[2], 'is', str(n))], most=99)"
    )
    path = str(tmp_path / "graph.db")
    running = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in "xyz"]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert SQLiteTripleStore(path).count("a") == 60


def test_a_person_is_found_by_the_names_of_scopes(tmp_path):
    """However many they have; and looking makes no file."""
    store = SQLiteTripleStore(tmp_path / "kg.db")
    assert store.erase(lambda _: True) == 0
    assert not store.path.exists()
    for scope in ("chat:ana", "room:ana", "chat:bob"):
        store.add_many(scope, [Triple("a", "knows", "b")], most=9)
    assert store.erase(lambda scope: scope.endswith(":ana")) == 2
    assert [store.count(scope) for scope in ("chat:ana", "room:ana", "chat:bob")] == [0, 0, 1]


def test_only_the_owner_reads_the_file(tmp_path):
    """People's relationships are nobody else's business, and what was cleared is gone from the disk."""
    store = SQLiteTripleStore(tmp_path / "new" / "graph.db")
    store.add_many("a", [MANAGES], most=9)
    assert store.path.stat().st_mode & 0o777 == 0o600
    store.clear("a")
    assert b"Alice" not in b"".join(path.read_bytes() for path in store.path.parent.iterdir())


def test_a_foreign_file_is_an_error_that_names_it(tmp_path):
    """And what to do."""
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
