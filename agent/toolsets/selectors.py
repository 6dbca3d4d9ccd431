"""ToolSelector, keyword, roles, composition."""

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
from sayso.channels.i18n.language import recognise
from sayso.pending.proposals import current_names


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses tools for the next model call. A tool left out cannot be called in that step either (seed)."""

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The subset of `tools` for this step of the conversation; only membership counts."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors that are near each other where the texts mean the same."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, in their order, all equally long. May raise anything."""
        ...


log = logging.getLogger(__name__)


#: Seconds that a selector may take. One that asks others has `select_seconds` of its own: None, for as long as they do.
SELECT_SECONDS = 30.0


async def narrow(selector: ToolSelector, messages: Iterable[Message], tools: Iterable[Tool]) -> list[Tool]:
    """The given tools that the selector chose, in the order given; a tool it was not given stays out. Never raises.

    A selector that fails, or takes more than SELECT_SECONDS, shows nothing: who may see what is not for an error to
    widen. One that only keeps noise away catches its errors itself, or is wrapped in `FailOpen`.
    """
    given = list(tools)
    try:
        return await chosen(selector, messages, given)
    except (Exception, SystemExit):  # a selector may be anybody's code, and the turn must be answered
        advice = "no tool is shown while it fails: mend it, or wrap it in FailOpen if it restricts nobody"
        log.warning("selector.failed", exc_info=True, extra={"selector": type(selector).__name__, "advice": advice})
        return []


async def chosen(selector: ToolSelector, messages: Iterable[Message], given: list[Tool]) -> list[Tool]:
    """As `narrow`, but raises what the selector raises, TimeoutError, and any error over what is no list of tools."""
    async with asyncio.timeout(getattr(selector, "select_seconds", SELECT_SECONDS)):
        names = {tool.name for tool in await selector.select(list(messages), list(given))}
    return [tool for tool in given if tool.name in names]


class AllOf:
    """Tools that every selector chooses: each one is given what the one before it left."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """What is left in the end; where a selector fails, nothing."""
        said, left = list(messages), list(tools)
        for selector in self.selectors:
            left = await narrow(selector, said, left) if left else []
        return left


class AnyOf:
    """Tools that at least one of the selectors chooses. One that fails adds nothing."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """What any of them chose, in the order given."""
        said, given = list(messages), list(tools)
        wanted = {tool.name for selector in self.selectors for tool in await narrow(selector, said, given)}
        return [tool for tool in given if tool.name in wanted]


class Always:
    """Tools that are shown whatever a selector chooses, by name or pattern (`find_*`), and besides what it chooses.

    Only what it is given: behind roles, in `AllOf`, it brings back nothing that the role must not use.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector, names: Iterable[str]) -> None:
        self.selector = selector
        self.names = tuple(names)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """What the selector chose, and what is always kept."""
        given = list(tools)
        wanted = {tool.name for tool in await narrow(self.selector, messages, given)}
        return [tool for tool in given if tool.name in wanted or self.keeps(tool)]

    def keeps(self, tool: Tool) -> bool:
        """Whether this tool is always shown."""
        return any(fnmatchcase(tool.name, name) for name in self.names)


class FailOpen:
    """A selector that restricts nobody: where it fails, all tools are shown, with one warning until it works again.

    Never for one that decides who may use what.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector) -> None:
        self.selector = selector
        self._failing = False

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """What the selector chose, else all."""
        given = list(tools)
        try:
            left = await chosen(self.selector, messages, given)
        except (Exception, SystemExit):  # that is its purpose
            if not self._failing:
                name = type(self.selector).__name__
                log.warning("selector.failed", exc_info=True, extra={"selector": name, "advice": "all tools are shown"})
            self._failing = True
            return given
        self._failing = False
        return left


#: Says the role of whoever speaks now; async, if it has to ask somebody for it.
RoleOf = Callable[[], str | Awaitable[str | None] | None]


class RoleBasedSelector:
    """Tools by role (seed): exactly those of `allowed`, by default the class's `ALLOWED_TOOLS`.

    `role` is a role, or a function that says the one of whoever speaks now, async if that takes time. Names of tools
    may be patterns (`find_*`), upper and lower case of roles are alike. A role that is not named may use nothing, and
    if the function raises, nobody may use anything: `narrow` sees to that.
    """

    #: The tools of each role; for subclasses to set.
    ALLOWED_TOOLS: ClassVar[Mapping[str, Collection[str]]] = {
        "admin": {"write_file", "delete_file", "shell"},
        "editor": {"write_file", "read_file"},
        "viewer": {"read_file"},
    }

    def __init__(self, role: str | RoleOf, *, allowed: Mapping[str, Collection[str]] | None = None) -> None:
        self.role = role.lower() if isinstance(role, str) else role
        self.allowed = _by_role(self.ALLOWED_TOOLS if allowed is None else allowed)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The tools that the role may use, whatever was said."""
        patterns = self.allowed.get(await self.current_role(), ())
        return [tool for tool in tools if any(fnmatchcase(tool.name, pattern) for pattern in patterns)]

    async def current_role(self) -> str:
        """The role of whoever speaks now, in lower case; "" for none. Raises what the function of the role raises."""
        role = self.role if isinstance(self.role, str) else self.role()
        return ((await role if inspect.isawaitable(role) else role) or "").lower()


def role_of(selector: object) -> Callable[[], str]:
    """Return what says the role of whoever speaks, for `ToolContext`: "" where no role is configured.

    A role that has to be waited for is not known here. It looks into selectors that are made of others.
    """
    found = next(_roles_in(selector), None)

    def role() -> str:
        if found is None:
            return ""
        said = found.role if isinstance(found.role, str) else found.role()
        if inspect.iscoroutine(said):
            said.close()
        return said.lower() if isinstance(said, str) else ""

    return role


