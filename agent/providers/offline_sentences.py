"""The arguments that a sentence gives to a tool: call_arguments reads "pay INV-42 tomorrow".

Commands, such as `/pay invoice_id=INV-42`, are read in `offline_commands.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from typing import Any

from sayso.agent.providers.base import ToolSchema
from sayso.agent.providers.offline_commands import convert
from sayso.agent.providers.offline_words import STOP_WORDS, Token, stem, tokens, words_of

#: Names of parameters by what they mean.
_ID_PARAMETER = re.compile(r"(^|_)(id|ids|number|no|nr|code|ref|reference|key|uuid|sku)$")
_DATE_PARAMETER = re.compile(r"(^|_)(date|day|on|due|since|until)(_|$)")
_MOMENT_PARAMETER = re.compile(r"(^|_)when(_|$)")
_CURRENCY_PARAMETER = re.compile(r"(^|_)currency(_|$)")
#: Values in a text.
_NUMBER = re.compile(r"[$€£]?([+-]?\d+(?:\.\d+)?)[$€£%]?")
_BARE_NUMBER = re.compile(r"#*(\d+)")
_ID = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z_@-])\S+|\S+@\S+")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(T[\d:.]+)?")
_CURRENCY = re.compile(r"[A-Z]{3}")
_DAY = r"(?:(?:on )?(?:today|tomorrow|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{4}-\d\d-\d\d))"
_TIME = r"(?:\d{1,2}(?::\d\d)?(?: ?[ap]m)?|noon|midnight)"
_DELAY = r"in (?:\d+|an?|one|half an) (?:second|minute|hour|day|week)s?"
#: A point in time: "in 20 minutes", "tomorrow at 9", "at 9 on friday", "2026-12-24T18:00".
_MOMENT = re.compile(
    rf"{_DELAY}|{_DAY}(?: (?:at )?{_TIME})?|at {_TIME}(?: {_DAY})?|\d{{4}}-\d\d-\d\dT[\d:.+-]+Z?",
    re.IGNORECASE,
)
#: Words for a day -> how many days after today it is.
_NAMED_DAYS = {"today": 0, "tomorrow": 1, "yesterday": -1}


def call_arguments(text: str, tool: ToolSchema, today: date) -> list[dict[str, Any]]:
    """Return the arguments of each call of the tool that a text asks for, one call at least.

    Arguments that the text does not contain are left out, also required ones. A text with several
    identifiers ("delete INV-1 and INV-2") asks for one call each, if the tool requires only an
    identifier.
    """
    text_tokens = tokens(text)
    identifiers: list[Token] = []
    if _requires_only_an_identifier(tool):
        identifiers = [token for token in text_tokens if _identifier(token)]
    if len(identifiers) < 2:
        return [_ArgumentReader(tool, text_tokens, today).read()]

    others = [token for token in text_tokens if token not in identifiers]
    return [
        _ArgumentReader(tool, [*others, identifier], today).read()
        for identifier in dict.fromkeys(identifiers)
    ]


def _requires_only_an_identifier(tool: ToolSchema) -> bool:
    """Return whether the tool has one required parameter, the text of an identifier."""
    parameters = tool["parameters"]
    required = parameters.get("required", ())
    if len(required) != 1:
        return False
    name = required[0]
    if not _ID_PARAMETER.search(name):
        return False
    return bool(parameters["properties"][name].get("type") == "string")


@dataclass(slots=True)
class _ArgumentReader:
    """Reads the arguments of one call from the tokens of a text. Used once.

    Values of a recognizable type are taken first, so that a parameter for any text gets only the
    words that are left over.
    """

    tool: ToolSchema
    #: The tokens that no argument has taken yet.
    tokens: list[Token]
    today: date
    arguments: dict[str, Any] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """Return the arguments by parameter name, in the order of the parameters."""
        properties = self.tool["parameters"]["properties"]
        required = self.tool["parameters"].get("required", ())
        self._take_named_values()

        for name, parameter in self._open_parameters():
            if _MOMENT_PARAMETER.search(name):
                self._take_moment(name)
            else:
                read = partial(_typed_value, name=name, parameter=parameter, today=self.today)
                self._take_first(name, read)

        for name, parameter in self._open_parameters():
            if name in required and parameter.get("type") == "string":
                self._take_text(name, parameter)
        return {name: self.arguments[name] for name in properties if name in self.arguments}

    def _open_parameters(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return name and schema of each parameter that has no argument yet."""
        parameters = self.tool["parameters"]["properties"].items()
        return [(name, schema) for name, schema in parameters if name not in self.arguments]

    def _take_named_values(self) -> None:
        """Take the tokens that name their parameter, such as `invoice_id=INV-42`."""
        properties = self.tool["parameters"]["properties"]
        for token in list(self.tokens):
            name, _, value = token.text.partition("=")
            if value and name in properties and not token.is_quoted:
                self.arguments[name] = convert(value, properties[name])
                self.tokens.remove(token)

    def _take_first(self, name: str, read: Callable[[Token], Any]) -> None:
        """Take the first token for which `read` returns a value, not None."""
        for index, token in enumerate(self.tokens):
            value = read(token)
            if value is not None:
                self.arguments[name] = value
                del self.tokens[index]
                return

    def _take_moment(self, name: str) -> None:
        """Take the first tokens that are a point in time together, as many as there are."""
        count = len(self.tokens)
        for start in range(count):
            for end in range(count, start, -1):
                run = self.tokens[start:end]
                text = " ".join(token.text for token in run)
                if _MOMENT.fullmatch(text) and not any(token.is_quoted for token in run):
                    self.arguments[name] = text
                    del self.tokens[start:end]
                    return

    def _take_text(self, name: str, parameter: Mapping[str, Any]) -> None:
        """Take a quotation, a bare number for an identifier, or the words that are left over.

        The words are those from the first to the last one with a meaning, with the stop words
        between them: "Bank of America" keeps its "of".
        """
        if "enum" in parameter or "format" in parameter or _MOMENT_PARAMETER.search(name):
            return
        self._take_first(name, _quotation)
        if _ID_PARAMETER.search(name):
            if name not in self.arguments:
                self._take_first(name, _bare_number)
            return
        if name in self.arguments:
            return

        tool_stems = {stem(word) for word in words_of(self.tool["name"])}
        words = [token for token in self.tokens if stem(token.text) not in tool_stems]
        meaningful = [
            index for index, token in enumerate(words) if token.text.lower() not in STOP_WORDS
        ]
        if meaningful:
            text_tokens = words[meaningful[0] : meaningful[-1] + 1]
            self.arguments[name] = " ".join(token.text for token in text_tokens)
            self.tokens = [token for token in self.tokens if token not in text_tokens]


