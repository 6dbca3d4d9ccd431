"""MockToolProvider: a provider with written answers, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.tool import Tool


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
