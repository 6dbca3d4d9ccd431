"""PythonToolProvider, MockToolProvider."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.tool import Tool, tool


class MockToolProvider:
    """Answers each tool with the result written for it, an exception as an error, and remembers the calls (seed)."""

    def __init__(self, tools: Sequence[Tool], results: Mapping[str, Any]) -> None:
        self.tools = list(tools)
        self.results = results
        self.call_history: list[tuple[str, dict[str, Any]]] = []

    async def list_tools(self) -> list[Tool]:
        """The tools it was given."""
        return self.tools

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """The result written for this tool; an exception comes as its words."""
        self.call_history.append((tool_name, parameters))
        if tool_name not in self.results:
            return ToolOutcome(success=False, error=f"Tool {tool_name} not mocked")
        result = self.results[tool_name]
        if isinstance(result, Exception):
            return ToolOutcome(success=False, error=str(result))
        return ToolOutcome(success=True, result=result)


class PythonToolProvider:
    """Lists and runs Tools, plain typed functions, or all that a ToolRegistry holds at that moment."""

    def __init__(self, tools: ToolRegistry | Iterable[Tool | Callable[..., Any]]) -> None:
        self._registry = tools if isinstance(tools, ToolRegistry) else _registry(tools)

    async def list_tools(self) -> list[Tool]:
        """Every tool, in the order of registration."""
        return self._registry.all()

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run a tool; unknown names, bad arguments and its own failures are outcomes in words (seed)."""
        tools = {each.name: each for each in self._registry.all()}
        if tool_name not in tools:
            return ToolOutcome(success=False, error=f"Tool '{tool_name}' not found. Available tools: {list(tools)}")
        try:
            return ToolOutcome(success=True, result=await tools[tool_name].ainvoke(parameters))
        except ToolError as exc:
            return ToolOutcome(success=False, error=str(exc))


def _registry(tools: Iterable[Tool | Callable[..., Any]]) -> ToolRegistry:
    registry = ToolRegistry()
    for each in tools:
        registry.register(each if isinstance(each, Tool) else tool()(each))
    return registry
