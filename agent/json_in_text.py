"""JSON in text: where in what a model wrote the objects and arrays are, found in linear time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

_SPACE = r"[ \t\n\r]*+"
#: Line breaks and tabs may stand in it unescaped: models write them so.
_STRING = r'"(?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_SCALAR = rf"{_STRING}|{_NUMBER}|true|false|null"

#: What may come where any value may, behind an opening bracket, behind a comma, and behind a value. Each is told
#: by its last character: that of a text is a quote.
_VALUE = re.compile(rf"{_SPACE}(?:[\[{{]|{_SCALAR})")
_KEY = re.compile(rf"{_SPACE}{_STRING}{_SPACE}:")
_FIRST: Mapping[str, re.Pattern[str]] = {
    "[": re.compile(rf"{_SPACE}(?:[\[{{\]]|{_SCALAR})"),
    "{": re.compile(rf"{_SPACE}(?:}}|{_STRING}{_SPACE}:)"),
}
_NEXT: Mapping[str, re.Pattern[str]] = {"[": _VALUE, "{": _KEY}
_REST: Mapping[str, re.Pattern[str]] = {"[": re.compile(rf"{_SPACE}[,\]]"), "{": re.compile(rf"{_SPACE}[,}}]")}

#: The beginning of a code block that begins with a bracket.
_FENCED = re.compile(r"```[\w+.-]*+\s*+(?=[\[{])")
_BRACKET = re.compile(r"[\[{]")


def values_in(text: str) -> Iterator[str]:
    """The JSON objects and arrays of a text, those at the beginning of a code block first; none inside another.

    They may hold line breaks and tabs in their strings: read them with `json.loads(..., strict=False)`.
    """
    scan, told = _Scan(text), set[tuple[int, int]]()
    fenced = (fence.end() for fence in _FENCED.finditer(text))
    for span in itertools.chain(_spans(scan, fenced), _spans(scan, starts_in(text))):
        if span not in told:
            told.add(span)
            yield text[slice(*span)]


def starts_in(text: str) -> Iterator[int]:
    """Where an object or an array might begin."""
    return (bracket.start() for bracket in _BRACKET.finditer(text))


def _spans(scan: _Scan, starts: Iterable[int]) -> Iterator[tuple[int, int]]:
    until = 0
    for start in starts:
        end = scan.end(start) if start >= until else 0
        if end:
            until = end
            yield start, end


class _Scan:
    """Where the values of a text end. No bracket is read twice as one.

    That keeps the whole in linear time: of two readings that go over the same characters one has in a string what the
    other has outside, until the first breaks off; so there are never three.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int] = {}

    def end(self, start: int) -> int:
        """Behind the value that begins there; 0 where none does."""
        if start not in self._ends:
            self._read(start)
        return self._ends[start]

    def _read(self, start: int) -> None:
        """Note the ends of the value and of all inside it, as far as it can be read."""
        text, opened, expected, at = self._text, list[int](), _VALUE, start
        while found := expected.match(text, at):
            at = found.end()
            mark = text[at - 1]
            if mark in "[{":
                opened.append(at - 1)
                self._ends[at - 1] = 0
                expected = _FIRST[mark]
                continue
            if mark in "]}":
                self._ends[opened.pop()] = at
                if not opened:
                    return
            expected = _expected(mark, text[opened[-1]])


def _expected(mark: str, inside: str) -> re.Pattern[str]:
    """What may come behind what ends with this mark, in an array or an object."""
    if mark == ":":
        return _VALUE
    return _NEXT[inside] if mark == "," else _REST[inside]
