"""The errors of tools. Models and users read their texts.

ToolError
├── ToolNotFoundError
├── ToolValidationError
│   └── ToolParameterError
├── ToolExecutionError
│   ├── EffectUnknownError
│   └── PreviewError
└── ToolLoadError
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sayso.infra.redaction import redact
from sayso.pending.error_texts import error_text, readable_text

#: Longest list of parameter names in an error, in characters.
MAX_NAME_CHARS = 200
#: The border of the box that is drawn around a validation error, so that models notice it.
_RULE = "=" * 60
#: Matches such a box, and finds in it what is wrong.
_BOX = re.compile(
    rf"^(?:Error: )?{_RULE}\n❌.*?^Issue: (?P<issue>.*?)\n\n(?:💡|{_RULE})",
    re.MULTILINE | re.DOTALL,
)


class ToolError(Exception):
    """Base of all errors of tools. Secrets of this process are redacted from its text."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        return redact(super().__str__())

    @property
    def words_for_person(self) -> str:
        """The text for the user who confirmed the call; "" if the error's text is not for users."""
        return str(self)


class ToolNotFoundError(ToolError):
    """Raised when no tool is registered under a name."""


class ToolValidationError(ToolError):
    """Raised when a tool is defined wrongly, or called with arguments that its schema refuses.

    `issue` says what is wrong with the parameter `param_name` of the tool `tool_name`, and
    `suggestion` what to do. "" where there is none. Without a `message`, the text is a box with
    these four.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool_name: str = "",
        param_name: str = "",
        issue: str = "",
        suggestion: str = "",
    ) -> None:
        names = param_name
        if len(param_name) > MAX_NAME_CHARS:
            names = f"{param_name[:MAX_NAME_CHARS]}..."
        lines = [_RULE, f"❌ Tool Validation Error: {tool_name!r}", _RULE, ""]
        if names:
            lines.append(f"Parameter: {names}")
        lines.append(f"Issue: {issue}")
        if suggestion:
            lines += ["", f"💡 Suggestion: {suggestion}"]
        super().__init__(message or "\n".join([*lines, "", _RULE]))
        self.tool_name = tool_name
        self.param_name = param_name
        self.issue = issue
        self.suggestion = suggestion

    @property
    def words_for_person(self) -> str:
        """The issue on one line, without the box around it, which is for models."""
        return issue_in_box(str(self)) or str(self)


class ToolParameterError(ToolValidationError):
    """Raised when a tool refuses the arguments of a call.

    The text tells the model how to correct them.
    """


class ToolExecutionError(ToolError):
    """Raised when a tool's code failed.

    `error` is the cause, which is chained too; None if Sayso itself found the failure. `params` are
    the call's arguments. They are left out of the text, since they contain the user's words.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool_name: str = "",
        error: BaseException | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not message:
            text = "None" if error is None else error_text(error)
            message = f"Error executing tool {tool_name!r}: {type(error).__name__}: {text}"
        super().__init__(message)
        self.tool_name = tool_name
        self.error = error
        self.params = dict(params or {})

    @property
    def words_for_person(self) -> str:
        """The text; "" for an exception that the tool's author did not write for users."""
        if self.error is None:
            return str(self)
        return ""


class EffectUnknownError(ToolExecutionError):
    """Raised when a call may have taken effect.

    Another system gave no answer, or the tool took too long.
    """


def readable_error(error: Exception, tool_name: str, params: Mapping[str, Any]) -> ToolError:
    """Return the error of a tool's code as a ToolError whose text can be read.

    A ToolError is returned unchanged. Any other exception was not written for users, and becomes a
    ToolExecutionError. So does a ToolError of the tool's author that raises when its text is read.
    """
    if isinstance(error, ToolError) and readable_text(error) is not None:
        return error
    if isinstance(error, EffectUnknownError):
        message = f"tool {tool_name!r} does not know whether it took effect"
        return EffectUnknownError(message, tool_name=tool_name, error=error, params=params)
    return ToolExecutionError(tool_name=tool_name, error=error, params=params)


class PreviewError(ToolExecutionError):
    """Raised when the code of a preview failed. The text names the error's type, not its words."""

    def __init__(self, *, tool_name: str, error: BaseException) -> None:
        message = f"cannot preview {tool_name!r} ({type(error).__name__}): nothing was asked"
        super().__init__(message, tool_name=tool_name, error=error)


class ToolLoadError(ToolError):
    """Raised when a module of tools cannot be found or imported."""


def issue_in_box(text: str) -> str:
    """Return the issue in the text of a ToolValidationError, as one line; "" for other texts."""
    box = _BOX.match(text)
    if box is None:
        return ""
    return " ".join(box["issue"].split())
