"""Which tools a text means: match_tools compares its words with those of each tool.

`OfflineProvider`, which replaces a language model in demos and tests, calls it for each message of
a user. The same text and tools give the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sayso.agent.providers.base import ToolSchema
from sayso.agent.providers.offline_words import STOP_WORDS, stem, stems, tokens, words_of

#: General verbs, which match a tool only together with another word of its name.
WEAK_WORDS = frozenset(
    {"do", "get", "give", "look", "make", "run", "see", "set", "show", "tell", "use"}
)
#: The score of a word in a tool's name; a word in its description or parameters scores 1.
NAME_WEIGHT = 10
#: Negations. "Don't delete INV-42" contains every word of the request that it forbids.
_NEGATION = re.compile(
    r"\b(?:do|does|did|wo|would|should|must|could|have|has|was|were|is)n['\u2019]?t\b"
    r"|\bcan(?:no|['\u2019]?)t\b"
    r"|\b(?:do|does|did|will|would|shall|should|must|may|can|could|have|has) not\b"
    r"|\bnever\b",
    re.IGNORECASE,
)
#: Words of a text, and the verbs of tools that do the opposite. Otherwise "restore task 5", which has
#: the noun of `delete_task`, would call it. There is no such pair for "remove" and `add_note`, since
#: "remove" may be in the content of the note.
_OPPOSITES = (
    ("add create recover restore", "archive delete erase remove"),
    ("allow", "ban block deny"),
    ("ban block deny", "allow"),
    ("enable", "disable"),
    ("disable", "enable"),
    ("open reopen", "close"),
    ("close", "open reopen"),
    ("resume start", "pause stop"),
    ("pause stop", "resume start"),
)
#: Beginnings that reverse a word: "unblock", "deactivate", "disconnect".
_REVERSING_PREFIXES = ("un", "de", "dis")
#: Such a beginning with a hyphen behind it: "un-delete".
_PREFIX_WITH_HYPHEN = re.compile(r"\b(un|de|dis)-(?=\w)", re.IGNORECASE)
#: Stems of words that forbid the verb behind them: "not delete", "without deleting".
_FORBIDDING_STEMS = frozenset({"avoid", "not", "without"})
#: Stems of words that reverse the verb behind them, and its noun further on: "stop deleting", "cancel
#: the task deletion".
_UNDOING_STEMS = frozenset({"cancel", "revert", "stop", "undo"})
_OPPOSITE_STEMS = tuple((stems(words.split()), stems(verbs.split())) for words, verbs in _OPPOSITES)
_WEAK_STEMS = frozenset(stem(word) for word in WEAK_WORDS)


def match_tools(text: str, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
    """Return the tools that a text may mean.

    The list is empty if the text matches no tool, forbids something, or asks for the opposite. With
    several tools in it, only the user can say which one is meant.
    """
    # What is quoted is data and says nothing about the tool.
    unquoted = " ".join(token.text for token in tokens(text) if not token.is_quoted)
    if _NEGATION.search(unquoted):
        return []

    words = words_of(unquoted)
    ordered_stems = _stems_in_order(unquoted)
    matches = [_Match.of(words, tool) for tool in tools]
    candidates = [
        match for match in matches if match.is_named and not _says_opposite(ordered_stems, match)
    ]
    if not candidates:
        return []

    # Tools whose whole name is in the text win, those with the longest name. A name of one word is in
    # many sentences, so that word must be all that the text says.
    longest = max(_exact_words(match, words) for match in candidates)
    has_only_the_name = longest == 1 and len(_action_words(words)) == 1
    if longest > 1 or has_only_the_name:
        candidates = [match for match in candidates if _exact_words(match, words) == longest]

    best_score = max(match.score for match in candidates)
    best = [match for match in candidates if match.score == best_score]
    if len(best) == 1:
        # "invoice for good" has the same word of the names `delete_invoice` and `find_invoice`. If
        # "good" is in the description of one, this is no reason to call it: the user chooses.
        other_names = [match.name_stems for match in matches if match is not best[0]]
        if not best[0].differs_from(frozenset().union(*other_names)):
            hits = len(best[0].name_hits)
            best = [match for match in candidates if len(match.name_hits) == hits]
    return [match.tool for match in best]


@dataclass(frozen=True, slots=True)
class _Match:
    """How well a text matches a tool."""

    tool: ToolSchema
    #: The stems of the tool's name, without stop words.
    name_stems: frozenset[str]
    #: Those of them that the text contains.
    name_hits: frozenset[str]
    #: Whether the text contains all words of the name, stop words too: "up" in `look_up`.
    has_whole_name: bool
    #: How many stems of the tool the text contains; those of the name weigh more.
    score: int

    @classmethod
    def of(cls, words: Sequence[str], tool: ToolSchema) -> _Match:
        """Return how well the words of a text match a tool."""
        name_words = words_of(tool["name"])
        text_stems = stems(words)
        name_stems = stems(name_words)
        name_hits = name_stems & text_stems
        context_hits = (text_stems & stems(_context_words(tool))) - name_stems
        return cls(
            tool=tool,
            name_stems=name_stems,
            name_hits=name_hits,
            has_whole_name={stem(word) for word in name_words} <= {stem(word) for word in words},
            score=NAME_WEIGHT * len(name_hits) + len(context_hits),
        )

    @property
    def is_named(self) -> bool:
        """Return whether the text contains the tool's whole name, or a word of it that is not weak."""
        return bool(self.name_hits) and self.differs_from(frozenset())

    def differs_from(self, other_names: frozenset[str]) -> bool:
        """Return whether the text names this tool by more than what is in the names of others.

        That is its whole name, or a word of it that is neither weak nor in `other_names`, the stems
        of the other tools' names.
        """
        return self.has_whole_name or bool(self.name_hits - other_names - _WEAK_STEMS)


