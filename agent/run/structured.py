"""Typed answers: finds JSON in the text of a model, and checks it against a schema."""

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
from sayso.agent.tools.call_texts import truncate
from sayso.agent.tools.json_validation import StepBudget, bounded_validator, draft_of, with_budget
from sayso.pending.error_texts import error_text

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


_SPACE = r"[ \t\n\r]*+"

#: A JSON string. Unescaped line breaks and tabs are allowed, because models write them. No
#: possessive quantifier is around a group here: before Python 3.11.5 a group that failed half way
#: stays matched.
_STRING = r'"(?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_NUMBER = r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?+[0-9]++)?"
_SCALAR = rf"{_STRING}|{_NUMBER}|true|false|null"

#: What may follow: any value, the first item after an opening bracket, the next item after a comma,
#: and the rest after a value. A match is classified by its last character, which is a quote for a
#: string.
_VALUE = re.compile(rf"{_SPACE}(?:[\[{{]|{_SCALAR})")
_KEY = re.compile(rf"{_SPACE}{_STRING}{_SPACE}:")
_FIRST: Mapping[str, re.Pattern[str]] = {
    "[": re.compile(rf"{_SPACE}(?:[\[{{\]]|{_SCALAR})"),
    "{": re.compile(rf"{_SPACE}(?:}}|{_STRING}{_SPACE}:)"),
}
_NEXT: Mapping[str, re.Pattern[str]] = {"[": _VALUE, "{": _KEY}
_REST: Mapping[str, re.Pattern[str]] = {
    "[": re.compile(rf"{_SPACE}[,\]]"),
    "{": re.compile(rf"{_SPACE}[,}}]"),
}

#: The start of a code block whose content starts with a bracket.
_FENCED = re.compile(r"```[\w+.-]*+\s*+(?=[\[{])")
_BRACKET = re.compile(r"[\[{]")


def values_in(text: str) -> Iterator[str]:
    """Yield the outermost JSON objects and arrays of a text.

    Those at the start of a code block come first.

    Their strings may contain line breaks and tabs: read them with `json.loads(..., strict=False)`.
    """
    scan = _JsonScanner(text)
    yielded = set[tuple[int, int]]()
    fenced = (fence.end() for fence in _FENCED.finditer(text))
    for span in itertools.chain(_spans(scan, fenced), _spans(scan, starts_in(text))):
        if span not in yielded:
            yielded.add(span)
            yield text[slice(*span)]


def starts_in(text: str) -> Iterator[int]:
    """Yield the positions where an object or an array may start."""
    return (bracket.start() for bracket in _BRACKET.finditer(text))


