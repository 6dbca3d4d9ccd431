"""PythonToolProvider and MockToolProvider: tools of this process behind the provider protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.tool import Tool


class PythonToolProvider:
    """Lists and runs Tools, plain typed functions, or the present contents of a ToolRegistry."""

    def __init__(self, tools: ToolRegistry | Iterable[Tool | Callable[..., Any]]) -> None:
        if isinstance(tools, ToolRegistry):
            self._registry = tools
        else:
            self._registry = ToolRegistry()
            for each in tools:
                self._registry.register(each)

    async def list_tools(self) -> list[Tool]:
        """Return every tool, in the order of registration."""
        return self._registry.all()

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run a tool. Unknown names, wrong arguments and the tool's failures are outcomes with an error text (seed)."""
        tools = {each.name: each for each in self._registry.all()}
        if tool_name not in tools:
            return ToolOutcome(success=False, error=f"Tool '{tool_name}' not found. Available tools: {list(tools)}")
        try:
            return ToolOutcome(success=True, result=await tools[tool_name].ainvoke(parameters))
        except ToolError as exc:
            return ToolOutcome(success=False, error=str(exc))


class MockToolProvider:
    """Answers each call with a prepared result, an exception as an error, and records the calls (seed)."""

    def __init__(self, tools: Sequence[Tool], results: Mapping[str, Any]) -> None:
        self.tools = list(tools)
        self.results = results
        self.call_history: list[tuple[str, dict[str, Any]]] = []

    async def list_tools(self) -> list[Tool]:
        """Return the tools it was given."""
        return self.tools

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Return the result prepared for this tool; an exception becomes the error text."""
        self.call_history.append((tool_name, parameters))
        if tool_name not in self.results:
            return ToolOutcome(success=False, error=f"Tool {tool_name} not mocked")
        result = self.results[tool_name]
        if isinstance(result, Exception):
            return ToolOutcome(success=False, error=str(result))
        return ToolOutcome(success=True, result=result)