def _typed_value(token: Token, name: str, parameter: Mapping[str, Any], today: date) -> Any:
    """Return the token as a value of the parameter.

    Return None for a token that is not such a value, and for a parameter that takes any text.
    """
    if "enum" in parameter:
        choices = {str(choice).lower(): choice for choice in parameter["enum"]}
        return choices.get(token.text.lower())
    kind = parameter.get("type")
    if kind in ("integer", "number"):
        return _number(token, is_whole=kind == "integer")
    if kind != "string":  # a boolean is taken from commands only: "on Monday" switches nothing on
        return None

    if parameter.get("format") in ("date", "date-time") or _DATE_PARAMETER.search(name):
        return _day(token.text, today)
    if _CURRENCY_PARAMETER.search(name):
        return token.text if _CURRENCY.fullmatch(token.text) else None
    if _ID_PARAMETER.search(name) or "email" in name:
        return _identifier(token)
    return None


def _number(token: Token, *, is_whole: bool) -> int | float | None:
    """Return the number that a token is, also with a currency or percent sign, or None."""
    match = _NUMBER.fullmatch(token.text)
    if token.is_quoted or match is None:
        return None
    digits = match[1]
    if "." not in digits:
        return int(digits)
    return None if is_whole else float(digits)


def _day(text: str, today: date) -> str | None:
    """Return a date, or a word such as "tomorrow" as a date, in ISO 8601; None for other words."""
    if _ISO_DATE.fullmatch(text):
        return text
    days = _NAMED_DAYS.get(text.lower())
    if days is None:
        return None
    return (today + timedelta(days)).isoformat()


def _identifier(token: Token) -> str | None:
    """Return a quotation or what looks like an identifier or a mail address, without #, or None."""
    is_date_or_number = _ISO_DATE.fullmatch(token.text) or _NUMBER.fullmatch(token.text)
    looks_like_one = _ID.fullmatch(token.text) and not is_date_or_number
    if token.is_quoted or looks_like_one:
        return token.text.lstrip("#")
    return None


def _quotation(token: Token) -> str | None:
    """Return the text of a quotation, or None."""
    return token.text if token.is_quoted else None


def _bare_number(token: Token) -> str | None:
    """Return the digits of a number without other signs than #, or None."""
    number = _BARE_NUMBER.fullmatch(token.text)
    return number[1] if number else None
