"""Patterns: those of a configuration that name no tool, which a misspelling and a rule for later have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.nearest import nearest
from sayso.config.outfit import own_tools
from sayso.config.schema import Path_, Settings, SourceSettings
from sayso.config.sources import OpenTools, own_names


def stray_patterns(settings: Settings, opened: OpenTools) -> list[str]:
    """A warning for each pattern that names no tool: of sources, and of policies where all tools are known.

    Nothing is wrong with them: a rule may be older than its tool. But one that is misspelt restricts nothing.
    """
    return [*_of_sources(settings), *([] if opened.problems else _of_policies(settings, opened))]


def _of_sources(settings: Settings) -> Iterator[str]:
    """`confirm` may call a tool what its source does, or what it is called here."""
    for index, source in enumerate(settings.tools):
        if isinstance(source, str) or not (patterns := list(_patterns(source, ("tools", index)))):
            continue
        try:
            names = own_names(source, settings.origin.folder)
        except (ToolError, SystemExit):  # who cannot be asked is told elsewhere
            continue
        here = [f"{source.namespace}-{name}" for name in names] if source.namespace else []
        for path, pattern in patterns:
            yield from _stray(settings, path, pattern, [*names, *here] if path[2] == "confirm" else names)


def _patterns(source: SourceSettings, path: Path_) -> Iterator[tuple[Path_, str]]:
    for key in ("include", "exclude", "confirm"):
        given = getattr(source, key)
        yield from (((*path, key, index), each) for index, each in enumerate(given if isinstance(given, list) else ()))


def _of_policies(settings: Settings, opened: OpenTools) -> Iterator[str]:
    """Over all tools: a rule may be about one that its channel does not have. `allow` alone minds the case."""
    names = [tool.name for tool in [*opened.tools, *own_tools(settings)]]
    for channel, settings_of in settings.channels.items():
        path: Path_ = ("channels", channel, "policy")
        if settings_of.policy is None:
            continue
        for index, rule in enumerate(settings_of.policy.deny_when):
            yield from _stray(settings, (*path, "deny_when", index, "tool"), rule.tool, names)
        for kind in ("allow", "review", "deny"):
            for index, pattern in enumerate(getattr(settings_of.policy, kind)):
                yield from _stray(settings, (*path, kind, index), pattern, names)


def _stray(settings: Settings, path: Path_, pattern: str, names: Sequence[str]) -> Iterator[str]:
    takes_any_case = path[0] == "channels" and "allow" not in path
    if _finds(pattern, names) or (takes_any_case and _finds(pattern.casefold(), [name.casefold() for name in names])):
        return
    close = _meant(pattern, names)
    hint = f", did you mean {close!r}?" if close else ""
    where, dotted = settings.origin.at(*path), ".".join(map(str, path))
    yield f"{where}warning: {dotted}: {pattern!r} names no tool{hint}"


def _finds(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _meant(pattern: str, names: Sequence[str]) -> str:
    """The pattern for any namespace, or with its beginning spelled like that of a tool, or the nearest name; or ""."""
    stem = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    start = nearest(stem, dict.fromkeys(name[: len(stem)] for name in names))
    whole = nearest(pattern, names) if stem == pattern else ""
    candidates = [f"*-{pattern}", whole, start and start + pattern[len(stem) :]]
    return next((each for each in candidates if _finds(each, names)), "")
