"""JSON values, checked by a schema that may be hostile, and repaired where they do not fit."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Most keywords of a schema that are evaluated for one call: about a second of work. A schema whose
#: references double at each level would take longer than any call lasts.
MAX_STEPS = 100_000
#: Text that small models send for a boolean.
_BOOLEANS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
#: Text that small models send for an argument that they leave out.
_NOTHING = frozenset(("", "null", "none"))
#: Formats of text that has a value of its own, so that no word for nothing can be one.
_FORMATS = frozenset(("date", "date-time", "time", "duration", "uuid"))
#: How often JSON text may be written inside JSON text.
_MAX_ENCODINGS = 3
#: The Markdown fence around a whole text.
_FENCE = "```"
#: A text inside JSON, or a comma behind the last value of a list or an object. A text without a
#: quote at its end goes to the end, so that each character is read once.
_LAST_COMMA = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*(?:"|\Z))|,(?=\s*[\]}])', re.DOTALL)
_CURRENT_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Repairer:
    """Repairs the arguments of a call, for the second try.

    Models may quote a value: text becomes the value that it stands for.

    Text becomes the number, boolean, choice, list or object that the schema wants, but never where
    the schema accepts text. A null for "left out" is removed, and so is a word for it; a null that
    the schema accepts stays.
    """

    def __init__(self, schema: Mapping[str, Any], budget: StepBudget) -> None:
        """`schema` is one that models read: its references lead to its own `$defs`."""
        self._schema = schema
        self._budget = budget

    @cached_property
    def _validator(self) -> Validator:
        return with_budget(
            bounded_validator({**self._schema, "$schema": _CURRENT_DRAFT}), self._budget
        )

    def repaired(self, arguments: Any) -> Any:
        """Return the arguments repaired.

        Raises TooMuchWork, and RecursionError for arguments nested too deep.
        """
        return self._by(self._schema, arguments)

    def _by(self, schema: Mapping[str, Any], value: Any) -> Any:
        if "$ref" in schema:
            return self._by(
                self._schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), value
            )
        value = self._children(schema, value)
        for part in schema.get("allOf", ()):
            value = self._by(part, value)
        for key in ("anyOf", "oneOf"):
            alternatives = schema.get(key, ())
            fitting = next((part for part in alternatives if self._accepts(part, value)), None)
            if fitting is None:
                repaired = ((part, self._by(part, value)) for part in alternatives)
                value = next((each for part, each in repaired if self._accepts(part, each)), value)
            else:  # a whole float in it
                value = self._by(fitting, value)
        return value

    def _children(self, schema: Mapping[str, Any], value: Any) -> Any:
        if isinstance(value, str):
            value = _decoded(schema, value)
        if isinstance(value, list):
            schemas = itertools.chain(
                schema.get("prefixItems", ()), itertools.repeat(schema.get("items", {}))
            )
            return [self._by(part, each) for each, part in zip(value, schemas, strict=False)]
        if isinstance(value, dict):
            parts = schema.get("properties", {})
            required = schema.get("required", ())
            others = schema.get("additionalProperties")
            given = {
                name: self._without_word_for_null(
                    parts.get(name, {}), each, is_required=name in required
                )
                for name, each in value.items()
            }
            return {
                name: self._by(parts.get(name, others if isinstance(others, dict) else {}), each)
                for name, each in given.items()
                if each is not None
                or name in required
                or name not in parts
                or self._accepts(parts[name], None)
            }
        return _read_as(schema, value)

    def _without_word_for_null(
        self, schema: Mapping[str, Any], value: Any, *, is_required: bool
    ) -> Any:
        """Return None for a word that stands for it, else the value.

        Only where the schema accepts no such text and something may be left out.
        """
        if not isinstance(value, str) or value.strip().lower() not in _NOTHING:
            return value
        if self._takes_text(schema, value) or (is_required and not self._accepts(schema, None)):
            return value
        return None

    def _takes_text(self, schema: Mapping[str, Any], text: str) -> bool:
        """Return whether a parameter is a text, so that this may be one.

        Dates, times, UUIDs and choices are not.
        """
        if "$ref" in schema:
            return self._takes_text(
                self._schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), text
            )
        alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if alternatives:
            return any(self._takes_text(part, text) for part in alternatives)
        if "enum" in schema or "const" in schema:
            return self._accepts(schema, text)
        kinds = _types_of(schema)
        return kinds == [None] or ("string" in kinds and schema.get("format") not in _FORMATS)

    def _accepts(self, schema: Mapping[str, Any], value: Any) -> bool:
        # The common case, without jsonschema.
        if value is None and isinstance(schema.get("type"), str):
            return bool(schema["type"] == "null")
        return bool(self._validator.evolve(schema=schema).is_valid(value))


def _decoded(schema: Mapping[str, Any], text: str) -> Any:
    """Return the list or object that the text is as JSON, if the schema wants one; else the text."""
    kinds = _types_of(schema)
    wanted = tuple(kind for name, kind in (("array", list), ("object", dict)) if name in kinds)
    if not wanted or "string" in kinds:
        return text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, wanted) else text


def read_json(text: str) -> Any:
    """Return the JSON value of a text as models write it.

    It may stand in a code fence, be encoded twice, or have a comma at its end.

    Raises ValueError or RecursionError for a text that holds no JSON.
    """
    value: Any = text
    for _ in range(_MAX_ENCODINGS):
        inside = value.strip()
        if inside.startswith(_FENCE) and inside.endswith(_FENCE):
            inside = inside.removesuffix(_FENCE).partition("\n")[2]
        try:
            value = json.loads(inside, parse_constant=_refuse_constant)
        except ValueError:
            mended = _LAST_COMMA.sub(lambda found: found["text"] or "", inside)
            value = json.loads(mended, parse_constant=_refuse_constant)
        if not isinstance(value, str):
            break
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _types_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the types that a schema names, as a list; [None] if it names none."""
    types = schema.get("type")
    if isinstance(types, list):
        return types
    return [types]


