"""Tool selectors: which tools a model is shown in a step.

A model can call only the tools that it is shown, so a selector may also restrict what a user may
use.

| selector | shows |
|---|---|
| RoleBasedSelector | the tools of the current user's role |
| KeywordSelector | tools whose keywords occur in the message |
| EmbeddingSelector (`embedding.py`) | the tools nearest to the message |
| AllOf, AnyOf, Always, FailOpen | what other selectors choose, combined |

`narrow` runs a selector safely. `find_selector` loads a selector of another package by its name.

`restriction_of` and `shortening_of` split a combined selector into its two purposes, restricting a
user and shortening the list. `ShownTools` (`run/shown_tools.py`) needs them apart. It applies the
restriction in each step. It shortens the list only if the schemas of the allowed tools are too
long. Then it goes on showing the tools that were needed before, as far as there is room.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar, Literal, Protocol, runtime_checkable

from sayso.agent.messages import Message, Role
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.embedding import EmbeddingSelector, has_word
from sayso.pending.error_texts import error_text
from sayso.pending.proposals import current_user_ids

log = logging.getLogger(__name__)
#: Time limit of a selector, in seconds. A selector with an attribute `select_seconds` has that one:
#: None for no limit. Selectors that run others have none, since the limits of the others count.
SELECT_SECONDS = 30.0


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses the tools for the next model call.

    The model cannot call a tool in that step that was not chosen.
    """

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the subset of `tools` for this step of the conversation, in any order."""
        ...


async def narrow(
    selector: ToolSelector, messages: Iterable[Message], tools: Iterable[Tool]
) -> list[Tool]:
    """Return the tools that the selector chose, in the order of `tools`. Never raises.

    A selector that fails, or takes longer than SELECT_SECONDS, shows no tool: an error must not
    grant access. A selector that only shortens the list catches its errors itself, or is wrapped in
    `FailOpen`.
    """
    all_tools = list(tools)
    try:
        return await _select(selector, messages, all_tools)
    except (Exception, SystemExit):
        # A selector may be third-party code, and the turn must be answered.
        advice = (
            "no tool is shown while it fails: "
            "mend it, or wrap it in FailOpen if it restricts no user"
        )
        log.warning(
            "selector.failed",
            exc_info=True,
            extra={"selector": type(selector).__name__, "advice": advice},
        )
        return []


async def _select(
    selector: ToolSelector, messages: Iterable[Message], tools: list[Tool]
) -> list[Tool]:
    """Return the tools that the selector chose, in the order of `tools`.

    Raises what the selector raises, TimeoutError, and the errors of a malformed result.
    """
    async with asyncio.timeout(getattr(selector, "select_seconds", SELECT_SECONDS)):
        chosen = await selector.select(list(messages), list(tools))
        names = {tool.name for tool in chosen}
    return [tool for tool in tools if tool.name in names]


class AllOf:
    """Selects the tools that all of its selectors choose.

    Each selector sees only the tools that those before it chose.
    """

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that all selectors chose; none if one of them fails."""
        history = list(messages)
        remaining = list(tools)
        for selector in self.selectors:
            if not remaining:
                break
            remaining = await narrow(selector, history, remaining)
        return remaining


class AnyOf:
    """Selects the tools that at least one of its selectors chooses. One that fails adds nothing."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that any of the selectors chose, in the order of `tools`."""
        history = list(messages)
        all_tools = list(tools)
        names: set[str] = set()
        for selector in self.selectors:
            chosen = await narrow(selector, history, all_tools)
            names.update(tool.name for tool in chosen)
        return [tool for tool in all_tools if tool.name in names]


class Always:
    """Selects what a selector chooses, and always the tools of these names or patterns (`find_*`).

    It adds only tools among those it is asked about. In an `AllOf` behind a role it adds no tool
    that the role must not use.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector, names: Iterable[str]) -> None:
        self.selector = selector
        self.names = tuple(names)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the selector chose, and those that are always shown."""
        all_tools = list(tools)
        chosen = await narrow(self.selector, messages, all_tools)
        names = {tool.name for tool in chosen}
        return [tool for tool in all_tools if tool.name in names or self.always_shows(tool)]

    def always_shows(self, tool: Tool) -> bool:
        """Return whether this tool is always shown."""
        return any(fnmatchcase(tool.name, name) for name in self.names)


