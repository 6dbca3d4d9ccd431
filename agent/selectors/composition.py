"""Composition: several selectors as one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase

from sayso.agent.messages import Message
from sayso.agent.selectors.narrowing import chosen, narrow
from sayso.agent.selectors.protocol import ToolSelector
from sayso.agent.tools.tool import Tool

log = logging.getLogger(__name__)


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
