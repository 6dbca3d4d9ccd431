"""WordRanking: how well tools fit a text, by words.

It is BM25 over the parts of a tool. A saying counts as the words that tools have for it, and tools
that do what the text asks for (read, create, change, delete) count more.

Tools have the words of an API ("revoke", "collaborator"), people have their own ("she should not
get in any more"). So each word or phrase of a text stands for a few words that tools may have for
it: itself, its synonyms, and what a saying means. The lists are in `english_words.toml`; they are
about English, not about the tools of any catalog.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain
from typing import NamedTuple

from sayso.agent.providers.offline import words_of
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.language import recognize

#: The weights of a word in a tool's name, its first sentence, the whole description, and the names
#: and descriptions of its parameters. All weights here were chosen on sixteen published catalogs
#: (`docs/explanation/performance.md`).
_FIELD_WEIGHTS = (2.0, 3.5, 0.6, 0.5, 0.1)
#: How much a field loses by its length (BM25's b): name and first sentence, then the longer ones.
_LENGTH_PENALTIES = (0.8, 0.8, 0.4, 0.4, 0.4)
#: How soon a repeated word stops to count (BM25's k1).
_SATURATION = 2.0
#: The weights of the words that a phrase, one word with a saying of its own, or a synonym stand
#: for; the word itself has 1. A saying's first two words are nearer than the others.
_PHRASE_WEIGHT = 1.0
_SAYING_WEIGHT = 0.75
_SYNONYM_WEIGHT = 0.5
_HINT_WEIGHT = 0.4
_LATER_WORD_SHARE = 0.8
#: How much of the score of each further word counts, if a tool has several words for one meaning:
#: "pull request" for "PR".
_OTHER_WORDS_SHARE = 0.3
#: How much the rarity of a meaning counts beside that of the word: all words for one meaning are
#: about as rare as the meaning. Otherwise the least usual one would win by its rarity alone.
_MEANING_RARITY_SHARE = 0.8
#: The weight of a word inside a phrase, such as "link" in "stop using the link".
_WORD_IN_PHRASE_WEIGHT = 0.5
#: The weight of the word that says what to do ("list ..."), as a word: what a tool does is compared
#: by itself.
_VERB_SHARE = 0.5
#: How much a tool's score grows if it does what the text asks for, and what is left if it does
#: another thing.
_SAME_ACTION_BONUS = 0.4
_OTHER_ACTION_SHARE = 0.8
#: The share of a score that depends on how much of the tool's name the text speaks of: of two tools
#: with the same words the one with fewer others is meant.
_NAME_SHARE = 0.5
#: Most words between the two parts of a phrase with a gap, such as "take it off".
_MAX_GAP = 5
#: How many words of a name or a description may come before the one that says what the tool does.
_ACTION_PLACES = 3
#: Longest first sentence, in characters.
_MAX_SENTENCE_CHARS = 160
_SENTENCE = re.compile(r"(.{12,}?)[.;:](?:\s|$)")
#: Words of names and descriptions that say nothing about a tool.
_FILLERS = frozenset(
    """a an the of for to in on by with and or from is are be this that it its as at if you
    your""".split()
)
#: Words of names that say nothing about what a tool is for.
_NAME_FILLERS = frozenset("id ids api v1 v2 v3 given specified".split())
#: Most stems that are cached. A catalog of a thousand tools has about 5,000 words.
_MAX_STEMS = 20_000
#: Snowball's names of the languages it has a stemmer for.
_STEMMERS = {
    "ar": "arabic", "de": "german", "en": "english", "es": "spanish", "fr": "french",
    "hi": "hindi", "id": "indonesian", "it": "italian", "nl": "dutch", "pt": "portuguese",
    "ru": "russian", "tr": "turkish",
}  # fmt: skip


class WordRanking:
    """The words of a list of tools. Immutable.

    It is made once for each list, since its scores are asked for at each message.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._count = len(tools)
        self._language = _language_of(tools)
        fields = [_fields_of(tool, self._language) for tool in tools]
        heads = [frozenset(each[0]) | frozenset(each[1]) for each in fields]
        in_heads = Counter(chain.from_iterable(heads))
        known = set(chain.from_iterable(chain.from_iterable(fields)))
        self._rarity = {stem: _rarity(in_heads[stem], len(tools)) for stem in known}
        #: For each stem, the tools that have it by their index, with its frequency there.
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for index, frequencies in enumerate(_frequencies(fields)):
            for stem, frequency in frequencies.items():
                self._postings.setdefault(stem, []).append((index, frequency))
        self._names = [frozenset(each[0]) - _NAME_FILLERS for each in fields]
        self._actions: list[frozenset[str]] = []
        if self._language == "en":
            self._actions = [_actions_of(each) for each in fields]

    def scores(self, text: str) -> list[float]:
        """Return the score of each tool for a text, in the order of the tools.

        It is 0 where they have no word in common.
        """
        request = _request(text, self._language)
        scores = [0.0] * self._count
        met_stems: list[set[str]] = [set() for _ in range(self._count)]
        for meaning in request.meanings:
            best: dict[int, float] = {}
            for stem, index, score in self._matches(meaning):
                former = best.get(index, 0.0)
                best[index] = max(former, score)
                scores[index] += _OTHER_WORDS_SHARE * min(former, score)
                met_stems[index].add(stem)
            for index, score in best.items():
                scores[index] += score
        return [
            self._adjusted(index, score, stems, request)
            for index, (score, stems) in enumerate(zip(scores, met_stems, strict=True))
        ]

    def _matches(self, meaning: _Meaning) -> Iterator[tuple[str, int, float]]:
        """Yield the stems that tools have for a meaning, each with the tool and its score."""
        postings = {stem: self._postings.get(stem, ()) for stem in meaning.stems}
        tools = {index for index, _ in chain.from_iterable(postings.values())}
        rarity = _rarity(len(tools), self._count)
        for stem, weight in meaning.stems.items():
            own = self._rarity.get(stem, 0.0)
            share = (1 - _MEANING_RARITY_SHARE) * own + _MEANING_RARITY_SHARE * rarity
            for index, frequency in postings[stem]:
                yield stem, index, weight * share * frequency

    def _adjusted(self, index: int, score: float, met_stems: set[str], request: _Request) -> float:
        """Return a tool's score by how much of its name was met, and by what it does."""
        if not score:
            return 0.0
        name = self._names[index]
        whole = sum(self._rarity[stem] for stem in sorted(name)) or 1.0
        covered = sum(self._rarity[stem] for stem in sorted(name & met_stems)) / whole
        score *= 1 - _NAME_SHARE + _NAME_SHARE * covered

        actions = self._actions[index] if self._actions else frozenset()
        if not actions or not request.actions:
            return score
        fit = max(request.actions.get(action, 0.0) for action in actions)
        if not fit:
            return score * _OTHER_ACTION_SHARE
        return score * (1 + _SAME_ACTION_BONUS * fit / max(request.actions.values()))


