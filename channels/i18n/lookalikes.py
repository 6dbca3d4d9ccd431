"""Letters and digits that look like those of another script, inside one word or number.

With them a text can show one thing and say another: a name that is not the name it looks like, an
amount that is another amount. They are shown as codes, such as `⟨U+0430⟩`.
"""
# ruff: noqa: RUF002 - look-alikes are the subject

from __future__ import annotations

import re

#: Cyrillic and Greek letters that look like Latin ones. Real words seldom mix these scripts.
_CYRILLIC_TWINS = frozenset("асеорхуіјѕһԁԛԝӏАВЕКМНОРСТХУІЈЅԌԚԜӀ")
_GREEK_TWINS = frozenset("αγικνορυχϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳ")
#: Latin letters that look like Cyrillic or Greek ones. Without S and V, which Russian words have as
#: parts of abbreviations (SMS, VIP).
_LATIN_TWINS = frozenset("aceiopvxyABCEHIKMNOPTXYZ")
#: A word: letters with their accents. Digits, underscores and hyphens part words: `USB-порт`,
#: `фото_x2`.
_WORD = re.compile(r"[^\W\d_]+(?:[\u0300-\u036f]+[^\W\d_]*)*")
_NUMBER = re.compile(r"\d+")
_LATIN = re.compile("[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff]")
_CYRILLIC_OR_GREEK = re.compile(
    "[\u0370-\u03ff\u0400-\u052f\u1c80-\u1c8f\u1f00-\u1fff\u2de0-\u2dff\ua640-\ua69f]"
)
#: Letters that no word mixes with Latin ones: Armenian, Cherokee, syllabics of Canada, Coptic,
#: Lisu, Roman numerals, wide letters, Deseret, and letters for formulas.
_NEVER_IN_LATIN = re.compile(
    "[\u0530-\u058f\u13a0-\u13ff\u1400-\u167f\u2160-\u2188\u2c80-\u2cff"
    "\ua4d0-\ua4ff\uab70-\uabbf\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U0001d400-\U0001d7ff\u212a]"
)


def mark_lookalikes(text: str) -> str:
    """Return the text with the code of each letter or digit that imitates another script.

    It imitates the script that the rest of its word or number has. A word that is wholly of one
    script stays, and so does a word that could not be read as one of a single script: `SMSка`,
    `kΩ`, `iPhone手机`. Marking a marked text changes nothing.
    """
    if text.isascii():
        return text
    return _NUMBER.sub(_marked_number, _WORD.sub(_marked_word, text))


def code_of(char: str) -> str:
    """Return a character as its code, such as `⟨U+202E⟩`."""
    return f"⟨U+{ord(char):04X}⟩"


def _marked_word(match: re.Match[str]) -> str:
    """Return a word with the codes of letters that imitate the other script."""
    word = match[0]
    latin = set(_LATIN.findall(word))
    if not latin:
        return word

    foreign = set(_NEVER_IN_LATIN.findall(word))
    others = set(_CYRILLIC_OR_GREEK.findall(word))
    reads_as_latin = foreign or others <= _CYRILLIC_TWINS | _GREEK_TWINS
    if reads_as_latin:
        foreign |= others
    elif latin <= _LATIN_TWINS:
        # It reads as a Cyrillic or a Greek word.
        foreign = latin
    return "".join(code_of(char) if char in foreign else char for char in word)


def _marked_number(match: re.Match[str]) -> str:
    """Return a number with the codes of digits that stand next to ASCII ones.

    An 8 of Bengali looks like a 4, so that the number would show another amount.
    """
    number = match[0]
    if number.isascii() or not any(char.isascii() for char in number):
        return number
    return "".join(char if char.isascii() else code_of(char) for char in number)