def _spans(scan: _JsonScanner, starts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the values that begin at one of these places, but not those inside of another value."""
    until = 0
    for start in starts:
        if start < until:
            continue
        end = scan.end(start)
        if end:
            until = end
            yield start, end


class _JsonScanner:
    """Finds the ends of JSON values in a text.

    Remembers the end of each value, so no bracket is parsed twice.

    This takes linear time: if two attempts overlap, one sees as a string what the other sees as
    structure, until one fails; a third attempt over the same characters cannot exist.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[int, int] = {}

    def end(self, start: int) -> int:
        """Return the position after the value that starts here; 0 if there is none."""
        if start not in self._ends:
            self._read(start)
        return self._ends[start]

    def _read(self, start: int) -> None:
        """Store the ends of the value and of all values inside it, as far as it can be parsed."""
        text = self._text
        opened = list[int]()
        expected = _VALUE
        at = start
        while True:
            match = expected.match(text, at)
            if match is None:
                return
            at = match.end()
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
            inside = text[opened[-1]]
            if mark == ":":
                expected = _VALUE
            elif mark == ",":
                expected = _NEXT[inside]
            else:
                expected = _REST[inside]


#: A string in single or double quotes. One without an end contains the rest of the text,
#: which is read only once.
_QUOTED_STRING = r'"(?:[^"\\]|\\.)*+"?|' r"'(?:[^'\\]|\\.)*+'?"
_BRACKETS = re.compile(rf"{_QUOTED_STRING}|[{{}}\[\]]", re.DOTALL)
_REPAIRABLE = re.compile(rf"{_QUOTED_STRING}|,(?=\s*+[}}\]])|\b(?:True|False|None)\b", re.DOTALL)
_ESCAPES = re.compile(r"\\.|\"", re.DOTALL)
#: Quotes and escapes between single quotes -> between double quotes. Other escapes stay.
_REQUOTED = {"\\'": "'", '"': '\\"'}
_REPAIRS = {"True": "true", "False": "false", "None": "null", ",": ""}


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python reads as JSON and others do not."""
    raise ValueError(f"JSON has no {name}: use null or a number")


#: Not strict, because models write unescaped line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)


def decode_value(text: str, *, repair: bool) -> tuple[Any, int]:
    """Return the object or list at the start of the text, and its length; (None, 0) without one.

    With `repair`, single quotes, Python's constants and commas before a closing bracket are
    accepted.
    """
    try:
        return _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        pass  # it may be repaired

    length = 0
    if repair:
        length = _bracketed_length(text)
    if not length:
        return None, 0
    repaired = _REPAIRABLE.sub(_repaired, text[:length])
    try:
        return _DECODER.decode(repaired), length
    except (ValueError, RecursionError):
        return None, 0


def _bracketed_length(text: str) -> int:
    """Return the number of characters up to the bracket that closes the first one; 0 if none does."""
    depth = 0
    for part in _BRACKETS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part[0], 0)
        if depth <= 0:
            return part.end()
    return 0


def _repaired(fault: re.Match[str]) -> str:
    text = fault[0]
    if not text.startswith("'"):
        return _REPAIRS.get(text, text)
    inside = _ESCAPES.sub(lambda escape: _REQUOTED.get(escape[0], escape[0]), text[1:-1])
    return f'"{inside}"'


#: The form of an answer: an instance of a pydantic model, or plain data that fits a JSON Schema.
ResponseFormat: TypeAlias = type[BaseModel] | dict[str, Any]

#: The path of a part of a value.
_Path: TypeAlias = tuple[int | str, ...]

#: Keywords whose values are data, never schemas.
_DATA_KEYWORDS = frozenset(("const", "default", "enum", "examples"))

#: The number of JSON values of an answer that are tried. A model may quote some before its own.
MAX_CANDIDATES = 8

#: The number of mistakes in an error message, and its characters that the model is shown.
MAX_MISTAKES = 10
MAX_ERROR_CHARS = 2000


def extract_json(text: str) -> str | None:
    """Return the first JSON object or array of a text, None without one.

    One at the start of a code block is preferred. Brackets that are not JSON are skipped. Strings
    may contain line breaks and tabs: read the result with `json.loads(..., strict=False)`. Takes
    linear time at any depth.
    """
    return next(values_in(text), None)


def schema_from_response_format(fmt: ResponseFormat) -> dict[str, Any]:
    """Return a new copy of the JSON Schema of a response format.

    Raises TypeError for another type, and ValueError for an unusable schema: it is invalid, is not
    JSON, or refers to something outside of it (nothing is ever fetched).
    """
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        return copy.deepcopy(_model_schema(fmt))
    if not isinstance(fmt, Mapping):
        cure = "give a subclass of pydantic's BaseModel, or a JSON Schema as a dict"
        raise TypeError(f"response_format is {quoted(fmt)}: {cure}")
    import jsonschema

    try:
        written = _schema_text(fmt)
        _validator(written)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        cure = "give the schema itself, in no wrapping of a vendor's"
        raise ValueError(
            f"response_format is no JSON Schema: at {where}, {quoted(exc.instance)}; {cure}"
        ) from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"response_format is no usable JSON Schema: {_first_line(exc)}") from exc
    schema: dict[str, Any] = json.loads(written)
    return schema


def parse_and_validate(text: str, fmt: ResponseFormat) -> Any:
    """Return the first JSON value in the text that fits the format.

    It is an instance of a pydantic model, or plain data for a JSON Schema. A null where none is
    allowed counts as left out. Raises ValueError with the path of each mistake, so that the model
    can correct it, and TypeError for an invalid format.
    """
    make: Callable[[Any], Any]
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        make = functools.partial(_instance, fmt)
    else:
        schema = schema_from_response_format(fmt)
        make = functools.partial(_data, _validator(_schema_text(schema)))

    candidates = list(itertools.islice(values_in(text), MAX_CANDIDATES))
    if not candidates:
        try:
            json.loads(text, strict=False, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as exc:
            raise ValueError(
                f"the answer holds no JSON that can be read: {_break_position(text)}"
            ) from exc
        candidates = [text]  # a value without brackets

    errors: dict[str, ValueError] = {}
    for candidate in candidates:
        try:
            return _read(make, candidate)
        except ValueError as exc:
            errors[candidate] = exc
    # Shorter values are more likely quotations.
    raise errors[max(candidates, key=len)]


def build_schema_instruction(schema: Mapping[str, Any]) -> str:
    """Return the part of a system prompt that asks for JSON of this schema."""
    written = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "Your final answer must be one JSON value that fits the JSON Schema below: no words before or after it, no "
        "comments, and an instance of the schema, not the schema itself. This says nothing about calling tools.\n"
        f"{written}"
    )


def validation_retry_message(error: str | Exception) -> str:
    """Return the message for a model whose answer did not fit."""
    return (
        f"Your answer could not be used: {truncate(str(error), MAX_ERROR_CHARS)}\n"
        "Answer again, with nothing but the whole corrected JSON value."
    )


@functools.lru_cache(maxsize=256)
def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema()
    except Exception as exc:  # pydantic raises errors without a common base
        raise ValueError(
            f"response_format {model.__name__} has no JSON Schema: {_first_line(exc)}"
        ) from exc


def _schema_text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, allow_nan=False)


@functools.lru_cache(maxsize=256)
def _validator(written: str) -> Validator:
    """Return the validator of a schema. It is cached, because checking a schema takes a millisecond.

    Raises ValueError if the schema refers to something outside of it, because nothing is fetched.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(written)
    draft_of(schema).check_schema(schema)
    registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema))
    resolver = registry.crawl().resolver()
    for target in _references(schema):
        if not target.startswith("#"):
            raise ValueError(
                f"it refers to {target!r}: put that under '$defs', and refer to '#/$defs/...'"
            )
        try:
            resolver.lookup(target)
        except Unresolvable as exc:
            raise ValueError(
                f"it refers to {target!r}, which it does not have: put that under '$defs'"
            ) from exc
    return bounded_validator(schema)


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            target = part.get("$ref")
            if isinstance(target, str):
                yield target
            waiting += [each for key, each in part.items() if key not in _DATA_KEYWORDS]
        elif isinstance(part, list):
            waiting += part


