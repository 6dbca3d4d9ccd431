"""ToolRegistry: tools that belong together, found by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any

from agent.tools.decorator import make_tool
from agent.tools.errors import ToolNotFoundError, ToolValidationError
from agent.tools.tool import Tool


class ToolRegistry:
    """Holds the tools of one module or one agent; names are unique in it."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def tool(self, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
        """The `tool` decorator with the same options, which also registers."""
        return lambda function: self.register(make_tool(function, **options))

    def register(self, tool: Tool) -> Tool:
        """Add a tool and hand it back. Raises ToolValidationError when another one has its name."""
        if self._tools.get(tool.name, tool) is not tool:
            raise ToolValidationError(f"two tools are called {tool.name!r}: rename one with name=")
        self._tools[tool.name] = tool
        return tool

    def get(self, name: str) -> Tool:
        """The tool of that name. Raises ToolNotFoundError."""
        if name not in self._tools:
            raise ToolNotFoundError(unknown_tool(name, self._tools))
        return self._tools[name]

    def all(self) -> list[Tool]:
        """Every tool, in the order of registration."""
        return list(self._tools.values())


def unknown_tool(name: str, known: Collection[str]) -> str:
    """The sentence that tells a person or a model which names exist."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown tool {name!r}; {hint}known: {sorted(known)!r}"
