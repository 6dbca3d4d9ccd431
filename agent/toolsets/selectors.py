"""Tool selectors: which tools a model sees in a step, by keywords, by roles, and combined."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import ClassVar, Literal, Protocol, runtime_checkable

from sayso.agent.messages import Message, Role
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.language import recognize
from sayso.pending.proposals import current_user_ids

log = logging.getLogger(__name__)
#: Time limit of a selector, in seconds. One that asks others has `select_seconds = None`: theirs count.
SELECT_SECONDS = 30.0


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses tools for the next model call. A tool left out cannot be called in that step either (seed)."""

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the subset of `tools` for this step of the conversation; their order does not matter."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors that are near each other if the texts mean the same."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector per text, in their order, all of one length. May raise anything."""
        ...


async def narrow(selector: ToolSelector, messages: Iterable[Message], tools: Iterable[Tool]) -> list[Tool]:
    """Return the given tools that the selector chose, in the order given. Never raises.

    A selector that fails, or takes longer than SELECT_SECONDS, shows no tool: an error must not grant access. One that
    only keeps noise away catches its errors itself, or is wrapped in `FailOpen`.
    """
    given = list(tools)
    try:
        return await _select(selector, messages, given)
    except (Exception, SystemExit):  # a selector may be third-party code, and the turn must be answered
        advice = "no tool is shown while it fails: mend it, or wrap it in FailOpen if it restricts nobody"
        log.warning("selector.failed", exc_info=True, extra={"selector": type(selector).__name__, "advice": advice})
        return []


async def _select(selector: ToolSelector, messages: Iterable[Message], given: list[Tool]) -> list[Tool]:
    """Return `narrow`'s result, but raise what the selector raises, TimeoutError, and errors of a malformed result."""
    async with asyncio.timeout(getattr(selector, "select_seconds", SELECT_SECONDS)):
        names = {tool.name for tool in await selector.select(list(messages), list(given))}
    return [tool for tool in given if tool.name in names]


class AllOf:
    """Selects the tools that all its selectors choose: each is given those that the one before it left."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that all chose; none if a selector fails."""
        history, left = list(messages), list(tools)
        for selector in self.selectors:
            left = await narrow(selector, history, left) if left else []
        return left


class AnyOf:
    """Selects the tools that at least one of its selectors chooses. One that fails adds nothing."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that any of them chose, in the order given."""
        history, given = list(messages), list(tools)
        names = {tool.name for selector in self.selectors for tool in await narrow(selector, history, given)}
        return [tool for tool in given if tool.name in names]


class Always:
    """Selects what a selector chooses, and always the tools of these names or patterns (`find_*`).

    It adds only tools that it was given: behind roles, in `AllOf`, none that the role must not use.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector, names: Iterable[str]) -> None:
        self.selector = selector
        self.names = tuple(names)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the selector chose, and those that are always shown."""
        given = list(tools)
        names = {tool.name for tool in await narrow(self.selector, messages, given)}
        return [tool for tool in given if tool.name in names or self.always_shows(tool)]

    def always_shows(self, tool: Tool) -> bool:
        """Return whether this tool is always shown."""
        return any(fnmatchcase(tool.name, name) for name in self.names)


class FailOpen:
    """Shows all tools while its selector fails, with one warning until it works again.

    Never use it for a selector that restricts what somebody may use.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector) -> None:
        self.selector = selector
        self._failing = False

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the selector chose, else all."""
        given = list(tools)
        try:
            selected = await _select(self.selector, messages, given)
        except (Exception, SystemExit):  # catching them is the purpose of this class
            if not self._failing:
                name = type(self.selector).__name__
                log.warning("selector.failed", exc_info=True, extra={"selector": name, "advice": "all tools are shown"})
            self._failing = True
            return given
        self._failing = False
        return selected


#: Returns the role of the current user; async if it has to ask a service.
RoleFunction = Callable[[], str | Awaitable[str | None] | None]


class RoleBasedSelector:
    """Selects tools by role (seed): exactly those of `allowed`, by default the class's `ALLOWED_TOOLS`.

    `role` is a role, or a function that returns the current user's role, sync or async. Names of tools may be patterns
    (`find_*`); the case of roles is ignored. An unknown role may use no tool, and while the function raises, nobody may
    use any: `narrow` ensures that.
    """

    #: The tools of each role; subclasses may set it.
    ALLOWED_TOOLS: ClassVar[Mapping[str, Collection[str]]] = {
        "admin": {"write_file", "delete_file", "shell"},
        "editor": {"write_file", "read_file"},
        "viewer": {"read_file"},
    }

    def __init__(self, role: str | RoleFunction, *, allowed: Mapping[str, Collection[str]] | None = None) -> None:
        self.role = role.lower() if isinstance(role, str) else role
        self.allowed = _patterns_by_role(self.ALLOWED_TOOLS if allowed is None else allowed)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the role may use, whatever the messages say."""
        patterns = self.allowed.get(await self.current_role(), ())
        return [tool for tool in tools if any(fnmatchcase(tool.name, pattern) for pattern in patterns)]

    async def current_role(self) -> str:
        """Return the current user's role in lower case; "" for none. Raises what the role function raises."""
        role = self.role if isinstance(self.role, str) else self.role()
        return ((await role if inspect.isawaitable(role) else role) or "").lower()


