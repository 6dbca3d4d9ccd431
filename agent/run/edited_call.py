"""edited_call: changes the arguments of a proposed call, and checks it like a new one.

All changes by people use it: those by a form, those field by field in the chat, and an Edit in
code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import editable_names, effective_decision
from sayso.agent.tools.errors import ToolError, ToolParameterError
from sayso.agent.tools.tool import Tool
from sayso.infra.concurrency import TimedOut, run_with_timeout
from sayso.pending.executors import ToolResult

#: How long the preview of a changed call may take, in seconds.
PREVIEW_SECONDS = 10.0


class EditRefused(Exception):
    """Raised when a change of a call is not possible. The text tells a program or a model why.

    * `kind`: "not_editable" for an argument that must not be changed, "invalid" for a value that
      the tool does not take, "denied" by the policy, "refused" if the preview found nothing to ask,
      and "no_preview" if there is no new question for another reason: the preview failed, or the
      schema of the tool could not be made.
    * `names`: the changed arguments at fault; for "denied" all changed arguments. Empty if the
      fault is elsewhere, or is not known.
    * `result`: what the preview returned instead of a question.
    """

    def __init__(
        self,
        kind: Literal["not_editable", "invalid", "denied", "refused", "no_preview"],
        message: str,
        names: Sequence[str] = (),
        result: ToolResult | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.names = tuple(names)
        self.result = result


class EditedCall:
    """A call after a person's change.

    * `editable`: the names of the arguments that may be changed once more.
    * `args`: the new arguments, validated.
    * `preview`: the text of the new question.
    * `values_digest`: the digest of the values that must be the same at the yes, if the preview is
      a CheckedPreview; "" if its whole text must be the same.
    """

    def __init__(
        self,
        tool: Tool,
        editable: Sequence[str],
        args: Mapping[str, Any],
        preview: str,
        values_digest: str,
    ) -> None:
        self.tool = tool
        self.editable = tuple(editable)
        self.args = dict(args)
        self.preview = preview
        self.values_digest = values_digest


async def edited_call(
    tool: Tool,
    args: Mapping[str, Any],
    changes: Mapping[str, Any],
    config: AgentConfig,
    *,
    sealed: Sequence[str] | None = None,
) -> EditedCall:
    """Return the call with these changes, checked like a new call: by schema, policy and preview.

    The call is asked about again, even if the policy would let a new call run without a question.

    * `args`: the arguments before the change.
    * `changes`: the new values by name; None removes an argument. Without changes the call is only
      checked again.
    * `sealed`: the names that the question offered to change, stored with the action under its
      MAC; None for any. A name counts only if the tool and the policy still let people change it.

    Raises EditRefused.
    """
    editable = editable_names(tool, config.tool_policy)
    if sealed is not None:
        editable = tuple(name for name in editable if name in sealed)
    refused_names = sorted(set(changes) - set(editable))
    if refused_names:
        known = f"editable of {tool.name!r}: {sorted(editable)!r}"
        raise EditRefused(
            "not_editable", f"{refused_names!r} cannot be changed; {known}", refused_names
        )

    # An argument that is changed to None is removed, so that the tool's default counts.
    new_args = {**args, **changes}
    for name, value in changes.items():
        if value is None:
            del new_args[name]
    try:
        # The validation needs the schema. Here it is made in a thread, since the tool's
        # `config_injector` may block.
        await tool.aschema()
        # Stricter than for a call that runs at once: these arguments are stored until the yes.
        checked_args = tool.validate_record(new_args)
    except ToolParameterError as exc:
        names = [name for name in changes if _is_at_fault(name, exc)]
        raise EditRefused("invalid", str(exc), names) from exc
    except ToolError as exc:
        raise EditRefused("no_preview", str(exc)) from exc

    # Only "deny" counts: after "allow" and "ask" a person is asked in any case.
    decision = effective_decision(tool, checked_args, config.tool_policy)
    if decision.decision == "deny":
        raise EditRefused("denied", f"{tool.name!r} is denied: {decision.reason}", list(changes))
    return await _with_preview(tool, editable, checked_args, config)


def _is_at_fault(name: str, error: ToolParameterError) -> bool:
    """Return whether the mistakes that an error names are in this argument, or inside of it."""
    paths = error.param_name.split(", ")  # such as "total, items.0.amount"
    return any(path == name or path.startswith(f"{name}.") for path in paths)


async def _with_preview(
    tool: Tool,
    editable: Sequence[str],
    args: Mapping[str, Any],
    config: AgentConfig,
) -> EditedCall:
    """Return the call with its preview, which is made in a thread. Raises EditRefused."""
    limits = (PREVIEW_SECONDS, config.tool_timeout_seconds, tool.metadata.timeout)
    seconds = min(limit for limit in limits if limit is not None)
    try:
        draft = await run_with_timeout(lambda: tool.draft(args), seconds)
    except (ToolError, TimedOut) as exc:
        # `draft` makes a ToolError of everything that a preview raises. Its words are left out:
        # they are about the code of the tool, and not about the change.
        problem = f"the preview of {tool.name!r} failed: nothing was asked"
        raise EditRefused("no_preview", problem) from exc
    if isinstance(draft.preview, ToolResult):
        reason = f"{tool.name!r} has nothing to ask with these values"
        raise EditRefused("refused", reason, result=draft.preview)
    # `draft.args` are the same arguments, in the order in which pending actions store them. The
    # same values are then always stored alike.
    return EditedCall(tool, editable, draft.args, draft.text, draft.values_digest)
