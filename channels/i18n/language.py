"""Language: which shipped language people write in, so that they are answered in it; "" where nobody could be sure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from sayso.channels.i18n.texts import LANGUAGES, catalogue, shipped

#: Characters of a message that are read; the rest would only repeat the evidence, and the cap bounds the work.
MAX_CHARS = 1000
#: Points that are clear evidence: two marks of a language, or one sure word or letter.
CLEAR = 2
#: One language must have more than this many times the points of any other.
MARGIN = 2

#: What people repeat rather than say: anything quoted, anything that looks like an address, a path or an argument.
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”|„[^„“]*“|«[^«»]*»|`[^`]*`")
_ADDRESS = re.compile(r"[/@_=\\]|\w\.\w")

_WORD = re.compile(r"[¿¡]|[^\W\d_]+(?:['-][^\W\d_]+)*")
#: Its small letter by Unicode is an i with one dot more.
_TURKISH_CAPITAL = "\u0130"
_SENTENCE_ENDS = (".", "!", "?", ":", "¿", "¡")


@dataclass(frozen=True, slots=True)
class WritingSystem:
    """How a language with a script of its own is recognised, as its catalogue says."""

    #: The letters it is written in.
    letters: re.Pattern[str]
    #: What only it writes: two of these must be there.
    proof: re.Pattern[str]
    #: What only its neighbours write.
    foreign: re.Pattern[str] | None
    #: Whether there are spaces between words: then one word alone may be a name, and tells nothing.
    is_spaced: bool


def recognise(text: str) -> str:
    """The shipped language of a message, "" when it is short, mixed, or of a language that does not ship."""
    read = unicodedata.normalize("NFKC", text[:MAX_CHARS])[:MAX_CHARS].replace("\u2019", "'").strip()
    if read.startswith("/"):
        return ""  # a command is the same in every language
    said = _QUOTED.sub(" … ", read)
    return _by_script(said) or _by_words(said)


def choose(messages: Iterable[str], hint: str, default: str) -> str:
    """The language to answer in.

    That of the newest message that shows one (`messages` come newest first), else the platform's hint where we speak
    it, else the default.
    """
    return next(filter(None, map(recognise, messages)), "") or shipped(hint) or default


def _by_script(said: str) -> str:
    """The one language whose script most letters are of and that its neighbours do not write so; "" else."""
    written = _letters(said)
    found = [language for language, script in _scripts().items() if _is_written_in(script, said, written)]
    return found[0] if len(found) == 1 else ""


def _letters(said: str) -> int:
    """How many letters, and vowel signs where they are characters of their own."""
    return sum(unicodedata.category(char)[0] in "LM" for char in said)


def _is_written_in(script: WritingSystem, said: str, written: int) -> bool:
    return (
        2 * _letters("".join(script.letters.findall(said))) > written
        and len(script.proof.findall(said)) >= CLEAR
        and not (script.foreign and script.foreign.search(said))
        and not (script.is_spaced and len(said.split()) < 2)
    )


@cache
def _scripts() -> dict[str, WritingSystem]:
    """The scripts of the languages that have one of their own."""
    described = {language: catalogue(language)["script"] for language in LANGUAGES}
    return {language: _script(**parts) for language, parts in described.items() if parts}


def _script(letters: str, proof: str, foreign: str, spaced: bool) -> WritingSystem:
    return WritingSystem(re.compile(letters), re.compile(proof), re.compile(foreign) if foreign else None, spaced)


def _by_words(said: str) -> str:
    words = set(_spoken(said))
    if not _letters(said) or not all(_alphabet().issuperset(word) for word in words):
        return ""
    points: Counter[str] = Counter()
    for word in words:
        points.update(_evidence().get(word) or _parts(word))
    (best, most), (_, second) = [*points.most_common(2), ("", 0), ("", 0)][:2]
    return best if most >= CLEAR and most > MARGIN * second else ""


def _parts(word: str) -> Counter[str]:
    """What the parts of "avez-vous" or "d'une" count for, and how a word ends."""
    found = Counter({language: 1 for language in LANGUAGES if word.endswith(_endings(language))})
    for part in re.split("['-]", word):
        found.update(_evidence().get(part, {}))
    return found


@cache
def _evidence() -> dict[str, dict[str, int]]:
    """What each mark and sure word counts for, in points by language."""
    evidence: dict[str, dict[str, int]] = {}
    for language in LANGUAGES:
        for key, points in (("marks", 1), ("sure", CLEAR)):
            for word in catalogue(language)[key]:
                evidence.setdefault(word, {})[language] = points
    return evidence


@cache
def _endings(language: str) -> tuple[str, ...]:
    return tuple(catalogue(language)["endings"])


@cache
def _alphabet() -> frozenset[str]:
    """The letters of every shipped language that is written in Latin ones."""
    return frozenset("abcdefghijklmnopqrstuvwxyz'-¿¡").union(
        *(catalogue(language)["letters"] for language in LANGUAGES)
    )


def _spoken(said: str) -> Iterator[str]:
    """The words of a message in lower case, without what looks like names: capitals inside a sentence."""
    shouted = said.isupper()
    for line in said.splitlines():
        is_start = True
        for chunk in line.split():
            for word in () if _ADDRESS.search(chunk) else _WORD.findall(chunk):
                if is_start or shouted or not word[0].isupper():
                    yield word.replace(_TURKISH_CAPITAL, "i").lower()
                is_start = word in _SENTENCE_ENDS
            is_start = chunk.endswith(_SENTENCE_ENDS)
