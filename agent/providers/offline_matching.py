"""Which tool, which arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

#: Words that carry no intent; greetings and answers are among them, so that chit-chat never finds a tool.
STOP_WORDS = frozenset(
    """a all also am an and any are as at be been but by can could did do does for from had has have hello hey hi how
    i if in into is it its just kindly let like me my need no not now of off ok okay on one or our out please so some
    sorry sure than thank thanks that the their them then there these they this those to too up us want was we were
    what when where which who will with would yes you your bye good morning evening night nope yep about called named
    whose""".split()  # noqa: SIM905  # sixty quoted words read worse
)


#: Verbs so general that they find a tool only together with another word of its name.
WEAK_WORDS = frozenset({"do", "get", "give", "look", "make", "run", "see", "set", "show", "tell", "use"})


_TOKEN = re.compile(r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|“([^”]+)”|([\w#$€£@+-][\w.:@/+#%$€£='\u2019-]*)")


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of a text: a word, or a whole quotation without its quotes."""

    text: str
    quoted: bool = False


def tokens(text: str) -> list[Token]:
    """The text in pieces, in order, without punctuation around them."""
    found = []
    for match in _TOKEN.finditer(text):
        *quotes, word = match.groups()
        quote = next((each for each in quotes if each), None)
        if quote is not None:
            found.append(Token(quote.strip(), quoted=True))
        elif stripped := word.rstrip(".:/=-'\u2019"):
            found.append(Token(stripped))
    return found


def stem(word: str) -> str:
    """A word without plural, -ing and final e: "deleting", "deletes" and "delete" are one."""
    word = word.lower()
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("ing"):
        word = _undoubled(word[:-3])
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def name_words(name: str) -> list[str]:
    """The words of an identifier: `find_invoice` and `findInvoice` are both find, invoice."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", spaced) if word]


def stems(words: Iterable[str]) -> frozenset[str]:
    """The stems of all words that carry meaning."""
    return frozenset(stem(word) for word in words if word.lower() not in STOP_WORDS)


def _undoubled(word: str) -> str:
    doubled = len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls"
    return word[:-1] if doubled else word


#: A word of the tool's name weighs this much; a word of its description or parameters weighs 1.
NAME_WEIGHT = 10


ToolSchema = Mapping[str, Any]


#: "Don't delete INV-42" holds every word of the request it forbids; a matcher of words must not guess.
_FORBIDS = re.compile(r"\b(don['\u2019]?t|do not|never)\b", re.IGNORECASE)


_WEAK_STEMS = frozenset(stem(word) for word in WEAK_WORDS)


@dataclass(frozen=True, slots=True)
class _Candidate:
    schema: ToolSchema
    name: frozenset[str]
    hits: frozenset[str]
    score: int

    @property
    def complete(self) -> bool:
        """Whether the text holds the tool's whole name."""
        return self.hits == self.name

    @property
    def meant(self) -> bool:
        """Whether more than a general verb points here."""
        return self.complete or bool(self.hits - _WEAK_STEMS)


def match_tools(text: str, schemas: Sequence[ToolSchema]) -> list[ToolSchema]:
    """The tools the text may mean: none, the one, or several that only a question can tell apart."""
    if _FORBIDS.search(text):
        return []
    said = _said(text)
    everyone = [_candidate(said, schema) for schema in schemas]
    candidates = [each for each in everyone if each.hits and each.meant]
    if not candidates:
        return []
    best = max(each.score for each in candidates)
    winners = [each for each in candidates if each.score == best]
    if len(winners) == 1 and not _is_distinct(winners[0], everyone):
        winners = [each for each in candidates if len(each.hits) == len(winners[0].hits)]
    return [each.schema for each in winners]


def _said(text: str) -> frozenset[str]:
    """The words of a text; what stands in quotes is data and means no tool."""
    return stems(word for token in tokens(text) if not token.quoted for word in name_words(token.text))


def _candidate(said: frozenset[str], schema: ToolSchema) -> _Candidate:
    name = frozenset(stem(word) for word in name_words(schema["name"]))
    hits = name & said
    return _Candidate(schema, name, hits, NAME_WEIGHT * len(hits) + len((said & _background(schema)) - name))


def _background(schema: ToolSchema) -> frozenset[str]:
    words = name_words(str(schema.get("description", "")))
    for name, prop in _properties(schema).items():
        words += name_words(name)
        words += [word for choice in prop.get("enum", ()) for word in name_words(str(choice))]
    return stems(words)


def _is_distinct(winner: _Candidate, everyone: Sequence[_Candidate]) -> bool:
    """Whether the text holds the whole name, or a telling word of it that no other tool's name has."""
    others = frozenset().union(*(each.name for each in everyone if each is not winner))
    return winner.complete or bool(winner.hits - others - _WEAK_STEMS)


def _properties(schema: ToolSchema) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = schema.get("parameters", {}).get("properties", {})
    return properties


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
        return [ArgumentExtractor(schema, said, today).pick()]
    others = [token for token in said if token not in named]
    return [ArgumentExtractor(schema, [*others, token], today).pick() for token in dict.fromkeys(named)]


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
class ArgumentExtractor:
    """Lives for one text. Typed values are taken first, so that the loose words left over are really loose."""

    schema: Mapping[str, Any]
    left: list[Token]
    today: date
    args: dict[str, Any] = field(default_factory=dict)

    def pick(self) -> dict[str, Any]:
        """Return the arguments found in the message, by parameter name."""
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
