"""Tool selectors: which tools a model is shown in a step, by keywords, roles or several."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from typing import ClassVar, Literal, Protocol, runtime_checkable

from sayso.agent.messages import Message, Role
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.embedding import EmbeddingSelector, has_word
from sayso.pending.error_texts import error_text
from sayso.pending.proposals import current_user_ids

log = logging.getLogger(__name__)
#: Time limit of a selector, in seconds. One that asks others has `select_seconds = None`:
#: theirs count.
SELECT_SECONDS = 30.0


@runtime_checkable
class ToolSelector(Protocol):
    """Chooses tools for the next model call.

    A tool left out cannot be called in that step either.
    """

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the subset of `tools` for this step of the conversation, in any order."""
        ...


async def narrow(
    selector: ToolSelector, messages: Iterable[Message], tools: Iterable[Tool]
) -> list[Tool]:
    """Return the given tools that the selector chose, in the order given. Never raises.

    A selector that fails, or takes longer than SELECT_SECONDS, shows no tool: an error must not
    grant access. One that only keeps noise away catches its errors itself, or is wrapped in
    `FailOpen`.
    """
    given = list(tools)
    try:
        return await _select(selector, messages, given)
    except (
        Exception,
        SystemExit,
    ):
        # A selector may be third-party code, and the turn must be answered.
        advice = "no tool is shown while it fails: mend it, or wrap it in FailOpen if it restricts no user"
        log.warning(
            "selector.failed",
            exc_info=True,
            extra={"selector": type(selector).__name__, "advice": advice},
        )
        return []


async def _select(
    selector: ToolSelector, messages: Iterable[Message], given: list[Tool]
) -> list[Tool]:
    """Return what `narrow` returns, but raise errors.

    These are what the selector raises, TimeoutError, and errors of a malformed result.
    """
    async with asyncio.timeout(getattr(selector, "select_seconds", SELECT_SECONDS)):
        names = {tool.name for tool in await selector.select(list(messages), list(given))}
    return [tool for tool in given if tool.name in names]


class AllOf:
    """Selects the tools that all its selectors choose:
    each is given those that the one before it left.
    """

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that all chose; none if a selector fails."""
        history = list(messages)
        left = list(tools)
        for selector in self.selectors:
            if left:
                left = await narrow(selector, history, left)
            else:
                left = []
        return left


class AnyOf:
    """Selects the tools that at least one of its selectors chooses. One that fails adds nothing."""

    select_seconds = None

    def __init__(self, *selectors: ToolSelector) -> None:
        self.selectors = selectors

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that any of them chose, in the order given."""
        history = list(messages)
        given = list(tools)
        names = {
            tool.name
            for selector in self.selectors
            for tool in await narrow(selector, history, given)
        }
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

    Never use it for a selector that restricts what a user may use.
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
                log.warning(
                    "selector.failed",
                    exc_info=True,
                    extra={"selector": name, "advice": "all tools are shown"},
                )
            self._failing = True
            return given
        self._failing = False
        return selected


def restriction_of(selector: ToolSelector) -> ToolSelector | None:
    """Return the part of a selector that says who may use which tool; None if that is every tool.

    Every selector restricts, but an EmbeddingSelector: it only shortens the list.
    """
    match _own_kind(selector):
        case EmbeddingSelector():
            return None
        case AllOf(selectors=parts):
            restrictions = [each for each in map(restriction_of, parts) if each is not None]
            if restrictions:
                return AllOf(*restrictions)
            return None
        case AnyOf(
            selectors=parts
        ):  # roles in it restrict nothing that a part without restriction adds
            of_parts = list(map(restriction_of, parts))
            if None in of_parts:
                return None
            return AnyOf(*filter(None, of_parts))
        case Always(selector=inner, names=names):
            restriction = restriction_of(inner)
            if restriction:
                return Always(restriction, names)
            return None
        case FailOpen(selector=inner):
            restriction = restriction_of(inner)
            if restriction:
                return FailOpen(restriction)
            return None
    return selector


