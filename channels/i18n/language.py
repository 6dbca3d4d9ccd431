"""Language detection: the language in which a message is written, "" if that is uncertain.

Only languages with a catalogue are recognized. A language with a script of its own, such as Greek,
is recognized by its letters. Languages in the Latin script are recognized by words: a catalogue
lists `sure` words, which only its language has, `marks`, which few others have, and `endings`. Each
is worth some points, and the language with the most points wins if it is clearly ahead.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter

from sayso.channels.i18n.catalogue import LANGUAGES, catalogue, shipped

#: How many characters of a message are read. More would add no evidence, and the limit bounds the
#: work.
MAX_CHARS = 1000
#: How many points are clear evidence: two marks of a language, or one sure word.
CLEAR = 2
#: The best language must have more than this many times the points of any other.
MARGIN = 2

#: A quotation, which people repeat and did not write.
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|„[^„“]*“|«[^«»]*»|`[^`]*`")
#: What only an address, a path or an argument has.
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
    vocabulary = _vocabulary()
    is_latin = all(vocabulary.alphabet.issuperset(word) for word in words)
    if not is_latin or not _has_letters(own_text):
        return ""

    points: dict[str, int] = {}
    for word in words:
        _add(points, vocabulary.points.get(word) or vocabulary.points_of_parts(word))
    # Two more, for a message with points for fewer than two languages.
    most_first = [*sorted(points.items(), key=itemgetter(1), reverse=True), ("", 0), ("", 0)]
    best, most = most_first[0]
    _, second = most_first[1]
    if most >= CLEAR and most > MARGIN * second:
        return best
    return ""


def choose(messages: Iterable[str], hint: str, default: str) -> str:
    """Return the language to answer in.

    It is that of the newest message whose language is clear, else the hint, else the default.

    * `messages`: what the person wrote, the newest first.
    * `hint`: the language tag that the platform names, "" for none.
    * `default`: a language with a catalogue.
    """
    for message in messages:
        language = recognize(message)
        if language:
            return language
    return shipped(hint) or default


@dataclass(frozen=True, slots=True)
class WritingSystem:
    """How a language with a script of its own is recognized, from its catalogue."""

    #: The letters of the script.
    letters: re.Pattern[str]
    #: What only this language writes. CLEAR of these must occur.
    proof: re.Pattern[str]
    #: What only languages with a similar script write, None for nothing.
    foreign: re.Pattern[str] | None
    #: Whether words have spaces between them. Then a single word may be a mere name.
    is_spaced: bool

    def fits(self, text: str) -> bool:
        """Return whether most letters of a text are of this script, and none of a similar one."""
        # Checked first, since it is the fastest for text of another script.
        if len(self.proof.findall(text)) < CLEAR:
            return False
        if self.foreign and self.foreign.search(text):
            return False
        if self.is_spaced and len(text.split()) < 2:
            return False
        own_letters = "".join(self.letters.findall(text))
        return 2 * _count_letters(own_letters) > _count_letters(text)


@cache
def _scripts() -> dict[str, WritingSystem]:
    """Return the writing systems of the languages that have one, by language."""
    systems = {}
    for language in LANGUAGES:
        script = catalogue(language)["script"]
        if not script:
            continue
        foreign = None
        if script["foreign"]:
            foreign = re.compile(script["foreign"])
        systems[language] = WritingSystem(
            letters=re.compile(script["letters"]),
            proof=re.compile(script["proof"]),
            foreign=foreign,
            is_spaced=script["spaced"],
        )
    return systems


def _has_letters(text: str) -> bool:
    """Return whether a text has a letter, or a vowel sign that is a separate character."""
    return any(unicodedata.category(char)[0] in "LM" for char in text)


def _count_letters(text: str) -> int:
    """Return the number of letters, and of vowel signs that are separate characters."""
    return sum(unicodedata.category(char)[0] in "LM" for char in text)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What words say about the language, from all catalogues."""

    #: The points of each listed word, by language.
    points: dict[str, dict[str, int]]
    #: The endings that are worth a point, by language.
    endings: dict[str, tuple[str, ...]]
    #: All endings.
    any_ending: tuple[str, ...]
    #: The letters of all shipped languages that use the Latin script.
    alphabet: frozenset[str]

    def points_of_parts(self, word: str) -> dict[str, int]:
        """Return the points of a word's ending and of its parts, by language.

        "avez-vous" and "d'une" have two parts each.
        """
        points: dict[str, int] = {}
        # Most words have none of these endings.
        if word.endswith(self.any_ending):
            for language, endings in self.endings.items():
                if word.endswith(endings):
                    points[language] = 1
        for part in re.split("['-]", word):
            _add(points, self.points.get(part, {}))
        return points


def _add(points: dict[str, int], further: Mapping[str, int]) -> None:
    """Add points by language."""
    # Not a Counter, which takes three times as long: each message that a web process accepts waits
    # for this.
    for language, worth in further.items():
        points[language] = points.get(language, 0) + worth


@cache
def _vocabulary() -> Vocabulary:
    """Return the words of all catalogues."""
    catalogues = {language: catalogue(language) for language in LANGUAGES}
    points: dict[str, dict[str, int]] = {}
    for language, texts in catalogues.items():
        for key, worth in (("marks", 1), ("sure", CLEAR)):
            for word in texts[key]:
                points.setdefault(word, {})[language] = worth
    endings = {language: tuple(texts["endings"]) for language, texts in catalogues.items()}
    any_ending = tuple(set(chain.from_iterable(endings.values())))
    letters = (texts["letters"] for texts in catalogues.values())
    alphabet = frozenset("abcdefghijklmnopqrstuvwxyz'-¿¡").union(*letters)
    return Vocabulary(points, endings, any_ending, alphabet)


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case.

    Capitalized words inside a sentence are left out: they may be names.
    """
    is_all_capitals = text.isupper()
    for line in text.splitlines():
        is_start = True
        for chunk in line.split():
            words = []
            if not _ADDRESS.search(chunk):
                words = _WORD.findall(chunk)
            for word in words:
                if is_start or is_all_capitals or not word[0].isupper():
                    yield word.replace(_TURKISH_CAPITAL, "i").lower()
                is_start = word in _SENTENCE_ENDS
            is_start = chunk.endswith(_SENTENCE_ENDS)
