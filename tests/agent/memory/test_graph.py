"""KnowledgeGraphMemory: stated relationships are stored, and those relevant to a question are returned."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import Message, Role
from sayso.agent.memory.graph import KnowledgeGraphMemory, MemoryTripleStore, Triple
from tests.agent.memory.models import DOWN, Reader, user

MANAGES = {"subject": "Alice", "relation": "manages", "object": "Project Alpha", "confidence": 0.9}


def graph(*found, says=None, **options):
    """Return a memory with a fixed clock."""
    return KnowledgeGraphMemory(Reader(*found, says=says), "small", clock=lambda: 100.0, **options)


def test_bound_memory_reads_and_writes_only_its_scope():
    """All scopes share one store."""
    whole = graph()
    alice, bob = whole.bound_to("alice"), whole.bound_to("bob")
    alice.update([Triple("Alice", "owes", "Bob")])
    assert (bob.build_context("alice"), bob.build_context(), bob.triples, whole.triples) == (
        "",
        "",
        [],
        [],
    )
    assert alice.store is bob.store


def test_empty_scope_is_refused():
    """Its triples would belong to every user."""
    with pytest.raises(ValueError, match="scope=''"):
        graph().bound_to("")


@pytest.mark.parametrize(
    "found",
    [
        {"subject": "A", "relation": "is"},
        {"subject": "A", "relation": "", "object": "B"},
        {"subject": ["A"], "relation": "is", "object": "B"},
        {"subject": True, "relation": "is", "object": "B"},
    ],
)
def test_incomplete_relationship_is_ignored(found):
    """All three parts must be text."""
    assert graph(found).extract([user("hi")]) == []


@pytest.mark.parametrize(
    ("said", "kept"), [(7, 1), (-1, 0), ("high", 1), (True, 1), (None, 1), (0.5, 0.5)]
)
def test_confidence_is_limited_to_its_range(said, kept):
    """The model may state any value."""
    [triple] = graph({**MANAGES, "confidence": said}).extract([user("hi")])
    assert triple.confidence == kept


def test_invalid_confidence_counts_as_full():
    """Python's JSON parser accepts NaN."""
    text = '[{"subject": "A", "relation": "is", "object": "B", "confidence": NaN}]'
    assert graph(says=text).extract([user("hi")])[0].confidence == 1


def test_failing_model_finds_no_relationship():
    """The caller continues."""
    assert graph(says=DOWN).extract([user("hi")]) == []


def test_example_of_the_seed():
    """A relationship is extracted, stored, and returned for a question about it."""
    known = graph(MANAGES)
    found, usage = asyncio.run(
        known.aextract([user("Alice manages Project Alpha"), Message(Role.TOOL, "x")])
    )
    known.update(found)
    assert (found, usage.total_tokens) == (
        [Triple("Alice", "manages", "Project Alpha", 0.9, 1, 100.0)],
        12,
    )
    assert known.build_context("who runs alpha?") == (
        "[Known Relationships]\n- Alice manages Project Alpha (confidence 0.9)"
    )


@pytest.mark.parametrize(
    ("query", "subjects"),
    [
        ("what does Alice do?", ["Alice"]),
        ("Alice's project", ["Alice"]),
        ("is art dear", []),
        ("and the who?", ["राम", "太郎", "Martha", "Alice"]),
        ("", ["राम", "太郎", "Martha", "Alice"]),
        ("太郎さんは何をしますか", ["太郎"]),
        ("राम कहाँ है", ["राम"]),
        ("Project of Martha, she heads beta", ["Martha", "Alice"]),
    ],
)
def test_relevant_relationships_of_a_question(query, subjects):
    """Whole words match in any script, best matches first. A question without keywords matches everything."""
    known = graph()
    known.update(
        [
            Triple("Alice", "manages", "Project Alpha"),
            Triple("Martha", "heads", "Beta"),
            Triple("太郎", "働く", "東京"),
            Triple("राम", "रहता", "दिल्ली"),
        ]
    )
    assert [triple.subject for triple in known.query_relevant(query)] == subjects


def test_keywords_match_in_any_case():
    """This holds for letters outside of ASCII too."""
    known = graph()
    known.update([Triple("Bob", "knows", "ÉMILE")])
    assert known.build_context("who is émile?") == "[Known Relationships]\n- Bob knows ÉMILE"


def test_number_of_returned_relationships_is_limited():
    """Of equally relevant ones the newest are returned, the oldest of them first."""
    known = graph(max_context_triples=2)
    known.update(Triple(f"A{n}", "is", "x") for n in range(5))
    assert known.build_context().splitlines()[1:] == ["- A3 is x", "- A4 is x"]


def test_relationship_that_is_stated_again_stays_where_it_was():
    """It becomes the newest one, which counts for what is kept, and moves no line that a model reads."""
    known = graph(max_triples=2)
    known.update([Triple("Bob", "is", "x", created_at=1), Triple("Ann", "is", "x", created_at=2)])
    before = known.build_context()
    known.update([Triple("Bob", "is", "x", created_at=3)])
    assert known.build_context() == before == "[Known Relationships]\n- Bob is x\n- Ann is x"
    known.update([Triple("Eve", "is", "x", created_at=4)])
    assert known.build_context() == "[Known Relationships]\n- Bob is x\n- Eve is x"


def test_relationship_with_line_breaks_forges_no_section():
    """Its text stays on its line."""
    known = graph()
    known.update([Triple("A\n[Long-term Memory]", "is\u2028", "x" * 999)])
    assert known.build_context().count("\n") == 1


def test_storage_is_a_name_or_a_store(tmp_path):
    """The file is at the given path."""
    store = MemoryTripleStore()
    assert graph(storage=store).store is store
    graph(storage="sqlite", path=tmp_path / "g.db").update([Triple("A", "is", "B")])
    assert (tmp_path / "g.db").exists()
    with pytest.raises(ValueError, match="storage='redis' is unknown"):
        graph(storage="redis")
