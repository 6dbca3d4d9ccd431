"""The phrases that mean yes, no or something else about a question, by language.

`languages/<code>.toml` has them as patterns (`expand`), one list for each field of `PhraseBook`. The
other keys of a file say which spellings of a phrase count:

* `keep_accents`: words that are other words without their accents. Spanish "sí" is "yes", "si" "if".
* `not_doubled`: words that decide nothing when said twice. German "ja ja" dismisses.
* `capitals`: letters with an unusual capital (`_in_capitals`).
* `source`: where the phrases come from; for the reader of the file.

The files are read on first use, once in a process: most processes read no message.

A phrase is compared with a message in one of two forms: as `plain_words` returns it, where "uh-huh"
keeps its hyphen, or without hyphens, as `bare_words` and `refusing.py` read it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sayso.pending.consent.words import accent_variants, is_syllabic, plain_words

_FOLDER = Path(__file__).parent / "languages"
#: The languages that have a phrase file, as codes of two letters.
SHIPPED_LANGUAGES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@dataclass(frozen=True, slots=True)
class PhraseBook:
    """The phrases of one or more languages, as `plain_words` returns them.

    A phrase may be in several fields: "yes" is in `confirm` and `plain`.
    """

    #: The whole message is a yes.
    confirm: frozenset[str]
    #: The whole message is a no.
    cancel: frozenset[str]
    #: Politeness that may stand behind an answer: "please", "thanks".
    polite: frozenset[str]
    #: Words of one language that look like a yes, a no or politeness of another: "ja" in Portuguese
    #: is "already". They are none of these where both languages are read.
    false_friends: frozenset[str]
    #: A plain "ok": it decides only where the channel says so.
    ok: frozenset[str]
    #: May be meant as an answer but decides nothing: the user is asked again.
    unclear: frozenset[str]
    #: Asks about the question and decides nothing: the user is told what a yes would do.
    asks: frozenset[str]
    #: Asks about the question if words of its effect follow: "which" in "which order?".
    which: frozenset[str]
    #: Asks for time and decides nothing: the user is told once that the question stays open.
    waits: frozenset[str]
    #: The words of `confirm` and `cancel` that say nothing else: "yes". "Stop" may also be a request.
    plain: frozenset[str]
    #: Words that begin a new request if another word follows, though most are a yes when alone:
    #: "delete".
    commands: frozenset[str]
    #: A no that may have more words behind a comma or another break: "no, wrong order".
    refuses: frozenset[str]
    #: A no and the words that follow it where people put no comma: "no because".
    refuses_and: frozenset[str]
    #: Takes a no back, wherever it stands behind it: "no problem", "go ahead".
    takes_back: frozenset[str]
    #: Begins what a person wants otherwise, behind a yes: "yes, but blue".
    but: frozenset[str]


@dataclass(frozen=True, slots=True)
class AskingPhrases:
    """Phrases that ask about a question or for time, compared without hyphens."""

    #: Asks what the question is about: "what is this?".
    asks: frozenset[str]
    #: Asks so if words of the effect follow: "which" in "which order?".
    before_effect: frozenset[str]
    #: Asks for time: "later".
    waits: frozenset[str]
    #: May stand beside one of the others and asks nothing: "ok", "please".
    fillers: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefusalPhrases:
    """Phrases that begin a no with more words, and those that take it back.

    All but `yeses`, which are single words, are compared without hyphens.
    """

    #: Stand before a break: "no" in "no, wrong order".
    heads: frozenset[str]
    #: Stand at the beginning of a message without a break: "no because".
    openings: frozenset[str]
    #: Take the no back anywhere behind it.
    takes_back: frozenset[str]
    #: Take the no back at the beginning of a clause: "yes" in "no wait, yes".
    yeses: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChangePhrases:
    """Phrases that begin a yes with a change, compared without hyphens: "yes, but blue"."""

    #: A yes or an "ok", which stand first.
    heads: frozenset[str]
    #: Stands behind it, before the change.
    but: frozenset[str]


def check_languages(languages: Sequence[str]) -> None:
    """Raise ValueError unless there is a language, and a phrase file for each."""
    if not languages:
        raise ValueError(f"no language: give at least one of {', '.join(SHIPPED_LANGUAGES)}")
    for language in languages:
        if language not in SHIPPED_LANGUAGES:
            raise ValueError(
                f"unknown language {language!r}; known: {', '.join(SHIPPED_LANGUAGES)}"
            )


@cache
def phrasebook(languages: tuple[str, ...]) -> PhraseBook:
    """Return the phrases of these languages, except those that mean something else in one of them.

    Always the same object for the same languages: what is computed from a book is cached by it.
    Raises ValueError for a phrase file with a phrase that no message could match.
    """
    books = [_load(language) for language in languages]
    parts = {
        part: frozenset().union(*(getattr(book, part) for book in books))
        for part in PhraseBook.__slots__
    }
    # These parts decide, or may stand behind a decision. The others decide nothing, or are read in
    # one language at a time: a German "ja" takes no Portuguese no back (`_takes_back`).
    for part in ("confirm", "cancel", "polite", "refuses"):
        parts[part] -= parts["false_friends"]
    return PhraseBook(**parts)


@cache
def answers_and_half_answers(book: PhraseBook) -> frozenset[str]:
    """Return all phrases that decide or half decide, compared without hyphens."""
    return _with_unhyphenated(book.confirm | book.cancel | book.ok | book.unclear)


@cache
def asking_phrases(book: PhraseBook) -> AskingPhrases:
    """Return what people write to ask about an open question, or for time."""
    return AskingPhrases(
        asks=_with_unhyphenated(book.asks),
        before_effect=_with_unhyphenated(book.which),
        waits=_with_unhyphenated(book.waits),
        fillers=_with_unhyphenated(book.ok | book.unclear | book.polite),
    )


@cache
def refusal_phrases(book: PhraseBook) -> RefusalPhrases:
    """Return how a no with more words begins, and what takes it back."""
    # One letter, such as "y", and a syllable of Chinese or Japanese are parts of other words.
    yeses = [each for each in book.plain & book.confirm if len(each) > 1]
    return RefusalPhrases(
        heads=_with_unhyphenated(book.refuses),
        openings=_with_unhyphenated(book.refuses_and),
        takes_back=_with_unhyphenated(book.takes_back),
        yeses=frozenset(each for each in yeses if not is_syllabic(each)),
    )


@cache
def change_phrases(book: PhraseBook) -> ChangePhrases:
    """Return how a yes begins that asks for a change."""
    # "Yes yes" need not be a head: with a change behind it the message has too many words to be taken
    # for an unclear answer, so it is a new request in any case.
    heads = (book.plain & book.confirm) | book.ok
    return ChangePhrases(heads=_with_unhyphenated(heads), but=_with_unhyphenated(book.but))


def _with_unhyphenated(phrases: frozenset[str]) -> frozenset[str]:
    """Return the phrases, and those with hyphens also without: "uh-huh" and "uh huh"."""
    return phrases | {phrase.replace("-", " ") for phrase in phrases}


@cache
def _load(language: str) -> PhraseBook:
    """Return the phrases of one file, in all spellings in which people type them."""
    table = tomllib.loads((_FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    with_accents = frozenset(plain_words(word) for word in table.get("keep_accents", ()))

    parts: dict[str, frozenset[str]] = {}
    for part in PhraseBook.__slots__:
        spellings: set[str] = set()
        for phrase in _read_patterns(table.get(part, ())):
            spellings.update(accent_variants(phrase, with_accents))
        parts[part] = frozenset(spellings)

    capitals = table.get("capitals")
    if capitals:
        for part, phrases in parts.items():
            parts[part] = phrases | _in_capitals(phrases, capitals)

    # The words of `plain` and `commands` are searched for one by one, and doubled words of the other
    # parts are in the file.
    not_doubled = frozenset(plain_words(word) for word in table.get("not_doubled", ()))
    for part in ("confirm", "cancel", "false_friends", "refuses"):
        parts[part] |= _repeated(parts[part] - not_doubled)
    return PhraseBook(**parts)


def _read_patterns(patterns: Iterable[str]) -> Iterable[str]:
    """Yield each phrase of the patterns, as plain words.

    Raises ValueError for a phrase that no message could match.
    """
    for pattern in patterns:
        for phrase in expand(pattern):
            plain_phrase = plain_words(phrase)
            if not plain_phrase:
                problem = f"phrase {phrase!r} of {pattern!r} cannot be read"
                raise ValueError(f"{problem}: use one script, no digits, no quotes")
            yield plain_phrase


def expand(pattern: str) -> list[str]:
    """Return all phrases of a pattern such as "yes (delete|remove) it".

    Parentheses hold alternatives, which may be empty; they do not nest.
    """
    parts = re.split(r"[()]", pattern)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _in_capitals(phrases: frozenset[str], capitals: Mapping[str, Any]) -> frozenset[str]:
    """Return the phrases as they read when typed in capitals, or with a capital first letter.

    `capitals` names the letters whose capital is not Unicode's default: Turkish "i" is "İ", which
    reads as "i" with a dot above.
    """
    read_as = str.maketrans({letter: plain_words(capital) for letter, capital in capitals.items()})
    all_capitals = {phrase.translate(read_as) for phrase in phrases}
    first_capital = {phrase[0].translate(read_as) + phrase[1:] for phrase in phrases}
    return frozenset(all_capitals | first_capital)


def _repeated(phrases: frozenset[str]) -> frozenset[str]:
    """Return the phrases of one word said twice and three times: "si si" and "si si si"."""
    repeated: set[str] = set()
    for word in phrases:
        if len(word) > 1 and " " not in word and not is_syllabic(word):
            repeated.update({f"{word} {word}", f"{word} {word} {word}"})
    return frozenset(repeated)
