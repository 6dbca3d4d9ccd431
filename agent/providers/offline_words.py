"""The words of a text, as OfflineProvider and the ranking of tools compare them.

A token is a word or a quotation as the user wrote it. A word is in lower case and without
punctuation. A stem is a word without its English ending.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

#: Words that do not select a tool. Greetings, yes and no are among them,
#: so that small talk calls no tool.
STOP_WORDS = frozenset(
    """a all also am an and any are as at be been but by can could did do does for from had has have hello hey hi how
    i if in into is it its just kindly let like me my need no not now of off ok okay on one or our out please so some
    sorry sure than thank thanks that the their them then there these they this those to too up us want was we were
    what when where which who will with would yes you your bye good morning evening night nope yep about called named
    whose""".split()
)
#: A quotation in one of three kinds of quotes, or a word with the signs that a value may have.
_TOKEN = re.compile(
    r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|“([^”]+)”|([\w#$€£@+-][\w.:@/+#%$€£='\u2019-]*)"
)
_NOT_WORDS = re.compile(r"[\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text, or a whole quotation without its quotes."""

    text: str
    is_quoted: bool = False


def tokens(text: str) -> list[Token]:
    """Return the words and quotations of a text in order, without punctuation around them."""
    result = []
    for match in _TOKEN.finditer(text):
        *quotations, word = match.groups()
        quotation = next((each for each in quotations if each), None)
        if quotation is not None:
            result.append(Token(quotation.strip(), is_quoted=True))
            continue
        bare_word = word.rstrip(".:/=-'\u2019")
        if bare_word:
            result.append(Token(bare_word))
    return result


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; snake_case and camelCase are several words."""
    spelled_alike = unicodedata.normalize("NFKC", text)
    separated = _NOT_WORDS.sub(" ", _CAMEL_CASE.sub(" ", spelled_alike))
    return separated.casefold().split()


def stems(words: Iterable[str]) -> frozenset[str]:
    """Return the stems of all words but the stop words."""
    return frozenset(stem(word) for word in words if word.lower() not in STOP_WORDS)


def stem(word: str) -> str:
    """Return a word without plural, -ing and final e: "delet" for "delete", "deletes", "deleting".

    It is not Snowball's stem, which is the same for "remind" and "reminder".
    """
    word = word.lower()
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
        if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":  # "stopping"
            word = word[:-1]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 3 and word.endswith("e"):
        return word[:-1]
    return word
