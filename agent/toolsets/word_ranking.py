"""WordRanking: how well tools fit a text, by words.

The score is BM25F, a common formula of search engines, over the parts of a tool: its name, its
description and its parameters. `request_meaning.py` reads the text. A word of the text also matches
the words that mean the same in tools: "PR" matches "pull" and "request". Tools that do what the
text asks for (read, create, change, delete) count more.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from sayso.agent.providers.offline_words import words_of
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.english_words import english_words
from sayso.agent.toolsets.request_meaning import RequestMeaning, WordMeaning, meaning_of
from sayso.agent.toolsets.stems import stem_of
from sayso.channels.i18n.language import recognize


class _FieldNumbers(NamedTuple):
    """A number for each part of a tool. The parts are those of `_Fields`, in the same order."""

    name: float
    first_sentence: float
    description: float
    parameter_names: float
    parameter_descriptions: float


#: The weights of a word in the parts of a tool. All weights here were chosen on sixteen published
#: catalogs (`docs/explanation/performance.md`). Long descriptions mention many words in passing, so
#: a word there counts little.
_FIELD_WEIGHTS = _FieldNumbers(
    name=2.0,
    first_sentence=3.5,
    description=0.6,
    parameter_names=0.5,
    parameter_descriptions=0.1,
)
#: How much a word loses by the length of its part (BM25's b).
_LENGTH_PENALTIES = _FieldNumbers(
    name=0.8,
    first_sentence=0.8,
    description=0.4,
    parameter_names=0.4,
    parameter_descriptions=0.4,
)
#: The higher it is, the more a repeated word still adds (BM25's k1).
_SATURATION = 2.0
#: How much of the score of each further word counts, if a tool has several words for one meaning:
#: "pull request" for "PR".
_OTHER_WORDS_SHARE = 0.3
#: A word's rarity is a mix: this share comes from how many tools have any word of its meaning, in
#: any part. The rest comes from how many tools have this very word in their name or first sentence.
#: By the second alone, the least usual of several words for one meaning would win.
_MEANING_RARITY_SHARE = 0.8
#: By which share a tool's score grows if the tool does what the text asks for.
_SAME_ACTION_BONUS = 0.4
#: Which share of a tool's score remains if the tool does another thing.
_OTHER_ACTION_SHARE = 0.8
#: The share of a score that depends on how much of the tool's name the text mentions. Of two tools
#: with the same words in their names, the text means the one with fewer other words.
_NAME_SHARE = 0.5
#: Among how many first words of a name or a description the word is searched for that says what
#: the tool does.
_ACTION_PLACES = 3
#: Longest first sentence, in characters.
_MAX_SENTENCE_CHARS = 160
#: A first sentence of at least 12 characters, without its end.
_SENTENCE = re.compile(r"(.{12,}?)[.;:](?:\s|$)")
#: Words of names and descriptions that do not distinguish tools.
_FILLERS = frozenset(
    """a an the of for to in on by with and or from is are be this that it its as at if you
    your""".split()
)
#: Words of names that do not say what a tool is for. A request need not mention them.
_NAME_FILLERS = frozenset("id ids api v1 v2 v3 given specified".split())


class WordRanking:
    """The words of a list of tools, prepared for `scores`, which is called at each message.

    Immutable. One is made for each list of tools.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._count = len(tools)
        self._language = _language_of(tools)
        fields = [_fields_of(tool, self._language) for tool in tools]

        # A stem is rare if few tools have it in their name or first sentence. Descriptions mention
        # words in passing: a word of many descriptions may still tell names apart.
        tools_with_stem = Counter[str]()
        known_stems: set[str] = set()
        for each in fields:
            tools_with_stem.update({*each.name, *each.first_sentence})
            known_stems.update(*each)
        self._rarity = {stem: _rarity(tools_with_stem[stem], len(tools)) for stem in known_stems}

        #: For each stem, the indexes of the tools that have it, each with its frequency there.
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for index, frequencies in enumerate(_frequencies(fields)):
            for stem, frequency in frequencies.items():
                self._postings.setdefault(stem, []).append((index, frequency))

        #: The stems of the name of each tool, without fillers.
        name_fillers = {stem_of(word, self._language) for word in _NAME_FILLERS}
        self._names = [frozenset(each.name) - name_fillers for each in fields]
        #: What each tool does. Empty in other languages than English.
        self._actions: list[frozenset[str]] = []
        if self._language == "en":
            self._actions = [_actions_of(each) for each in fields]

    def scores(self, text: str) -> list[float]:
        """Return the score of each tool for a text, in the order of the tools.

        The score of a tool that has no word in common with the text is 0.
        """
        request = meaning_of(text, self._language)
        scores = [0.0] * self._count
        # The stems of each tool that the text mentions, by the same word or another for it.
        mentioned_stems: list[set[str]] = [set() for _ in range(self._count)]
        for meaning in request.meanings:
            word_scores: dict[int, list[float]] = {}
            for stem, index, score in self._matches(meaning):
                word_scores.setdefault(index, []).append(score)
                mentioned_stems[index].add(stem)

            # Of several words of a tool for one meaning, the best counts fully.
            for index, of_tool in word_scores.items():
                best = max(of_tool)
                scores[index] += best + _OTHER_WORDS_SHARE * (sum(of_tool) - best)

        adjusted = []
        for index, score in enumerate(scores):
            adjusted.append(self._adjusted(index, score, mentioned_stems[index], request))
        return adjusted

    def _matches(self, meaning: WordMeaning) -> Iterator[tuple[str, int, float]]:
        """Yield the stems that tools have for a meaning, each with the tool's index and its score.

        A meaning has several stems: those of synonyms, and those of each word of a phrase such as
        "pull request". A tool that has one of them matches.
        """
        postings = {stem: self._postings.get(stem, ()) for stem in meaning.stems}
        tools_with_meaning = {index for index, _ in chain.from_iterable(postings.values())}
        rarity_of_meaning = _MEANING_RARITY_SHARE * _rarity(len(tools_with_meaning), self._count)
        for stem, weight in meaning.stems.items():
            rarity_of_stem = (1 - _MEANING_RARITY_SHARE) * self._rarity.get(stem, 0.0)
            rarity = rarity_of_stem + rarity_of_meaning
            for index, frequency in postings[stem]:
                yield stem, index, weight * rarity * frequency

    def _adjusted(
        self,
        index: int,
        score: float,
        mentioned_stems: set[str],
        request: RequestMeaning,
    ) -> float:
        """Return a tool's score, changed by how much of its name is mentioned and what it does."""
        if not score:
            return 0.0
        # Sorted, so that each process adds the numbers in the same order: the order of a set
        # differs between processes, and with it the last digits of a sum.
        name = self._names[index]
        mentioned_share = 0.0
        if name:
            whole = sum(self._rarity[stem] for stem in sorted(name))
            mentioned = sum(self._rarity[stem] for stem in sorted(name & mentioned_stems))
            mentioned_share = mentioned / whole
        score *= 1 - _NAME_SHARE + _NAME_SHARE * mentioned_share

        actions = self._actions[index] if self._actions else frozenset()
        if not actions or not request.actions:
            return score
        # `request.actions` says how strongly the text asks for each action. The numbers are only
        # comparable within one text, so the action that it asks for most gets the whole bonus.
        fit = max(request.actions.get(action, 0.0) for action in actions)
        if not fit:
            return score * _OTHER_ACTION_SHARE
        return score * (1 + _SAME_ACTION_BONUS * fit / max(request.actions.values()))


