"""PhraseBook: the tables of whole phrases that count as an answer, one data file per language."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sayso.pending.consent.normalize import accent_variants, is_syllabic, plain_words

_FOLDER = Path(__file__).parent / "languages"
#: The languages that have a phrase file.
SHIPPED_LANGUAGES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@dataclass(frozen=True, slots=True)
class PhraseBook:
    """The phrases of one or more languages, as `plain_words` returns them."""

    confirm: frozenset[str]
    cancel: frozenset[str]
    polite: frozenset[str]
    false_friends: frozenset[str]
    #: A plain "ok": it decides only where the channel says so.
    ok: frozenset[str]
    #: May be meant as an answer but decides nothing: the user is asked again.
    unclear: frozenset[str]
    #: Words that are a yes when alone, and a new request with another word beside them.
    commands: frozenset[str]


def phrasebook(languages: Sequence[str]) -> PhraseBook:
    """Return the languages' phrases, except those that mean something else in one of them.

    Raises ValueError for an unknown language.
    """
    if not languages:
        raise ValueError(f"no language: give at least one of {', '.join(SHIPPED_LANGUAGES)}")
    for language in languages:
        if language not in SHIPPED_LANGUAGES:
            raise ValueError(f"unknown language {language!r}; known: {', '.join(SHIPPED_LANGUAGES)}")
    return _merge([_load(language) for language in languages])


def expand(pattern: str) -> list[str]:
    """Return all phrases of a pattern such as "yes (delete|remove) it".

    Parentheses hold alternatives, which may be empty; they do not nest.
    """
    parts = re.split(r"[()]", pattern)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _merge(books: Sequence[PhraseBook]) -> PhraseBook:
    false_friends = frozenset().union(*(book.false_friends for book in books))
    return PhraseBook(
        frozenset().union(*(book.confirm for book in books)) - false_friends,
        frozenset().union(*(book.cancel for book in books)) - false_friends,
        frozenset().union(*(book.polite for book in books)) - false_friends,
        false_friends,
        frozenset().union(*(book.ok for book in books)),
        frozenset().union(*(book.unclear for book in books)),
        frozenset().union(*(book.commands for book in books)),
    )


@cache
def _load(language: str) -> PhraseBook:
    table = tomllib.loads((_FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    keep = frozenset(plain_words(word) for word in table.get("keep_accents", ()))
    parts = {part: _phrases(table, part, keep) for part in PhraseBook.__slots__}
    if capitals := table.get("capitals"):
        parts = {part: phrases | _capitalized(phrases, capitals) for part, phrases in parts.items()}
    dismissive = frozenset(plain_words(word) for word in table.get("not_doubled", ()))
    for part in ("confirm", "cancel", "false_friends"):
        parts[part] |= _repeated(parts[part] - dismissive)
    return PhraseBook(**parts)


def _repeated(phrases: frozenset[str]) -> frozenset[str]:
    """Return each one-word phrase said twice and three times: "si si" and "si si si" for "si"."""
    words = [phrase for phrase in phrases if len(phrase) > 1 and " " not in phrase and not is_syllabic(phrase)]
    return frozenset(" ".join([word] * times) for word in words for times in (2, 3))


def _capitalized(phrases: frozenset[str], capitals: dict[str, str]) -> frozenset[str]:
    """Return the phrases as they read when typed in capitals, or with a capital first letter.

    `capitals` names the letters whose capital is not Unicode's default: Turkish "i" is "İ", which reads as "i" with a
    dot above.
    """
    table = str.maketrans({letter: plain_words(capital) for letter, capital in capitals.items()})
    return frozenset(
        form for phrase in phrases for form in (phrase.translate(table), phrase[0].translate(table) + phrase[1:])
    )


def _phrases(table: dict[str, Any], part: str, keep: frozenset[str]) -> frozenset[str]:
    return frozenset(
        variant for words in _read_patterns(table.get(part, ())) for variant in accent_variants(words, keep)
    )


def _read_patterns(patterns: Iterable[str]) -> Iterable[str]:
    """Yield the plain words of each phrase. Raises ValueError for a phrase that no message could match."""
    for pattern in patterns:
        for phrase in expand(pattern):
            words = plain_words(phrase)
            if not words:
                raise ValueError(
                    f"phrase {phrase!r} of {pattern!r} cannot be read: use one script, no digits, no quotes"
                )
            yield words
