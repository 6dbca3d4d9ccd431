"""Matching of a user's text to tools without a model: which tool is meant, and which arguments the text contains."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

#: A tool's schema as plain data: `name`, `description` and `parameters`.
ToolSchema = Mapping[str, Any]
#: Words that do not select a tool. Greetings, yes and no are among them, so that small talk calls no tool.
STOP_WORDS = frozenset(
    """a all also am an and any are as at be been but by can could did do does for from had has have hello hey hi how
    i if in into is it its just kindly let like me my need no not now of off ok okay on one or our out please so some
    sorry sure than thank thanks that the their them then there these they this those to too up us want was we were
    what when where which who will with would yes you your bye good morning evening night nope yep about called named
    whose""".split()
)
#: General verbs, which match a tool only together with another word of its name.
WEAK_WORDS = frozenset({"do", "get", "give", "look", "make", "run", "see", "set", "show", "tell", "use"})
#: The score of a word in a tool's name; a word in its description or parameters scores 1.
NAME_WEIGHT = 10
#: Negations. "Don't delete INV-42" contains every word of the request that it forbids.
_NEGATION = re.compile(r"\b(don['\u2019]?t|do not|never)\b", re.IGNORECASE)
_TOKEN = re.compile(r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|“([^”]+)”|([\w#$€£@+-][\w.:@/+#%$€£='\u2019-]*)")
#: Names of parameters by what they mean.
_ID_PARAMETER = re.compile(r"(^|_)(id|ids|number|no|nr|code|ref|reference|key|uuid|sku)$")
_DATE_PARAMETER = re.compile(r"(^|_)(date|day|on|due|since|until)(_|$)")
_MOMENT_PARAMETER = re.compile(r"(^|_)when(_|$)")
_CURRENCY_PARAMETER = re.compile(r"(^|_)currency(_|$)")
#: Values in a text.
_NUMBER = re.compile(r"[$€£]?([+-]?\d+(?:\.\d+)?)[$€£%]?")
_ID = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z_@-])\S+|\S+@\S+")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(T[\d:.]+)?")
_DAY = r"(?:(?:on )?(?:today|tomorrow|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{4}-\d\d-\d\d))"
_TIME = r"(?:\d{1,2}(?::\d\d)?(?: ?[ap]m)?|noon|midnight)"
_DELAY = r"in (?:\d+|an?|one|half an) (?:second|minute|hour|day|week)s?"
#: A point in time: "in 20 minutes", "tomorrow at 9", "at 9 on friday", "2026-12-24T18:00".
_MOMENT = re.compile(
    rf"{_DELAY}|{_DAY}(?: (?:at )?{_TIME})?|at {_TIME}(?: {_DAY})?|\d{{4}}-\d\d-\d\dT[\d:.+-]+Z?", re.IGNORECASE
)
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
#: Values that are booleans in a command, but not in a sentence: "on Monday", "1 guest".
_BOOLEAN_ONLY_IN_COMMANDS = frozenset({"on", "off", "1", "0"})


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text, or a whole quotation without its quotes."""

    text: str
    quoted: bool = False


def tokens(text: str) -> list[Token]:
    """Return the words and quotations of a text in order, without punctuation around them."""
    result = []
    for match in _TOKEN.finditer(text):
        *quotes, word = match.groups()
        quote = next((each for each in quotes if each), None)
        if quote is not None:
            result.append(Token(quote.strip(), quoted=True))
        elif stripped := word.rstrip(".:/=-'\u2019"):
            result.append(Token(stripped))
    return result


def name_words(name: str) -> list[str]:
    """Return the words of an identifier: `find_invoice` and `findInvoice` both give find, invoice."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", spaced) if word]


def stems(words: Iterable[str]) -> frozenset[str]:
    """Return the stems of all words but the stop words."""
    return frozenset(stem(word) for word in words if word.lower() not in STOP_WORDS)


def stem(word: str) -> str:
    """Return a word without plural, -ing and final e: the same for "deleting", "deletes" and "delete"."""
    word = word.lower()
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
        if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":  # "stopping"
            word = word[:-1]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


_WEAK_STEMS = frozenset(stem(word) for word in WEAK_WORDS)


def match_tools(text: str, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
    """Return the tools that a text may mean: none, one, or several that only the user can tell apart."""
    if _NEGATION.search(text):
        return []
    # What is quoted is data and says nothing about the tool.
    text_stems = stems(word for token in tokens(text) if not token.quoted for word in name_words(token.text))
    matches = [_match(text_stems, tool) for tool in tools]
    candidates = [match for match in matches if match.name_hits and match.is_specific]
    if not candidates:
        return []
    best_score = max(match.score for match in candidates)
    best = [match for match in candidates if match.score == best_score]
    if len(best) == 1 and not _is_distinct(best[0], matches):
        best = [match for match in candidates if len(match.name_hits) == len(best[0].name_hits)]
    return [match.tool for match in best]


@dataclass(frozen=True, slots=True)
class _Match:
    """How well a text matches a tool: the stems of the tool's name, and those of them that the text contains."""

    tool: ToolSchema
    name: frozenset[str]
    name_hits: frozenset[str]
    score: int

    @property
    def is_complete(self) -> bool:
        """Whether the text contains the whole name of the tool."""
        return self.name_hits == self.name

    @property
    def is_specific(self) -> bool:
        """Whether more than a general verb matches."""
        return self.is_complete or bool(self.name_hits - _WEAK_STEMS)


