"""Preview: the words a user agrees to before a tool acts."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from agent.tools.errors import ToolValidationError
from pending.action import readable
from pending.results import ToolResult

#: A format template over the arguments, or a function of them. A ToolResult means: there is nothing to propose.
Preview = str | Callable[..., str | ToolResult]


def check_preview(tool_name: str, preview: Preview | None, names: Collection[str]) -> None:
    """Refuse a template that is malformed, or names an argument the tool does not have."""
    if not isinstance(preview, str):
        return
    try:
        used = {_root(field) for _, field, _, _ in string.Formatter().parse(preview) if field is not None}
    except ValueError as exc:
        raise ToolValidationError(f"preview of {tool_name!r} is no format template: {exc}") from exc
    unknown = sorted(used - set(names))
    if unknown:
        raise ToolValidationError(f"preview of {tool_name!r} uses unknown {unknown!r}; it has {sorted(names)!r}")


def _root(field: str) -> str:
    return field.split(".")[0].split("[")[0]


def preview_words(tool_name: str, preview: Preview | None, args: Mapping[str, Any]) -> str | ToolResult:
    """The preview of one call. Raises ValueError when it comes out empty: nobody can agree to nothing."""
    words = _words(tool_name, preview, args)
    if isinstance(words, str) and not words.strip():
        raise ValueError(f"the preview of {tool_name!r} is empty: say what will happen")
    return words


def _words(tool_name: str, preview: Preview | None, args: Mapping[str, Any]) -> str | ToolResult:
    if isinstance(preview, str):
        return preview.format(**{name: _plain(value) for name, value in args.items()})
    if preview is not None:
        return preview(**args)
    listed = ", ".join(f"{name} = {_plain(value)}" for name, value in args.items() if value is not None)
    return f"{tool_name}: {listed}" if listed else tool_name


def _plain(value: Any) -> Any:
    """A value as it stands in a preview: words on one line, without marks that change how the rest of it reads."""
    if not isinstance(value, str):
        return value
    return " ".join(readable(value).split())
