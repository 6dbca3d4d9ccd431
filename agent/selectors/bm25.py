"""BM25: scores texts by the words that they share with a query, for tools described in a language that ships."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from sayso.agent.selectors.ngrams import words_of
from sayso.pending.language import recognise

#: The usual constants of BM25: how soon repeated words stop to count, and how much long texts lose.
_SATURATION, _LENGTH_PENALTY = 1.2, 0.75
#: What a word that people use for the one said counts, beside the word itself.
_ALIKE_WEIGHT = 0.5
#: Texts whose stems are kept.
_KEPT_TEXTS = 4096
#: Snowball's names of the languages that it has a stemmer for.
_STEMMERS = {
    "ar": "arabic", "de": "german", "en": "english", "es": "spanish", "fr": "french", "hi": "hindi", "id": "indonesian",
    "it": "italian", "nl": "dutch", "pt": "portuguese", "ru": "russian", "tr": "turkish",
}  # fmt: skip


def bm25_scores(query: str, texts: Sequence[str]) -> list[float]:
    """Return the BM25 score of each text for the query, 0 where they share no word.

    Words are compared by their stems, in the language that most texts are recognised as, English where none is.
    English words that people use for one another find each other, too.
    """
    language = _language(tuple(texts))
    documents = [Counter(_terms(text, language)) for text in texts]
    lengths = [document.total() for document in documents]
    mean = sum(lengths) / max(len(lengths), 1) or 1.0
    frequency = Counter(term for document in documents for term in document)
    weights = {
        term: weight * math.log(1 + (len(texts) - frequency[term] + 0.5) / (frequency[term] + 0.5))
        for term, weight in _query_terms(query, language).items()
        if term in frequency
    }
    return [
        sum(weight * _counted(document[term], length / mean) for term, weight in weights.items() if term in document)
        for document, length in zip(documents, lengths, strict=True)
    ]


def _counted(count: int, relative_length: float) -> float:
    penalty = _SATURATION * (1 - _LENGTH_PENALTY + _LENGTH_PENALTY * relative_length)
    return count * (_SATURATION + 1) / (count + penalty)


def _query_terms(query: str, language: str) -> Mapping[str, float]:
    """Return each stem to look for with its weight."""
    said = dict.fromkeys(_terms(query, language), 1.0)
    if language != "en":
        return said
    alike = {other: _ALIKE_WEIGHT for term in said for other in _alike().get(term, ())}
    return alike | said


@lru_cache(maxsize=64)
def _language(texts: tuple[str, ...]) -> str:
    found = Counter(filter(None, map(recognise, texts)))
    return found.most_common(1)[0][0] if found else "en"


@lru_cache(maxsize=_KEPT_TEXTS)
def _terms(text: str, language: str) -> tuple[str, ...]:
    """Return the stems of the words that say something."""
    return _stems([word for word in words_of(text) if language != "en" or word not in _ignored()], language)


def _stems(words: Sequence[str], language: str) -> tuple[str, ...]:
    if language not in _STEMMERS:
        return tuple(words)
    from snowballstemmer import stemmer  # two dozen modules, which only a selector that compares words needs

    return tuple(stemmer(_STEMMERS[language]).stemWords(words))  # a new one: it is not thread-safe


@cache
def _word_lists() -> Mapping[str, str]:
    text = files("sayso.agent.selectors").joinpath("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _ignored() -> frozenset[str]:
    return frozenset(_word_lists()["ignored"].split())


@cache
def _alike() -> Mapping[str, frozenset[str]]:
    """Return for each stem those of the words that people use for it."""
    groups = [frozenset(_stems(line.split(), "en")) for line in _word_lists()["alike"].strip().splitlines()]
    stems = frozenset().union(*groups)
    return {stem: frozenset().union(*(group for group in groups if stem in group)) for stem in stems}