def _rarity(occurrences: int, total: int) -> float:
    """Return how much a word tells, by how many of all tools have it (BM25's idf)."""
    return math.log(1 + (total - occurrences + 0.5) / (occurrences + 0.5))


#: The stems of a tool's parts, in the order of _FIELD_WEIGHTS.
_Fields = tuple[tuple[str, ...], ...]


def _fields_of(tool: Tool, language: str) -> _Fields:
    texts = (
        tool.name,
        _first_sentence(tool.description),
        tool.description,
        " ".join(parameter.name for parameter in tool.parameters),
        " ".join(parameter.description for parameter in tool.parameters),
    )
    fillers = _FILLERS if language == "en" else frozenset()
    fields = []
    for text in texts:
        words = [word for word in words_of(text) if word not in fillers]
        fields.append(tuple(_stem(word, language) for word in words))
    return tuple(fields)


def _first_sentence(description: str) -> str:
    line = description.strip().partition("\n")[0]
    sentence = _SENTENCE.match(line)
    if sentence is not None:
        line = sentence[1]
    return line[:_MAX_SENTENCE_CHARS]


def _frequencies(documents: Sequence[_Fields]) -> Iterator[dict[str, float]]:
    """Yield how much each stem counts in each document: BM25F, which weighs it by its field."""
    means = []
    for place in range(len(_FIELD_WEIGHTS)):
        lengths = [len(fields[place]) for fields in documents]
        means.append(max(1.0, sum(lengths) / max(len(lengths), 1)))
    weights = tuple(zip(_FIELD_WEIGHTS, _LENGTH_PENALTIES, means, strict=True))
    for fields in documents:
        frequencies: dict[str, float] = {}
        for field, (weight, penalty, mean) in zip(fields, weights, strict=True):
            share = weight / (1 - penalty + penalty * len(field) / mean)
            for stem in field:
                frequencies[stem] = frequencies.get(stem, 0.0) + share
        for stem, count in frequencies.items():
            frequencies[stem] = count * (_SATURATION + 1) / (count + _SATURATION)
        yield frequencies