def _rarity(occurrences: int, total: int) -> float:
    """Return the weight of a word by how many of all tools have it, more if fewer (BM25's idf)."""
    return math.log(1 + (total - occurrences + 0.5) / (occurrences + 0.5))


class _Fields(NamedTuple):
    """The stems of a tool's parts. The first sentence counts in `description` too."""

    name: tuple[str, ...]
    first_sentence: tuple[str, ...]
    description: tuple[str, ...]
    parameter_names: tuple[str, ...]
    parameter_descriptions: tuple[str, ...]


def _fields_of(tool: Tool, language: str) -> _Fields:
    """Return the stems of a tool's parts."""
    fillers = _FILLERS if language == "en" else frozenset()

    def stems(text: str) -> tuple[str, ...]:
        words = [word for word in words_of(text) if word not in fillers]
        return tuple(stem_of(word, language) for word in words)

    return _Fields(
        name=stems(tool.name),
        first_sentence=stems(_first_sentence(tool.description)),
        description=stems(tool.description),
        parameter_names=stems(" ".join(each.name for each in tool.parameters)),
        parameter_descriptions=stems(" ".join(each.description for each in tool.parameters)),
    )


def _first_sentence(description: str) -> str:
    """Return the first sentence of a description, or its first line if that has no end."""
    line, _, _ = description.strip().partition("\n")
    sentence = _SENTENCE.match(line)
    if sentence is not None:
        line = sentence[1]
    return line[:_MAX_SENTENCE_CHARS]


def _frequencies(documents: Sequence[_Fields]) -> Iterator[dict[str, float]]:
    """Yield the frequency of each stem in each tool, weighed by its field as BM25F does.

    `documents` are the fields of each tool.
    """
    mean_lengths = []
    for place in range(len(_Fields._fields)):
        lengths = [len(fields[place]) for fields in documents]
        mean_lengths.append(max(1.0, sum(lengths) / max(len(lengths), 1)))
    weights = tuple(zip(_FIELD_WEIGHTS, _LENGTH_PENALTIES, mean_lengths, strict=True))
    for fields in documents:
        frequencies: dict[str, float] = {}
        for stems, (weight, penalty, mean_length) in zip(fields, weights, strict=True):
            # A word of a long part counts less than one of a short part.
            weight_of_stem = weight / (1 - penalty + penalty * len(stems) / mean_length)
            for stem in stems:
                frequencies[stem] = frequencies.get(stem, 0.0) + weight_of_stem
        # Each further occurrence adds less than the one before.
        for stem, count in frequencies.items():
            frequencies[stem] = count * (_SATURATION + 1) / (count + _SATURATION)
        yield frequencies


def _actions_of(fields: _Fields) -> frozenset[str]:
    """Return what a tool does, by the first verb of its name and that of its first sentence.

    Two actions if these differ: the better fit for the request counts.
    """
    # What each verb does, by the verb's stem.
    actions = english_words().actions
    named_actions = set()
    for stems in (fields.name, fields.first_sentence):
        verbs = [stem for stem in stems[:_ACTION_PLACES] if stem in actions]
        if verbs:
            named_actions.add(actions[verbs[0]])
    return frozenset(named_actions)


def _language_of(tools: Sequence[Tool]) -> str:
    """Return the language of most descriptions, English where none is recognized.

    Names and requests are stemmed in this language, too, even if they are in another one. So a word
    has the same stem everywhere.
    """
    languages = Counter(filter(None, (recognize(tool.description) for tool in tools)))
    if languages:
        return languages.most_common(1)[0][0]
    return "en"
