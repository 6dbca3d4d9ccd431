"""Words: text cut into tokens and word stems, the ground that offline matching stands on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Words that carry no intent; greetings and answers are among them, so that chit-chat never finds a tool.
STOP_WORDS = frozenset(
    """a all also am an and any are as at be been but by can could did do does for from had has have hello hey hi how
    i if in into is it its just kindly let like me my need no not now of off ok okay on one or our out please so some
    sorry sure than thank thanks that the their them then there these they this those to too up us want was we were
    what when where which who will with would yes you your bye good morning evening night nope yep about called named
    whose""".split()  # noqa: SIM905  # sixty quoted words read worse
)
#: Verbs so general that they find a tool only together with another word of its name.
WEAK_WORDS = frozenset({"do", "get", "give", "look", "make", "run", "see", "set", "show", "tell", "use"})

_TOKEN = re.compile(r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|“([^”]+)”|([\w#$€£@+-][\w.:@/+#%$€£='\u2019-]*)")


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a text: a word, or a whole quotation without its quotes."""

    text: str
    quoted: bool = False


def tokens(text: str) -> list[Token]:
    """The text in pieces, in order, without punctuation around them."""
    found = []
    for match in _TOKEN.finditer(text):
        *quotes, word = match.groups()
        quote = next((each for each in quotes if each), None)
        if quote is not None:
            found.append(Token(quote.strip(), quoted=True))
        elif stripped := word.rstrip(".:/=-'\u2019"):
            found.append(Token(stripped))
    return found


def stem(word: str) -> str:
    """A word without plural, -ing and final e: "deleting", "deletes" and "delete" are one."""
    word = word.lower()
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("ing"):
        word = _undoubled(word[:-3])
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def name_words(name: str) -> list[str]:
    """The words of an identifier: `find_invoice` and `findInvoice` are both find, invoice."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", spaced) if word]


def stems(words: Iterable[str]) -> frozenset[str]:
    """The stems of all words that carry meaning."""
    return frozenset(stem(word) for word in words if word.lower() not in STOP_WORDS)


def _undoubled(word: str) -> str:
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls"
    return word[:-1] if doubled else word
