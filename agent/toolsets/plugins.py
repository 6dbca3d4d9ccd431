"""Discovery: selectors that installed distributions bring, by the name of their entry point."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sayso.agent.tools.errors import ToolError
from sayso.agent.toolsets.embedding import EmbeddingSelector
from sayso.agent.toolsets.selectors import KeywordSelector, RoleBasedSelector

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)

#: The group of entry points that a distribution's pyproject.toml names its selectors in.
GROUP = "sayso.selector"
#: Ours, which nobody else's name takes the place of, and which are there from a source tree too.
_OWN: dict[str, type] = {
    "keyword": KeywordSelector,
    "role_based": RoleBasedSelector,
    "embedding": EmbeddingSelector,
}


class SelectorLoadError(ToolError):
    """Raised when a selector cannot be had by its name; the message names the distribution and the cure."""


def discover_selectors() -> dict[str, type]:
    """Every selector that is installed, by name. One that does not load is left out, with one warning."""
    found = dict(_OWN)
    for name, points in _points().items():
        try:
            found[name] = _loaded(name, points)
        except SelectorLoadError as exc:
            log.warning("selector.broken", extra={"selector": name, "advice": str(exc)})
    return found


def find_selector(name: str) -> type:
    """The selector of that name; no other is loaded. Raises SelectorLoadError."""
    if name in _OWN:
        return _OWN[name]
    points = _points()
    if name not in points:
        known = ", ".join(sorted({*_OWN, *points}))
        raise SelectorLoadError(f"no selector {name!r} is installed; known: {known}")
    return _loaded(name, points[name])


def _points() -> dict[str, list[EntryPoint]]:
    """The entry points of others, by name, each once."""
    from importlib.metadata import entry_points

    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if point.name not in _OWN and point not in points.get(point.name, []):
            points.setdefault(point.name, []).append(point)
    return points


def _loaded(name: str, points: Iterable[EntryPoint]) -> type:
    first, *others = points
    if others:
        both = ", ".join(sorted({_owner(point) for point in (first, *others)}))
        raise SelectorLoadError(f"selector {name!r} is claimed by {both}: uninstall all but one")
    try:
        found = first.load()
    except (Exception, SystemExit) as exc:  # it is somebody else's module
        cure = f"reinstall or remove {_owner(first)}"
        raise SelectorLoadError(
            f"selector {name!r} of {_owner(first)} ({first.value}) does not load: {type(exc).__name__}: {exc}: {cure}"
        ) from exc
    if not isinstance(found, type) or not callable(getattr(found, "select", None)):
        cure = f"ask for it where {_owner(first)} comes from, or remove it"
        raise SelectorLoadError(
            f"selector {name!r} of {_owner(first)} ({first.value}) is no class with a select method: {cure}"
        )
    return found


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