class FailOpen:
    """Shows all tools while its selector fails, with one warning until it works again.

    Never use it for a selector that restricts what a user may use.
    """

    select_seconds = None

    def __init__(self, selector: ToolSelector) -> None:
        self.selector = selector
        self._failing = False

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the selector chose, or all if it fails."""
        all_tools = list(tools)
        try:
            selected = await _select(self.selector, messages, all_tools)
        except (Exception, SystemExit):  # catching them is the purpose of this class
            if not self._failing:
                name = type(self.selector).__name__
                log.warning(
                    "selector.failed",
                    exc_info=True,
                    extra={"selector": name, "advice": "all tools are shown"},
                )
            self._failing = True
            return all_tools
        self._failing = False
        return selected


def restriction_of(selector: ToolSelector) -> ToolSelector | None:
    """Return the part of a selector that restricts which tools a user may use.

    None if it restricts none. Every selector restricts, except an EmbeddingSelector: that one only
    shortens the list.
    """
    match _own_kind(selector):
        case EmbeddingSelector():
            return None
        case AllOf(selectors=parts):
            restrictions = [each for each in map(restriction_of, parts) if each is not None]
            if restrictions:
                return AllOf(*restrictions)
            return None

        case AnyOf(selectors=parts):
            restrictions_of_parts = list(map(restriction_of, parts))
            # A part that restricts nothing adds every tool, whatever the roles in other parts say.
            if None in restrictions_of_parts:
                return None
            return AnyOf(*filter(None, restrictions_of_parts))

        case Always(selector=inner, names=names):
            restriction = restriction_of(inner)
            if restriction:
                return Always(restriction, names)
            return None
        # Kept: the author wants all tools while the inner selector fails, and no error of it may
        # hide them.
        case FailOpen(selector=inner):
            restriction = restriction_of(inner)
            if restriction:
                return FailOpen(restriction)
            return None
    return selector


def shortening_of(selector: ToolSelector) -> ToolSelector | None:
    """Return the part of a selector that only shortens the list of tools; None if there is none.

    In it, each EmbeddingSelector chooses only the tools that a message clearly asks for, and none
    if it asks for no tool clearly. By itself, an EmbeddingSelector fills its list up to `top_k`
    with tools that are merely the nearest. The caller adds the chosen tools to those shown so far,
    and each new one costs the vendor's cache of all that follows. Where none is chosen, the caller
    shows a tool that finds others, or all tools.

    An `Always` keeps the tools that it always shows, and an `AnyOf` what its other parts choose,
    such as the tools of a role. These do not depend on how clearly a message asks.
    """
    match _own_kind(selector):
        case EmbeddingSelector() as embedding:
            return _NeededTools(embedding)
        case AllOf(selectors=parts):
            shortenings = [each for each in map(shortening_of, parts) if each is not None]
            if shortenings:
                return AllOf(*shortenings)
            return None

        case AnyOf(selectors=parts):
            shortenings_of_parts = [shortening_of(each) for each in parts]
            if not any(shortenings_of_parts):
                return None
            # A part that does not shorten still adds its tools.
            new_parts = []
            for shortened, part in zip(shortenings_of_parts, parts, strict=True):
                new_parts.append(shortened or part)
            return AnyOf(*new_parts)

        case Always(selector=inner, names=names):
            shortening = shortening_of(inner)
            if shortening:
                return Always(shortening, names)
            return None
        # Without FailOpen: all tools at once are what shortening is to prevent. A failing embedder
        # makes `_NeededTools` choose none, and the other parts fail inside `narrow`.
        case FailOpen(selector=inner):
            return shortening_of(inner)
    return None


class _NeededTools:
    """Selects the tools that the user's latest message clearly asks for."""

    select_seconds = None

    def __init__(self, embedding: EmbeddingSelector) -> None:
        self._embedding = embedding

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the latest message asks for; none if that cannot be determined."""
        user_texts = [message.content for message in messages if message.role is Role.USER]
        if not user_texts:
            return []
        return await self._embedding.needed(user_texts[-1].strip(), list(tools))


def _own_kind(selector: ToolSelector) -> object:
    """Return the selector if it selects exactly as one of Sayso's combining classes; else None.

    A subclass that overrides `select` may restrict in its own way, so it is not taken apart.
    """
    kinds = (EmbeddingSelector, AllOf, AnyOf, Always, FailOpen)
    if any(type(selector).select is kind.select for kind in kinds):
        return selector
    return None


def _parts_of(selector: object) -> list[ToolSelector]:
    """Return the selectors that a combined selector runs; an empty list for any other selector."""
    parts = [getattr(selector, "selector", None), *getattr(selector, "selectors", ())]
    return [each for each in parts if each is not None]


def embedding_in(selector: ToolSelector) -> EmbeddingSelector | None:
    """Return the first EmbeddingSelector inside a selector; None if there is none."""
    if isinstance(selector, EmbeddingSelector):
        return selector
    for part in _parts_of(selector):
        embedding = embedding_in(part)
        if embedding is not None:
            return embedding
    return None


#: Returns the role of the current user; async if it has to ask a service.
RoleFunction = Callable[[], str | Awaitable[str | None] | None]


class RoleBasedSelector:
    """Selects the tools of the current user's role.

    * `role`: a role, or a function that returns the current user's role, sync or async. "" and None
      are no role.
    * `allowed`: the names of tools, which may be patterns (`find_*`), by role; None for the class's
      `ALLOWED_TOOLS`.

    The case of roles is ignored. An unknown role may use no tool. While the function raises, no
    user may use any tool, because `narrow` shows none for a selector that fails. Raises ValueError
    for a role given twice, and for a text in place of a list of tools.
    """

    #: The tools of each role; subclasses may set it.
    ALLOWED_TOOLS: ClassVar[Mapping[str, Collection[str]]] = {
        "admin": {"write_file", "delete_file", "shell"},
        "editor": {"write_file", "read_file"},
        "viewer": {"read_file"},
    }

    def __init__(
        self, role: str | RoleFunction, *, allowed: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.role = role.lower() if isinstance(role, str) else role
        if allowed is None:
            allowed = self.ALLOWED_TOOLS
        self.allowed: dict[str, tuple[str, ...]] = {}
        for name, patterns in allowed.items():
            if isinstance(patterns, str):
                raise ValueError(
                    f"the tools of role {name!r} are {patterns!r}: give a list, such as ['find_*']"
                )
            if name.lower() in self.allowed:
                raise ValueError(f"role {name!r} is given twice, in upper and lower case: keep one")
            self.allowed[name.lower()] = tuple(patterns)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the role may use, whatever the messages say."""
        role = await self.current_role()
        patterns = self.allowed.get(role, ())

        def is_allowed(tool: Tool) -> bool:
            return any(fnmatchcase(tool.name, pattern) for pattern in patterns)

        return [tool for tool in tools if is_allowed(tool)]

    async def current_role(self) -> str:
        """Return the current user's role in lower case; "" for none.

        Raises what the role function raises.
        """
        role = self.role if isinstance(self.role, str) else self.role()
        if inspect.isawaitable(role):
            role = await role
        return (role or "").lower()


