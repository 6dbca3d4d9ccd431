"""RoleBasedSelector: the tools that a role may use."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar

from sayso.agent.messages import Message
from sayso.agent.tools.tool import Tool
from sayso.pending.proposals import current_names

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
