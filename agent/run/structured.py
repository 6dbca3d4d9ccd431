"""Typed answers; JSON found in text."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pydantic import BaseModel, ValidationError

from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.results import truncate
from sayso.agent.tools.schema.composition import merge_all_of
from sayso.agent.tools.schema.json_schema import plain
from sayso.agent.tools.schema.vendors import ApiFormat, vendor_schema
from sayso.agent.tools.schema_arguments import StepBudget, bounded_validator, draft_of, with_budget

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


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


#: A quoted string, also one that never ends: whatever follows is in it, and is read only once.
_STRING_of_lenient_json = r'"(?:[^"\\]|\\.)*+"?|' r"'(?:[^'\\]|\\.)*+'?"


_BRACKETS = re.compile(rf"{_STRING_of_lenient_json}|[{{}}\[\]]", re.DOTALL)


_FAULTS = re.compile(rf"{_STRING_of_lenient_json}|,(?=\s*+[}}\]])|\b(?:True|False|None)\b", re.DOTALL)


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


#: What an answer is to be: an instance of a pydantic model, or plain data that fits a JSON Schema.
ResponseFormat: TypeAlias = type[BaseModel] | dict[str, Any]


#: Where in a value something is.
_Path: TypeAlias = tuple[int | str, ...]


#: What makes the shape of an object hang on more than its properties, which vendors do not know at its top.
_CHOICES = frozenset(("anyOf", "oneOf", "not", "patternProperties", "if"))


#: Keywords whose values are data, whatever they look like.
_DATA = frozenset(("const", "default", "enum", "examples"))


#: JSON values of an answer that are tried: a model may quote a few before it comes to its own.
MAX_CANDIDATES = 8


#: Mistakes of an answer that are told, and characters of them that a model is shown.
MAX_MISTAKES, MAX_ERROR_CHARS = 10, 2000


def extract_json(text: str) -> str | None:
    """The first JSON object or array of a text, one that begins a code block before others; None where there is none.

    Brackets in prose are passed over, and what is no JSON. Line breaks and tabs may stand in its strings as they are:
    read it with `json.loads(..., strict=False)`. Takes linear time, however deep it is nested.
    """
    return next(values_in(text), None)


def schema_from_response_format(fmt: ResponseFormat) -> dict[str, Any]:
    """The JSON Schema of a format: the caller's own, to change as it likes.

    Raises TypeError for what is no format, and ValueError for a schema that no answer can be checked by: one that is
    none, cannot be written as JSON, or refers to what is not in it (nothing is ever fetched).
    """
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        return copy.deepcopy(_model_schema(fmt))
    if not isinstance(fmt, Mapping):
        cure = "give a subclass of pydantic's BaseModel, or a JSON Schema as a dict"
        raise TypeError(f"response_format is {quoted(fmt)}: {cure}")
    return _checked(fmt)


def parse_and_validate(text: str, fmt: ResponseFormat) -> Any:
    """The model instance, or for a JSON Schema the plain data, that a text holds.

    The first JSON value in it that fits. A null where none belongs is read as left out. Raises ValueError, whatever the
    text: it says what is wrong at which path, for the model to mend. Raises TypeError for what is no format.
    """
    read = _reader(fmt)
    candidates = list(itertools.islice(values_in(text), MAX_CANDIDATES)) or [_alone(text)]
    errors: dict[str, ValueError] = {}
    for candidate in candidates:
        try:
            return read(candidate)
        except ValueError as exc:
            errors[candidate] = exc
    raise errors[max(candidates, key=len)]  # the others are likelier to be quoted


def build_schema_instruction(schema: Mapping[str, Any]) -> str:
    """What a system prompt says so that the answer is JSON of this schema."""
    written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "Your final answer must be one JSON value that fits the JSON Schema below: no words before or after it, no "
        "comments, and an instance of the schema, not the schema itself. This says nothing about calling tools.\n"
        f"{written}"
    )


def validation_retry_message(error: str | Exception) -> str:
    """What a model is told when its answer did not fit."""
    return (
        f"Your answer could not be used: {truncate(str(error), MAX_ERROR_CHARS)}\n"
        "Answer again, with nothing but the whole corrected JSON value."
    )


def native_schema(fmt: ResponseFormat, api_format: ApiFormat = "openai-chat") -> dict[str, Any] | None:
    """The schema as the vendor's own structured output takes it; None where that cannot say it.

    What may be left out may be null instead there, which `parse_and_validate` reads. It may ask for less than the
    format does, never for anything else. Raises as `schema_from_response_format` does.
    """
    whole = _as_object(schema_from_response_format(fmt))
    if whole is None:
        return None
    try:
        shown = vendor_schema("answer", "", merge_all_of(plain(whole)), api_format, strict=True)
    except (ToolValidationError, TypeError, KeyError, ValueError, RecursionError):
        return None
    made = shown.get("function", shown)
    schema: dict[str, Any] | None = made.get("parameters", made.get("input_schema"))
    return schema


@functools.lru_cache(maxsize=256)
def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema()
    except Exception as exc:  # pydantic's own, which are of no common kind
        raise ValueError(f"response_format {model.__name__} has no JSON Schema: {_line(exc)}") from exc


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    import jsonschema

    try:
        written = _written(given)
        _validator(written)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        cure = "give the schema itself, in no wrapping of a vendor's"
        raise ValueError(f"response_format is no JSON Schema: at {where}, {quoted(exc.instance)}; {cure}") from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"response_format is no usable JSON Schema: {_line(exc)}") from exc
    schema: dict[str, Any] = json.loads(written)
    return schema


def _written(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, allow_nan=False)


@functools.lru_cache(maxsize=256)
def _validator(written: str) -> Validator:
    """Made once: looking a schema over takes a millisecond, and its format is asked for in run after run."""
    schema = json.loads(written)
    draft_of(schema).check_schema(schema)
    _check_references(schema)
    return bounded_validator(schema)


def _check_references(schema: Any) -> None:
    """Nothing is fetched: what a schema needs is in it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema))
    resolver = registry.crawl().resolver()
    for target in _references(schema):
        if not target.startswith("#"):
            raise ValueError(f"it refers to {target!r}: put that under '$defs', and refer to '#/$defs/...'")
        try:
            resolver.lookup(target)
        except Unresolvable as exc:
            raise ValueError(f"it refers to {target!r}, which it does not have: put that under '$defs'") from exc


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            target = part.get("$ref")
            yield from [target] if isinstance(target, str) else []
            waiting += [each for key, each in part.items() if key not in _DATA]
        elif isinstance(part, list):
            waiting += part


