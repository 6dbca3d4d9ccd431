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
    """At least 90 of 100 yeses and noes of each language, and 85 yeses where all others are read beside it."""
    found = tally(RegexConfirmParser(languages), read_corpus(name))
    assert found.confirm_miss <= (0.10 if len(languages) == 1 else 0.15), found.missed_confirms
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


def held_out(language: str, label: str) -> list[str]:
    """The everyday messages of a language that no phrase was written for."""
    rows = (CORPUS / "held_out.tsv").read_text(encoding="utf-8").splitlines()
    return [row.split("\t")[2] for row in rows if row.startswith(f"{language}\t{label}\t")]


def test_nine_of_ten_everyday_yeses_are_heard():
    """Short forms, stretched and doubled words, an emoji behind: of lines that no phrase was written for."""
    missed, total = {}, 0
    for language in SHIPPED_LANGUAGES:
        said = held_out(language, "confirm")
        missed[language] = [text for text in said if not RegexConfirmParser([language]).is_confirm(text)]
        total += len(said)
    assert min(len(held_out(language, "confirm")) for language in SHIPPED_LANGUAGES) >= 12
    assert sum(map(len, missed.values())) <= 0.1 * total, missed


def test_no_everyday_half_yes_confirms():
    """Conditions, questions, acknowledgements, irony and contradictions, in each language alone and in all at once."""
    parsers = [RegexConfirmParser(SHIPPED_LANGUAGES), *(RegexConfirmParser([each]) for each in SHIPPED_LANGUAGES)]
    said = held_out("all", "neither")
    assert len(said) >= 35
    assert [text for text in said if any(parser.is_confirm(text) for parser in parsers)] == []
