"""PythonToolProvider: tools and plain functions of this process behind the port of a provider."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sayso.agent.tools.decorator import tool
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.registry import ToolRegistry
from sayso.agent.tools.tool import Tool


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