def _actions_of(fields: _Fields) -> frozenset[str]:
    """Return what a tool does, by the first word for it in its name and in its first sentence."""
    actions = english_words().actions
    found = set()
    for stems in fields[:2]:
        with_action = (stem for stem in stems[:_ACTION_PLACES] if stem in actions)
        first = next(with_action, None)
        if first is not None:
            found.add(actions[first])
    return frozenset(found)


class _Meaning(NamedTuple):
    """What tools may call one word or phrase of a text: weights of stems, and where it stands."""

    position: int
    stems: dict[str, float]


class _Request(NamedTuple):
    """A text: what its words mean, and what it asks for, as weights of actions."""

    meanings: list[_Meaning]
    actions: dict[str, float]


@lru_cache(maxsize=64)
def _request(text: str, language: str) -> _Request:
    """Return what a text means. In other languages than English each word is only itself."""
    words = words_of(_APOSTROPHE.sub("", text))
    if language != "en":
        stems = [_stem(word, language) for word in words]
        return _Request([_Meaning(at, {stem: 1.0}) for at, stem in enumerate(stems)], {})
    meanings = [*_meanings(words), *_hints(text, len(words))]
    meanings.sort(key=lambda each: each.position)
    actions = english_words().actions
    with_verbs = [each for each in meanings if not actions.keys().isdisjoint(each.stems)]
    wanted = _wanted_actions(text, with_verbs)
    for meaning in with_verbs:
        if meaning.position == with_verbs[0].position:
            for stem in actions.keys() & meaning.stems.keys():
                meaning.stems[stem] *= _VERB_SHARE
    return _Request(meanings, wanted)


_APOSTROPHE = re.compile("['\u2019]")


def _meanings(words: Sequence[str]) -> Iterator[_Meaning]:
    """Yield the meanings of the phrases in a text, then those of the words outside them."""
    stems = [_stem(word, "en") for word in words]
    phrase_places: set[int] = set()
    yield from _phrase_meanings(words, stems, phrase_places)
    english = english_words()
    for at, word in enumerate(words):
        if at in phrase_places:
            continue
        meant = english.words.get(stems[at], ())
        weights = _weighed(meant, _SAYING_WEIGHT)
        if word not in english.stop_words:
            for synonym in english.synonyms.get(stems[at], ()):
                weights[synonym] = max(weights.get(synonym, 0.0), _SYNONYM_WEIGHT)
            weights[stems[at]] = 1.0
        if weights:
            yield _Meaning(at, weights)


