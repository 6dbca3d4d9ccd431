"""Matching: which tool a free text means, by the words of names first and of descriptions second."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sayso.agent.providers.words import WEAK_WORDS, name_words, stem, stems, tokens

#: A word of the tool's name weighs this much; a word of its description or parameters weighs 1.
NAME_WEIGHT = 10

Schema = Mapping[str, Any]

#: "Don't delete INV-42" holds every word of the request it forbids; a matcher of words must not guess.
_FORBIDS = re.compile(r"\b(don['\u2019]?t|do not|never)\b", re.IGNORECASE)

_WEAK_STEMS = frozenset(stem(word) for word in WEAK_WORDS)


@dataclass(frozen=True, slots=True)
class _Candidate:
    schema: Schema
    name: frozenset[str]
    hits: frozenset[str]
    score: int

    @property
    def complete(self) -> bool:
        """Whether the text holds the tool's whole name."""
        return self.hits == self.name

    @property
    def meant(self) -> bool:
        """Whether more than a general verb points here."""
        return self.complete or bool(self.hits - _WEAK_STEMS)


def match_tools(text: str, schemas: Sequence[Schema]) -> list[Schema]:
    """The tools the text may mean: none, the one, or several that only a question can tell apart."""
    if _FORBIDS.search(text):
        return []
    said = _said(text)
    everyone = [_candidate(said, schema) for schema in schemas]
    candidates = [each for each in everyone if each.hits and each.meant]
    if not candidates:
        return []
    best = max(each.score for each in candidates)
    winners = [each for each in candidates if each.score == best]
    if len(winners) == 1 and not _is_distinct(winners[0], everyone):
        winners = [each for each in candidates if len(each.hits) == len(winners[0].hits)]
    return [each.schema for each in winners]


def _said(text: str) -> frozenset[str]:
    """The words of a text; what stands in quotes is data and means no tool."""
    return stems(word for token in tokens(text) if not token.quoted for word in name_words(token.text))


def _candidate(said: frozenset[str], schema: Schema) -> _Candidate:
    name = frozenset(stem(word) for word in name_words(schema["name"]))
    hits = name & said
    return _Candidate(schema, name, hits, NAME_WEIGHT * len(hits) + len((said & _background(schema)) - name))


def _background(schema: Schema) -> frozenset[str]:
    words = name_words(str(schema.get("description", "")))
    for name, prop in _properties(schema).items():
        words += name_words(name)
        words += [word for choice in prop.get("enum", ()) for word in name_words(str(choice))]
    return stems(words)


def _is_distinct(winner: _Candidate, everyone: Sequence[_Candidate]) -> bool:
    """Whether the text holds the whole name, or a telling word of it that no other tool's name has."""
    others = frozenset().union(*(each.name for each in everyone if each is not winner))
    return winner.complete or bool(winner.hits - others - _WEAK_STEMS)


def _properties(schema: Schema) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = schema.get("parameters", {}).get("properties", {})
    return properties
