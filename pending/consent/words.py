"""From a message to plain words: what is compared with the phrases that mean yes or no.

`plain_words` writes a message as phrases are written: small letters, single spaces, no punctuation.
It returns nothing at all for a message whose letters could deceive, such as a Cyrillic "e" among
Latin letters. `bare_words` first drops punctuation and emoji. `lettered_words` and `same_stem`
compare single words of any text, such as those of a preview.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

#: Words that begin with so many equal letters count as forms of one word: "cancel" and "cancelar".
STEM_LETTERS = 5

_SPACES = r" \t\r\n\u00a0\u202f"
_PUNCTUATION = r".,!\u2026"
#: The characters of each script, including separate accent marks. A message must be written in one
#: script only. Invisible characters, direction marks, digits, quotes, question marks and look-alike
#: letters are in none of them. The Latin letters include those of Central Europe, up to U+017E.
#: Left out are two look-alikes, and the long s after them, which `casefold` would make an "s".
_ALPHABETS = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0137\u0139-\u0148\u014a-\u017e"
    r"\u0300-\u0304\u0306-\u0308\u030a-\u030c\u0327\u0328'\u2019\u00a1-",
    r"\u0410-\u044f\u0401\u0451\u0308\u0306-",
    r"\u0621-\u063a\u0640-\u0655\u0670\u060c",
    r"\u0901-\u0939\u093c\u093e-\u094d\u0958-\u095f\u0964",
    r"\u3041-\u3096\u30a1-\u30fa\u30fc\u3005\u3099\u309a\u4e00-\u9fff\u3001\u3002",
)
#: Arabic in Latin letters writes some sounds as digits, behind a letter: "na3am".
_ARABIC_DIGIT = r"(?<=[A-Za-z])[237]"
#: A message in one script.
_READABLE = re.compile(
    "|".join(f"(?:[{_SPACES}{_PUNCTUATION}{each}]|{_ARABIC_DIGIT})+" for each in _ALPHABETS)
)
#: Text that `plain_words` returns unchanged: words of small letters without accent marks,
#: punctuation and spellings that `TYPED` changes. Most phrases and many messages are such texts.
_PLAIN = re.compile(
    "|".join(
        f"[{each}]+(?: [{each}]+)*"
        for each in (
            r"a-z\u00e0-\u00f6\u00f8-\u00fe",
            r"\u0430-\u044f",
            r"\u0627-\u063a\u0641-\u064a",
            r"\u0904-\u0928\u092a-\u0939\u093e-\u094d",
            r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff",
        )
    )
)
#: One emoji for "please" or "thanks" behind an answer, in any skin tone. It decides nothing.
_MANNERS = re.compile(r"\s*(?:🙏[\U0001f3fb-\U0001f3ff]?|😊)\ufe0f?\s*$")
#: Letters and punctuation in the double width of East Asian keyboards.
_WIDE = re.compile(r"[\uff01-\uff9f\u3000]")
#: One "~" behind Chinese or Japanese, which ends a friendly word. With another one before it,
#: the word is struck out.
_TILDE = re.compile(r"(?<=[\u3041-\u9fff])[~\u301c](?=[\s!\u3002]*$)")
#: For `str.translate`. Makes all apostrophes the same, and writes Arabic as people type it in a
#: hurry: no vowel marks, no stretching, no hamza on an alef.
TYPED = str.maketrans(
    "\u2019أإآ", "'" + "\u0627" * 3, "\u0640\u0670" + "".join(map(chr, range(0x064B, 0x0653)))
)
#: Dots or commas in a row, or a comma at the end: the sentence is not finished.
_TRAILING_OFF = re.compile(
    r"[.,\u3001\u3002\u060c](?:\s*[.,\u3001\u3002\u060c])+|\u2026+|[,\u3001\u060c](?=[\s!]*$)"
)
#: The punctuation of all scripts above. It says nothing once _TRAILING_OFF has been searched for.
_PUNCTUATION_MARKS = re.compile(r"[.,!\u00a1\u060c\u0964\u3001\u3002]")

#: Selects the colored form of the character before it. Unicode counts it as a mark.
_EMOJI_STYLE = "\ufe0f"
#: A yes or no emoji as a whole message. Only the thumbs have skin tones.
_DECIDING_EMOJI = re.compile(
    r"\s*(?:(?P<thumb>[👍👎])[\U0001f3fb-\U0001f3ff]?|(?P<mark>[✅❌]))\ufe0f?\s*"
)
#: A letter three times or more, or twice at the end of a word, in alphabets in which people stretch
#: words.
_STRETCHED = re.compile(
    r"([a-z\u00df-\u017e\u0430-\u044f\u0451\u0621-\u064a])(?:\1{2,}|\1+(?= |$))"
)
#: The letters of Chinese and Japanese.
_SYLLABIC = re.compile(r"[\u3041-\u9fff]")
#: Separate accents, as they stand behind Latin, Greek and Cyrillic letters in decomposed text.
_LATIN_MARKS = re.compile(r"[\u0300-\u036f]")
#: Letters with a stroke or without a dot, which Unicode does not compose of a letter and an accent.
_STROKES = str.maketrans("\u0131\u00f8\u0111\u0142", "iodl")
#: The characters that `_without_accents` changes in words of composed letters.
_ACCENTED = re.compile(r"['\u00c0-\u017f\u0300-\u036f\u0451]")


# Cached because each message is read several times: for a yes, a no and a code, in one language
# and in all.
@lru_cache(maxsize=1024)
def plain_words(text: str) -> str:
    """Return a message as words of small letters with composed accents, parted by single spaces.

    "" when it is not plainly a phrase in one script. Double-width letters and separately typed
    accents become plain letters, and one 🙏 or 😊 at the end is dropped. The dots of "yes..." stay
    as a separate word "…", because they express hesitation.
    """
    if _PLAIN.fullmatch(text):
        return text

    text = _MANNERS.sub("", text)
    text = _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), text)
    text = _TILDE.sub("", text)
    if not _READABLE.fullmatch(text):
        return ""

    text = unicodedata.normalize("NFC", text).casefold().translate(TYPED)
    text = _TRAILING_OFF.sub(" … ", text)
    return " ".join(_PUNCTUATION_MARKS.sub(" ", text).split())


def ends_in_polite_emoji(text: str) -> bool:
    """Return whether a text ends in a 🙏 or 😊, which `plain_words` would drop."""
    return _MANNERS.search(text) is not None


def bare_words(message: str) -> str:
    """Return the plain words of a message without its punctuation and emoji.

    Letters, their marks, digits and apostrophes stay. A digit makes the message unreadable, except
    as a letter of Arabic: the result is "" then, as it is for letters of two scripts.
    """
    kept = (char if _is_part_of_word(char) else " " for char in message)
    return plain_words("".join(kept))


def _is_part_of_word(char: str) -> bool:
    if char == "'":
        return True
    return unicodedata.category(char)[0] in "LMN" and char != _EMOJI_STYLE


def only_emoji(text: str) -> str:
    """Return the yes or no emoji that is the whole message, without its skin tone, else ""."""
    match = _DECIDING_EMOJI.fullmatch(text)
    if match:
        return match["thumb"] or match["mark"]
    return ""


def word_splits(words: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and after each space."""
    at = words.find(" ")
    while at >= 0:
        yield words[:at], words[at + 1 :]
        at = words.find(" ", at + 1)


