"""Scripts: where a word may end, in any of them."""

from __future__ import annotations

import unicodedata

#: How the names of letters begin whose scripts put no spaces between words: there, any place may be a word's end.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "HALFWIDTH KATAKANA")


def has_word(text: str, word: str) -> bool:
    """Whether a word stands in a text by itself, in any script."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (_joins(text[start - 1 : start], word[0]) or _joins(word[-1], text[end : end + 1])):
            return True
        start = text.find(word, start + 1)
    return False


def needs_no_space(char: str) -> bool:
    """Whether words are written without spaces between them in this letter's script."""
    return not char.isascii() and unicodedata.name(char, "").startswith(_WITHOUT_SPACES)


def _joins(left: str, right: str) -> bool:
    """Whether two characters side by side are of one word."""
    return all(map(_is_of_a_word, (left, right))) and not any(map(needs_no_space, (left, right)))


def _is_of_a_word(char: str) -> bool:
    """Letters, digits and the signs that combine with them, such as vowels in Devanagari."""
    return bool(char) and (unicodedata.category(char)[0] in "LNM" or char == "_")
