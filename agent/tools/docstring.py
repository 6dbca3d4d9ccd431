"""Docstring: what a function's author wrote of it, for a model to read: of the whole, and of each parameter."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import docstring_parser

#: Sections that say what the parameters are, which is shown beside each of them, and those that no model can use.
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params", "Other Parameters")
_LEFT_OUT = ("Raises", "Exceptions", "Except", "Warns", "Attributes")

_TITLE = re.compile(rf"({'|'.join([*_OF_PARAMETERS, *_LEFT_OUT])})(:?)\s*")
_UNDERLINE = re.compile(r"[-=]{3,}\s*")
_NUMPY_ENTRY = re.compile(r"\*{0,2}\w+(?:, *\*{0,2}\w+)*\s*(?::(?!\w+\s).*)?")
_FIELD = re.compile(
    r"[:@](?:(?P<own>param|parameter|arg|argument|key|keyword|type)"
    r"|raises?|except|exception|rtype|attr|attribute|[ci]?var|vartype)\b[^:]*:"
)

#: Whether a section is over before that line.
_Ends = Callable[[Sequence[str], int], bool]


def describe(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """A function's docstring (Google, NumPy or Sphinx style) as its description and those of its parameters.

    The description is everything that is written but for the sections about parameters, errors and attributes, also
    what stands after them: a warning at the end is a warning.
    """
    while isinstance(function, functools.partial):  # whose own docstring is Python's
        function = function.func
    whole, of_parameters = _divided(_lines(inspect.getdoc(function) or ""))
    try:  # the library wants a summary before the first section
        parsed = docstring_parser.parse("\n".join(["-", "", *of_parameters])).params
    except docstring_parser.ParseError:
        parsed = []
    described = {param.arg_name: " ".join(param.description.split()) for param in parsed if param.description}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(whole)).strip(), described


def _lines(text: str) -> list[str]:
    """Of a docstring that begins with a section, `getdoc` takes the section's own indent away: this gives it back."""
    first, *rest = text.splitlines() or [""]
    title = _TITLE.fullmatch(first)
    lost = title and title[2] and not _indented(next(filter(str.strip, rest), ""))
    return [first, *(f"    {line}" for line in rest)] if lost else [first, *rest]


def _divided(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines about the whole, and those about its parameters."""
    whole: list[str] = []
    of_parameters: list[str] = []
    into = whole
    ends: _Ends = _never
    for at, line in enumerate(lines):
        if ends(lines, at):
            into, ends = whole, _never
        opened = _opened(lines, at)
        if opened is not None:
            is_of_parameters, ends = opened
            into = of_parameters if is_of_parameters else []
        into.append(line)
    return whole, of_parameters


def _opened(lines: Sequence[str], at: int) -> tuple[bool, _Ends] | None:
    """Whether a section begins in that line that is not for the description: is it about parameters, and its end."""
    field = _FIELD.match(lines[at])
    if field:
        return field["own"] is not None, _sphinx_ends
    title = _TITLE.fullmatch(lines[at])
    if title is None:
        return None
    if title[2] and _indented(next(filter(str.strip, lines[at + 1 :]), "")):
        return title[1] in _OF_PARAMETERS, _google_ends
    return (title[1] in _OF_PARAMETERS, _numpy_ends) if _is_underlined(lines, at) else None


def _never(_: Sequence[str], __: int) -> bool:
    return False


def _google_ends(lines: Sequence[str], at: int) -> bool:
    return bool(lines[at]) and not _indented(lines[at])


def _numpy_ends(lines: Sequence[str], at: int) -> bool:
    """At the next title, and at words that are neither an entry nor what is indented under one."""
    line = lines[at]
    if not line or _indented(line) or _UNDERLINE.fullmatch(line):
        return False
    return _is_underlined(lines, at) or not _NUMPY_ENTRY.fullmatch(line)


def _sphinx_ends(lines: Sequence[str], at: int) -> bool:
    """At the next field, and at a paragraph that is not indented."""
    line = lines[at]
    return line.startswith((":", "@")) or (bool(line) and not _indented(line) and not lines[at - 1].strip())


def _indented(line: str) -> bool:
    return line[:1].isspace()


def _is_underlined(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) is not None
