"""Phrase book: the finite tables of whole phrases that decide, one data file a language."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sayso.pending.consent.normalize import is_syllabic, spellings, words_of

_FOLDER = Path(__file__).parent / "languages"
#: Every language with a file in pending/phrases.
SHIPPED_LANGUAGES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@dataclass(frozen=True, slots=True)
class PhraseBook:
    """The phrases of one or more languages, as `words_of` writes them."""

    confirm: frozenset[str]
    cancel: frozenset[str]
    polite: frozenset[str]
    false_friends: frozenset[str]
    #: A plain "ok": it decides only where the channel says so.
    ok: frozenset[str]
    #: What may be meant as an answer and decides nothing: whoever says it is asked again.
    unclear: frozenset[str]
    #: Words that are a yes alone, and with another beside them a new request.
    commands: frozenset[str]


def phrasebook(languages: Sequence[str]) -> PhraseBook:
    """The languages' phrases, less what means something else in one of them. Raises ValueError for unknown ones."""
    if not languages:
        raise ValueError(f"no language: give at least one of {', '.join(SHIPPED_LANGUAGES)}")
    for language in languages:
        if language not in SHIPPED_LANGUAGES:
            raise ValueError(f"unknown language {language!r}; known: {', '.join(SHIPPED_LANGUAGES)}")
    return _joined([_load(language) for language in languages])


def expand(pattern: str) -> list[str]:
    """Every phrase of "yes (delete|remove) it". Brackets hold alternatives, which may be empty, and do not nest."""
    parts = re.split(r"[()]", pattern)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _joined(books: Sequence[PhraseBook]) -> PhraseBook:
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
    keep = frozenset(words_of(word) for word in table.get("keep_accents", ()))
    parts = {part: _phrases(table, part, keep) for part in PhraseBook.__slots__}
    if capitals := table.get("capitals"):
        parts = {part: phrases | _capitalised(phrases, capitals) for part, phrases in parts.items()}
    dismissive = frozenset(words_of(word) for word in table.get("not_doubled", ()))
    for part in ("confirm", "cancel", "false_friends"):
        parts[part] |= _doubled(parts[part] - dismissive)
    return PhraseBook(**parts)


def _doubled(phrases: frozenset[str]) -> frozenset[str]:
    """Return "si si" and "si si si" for "si": each phrase of one word, of languages that have spaces between words."""
    words = [phrase for phrase in phrases if len(phrase) > 1 and " " not in phrase and not is_syllabic(phrase)]
    return frozenset(" ".join([word] * times) for word in words for times in (2, 3))


def _capitalised(phrases: frozenset[str], capitals: dict[str, str]) -> frozenset[str]:
    """Return the phrases as they are read when typed in capitals, or with a capital first letter.

    `capitals` names the letters whose capital is not Unicode's default: Turkish "i" is "İ", which reads as "i" with a
    dot above.
    """
    table = str.maketrans({letter: words_of(capital) for letter, capital in capitals.items()})
    return frozenset(
        form for phrase in phrases for form in (phrase.translate(table), phrase[0].translate(table) + phrase[1:])
    )


def _phrases(table: dict[str, Any], part: str, keep: frozenset[str]) -> frozenset[str]:
    return frozenset(spelt for words in _read(table.get(part, ())) for spelt in spellings(words, keep))


def _read(patterns: Iterable[str]) -> Iterable[str]:
    """Each phrase in its words. Raises ValueError for one that no message could ever match."""
    for pattern in patterns:
        for phrase in expand(pattern):
            words = words_of(phrase)
            if not words:
                raise ValueError(
                    f"phrase {phrase!r} of {pattern!r} cannot be read: use one script, no digits, no quotes"
                )
            yield words
