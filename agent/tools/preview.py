"""The preview of a call that needs a confirmation, and the reason that a model may give for a call."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic_core import to_jsonable_python

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.parameter import ToolParameter
from sayso.channels.i18n.invisible import readable
from sayso.pending.context import with_context
from sayso.pending.executors import ToolResult
from sayso.pending.proposals import current_context

#: A format template over the arguments, or a function of them. A ToolResult means that there is nothing to propose.
Preview = str | Callable[..., str | ToolResult]
#: Values that contain no Markdown, and that templates may format: {euros:.2f}, {day:%d.%m.%Y}.
_NUMBERS = (int, float, Decimal, date, time)
#: Characters that are Markdown syntax: links, code, emphasis, entities, escapes. An underscore inside a word and a star
#: between spaces are not.
_MARKUP = re.compile(
    r"""()(
        \\(?=[!-/:-@\[-`{-~]|$) | [`\[\]] | <(?=\S) | &(?=\#?\w+;) | ~(?=~) | (?<=~)~
        | (?<!\s)\* | \*(?!\s|$) | (?<![^\W_])_ | _(?![^\W_])
    )""",
    re.VERBOSE,
)

#: Markdown syntax at the beginning of a line: headings, quotes, bullets, rules; and numbers of a list.
_AT_START = re.compile(r"^()(\#(?=\#{0,5}(?:\s|$)) | > | [+-](?=\s|$) | [-=](?=[-=\s]*$))", re.VERBOSE)
_NUMBER_AT_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
#: Text that could pass for the end of an argument in a list of arguments, and space that would not be visible there.
_ENDS_EARLY = re.compile(r'[,="\n]|^\s|\s$|\s\s')
#: Code blocks, code and links, in which no escape keeps an argument literal.
_CODE_OR_LINK = re.compile(
    r"^\ {0,3}(```+|~~~+)[^\n]*\n.*?(?:^\ {0,3}\1|\Z) | (?<!`)(`+)(?!`).*?(?<!`)\2(?!`) | \[[^\]]*\]\([^)]*\)?",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)

#: Line breaks, shown as ⏎, and runs of spaces, which a page would show as one.
_BREAK = re.compile(r"\s*\n\s*")
_WIDE = re.compile(r"\s{2,}")


def check_preview(tool_name: str, preview: Preview | None, names: Collection[str]) -> None:
    """Raise ToolValidationError for a malformed template, an unknown argument in it, and an async function."""
    if inspect.iscoroutinefunction(preview):
        raise ToolValidationError(f"preview of {tool_name!r} is async: give a plain function, which runs in a thread")
    if not isinstance(preview, str):
        return
    try:
        used = {re.split(r"[.\[]", field)[0] for _, field, _, _ in _parsed(preview) if field is not None}
    except ValueError as exc:
        raise ToolValidationError(f"preview of {tool_name!r} is no format template: {exc}") from exc
    unknown = sorted(used - set(names))
    if unknown:
        raise ToolValidationError(f"preview of {tool_name!r} uses unknown {unknown!r}; it has {sorted(names)!r}")
    filled = "".join(f"{text}\0" if field is not None else text for text, field, _, _ in _parsed(preview))
    if any("\0" in found[0] for found in _CODE_OR_LINK.finditer(filled)):
        raise ToolValidationError(
            f"preview of {tool_name!r} has an argument inside code or a link, where it could hide or pass for another: "
            "put it in running text, where it stands as it is"
        )


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return list(string.Formatter().parse(template))


def preview_text(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str] = ()
) -> str | ToolResult:
    """Return the preview of one call. Raises TypeError if it is no text, ValueError if it is empty.

    Without a template or function it is the tool's name and every argument in full; `optional` arguments that are None
    are left out. Arguments are literal in it and in templates: none can hide a part of itself, pass for another
    argument, or begin a line of its own. A function returns Markdown of the tool's author.
    """
    text = _text(tool_name, preview, args, optional)
    if not isinstance(text, str | ToolResult):
        raise TypeError(f"the preview of {tool_name!r} is {text!r}: return text, or a ToolResult to propose nothing")
    if isinstance(text, str) and not text.strip():
        raise ValueError(f"the preview of {tool_name!r} is empty: say what will happen")
    return text


def _text(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str]
) -> str | ToolResult:
    if isinstance(preview, str):
        return _LiteralFormatter().vformat(preview, (), args)
    if preview is not None:
        return preview(**args, **with_context(preview, current_context))
    given = {name: value for name, value in args.items() if value is not None or name not in optional}
    listed = ", ".join(f"{_listed(name)} = {_listed(value)}" for name, value in given.items())
    return f"{literal(tool_name)}: {listed}" if listed else literal(tool_name)


class _LiteralFormatter(string.Formatter):
    """Fills a template with literal values, also of attributes and items of arguments."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return one value as literal text."""
        if isinstance(value, str):
            return str(format(literal(value), format_spec))
        if isinstance(value, _NUMBERS):
            return str(format(value, format_spec))
        return literal(str(format(value, format_spec)) if format_spec else _plain_text(value))


def _listed(value: Any) -> str:
    """Return a value in a list of arguments, in quotes if its end would not be visible."""
    text = _plain_text(value)
    if isinstance(value, str) and (not text.strip() or _ENDS_EARLY.search(text)):
        text = json.dumps(text, ensure_ascii=False)
    return literal(text)


def _plain_text(value: Any) -> str:
    """Return a value as text; a collection as the JSON that is stored, so that no part of it is left out."""
    plain = to_jsonable_python(value, fallback=str)
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    return str(value.value if isinstance(value, Enum) else value)


def literal(text: str) -> str:
    """Return the text on one line, escaped so that Markdown shows it literally, with invisible characters as codes."""
    line = _WIDE.sub(lambda gap: " " + "\u00a0" * (len(gap[0]) - 1), _BREAK.sub(" ⏎ ", readable(text).strip()))
    for pattern in (_MARKUP, _AT_START, _NUMBER_AT_START):
        line = pattern.sub(r"\1\\\2", line)
    return line


#: The argument that `think_augment` adds to a tool.
REASON = "toolcall_reason"
_REASON_SCHEMA = {"type": "string", "description": "Why you call this tool, and what you expect of it."}


def with_reason(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the reason first: a model decides better after it has written why."""
    if REASON in schema["properties"]:
        return dict(schema)
    return {**schema, "properties": {REASON: _REASON_SCHEMA, **schema["properties"]}}


def without_reason(params: Mapping[str, Any], parameters: Iterable[ToolParameter]) -> Mapping[str, Any]:
    """Return the arguments without the reason for the call, unless the tool itself has a parameter of that name."""
    if not isinstance(params, Mapping) or REASON not in params or any(each.name == REASON for each in parameters):
        return params
    return {name: value for name, value in params.items() if name != REASON}
