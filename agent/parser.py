"""ToolCallParser: finds the tool calls in what a model wrote as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sayso.agent.lenient_json import decode_value
from sayso.agent.messages import NOT_JSON, ToolCall
from sayso.agent.prompt import MARKER

#: Broken payloads of one text that are repaired: as each may be long, many would take long.
MAX_REPAIRS = 16
#: Characters before a marker that belong to its call at most: the start of a code block, or emphasis.
MAX_LEAD_CHARS = 40

#: What models call the name of a tool and its parameters.
_NAMES = ("tool_name", "name", "tool", "function")
_PARAMETERS = ("parameters", "arguments", "args", "params", "input")
#: What else they write beside these, which is no parameter.
_BESIDE = frozenset({"id", "type"})
#: What stands before a marker that is only quoted: as part of a word it is none.
_QUOTED = "quoted_"
#: Characters of parameters that are none that are kept.
_MAX_NOT_JSON_CHARS = 500

_FENCE = r"<<<data (?P<boundary>[0-9a-f]{1,64})>>>"
_LEAD = r"\s{0,8}(?:```\w{0,12}\s{0,8})?[*#<`]{0,4}"
_TRAIL = r"s?(?!\w)[*>`]{0,4}[ \t]{0,8}[:=]?[*`]{0,4}\s{0,8}(?:```)?(?:json\w?)?\s{0,8}(?=[{\[])"


@dataclass(frozen=True, slots=True)
class ParseResult:
    """What a model's text comes to: its calls in order, `tool_call` the first of them.

    `text` is what was said before the first call, or all of it: what follows a call is a model's guess at its result.
    """

    tool_call: ToolCall | None
    raw_text: str
    tool_calls: tuple[ToolCall, ...] = ()
    text: str = field(default="")


class ToolCallParser:
    """Tolerant of what models write around a call and in it; blind to what stands between the lines of a data fence."""

    def __init__(self, marker: str = MARKER, max_payload_chars: int = 8000) -> None:
        self._max_payload_chars = max_payload_chars
        parts = [re.escape(part) for part in re.split(r"[\s_-]+", marker) if part]
        if not parts:
            raise ValueError(f"marker={marker!r} cannot be told from text: use a word")
        self._held_chars = MAX_LEAD_CHARS + len(marker)
        word = r"[\s_-]?".join(parts)
        self._scan = re.compile(f"{_FENCE}|{_LEAD}(?<!\\w)(?P<marker>{word}){_TRAIL}", re.IGNORECASE)
        self._called = re.compile(f"(?<!\\w)(?={word}{_TRAIL})", re.IGNORECASE)
        self._begun = re.compile(f"{_LEAD}(?<!\\w){word}", re.IGNORECASE)
        self._beginning = re.compile(f"{_LEAD}(?:(?<!\\w){_prefixes(marker)})?\\Z", re.IGNORECASE)

    def parse(self, text: str) -> ParseResult:
        """The calls in the text. Raises nothing; a payload that is broken beyond repair, or too long, stays text."""
        found = list(self._calls(text))
        calls = tuple(call for _, call in found)
        said = text[: found[0][0]] if found else text
        return ParseResult(calls[0] if calls else None, text, calls, said)

    def quoted(self, text: str) -> str:
        """The text, in which nothing is a call: what people and tools wrote, that a model may repeat word for word."""
        return self._called.sub(_QUOTED, text)

    def certain(self, text: str, start: int = 0) -> int:
        """How many characters of a text that still grows can be no part of a call; before `start` all are."""
        begun = self._begun.search(text, start)
        if begun:
            return begun.start()
        tail = max(start, len(text) - self._held_chars)
        beginning = self._beginning.search(text, tail)
        return beginning.start() if beginning else len(text)

    def _calls(self, text: str) -> Iterator[tuple[int, ToolCall]]:
        position, repairs = 0, MAX_REPAIRS
        while match := self._scan.search(text, position):
            position = match.end()
            if match["boundary"]:
                position = _after_data(text, match["boundary"], position)
                continue
            payload = text[position : position + self._max_payload_chars]
            value, length = decode_value(payload, repair=repairs > 0)
            repairs -= not length
            position += length
            for call in _as_calls(value):
                yield match.start(), call


def _prefixes(marker: str) -> str:
    """A pattern of each beginning of the marker, the longest first; other characters may stand between its words."""
    chars = [r"[\s_-]?" if char in " _-" else re.escape(char) for char in marker]
    pattern = ""
    for char in reversed(chars):
        pattern = f"{char}(?:{pattern})?" if pattern else char
    return pattern


def _after_data(text: str, boundary: str, position: int) -> int:
    """Where the data ends; one without an end, as in an answer that was cut off, goes to the end of the text."""
    line = f"<<<end of data {boundary}>>>"
    end = text.find(line, position)
    return len(text) if end < 0 else end + len(line)


def _as_calls(value: Any) -> list[ToolCall]:
    """The calls that a payload spells: an object, or a list of them. None where any of it is something else."""
    calls = [_as_call(item) for item in (value if isinstance(value, list) else [value])]
    whole = [call for call in calls if call is not None]
    return whole if len(whole) == len(calls) else []


def _as_call(value: Any) -> ToolCall | None:
    """The call that an object spells. Parameters that are no object are refused when it is made: without them it would
    do something else.
    """
    if not isinstance(value, dict):
        return None
    name, rest = _name_and_rest(value)
    while isinstance(name, dict):  # {"function": {"name": ..., "arguments": ...}}
        name, inner = _name_and_rest(name)
        rest = {**rest, **inner}
    if not isinstance(name, str) or not name.strip():
        return None
    return ToolCall(name.strip(), _parameters(rest))


def _name_and_rest(value: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    key = next((each for each in _NAMES if each in value), "")
    return value.get(key), {other: each for other, each in value.items() if other != key and other not in _BESIDE}


def _parameters(rest: dict[str, Any]) -> dict[str, Any]:
    """Those of a call; where none are called so, all that stands beside its name."""
    key = next((each for each in _PARAMETERS if each in rest), None)
    given = rest if key is None else rest[key]
    if isinstance(given, str):
        given = decode_value(given.strip(), repair=False)[0] or given.strip()
    if given is None or given in ("", []):
        return {}
    return given if isinstance(given, dict) else {NOT_JSON: str(given)[:_MAX_NOT_JSON_CHARS]}
