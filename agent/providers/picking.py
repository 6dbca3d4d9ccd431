"""Picking: a tool's arguments out of free text, each piece of text used once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from sayso.agent.providers.words import STOP_WORDS, Token, name_words, stem, tokens

_ID_PARAMETER = re.compile(r"(^|_)(id|ids|number|no|nr|code|ref|reference|key|uuid|sku)$")
_DATE_PARAMETER = re.compile(r"(^|_)(date|day|on|due|since|until)(_|$)")
_MOMENT_PARAMETER = re.compile(r"(^|_)when(_|$)")
_CURRENCY_PARAMETER = re.compile(r"(^|_)currency(_|$)")

_NUMBER = re.compile(r"[$€£]?([+-]?\d+(?:\.\d+)?)[$€£%]?")
_ID = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z_@-])\S+|\S+@\S+")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(T[\d:.]+)?")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_DAY = r"(?:(?:on )?(?:today|tomorrow|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{4}-\d\d-\d\d))"
_TIME = r"(?:\d{1,2}(?::\d\d)?(?: ?[ap]m)?|noon|midnight)"
_DELAY = r"in (?:\d+|an?|one|half an) (?:second|minute|hour|day|week)s?"
#: A moment in words: "in 20 minutes", "tomorrow at 9", "at 9 on friday", "2026-12-24T18:00".
_MOMENT = re.compile(
    rf"{_DELAY}|{_DAY}(?: (?:at )?{_TIME})?|at {_TIME}(?: {_DAY})?|\d{{4}}-\d\d-\d\dT[\d:.+-]+Z?", re.IGNORECASE
)
#: What is a boolean in a command but something else in a sentence: "on Monday", "1 guest".
_BOOLEAN_ONLY_IN_COMMANDS = frozenset({"on", "off", "1", "0"})


def pick_calls(text: str, schema: Mapping[str, Any], today: date) -> list[dict[str, Any]]:
    """Return the arguments of each call that a text asks for; what it does not say is left out.

    A text that names several things ("delete INV-1 and INV-2") asks for one call each, where a tool requires nothing
    but an identifier.
    """
    said = tokens(text)
    named = [token for token in said if _identifier(token)] if _takes_one_identifier(schema) else []
    if len(named) < 2:
        return [_Picker(schema, said, today).pick()]
    others = [token for token in said if token not in named]
    return [_Picker(schema, [*others, token], today).pick() for token in dict.fromkeys(named)]


def _takes_one_identifier(schema: Mapping[str, Any]) -> bool:
    required = schema["parameters"].get("required", ())
    if len(required) != 1 or not _ID_PARAMETER.search(required[0]):
        return False
    return bool(schema["parameters"]["properties"][required[0]].get("type") == "string")


def convert(value: str, prop: Mapping[str, Any]) -> Any:
    """A typed value out of text, by the parameter's schema; text that does not fit stays as it is."""
    kind = prop.get("type")
    if kind == "boolean":
        return _boolean(value)
    if kind in ("integer", "number", "array", "object"):
        return _from_json(value, kind)
    return value


