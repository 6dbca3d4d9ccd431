"""Corpus: what people write, labelled, and how much of it the parser may miss."""

from __future__ import annotations

import pytest

from benchmarks.parser import CORPUS, read_corpus, tally
from pending.parser import RegexConfirmParser
from pending.phrasebook import SHIPPED_LANGUAGES

DEFAULT = ("pt", "en", "es")
#: Each file with the languages it is read in: its own, those of the default parser, and all at once.
READINGS = [
    *((name, (name,)) for name in SHIPPED_LANGUAGES),
    *((name, DEFAULT) for name in (*DEFAULT, "tricks")),
    *((name, SHIPPED_LANGUAGES) for name in (*SHIPPED_LANGUAGES, "tricks")),
]


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_nothing_else_is_taken_for_a_yes(name, languages):
    """False confirms are unforgivable: none in the whole corpus."""
    assert tally(RegexConfirmParser(languages), read_corpus(name)).false_confirms == []


@pytest.mark.parametrize("name", [*SHIPPED_LANGUAGES, "tricks"])
def test_nothing_is_taken_for_a_yes_in_a_language_that_is_not_read(name):
    """The default parser is also written to by people of other languages."""
    assert tally(RegexConfirmParser(), read_corpus(name)).false_confirms == []


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_nothing_else_is_taken_for_a_no(name, languages):
    """Nor is anything that is not one."""
    assert tally(RegexConfirmParser(languages), read_corpus(name)).false_cancels == []


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_most_decisions_are_heard(name, languages):
    """The table knows at least 85 of 100 yeses and 90 of 100 noes of each language."""
    found = tally(RegexConfirmParser(languages), read_corpus(name))
    assert found.confirm_miss <= 0.15, found.missed_confirms
    assert found.cancel_miss <= 0.10, found.missed_cancels


def test_emoji_in_the_corpus_change_no_other_line():
    """Turned on, they decide where they are the whole message and nowhere else."""
    parser = RegexConfirmParser(SHIPPED_LANGUAGES, emoji=True)
    for name in (*SHIPPED_LANGUAGES, "tricks"):
        assert set(tally(parser, read_corpus(name)).false_confirms) <= {"👍", "👍🏽", "✅"}


def test_corpus_is_as_large_as_published():
    """At least 1,500 lines in ten languages, 20 sentences that are no consent and 60 confusables."""
    sizes = {name: len(read_corpus(name)) for name in SHIPPED_LANGUAGES}
    assert sum(sizes.values()) >= 1500
    assert min(sizes.values()) >= 150
    assert len([line for line in read_corpus("tricks") if line.label == "neither"]) >= 80


@pytest.mark.parametrize("name", [*SHIPPED_LANGUAGES, "tricks"])
def test_corpus_holds_each_line_once_and_says_where_it_comes_from(name):
    """No padding, no line with two labels."""
    texts = [line.text for line in read_corpus(name)]
    assert sorted(texts) == sorted(set(texts))
    assert (CORPUS / f"{name}.tsv").read_text(encoding="utf-8").startswith("# ")
