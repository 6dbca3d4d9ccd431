"""The preview of a call: what a person reads before they confirm it.

A tool's author gives it as a template or a function, or else it is the list of the arguments. It
must not be possible to hide a part of an argument in it, or to let one argument pass for another:
`literal` shows a text unchanged. `check_preview` checks a preview when the tool is defined, and
`preview_text` makes the preview of one call.
"""

from __future__ import annotations

import inspect
import json
import re
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from sayso.agent.tools.digests import unordered_digest
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.signature import call_method
from sayso.channels.i18n.invisible import readable
from sayso.channels.markdown.literal import Markdown, as_markdown, escaped_line
from sayso.pending.action import compute_args_digest
from sayso.pending.executors import PendingConfirmation, ToolResult
from sayso.pending.proposals import current_context
from sayso.pending.tool_context import context_arguments, context_parameters

#: Values that contain no Markdown, and that templates may format: {euros:.2f}, {day:%d.%m.%Y}.
_FORMATTED_TYPES = (int, float, Decimal, date, time)
#: Text that could pass for the end of an argument in a list of arguments, and space that would not
#: be visible there.
_LOOKS_LIKE_END = re.compile(r'[,="\n]|^\s|\s$|\s\s')
#: Code blocks, code and links, in which no escape keeps an argument literal.
_CODE_OR_LINK = re.compile(
    r"""
    ^\ {0,3}(```+|~~~+)[^\n]*\n.*?(?:^\ {0,3}\1|\Z)
    | (?<!`)(`+)(?!`).*?(?<!`)\2(?!`)
    | \[[^\]]*\]\([^)]*\)?
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
#: A line break in an argument, shown as ⏎.
_LINE_BREAK = re.compile(r"\s*\n\s*")
#: Several spaces, which a page would show as one.
_SEVERAL_SPACES = re.compile(r"\s{2,}")


@dataclass(frozen=True, slots=True)
class CheckedPreview:
    """A preview that shows data which may change before the yes, such as the balance of an account.

    At the yes the preview is made again. The call runs only if the `values` are the same as when
    the user was asked; the rest of the text may differ. For a preview that is a plain text, the
    whole text must be the same.
    """

    text: str
    #: The values in the text that must not change: anything that JSON can express, such as a list.
    #: An empty list if nothing but the arguments counts. The order of a list counts, the order of a
    #: set or a dict does not.
    values: Any

    @property
    def digest(self) -> str:
        """The digest of the values."""
        return _digest_of_values(self.values)


def _digest_of_values(value: Any) -> str:
    """Return a digest in which the order of lists counts, unlike in `unordered_digest`.

    An object such as a model is digested without any order: its sets look like lists in JSON.
    """
    if isinstance(value, dict):
        digests = {key: _digest_of_values(each) for key, each in value.items()}
        return compute_args_digest(to_jsonable_python(digests, fallback=str))
    if isinstance(value, list | tuple):
        return compute_args_digest({"ordered": [_digest_of_values(each) for each in value]})
    if isinstance(value, set | frozenset):
        return compute_args_digest({"set": sorted(map(_digest_of_values, value))})
    return unordered_digest(to_jsonable_python(value, fallback=str))


#: What a tool's author gives as a preview: a format template over the arguments, or a function of
#: them. A function that returns a ToolResult, such as NotFound, says that there is nothing to
#: propose.
Preview = str | Callable[..., str | CheckedPreview | ToolResult]


def check_preview(
    tool_name: str,
    preview: Preview | None,
    names: Collection[str],
    hidden: Collection[str] = (),
    *,
    takes_all: bool = True,
) -> None:
    """Raise ToolValidationError for a preview that cannot be made of the arguments of a call.

    `names` are the arguments that a model fills. A template may name no others. A function may
    require no others, besides a ToolContext; with `takes_all` it must take each of them.
    `hidden` are the arguments that are injected, none of them in `names`: neither a template nor a
    function may name them.
    """
    # An object whose class has an async `__call__` is async, too.
    if any(_gives_no_text(each) for each in (preview, call_method(preview))):
        cure = "give a plain function, which runs in a thread"
        raise ToolValidationError(f"preview of {tool_name!r} is async or yields: {cure}")
    if isinstance(preview, str):
        _check_template(tool_name, preview, names, hidden)
    elif preview is not None:
        _check_preview_function(tool_name, preview, names, hidden, takes_all=takes_all)


def _gives_no_text(function: Any) -> bool:
    """Return whether calling the function gives a coroutine or a generator, and so no text."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )


def _check_hidden(tool_name: str, named: Collection[str], hidden: Collection[str]) -> None:
    """Raise ToolValidationError if a preview names an argument that is injected."""
    injected = sorted(set(named) & set(hidden))
    if injected:
        raise ToolValidationError(
            f"preview of {tool_name!r} names the injected {injected!r}: "
            "it gets the stored arguments alone, since they are what a yes is for. "
            "Leave it out, or have a preview function look it up itself; "
            "with the annotation ToolContext it gets a context of its own"
        )


def _check_template(
    tool_name: str,
    preview: str,
    names: Collection[str],
    hidden: Collection[str],
) -> None:
    """Raise ToolValidationError for a malformed template, and for names that no model fills."""
    try:
        parts = _parts_of_template(preview)
    except ValueError as exc:
        raise ToolValidationError(f"preview of {tool_name!r} is no format template: {exc}") from exc

    # A field may name an attribute or an item of an argument: "order.id", "order[id]".
    fields = [part.field for part in parts if part.field is not None]
    used = {re.split(r"[.\[]", field)[0] for field in fields}
    _check_hidden(tool_name, used, hidden)
    unknown = sorted(used - set(names))
    if unknown:
        raise ToolValidationError(
            f"preview of {tool_name!r} uses unknown {unknown!r}; it has {sorted(names)!r}"
        )

    # An argument that is a width or a precision could hide a part of another one.
    if any("{" in (part.spec or "") for part in parts):
        raise ToolValidationError(
            f"preview of {tool_name!r} has an argument inside a format: write the format out"
        )

    # A NUL stands for each argument, to see whether one is inside code or a link.
    with_marks = ""
    for part in parts:
        with_marks += part.text
        if part.field is not None:
            with_marks += "\0"
    if any("\0" in match[0] for match in _CODE_OR_LINK.finditer(with_marks)):
        raise ToolValidationError(
            f"preview of {tool_name!r} has an argument inside code or a link, where it could hide "
            "or pass for another: put it in running text, where it stands as it is"
        )


class _TemplatePart(NamedTuple):
    """A piece of a format template: literal text, and the field behind it, such as {euros:.2f}."""

    text: str
    #: The name; None behind the last text.
    field: str | None
    #: The format, ".2f" in the example; "" or None for none.
    spec: str | None


def _parts_of_template(template: str) -> list[_TemplatePart]:
    """Return the parts of a format template. Raises ValueError."""
    parsed = string.Formatter().parse(template)
    return [_TemplatePart(text, field, spec) for text, field, spec, _ in parsed]


def _check_preview_function(
    tool_name: str,
    preview: Callable[..., Any],
    names: Collection[str],
    hidden: Collection[str],
    *,
    takes_all: bool,
) -> None:
    """Raise ToolValidationError for a function that could not be called with the arguments."""
    try:
        parameters = inspect.signature(preview).parameters
    except (ValueError, TypeError):  # some built-ins have none
        return
    filled_by_sayso = context_parameters(preview)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken_by_name = [name for name, each in parameters.items() if each.kind in by_name]
    taken = [name for name in taken_by_name if name not in filled_by_sayso]
    _check_hidden(tool_name, taken, hidden)

    required = [name for name in taken if parameters[name].default is inspect.Parameter.empty]
    unknown = sorted(set(required) - set(names))
    if unknown:
        problem = f"needs unknown {unknown!r}; it has {sorted(names)!r}"
        raise ToolValidationError(f"preview of {tool_name!r} {problem}")
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    missing = sorted(set(names) - set(taken))
    if takes_all and missing and not takes_any:
        problem = f"does not take {missing!r} by name"
        cure = "add them to its parameters, or **_ where it shows less than the whole call"
        raise ToolValidationError(f"preview of {tool_name!r} {problem}: {cure}")

    by_position = [
        name
        for name, each in parameters.items()
        if each.kind is inspect.Parameter.POSITIONAL_ONLY
        and each.default is inspect.Parameter.empty
    ]
    if by_position:
        problem = f"takes {by_position!r} by position only: arguments are passed by name"
        raise ToolValidationError(f"preview of {tool_name!r} {problem}")


def preview_text(
    tool_name: str, preview: Preview | None, args: Mapping[str, Any], optional: Collection[str] = ()
) -> CheckedPreview | str | ToolResult:
    """Return the preview of one call.

    Without a template or function it is the tool's name and every argument in full; `optional`
    arguments that are None are left out. Arguments are literal in it and in templates: none can
    hide a part of itself, pass for another argument, or begin a new line. The rest of a template is
    Markdown of the tool's author. What a function returns is text, unless it is `Markdown`.

    Raises TypeError if the preview is no text, ValueError if it is empty, and what a preview
    function raises.
    """
    if preview is None:
        return default_preview(tool_name, args, optional)
    if isinstance(preview, str):
        text = _LiteralFormatter().vformat(preview, (), args)
        _check_not_empty(tool_name, text)
        return Markdown(text)
    returned = preview(**args, **context_arguments(preview, current_context))
    _check_returned(tool_name, returned)
    return _with_text_as_markdown(returned)


def _check_returned(tool_name: str, returned: Any) -> None:
    """Raise TypeError or ValueError for a value that no preview function may return."""
    # A PendingConfirmation says that the user has been asked. The run would end, and no question
    # would be stored.
    is_question = isinstance(returned, PendingConfirmation)
    if is_question or not isinstance(returned, str | CheckedPreview | ToolResult):
        # The value itself may be secret, and the error is logged.
        raise TypeError(
            f"the preview of {tool_name!r} returned a value of type {type(returned).__name__}: "
            "return text, or a ToolResult to propose nothing"
        )
    if isinstance(returned, CheckedPreview):
        _check_not_empty(tool_name, returned.text)
    elif isinstance(returned, str):
        _check_not_empty(tool_name, returned)


def _check_not_empty(tool_name: str, text: str) -> None:
    """Raise ValueError if a preview is empty."""
    if not text.strip():
        raise ValueError(f"the preview of {tool_name!r} is empty: say what will happen")


def _with_text_as_markdown(
    preview: CheckedPreview | str | ToolResult,
) -> CheckedPreview | str | ToolResult:
    """Return what a preview function returned, with plain text as Markdown that shows it."""
    if isinstance(preview, CheckedPreview):
        return replace(preview, text=as_markdown(preview.text))
    if isinstance(preview, str):
        return as_markdown(preview)
    return preview


def default_preview(
    tool_name: str,
    args: Mapping[str, Any],
    optional: Collection[str] = (),
) -> Markdown:
    """Return a tool's name and every argument in full, except `optional` ones that are None."""
    arguments = []
    for name, value in args.items():
        if value is not None or name not in optional:
            arguments.append(f"{_listed(name)} = {_listed(value)}")
    if not arguments:
        return Markdown(literal(tool_name))
    return Markdown(f"{literal(tool_name)}: {', '.join(arguments)}")


class _LiteralFormatter(string.Formatter):
    """Fills a template with literal values, also of attributes and items of arguments."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return one value as literal text."""
        if isinstance(value, str):
            return str(format(literal(value), format_spec))
        if isinstance(value, _FORMATTED_TYPES):
            return str(format(value, format_spec))
        if format_spec:
            return literal(str(format(value, format_spec)))
        return literal(_plain_text(value))


def _listed(value: Any) -> str:
    """Return a value in a list of arguments, in quotes if its end would not be visible.

    Any single value may hold a text of the model, a path or an address for example. JSON shows its
    end itself.
    """
    text = _plain_text(value)
    is_unclear = not text.strip() or _LOOKS_LIKE_END.search(text)
    if is_unclear and _collection_as_json(value) is None:
        text = json.dumps(text, ensure_ascii=False)
    return literal(text)


def _plain_text(value: Any) -> str:
    """Return a value as text."""
    collection = _collection_as_json(value)
    if collection is not None:
        return collection
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


def _collection_as_json(value: Any) -> str | None:
    """Return a collection or a model as the JSON that is stored, so that no part is left out.

    None for a single value.
    """
    as_stored = to_jsonable_python(value, fallback=str)
    if isinstance(as_stored, list | dict):
        return json.dumps(as_stored, ensure_ascii=False)
    return None


def literal(text: str) -> str:
    """Return the text on one line, as Markdown that shows it literally.

    Invisible characters become their codes.
    """
    line = _LINE_BREAK.sub(" ⏎ ", readable(text).strip())
    return escaped_line(_SEVERAL_SPACES.sub(_as_visible_spaces, line))


def _as_visible_spaces(match: re.Match[str]) -> str:
    """Return as many spaces: a usual one, then no-break spaces, which a page does not join."""
    return " " + "\u00a0" * (len(match[0]) - 1)
