"""Stems of words: "collaborators" and "collaborator" have the same stem, so each finds the other.

The stems are those of Snowball, a collection of stemmers for many languages.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sayso.agent.providers.offline_words import words_of

#: Most stems that are cached. A catalog of a thousand tools has about 5,000 words.
_MAX_STEMS = 20_000
#: Snowball's names of the languages that it has a stemmer for, by their codes. Of the languages
#: that Sayso recognizes (`channels/i18n/language.py`), Chinese and Japanese have none.
_STEMMERS = {
    "ar": "arabic",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "hi": "hindi",
    "id": "indonesian",
    "it": "italian",
    "nl": "dutch",
    "pt": "portuguese",
    "ru": "russian",
    "tr": "turkish",
}
_APOSTROPHE = re.compile("['\u2019]")


def request_words(text: str, language: str) -> list[str]:
    """Return the words of what a person wrote, in lower case.

    An English contraction is one word: "dont" for "don't". In other languages an apostrophe
    separates words, as `words_of` does in the texts of tools: "l'utilisateur" is "l" and
    "utilisateur".
    """
    if language == "en":
        return words_of(_APOSTROPHE.sub("", text))
    return words_of(text)


@lru_cache(maxsize=_MAX_STEMS)
def stem_of(word: str, language: str) -> str:
    """Return the stem of a word in lower case; the word itself in a language without a stemmer.

    `language` is a code that `recognize` returns, such as "pt".
    """
    if language not in _STEMMERS:
        return word
    # Imported here, since it is two dozen modules that only the choice of tools needs.
    from snowballstemmer import stemmer

    # A new one each time, since a stemmer is not thread-safe.
    stem: str = stemmer(_STEMMERS[language]).stemWord(word)
    return stem
