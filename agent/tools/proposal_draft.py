"""ProposalDraft: a call that may be proposed to a user, and the results if nothing was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sayso.agent.tools.definition import ToolDefinition
from sayso.agent.tools.errors import ToolExecutionError
from sayso.agent.tools.previews import CheckedPreview
from sayso.pending.action import ActionDeniedError, PendingActionExistsError
from sayso.pending.executors import PendingConfirmation, ToolResult
from sayso.pending.proposals import ShownTool, stash_pending


@dataclass(frozen=True)
class AlreadyPending(ToolResult):
    """The result when the call waits for a yes already, or no more proposals fit in this turn."""

    kind: ClassVar[str] = "already_pending"

    message: str = ""


@dataclass(frozen=True)
class AlreadyDenied(ToolResult):
    """The result when the user has just said no to the same call: nothing was asked."""

    kind: ClassVar[str] = "already_denied"

    message: str = ""


@dataclass(frozen=True)
class PreviewRefused(ToolResult):
    """The result when a preview raised a ToolError: nothing was asked. `message` has its words."""

    kind: ClassVar[str] = "refused"

    message: str = ""


@dataclass(frozen=True, slots=True)
class ProposalDraft:
    """A call that may be proposed: the arguments to be recorded, and their preview."""

    tool: ToolDefinition
    args: dict[str, Any]
    #: A ToolResult means that there is nothing to propose.
    preview: CheckedPreview | str | ToolResult
    #: The `definition_digest` of the tool.
    tool_digest: str

    @property
    def text(self) -> str:
        """The preview that the user reads; "" if there is nothing to propose."""
        if isinstance(self.preview, CheckedPreview):
            return self.preview.text
        if isinstance(self.preview, str):
            return self.preview
        return ""

    @property
    def values_digest(self) -> str:
        """The digest of the values of a CheckedPreview; "" if the whole text counts."""
        if isinstance(self.preview, CheckedPreview):
            return self.preview.digest
        return ""

    def propose(self, reason: str = "", form: Sequence[Mapping[str, Any]] = ()) -> ToolResult:
        """Ask the user of the current channel run to confirm the call.

        `reason` is why they are asked, for them to read; "" for none. `form` has the fields that
        the user may change, as `edit_fields` returns them; empty for none.

        Returns a PendingConfirmation, or the result that says why nothing was asked. Raises
        ToolExecutionError where no user could answer, and for a call that cannot be stored.
        """
        name = self.tool.name
        preview = self.preview
        if isinstance(preview, ToolResult):
            return preview

        try:
            proposal = stash_pending(
                kind=name,
                preview=self.text,
                args=self.args,
                idempotent=self.tool.idempotent,
                reason=reason,
                typed_code=self.tool.typed_code,
                version=self.tool.version,
                shown=ShownTool(self.tool_digest, self.values_digest, form),
            )
        except PendingActionExistsError as exc:
            return AlreadyPending(message=str(exc))
        except ActionDeniedError as exc:
            return AlreadyDenied(message=str(exc))
        except (TypeError, ValueError) as exc:
            raise ToolExecutionError(
                f"cannot propose {name!r}: {exc}", tool_name=name, error=exc
            ) from exc

        if proposal is None:
            raise ToolExecutionError(
                f"{name!r} needs a confirmation, but there is no user to give it: "
                "run it on a channel",
                tool_name=name,
            )
        return PendingConfirmation(action=name, preview=self.text)
