"""Finds JSON in the text of a model, which may write words around it, and reads it.

`extract_json` and `values_in` find the objects and arrays of an answer. They may stand anywhere and
must be correct JSON, apart from line breaks in strings. `decode_value` reads a value whose place is
known, such as the one behind the marker of a tool call. It can repair the mistakes that models make
most often. `json_or_text` reads the result of a tool, which may be JSON or any other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

_SPACE = r"[ \t\n\r]*+"
#: A JSON string. Unescaped line breaks and tabs are allowed, because models write them. The group
#: is not repeated possessively: before Python 3.11.5, a possessive group that failed half way, such
#: as at a wrong escape, counted as matched.
_STRING = r'"(?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?+[0-9]++)?"
_SCALAR = rf"{_STRING}|{_NUMBER}|true|false|null"

#: What a JSON value may begin with: a bracket, or all of a string, a number or a constant.
_VALUE = re.compile(rf"{_SPACE}(?:[\[{{]|{_SCALAR})")
#: A name of an object, with its colon.
_KEY = re.compile(rf"{_SPACE}{_STRING}{_SPACE}:")
#: What may follow an opening bracket, by the bracket.
_AFTER_OPENING: Mapping[str, re.Pattern[str]] = {
    "[": re.compile(rf"{_SPACE}(?:[\[{{\]]|{_SCALAR})"),
    "{": re.compile(rf"{_SPACE}(?:}}|{_STRING}{_SPACE}:)"),
}
#: What may follow a comma, by the bracket around it.
_AFTER_COMMA: Mapping[str, re.Pattern[str]] = {"[": _VALUE, "{": _KEY}
#: What may follow a value, by the bracket around it.
_AFTER_VALUE: Mapping[str, re.Pattern[str]] = {
    "[": re.compile(rf"{_SPACE}[,\]]"),
    "{": re.compile(rf"{_SPACE}[,}}]"),
}

#: The start of a code block whose content starts with a bracket.
_CODE_BLOCK = re.compile(r"```[\w+.-]*+\s*+(?=[\[{])")
_OPENING_BRACKET = re.compile(r"[\[{]")
#: A text whose first character, behind white space, is an opening bracket.
_BRACKET_FIRST = re.compile(rf"{_SPACE}[\[{{]")


def extract_json(text: str) -> str | None:
    """Return the first JSON object or array of a text, None without one.

    One at the start of a code block is preferred. Brackets that are not JSON are skipped. Strings
    may contain line breaks and tabs: read the result with `json.loads(..., strict=False)`. Takes
    linear time at any depth.
    """
    return next(values_in(text), None)


def values_in(text: str) -> Iterator[str]:
    """Yield the JSON objects and arrays of a text that are not inside of another one.

    Those at the start of a code block come first. Strings may contain line breaks and tabs: read
    the values with `json.loads(..., strict=False)`.
    """
    # A code block inside of a value is a part of one of its strings, and does not count.
    spans = _outermost_spans(text)
    block_starts = {block.end() for block in _CODE_BLOCK.finditer(text)}
    first_spans = [span for span in spans if span[0] in block_starts]
    other_spans = [span for span in spans if span[0] not in block_starts]
    for start, end in first_spans + other_spans:
        yield text[start:end]


def starts_in(text: str) -> Iterator[int]:
    """Yield the positions where an object or an array may start: those of opening brackets."""
    return (bracket.start() for bracket in _OPENING_BRACKET.finditer(text))


def _outermost_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of the objects and arrays that are not inside of another one."""
    scanner = _JsonScanner(text)
    spans: list[tuple[int, int]] = []
    until = 0
    for start in starts_in(text):
        if start < until:
            continue
        end = scanner.end(start)
        if end:
            until = end
            spans.append((start, end))
    return spans


