"""Corpus: what people write, labelled, and how much of it the parser may miss."""

# ruff: noqa: RUF001 - letters and punctuation of other languages

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from benchmarks.parser import (
    CORPUS,
    Tally,
    read_blind,
    read_corpus,
    read_held_out,
    read_open,
    read_reasons,
    tally,
    tally_noes_with_more,
)
from sayso.pending.consent.parser import RegexConfirmParser
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from sayso.pending.consent.refusing import is_no_with_more

DEFAULT = ("pt", "en", "es")
#: Each file with the languages it is read in: its own, those of the default parser, and all at once.
READINGS = [
    *((name, (name,)) for name in SHIPPED_LANGUAGES),
    *((name, DEFAULT) for name in (*DEFAULT, "tricks")),
    *((name, SHIPPED_LANGUAGES) for name in (*SHIPPED_LANGUAGES, "tricks")),
]

#: Messages of the corpora that decide nothing by the table, and deny with more words.
NOES_IN_CORPUS = {
    "لا، الأخرى", "لا، قصدت 8", "nein, die andere", "nein, ich meinte die 8", "no, the other one",
    "no, I meant invoice 8", "no, make it 20", "no, la otra", "no, quise decir la 8", "no, que sean 20",
    "non, l'autre", "non, je voulais dire la 8", "non, plutôt vingt", "नहीं, मेरा मतलब 8", "bukan yang ini",
    "tidak, yang lain", "tidak, maksud saya 8", "no, l'altra", "no, intendevo la 8", "no, facciamo venti",
    "いいえ、別の方です", "いいえ、8です", "nee, de andere", "nee ik bedoelde 8", "não, a outra",
    "não, eu quis dizer a 8", "нет, другой", "нет, я про 8", "hayır, ben 8'i demiştim", "不是这个，是8号",
}  # fmt: skip


@cache
def read_by(name: str, languages: tuple[str, ...]) -> Tally:
    """Return how a parser of these languages reads a file. Several tests look at it."""
    return tally(RegexConfirmParser(languages), read_corpus(name))


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_nothing_else_is_taken_for_a_yes(name, languages):
    """False confirms are unforgivable: none in the whole corpus."""
    assert read_by(name, languages).false_confirms == []


@pytest.mark.parametrize("name", [*SHIPPED_LANGUAGES, "tricks"])
def test_nothing_is_taken_for_a_yes_in_a_language_that_is_not_read(name):
    """The default parser is also written to by people of other languages."""
    assert read_by(name, RegexConfirmParser().languages).false_confirms == []


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_nothing_else_is_taken_for_a_no(name, languages):
    """Nor is anything that is not one."""
    assert read_by(name, languages).false_cancels == []


@pytest.mark.parametrize(("name", "languages"), READINGS)
def test_most_decisions_are_heard(name, languages):
    """At least 90 of 100 yeses and noes of each language, and 85 yeses where all others are read beside it."""
    found = read_by(name, languages)
    assert found.confirm_miss <= (0.10 if len(languages) == 1 else 0.15), found.missed_confirms
    assert found.cancel_miss <= 0.10, found.missed_cancels


def test_emoji_in_the_corpus_change_no_other_line():
    """Turned on, they decide where they are the whole message and nowhere else."""
    parser = RegexConfirmParser(SHIPPED_LANGUAGES, emoji=True)
    for name in (*SHIPPED_LANGUAGES, "tricks"):
        assert set(tally(parser, read_corpus(name)).false_confirms) <= {"👍", "👍🏽", "✅"}


def test_corpus_is_as_large_as_published():
    """At least 4,500 lines in fourteen languages, 20 sentences that are no consent and 60 confusables."""
    sizes = {name: len(read_corpus(name)) for name in SHIPPED_LANGUAGES}
    assert len(sizes) >= 14
    assert sum(sizes.values()) >= 4500
    assert min(sizes.values()) >= 300
    assert len([line for line in read_corpus("tricks") if line.label == "neither"]) >= 80


@pytest.mark.parametrize("name", [*SHIPPED_LANGUAGES, "tricks"])
def test_corpus_holds_each_line_once_and_says_where_it_comes_from(name):
    """No padding, no line with two labels."""
    texts = [line.text for line in read_corpus(name)]
    assert sorted(texts) == sorted(set(texts))
    assert (CORPUS / f"{name}.tsv").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_held_out_list_has_everyday_answers_of_each_language(language):
    """Yeses, noes and messages that are neither."""
    sizes = Counter(line.label for line in read_held_out(language))
    assert sizes["confirm"] >= 20
    assert sizes["cancel"] >= 12
    assert sizes["neither"] >= 9