def _roles_in(selector: object) -> Iterator[RoleBasedSelector]:
    if isinstance(selector, RoleBasedSelector):
        yield selector
    inside = [getattr(selector, "selector", None), *getattr(selector, "selectors", ())]
    for each in inside:
        if each is not None:
            yield from _roles_in(each)


def _by_role(allowed: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Raises ValueError where a role would be ambiguous, or a text be taken for its letters."""
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
    """Says the role of the user whose turn is being answered, by an id that their platform gives them; their own first.

    Whoever is not listed has the `default`; "" is no role at all.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def __call__(self) -> str:
        """The role of whoever speaks now."""
        return next((self.users[name] for name in current_names() if name in self.users), self.default)


#: Shown or hidden whatever is said, or it depends on that.
Foreseen = Literal["shown", "hidden", "depends"]


async def would_show(selector: ToolSelector | None, tool: Tool) -> Foreseen:
    """What is certain of the tool for whoever's run this is called in. A role that cannot be told hides it."""
    match selector:
        case None:
            return "shown"
        case RoleBasedSelector():
            return await _by_role_of_foresight(selector, tool)
        case Always():
            return "shown" if selector.keeps(tool) else await would_show(selector.selector, tool)
        case FailOpen():
            return await would_show(selector.selector, tool)
        case AllOf():
            return _of_all({await would_show(each, tool) for each in selector.selectors})
        case AnyOf():
            return _of_any({await would_show(each, tool) for each in selector.selectors})
    return "depends"


async def roles_in(selector: ToolSelector | None) -> list[str]:
    """The roles that whoever speaks now has, of each role selector in this one; what cannot be told is left out."""
    match selector:
        case RoleBasedSelector():
            try:
                return [await selector.current_role()]
            except Exception:  # noqa: BLE001  # whatever its function does
                return []
        case Always() | FailOpen():
            return await roles_in(selector.selector)
        case AllOf() | AnyOf():
            return [role for each in selector.selectors for role in await roles_in(each)]
    return []


async def _by_role_of_foresight(selector: RoleBasedSelector, tool: Tool) -> Foreseen:
    try:
        return "shown" if tool in list(await selector.select([], [tool])) else "hidden"
    except Exception:  # noqa: BLE001  # as when it is asked in a turn: nothing is shown
        return "hidden"


def _of_all(parts: set[Foreseen]) -> Foreseen:
    if "hidden" in parts:
        return "hidden"
    return "depends" if "depends" in parts else "shown"


def _of_any(parts: set[Foreseen]) -> Foreseen:
    if "shown" in parts:
        return "shown"
    return "depends" if "depends" in parts else "hidden"


#: How the names of letters begin whose scripts put no spaces between words: there, any place may be a word's end.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "HALFWIDTH KATAKANA")


def has_word(text: str, word: str) -> bool:
    """Whether a word stands in a text by itself, in any script."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        if not (_joins(text[start - 1 : start], word[0]) or _joins(word[-1], text[end : end + 1])):
            return True
        start = text.find(word, start + 1)
    return False


def needs_no_space(char: str) -> bool:
    """Whether words are written without spaces between them in this letter's script."""
    return not char.isascii() and unicodedata.name(char, "").startswith(_WITHOUT_SPACES)


def _joins(left: str, right: str) -> bool:
    """Whether two characters side by side are of one word."""
    return all(map(_is_of_a_word, (left, right))) and not any(map(needs_no_space, (left, right)))


def _is_of_a_word(char: str) -> bool:
    """Letters, digits and the signs that combine with them, such as vowels in Devanagari."""
    return bool(char) and (unicodedata.category(char)[0] in "LNM" or char == "_")


class KeywordSelector:
    """Tools by words in the latest message (seed): upper and lower case are alike, in tool names too.

    Without messages no tool is shown; after anything but the user's words, such as a tool's result, all are; when
    nothing matches, none. A keyword counts anywhere in the text, "file" in "profile" too; with `whole_words` only as a
    word of its own, in scripts that have spaces between words. Raises ValueError for keywords that are no lists.
    """

    def __init__(self, keywords: Mapping[str, Sequence[str]], *, whole_words: bool = False) -> None:
        for name, words in keywords.items():
            if isinstance(words, str) or not all(isinstance(word, str) and word.strip() for word in words):
                raise ValueError(f"keywords of {name!r} are {words!r}: give a list of words, such as ['file', 'save']")
        self.keywords = {name.lower(): list(words) for name, words in keywords.items()}
        self.whole_words = whole_words

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The tools of which a keyword was said."""
        said = list(messages)
        if not said:
            return []
        if said[-1].role != Role.USER:
            return tools
        text = said[-1].content.lower()
        return [tool for tool in tools if any(self._is_in(text, word) for word in self._words_of(tool))]

    def _words_of(self, tool: Tool) -> list[str]:
        return [word.lower() for word in self.keywords.get(tool.name.lower(), [])]

    def _is_in(self, text: str, word: str) -> bool:
        return has_word(text, word) if self.whole_words else word in text


_NOT_OF_WORDS = re.compile(r"[\W_]+")


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; snake_case and camelCase are several words."""
    return _NOT_OF_WORDS.sub(" ", _CAMEL.sub(" ", unicodedata.normalize("NFKC", text))).casefold().split()


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
    text = files("sayso.agent.toolsets").joinpath("words.toml").read_text(encoding="utf-8")
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
