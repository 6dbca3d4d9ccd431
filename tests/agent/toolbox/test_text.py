"""Text: exact where a model guesses, in time that grows with the text and not with what it says."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ToolParameterError
from sayso.agent.toolbox.text import (
    MAX_TEXT_CHARS,
    change_text,
    compare_texts,
    encode_text,
    find_in_text,
    text_stats,
)
from tests.agent.toolbox.words import said

CHANGES = change_text.schema()["parameters"]["properties"]["change"]["enum"]
CODES = encode_text.schema()["parameters"]["properties"]["how"]["enum"]


@pytest.mark.parametrize(
    "text",
    [
        "a" * MAX_TEXT_CHARS,
        " " * MAX_TEXT_CHARS,
        "\n" * MAX_TEXT_CHARS,
        "a-" * 25_000,
        "." * MAX_TEXT_CHARS,
        "a\u0301" * 25_000,
        " \n" * 25_000,
    ],
)
def test_a_text_made_to_take_long_is_done_with(text: str):
    """Every pattern here reads a text once."""
    assert "characters" in text_stats(text)
    assert find_in_text(text, text[:200])
    assert all(change_text(text, change) is not None for change in CHANGES)
    assert compare_texts(text[:1000], text[:999]) is not None


def test_words_to_find_are_never_a_pattern():
    """A pattern could take longer than the universe."""
    assert find_in_text("a" * 5000, "(a+)+$") == "'(a+)+$' is there not at all."
    assert find_in_text("a.c abc", "a.c").startswith("'a.c' is there once")


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x" * (MAX_TEXT_CHARS + 1), "words": "x"},
        {"text": "x", "words": "x" * 201},
        {"text": "x", "words": ""},
    ],
)
def test_a_text_beyond_its_bounds_is_refused_by_its_schema(arguments: dict):
    """Before anything is read."""
    with pytest.raises(ToolParameterError):
        find_in_text.execute(arguments)


def test_texts_of_very_many_lines_are_not_compared():
    """That takes time as their square."""
    with pytest.raises(ValueError, match="at most 1000 are compared"):
        compare_texts("a\n" * 1001, "b\n" * 1001)


@given(st.text(max_size=200), st.sampled_from(CHANGES))
def test_any_text_can_be_changed(text: str, change: str):
    """Nothing is raised."""
    assert isinstance(change_text(text, change), str)


@given(st.text(max_size=200), st.sampled_from(CODES))
def test_any_text_is_coded_or_refused_in_words(text: str, how: str):
    """Nothing but ValueError leaves it."""
    told = said(lambda: encode_text(text, how))
    assert not told.startswith("refused: ") or f"cannot {how}" in told


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.sampled_from(["base64", "url"]),
)
def test_what_is_encoded_decodes_to_itself(text: str, code: str):
    """Both codes."""
    assert encode_text(encode_text(text, f"{code} encode"), f"{code} decode") == text


@given(st.text("ab ", max_size=50), st.text("ab", min_size=1, max_size=2))
def test_places_are_counted_as_python_counts_them(text: str, words: str):
    """Without overlaps."""
    told = find_in_text(text, words)
    assert {0: "not at all", 1: "once", 2: "twice"}.get(
        text.count(words), f"{text.count(words)} times"
    ) in told


def test_letters_are_counted():
    """The question every model gets wrong."""
    told = find_in_text("strawberry", "r")
    assert told.startswith("'r' is there 3 times.\n- at character 3: ")
    assert find_in_text("Cat concatenate", "cat", whole_words=True).startswith(
        "'cat' is there once"
    )
    assert find_in_text("Cat cat", "cat", match_case=True).startswith("'cat' is there once")


def test_a_text_is_measured_as_people_see_it():
    """An accent is no character of its own."""
    told = text_stats("Das Mädchen lacht. Es läuft!\n\nEnde.".replace("ä", "a\u0308"))
    assert told.startswith(
        "35 characters (29 without spaces), 6 words (6 different), 3 sentences, 3 lines, 2 paragraphs"
    )


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("upper case", "STRASSE B\n\nÄPFEL A\nSTRASSE B"), ("title case", "Straße B\n\nÄpfel A\nStraße B"),
        ("sort lines", "\nstraße b\nstraße b\nÄpfel a"),
        ("remove duplicate lines", "straße b\n\nÄpfel a"), ("remove empty lines", "straße b\nÄpfel a\nstraße b"),
        ("reverse lines", "straße b\nÄpfel a\n\nstraße b"),
        ("slug", "strasse-b-aepfel-a-strasse-b"), ("remove accents", "straße b\n\nApfel a\nstraße b"),
        ("single spaces", "straße b Äpfel a straße b"),
        ("number lines", "1. straße b\n2. \n3. Äpfel a\n4. straße b"),
    ],
)  # fmt: skip
def test_a_text_is_changed_as_asked(change: str, changed: str):
    """Each change by its name."""
    assert change_text("straße b\n\nÄpfel a\nstraße b", change) == changed


def test_two_texts_are_compared_by_lines():
    """What went and what came."""
    assert (
        compare_texts("a\nb\nc", "a\nB\nc")
        == "1 lines removed, 1 added:\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c"
    )
    assert compare_texts("a", "a") == "The two texts are the same."
    assert "only in how their lines end" in compare_texts("a\r\nb", "a\nb")


def test_hashes_are_those_of_the_library():
    """Of the text in UTF-8."""
    assert encode_text("ä", "sha256") == hashlib.sha256("ä".encode()).hexdigest()
    with pytest.raises(ValueError, match="cannot base64 decode"):
        encode_text("not base64!", "base64 decode")
