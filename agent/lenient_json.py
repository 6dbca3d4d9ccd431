"""Lenient JSON: the value that a text begins with, also where a model wrote it half in Python."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

#: A quoted string, also one that never ends: whatever follows is in it, and is read only once.
_STRING = r'"(?:[^"\\]|\\.)*+"?|' r"'(?:[^'\\]|\\.)*+'?"
_BRACKETS = re.compile(rf"{_STRING}|[{{}}\[\]]", re.DOTALL)
_FAULTS = re.compile(rf"{_STRING}|,(?=\s*+[}}\]])|\b(?:True|False|None)\b", re.DOTALL)
_ESCAPES = re.compile(r"\\.|\"", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null", ",": ""}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


#: Not strict: models write line ends into strings as they are.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse)


def decode_value(text: str, *, repair: bool = True) -> tuple[Any, int]:
    """The object or list that the text begins with and how many characters it has; (None, 0) where there is none.

    With `repair`, single quotes, Python's constants and commas before a closing bracket are forgiven.
    """
    try:
        return _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        length = _extent(text) if repair else 0
    try:
        return (_DECODER.decode(_FAULTS.sub(_mended, text[:length])), length) if length else (None, 0)
    except (ValueError, RecursionError):
        return None, 0


def _extent(text: str) -> int:
    """Characters up to the bracket that closes the first one; 0 where none does."""
    depth = 0
    for part in _BRACKETS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part[0], 0)
        if depth <= 0:
            return part.end()
    return 0


def _mended(fault: re.Match[str]) -> str:
    found = fault[0]
    if not found.startswith("'"):
        return _WORDS.get(found, found)
    return f'"{_ESCAPES.sub(_requoted, found[1:-1])}"'


def _requoted(found: re.Match[str]) -> str:
    """A quote as it must be written between double quotes; other escapes stay."""
    return {"\\'": "'", '"': '\\"'}.get(found[0], found[0])