def role_of(selector: object) -> Callable[[], str]:
    """Return a function that returns the current user's role, for `ToolContext`; "" where no role is configured.

    Looks into combined selectors. The role of an async function is not known here.
    """
    by_role = next(_role_selectors_in(selector), None)

    def role() -> str:
        if by_role is None:
            return ""
        value = by_role.role if isinstance(by_role.role, str) else by_role.role()
        if inspect.iscoroutine(value):
            value.close()
        return value.lower() if isinstance(value, str) else ""

    return role


def _role_selectors_in(selector: object) -> Iterator[RoleBasedSelector]:
    if isinstance(selector, RoleBasedSelector):
        yield selector
    inside = [getattr(selector, "selector", None), *getattr(selector, "selectors", ())]
    for each in inside:
        if each is not None:
            yield from _role_selectors_in(each)


def _patterns_by_role(allowed: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Return the patterns by lower-case role. Raises ValueError for a role given twice, or text instead of a list."""
    by_role: dict[str, tuple[str, ...]] = {}
    for role, patterns in allowed.items():
        if isinstance(patterns, str):
            raise ValueError(f"the tools of role {role!r} are {patterns!r}: give a list, such as ['find_*']")
        if role.lower() in by_role:
            raise ValueError(f"role {role!r} is given twice, in upper and lower case: keep one")
        by_role[role.lower()] = tuple(patterns)
    return by_role


@dataclass(frozen=True, slots=True)
class UserRoles:
    """A role function: returns the current user's role by their platform ids, the main id first.

    A user who is not listed has the `default`; "" is no role.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def __call__(self) -> str:
        """Return the current user's role."""
        return next((self.users[name] for name in current_user_ids() if name in self.users), self.default)


#: Whether a tool is shown or hidden whatever the user writes, or depends on the text.
Visibility = Literal["shown", "hidden", "depends"]


async def would_show(selector: ToolSelector | None, tool: Tool) -> Visibility:
    """Return whether the current user's runs show the tool. A role that cannot be determined hides it."""
    match selector:
        case None:
            return "shown"
        case RoleBasedSelector():
            return await _visibility_by_role(selector, tool)
        case Always():
            return "shown" if selector.always_shows(tool) else await would_show(selector.selector, tool)
        case FailOpen():
            return await would_show(selector.selector, tool)
        case AllOf():
            return _visibility_in_all({await would_show(each, tool) for each in selector.selectors})
        case AnyOf():
            return _visibility_in_any({await would_show(each, tool) for each in selector.selectors})
    return "depends"


async def roles_in(selector: ToolSelector | None) -> list[str]:
    """Return the current user's role in each role selector inside this one, without those that cannot be determined."""
    match selector:
        case RoleBasedSelector():
            try:
                return [await selector.current_role()]
            except Exception:  # a role function may raise anything
                return []
        case Always() | FailOpen():
            return await roles_in(selector.selector)
        case AllOf() | AnyOf():
            return [role for each in selector.selectors for role in await roles_in(each)]
    return []


async def _visibility_by_role(selector: RoleBasedSelector, tool: Tool) -> Visibility:
    try:
        return "shown" if tool in list(await selector.select([], [tool])) else "hidden"
    except Exception:  # as in a turn: nothing is shown
        return "hidden"


def _visibility_in_all(parts: set[Visibility]) -> Visibility:
    if "hidden" in parts:
        return "hidden"
    return "depends" if "depends" in parts else "shown"


def _visibility_in_any(parts: set[Visibility]) -> Visibility:
    if "shown" in parts:
        return "shown"
    return "depends" if "depends" in parts else "hidden"


#: How Unicode's names of letters begin in scripts without spaces between words, where any character may end a word.
_SCRIPTS_WITHOUT_SPACES = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "TIBETAN",
    "HALFWIDTH KATAKANA",
)


def has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word as a whole word, in any script."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (_joins(text[start - 1 : start], word[0]) or _joins(word[-1], text[end : end + 1])):
            return True
        start = text.find(word, start + 1)
    return False


def needs_no_space(char: str) -> bool:
    """Return whether this letter's script has no spaces between words."""
    return not char.isascii() and unicodedata.name(char, "").startswith(_SCRIPTS_WITHOUT_SPACES)


def _joins(left: str, right: str) -> bool:
    """Return whether two adjacent characters belong to one word."""
    return all(map(_is_word_character, (left, right))) and not any(map(needs_no_space, (left, right)))


