"""Bounded: a validator for JSON Schemas that others wrote, which no schema and no argument can keep busy for long."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Keywords of a schema that are looked at for the arguments of one call, about a second's worth. References that lead
#: to two others each, and those to two more, come to more than any call lasts.
MAX_STEPS = 100_000

#: Looks at one keyword, as jsonschema has it: validator, the keyword's value, what is checked, and the schema around.
_Keyword = Callable[[Any, Any, Any, Any], Any]

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


class TooMuchWork(Exception):
    """Raised when arguments cannot be checked within the bound."""


@contextmanager
def bounded_work() -> Iterator[None]:
    """Whatever is validated inside, together, raises TooMuchWork after MAX_STEPS."""
    token = _left.set([MAX_STEPS])
    try:
        yield
    finally:
        _left.reset(token)


def bounded(schema: Mapping[str, Any]) -> Validator:
    """The validator of a schema, by its draft. Checks nothing elsewhere: no reference is ever fetched."""
    from jsonschema_specifications import REGISTRY

    # With a registry of its own it fetches no reference from anywhere: that would be the schema's author's choice.
    made: Validator = _bounded(draft_of(schema))(schema, registry=REGISTRY)
    return made


def draft_of(schema: Mapping[str, Any]) -> Any:
    """The validators' class for a schema: by the draft it names, else by the newest that takes how it is written."""
    import jsonschema

    newest = jsonschema.Draft202012Validator
    if "$schema" in schema or "$defs" in schema:  # which older drafts do not know
        return jsonschema.validators.validator_for(schema, default=newest)
    kinds = (newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
    return next((kind for kind in kinds if _takes(kind, schema)), newest)


def _takes(kind: Any, schema: Mapping[str, Any]) -> bool:
    import jsonschema

    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True


@functools.cache
def _bounded(kind: Any) -> Any:
    import jsonschema

    own: dict[str, _Keyword] = {"pattern": _pattern, "uniqueItems": _unique_items}
    keywords = {name: _counted(own.get(name, keyword)) for name, keyword in kind.VALIDATORS.items()}
    return jsonschema.validators.extend(kind, keywords)  # type: ignore[no-untyped-call]  # the stubs leave it out


def _counted(keyword: _Keyword) -> _Keyword:
    def look(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        left = _left.get()
        if left is not None:
            left[0] -= 1
            if left[0] < 0:
                raise TooMuchWork(f"it takes more than {MAX_STEPS} steps")
        return keyword(validator, value, instance, schema)

    return look


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _searcher(pattern)(instance):
        yield ValidationError(f"does not match {pattern!r}")


def _unique_items(_: Any, is_asked: bool, instance: Any, __: Any) -> Iterator[Any]:
    """By their texts: comparing each with each takes the square of their number."""
    from jsonschema.exceptions import ValidationError

    if is_asked and isinstance(instance, list):
        texts = {json.dumps(_comparable(each), sort_keys=True) for each in instance}
        if len(texts) < len(instance):
            yield ValidationError("has items that are alike")


def _comparable(value: Any) -> Any:
    """JSON knows no difference between 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value


@functools.lru_cache(maxsize=1024)
def _searcher(pattern: str) -> Callable[[str], object]:
    """Who finds it in a text: in linear time, unless only Python's own engine knows such a pattern."""
    return linear_search(pattern) or re.compile(pattern).search


@functools.lru_cache(maxsize=1024)
def linear_search(pattern: str) -> Callable[[str], bool] | None:
    """Whether a text holds a match, found without going back; None for a pattern that needs that, or is none."""
    from pydantic_core import PydanticSerializationError, SchemaError, SchemaValidator, core_schema

    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        validator = SchemaValidator(schema)
    except (SchemaError, PydanticSerializationError, TypeError, ValueError):
        return None
    return validator.isinstance_python
