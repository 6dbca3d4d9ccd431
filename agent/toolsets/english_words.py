"""What English words and sayings mean for a search of tools: the lists of `english_words.toml`.

A saying is a phrase that people use, with the words that tools have for it: "get rid of" means
delete. Words are compared by their stems (`stems.py`), except stop words. The lists are about
English, not about the tools of any catalog. `request_meaning.py` uses them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from sayso.agent.toolsets.stems import request_words, stem_of

#: The most words between the two parts of a phrase with a gap. "take it off" has one there.
_MAX_GAP = 5


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase to find in a text: the stems of its words.

    A phrase may have a gap, as "take ~ off" has in "take the label off". "take off" is a phrase of
    its own in the list.
    """

    #: The words before the gap, or all words of a phrase without a gap. At least one.
    head: tuple[str, ...]
    #: The words that follow after 1 to _MAX_GAP other words; empty for a phrase without a gap.
    tail: tuple[str, ...] = ()
    #: Whether the phrase has its meaning only at the beginning of a request: "text" is a verb in
    #: "text Anna that ...", and a noun in most other places.
    only_at_start: bool = False

    @property
    def has_gap(self) -> bool:
        """Whether other words stand between its words: "take ~ off"."""
        return bool(self.tail)

    @property
    def length(self) -> int:
        """The number of its words. A longer saying goes before a shorter one."""
        return len(self.head) + len(self.tail)

    def places(self, stems: Sequence[str], at: int) -> list[int] | None:
        """Return the indexes of the phrase's words in `stems`, None unless it begins at `at`.

        A caller knows where the request begins, so it checks `only_at_start` itself.
        """
        end = at + len(self.head)
        if tuple(stems[at:end]) != self.head:
            return None
        if not self.has_gap:
            return list(range(at, end))
        for begin in range(end + 1, end + 1 + _MAX_GAP):
            if tuple(stems[begin : begin + len(self.tail)]) == self.tail:
                return [*range(at, end), *range(begin, begin + len(self.tail))]
        return None


class Saying(NamedTuple):
    """A phrase that people use, and the stems of the words that tools have for it."""

    phrase: Phrase
    means: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EnglishWords:
    """The lists of `english_words.toml`, by stems. Read once per process."""

    #: Words that mean nothing for a search, unless they are part of a saying, such as "of" in "get
    #: rid of". They are whole words, because other words may have the same stem.
    stop_words: frozenset[str]
    #: What each verb asks for: read, create, change or delete.
    actions: Mapping[str, str]
    #: The words that mean nearly the same as a word: all that share a line of the list with it.
    synonyms: Mapping[str, tuple[str, ...]]
    #: The meanings of the sayings that are one word, by its stem.
    word_meanings: Mapping[str, tuple[str, ...]]
    #: All other sayings, by the first stem of their phrase, in the order of the list.
    sayings: Mapping[str, tuple[Saying, ...]]


@cache
def english_words() -> EnglishWords:
    """Return the lists, read once."""
    text = files("sayso.agent.toolsets").joinpath("english_words.toml").read_text(encoding="utf-8")
    lists = tomllib.loads(text)

    actions: dict[str, str] = {}
    for action, verbs in lists["actions"].items():
        for verb in verbs.split():
            # A verb in two lists has the action of the first one.
            actions.setdefault(stem_of(verb, "en"), action)

    # The inner dicts are sets that keep the order of the lists.
    synonyms: dict[str, dict[str, None]] = {}
    for line in lists["synonyms"].strip().splitlines():
        group = [stem_of(word, "en") for word in line.split()]
        for stem in group:
            others = [each for each in group if each != stem]
            synonyms.setdefault(stem, {}).update(dict.fromkeys(others))

    word_meanings, sayings = _sayings(lists["sayings"])
    return EnglishWords(
        stop_words=frozenset(lists["stop_words"].split()),
        actions=actions,
        synonyms={stem: tuple(others) for stem, others in synonyms.items()},
        word_meanings=word_meanings,
        sayings=sayings,
    )


def _sayings(lines: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[Saying, ...]]]:
    """Return the meanings of single words, and the other sayings by the first stem of their phrase.

    A line of the list is "phrase, phrase: meaning". The meaning is words of tools, the nearest ones
    first. It is empty for phrases that say nothing about a tool.
    """
    # The stems of the meaning, by phrase. One phrase may be in several lines. The inner dicts are
    # sets that keep the order.
    meanings: dict[Phrase, dict[str, None]] = {}
    for line in lines.strip().splitlines():
        phrases_of_line, _, meaning = line.partition(":")
        stems = [stem_of(word, "en") for word in meaning.split()]
        for text in phrases_of_line.split(","):
            meanings.setdefault(_phrase(text.strip()), {}).update(dict.fromkeys(stems))

    word_meanings: dict[str, tuple[str, ...]] = {}
    sayings: dict[str, tuple[Saying, ...]] = {}
    for phrase, stems_of_meaning in meanings.items():
        first = phrase.head[0]
        # One word, without a gap, that counts anywhere in a request.
        if phrase == Phrase((first,)):
            word_meanings[first] = tuple(stems_of_meaning)
            continue
        saying = Saying(phrase, tuple(stems_of_meaning))
        sayings[first] = (*sayings.get(first, ()), saying)
    return word_meanings, sayings


def _phrase(text: str) -> Phrase:
    """Return the phrase that the list writes as `text`.

    It begins with `^` if it counts only at the start of a request. One `~` in it is a gap.
    """
    head, _, tail = text.removeprefix("^").partition("~")
    return Phrase(_stems_of(head), _stems_of(tail), only_at_start=text.startswith("^"))


def _stems_of(text: str) -> tuple[str, ...]:
    """Return the stems of a phrase, whose words are cut as those of a person's message."""
    return tuple(stem_of(word, "en") for word in request_words(text, "en"))
