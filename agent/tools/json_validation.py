"""JSON values that a model sent: checked by a JSON Schema, and repaired where they do not fit.

Models make regular mistakes: they send a number as text, a list as JSON text, or the word "null"
for an argument that they leave out. A Repairer corrects these before a call is refused.

The schema may come from a foreign server and be hostile: made so that checking a call takes hours.
`bounded_validator` counts the steps of a check, and never follows a reference to another address.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Most keywords of a schema that are evaluated for one call: about a second of work. A schema whose
#: references double at each level would take longer than any call lasts.
MAX_STEPS = 100_000
#: Text that small models send for a boolean, in lower case.
_BOOLEANS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
#: Text that small models send for an argument that they leave out, in lower case.
_WORDS_FOR_NULL = frozenset(("", "null", "none"))
#: Formats of text in which "null" or "" cannot be a value.
_STRICT_FORMATS = frozenset(("date", "date-time", "time", "duration", "uuid"))
#: How often JSON text may be written inside JSON text.
_MAX_ENCODINGS = 3
#: The Markdown fence around a whole text.
_FENCE = "```"
#: A text inside JSON, or a comma behind the last value of a list or an object. A text without a
#: quote at its end goes to the end, so that each character is read once.
_LAST_COMMA = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*(?:"|\Z))|,(?=\s*[\]}])', re.DOTALL)
_CURRENT_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Repairer:
    """Repairs the arguments of one call, after a check has refused them.

    Text becomes the number, boolean, choice, list or object that the schema wants, but never where
    the schema accepts text. A null for "left out" is removed, and so is a word for it; a null that
    the schema accepts stays. What cannot be repaired does not change.
    """

    def __init__(self, schema: Mapping[str, Any], budget: StepBudget) -> None:
        """`schema` is one that models read: its references lead to its own `$defs`."""
        self._schema = schema
        self._budget = budget

    @cached_property
    def _validator(self) -> Validator:
        validator = bounded_validator({**self._schema, "$schema": _CURRENT_DRAFT})
        return with_budget(validator, self._budget)

    def repaired(self, arguments: Any) -> Any:
        """Return the arguments repaired.

        Raises TooMuchWork, and RecursionError for arguments nested too deep.
        """
        return self._repair(self._schema, arguments)

    def _repair(self, schema: Mapping[str, Any], value: Any) -> Any:
        """Return the value, repaired by all that a schema says about it."""
        if "$ref" in schema:
            return self._repair(self._definition(schema["$ref"]), value)
        value = self._repair_by_type(schema, value)
        for part in schema.get("allOf", ()):
            value = self._repair(part, value)
        for key in ("anyOf", "oneOf"):
            value = self._repair_by_alternatives(schema.get(key, ()), value)
        return value

    def _definition(self, reference: str) -> Mapping[str, Any]:
        """Return the schema that a `$ref` such as "#/$defs/Order" names; empty if there is none."""
        name = reference.rpartition("/")[2]
        definition: Mapping[str, Any] = self._schema.get("$defs", {}).get(name, {})
        return definition

    def _repair_by_alternatives(self, alternatives: Sequence[Mapping[str, Any]], value: Any) -> Any:
        """Return the value, repaired by the first alternative that accepts it.

        One that accepts the value unrepaired comes before one that accepts it when it is repaired.
        """
        for part in alternatives:
            if self._accepts(part, value):
                return self._repair(part, value)  # it may still hold a whole float
        for part in alternatives:
            repaired = self._repair(part, value)
            if self._accepts(part, repaired):
                return repaired
        return value

    def _repair_by_type(self, schema: Mapping[str, Any], value: Any) -> Any:
        """Return the value, repaired by its type, and by the schemas of its items or properties."""
        if isinstance(value, str):
            value = _decoded(schema, value)
        if isinstance(value, list):
            schemas = itertools.chain(
                schema.get("prefixItems", ()), itertools.repeat(schema.get("items", {}))
            )
            return [self._repair(part, each) for each, part in zip(value, schemas, strict=False)]
        if isinstance(value, dict):
            return self._repair_properties(schema, value)
        return _read_as(schema, value)

    def _repair_properties(
        self, schema: Mapping[str, Any], value: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return an object with its properties repaired, and without those that are left out."""
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        other_properties = schema.get("additionalProperties")
        if not isinstance(other_properties, dict):  # true and false say nothing about values
            other_properties = {}

        repaired = {}
        for name, original in value.items():
            is_required = name in required
            part = properties.get(name, other_properties)
            each = self._without_word_for_null(
                properties.get(name, {}), original, is_required=is_required
            )
            # A null means "left out", unless the schema requires the property, does not know it, or
            # accepts a null.
            is_left_out = each is None and name in properties and not is_required
            if is_left_out and not self._accepts(part, None):
                continue
            repaired[name] = self._repair(part, each)
        return repaired

    def _without_word_for_null(
        self, schema: Mapping[str, Any], value: Any, *, is_required: bool
    ) -> Any:
        """Return None for a word that stands for it, else the value.

        The word is text where the schema accepts text. It is a mistake, and stays, where the
        property is required and cannot be null.
        """
        if not isinstance(value, str) or value.strip().lower() not in _WORDS_FOR_NULL:
            return value
        if self._takes_text(schema, value):
            return value
        if is_required and not self._accepts(schema, None):
            return value
        return None

    def _takes_text(self, schema: Mapping[str, Any], text: str) -> bool:
        """Return whether the text may be a value of a property, and not just a word for null.

        It cannot be a date, a time or a UUID, and a choice only if it is one of them.
        """
        if "$ref" in schema:
            return self._takes_text(self._definition(schema["$ref"]), text)
        alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if alternatives:
            return any(self._takes_text(part, text) for part in alternatives)
        if "enum" in schema or "const" in schema:
            return self._accepts(schema, text)
        types = _types_of(schema)
        if types == [None]:  # any type
            return True
        return "string" in types and schema.get("format") not in _STRICT_FORMATS

    def _accepts(self, schema: Mapping[str, Any], value: Any) -> bool:
        """Return whether a schema accepts a value."""
        # The common case, without jsonschema.
        if value is None and isinstance(schema.get("type"), str):
            return bool(schema["type"] == "null")
        return bool(self._validator.evolve(schema=schema).is_valid(value))