def role_of_user(selector: object) -> str:
    """Return the current user's role, for `ToolContext`; "" where no role is configured.

    It is the role of the first RoleBasedSelector inside the selector. The role of an async function
    cannot be read here, and is "" too.
    """
    by_role = next(_role_selectors_in(selector), None)
    if by_role is None:
        return ""
    role: object = by_role.role
    if callable(role):
        role = role()
    if inspect.iscoroutine(role):
        role.close()  # else Python warns that it was never awaited
    if isinstance(role, str):
        return role.lower()
    return ""


def _role_selectors_in(selector: object) -> Iterator[RoleBasedSelector]:
    """Yield the RoleBasedSelectors inside a selector, at any depth."""
    if isinstance(selector, RoleBasedSelector):
        yield selector
    for each in _parts_of(selector):
        yield from _role_selectors_in(each)


@dataclass(frozen=True, slots=True)
class UserRoles:
    """A role function that reads the current user's role from a table.

    `users` has roles by the ids that platforms give to a person. Of several ids of one person the
    first that is listed counts, the main id first. A user who is not listed has the role `default`;
    "" is no role.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def __call__(self) -> str:
        """Return the current user's role."""
        for user_id in current_user_ids():
            if user_id in self.users:
                return self.users[user_id]
        return self.default


#: Whether a tool is always shown or always hidden, or whether that depends on what the user writes.
Visibility = Literal["shown", "hidden", "depends"]