def unstretch(words: str, keep: Literal[1, 2] = 1) -> str:
    """Return the words with each repeated letter shortened to `keep` letters.

    "yesss" becomes "yes"; with `keep=2`, "neeee" becomes "nee". Nothing changes if a word would be
    left with a single letter: "ss" is not shortened to "s".
    """
    short = _STRETCHED.sub(r"\1" * keep, words)
    if all(len(word) > 1 for word in short.split()):
        return short
    return words


def is_syllabic(words: str) -> bool:
    """Return whether there is Chinese or Japanese among the words.

    There a letter is a syllable or a word, and no spaces separate words.
    """
    return _SYLLABIC.search(words) is not None


def one_letter_off(one: str, other: str) -> bool:
    """Return whether two words differ by one letter added, missing or changed, or by a swap.

    A swap exchanges two letters that stand next to each other.
    """
    shared = 0  # letters at the beginning that are equal in both
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    one = one[shared:]
    other = other[shared:]

    is_added = one[1:] == other
    is_changed = one[1:] == other[1:]
    is_missing = one == other[1:]
    with_swap = other[1::-1] + other[2:]  # its first two letters in the other order
    return is_added or is_changed or is_missing or one == with_swap


def lettered_words(text: str) -> list[str]:
    """Return the words of a text of any script: its letters with their marks, in lower case."""
    spaced = (char if _is_letter(char) else " " for char in text.casefold())
    return "".join(spaced).split()


def _is_letter(char: str) -> bool:
    return char == "'" or unicodedata.category(char)[0] in "LM"


def same_stem(one: str, other: str) -> bool:
    """Return whether two words are equal, or begin with the same STEM_LETTERS letters.

    Accents do not matter.
    """
    one = _LATIN_MARKS.sub("", unicodedata.normalize("NFKD", one))
    other = _LATIN_MARKS.sub("", unicodedata.normalize("NFKD", other))
    if one == other:
        return True
    return len(one) >= STEM_LETTERS and one[:STEM_LETTERS] == other[:STEM_LETTERS]


def accent_variants(words: str, with_accents: frozenset[str]) -> list[str]:
    """Return all spellings of plain words, with and without accents and apostrophes.

    The words in `with_accents` are only spelled with theirs: without them they are other words.
    """
    # True for most phrases, and all phrases are read when a process starts.
    if not _ACCENTED.search(words):
        return [words]

    variants = [""]
    for word in words.split():
        spellings = {word}
        if word not in with_accents:
            spellings.add(_without_accents(word))
        longer = itertools.product(variants, spellings)
        variants = [f"{start} {spelling}".strip() for start, spelling in longer]
    return variants


# The same few words make up thousands of phrases.
@lru_cache(maxsize=4096)
def _without_accents(word: str) -> str:
    """Return the word without accents, strokes and apostrophes, and with a dot on each i.

    In other scripts than Latin and Cyrillic the marks belong to the letter, as does the mark of
    "й".
    """
    bare = re.sub(r"'|(?<!\u0438)[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).translate(_STROKES)