def _decoded(schema: Mapping[str, Any], text: str) -> Any:
    """Return the list or object in a JSON text, if the schema wants one; else the text."""
    types = _types_of(schema)
    wanted: list[type] = []
    if "array" in types:
        wanted.append(list)
    if "object" in types:
        wanted.append(dict)
    if not wanted or "string" in types:
        return text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, tuple(wanted)) else text


def read_json(text: str) -> Any:
    """Return the JSON value of a text as models write it.

    The JSON may be in a code fence, be encoded several times, or have a comma behind its last
    value. Raises ValueError or RecursionError for a text that holds no JSON.
    """
    value: Any = text
    for _ in range(_MAX_ENCODINGS):
        inside = value.strip()
        if inside.startswith(_FENCE) and inside.endswith(_FENCE):
            _, _, inside = inside.removesuffix(_FENCE).partition("\n")
        try:
            value = json.loads(inside, parse_constant=_refuse_constant)
        except ValueError:
            without_last_commas = _LAST_COMMA.sub(lambda match: match["text"] or "", inside)
            value = json.loads(without_last_commas, parse_constant=_refuse_constant)
        if not isinstance(value, str):
            break
    return value


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's reader of JSON would accept."""
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
    types = _types_of(schema)
    if is_whole_float(value):
        is_integer = "integer" in types and "number" not in types
        if "enum" in schema or is_integer:
            return int(value)
        return value
    if not isinstance(value, str):
        return value
    if "enum" in schema:
        return _read_choice(schema["enum"], value)
    if "string" in types:
        return value
    for name in types:
        if name in _READERS:
            with contextlib.suppress(ValueError, KeyError):
                return _READERS[name](value)
    return value


