"""Selectors from other installed distributions, found by the name of their entry point."""

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
#: The group of entry points in which a distribution's pyproject.toml names its selectors.
GROUP = "sayso.selector"
#: Sayso's own selectors. No entry point can replace them, and they are found in a source tree that is not installed.
_OWN: dict[str, type] = {
    "keyword": KeywordSelector,
    "role_based": RoleBasedSelector,
    "embedding": EmbeddingSelector,
}


class SelectorLoadError(ToolError):
    """Raised when no selector can be loaded by a name; the message names the distribution and the cure."""


def discover_selectors() -> dict[str, type]:
    """Return every installed selector by name. One that does not load is left out, with one warning."""
    selectors = dict(_OWN)
    for name, points in _entry_points().items():
        try:
            selectors[name] = _loaded(name, points)
        except SelectorLoadError as exc:
            log.warning("selector.broken", extra={"selector": name, "advice": str(exc)})
    return selectors


def find_selector(name: str) -> type:
    """Return the selector of that name without loading others. Raises SelectorLoadError."""
    if name in _OWN:
        return _OWN[name]
    points = _entry_points()
    if name not in points:
        known = ", ".join(sorted({*_OWN, *points}))
        raise SelectorLoadError(f"no selector {name!r} is installed; known: {known}")
    return _loaded(name, points[name])


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other distributions by name, each once."""
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
        selector = first.load()
    except (Exception, SystemExit) as exc:  # third-party code
        cure = f"reinstall or remove {_owner(first)}"
        raise SelectorLoadError(
            f"selector {name!r} of {_owner(first)} ({first.value}) does not load: {type(exc).__name__}: {exc}: {cure}"
        ) from exc
    if not isinstance(selector, type) or not callable(getattr(selector, "select", None)):
        cure = f"ask for it where {_owner(first)} comes from, or remove it"
        raise SelectorLoadError(
            f"selector {name!r} of {_owner(first)} ({first.value}) is no class with a select method: {cure}"
        )
    return selector


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