def _phrase_meanings(
    words: Sequence[str],
    stems: Sequence[str],
    phrase_places: set[int],
) -> Iterator[_Meaning]:
    """Yield the meanings of the phrases in a text; add the places of their words to `phrase_places`."""
    stop_words = english_words().stop_words
    start = next((at for at, word in enumerate(words) if word not in _POLITE), 0)
    for saying, at in _sayings_in(stems, start):
        places = saying.places(stems, at)
        if places is None:
            continue
        is_taken = not phrase_places.isdisjoint(places)
        if is_taken and not saying.opens:
            continue
        yield _Meaning(at, _weighed(saying.means, _PHRASE_WEIGHT))
        if saying.opens:
            continue
        phrase_places.update(places)
        if saying.tail or not saying.means:
            continue
        for place in places:
            if words[place] not in stop_words:
                yield _Meaning(place, {stems[place]: _WORD_IN_PHRASE_WEIGHT})


#: Words before what a person asks for: "could you please ...".
_POLITE = frozenset(
    """can could would will you please pls i we want need to lets let us me kindly hey hi the just
    now id like""".split()
)


def _sayings_in(stems: Sequence[str], start: int) -> list[tuple[Saying, int]]:
    """Return the phrases that may be in a text and where they would begin, the longest first."""
    by_first = english_words().phrases
    found: list[tuple[Saying, int]] = []
    for at, stem in enumerate(stems):
        sayings = by_first.get(stem, ())
        found += [(saying, at) for saying in sayings if not saying.opens or at == start]
    return sorted(found, key=lambda each: -each[0].length)


def _weighed(stems: Sequence[str], weight: float) -> dict[str, float]:
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


def _hints(text: str, position: int) -> Iterator[_Meaning]:
    for pattern, words in _HINTS:
        for _ in pattern.finditer(text):
            yield _Meaning(position, {_stem(word, "en"): _HINT_WEIGHT for word in words})


#: How a question begins that wants to know something, and a request that only looks polite.
_QUESTION = re.compile(
    r"(?:who|what|which|where|when|how|is|are|do|does|did|has|have|any|show|list)s?\b",
    re.IGNORECASE,
)
_POLITE_QUESTION = re.compile(r"(?:can|could|would|will) (?:you|we|i)\b", re.IGNORECASE)
#: How people say that something is to end.
_END = re.compile(
    r"\b(?:no longer|any ?more|any longer|must not|shouldn.?t|d(?:on|oesn).?t want)\b",
    re.IGNORECASE,
)
_QUESTION_WEIGHT = 2.0
_END_WEIGHT = 1.5


