"""Draft: what a person would be asked before a tool runs, not asked yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from sayso.agent.tools.errors import ToolExecutionError
from sayso.pending.action import PendingActionExistsError
from sayso.pending.proposals import stash_pending
from sayso.pending.results import PendingConfirmation, ToolResult


@dataclass(frozen=True)
class AlreadyPending(ToolResult):
    """This turn has proposed something already; nothing was added to it."""

    kind: ClassVar[str] = "already_pending"

    message: str = ""


class Proposable(Protocol):
    """What a tool says of its calls."""

    @property
    def name(self) -> str:
        """The kind of action that a call is."""

    @property
    def idempotent(self) -> bool:
        """Whether running twice does no harm."""

    @property
    def typed_code(self) -> bool:
        """Whether the yes must name a code."""

    @property
    def version(self) -> str:
        """Which version of the tool is shown."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A call as it is recorded, and its preview; a ToolResult in place of words means that there is nothing to ask."""

    tool: Proposable
    args: dict[str, Any]
    words: str | ToolResult

    def propose(self, reason: str = "") -> ToolResult:
        """Ask the user of the current channel run; `reason` is why. Raises ToolExecutionError, as `Tool.propose`."""
        name, words = self.tool.name, self.words
        if isinstance(words, ToolResult):
            return words
        try:
            proposal = stash_pending(
                kind=name, preview=words, args=self.args, idempotent=self.tool.idempotent, reason=reason,
                typed_code=self.tool.typed_code, version=self.tool.version,
            )  # fmt: skip
        except PendingActionExistsError as exc:
            return AlreadyPending(message=str(exc))
        except (TypeError, ValueError) as exc:
            raise ToolExecutionError(f"cannot propose {name!r}: {exc}", tool_name=name, error=exc) from exc
        if proposal is None:
            raise ToolExecutionError(
                f"{name!r} needs a yes, but no user is here to give it: run it on a channel", tool_name=name
            )
        return PendingConfirmation(action=name, preview=words)
