"""Typed results: what a tool may return so that the next model call can reason over it (seed: Tools, Typed Results).

They live here, below the agent, because the pending room's `PendingConfirmation` is one of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class ToolResult:
    """Base of typed results. Subclasses are frozen dataclasses that set `kind`."""

    kind: ClassVar[str] = "result"

    def to_json(self) -> str:
        """The result as the model sees it: `kind` first, then the fields."""
        return json.dumps({"kind": type(self).kind, **asdict(self)}, default=str, ensure_ascii=False)


@dataclass(frozen=True)
class Ambiguous(ToolResult):
    """Several things match `query`; `matches` lets the model ask which."""

    kind: ClassVar[str] = "ambiguous"

    entity: str = ""
    query: str = ""
    matches: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class NotFound(ToolResult):
    """This tool saw no match for `query`, here and now. It does not claim that none exists."""

    kind: ClassVar[str] = "not_found"

    entity: str = ""
    query: str = ""


@dataclass(frozen=True)
class PendingConfirmation(ToolResult):
    """The tool did nothing yet: `preview` waits for the user's yes."""

    kind: ClassVar[str] = "pending_confirmation"

    action: str = ""
    preview: str = ""
    user_prompt: str = "Reply 'yes' to confirm or 'no' to cancel."
