"""ToolError tree."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from sayso.channels.redaction import redact

#: What a tool's own code may raise to leave more than itself. A KeyboardInterrupt is the user's, in sync code.
FATAL_ERRORS = (SystemExit, GeneratorExit, asyncio.CancelledError)


#: Characters of the names of parameters that an error shows.
MAX_NAME_CHARS = 200


#: The edge of the box around a validation error.
_RULE = "=" * 60


class ToolError(Exception):
    """Base of what the tools room raises. Models and people read its words, so secrets of this process are redacted."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(redact(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        return redact(super().__str__())

    @property
    def words_for_person(self) -> str:
        """What the person whose yes ran the tool is told; "" for words that stay private."""
        return str(self)


class ToolNotFoundError(ToolError):
    """Raised when a tool is asked for by a name nobody registered."""


class ToolValidationError(ToolError):
    """Raised when a tool is defined wrongly, or called with arguments its schema refuses.

    `issue` says what is wrong with `param_name` of `tool_name`, `suggestion` what to do. Without a `message` they make
    one, in a box (seed: Error Messages).
    """

    def __init__(
        self, message: str = "", *, tool_name: str = "", param_name: str = "", issue: str = "", suggestion: str = ""
    ) -> None:
        super().__init__(message or _boxed(tool_name, param_name, issue, suggestion))
        self.tool_name = tool_name
        self.param_name = param_name
        self.issue = issue
        self.suggestion = suggestion


def _boxed(tool_name: str, param_name: str, issue: str, suggestion: str) -> str:
    lines = [_RULE, f"❌ Tool Validation Error: {tool_name!r}", _RULE, ""]
    shown = param_name if len(param_name) <= MAX_NAME_CHARS else f"{param_name[:MAX_NAME_CHARS]}..."
    lines += [f"Parameter: {shown}"] if shown else []
    lines += [f"Issue: {issue}"]
    lines += ["", f"💡 Suggestion: {suggestion}"] if suggestion else []
    return "\n".join([*lines, "", _RULE])


class ToolParameterError(ToolValidationError):
    """Raised when a call has arguments that its tool refuses; the text is what a model corrects itself from."""


class ToolExecutionError(ToolError):
    """Raised when a tool's own code failed. The cause is chained, and in `error`; `params` is what it was called with.

    `params` stays out of the text: arguments are the user's words.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool_name: str = "",
        error: BaseException | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message or f"Error executing tool {tool_name!r}: {type(error).__name__}: {error}")
        self.tool_name = tool_name
        self.error = error
        self.params = dict(params or {})

    @property
    def words_for_person(self) -> str:
        """Nothing of an exception that the tool's author did not write for people."""
        return str(self) if self.error is None else ""


class EffectUnknownError(ToolExecutionError):
    """Raised when somebody else was asked to act and no answer came: whether it took effect, nobody can tell."""


class ToolLoadError(ToolError):
    """Raised when a module of tools cannot be found or imported."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is spelled most like it; "" where none is near."""
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1)), "")


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """The question for a message, in a form such as `"; {}"`; "" where no known name is near."""
    close = nearest(name, known)
    return form.format(f"did you mean {close!r}?") if close else ""