class _Unfit(ValueError):
    """Raised when a value does not fit; `nulls` are the paths of those that nobody wants."""

    def __init__(self, mistakes: Sequence[tuple[_Path, str, Any]]) -> None:
        told = "; ".join(f"{_shown(path)}: {words}" for path, words, _ in mistakes[:MAX_MISTAKES])
        super().__init__(f"the JSON does not fit: {told}")
        self.nulls = [path for path, _, value in mistakes if value is None and path]


def _reader(fmt: ResponseFormat) -> Callable[[str], Any]:
    """What makes a value of JSON. Raises ValueError."""
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        return functools.partial(_read, functools.partial(_instance, fmt))
    validator = _validator(_written(schema_from_response_format(fmt)))
    return functools.partial(_read, functools.partial(_data, validator))


def _read(make: Callable[[Any], Any], candidate: str) -> Any:
    try:
        value = json.loads(candidate, strict=False, parse_constant=_refuse_constant)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # nobody can store half a character
        try:
            return make(value)
        except _Unfit as exc:
            return _without_nulls(make, value, exc)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deep: use fewer levels") from exc
    except UnicodeEncodeError as exc:
        raise ValueError("the JSON holds half a character (a lone surrogate), which no UTF-8 can hold") from exc


def _without_nulls(make: Callable[[Any], Any], value: Any, refused: _Unfit) -> Any:
    """Read once more without the nulls that were refused: vendors' native formats have them for what is left out."""
    left_out = [_leave_out(value, path) for path in refused.nulls]
    if not any(left_out):
        raise refused
    try:
        return make(value)
    except ValueError:
        raise refused from None


def _leave_out(value: Any, path: _Path) -> bool:
    """Whether there was a null to leave out. pydantic's paths also name the kinds of a union it has tried."""
    for part in path[:-1]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            value = value[part]
    is_there = isinstance(value, dict) and value.get(path[-1], ...) is None
    if is_there:
        del value[path[-1]]
    return is_there


def _instance(model: type[BaseModel], value: Any) -> BaseModel:
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=False)
        raise _Unfit([(each["loc"], each["msg"], each["input"]) for each in errors]) from exc
    except RecursionError:
        raise
    except Exception as exc:  # of a validator that somebody wrote for this model
        raise ValueError(f"the JSON does not fit {model.__name__}: {_line(exc)}") from exc


def _data(validator: Validator, value: Any) -> Any:
    try:
        errors = list(itertools.islice(with_budget(validator, StepBudget()).iter_errors(value), MAX_MISTAKES))
    except RecursionError:
        raise
    except Exception as exc:  # jsonschema's and our own: a reference that leads nowhere, or too much work
        raise ValueError(f"the JSON cannot be checked: {_line(exc)}") from exc
    if errors:
        raise _Unfit([(tuple(each.absolute_path), _words(each), each.instance) for each in errors])
    return value


def _words(error: Any) -> str:
    """What is wrong, without the value as a whole, which may be long."""
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"{', '.join(map(quoted, missing))} is missing"
    return f"{quoted(error.instance)} breaks {error.validator}: {quoted(error.validator_value)}"


def _shown(path: _Path) -> str:
    return ".".join(map(str, path)) or "the whole"


def _alone(text: str) -> str:
    """A text without objects and arrays may be a value of another kind. Raises ValueError where it is none."""
    try:
        json.loads(text, strict=False, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the answer holds no JSON that can be read: {_break(text)}") from exc
    return text


def _break(text: str) -> str:
    """Where the first thing that looks like JSON breaks off."""
    start = next(starts_in(text), None)
    if start is None:
        return "it has no '{' and no '['"
    try:
        json.loads(text[start:], strict=False, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        place = quoted(exc.doc[exc.pos : exc.pos + 20])
        return f"{exc.msg.removesuffix(' starting at')} at {place}, in what begins with {quoted(exc.doc[:20])}"
    except (ValueError, RecursionError) as exc:
        return _line(exc)
    return "it ends too early"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}: use null or a number")


def _as_object(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema where it is one of an object with properties that are known; what refers to that, as that."""
    target = str(schema.get("$ref", "")).rpartition("/")[2]
    definitions = schema.get("$defs", {})
    if target in definitions and "properties" not in schema:
        schema = {**definitions[target], "$defs": definitions}
    is_one = schema.get("type") == "object" and schema.get("properties")
    return None if not is_one or schema.keys() & _CHOICES else schema


def _line(error: BaseException) -> str:
    return truncate(f"{error}".partition("\n")[0], 200) or type(error).__name__
