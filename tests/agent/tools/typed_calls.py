"""Calls of tools for mypy.

Each kind of tool keeps the parameters and the result of its function.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_type

from sayso import Agent, NotFound, ToolContext, tool
from sayso.agent import Tool, ToolRegistry


@tool
def count(name: str, least: int = 1) -> int:
    """Count."""
    return least


def preview_deletion(name: str) -> str | NotFound:
    """Preview."""
    return name


@tool(requires_approval=True, preview=preview_deletion)
def delete(name: str, context: ToolContext) -> str:
    """Delete."""
    return name


@tool(read_only=True)
async def look(name: str) -> list[str]:
    """Look."""
    return [name]


class Till:
    """A till with methods as tools."""

    @tool(read_only=True)
    def put(self, cents: int) -> int:
        """Put."""
        return cents

    @tool
    def take(self, cents: int) -> str:
        """Take."""
        return str(cents)


desk = ToolRegistry()


@desk.tool(description="Add")
def add(first: int, second: int) -> int:
    """Add."""
    return first + second


def names(tools: Iterable[Tool]) -> list[str]:
    """Return names: a bare `Tool` is any tool."""
    return [each.name for each in tools]


def chosen(tools: Iterable[Tool[Any]]) -> Iterable[Tool[..., Any]]:
    """Return the tools; so are these two."""
    return tools


every: list[Tool] = [count, delete, look, Till().put, add]
agent = Agent([count, delete, look, Till().take])


async def right() -> None:
    """Call each tool as its function wants it."""
    assert_type(count("a"), int)
    assert_type(delete("a", ToolContext()), str)
    assert_type(await look("a"), list[str])
    assert_type(Till().put(3), int)
    assert_type(Till().take(cents=3), str)
    assert_type(add(1, second=2), int)
    assert_type(desk.register(count)("a"), int)
    assert_type(Tool.from_function(preview_deletion)("a"), str | NotFound)
    assert_type(names(chosen(every)), list[str])


async def wrong() -> None:
    """Each of these is an error."""
    count(3)  # type: ignore[arg-type]
    count("a", most=3)  # type: ignore[call-arg]
    delete("a")  # type: ignore[call-arg]
    await look(5)  # type: ignore[arg-type]
    Till().put("three")  # type: ignore[arg-type]
    Till().take()  # type: ignore[call-arg]
    add(1)  # type: ignore[call-arg]
    names(count("a"))  # type: ignore[arg-type]
