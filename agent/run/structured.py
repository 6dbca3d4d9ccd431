"""Typed answers: checks the JSON in a model's answer against a response format.

A *response format* is the form that the answer must have: a pydantic model, whose instance the
program gets, or a JSON Schema, for plain data. The model is told the schema. If its answer does not
fit, it is told what is wrong and answers again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ValidationError

from sayso.agent.run.json_in_text import refuse_constant, starts_in, values_in
from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.json_validation import StepBudget, bounded_validator, draft_of, with_budget
from sayso.agent.tools.text_cuts import truncate
from sayso.pending.error_texts import error_text

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


#: The form of an answer: an instance of a pydantic model, or plain data that fits a JSON Schema.
ResponseFormat: TypeAlias = type[BaseModel] | dict[str, Any]

#: Keywords of JSON Schema whose values are data, never schemas.
_DATA_KEYWORDS = frozenset(("const", "default", "enum", "examples"))
#: Keywords that hold schemas by name. Such a name may look like a keyword: a property may be called
#: `default`.
_NAMED_KEYWORDS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)

#: How many JSON values of an answer are tried. A model may quote some before its own.
MAX_CANDIDATES = 8
#: How many mistakes an error message names.
MAX_MISTAKES = 10
#: How many characters of an error message the model is shown.
MAX_ERROR_CHARS = 2000
#: Stands for a property that an object does not have.
_ABSENT = object()


def schema_from_response_format(fmt: ResponseFormat) -> dict[str, Any]:
    """Return the JSON Schema of a response format, as a new copy.

    Raises TypeError for anything that is no response format, and ValueError for an unusable schema:
    it is invalid, is not JSON, or refers to something outside of it (nothing is ever fetched).
    """
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        return copy.deepcopy(_model_schema(fmt))
    if not isinstance(fmt, Mapping):
        cure = "give a subclass of pydantic's BaseModel, or a JSON Schema as a dict"
        raise TypeError(f"response_format is {quoted(fmt)}: {cure}")
    import jsonschema

    try:
        schema_text = _schema_text(fmt)
        # Checks the schema. What it returns is cached for `parse_and_validate`.
        _validator(schema_text)
    except jsonschema.SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path)) or "its top"
        cure = "give the schema itself, in no wrapping of a vendor's"
        raise ValueError(
            f"response_format is no JSON Schema: at {where}, {quoted(exc.instance)}; {cure}"
        ) from exc
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"response_format is no usable JSON Schema: {_first_line(exc)}") from exc
    schema: dict[str, Any] = json.loads(schema_text)
    return schema


def parse_and_validate(text: str, fmt: ResponseFormat) -> Any:
    """Return the first JSON value in the text that fits the format.

    It is an instance of a pydantic model, or plain data for a JSON Schema. A null where none is
    allowed counts as a property that was left out. Raises ValueError with the path of each mistake,
    so that the model can correct it, and TypeError for an invalid format.
    """
    check: Callable[[Any], Any]
    if isinstance(fmt, type) and issubclass(fmt, BaseModel):
        check = functools.partial(_as_instance, fmt)
    else:
        schema = schema_from_response_format(fmt)
        check = functools.partial(_as_valid_data, _validator(_schema_text(schema)))

    candidates = list(itertools.islice(values_in(text), MAX_CANDIDATES))
    if not candidates:
        # The whole text may be a value without brackets, such as a number. It is read with
        # `strict=False`, which accepts line ends inside strings: models write them.
        try:
            json.loads(text, strict=False, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as exc:
            raise ValueError(
                f"the answer holds no JSON that can be read: {_break_position(text)}"
            ) from exc
        candidates = [text]

    errors: dict[str, ValueError] = {}
    for candidate in candidates:
        try:
            return _read(candidate, check)
        except ValueError as exc:
            errors[candidate] = exc
    # The mistakes of the longest value are reported: shorter ones are more likely quotations.
    raise errors[max(candidates, key=len)]


def build_schema_instruction(schema: Mapping[str, Any]) -> str:
    """Return the part of a system prompt that asks for JSON of this schema."""
    schema_text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "Your final answer must be one JSON value that fits the JSON Schema below: no words before "
        "or after it, no comments, and an instance of the schema, not the schema itself. This says "
        f"nothing about calling tools.\n{schema_text}"
    )


def validation_retry_message(error: str | Exception) -> str:
    """Return the message for a model whose answer did not fit."""
    return (
        f"Your answer could not be used: {truncate(str(error), MAX_ERROR_CHARS)}\n"
        "Answer again, with nothing but the whole corrected JSON value."
    )


@functools.lru_cache(maxsize=256)
def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a pydantic model. Raises ValueError if it has none."""
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
    """Return the validator of a schema, which is `written` as JSON.

    It is cached, because checking a schema takes a millisecond. Raises jsonschema.SchemaError for
    an invalid schema, and ValueError if it refers to something outside of it, which is never
    fetched.
    """
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(written)
    draft_of(schema).check_schema(schema)
    # Whatever its draft: only the pointers of references, such as `#/$defs/Item`, are looked up, and
    # they mean the same in all drafts.
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
    """Yield the targets of all references (`$ref`) in a schema."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            target = part.get("$ref")
            if isinstance(target, str):
                yield target
            for key, each in part.items():
                if key in _NAMED_KEYWORDS and isinstance(each, dict):
                    waiting += each.values()
                elif key not in _DATA_KEYWORDS:
                    waiting.append(each)
        elif isinstance(part, list):
            waiting += part


class _Mistake(NamedTuple):
    """One part of a value that does not fit the format."""

    #: The names and indexes that lead to the part; () for the whole value.
    path: tuple[int | str, ...]
    #: What is wrong.
    text: str
    #: The part.
    value: Any


class _DoesNotFit(ValueError):
    """Raised when a value does not fit the format."""

    def __init__(self, mistakes: Sequence[_Mistake]) -> None:
        lines = []
        for mistake in mistakes[:MAX_MISTAKES]:
            place = ".".join(map(str, mistake.path)) or "the whole"
            lines.append(f"{place}: {mistake.text}")
        # Each missing name of an object has an error, and `_mistake_text` says all of them each time.
        problems = "; ".join(dict.fromkeys(lines))
        super().__init__(f"the JSON does not fit: {problems}")
        #: The paths of nulls that are not allowed.
        self.nulls = [each.path for each in mistakes if each.value is None and each.path]


def _read(candidate: str, check: Callable[[Any], Any]) -> Any:
    """Return the value of a JSON text in the form that `check` gives it. Raises ValueError."""
    try:
        value = json.loads(candidate, strict=False, parse_constant=refuse_constant)
        # Two kinds of values cannot be stored. Python reads 1e999 as infinity, for which `dumps`
        # raises ValueError. For a lone surrogate `encode` raises UnicodeEncodeError.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        try:
            return check(value)
        except _DoesNotFit as exc:
            return _without_nulls(value, check, exc)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deep: use fewer levels") from exc
    except UnicodeEncodeError as exc:
        raise ValueError(
            "the JSON holds half a character (a lone surrogate), which no UTF-8 can hold"
        ) from exc


def _without_nulls(value: Any, check: Callable[[Any], Any], refusal: _DoesNotFit) -> Any:
    """Check the value again without its nulls that are not allowed.

    Models write null for a property that they leave out. `value` is changed in place. Raises
    `refusal`, the mistakes of the whole value, if that does not help.
    """
    has_changed = False
    for *parents, name in refusal.nulls:
        inner = value
        for part in parents:
            # The paths of pydantic also name the types of a union, which are no part of the value.
            with contextlib.suppress(KeyError, IndexError, TypeError):
                inner = inner[part]
        if isinstance(inner, dict) and inner.get(name, _ABSENT) is None:
            del inner[name]
            has_changed = True
    if not has_changed:
        raise refusal
    try:
        return check(value)
    except ValueError:
        raise refusal from None


def _as_instance(model: type[BaseModel], value: Any) -> BaseModel:
    """Return JSON data as an instance of a pydantic model. Raises ValueError if it does not fit."""
    try:
        # From JSON, because in it a strict model accepts a text for a date. In a dict it does not.
        return model.model_validate_json(json.dumps(value))
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=False)
        mistakes = [_Mistake(each["loc"], each["msg"], each["input"]) for each in errors]
        raise _DoesNotFit(mistakes) from exc
    except RecursionError:  # `_read` says what is wrong
        raise
    except Exception as exc:  # a validator of the model may raise anything
        raise ValueError(f"the JSON does not fit {model.__name__}: {_first_line(exc)}") from exc


def _as_valid_data(validator: Validator, value: Any) -> Any:
    """Return JSON data unchanged if it fits a schema. Raises ValueError if it does not fit."""
    # A schema may need endless work for some values. So each check has its own budget of steps.
    bounded = with_budget(validator, StepBudget())
    try:
        errors = list(itertools.islice(bounded.iter_errors(value), MAX_MISTAKES))
    except RecursionError:  # `_read` says what is wrong
        raise
    except Exception as exc:  # such as a broken reference, or too much work
        raise ValueError(f"the JSON cannot be checked: {_first_line(exc)}") from exc
    if not errors:
        return value
    raise _DoesNotFit(
        [_Mistake(tuple(each.absolute_path), _mistake_text(each), each.instance) for each in errors]
    )


def _mistake_text(error: Any) -> str:
    """Return what a jsonschema error says is wrong, without the whole value, which may be long."""
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"{', '.join(map(quoted, missing))} is missing"
    return f"{quoted(error.instance)} breaks {error.validator}: {quoted(error.validator_value)}"


def _break_position(text: str) -> str:
    """Return where the first text that looks like JSON becomes invalid, for the model."""
    start = next(starts_in(text), None)
    if start is None:
        return "it has no '{' and no '['"
    try:
        json.loads(text[start:], strict=False, parse_constant=refuse_constant)
    except json.JSONDecodeError as exc:
        # Python's message ends so where the position follows: "Unterminated string starting at".
        problem = exc.msg.removesuffix(" starting at")
        place = quoted(exc.doc[exc.pos : exc.pos + 20])
        beginning = quoted(exc.doc[:20])
        return f"{problem} at {place}, in what begins with {beginning}"
    except (ValueError, RecursionError) as exc:
        return _first_line(exc)
    # Not reached, as long as `values_in` finds every object and list that `json.loads` reads.
    return "it ends too early"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters; its class if it has no text."""
    first_line, _, _ = error_text(error).partition("\n")
    return truncate(first_line, 200) or type(error).__name__