def _is_word_character(char: str) -> bool:
    """Return whether it is a letter, a digit or a sign that combines with them, such as vowels in Devanagari."""
    return bool(char) and (unicodedata.category(char)[0] in "LNM" or char == "_")


class KeywordSelector:
    """Selects tools by words in the latest message (seed); case is ignored, in tool names too.

    Without messages no tool is shown; if the latest message is not the user's, such as a tool's result, all are; if
    nothing matches, none. A keyword counts anywhere in the text, "file" in "profile" too; with `whole_words` only as a
    whole word, in scripts that have spaces between words. Raises ValueError for keywords that are no lists.
    """

    def __init__(self, keywords: Mapping[str, Sequence[str]], *, whole_words: bool = False) -> None:
        for name, words in keywords.items():
            if isinstance(words, str) or not all(isinstance(word, str) and word.strip() for word in words):
                raise ValueError(f"keywords of {name!r} are {words!r}: give a list of words, such as ['file', 'save']")
        self.keywords = {name.lower(): list(words) for name, words in keywords.items()}
        self.whole_words = whole_words

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools with a keyword in the latest message."""
        history = list(messages)
        if not history:
            return []
        if history[-1].role != Role.USER:
            return tools
        text = history[-1].content.lower()
        return [tool for tool in tools if self._matches(text, tool)]

    def _matches(self, text: str, tool: Tool) -> bool:
        keywords = (word.lower() for word in self.keywords.get(tool.name.lower(), []))
        return any(has_word(text, word) if self.whole_words else word in text for word in keywords)


_NOT_WORDS = re.compile(r"[\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; snake_case and camelCase are several words."""
    return _NOT_WORDS.sub(" ", _CAMEL_CASE.sub(" ", unicodedata.normalize("NFKC", text))).casefold().split()


#: The usual constants of BM25 (k1, b): how soon repeated words stop to count, and how much long texts lose.
_SATURATION, _LENGTH_PENALTY = 1.2, 0.75
#: The weight of a synonym; the word itself has 1.
_SYNONYM_WEIGHT = 0.5
#: Most texts whose stems are cached.
_MAX_CACHED_TEXTS = 4096
#: Snowball's names of the languages it has a stemmer for.
_STEMMERS = {
    "ar": "arabic", "de": "german", "en": "english", "es": "spanish", "fr": "french", "hi": "hindi", "id": "indonesian",
    "it": "italian", "nl": "dutch", "pt": "portuguese", "ru": "russian", "tr": "turkish",
}  # fmt: skip


def bm25_scores(query: str, texts: Sequence[str]) -> list[float]:
    """Return the BM25 score of each text for the query, 0 where they share no word.

    Words are compared by their stems, in the language of most texts, English where none is recognized. English synonyms
    match each other, too.
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
        sum(weight * _saturated(document[term], length / mean) for term, weight in weights.items() if term in document)
        for document, length in zip(documents, lengths, strict=True)
    ]


def _saturated(count: int, relative_length: float) -> float:
    penalty = _SATURATION * (1 - _LENGTH_PENALTY + _LENGTH_PENALTY * relative_length)
    return count * (_SATURATION + 1) / (count + penalty)


def _query_terms(query: str, language: str) -> Mapping[str, float]:
    """Return the weight of each stem to look for."""
    weights = dict.fromkeys(_terms(query, language), 1.0)
    if language != "en":
        return weights
    synonyms = {synonym: _SYNONYM_WEIGHT for term in weights for synonym in _synonyms().get(term, ())}
    return synonyms | weights


@lru_cache(maxsize=64)
def _language(texts: tuple[str, ...]) -> str:
    languages = Counter(filter(None, map(recognize, texts)))
    return languages.most_common(1)[0][0] if languages else "en"


@lru_cache(maxsize=_MAX_CACHED_TEXTS)
def _terms(text: str, language: str) -> tuple[str, ...]:
    """Return the stems of the words in a text, without stop words."""
    return _stems([word for word in words_of(text) if language != "en" or word not in _stop_words()], language)


def _stems(words: Sequence[str], language: str) -> tuple[str, ...]:
    if language not in _STEMMERS:
        return tuple(words)
    from snowballstemmer import stemmer  # imported late: two dozen modules, for this selector only

    return tuple(stemmer(_STEMMERS[language]).stemWords(words))  # a new one, since a stemmer is not thread-safe


@cache
def _word_lists() -> Mapping[str, str]:
    text = files("sayso.agent.toolsets").joinpath("stop_words_and_synonyms.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(_word_lists()["stop_words"].split())


@cache
def _synonyms() -> Mapping[str, frozenset[str]]:
    """Return the stems of the synonyms, by stem."""
    groups = [frozenset(_stems(line.split(), "en")) for line in _word_lists()["synonyms"].strip().splitlines()]
    stems = frozenset().union(*groups)
    return {stem: frozenset().union(*(group for group in groups if stem in group)) for stem in stems}
