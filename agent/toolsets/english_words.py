"""What English words and sayings mean for a search of tools: the lists of `english_words.toml`.

The lists are about English, not about the tools of any catalog.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from sayso.agent.toolsets.stems import spoken_words, stem_of

#: Most words between the two parts of a phrase with a gap, such as "take it off".
_MAX_GAP = 5


@dataclass(frozen=True, slots=True)
class Phrase:
    """One or more words of a text, by their stems.

    `tail` is what follows a gap of up to _MAX_GAP words ("take the label off"), empty if there is
    none. A phrase with `only_at_start` means nothing elsewhere in a text: "text" is a verb in
    "text Anna that ...", and a noun in most other places.
    """

    head: tuple[str, ...]
    tail: tuple[str, ...] = ()
    only_at_start: bool = False

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


class Saying(NamedTuple):
    """A phrase that people use, and the stems of what tools call it."""

    phrase: Phrase
    means: tuple[str, ...]


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
            actions.setdefault(stem_of(verb, "en"), action)
    synonyms: dict[str, dict[str, None]] = {}
    for line in lists["synonyms"].strip().splitlines():
        group = [stem_of(word, "en") for word in line.split()]
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
    means: dict[Phrase, dict[str, None]] = {}
    for line in lines.strip().splitlines():
        phrases_of_line, _, meaning = line.partition(":")
        stems = [stem_of(word, "en") for word in meaning.split()]
        for text in phrases_of_line.split(","):
            means.setdefault(_phrase(text.strip()), {}).update(dict.fromkeys(stems))

    words: dict[str, tuple[str, ...]] = {}
    phrases: dict[str, tuple[Saying, ...]] = {}
    for phrase, meant_stems in means.items():
        first = phrase.head[0]
        if phrase == Phrase((first,)):
            words[first] = tuple(meant_stems)
            continue
        saying = Saying(phrase, tuple(meant_stems))
        phrases[first] = (*phrases.get(first, ()), saying)
    return words, phrases


def _phrase(text: str) -> Phrase:
    """Return a phrase as the list writes it: `^` before one that opens a text, `~` for a gap."""
    head, _, tail = text.removeprefix("^").partition("~")
    return Phrase(_stems_of(head), _stems_of(tail), text.startswith("^"))


def _stems_of(text: str) -> tuple[str, ...]:
    return tuple(stem_of(word, "en") for word in spoken_words(text))
