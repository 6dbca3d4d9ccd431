"""Foresight: whether a selector will show a tool to somebody, as far as that is known before they speak."""

from __future__ import annotations

from typing import Literal

from sayso.agent.selectors.composition import AllOf, Always, AnyOf, FailOpen
from sayso.agent.selectors.protocol import ToolSelector
from sayso.agent.selectors.roles import RoleBasedSelector
from sayso.agent.tools.tool import Tool

#: Shown or hidden whatever is said, or it depends on that.
Foreseen = Literal["shown", "hidden", "depends"]


async def foresee(selector: ToolSelector | None, tool: Tool) -> Foreseen:
    """What is certain of the tool for whoever's run this is called in. A role that cannot be told hides it."""
    match selector:
        case None:
            return "shown"
        case RoleBasedSelector():
            return await _by_role(selector, tool)
        case Always():
            return "shown" if selector.keeps(tool) else await foresee(selector.selector, tool)
        case FailOpen():
            return await foresee(selector.selector, tool)
        case AllOf():
            return _of_all({await foresee(each, tool) for each in selector.selectors})
        case AnyOf():
            return _of_any({await foresee(each, tool) for each in selector.selectors})
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


async def _by_role(selector: RoleBasedSelector, tool: Tool) -> Foreseen:
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