def _read_choice(choices: Sequence[Any], text: str) -> Any:
    """Return the choice that a text stands for, such as 3 for "3"; else the text."""
    if text in choices:
        return text
    boolean = _BOOLEANS.get(text.lower())
    for choice in choices:
        if isinstance(choice, bool) and choice is boolean:
            return choice
        if str(choice) == text:
            return choice
    return text


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


#: Functions that read the text of a value, by its type. They raise ValueError or KeyError for a text
#: that is no such value.
_READERS: Mapping[Any, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "boolean": lambda text: _BOOLEANS[text.lower()],
}


class TooMuchWork(Exception):
    """Raised when arguments cannot be checked within MAX_STEPS."""


class StepBudget:
    """Counts the evaluated keywords of one call, so that a hostile schema cannot hold the process.

    It is passed in the place of jsonschema's format checker, since that is the only field that a
    validator hands on to the validators of its subschemas. So formats are not checked.
    """

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def spend(self) -> None:
        """Count one keyword. Raises TooMuchWork."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork(f"it takes more than {MAX_STEPS} steps")

    def check(self, *_: Any) -> None:
        """Accept any format: jsonschema calls this method of a format checker."""


def bounded_validator(schema: Mapping[str, Any]) -> Validator:
    """Return the validator of a schema, by its draft. Use it `with_budget` only.

    `unevaluatedProperties` counts in each draft, although the older ones do not know it.

    The registry holds the official schemas alone. With the default registry a reference could make
    this process fetch an address that the author of the schema chose.
    """
    from jsonschema_specifications import REGISTRY

    # By a `$schema`, `evolve` would choose the class of jsonschema itself, which counts no steps.
    unnamed = {key: value for key, value in schema.items() if key != "$schema"}
    validator: Validator = _bounded_class(draft_of(schema))(unnamed, registry=REGISTRY)
    return validator


def with_budget(validator: Validator, budget: StepBudget) -> Validator:
    """Return the validator for one call: it raises TooMuchWork when the budget is spent."""
    return validator.evolve(format_checker=budget)


def draft_of(schema: Mapping[str, Any]) -> Any:
    """Return the validator class for the draft (version of JSON Schema) that a schema names.

    If it names none, it is the newest draft that accepts the schema.
    """
    import jsonschema

    # Formats are not checked: a pattern that only Python refuses is no sign of an older draft.
    no_formats = jsonschema.FormatChecker(())
    newest = jsonschema.Draft202012Validator
    if "$schema" in schema or "$defs" in schema:  # older drafts do not know `$defs`
        return jsonschema.validators.validator_for(schema, default=newest)
    for draft in (newest, jsonschema.Draft7Validator, jsonschema.Draft4Validator):
        with contextlib.suppress(jsonschema.SchemaError):
            draft.check_schema(schema, format_checker=no_formats)
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

    # jsonschema evaluates these two in a time that a hostile schema can make endless.
    replaced: dict[str, _Keyword] = {"pattern": _pattern, "uniqueItems": _unique_items}
    newest = jsonschema.Draft202012Validator.VALIDATORS
    unevaluated = {"unevaluatedProperties": newest["unevaluatedProperties"]}
    evaluators = {**unevaluated, **draft.VALIDATORS, **replaced}
    keywords = {name: partial(counted, evaluators[name]) for name in evaluators}
    # The stubs of jsonschema lack the types of `extend`.
    return jsonschema.validators.extend(draft, keywords)  # type: ignore[no-untyped-call]


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    """Refuse text in which the pattern does not occur."""
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not pattern_search(pattern)(instance):
        yield ValidationError(f"does not match {pattern!r}")


def pattern_search(pattern: str) -> Callable[[str], object]:
    """Return a function that searches for a pattern in a text; its value is true for a match.

    It searches in linear time, or with Python's own engine if only that accepts the pattern. Raises
    re.error for a pattern that neither accepts.
    """
    return linear_search(pattern) or re.compile(pattern).search


@functools.lru_cache(maxsize=1024)
def linear_search(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that tells whether a text matches, without backtracking.

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