def _read_as(schema: Mapping[str, Any], value: Any) -> Any:
    """Return text as the choice, number or boolean that it stands for; else the value.

    A whole float becomes an integer.
    """
    if is_whole_float(value):
        kinds = _types_of(schema)
        is_integer = "integer" in kinds and "number" not in kinds
        if "enum" in schema or is_integer:
            return int(value)
        return value
    if not isinstance(value, str):
        return value
    if "enum" in schema:
        boolean = _BOOLEANS.get(value.lower(), ...)
        choices = (each for each in schema["enum"] if each is boolean or str(each) == value)
        if value in schema["enum"]:
            return value
        return next(choices, value)
    kinds = _types_of(schema)
    for kind in kinds if "string" not in kinds else ():
        if kind in _READERS:
            with contextlib.suppress(ValueError, KeyError):
                return _READERS[kind](value)
    return value


def is_whole_float(value: Any) -> bool:
    """Return whether a value is a float without a fraction, such as 3.0."""
    return isinstance(value, float) and value.is_integer()


def has_whole_float(value: Any) -> bool:
    """Return whether a JSON value is, or holds, a float without a fraction.

    Raises RecursionError.
    """
    if isinstance(value, dict):
        return any(map(has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(has_whole_float, value))
    return is_whole_float(value)


_READERS: Mapping[Any, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "boolean": lambda text: _BOOLEANS[text.lower()],
}


class TooMuchWork(Exception):
    """Raised when arguments cannot be checked within MAX_STEPS."""


class StepBudget:
    """Counts the evaluated keywords of one call, so that a hostile schema cannot hold the process.

    It takes the place of jsonschema's format checker, the only field that every validator hands to
    those of its subschemas. Formats are not checked.
    """

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self) -> None:
        """Count one keyword. Raises TooMuchWork."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork(f"it takes more than {MAX_STEPS} steps")

    def check(self, *_: Any) -> None:
        """Accept any format."""


def bounded_validator(schema: Mapping[str, Any]) -> Validator:
    """Return the validator of a schema, by its draft. Use it `with_budget` only.

    It has a registry of its own, so that no reference is ever fetched:
    the address would be chosen by the schema's author.
    """
    from jsonschema_specifications import REGISTRY

    validator: Validator = _bounded_class(draft_of(schema))(schema, registry=REGISTRY)
    return validator


def with_budget(validator: Validator, budget: StepBudget) -> Validator:
    """Return the validator for one call: it raises TooMuchWork when the budget is spent."""
    return validator.evolve(format_checker=budget)


def draft_of(schema: Mapping[str, Any]) -> Any:
    """Return the validator class of the draft that a schema names.

    Without a name it is the newest draft that accepts the schema.
    """
    import jsonschema

    newest = jsonschema.Draft202012Validator
    if "$schema" in schema or "$defs" in schema:  # older drafts do not know `$defs`
        return jsonschema.validators.validator_for(schema, default=newest)
    for draft in (newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator):
        with contextlib.suppress(jsonschema.SchemaError):
            draft.check_schema(schema)
            return draft
    return newest


#: Evaluates one keyword: validator, the keyword's value, the checked value, and the schema around.
_Keyword = Callable[[Any, Any, Any, Any], Any]


@functools.cache
def _bounded_class(draft: Any) -> Any:
    """Return the validator of a draft whose keywords each spend a step."""
    import jsonschema

    def counted(keyword: _Keyword, validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        validator.format_checker.spend()
        return keyword(validator, value, instance, schema)

    own: dict[str, _Keyword] = {"pattern": _pattern, "uniqueItems": _unique_items}
    keywords = {
        name: partial(counted, own.get(name, keyword)) for name, keyword in draft.VALIDATORS.items()
    }
    return jsonschema.validators.extend(draft, keywords)  # type: ignore[no-untyped-call]  # missing in the stubs


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    """Search in linear time, unless only Python's own engine accepts the pattern."""
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str):
        search = linear_search(pattern) or re.compile(pattern).search
        if not search(instance):
            yield ValidationError(f"does not match {pattern!r}")


@functools.lru_cache(maxsize=1024)
def linear_search(pattern: str) -> Callable[[str], bool] | None:
    """Return what searches a text without backtracking.

    None for a pattern that needs backtracking, or that is invalid.
    """
    from pydantic_core import PydanticSerializationError, SchemaError, SchemaValidator, core_schema

    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except (SchemaError, PydanticSerializationError, TypeError, ValueError):
        return None


def _unique_items(_: Any, is_set: bool, instance: Any, __: Any) -> Iterator[Any]:
    """Compare items by their text: comparing each with each would take quadratic time."""
    from jsonschema.exceptions import ValidationError

    if is_set and isinstance(instance, list):
        texts = {json.dumps(_comparable(each), sort_keys=True) for each in instance}
        if len(texts) < len(instance):
            yield ValidationError("has items that are alike")


def _comparable(value: Any) -> Any:
    """Return the value with whole floats as integers: 1 and 1.0 are equal in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in value]
    return value
