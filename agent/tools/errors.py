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

#: Longest list of parameter names in the text of an error, in characters.
MAX_NAME_CHARS = 200
#: The border of the box that is drawn around a validation error, so that models notice it.
_RULE = "=" * 60
#: Matches the box that `ToolValidationError.__init__` draws, and finds the issue in it. The agent
#: loop puts "Error: " before the text of an error in a result.
_BOX = re.compile(
    rf"^(?:Error: )?{_RULE}\n❌.*?^Issue: (?P<issue>.*?)\n\n(?:💡|{_RULE})",
    re.MULTILINE | re.DOTALL,
)


class ToolError(Exception):
    """Base of all errors of tools. Secrets of this process are redacted from its text.

    The attributes of the subclasses, such as `issue` and `params`, are not redacted. Do not log
    them.
    """

    def __init__(self, *args: object) -> None:
        # `repr` and tracebacks read `args`, not `__str__`.
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        # Once more: an argument that is no text may hold a secret.
        return redact(super().__str__())

    @property
    def words_for_person(self) -> str:
        """The text for the user who confirmed the call; "" if the error's text is not for users.

        For "" the user reads the type of the error and a reference to the log.
        """
        return str(self)


class ToolNotFoundError(ToolError):
    """Raised when no tool is registered under a name."""


class ToolValidationError(ToolError):
    """Raised when a tool is defined wrongly, or called with arguments that its schema refuses.

    `issue` says what is wrong with the parameter `param_name` of the tool `tool_name`, and
    `suggestion` what to do. `param_name` may name several, separated by ", ". "" where there is
    none. Without a `message`, the text is a box with these four.
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

        # `_BOX` must match these lines.
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
        """The issue on one line, without the box around it, which is for models.

        It is read from the text and not from `issue`: the text is redacted, and a `message` may be
        the box of another error. A box without an issue gives the suggestion.
        """
        text = str(self)
        if _BOX.match(text) is None:
            return text
        return issue_in_box(text) or redact(self.suggestion)


class ToolParameterError(ToolValidationError):
    """Raised when a tool refuses the arguments of a call.

    The text tells the model how to correct them.
    """


class ToolExecutionError(ToolError):
    """Raised when a tool's code failed.

    `error` is the exception behind the failure; None if there is none. It decides whether users
    read the text: with an `error` they do not, since the text may quote that exception. Chain it as
    well: `raise ToolExecutionError(..., error=exc) from exc`. `params` are the call's arguments.
    They are left out of the text, since they contain the user's words.
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
            message = f"Error executing tool {tool_name!r}"
            if error is not None:
                message = f"{message}: {type(error).__name__}: {error_text(error)}"
        super().__init__(message)
        self.tool_name = tool_name
        self.error = error
        self.params = dict(params or {})

    @property
    def words_for_person(self) -> str:
        """The text; "" if there is an `error`, since its text is not written for users."""
        if self.error is None:
            return str(self)
        return ""


class EffectUnknownError(ToolExecutionError):
    """Raised when a call may have taken effect.

    Another system gave no answer, or the tool took too long.
    """


class PreviewError(ToolExecutionError):
    """Raised when the code of a preview failed. The text names the error's type, not its words."""

    def __init__(self, *, tool_name: str, error: BaseException) -> None:
        message = f"cannot preview {tool_name!r} ({type(error).__name__}): nothing was asked"
        super().__init__(message, tool_name=tool_name, error=error)


class ToolLoadError(ToolError):
    """Raised when a module of tools cannot be found or imported."""


def readable_error(error: Exception, tool_name: str, params: Mapping[str, Any]) -> ToolError:
    """Return the error of a tool's code as a ToolError whose text can be read.

    A ToolError is returned unchanged. Any other exception was not written for users, and becomes
    the `error` of a ToolExecutionError, which the caller raises `from error`.
    """
    if isinstance(error, ToolError) and readable_text(error) is not None:
        return error

    # A class of the tool's author may raise when its text is read. Only its type still counts.
    if isinstance(error, EffectUnknownError):
        message = f"tool {tool_name!r} does not know whether it took effect"
        return EffectUnknownError(message, tool_name=tool_name, error=error, params=params)
    return ToolExecutionError(tool_name=tool_name, error=error, params=params)


def issue_in_box(text: str) -> str:
    """Return the issue in the text of a ToolValidationError, as one line; "" for other texts.

    `text` may be a call's result, where the error itself is not known.
    """
    box = _BOX.match(text)
    if box is None:
        return ""
    return " ".join(box["issue"].split())