async def would_show(selector: ToolSelector | None, tool: Tool) -> Visibility:
    """Return whether the current user's runs show the tool.

    The tool is hidden from a user whose role cannot be determined. `selector` is None where every
    tool is shown.

    Unlike in `_own_kind`, a subclass is judged by its parts even if it overrides `select`. A
    confirmed action is refused if its tool is "hidden". With "depends" for each such subclass, it
    would run although a role inside forbids the tool.
    """
    match selector:
        case None:
            return "shown"
        case RoleBasedSelector():
            try:
                if tool in list(await selector.select([], [tool])):
                    return "shown"
                return "hidden"
            except Exception:  # as in a turn: nothing is shown
                return "hidden"
        case Always():
            if selector.always_shows(tool):
                return "shown"
            return await would_show(selector.selector, tool)
        case FailOpen():
            return await would_show(selector.selector, tool)
        case AllOf() | AnyOf():
            # In an AllOf one part that hides the tool decides; in an AnyOf one part that shows it.
            order: list[Visibility] = ["hidden", "depends", "shown"]
            if isinstance(selector, AnyOf):
                order.reverse()
            parts = [await would_show(each, tool) for each in selector.selectors]
            return min(parts, key=order.index, default=order[-1])
    return "depends"


async def roles_in(selector: ToolSelector | None) -> list[str]:
    """Return the current user's role in each role selector inside this one.

    Roles that cannot be determined are left out.
    """
    roles = []
    for by_role in _role_selectors_in(selector):
        with suppress(Exception):  # a role function may raise anything
            roles.append(await by_role.current_role())
    return roles


class KeywordSelector:
    """Selects the tools that have a keyword in the latest message.

    `keywords` has lists of words by the names of tools. Case is ignored in both. A keyword counts
    anywhere in the text, "file" in "profile" too; with `whole_words` only as a whole word, in
    scripts that have spaces between words.

    Without messages, and if no keyword occurs, no tool is selected. If the latest message is not
    the user's, such as a tool's result, all tools are. Raises ValueError for keywords that are no
    lists of words.
    """

    def __init__(self, keywords: Mapping[str, Sequence[str]], *, whole_words: bool = False) -> None:
        for name, words in keywords.items():
            is_text = isinstance(words, str)
            if is_text or not all(isinstance(word, str) and word.strip() for word in words):
                raise ValueError(
                    f"keywords of {name!r} are {words!r}: "
                    "give a list of words, such as ['file', 'save']"
                )
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
        occurs_in = has_word if self.whole_words else str.__contains__
        selected = []
        for tool in tools:
            words = self.keywords.get(tool.name.lower(), ())
            if any(occurs_in(text, word.lower()) for word in words):
                selected.append(tool)
        return selected


#: The group of entry points in which a distribution's pyproject.toml names its selectors.
GROUP = "sayso.selector"
#: The selectors that Sayso brings along. No entry point can replace them, and they are found in a
#: source tree that is not installed.
_BUILT_IN: dict[str, type] = {
    "keyword": KeywordSelector,
    "role_based": RoleBasedSelector,
    "embedding": EmbeddingSelector,
}


class SelectorLoadError(ToolError):
    """Raised when no selector can be loaded by a name.

    The message names the distribution and the cure.
    """


def discover_selectors() -> dict[str, type]:
    """Return the class of every installed selector, by name.

    A selector that does not load is left out, with one warning.
    """
    selectors = dict(_BUILT_IN)
    for name in sorted(entry_points(group=GROUP).names - _BUILT_IN.keys()):
        try:
            selectors[name] = find_selector(name)
        except SelectorLoadError as exc:
            log.warning("selector.broken", extra={"selector": name, "advice": str(exc)})
    return selectors


def find_selector(name: str) -> type:
    """Return the class of the selector of this name. No other selector is loaded.

    Raises SelectorLoadError.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]

    installed = entry_points(group=GROUP)
    points = list(dict.fromkeys(installed.select(name=name)))
    if not points:
        known = ", ".join(sorted({*_BUILT_IN, *installed.names}))
        raise SelectorLoadError(f"no selector {name!r} is installed; known: {known}")
    owners = list(map(_distribution_of, points))
    if len(points) > 1:
        claimants = ", ".join(sorted(set(owners)))
        raise SelectorLoadError(
            f"selector {name!r} is claimed by {claimants}: uninstall all but one"
        )

    owner = owners[0]
    what = f"selector {name!r} of {owner} ({points[0].value})"
    try:
        selector = points[0].load()
    except (Exception, SystemExit) as exc:  # third-party code
        reason = f"{type(exc).__name__}: {error_text(exc)}"
        raise SelectorLoadError(
            f"{what} does not load: {reason}: reinstall or remove {owner}"
        ) from exc
    if not isinstance(selector, type) or not callable(getattr(selector, "select", None)):
        cure = f"ask for it where {owner} comes from, or remove it"
        raise SelectorLoadError(f"{what} is no class with a select method: {cure}")
    return selector


def _distribution_of(point: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point belongs to."""
    if point.dist is None:
        return "an unknown distribution"
    return f"{point.dist.name} {point.dist.version}"