def _match(text_stems: frozenset[str], tool: ToolSchema) -> _Match:
    name = frozenset(stem(word) for word in name_words(tool["name"]))
    context = name_words(str(tool.get("description", "")))
    for parameter, schema in tool.get("parameters", {}).get("properties", {}).items():
        context += name_words(parameter)
        context += [word for choice in schema.get("enum", ()) for word in name_words(str(choice))]
    name_hits, context_hits = name & text_stems, (text_stems & stems(context)) - name
    return _Match(tool, name, name_hits, NAME_WEIGHT * len(name_hits) + len(context_hits))


def _is_distinct(match: _Match, matches: Sequence[_Match]) -> bool:
    """Return whether the text contains the tool's whole name, or a specific word of it that no other name has."""
    other_names = frozenset().union(*(each.name for each in matches if each is not match))
    return match.is_complete or bool(match.name_hits - other_names - _WEAK_STEMS)


def call_arguments(text: str, tool: ToolSchema, today: date) -> list[dict[str, Any]]:
    """Return the arguments of each call that a text asks for, without those that it does not contain.

    A text with several identifiers ("delete INV-1 and INV-2") asks for one call each, if the tool requires only an
    identifier.
    """
    text_tokens = tokens(text)
    identifiers = [token for token in text_tokens if _identifier(token)] if _requires_one_identifier(tool) else []
    if len(identifiers) < 2:
        return [ArgumentExtractor(tool, text_tokens, today).extract()]
    others = [token for token in text_tokens if token not in identifiers]
    return [ArgumentExtractor(tool, [*others, each], today).extract() for each in dict.fromkeys(identifiers)]


def _requires_one_identifier(tool: ToolSchema) -> bool:
    required = tool["parameters"].get("required", ())
    if len(required) != 1 or not _ID_PARAMETER.search(required[0]):
        return False
    return bool(tool["parameters"]["properties"][required[0]].get("type") == "string")


@dataclass(slots=True)
class ArgumentExtractor:
    """Finds the arguments of one call in a text. `tokens` are those that no argument has taken yet.

    Values of a recognizable type are taken first, so that a plain string parameter gets only the words left over.
    """

    tool: ToolSchema
    tokens: list[Token]
    today: date
    args: dict[str, Any] = field(default_factory=dict)

    def extract(self) -> dict[str, Any]:
        """Return the arguments by parameter name, in the order of the parameters."""
        self._take_assignments()
        for name, parameter in self._open_parameters():
            if _MOMENT_PARAMETER.search(name):
                self._take_moment(name)
            else:
                self._take_first(name, _reader(name, parameter, self.today))
        for name, parameter in self._open_parameters():
            if name in self.tool["parameters"].get("required", ()) and parameter.get("type") == "string":
                self._take_string(name, parameter)
        return {name: self.args[name] for name in self._parameters() if name in self.args}

    def _parameters(self) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = self.tool["parameters"]["properties"]
        return parameters

    def _open_parameters(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(name, parameter) for name, parameter in self._parameters().items() if name not in self.args]

    def _take_assignments(self) -> None:
        """Take values that name their parameter, such as `invoice_id=INV-42`."""
        for token in list(self.tokens):
            name, equals, value = token.text.partition("=")
            if equals and value and name in self._parameters() and not token.quoted:
                self.args[name] = convert(value, self._parameters()[name])
                self.tokens.remove(token)

    def _take_first(self, name: str, read: Callable[[Token], Any]) -> None:
        """Take the first token that `read` has a value for."""
        for index, token in enumerate(self.tokens):
            value = read(token)
            if value is not None:
                self.args[name] = value
                del self.tokens[index]
                return

    def _take_moment(self, name: str) -> None:
        """Take the first and then longest run of tokens that is a point in time."""
        count = len(self.tokens)
        for start, end in ((first, last) for first in range(count) for last in range(count, first, -1)):
            run = self.tokens[start:end]
            text = " ".join(token.text for token in run)
            if _MOMENT.fullmatch(text) and not any(token.quoted for token in run):
                self.args[name] = text
                del self.tokens[start:end]
                return

    def _take_string(self, name: str, parameter: Mapping[str, Any]) -> None:
        """Take a quotation, a bare number for an identifier, or the words that are left over."""
        if "enum" in parameter or "format" in parameter or _MOMENT_PARAMETER.search(name):
            return
        self._take_first(name, lambda token: token.text if token.quoted else None)
        if name in self.args:
            return
        if _ID_PARAMETER.search(name):
            self._take_first(name, _bare_number)
        else:
            self._take_words(name)

    def _take_words(self, name: str) -> None:
        """Take all from the first to the last word that is no stop word: "Bank of America" keeps its "of"."""
        tool_stems = {stem(word) for word in name_words(self.tool["name"])}
        words = [token for token in self.tokens if stem(token.text) not in tool_stems]
        meaningful = [index for index, token in enumerate(words) if token.text.lower() not in STOP_WORDS]
        if meaningful:
            taken = words[meaningful[0] : meaningful[-1] + 1]
            self.args[name] = " ".join(token.text for token in taken)
            self.tokens = [token for token in self.tokens if token not in taken]


