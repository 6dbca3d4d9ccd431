"""What a person's request means for a search of tools: words that tools have, and actions.

Tools use the words of an API ("revoke", "collaborator"), people use others ("she should not get in
any more"). So each word or phrase of a text stands for a few words that tools may have for it:
itself, its synonyms, and the meaning of a *saying*, a phrase that people use (`english_words.py`).
Each has a weight: 1 is the word itself. An *action* is what a request asks for: read, create,
change or delete.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from sayso.agent.toolsets.english_words import Saying, english_words
from sayso.agent.toolsets.stems import request_words, stem_of

#: The weight of the words that a phrase means: "delete" for "take ~ off".
_PHRASE_WEIGHT = 1.0
#: The weight of the words that a saying of one word means: "invite" for "onboard". It is less than
#: that of a phrase, because one word has other meanings more often.
_SAYING_WEIGHT = 0.75
#: The weight of a synonym: "remove" for "erase".
_SYNONYM_WEIGHT = 0.5
#: The weight of the words for a thing that is recognized by its form, such as an address.
_HINT_WEIGHT = 0.4
#: What the weight of a word is multiplied by, if its meaning has it after the first two words. The
#: list of sayings has the nearest words first.
_LATER_WORD_SHARE = 0.8
#: The weight of a word that the phrase itself has, such as "link" in "stop using the link". The
#: words that the phrase means have _PHRASE_WEIGHT.
_WORD_IN_PHRASE_WEIGHT = 0.5
#: What the weight of the first verb ("list ...") is multiplied by. What a tool does is compared
#: separately, by actions.
_VERB_SHARE = 0.5


class WordMeaning(NamedTuple):
    """What tools may call one word or phrase of a text."""

    #: The index of the word in the text, or of the first word of the phrase.
    position: int
    #: The weights of the words that tools may have, by their stems.
    stems: dict[str, float]


class RequestMeaning(NamedTuple):
    """What a text means."""

    #: In the order of their positions.
    meanings: list[WordMeaning]
    #: The weights of the actions that the text asks for. Empty in other languages than English.
    actions: dict[str, float]


@lru_cache(maxsize=64)
def meaning_of(text: str, language: str) -> RequestMeaning:
    """Return what a text means. In other languages than English each word means only itself."""
    words = request_words(text, language)
    if language != "en":
        stems = [stem_of(word, language) for word in words]
        return RequestMeaning([WordMeaning(at, {stem: 1.0}) for at, stem in enumerate(stems)], {})

    # What is recognized by its form has no word of its own, and is put behind all words.
    meanings = [*_meanings(words), *_hints(text, len(words))]
    meanings.sort(key=lambda each: each.position)

    actions = english_words().actions
    with_verbs = [each for each in meanings if not actions.keys().isdisjoint(each.stems)]
    # Before the weights of verbs are lowered below: the actions are weighed by them.
    wanted_actions = _wanted_actions(text, with_verbs)
    # The first verb says what to do, which the actions compare. As a word it counts less.
    # A word and a phrase may begin at the position of the first verb.
    for meaning in with_verbs:
        if meaning.position != with_verbs[0].position:
            continue
        for stem in actions.keys() & meaning.stems.keys():
            meaning.stems[stem] *= _VERB_SHARE
    return RequestMeaning(meanings, wanted_actions)


def _meanings(words: Sequence[str]) -> Iterator[WordMeaning]:
    """Yield the meanings of the phrases in a text, then those of the words outside of phrases."""
    stems = [stem_of(word, "en") for word in words]
    phrase_meanings, phrase_places = _phrase_meanings(words, stems)
    yield from phrase_meanings
    english = english_words()
    for at, word in enumerate(words):
        if at in phrase_places:
            continue
        saying_means = english.word_meanings.get(stems[at], ())
        weights = _weighed(saying_means, _SAYING_WEIGHT)
        if word not in english.stop_words:
            for synonym in english.synonyms.get(stems[at], ()):
                weights[synonym] = max(weights.get(synonym, 0.0), _SYNONYM_WEIGHT)
            weights[stems[at]] = 1.0
        if weights:
            yield WordMeaning(at, weights)


def _phrase_meanings(
    words: Sequence[str], stems: Sequence[str]
) -> tuple[list[WordMeaning], set[int]]:
    """Return the meanings of the phrases in a text, and the places of their words."""
    meanings: list[WordMeaning] = []
    phrase_places: set[int] = set()
    stop_words = english_words().stop_words
    start = next((at for at, word in enumerate(words) if word not in _POLITE), 0)
    for saying, at in _sayings_in(stems, start):
        places = saying.phrase.places(stems, at)
        if places is None:
            continue
        meaning = WordMeaning(at, _weighed(saying.means, _PHRASE_WEIGHT))
        # A phrase at the start of a request says what to do. Its words also mean something by
        # themselves, and may be part of another phrase.
        if saying.phrase.only_at_start:
            meanings.append(meaning)
            continue
        # A word belongs to one phrase, the longest.
        if not phrase_places.isdisjoint(places):
            continue
        meanings.append(meaning)
        phrase_places.update(places)

        # Tools may also have the words of the phrase itself, but not those around a gap: "take"
        # and "off" say little without each other. The words of a phrase that means nothing are no
        # words of the request at all.
        if saying.phrase.has_gap or not saying.means:
            continue
        telling_places = [place for place in places if words[place] not in stop_words]
        meanings += [
            WordMeaning(place, {stems[place]: _WORD_IN_PHRASE_WEIGHT}) for place in telling_places
        ]
    return meanings, phrase_places


#: Words before what a person asks for: "could you please ...".
_POLITE = frozenset(
    """can could would will you please pls i we want need to lets let us me kindly hey hi the just
    now id like""".split()
)


def _sayings_in(stems: Sequence[str], start: int) -> list[tuple[Saying, int]]:
    """Return the sayings that may be in a text and where they would begin, the longest first.

    `start` is the index of the first word of the request, after "could you please".
    """
    by_first = english_words().sayings
    candidates: list[tuple[Saying, int]] = []
    for at, stem in enumerate(stems):
        sayings = by_first.get(stem, ())
        if at != start:
            sayings = tuple(each for each in sayings if not each.phrase.only_at_start)
        candidates += [(saying, at) for saying in sayings]
    return sorted(candidates, key=lambda each: -each[0].phrase.length)


def _weighed(stems: Sequence[str], weight: float) -> dict[str, float]:
    """Return the stems of a meaning with their weights: `weight` for the first two, then less."""
    weights = dict.fromkeys(stems[:2], weight)
    return weights | dict.fromkeys(stems[2:], weight * _LATER_WORD_SHARE)


#: Things that are recognized by how they are written, and the words for them.
_HINTS = tuple(
    (re.compile(pattern), words.split())
    for pattern, words in (
        (r"\S+@\S+\.\w+", "email user member invite address"),
        (r"(?<!\S)@\w+", "user member group"),
        (r"\b\d+\.\d+\.\d+\.\d+\b", "ip address record dns"),
        (r"(?<![@\w.])\w+(?:\.\w+)*\.(?:com|org|net|dev|io|app|example)\b", "domain website url"),
        (
            r"[$€£]\s?\d|\d\s?(?:dollars?|euros?|pounds|bucks)\b",
            "payment amount charge price refund",
        ),
        (r"(?<!\S)#[a-z]\w*", "channel conversation"),
        (r"(?<!\S)#\d+|\b[A-Z]{2,}-\d+", "issue ticket"),
        (r"\b[A-Z]{2,}_[A-Z_]+\b", "environment variable"),
        (r"\b\w+\.(?:pdf|docx?|xlsx?|png|jpe?g|txt|csv|zip)\b", "file document"),
        (r"\+\d{6,}|\b\d{3}-\d{4}\b", "phone number"),
        # A name inside a sentence, or after a title. Days and months are none.
        (
            r"(?:(?<=[a-z,] )|\b(?:Mr|Mrs|Ms|Dr)\.? )"
            r"(?!(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|January|February|March|April|May|June"
            r"|July|August|September|October|November|December)[A-Z][a-z]+\b",
            "user member person people customer",
        ),
    )
)


def _hints(text: str, position: int) -> Iterator[WordMeaning]:
    """Yield the meanings of the things in a text that are recognized by their form.

    All of them get this `position`.
    """
    for pattern, words in _HINTS:
        for _ in pattern.finditer(text):
            yield WordMeaning(position, {stem_of(word, "en"): _HINT_WEIGHT for word in words})


#: How a question begins that wants to know something.
_QUESTION = re.compile(
    r"(?:who|what|which|where|when|how|is|are|do|does|did|has|have|any|show|list)s?\b",
    re.IGNORECASE,
)
#: How a request begins that is a question for politeness alone: "could you delete it?".
_POLITE_QUESTION = re.compile(r"(?:can|could|would|will) (?:you|we|i)\b", re.IGNORECASE)
#: How people say that something is to end.
_END = re.compile(
    r"\b(?:no longer|any ?more|any longer|must not|shouldn.?t|d(?:on|oesn).?t want)\b",
    re.IGNORECASE,
)
#: How much a question asks for the action "read".
_QUESTION_WEIGHT = 2.0
#: How much a wish that something ends asks for the action "delete".
_END_WEIGHT = 1.5


def _wanted_actions(text: str, meanings: Sequence[WordMeaning]) -> dict[str, float]:
    """Return the actions that a text asks for, with their weights; the first words count most.

    `meanings` are those that contain a word for an action.
    """
    actions = english_words().actions
    wanted: dict[str, float] = defaultdict(float)
    stripped = text.strip()
    is_question = "?" in text or _QUESTION.match(stripped) is not None or " show " in text.lower()
    if is_question and not _POLITE_QUESTION.match(stripped):
        wanted["read"] += _QUESTION_WEIGHT
    if _END.search(text):
        wanted["delete"] += _END_WEIGHT
    for place, meaning in enumerate(meanings):
        # A word may mean several verbs. Those with nearly the largest weight count, so that the
        # later words of a meaning do as well. Their actions share what the word counts.
        verbs = {stem: weight for stem, weight in meaning.stems.items() if stem in actions}
        least_weight = max(verbs.values()) * _LATER_WORD_SHARE
        named = {actions[stem] for stem, weight in verbs.items() if weight >= least_weight}
        weight_of_place = 1 / (1 + place / 2)
        # Sorted, so that each process adds the actions in the same order.
        for action in sorted(named):
            wanted[action] += weight_of_place / len(named)
    return dict(wanted)