def _wanted_actions(text: str, meanings: Sequence[_Meaning]) -> dict[str, float]:
    """Return what a text asks for, as weights of actions; the first words count most.

    `meanings` are those that have a word for an action.
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
        verbs = {stem: weight for stem, weight in meaning.stems.items() if stem in actions}
        near = max(verbs.values()) * _LATER_WORD_SHARE
        kinds = sorted({actions[stem] for stem, weight in verbs.items() if weight >= near})
        for kind in kinds:
            wanted[kind] += 1 / (1 + place / 2) / len(kinds)
    return dict(wanted)


@dataclass(frozen=True, slots=True)
class Saying:
    """A phrase that people use, and the stems of what tools call it.

    `tail` is what follows a gap of up to _MAX_GAP words ("take the label off"), empty if there is
    none. One that `opens` is only meant at the start of a text, where a noun may be a verb: "text
    Anna that ...".
    """

    head: tuple[str, ...]
    tail: tuple[str, ...]
    opens: bool
    means: tuple[str, ...]

    @property
    def length(self) -> int:
        """The number of its words."""
        return len(self.head) + len(self.tail)

    def places(self, stems: Sequence[str], at: int) -> list[int] | None:
        """Return the places of its words in a text, if it begins at this place."""
        end = at + len(self.head)
        if tuple(stems[at:end]) != self.head:
            return None
        if not self.tail:
            return list(range(at, end))
        for begin in range(end + 1, end + 1 + _MAX_GAP):
            if tuple(stems[begin : begin + len(self.tail)]) == self.tail:
                return [*range(at, end), *range(begin, begin + len(self.tail))]
        return None


@dataclass(frozen=True, slots=True)
class EnglishWords:
    """The lists of `english_words.toml`, by stems. `phrases` are found by their first stem."""

    stop_words: frozenset[str]
    actions: Mapping[str, str]
    synonyms: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, ...]]
    phrases: Mapping[str, tuple[Saying, ...]]


@cache
def english_words() -> EnglishWords:
    """Return the lists, read once."""
    text = files("sayso.agent.toolsets").joinpath("english_words.toml").read_text(encoding="utf-8")
    lists = tomllib.loads(text)
    actions: dict[str, str] = {}
    for action, verbs in lists["actions"].items():
        for verb in verbs.split():
            actions.setdefault(_stem(verb, "en"), action)
    synonyms: dict[str, dict[str, None]] = {}
    for line in lists["synonyms"].strip().splitlines():
        group = [_stem(word, "en") for word in line.split()]
        for stem in group:
            others = [each for each in group if each != stem]
            synonyms.setdefault(stem, {}).update(dict.fromkeys(others))
    words, phrases = _sayings(lists["sayings"])
    return EnglishWords(
        stop_words=frozenset(lists["stop_words"].split()),
        actions=actions,
        synonyms={stem: tuple(others) for stem, others in synonyms.items()},
        words=words,
        phrases=phrases,
    )


def _sayings(lines: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[Saying, ...]]]:
    """Return what single words stand for, and the phrases by their first stem."""
    #: The meanings by phrase. One phrase may stand in several lines.
    means: dict[_Phrase, dict[str, None]] = {}
    for line in lines.strip().splitlines():
        phrases_of_line, _, meaning = line.partition(":")
        stems = [_stem(word, "en") for word in meaning.split()]
        for text in phrases_of_line.split(","):
            means.setdefault(_phrase(text.strip()), {}).update(dict.fromkeys(stems))

    words: dict[str, tuple[str, ...]] = {}
    phrases: dict[str, tuple[Saying, ...]] = {}
    for phrase, meant_stems in means.items():
        first = phrase.head[0]
        if len(phrase.head) == 1 and not phrase.tail and not phrase.opens:
            words[first] = tuple(meant_stems)
            continue
        saying = Saying(phrase.head, phrase.tail, phrase.opens, tuple(meant_stems))
        phrases[first] = (*phrases.get(first, ()), saying)
    return words, phrases


class _Phrase(NamedTuple):
    """A phrase of the list, by stems. Saying explains its parts."""

    head: tuple[str, ...]
    tail: tuple[str, ...]
    opens: bool


def _phrase(text: str) -> _Phrase:
    """Return a phrase as the list writes it: `^` before one that opens a text, `~` for a gap."""
    head, _, tail = text.removeprefix("^").partition("~")
    return _Phrase(_stems_of(head), _stems_of(tail), text.startswith("^"))


def _stems_of(text: str) -> tuple[str, ...]:
    return tuple(_stem(word, "en") for word in words_of(_APOSTROPHE.sub("", text)))


def _language_of(tools: Sequence[Tool]) -> str:
    """Return the language of most descriptions, English where none is recognized."""
    languages = Counter(filter(None, (recognize(tool.description) for tool in tools)))
    return languages.most_common(1)[0][0] if languages else "en"


@lru_cache(maxsize=_MAX_STEMS)
def _stem(word: str, language: str) -> str:
    """Return the stem of a word; the word itself in a language without a stemmer."""
    if language not in _STEMMERS:
        return word
    from snowballstemmer import stemmer  # imported late: two dozen modules, for this selector only

    # A new one each time, since a stemmer is not thread-safe.
    stem: str = stemmer(_STEMMERS[language]).stemWord(word)
    return stem
