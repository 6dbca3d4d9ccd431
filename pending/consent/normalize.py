"""Normalise: the plain words of a short message, or none at all when its letters could deceive."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal

_SPACES = r" \t\r\n\u00a0\u202f"
_PUNCTUATION = r".,!\u2026"
#: What each script may hold, accents as separate marks included. A message is written in one of them, and in no other
#: letter: invisible and direction marks, digits, quotes, question marks of any script and look-alikes are in none.
_ALPHABETS = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0152\u0153\u011e\u011f\u0130\u0131\u015e\u015f"
    r"\u0300-\u0303\u0306-\u0308\u0327'\u2019\u00a1-",
    r"\u0410-\u044f\u0401\u0451\u0308\u0306-",
    r"\u0621-\u063a\u0640-\u0655\u0670\u060c",
    r"\u0901-\u0939\u093c\u093e-\u094d\u0958-\u095f\u0964",
    r"\u3041-\u3096\u30a1-\u30fa\u30fc\u3005\u3099\u309a\u4e00-\u9fff\u3001\u3002",
)
#: Arabic in Latin letters has digits for the sounds that these lack: "na3am". Behind a letter only.
_ARABIC_DIGIT = r"(?<=[A-Za-z])[237]"
_READABLE = re.compile("|".join(f"(?:[{_SPACES}{_PUNCTUATION}{each}]|{_ARABIC_DIGIT})+" for each in _ALPHABETS))
#: One "~" behind Chinese or Japanese, as people end a friendly word there; before it as well, it strikes the word out.
_TILDE = re.compile(r"(?<=[\u3041-\u9fff])[~\u301c](?=[\s!\u3002]*$)")
_WIDE = re.compile(r"[\uff01-\uff9f\u3000]")
#: One apostrophe; and Arabic as it is typed in a hurry: no vowel marks, no stretching, no hamza on an alef.
_TYPED = str.maketrans("\u2019أإآ", "'" + "\u0627" * 3, "\u0640\u0670" + "".join(map(chr, range(0x064B, 0x0653))))
#: Dots or commas in a row, or a comma at the end: there is more to come.
_TRAILING_OFF = re.compile(r"[.,\u3001\u3002\u060c](?:\s*[.,\u3001\u3002\u060c])+|\u2026+|[,\u3001\u060c](?=[\s!]*$)")
_STOPS = re.compile(r"[.,!\u00a1\u060c\u0964\u3001\u3002]")
#: A "please" or "thanks" behind an answer: one, whatever its skin. No decision is in it.
_MANNERS = re.compile(r"\s*(?:🙏[\U0001f3fb-\U0001f3ff]?|😊)\ufe0f?\s*$")
#: Other emoji that go with a yes, and with a no: one, behind words that are an answer already.
_WITH_YES = re.compile(r"\s*(?:[👍👌🤝🙌👏][\U0001f3fb-\U0001f3ff]?|[✅✔☑💯🙂😀😃😄😁☺🤗❤])\ufe0f?\s*$")
_WITH_NO = re.compile(r"\s*(?:[👎✋][\U0001f3fb-\U0001f3ff]?|[❌✖🚫🙂😀😃😄😁☺🤗])\ufe0f?\s*$")
#: A letter three times or more, or twice at the end of a word: of alphabets in which people stretch words so.
_STRETCHED = re.compile(
    r"([a-z\u00df-\u00ff\u011f\u0131\u0153\u015f\u0430-\u044f\u0451\u0621-\u064a])(?:\1{2,}|\1+(?= |$))"
)
#: What `_plain` leaves out of words in composed letters.
_ACCENTED = re.compile(r"['\u00c0-\u017f\u0300-\u036f\u0451]")
_SYLLABIC = re.compile(r"[\u3041-\u9fff]")
_EMOJI = re.compile(r"\s*(?:(?P<thumb>[👍👎])[\U0001f3fb-\U0001f3ff]?|(?P<mark>[✅❌]))\ufe0f?\s*")


@lru_cache(maxsize=1024)  # a message is read for a yes, a no and a code, in one language and in all
def words_of(text: str) -> str:
    """The words in small letters, accents kept and composed; "" for what is not plainly a phrase in one script.

    Wide forms and accents typed apart become the plain letters; one 🙏 or 😊 at the end is passed over. "yes..." is a
    hesitation: its dots stay, as a word.
    """
    text = _TILDE.sub("", _WIDE.sub(_narrow, _MANNERS.sub("", text)))
    if not _READABLE.fullmatch(text):
        return ""
    text = unicodedata.normalize("NFC", text).casefold().translate(_TYPED)
    text = _TRAILING_OFF.sub(" … ", text)
    return " ".join(_STOPS.sub(" ", text).split())


def without_emoji(text: str, answer: Literal["yes", "no"]) -> str:
    """Return the text without the one emoji at its end that goes with such an answer."""
    found = (_WITH_YES if answer == "yes" else _WITH_NO).search(text)
    return text[: found.start()] if found else text


def unstretched(words: str, keep: Literal[1, 2] = 1) -> str:
    """Return the words with "yesss" and "siii" as "yes" and "si", or with `keep=2` "neeee" as "nee".

    A single letter in a row is no word: "ss" stays.
    """
    short = _STRETCHED.sub(r"\1" * keep, words)
    return short if all(len(word) > 1 for word in short.split()) else words


def is_syllabic(words: str) -> bool:
    """Return whether the words are Chinese or Japanese: one letter is a syllable there, and no space parts words."""
    return _SYLLABIC.search(words) is not None


def emoji_of(text: str) -> str:
    """The one emoji that is the whole message, whatever its skin; "" for anything else."""
    found = _EMOJI.fullmatch(text)
    return (found["thumb"] or found["mark"]) if found else ""


def spellings(words: str, keep: frozenset[str]) -> list[str]:
    """The words with accents and apostrophes typed or left out, word by word; the words in `keep` need theirs."""
    if not _ACCENTED.search(words):  # most phrases, and a start reads them all
        return [words]
    spelt = [""]
    for word in words.split():
        choices = {word} if word in keep else {word, _plain(word)}
        spelt = [f"{start} {choice}".strip() for start in spelt for choice in choices]
    return spelt


def _narrow(wide: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", wide[0])


@lru_cache(maxsize=4096)  # the same few words make up thousands of phrases
def _plain(word: str) -> str:
    """Return the word without accents and apostrophes, and with a dot on each i.

    The marks of scripts other than Latin and Cyrillic are parts of their letters, as is that of "й".
    """
    bare = re.sub(r"'|(?<!\u0438)[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).replace("\u0131", "i")
