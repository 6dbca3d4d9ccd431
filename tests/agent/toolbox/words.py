"""What a call comes to in words: its result, or the words in which it refuses."""

from __future__ import annotations

from collections.abc import Callable

from sayso.agent import ToolExecutionError


def said(call: Callable[[], object]) -> str:
    """The result, or `refused: ` and why. Whatever else is raised comes through: no tool may raise it."""
    try:
        return str(call())
    except ValueError as exc:
        return f"refused: {exc}"
    except ToolExecutionError as exc:
        if not isinstance(exc.error, ValueError):
            raise
        return f"refused: {exc}"