class _JsonScanner:
    """Finds the ends of the JSON values in one text.

    Takes linear time, because at most two attempts read the same characters. An attempt stores an
    end for each bracket that it reads as structure, and these brackets are not tried again. Only a
    bracket that it reads as part of a string can begin a second attempt. The second one reads as
    structure what the first one read as strings. So it stores the other brackets, and none is left
    for a third attempt.

    In `{"a [1, "b", 2] c": 3`, the attempt at `{` reads `"a [1, "` as a string, and fails at `b`.
    The attempt at `[` reads `1, "b", 2` as items of an array, and succeeds.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        #: The end of each value by its start; 0 where an opening bracket begins no value.
        self._ends: dict[int, int] = {}

    def end(self, start: int) -> int:
        """Return the position after the value that starts here; 0 if there is none."""
        if start not in self._ends:
            self._read(start)
        return self._ends[start]

    def _read(self, start: int) -> None:
        """Store the ends of the value at `start` and of all values inside it, as far as they go."""
        text = self._text
        #: The positions of the brackets that are open.
        open_brackets = list[int]()
        expected = _VALUE
        at = start
        while True:
            match = expected.match(text, at)
            if match is None:
                return
            at = match.end()

            # The last character says what was matched: a bracket, a colon, a comma, or else a
            # value.
            last = text[at - 1]
            if last in "[{":
                open_brackets.append(at - 1)
                self._ends[at - 1] = 0
                expected = _AFTER_OPENING[last]
                continue
            if last in "]}":
                self._ends[open_brackets.pop()] = at
                if not open_brackets:
                    return

            bracket = text[open_brackets[-1]]
            if last == ":":
                expected = _VALUE
            elif last == ",":
                expected = _AFTER_COMMA[bracket]
            else:
                expected = _AFTER_VALUE[bracket]


#: A string in single or double quotes. One without an end contains the rest of the text, which is
#: read only once. Possessive groups are safe here, unlike in `_STRING`: the group can fail half way
#: only at a backslash that ends the text.
_QUOTED_STRING = r'"(?:[^"\\]|\\.)*+"?|' r"'(?:[^'\\]|\\.)*+'?"
_STRING_OR_BRACKET = re.compile(rf"{_QUOTED_STRING}|[{{}}\[\]]", re.DOTALL)
#: What is repaired: a string in single quotes, a comma before a closing bracket, and Python's
#: constants. Strings in double quotes match as well, so that nothing inside them does.
_REPAIRABLE = re.compile(rf"{_QUOTED_STRING}|,(?=\s*+[}}\]])|\b(?:True|False|None)\b", re.DOTALL)
_REPAIRS = {"True": "true", "False": "false", "None": "null", ",": ""}
_ESCAPE_OR_QUOTE = re.compile(r"\\.|\"", re.DOTALL)
#: What changes between the quotes when single quotes become double ones. Other escapes stay.
_REQUOTED = {"\\'": "'", '"': '\\"'}
#: How each bracket changes the depth.
_DEPTH_CHANGES = {"{": 1, "[": 1, "}": -1, "]": -1}


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python reads as JSON and others do not."""
    raise ValueError(f"JSON has no {name}: use null or a number")


def json_or_text(text: str) -> Any:
    """Return the object or list of a text that is JSON as a whole; any other text unchanged.

    A program wrote the text, not a model: it must be correct JSON.
    """
    if not _BRACKET_FIRST.match(text):
        return text
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text


#: Not strict, because models write unescaped line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)


def decode_value(text: str, *, repair: bool) -> tuple[Any, int]:
    """Return the JSON value at the start of the text, and its length; (None, 0) without one.

    Line breaks and tabs may stand in strings. With `repair`, an object or array may also have
    strings in single quotes, Python's constants, and commas before a closing bracket.
    """
    try:
        return _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        if not repair or not text.startswith(("{", "[")):
            return None, 0

    length = _bracketed_length(text)
    if not length:
        return None, 0
    repaired = _REPAIRABLE.sub(_repaired, text[:length])
    try:
        return _DECODER.decode(repaired), length
    except (ValueError, RecursionError):
        return None, 0


def _bracketed_length(text: str) -> int:
    """Return the number of characters up to the bracket that closes the first; 0 if none does.

    The text begins with an opening bracket. Brackets inside strings do not count.
    """
    depth = 0
    for part in _STRING_OR_BRACKET.finditer(text):
        depth += _DEPTH_CHANGES.get(part[0], 0)
        if depth == 0:
            return part.end()
    return 0


def _repaired(match: re.Match[str]) -> str:
    """Return the repair of what `_REPAIRABLE` matched; unchanged if it needs none."""
    text = match[0]
    if not text.startswith("'"):
        return _REPAIRS.get(text, text)
    inside = _ESCAPE_OR_QUOTE.sub(lambda each: _REQUOTED.get(each[0], each[0]), text[1:-1])
    return f'"{inside}"'