def _context_words(tool: ToolSchema) -> list[str]:
    """Return the words of a tool's description, parameters and choices."""
    words = words_of(str(tool.get("description", "")))
    for parameter, schema in tool.get("parameters", {}).get("properties", {}).items():
        words += words_of(parameter)
        for choice in schema.get("enum", ()):
            words += words_of(str(choice))
    return words


def _stems_in_order(text: str) -> list[str]:
    """Return the stems of a text in order, for `_says_opposite`.

    "un-delete" is one word here: as two words it would match `delete_task`. Stop words are left out
    except "not".
    """
    words = words_of(_PREFIX_WITH_HYPHEN.sub(r"\1", text))
    return [stem(word) for word in words if word == "not" or word not in STOP_WORDS]


def _says_opposite(ordered_stems: Sequence[str], match: _Match) -> bool:
    """Return whether a text, as its stems in order, forbids the tool or asks for its opposite."""
    if _reverses_verb(ordered_stems, match):
        return True

    other_stems = set(ordered_stems) - match.name_stems
    opposites: set[str] = set()
    for words, verbs in _OPPOSITE_STEMS:
        if other_stems & words:
            opposites |= verbs
    # Some verbs only look reversed: "sign" rules out `design_logo`. The user then reads which tools
    # there are, which is better than a wrong call.
    for prefix in _REVERSING_PREFIXES:
        opposites |= {word.removeprefix(prefix) for word in other_stems if word.startswith(prefix)}
        opposites |= {f"{prefix}{word}" for word in other_stems}

    # "Delete the task and add a note" has an opposite of "delete", and asks for `delete_task` all the
    # same. So only words of the name that the text lacks can be ruled out.
    missing_name_stems = match.name_stems - set(ordered_stems)
    return bool(opposites & missing_name_stems)


def _reverses_verb(ordered_stems: Sequence[str], match: _Match) -> bool:
    """Return whether a text has the verb or the noun of a tool behind a word that reverses it."""
    verb = stem(words_of(match.tool["name"])[0])
    undoing_stems = _UNDOING_STEMS - match.name_stems
    for index, word in enumerate(ordered_stems):
        following = ordered_stems[index + 1 :]
        if not following:
            break
        # The verb must be the next word: "stop the timer and delete task 5" asks for both.
        reverses_next_word = word in undoing_stems | _FORBIDDING_STEMS
        if reverses_next_word and following[0].startswith(verb):
            return True
        # A noun is longer than its verb: "deletion", "payment".
        has_noun = any(each != verb and each.startswith(verb) for each in following)
        if word in undoing_stems and has_noun:
            return True
    return False


def _exact_words(match: _Match, words: Sequence[str]) -> int:
    """Return how many words the tool's name has, if the text has them in a row, else 0.

    The words must be spelled the same. Stop words may stand between them: "delete the task" has the
    words of `delete_task`.
    """
    name = words_of(match.tool["name"])
    text = [word for word in words if word not in STOP_WORDS or word in name]
    starts = range(len(text) - len(name) + 1)
    if any(text[start : start + len(name)] == name for start in starts):
        return len(name)
    return 0


def _action_words(words: Sequence[str]) -> list[str]:
    """Return the words that say what to do: no stop words, and no identifiers or amounts."""
    meaningful = [word for word in words if word not in STOP_WORDS]
    return [word for word in meaningful if not any(map(str.isdigit, word))]