def shortening_of(selector: ToolSelector) -> ToolSelector | None:
    """Return the part of a selector that only shortens the list of tools; None if there is none.

    It selects what a message clearly asks for, and nothing where it cannot say that.
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
            changed = [shortening_of(each) for each in parts]
            if not any(changed):
                return None
            return AnyOf(*(new or old for new, old in zip(changed, parts, strict=True)))
        case Always(selector=inner, names=names):
            shortening = shortening_of(inner)
            if shortening:
                return Always(shortening, names)
            return None
        case FailOpen(selector=inner):
            return shortening_of(inner)
    return None


class _NeededTools:
    """Selects the tools that the user's latest message clearly asks for."""

    select_seconds = None

    def __init__(self, embedding: EmbeddingSelector) -> None:
        self._embedding = embedding

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return these tools; none if that cannot be said."""
        by_user = [message.content for message in messages if message.role is Role.USER]
        if not by_user:
            return []
        return await self._embedding.needed(by_user[-1].strip(), list(tools))


def _own_kind(selector: ToolSelector) -> object:
    """Return the selector if its class selects as one of ours does.

    A subclass with a `select` of its own may restrict.
    """
    kinds = (EmbeddingSelector, AllOf, AnyOf, Always, FailOpen)
    if any(type(selector).select is kind.select for kind in kinds):
        return selector
    return None


def _parts_of(selector: object) -> list[ToolSelector]:
    inner = [getattr(selector, "selector", None), *getattr(selector, "selectors", ())]
    return [each for each in inner if each is not None]


def embedding_in(selector: ToolSelector) -> EmbeddingSelector | None:
    """Return the first EmbeddingSelector inside a selector."""
    if isinstance(selector, EmbeddingSelector):
        return selector
    return next(filter(None, map(embedding_in, _parts_of(selector))), None)


#: Returns the role of the current user; async if it has to ask a service.
RoleFunction = Callable[[], str | Awaitable[str | None] | None]


class RoleBasedSelector:
    """Selects tools by role: exactly those of `allowed`, by default the class's `ALLOWED_TOOLS`.

    `role` is a role, or a function that returns the current user's role, sync or async. Names of
    tools may be patterns (`find_*`); the case of roles is ignored. An unknown role may use no tool,
    and while the function raises, no user may use any: `narrow` ensures that. Raises ValueError for
    a role given twice, and for text in place of a list.
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
        self.allowed: dict[str, tuple[str, ...]] = {}
        for name, patterns in (self.ALLOWED_TOOLS if allowed is None else allowed).items():
            if isinstance(patterns, str):
                raise ValueError(
                    f"the tools of role {name!r} are {patterns!r}: give a list, such as ['find_*']"
                )
            if name.lower() in self.allowed:
                raise ValueError(f"role {name!r} is given twice, in upper and lower case: keep one")
            self.allowed[name.lower()] = tuple(patterns)

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the tools that the role may use, whatever the messages say."""
        patterns = self.allowed.get(await self.current_role(), ())
        return [
            tool for tool in tools if any(fnmatchcase(tool.name, pattern) for pattern in patterns)
        ]

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

    Looks into combined selectors. The role of an async function is not known here.
    """
    by_role = next(_role_selectors_in(selector), None)
    if by_role is None:
        return ""
    value = by_role.role if isinstance(by_role.role, str) else by_role.role()
    if inspect.iscoroutine(value):
        value.close()
    if isinstance(value, str):
        return value.lower()
    return ""


def _role_selectors_in(selector: object) -> Iterator[RoleBasedSelector]:
    if isinstance(selector, RoleBasedSelector):
        yield selector
    for each in _parts_of(selector):
        yield from _role_selectors_in(each)


@dataclass(frozen=True, slots=True)
class UserRoles:
    """A role function: returns the current user's role by their platform ids, the main id first.

    A user who is not listed has the `default`; "" is no role.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def __call__(self) -> str:
        """Return the current user's role."""
        return next(
            (self.users[name] for name in current_user_ids() if name in self.users), self.default
        )


#: Whether a tool is shown or hidden whatever the user writes, or depends on the text.
Visibility = Literal["shown", "hidden", "depends"]


async def would_show(selector: ToolSelector | None, tool: Tool) -> Visibility:
    """Return whether the current user's runs show the tool.

    A role that cannot be determined hides it.
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
        case AllOf() | AnyOf():  # the first of these that a part has, else the last
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
    """Selects tools by words in the latest message; case is ignored, in tool names too.

    Without messages no tool is shown; if the latest message is not the user's, such as a tool's
    result, all are; if nothing matches, none. A keyword counts anywhere in the text, "file" in
    "profile" too; with `whole_words` only as a whole word, in scripts that have spaces between
    words. Raises ValueError for keywords that are no lists.
    """

    def __init__(self, keywords: Mapping[str, Sequence[str]], *, whole_words: bool = False) -> None:
        for name, words in keywords.items():
            if isinstance(words, str) or not all(
                isinstance(word, str) and word.strip() for word in words
            ):
                raise ValueError(
                    f"keywords of {name!r} are {words!r}: give a list of words, such as ['file', 'save']"
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
        matches = has_word if self.whole_words else str.__contains__
        return [
            tool
            for tool in tools
            if any(matches(text, word.lower()) for word in self.keywords.get(tool.name.lower(), ()))
        ]


#: The group of entry points in which a distribution's pyproject.toml names its selectors.
GROUP = "sayso.selector"
#: Sayso's own selectors. No entry point can replace them,
#: and they are found in a source tree that is not installed.
_OWN: dict[str, type] = {
    "keyword": KeywordSelector,
    "role_based": RoleBasedSelector,
    "embedding": EmbeddingSelector,
}


class SelectorLoadError(ToolError):
    """Raised when no selector can be loaded by a name.

    The message names the distribution and the cure.
    """


def discover_selectors() -> dict[str, type]:
    """Return every installed selector by name.

    One that does not load is left out, with one warning.
    """
    selectors = dict(_OWN)
    for name in sorted(entry_points(group=GROUP).names - _OWN.keys()):
        try:
            selectors[name] = find_selector(name)
        except SelectorLoadError as exc:
            log.warning("selector.broken", extra={"selector": name, "advice": str(exc)})
    return selectors


def find_selector(name: str) -> type:
    """Return the selector of that name without loading others. Raises SelectorLoadError."""
    if name in _OWN:
        return _OWN[name]
    installed = entry_points(group=GROUP)
    points = list(dict.fromkeys(installed.select(name=name)))
    if not points:
        known = ", ".join(sorted({*_OWN, *installed.names}))
        raise SelectorLoadError(f"no selector {name!r} is installed; known: {known}")
    owners = [
        f"{each.dist.name} {each.dist.version}" if each.dist else "an unknown distribution"
        for each in points
    ]
    if len(points) > 1:
        claimants = ", ".join(sorted(set(owners)))
        raise SelectorLoadError(
            f"selector {name!r} is claimed by {claimants}: uninstall all but one"
        )
    what = f"selector {name!r} of {owners[0]} ({points[0].value})"
    owner = owners[0]
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
