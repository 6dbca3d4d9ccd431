"""Language detection: the shipped language in which a message is written, "" if that is uncertain."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter

from sayso.channels.i18n.catalogue import LANGUAGES, catalogue, shipped

#: How many characters of a message are read. More would add no evidence,
#: and the limit bounds the work.
MAX_CHARS = 1000
#: How many points are clear evidence: two marks of a language,
#: or one word that no other language has.
CLEAR = 2
#: The best language must have more than this many times the points of any other.
MARGIN = 2

#: Text that people repeat rather than write: quotations, and words that look like addresses,
#: paths or arguments.
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|„[^„“]*“|«[^«»]*»|`[^`]*`")
_ADDRESS = re.compile(r"[/@_=\\]|\w\.\w")
_WORD = re.compile(r"[¿¡]|[^\W\d_]+(?:['-][^\W\d_]+)*")
#: The Turkish capital İ, which Unicode lowers to an i with a second dot.
_TURKISH_CAPITAL = "\u0130"
_SENTENCE_ENDS = (".", "!", "?", ":", "¿", "¡")


def recognize(text: str) -> str:
    """Return the shipped language of a message, "" for a short, mixed or unknown one."""
    # Normalizing may make a text longer, so it is cut again.
    beginning = unicodedata.normalize("NFKC", text[:MAX_CHARS])[:MAX_CHARS]
    beginning = beginning.replace("\u2019", "'").strip()
    # A command is the same in every language.
    if beginning.startswith("/"):
        return ""

    own_text = _QUOTED.sub(" … ", beginning)
    if not own_text.isascii():
        by_script = [language for language, script in _scripts().items() if script.fits(own_text)]
        if len(by_script) == 1:
            return by_script[0]

    words = set(_words(own_text))
    known = _vocabulary()
    if not _has_letters(own_text) or not all(known.alphabet.issuperset(word) for word in words):
        return ""

    points: dict[str, int] = {}
    for word in words:
        _add(points, known.points.get(word) or known.points_of_parts(word))
    most_first = sorted(points.items(), key=itemgetter(1), reverse=True)
    (best, most), (_, second) = [*most_first, ("", 0), ("", 0)][:2]
    if most >= CLEAR and most > MARGIN * second:
        return best
    return ""


def choose(messages: Iterable[str], hint: str, default: str) -> str:
    """Return the language to answer in.

    It is that of the newest message whose language is clear (`messages` are newest first), else the
    platform's hint if we speak it, else the default.
    """
    return next(filter(None, map(recognize, messages)), "") or shipped(hint) or default


@dataclass(frozen=True, slots=True)
class WritingSystem:
    """How a language with a script of its own is recognized, from its catalogue."""

    #: Its letters.
    letters: re.Pattern[str]
    #: What only it writes; two of these must occur.
    proof: re.Pattern[str]
    #: What only languages with a similar script write.
    foreign: re.Pattern[str] | None
    #: Words have spaces between them, so that a single word may be a mere name.
    is_spaced: bool

    def fits(self, text: str) -> bool:
        """Return whether most letters of a text are of this script and none is of a similar one."""
        # First, since it is the fastest for text of another script.
        if len(self.proof.findall(text)) < CLEAR:
            return False
        if self.foreign and self.foreign.search(text):
            return False
        if self.is_spaced and len(text.split()) < 2:
            return False
        return 2 * _count_letters("".join(self.letters.findall(text))) > _count_letters(text)


@cache
def _scripts() -> dict[str, WritingSystem]:
    """Return the writing systems of the languages that have one of their own."""
    systems = {}
    for language in LANGUAGES:
        if script := catalogue(language)["script"]:
            letters = re.compile(script["letters"])
            proof = re.compile(script["proof"])
            if script["foreign"]:
                foreign = re.compile(script["foreign"])
            else:
                foreign = None
            systems[language] = WritingSystem(letters, proof, foreign, script["spaced"])
    return systems


def _has_letters(text: str) -> bool:
    """Return whether a text has a letter, or a vowel sign that is a character of its own."""
    return any(unicodedata.category(char)[0] in "LM" for char in text)


def _count_letters(text: str) -> int:
    """Return the number of letters, and of vowel signs that are characters of their own."""
    return sum(unicodedata.category(char)[0] in "LM" for char in text)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What words tell of a language, from all catalogues."""

    #: The points by language of each listed word.
    points: dict[str, dict[str, int]]
    #: The endings by which a word counts as a language's, and `any_ending` all of them.
    endings: dict[str, tuple[str, ...]]
    any_ending: tuple[str, ...]
    #: The letters of all shipped languages that use the Latin script.
    alphabet: frozenset[str]

    def points_of_parts(self, word: str) -> dict[str, int]:
        """Return the points of a word's ending and of its parts, such as in "avez-vous" or "d'une"."""
        points: dict[str, int] = {}
        if word.endswith(self.any_ending):
            points = {
                language: 1 for language, endings in self.endings.items() if word.endswith(endings)
            }
        for part in re.split("['-]", word):
            _add(points, self.points.get(part, {}))
        return points


def _add(points: dict[str, int], further: Mapping[str, int]) -> None:
    """Add points by language.

    Each message that a web accepts waits for it, and a Counter takes three times as long.
    """
    for language, worth in further.items():
        points[language] = points.get(language, 0) + worth


@cache
def _vocabulary() -> Vocabulary:
    catalogues = {language: catalogue(language) for language in LANGUAGES}
    points: dict[str, dict[str, int]] = {}
    for language, texts in catalogues.items():
        for key, worth in (("marks", 1), ("sure", CLEAR)):
            for word in texts[key]:
                points.setdefault(word, {})[language] = worth
    endings = {language: tuple(texts["endings"]) for language, texts in catalogues.items()}
    letters = (texts["letters"] for texts in catalogues.values())
    any_ending = tuple(set(chain.from_iterable(endings.values())))
    return Vocabulary(
        points, endings, any_ending, frozenset("abcdefghijklmnopqrstuvwxyz'-¿¡").union(*letters)
    )


def _words(text: str) -> Iterator[str]:
    """Yield the words in lower case.

    Capitalized words inside a sentence are left out: they may be names.
    """
    is_shouted = text.isupper()
    for line in text.splitlines():
        is_start = True
        for chunk in line.split():
            if _ADDRESS.search(chunk):
                words = []
            else:
                words = _WORD.findall(chunk)
            for word in words:
                if is_start or is_shouted or not word[0].isupper():
                    yield word.replace(_TURKISH_CAPITAL, "i").lower()
                is_start = word in _SENTENCE_ENDS
            is_start = chunk.endswith(_SENTENCE_ENDS)