@dataclass(slots=True)
class _Picker:
    """Lives for one text. Typed values are taken first, so that the loose words left over are really loose."""

    schema: Mapping[str, Any]
    left: list[Token]
    today: date
    args: dict[str, Any] = field(default_factory=dict)

    def pick(self) -> dict[str, Any]:
        self._take_assignments()
        for name, prop in self._open():
            if _MOMENT_PARAMETER.search(name):
                self._take_moment(name)
                continue
            self._take(name, _reader(name, prop, self.today))
        for name, prop in self._open():
            if self._is_required(name) and prop.get("type") == "string":
                self._take_string(name, prop)
        return {name: self.args[name] for name in self._properties() if name in self.args}

    def _properties(self) -> Mapping[str, Any]:
        properties: Mapping[str, Any] = self.schema["parameters"]["properties"]
        return properties

    def _is_required(self, name: str) -> bool:
        return name in self.schema["parameters"].get("required", ())

    def _open(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(name, prop) for name, prop in self._properties().items() if name not in self.args]

    def _take_assignments(self) -> None:
        """`invoice_id=INV-42` inside a sentence says outright what it is."""
        for token in list(self.left):
            name, equals, value = token.text.partition("=")
            if equals and value and name in self._properties() and not token.quoted:
                self.args[name] = convert(value, self._properties()[name])
                self.left.remove(token)

    def _take(self, name: str, read: Callable[[Token], Any]) -> None:
        for index, token in enumerate(self.left):
            value = read(token)
            if value is not None:
                self.args[name] = value
                del self.left[index]
                return

    def _take_moment(self, name: str) -> None:
        """The first run of words that says when, as long as it goes."""
        count = len(self.left)
        for start, end in ((first, last) for first in range(count) for last in range(count, first, -1)):
            run = self.left[start:end]
            said = " ".join(token.text for token in run)
            if _MOMENT.fullmatch(said) and not any(token.quoted for token in run):
                self.args[name] = said
                del self.left[start:end]
                return

    def _take_string(self, name: str, prop: Mapping[str, Any]) -> None:
        if "enum" in prop or "format" in prop or _MOMENT_PARAMETER.search(name):
            return
        self._take(name, lambda token: token.text if token.quoted else None)
        if name in self.args:
            return
        if _ID_PARAMETER.search(name):
            self._take(name, _bare_number)
        else:
            self._take_words(name)

    def _take_words(self, name: str) -> None:
        """From the first word with a meaning of its own to the last, so that "Bank of America" keeps its "of"."""
        of_tool = {stem(word) for word in name_words(self.schema["name"])}
        words = [token for token in self.left if stem(token.text) not in of_tool]
        loose = [index for index, token in enumerate(words) if token.text.lower() not in STOP_WORDS]
        if loose:
            taken = words[loose[0] : loose[-1] + 1]
            self.args[name] = " ".join(token.text for token in taken)
            self.left = [token for token in self.left if token not in taken]


def _reader(name: str, prop: Mapping[str, Any], today: date) -> Callable[[Token], Any]:
    """How a token becomes a value of this parameter; None when it does not."""
    if "enum" in prop:
        by_text = {str(choice).lower(): choice for choice in prop["enum"]}
        return lambda token: by_text.get(token.text.lower())
    kind = prop.get("type")
    if kind == "string":
        return _string_reader(name, prop, today)
    readers: dict[Any, Callable[[Token], Any]] = {"integer": _integer, "number": _number, "boolean": _said_boolean}
    return readers.get(kind, lambda token: None)


def _string_reader(name: str, prop: Mapping[str, Any], today: date) -> Callable[[Token], Any]:
    if prop.get("format") in ("date", "date-time") or _DATE_PARAMETER.search(name):
        return lambda token: _date(token, today)
    if _CURRENCY_PARAMETER.search(name):
        return lambda token: token.text if re.fullmatch("[A-Z]{3}", token.text) else None
    if _ID_PARAMETER.search(name) or "email" in name:
        return _identifier
    return lambda token: None


def _identifier(token: Token) -> str | None:
    if token.quoted or (_ID.fullmatch(token.text) and not _is_typed(token.text)):
        return token.text.lstrip("#")
    return None


def _is_typed(text: str) -> bool:
    return bool(_ISO_DATE.fullmatch(text) or _NUMBER.fullmatch(text))


def _bare_number(token: Token) -> str | None:
    text = token.text.lstrip("#")
    return text if re.fullmatch(r"\d+", text) else None


def _number(token: Token) -> int | float | None:
    found = None if token.quoted else _NUMBER.fullmatch(token.text)
    if not found:
        return None
    return float(found[1]) if "." in found[1] else int(found[1])


def _integer(token: Token) -> int | None:
    value = _number(token)
    return value if isinstance(value, int) else None


def _date(token: Token, today: date) -> str | None:
    if _ISO_DATE.fullmatch(token.text):
        return token.text
    days = {"today": 0, "tomorrow": 1, "yesterday": -1}.get(token.text.lower())
    return None if days is None else (today + timedelta(days)).isoformat()


def _said_boolean(token: Token) -> bool | None:
    value = _boolean(token.text)
    return value if isinstance(value, bool) and token.text.lower() not in _BOOLEAN_ONLY_IN_COMMANDS else None


def _boolean(text: str) -> bool | str:
    if text.lower() in _TRUE:
        return True
    return False if text.lower() in _FALSE else text


def _from_json(text: str, kind: str) -> Any:
    """JSON, or for a list also `a,b,c`. Anything else is left to the tool's own validation to refuse."""
    try:
        value = json.loads(text)
    except ValueError:
        return [part.strip() for part in text.split(",")] if kind == "array" else text
    return [value] if kind == "array" and not isinstance(value, list) else value