class _DoesNotFit(ValueError):
    """Raised when a value does not fit. `nulls` are the paths of nulls that are not allowed."""

    def __init__(self, mistakes: Sequence[tuple[_Path, str, Any]]) -> None:
        lines = [
            f"{'.'.join(map(str, path)) or 'the whole'}: {text}"
            for path, text, _ in mistakes[:MAX_MISTAKES]
        ]
        super().__init__(f"the JSON does not fit: {'; '.join(lines)}")
        self.nulls = [path for path, _, value in mistakes if value is None and path]


def _read(make: Callable[[Any], Any], candidate: str) -> Any:
    """Return the value of a JSON text, checked by `make`. Raises ValueError."""
    try:
        value = json.loads(candidate, strict=False, parse_constant=refuse_constant)
        # A lone surrogate cannot be stored.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        try:
            return make(value)
        except _DoesNotFit as exc:
            return _without_nulls(make, value, exc)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deep: use fewer levels") from exc
    except UnicodeEncodeError as exc:
        raise ValueError(
            "the JSON holds half a character (a lone surrogate), which no UTF-8 can hold"
        ) from exc


def _without_nulls(make: Callable[[Any], Any], value: Any, refused: _DoesNotFit) -> Any:
    """Read the value again without nulls that are not allowed: they stand for absent properties."""
    has_changed = False
    for *parents, name in refused.nulls:
        inner = value
        for part in parents:
            # Pydantic's paths also name types of a union.
            with contextlib.suppress(KeyError, IndexError, TypeError):
                inner = inner[part]
        if isinstance(inner, dict) and inner.get(name, ...) is None:
            del inner[name]
            has_changed = True
    if not has_changed:
        raise refused
    try:
        return make(value)
    except ValueError:
        raise refused from None


def _instance(model: type[BaseModel], value: Any) -> BaseModel:
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=False)
        raise _DoesNotFit([(each["loc"], each["msg"], each["input"]) for each in errors]) from exc
    except RecursionError:
        raise
    except Exception as exc:  # a validator of the model may raise anything
        raise ValueError(f"the JSON does not fit {model.__name__}: {_first_line(exc)}") from exc


def _data(validator: Validator, value: Any) -> Any:
    try:
        errors = list(
            itertools.islice(with_budget(validator, StepBudget()).iter_errors(value), MAX_MISTAKES)
        )
    except RecursionError:
        raise
    except Exception as exc:  # such as a broken reference, or too much work
        raise ValueError(f"the JSON cannot be checked: {_first_line(exc)}") from exc
    if errors:
        raise _DoesNotFit(
            [(tuple(each.absolute_path), _mistake_text(each), each.instance) for each in errors]
        )
    return value


def _mistake_text(error: Any) -> str:
    """Return what is wrong, without the complete value, which may be long."""
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"{', '.join(map(quoted, missing))} is missing"
    return f"{quoted(error.instance)} breaks {error.validator}: {quoted(error.validator_value)}"


def _break_position(text: str) -> str:
    """Return where the first text that looks like JSON becomes invalid."""
    start = next(starts_in(text), None)
    if start is None:
        return "it has no '{' and no '['"
    try:
        json.loads(text[start:], strict=False, parse_constant=refuse_constant)
    except json.JSONDecodeError as exc:
        place = quoted(exc.doc[exc.pos : exc.pos + 20])
        return f"{exc.msg.removesuffix(' starting at')} at {place}, in what begins with {quoted(exc.doc[:20])}"
    except (ValueError, RecursionError) as exc:
        return _first_line(exc)
    return "it ends too early"


def _first_line(error: BaseException) -> str:
    return truncate(error_text(error).partition("\n")[0], 200) or type(error).__name__