def _reader(name: str, parameter: Mapping[str, Any], today: date) -> Callable[[Token], Any]:
    """Return a function from a token to the parameter's value, or to None if the token is no such value."""
    if "enum" in parameter:
        choices = {str(choice).lower(): choice for choice in parameter["enum"]}
        return lambda token: choices.get(token.text.lower())
    match parameter.get("type"):
        case "string":
            return _string_reader(name, parameter, today)
        case "integer":
            return _integer
        case "number":
            return _number
        case "boolean":
            return _boolean_in_sentence
        case _:
            return lambda token: None


def _string_reader(name: str, parameter: Mapping[str, Any], today: date) -> Callable[[Token], Any]:
    if parameter.get("format") in ("date", "date-time") or _DATE_PARAMETER.search(name):
        return lambda token: _date(token, today)
    if _CURRENCY_PARAMETER.search(name):
        return lambda token: token.text if re.fullmatch("[A-Z]{3}", token.text) else None
    if _ID_PARAMETER.search(name) or "email" in name:
        return _identifier
    return lambda token: None


def _identifier(token: Token) -> str | None:
    is_typed = _ISO_DATE.fullmatch(token.text) or _NUMBER.fullmatch(token.text)
    if token.quoted or (_ID.fullmatch(token.text) and not is_typed):
        return token.text.lstrip("#")
    return None


def _bare_number(token: Token) -> str | None:
    text = token.text.lstrip("#")
    return text if re.fullmatch(r"\d+", text) else None


def _number(token: Token) -> int | float | None:
    match = None if token.quoted else _NUMBER.fullmatch(token.text)
    if not match:
        return None
    return float(match[1]) if "." in match[1] else int(match[1])


def _integer(token: Token) -> int | None:
    value = _number(token)
    return value if isinstance(value, int) else None


def _date(token: Token, today: date) -> str | None:
    if _ISO_DATE.fullmatch(token.text):
        return token.text
    days = {"today": 0, "tomorrow": 1, "yesterday": -1}.get(token.text.lower())
    return None if days is None else (today + timedelta(days)).isoformat()


def _boolean_in_sentence(token: Token) -> bool | None:
    value = _boolean(token.text)
    return value if isinstance(value, bool) and token.text.lower() not in _BOOLEAN_ONLY_IN_COMMANDS else None


def _boolean(text: str) -> bool | str:
    if text.lower() in _TRUE:
        return True
    return False if text.lower() in _FALSE else text


def convert(text: str, parameter: Mapping[str, Any]) -> Any:
    """Return a text as a value of the parameter's type; text that does not fit is returned as it is."""
    kind = parameter.get("type")
    if kind == "boolean":
        return _boolean(text)
    if kind in ("integer", "number", "array", "object"):
        return _from_json(text, kind)
    return text


def _from_json(text: str, kind: str) -> Any:
    """Return the text read as JSON, or for an array also as `a,b,c`. Other text is refused by the tool's validation."""
    try:
        value = json.loads(text)
    except ValueError:
        return [part.strip() for part in text.split(",")] if kind == "array" else text
    return [value] if kind == "array" and not isinstance(value, list) else value