def test_nine_of_ten_everyday_answers_are_understood():
    """Of lines that no phrase was written for: of the yeses, and of the noes; of each language three in four."""
    found = [tally(RegexConfirmParser([each]), read_held_out(each)) for each in SHIPPED_LANGUAGES]
    assert sum(len(each.missed_confirms) for each in found) <= 0.1 * sum(
        each.confirms for each in found
    )
    assert sum(len(each.missed_cancels) for each in found) <= 0.1 * sum(
        each.cancels for each in found
    )
    assert max(each.confirm_miss for each in found) <= 0.25
    assert max(each.cancel_miss for each in found) <= 0.25


@pytest.mark.parametrize(("read", "yeses", "noes"), [(read_open, 25, 15), (read_blind, 20, 12)])
def test_nine_of_ten_answers_of_another_hand_are_understood(read, yeses, noes):
    """Of lists that were written blind: of each language four in five, and nothing else is taken for an answer."""
    everything = RegexConfirmParser(SHIPPED_LANGUAGES)
    missed = 0
    for language in SHIPPED_LANGUAGES:
        said = read(language)
        for parser in (everything, RegexConfirmParser([language])):
            found = tally(parser, said)
            assert (found.false_confirms, found.false_cancels) == ([], [])
        assert (found.confirms, found.cancels, found.lines - found.confirms - found.cancels) == (
            yeses,
            noes,
            20,
        )
        assert found.confirm_miss <= 0.2, found.missed_confirms
        assert found.cancel_miss <= 0.1, found.missed_cancels
        missed += len(found.missed_confirms)
    assert missed <= 0.1 * yeses * len(SHIPPED_LANGUAGES)


def test_no_everyday_half_yes_decides():
    """Conditions, questions, acknowledgements, irony and contradictions, in each language alone and in all at once."""
    everything = RegexConfirmParser(SHIPPED_LANGUAGES)
    for language in SHIPPED_LANGUAGES:
        for parser in (everything, RegexConfirmParser([language])):
            found = tally(parser, read_held_out(language))
            assert (found.false_confirms, found.false_cancels) == ([], [])
    said = [line.text for line in read_held_out("all")]
    parsers = [everything, *(RegexConfirmParser([each]) for each in SHIPPED_LANGUAGES)]
    assert len(said) >= 35
    assert [text for text in said if any(parser.is_confirm(text) for parser in parsers)] == []


@pytest.mark.parametrize("language", SHIPPED_LANGUAGES)
def test_no_with_more_words_is_understood_and_nothing_else_is(language):
    """In its language alone and in all at once: nine of ten noes, no message that takes its no back, and no yes."""
    lines = read_reasons(language)
    for languages in ([language], SHIPPED_LANGUAGES):
        found = tally_noes_with_more(RegexConfirmParser(languages), lines, language)
        assert (found.false_confirms, found.false_cancels) == ([], [])
        assert found.cancel_miss <= 0.1, found.missed_cancels
    assert found.cancels >= 12
    assert found.lines - found.cancels >= 18


def test_no_yes_of_the_corpus_is_a_no_with_more_words():
    """A yes never denies, in whatever language it is read."""
    everything = RegexConfirmParser(SHIPPED_LANGUAGES)
    for language in SHIPPED_LANGUAGES:
        yeses = [line.text for line in read_corpus(language) if line.label == "confirm"]
        assert [text for text in yeses if is_no_with_more(everything, text, language)] == []


def test_only_real_noes_of_the_corpora_are_noes_with_more_words():
    """Of the messages that decide nothing alone, a person reads each of these as a no and a reason or a request."""
    everything = RegexConfirmParser(SHIPPED_LANGUAGES)
    found = set()
    for language in SHIPPED_LANGUAGES:
        lines = [
            *read_corpus(language),
            *read_held_out(language),
            *read_open(language),
            *read_blind(language),
        ]
        others = (line.text for line in lines if line.label == "neither")
        found |= {text for text in others if is_no_with_more(everything, text, language)}
    assert found == NOES_IN_CORPUS
