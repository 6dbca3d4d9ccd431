"""Normalize a short message to plain words, or to none at all when its letters could deceive."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal

_SPACES = r" \t\r\n\u00a0\u202f"
_PUNCTUATION = r".,!\u2026"
#: The characters of each script, including separate accent marks. A message must be written in one script only.
#: Invisible characters, direction marks, digits, quotes, question marks and look-alike letters are in none of them.
_ALPHABETS = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0152\u0153\u011e\u011f\u0130\u0131\u015e\u015f"
    r"\u0300-\u0303\u0306-\u0308\u0327'\u2019\u00a1-",
    r"\u0410-\u044f\u0401\u0451\u0308\u0306-",
    r"\u0621-\u063a\u0640-\u0655\u0670\u060c",
    r"\u0901-\u0939\u093c\u093e-\u094d\u0958-\u095f\u0964",
    r"\u3041-\u3096\u30a1-\u30fa\u30fc\u3005\u3099\u309a\u4e00-\u9fff\u3001\u3002",
)
#: Arabic in Latin letters writes some sounds as digits, behind a letter: "na3am".
_ARABIC_DIGIT = r"(?<=[A-Za-z])[237]"
_READABLE = re.compile("|".join(f"(?:[{_SPACES}{_PUNCTUATION}{each}]|{_ARABIC_DIGIT})+" for each in _ALPHABETS))
#: One "~" behind Chinese or Japanese, which ends a friendly word. With another one before it, the word is struck out.
_TILDE = re.compile(r"(?<=[\u3041-\u9fff])[~\u301c](?=[\s!\u3002]*$)")
_WIDE = re.compile(r"[\uff01-\uff9f\u3000]")
#: Makes apostrophes one, and Arabic as it is typed in a hurry: no vowel marks, no stretching, no hamza on an alef.
_TYPED = str.maketrans("\u2019أإآ", "'" + "\u0627" * 3, "\u0640\u0670" + "".join(map(chr, range(0x064B, 0x0653))))
#: Dots or commas in a row, or a comma at the end: the sentence is not finished.
_TRAILING_OFF = re.compile(r"[.,\u3001\u3002\u060c](?:\s*[.,\u3001\u3002\u060c])+|\u2026+|[,\u3001\u060c](?=[\s!]*$)")
_STOPS = re.compile(r"[.,!\u00a1\u060c\u0964\u3001\u3002]")
#: One emoji for "please" or "thanks" behind an answer, in any skin tone. It decides nothing.
_MANNERS = re.compile(r"\s*(?:🙏[\U0001f3fb-\U0001f3ff]?|😊)\ufe0f?\s*$")
#: One other emoji behind an answer in words, that goes with a yes or with a no.
_WITH_YES = re.compile(r"\s*(?:[👍👌🤝🙌👏][\U0001f3fb-\U0001f3ff]?|[✅✔☑💯🙂😀😃😄😁☺🤗❤])\ufe0f?\s*$")
_WITH_NO = re.compile(r"\s*(?:[👎✋][\U0001f3fb-\U0001f3ff]?|[❌✖🚫🙂😀😃😄😁☺🤗])\ufe0f?\s*$")
#: A letter three times or more, or twice at the end of a word, in alphabets in which people stretch words.
_STRETCHED = re.compile(
    r"([a-z\u00df-\u00ff\u011f\u0131\u0153\u015f\u0430-\u044f\u0451\u0621-\u064a])(?:\1{2,}|\1+(?= |$))"
)
#: The characters that `_without_accents` changes in words of composed letters.
_ACCENTED = re.compile(r"['\u00c0-\u017f\u0300-\u036f\u0451]")
_SYLLABIC = re.compile(r"[\u3041-\u9fff]")
_EMOJI = re.compile(r"\s*(?:(?P<thumb>[👍👎])[\U0001f3fb-\U0001f3ff]?|(?P<mark>[✅❌]))\ufe0f?\s*")


@lru_cache(maxsize=1024)  # each message is read several times: for a yes, a no and a code, in one language and in all
def plain_words(text: str) -> str:
    """Return the message as lower-case words with composed accents; "" when it is not plainly a phrase in one script.

    Wide letters and separately typed accents become plain letters, and one 🙏 or 😊 at the end is dropped. The dots of
    "yes..." stay as a word of their own, because they express hesitation.
    """
    text = _TILDE.sub("", _WIDE.sub(_narrow, _MANNERS.sub("", text)))
    if not _READABLE.fullmatch(text):
        return ""
    text = unicodedata.normalize("NFC", text).casefold().translate(_TYPED)
    text = _TRAILING_OFF.sub(" … ", text)
    return " ".join(_STOPS.sub(" ", text).split())


def strip_answer_emoji(text: str, answer: Literal["yes", "no"]) -> str:
    """Return the text without one emoji at its end that goes with this answer."""
    match = (_WITH_YES if answer == "yes" else _WITH_NO).search(text)
    return text[: match.start()] if match else text


def unstretch(words: str, keep: Literal[1, 2] = 1) -> str:
    """Return the words with repeated letters shortened to `keep`: "yesss" to "yes", or with 2 "neeee" to "nee".

    Words of one repeated letter stay: "ss" is not shortened to "s".
    """
    short = _STRETCHED.sub(r"\1" * keep, words)
    return short if all(len(word) > 1 for word in short.split()) else words


def is_syllabic(words: str) -> bool:
    """Return whether the words are Chinese or Japanese, where a letter is a syllable and no spaces separate words."""
    return _SYLLABIC.search(words) is not None


def only_emoji(text: str) -> str:
    """Return the yes or no emoji that is the whole message, without its skin tone; "" for anything else."""
    match = _EMOJI.fullmatch(text)
    return (match["thumb"] or match["mark"]) if match else ""


def accent_variants(words: str, keep: frozenset[str]) -> list[str]:
    """Return all spellings of the words with and without accents and apostrophes. Words in `keep` need theirs."""
    if not _ACCENTED.search(words):  # true for most phrases, and all are read at start-up
        return [words]
    variants = [""]
    for word in words.split():
        choices = {word} if word in keep else {word, _without_accents(word)}
        variants = [f"{start} {choice}".strip() for start in variants for choice in choices]
    return variants


def _narrow(wide: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", wide[0])


@lru_cache(maxsize=4096)  # the same few words make up thousands of phrases
def _without_accents(word: str) -> str:
    """Return the word without accents and apostrophes, and with a dot on each i.

    In other scripts than Latin and Cyrillic the marks belong to the letter, as does the mark of "й".
    """
    bare = re.sub(r"'|(?<!\u0438)[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).replace("\u0131", "i")
