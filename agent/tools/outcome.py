"""ToolOutcome: what became of one call, told as data instead of raised (seed: Tools Protocol Specification)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The `result` of a call that succeeded, or the `error` of one that did not, in words for the model.

    The seed calls it ToolResult, a name that typed results have here.
    """

    success: bool
    result: Any = None
    error: str | None = None
